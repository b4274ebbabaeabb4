//! The replies of the control socket, one per line.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use anyhow::Context;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tofu_control::lines::{LineReader, encode};
use tofu_control::protocol::{Reply, Request};

/// Writes a reply.
pub(super) fn say(client: &mut UnixStream, reply: &Reply) -> anyhow::Result<()> {
    Ok(client.write_all(&encode(reply)?)?)
}

/// Returns true if a client that should send nothing more has disconnected. Data from it is
/// dropped.
pub(super) fn has_left(client: &UnixStream) -> bool {
    let mut said = [0; 1024];
    loop {
        match recv(client, &mut said[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return true,
            Ok(_) => {}
            Err(Errno::AGAIN) => return false,
            Err(Errno::INTR) => {}
            Err(_) => return true,
        }
    }
}

/// Returns a flag for a client that receives data. It is set when the client wants no more, which
/// the end of its stream signals.
///
/// # Errors
///
/// If the host has no threads left.
pub(super) fn has_enough(mut requests: LineReader<UnixStream>) -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    let listen = move || {
        while let Ok(Some(_)) = requests.receive::<Request>() {}
        seen.store(true, SeqCst);
    };
    thread::Builder::new().name("client-end".into()).spawn(listen).context("no threads left")?;
    Ok(stop)
}
