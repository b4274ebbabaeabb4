//! The replies of the control socket, one per line.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use anyhow::Context;
use tofu_control::lines::{LineReader, encode};
use tofu_control::protocol::{Reply, Request};

/// Writes a reply.
pub(super) fn say(client: &mut UnixStream, reply: &Reply) -> anyhow::Result<()> {
    Ok(client.write_all(&encode(reply)?)?)
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
