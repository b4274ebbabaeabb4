//! QEMU's connection to its device, which is made for it: QEMU cannot take an open one, and could
//! otherwise connect to every socket of its user.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::Context;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tofu_sandbox::answer_connect;

/// Answers the first connect(2) of the program that `command` will run, by a connection to the
/// socket at `device`. Later ones fail.
pub(super) fn answer(command: &mut Command, node: &str, device: &Path) -> anyhow::Result<()> {
    let (ours, theirs) = UnixStream::pair().context("no sockets left")?;
    command.stdin(OwnedFd::from(theirs));
    let (node, device) = (node.to_owned(), device.to_owned());
    let run = move || {
        if let Err(error) = serve(&ours, device) {
            log::error!("node {node}: connecting QEMU to its device: {error:#}");
        }
    };
    thread::Builder::new().name("connect".into()).spawn(run).context("no threads left")?;
    Ok(())
}

fn serve(socket: &UnixStream, device: PathBuf) -> anyhow::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(socket, &mut bytes, &mut control, flags)?;
    let mut messages = control.drain();
    let listener = messages.find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    match listener {
        Some(listener) => {
            Ok(answer_connect(listener.as_fd(), || UnixStream::connect(device).map(OwnedFd::from))?)
        }
        // It ended before, and has said why.
        None if got.bytes == 0 => Ok(()),
        None => anyhow::bail!("no descriptor came"),
    }
}
