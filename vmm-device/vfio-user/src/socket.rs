//! Sockets in the file system. A stale one, without a listener, is replaced.

use std::fs::{File, symlink_metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use thiserror::Error;

/// The longest name of a socket, in bytes: what fits in `sun_path`, see unix(7).
const NAME_MAX: usize = 107;

/// The reason why a socket cannot be made.
#[derive(Debug, Error)]
pub enum SocketError {
    /// A process listens to it.
    #[error("socket {} is in use by another tofu serve", .0.display())]
    InUse(PathBuf),
    /// There is something else of that name.
    #[error("{} exists and is no socket; remove it or choose another name", .0.display())]
    NoSocket(PathBuf),
    /// The name is too long.
    #[error(
        "socket {}: the name has {} bytes, at most {NAME_MAX} are allowed",
        .0.display(),
        .0.as_os_str().len()
    )]
    TooLong(PathBuf),
    /// The host refuses.
    #[error("socket {}: {source}", .path.display())]
    Host {
        /// The socket.
        path: PathBuf,
        /// The host's error.
        source: io::Error,
    },
}

/// A listening socket in the file system, which is removed when this is dropped.
#[derive(Debug)]
pub struct BoundSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode: another socket of the same name is not ours to remove.
    id: (u64, u64),
}

impl BoundSocket {
    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The socket, for [`Server::run`](crate::Server::run).
    ///
    /// # Errors
    ///
    /// If the host has no descriptors left.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        if id_of(&self.path).is_ok_and(|id| id == self.id) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Listens on a socket at `path`. A socket file without a listener, as a killed process leaves
/// it behind, is replaced.
///
/// # Errors
///
/// [`SocketError`]. Each says in one line what is wrong and with which path.
pub fn bind_socket(path: &Path) -> Result<BoundSocket, SocketError> {
    if path.as_os_str().len() > NAME_MAX {
        return Err(SocketError::TooLong(path.to_owned()));
    }
    let host = |source: io::Error| SocketError::Host { path: path.to_owned(), source };
    // Held while the name is checked and taken. So if two processes find the same dead socket, the
    // second does not remove the new socket of the first.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = File::open(folder.unwrap_or(Path::new("."))).map_err(host)?;
    flock(&folder, FlockOperation::LockExclusive).map_err(|error| host(error.into()))?;
    match symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(host(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(SocketError::NoSocket(path.to_owned()));
        }
        Ok(_) if is_alive(path).map_err(|error| host(error.into()))? => {
            return Err(SocketError::InUse(path.to_owned()));
        }
        Ok(_) => std::fs::remove_file(path).map_err(host)?,
    }
    let listener = UnixListener::bind(path).map_err(host)?;
    let id = id_of(path).map_err(host)?;
    Ok(BoundSocket { listener, path: path.to_owned(), id })
}

fn id_of(path: &Path) -> io::Result<(u64, u64)> {
    symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// Returns true if a process listens on a socket. It sees a client that disconnects immediately.
fn is_alive(path: &Path) -> Result<bool, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&probe, &SocketAddrUnix::new(path)?) {
        // The second: so many clients wait that there is no place for another one.
        Ok(()) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::CONNREFUSED) => Ok(false),
        Err(error) => Err(error),
    }
}
