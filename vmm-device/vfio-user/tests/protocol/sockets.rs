//! Sockets in the file system.

use std::io::Read;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use tofu_vfio_user::{SocketError, bind_socket};

fn error_of(path: &Path) -> String {
    bind_socket(path).unwrap_err().to_string()
}

#[test]
fn only_a_dead_socket_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node");
    // The socket that a killed process leaves behind.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let socket = bind_socket(&path).unwrap();
    let text = format!("socket {} is in use by another tofu serve", path.display());
    assert_eq!(error_of(&path), text);
    // The socket still belongs to the first one, which saw a client that disconnected immediately.
    let listener = socket.listener().unwrap();
    let (mut probe, _) = listener.accept().unwrap();
    assert_eq!(probe.read(&mut [0]).unwrap(), 0);
    let _client = UnixStream::connect(&path).unwrap();
    drop((socket, listener));
    assert!(!path.exists());
    // A server whose queue of clients is full is alive nevertheless.
    let full = UnixListener::bind(&path).unwrap();
    rustix::net::listen(&full, 0).unwrap();
    let _waiting = UnixStream::connect(&path).unwrap();
    assert_eq!(error_of(&path), text);
}

#[test]
fn foreign_files_are_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, "content").unwrap();
    let text =
        format!("{} exists and is no socket; remove it or choose another name", path.display());
    assert_eq!(error_of(&path), text);
    assert_eq!(std::fs::read(&path).unwrap(), b"content");
    let missing = directory.path().join("no/such/folder");
    assert!(matches!(bind_socket(&missing), Err(SocketError::Host { .. })));
    let long = directory.path().join("x".repeat(108));
    let error = error_of(&long);
    assert!(error.contains("at most 107 are allowed") && !error.contains('\n'), "{error}");
    // Another socket has replaced ours.
    let path = directory.path().join("node");
    let ours = bind_socket(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let _theirs = UnixListener::bind(&path).unwrap();
    drop(ours);
    assert!(path.exists());
}
