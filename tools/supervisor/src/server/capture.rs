//! Captures over the control socket.

use std::io::{self, BufWriter, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use anyhow::Context;
use tofu_abi::Coords;
use tofu_agent::wire::{FrameReader, MAX_DATA, encode};
use tofu_control::protocol::{CaptureReply, CaptureRequest, Reply, Request};
use tofu_machine::capture::CaptureConfig;

use crate::capture::write;
use crate::registry::Registry;

/// Sends what is written to a client.
struct Sender<'a>(&'a mut UnixStream);

impl Sender<'_> {
    fn say(&mut self, answer: CaptureReply) -> io::Result<()> {
        let bytes = encode(&Reply::Capture(answer)).map_err(io::Error::other)?;
        self.0.write_all(&bytes)
    }
}

impl Write for Sender<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let some = &bytes[..bytes.len().min(MAX_DATA)];
        self.say(CaptureReply::Data(some.to_vec()))?;
        Ok(some.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Serves a capture until a limit is reached, or the client says no more or has gone.
///
/// # Errors
///
/// What the client is to be told, as long as nothing has been sent; later, that it has gone.
pub(super) fn serve(
    client: &mut UnixStream,
    mut requests: FrameReader<UnixStream>,
    registry: &Registry,
    request: &CaptureRequest,
) -> anyhow::Result<()> {
    let network = registry.running().context("the machine has not started yet")?;
    let at = Coords::from_array(request.at);
    let shape = network.wires().fabric().shape();
    let node =
        shape.node_id(at).with_context(|| format!("the machine {shape} has no node {at}"))?;
    let config = CaptureConfig {
        interfaces: request.interfaces,
        kinds: request.kinds,
        snaplen: request.snaplen as usize,
        ..CaptureConfig::new(node)
    };
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    let listen = move || {
        // It says nothing more; the end of its stream says that it has had enough.
        while let Ok(Some(_)) = requests.receive::<Request>() {}
        seen.store(true, SeqCst);
    };
    let thread = thread::Builder::new().name("capture-end".into());
    thread.spawn(listen).context("no threads left")?;
    let capture = network.capture(config);
    let mut out = BufWriter::with_capacity(MAX_DATA, Sender(client));
    let summary = write(&capture, at, request.limits, &stop, &mut out)?;
    out.flush()?;
    out.get_mut().say(CaptureReply::End(summary))?;
    Ok(())
}
