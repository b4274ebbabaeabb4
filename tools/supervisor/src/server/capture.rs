//! Captures over the control socket.

use std::io::{self, BufWriter, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use tofu_abi::Coords;
use tofu_agent::wire::MAX_DATA;
use tofu_control::lines::LineReader;
use tofu_control::protocol::{CaptureLimits, CaptureRequest, Reply};
use tofu_fabric::NodeId;
use tofu_machine::capture::{Capture, CaptureConfig};

use super::reply::{has_enough, say};
use crate::capture::select::{CapturePoints, PacketKinds};
use crate::capture::write;
use crate::registry::Registry;

/// Sends everything written to it to a client.
struct Sender<'a>(&'a mut UnixStream);

impl Write for Sender<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let some = &bytes[..bytes.len().min(MAX_DATA)];
        say(self.0, &Reply::Packets { pcapng: some.to_vec() }).map_err(io::Error::other)?;
        Ok(some.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A capture in progress.
pub(super) struct Begun {
    capture: Capture,
    at: Coords,
    limits: CaptureLimits,
    _observing: Arc<()>,
}

/// Begins a capture.
///
/// # Errors
///
/// One line for the user.
pub(super) fn begin(registry: &Registry, request: &CaptureRequest) -> anyhow::Result<Begun> {
    let network = registry.running().context("the machine has not started yet")?;
    let node = NodeId(request.node);
    let at = registry.place(node)?;
    let interconnect = network.interconnect();
    let on = request.on.iter().map(|place| {
        let points: Result<CapturePoints, _> = place.parse();
        let points = points.map_err(|allowed| anyhow!("on: places are {allowed}"))?;
        let there = points.of(interconnect);
        there.map(|points| points.0).with_context(|| match interconnect.tofu() {
            Some(generation) => {
                let last = generation.description().tnis - 1;
                format!(
                    "on: there is no {place} in a machine of {generation}: it has tni0 to tni{last}"
                )
            }
            None => {
                format!("on: there is no {place} in a machine of TNW: it has ports X- to Z+")
            }
        })
    });
    let kinds = request.kind.iter().map(|kind| {
        let kind: Result<PacketKinds, _> = kind.parse();
        kind.map(|kind| kind.0).map_err(|allowed| anyhow!("kind: kinds are {allowed}"))
    });
    let config = CaptureConfig {
        interfaces: union(on)?.unwrap_or(CapturePoints::ALL.0),
        kinds: union(kinds)?.unwrap_or(PacketKinds::ALL.0),
        snaplen: request.snaplen.clamp(LEAST_SNAPLEN, MOST_SNAPLEN) as usize,
        ..CaptureConfig::new(node)
    };
    let observing = registry.observe()?;
    let capture = network.capture(config);
    let limits = request.limits;
    Ok(Begun { capture, at, limits, _observing: observing })
}

/// A packet's record has a header of `LEAST_SNAPLEN` bytes, and no packet is longer than
/// `MOST_SNAPLEN`.
const LEAST_SNAPLEN: u32 = 56;
const MOST_SNAPLEN: u32 = 1 << 20;

/// Returns the union of the bits, or `None` if there are none.
fn union(all: impl Iterator<Item = anyhow::Result<u32>>) -> anyhow::Result<Option<u32>> {
    let mut bits = None;
    for one in all {
        bits = Some(bits.unwrap_or(0) | one?);
    }
    Ok(bits)
}

impl Begun {
    /// Serves the capture until a limit is reached, or the client closes its side or has gone.
    ///
    /// # Errors
    ///
    /// If the client has gone.
    pub(super) fn serve(
        self,
        client: &mut UnixStream,
        requests: LineReader<UnixStream>,
    ) -> anyhow::Result<()> {
        let stop = has_enough(requests)?;
        let mut out = BufWriter::with_capacity(MAX_DATA, Sender(client));
        let summary = write(&self.capture, self.at, self.limits, &stop, &mut out)?;
        out.flush()?;
        say(out.get_mut().0, &Reply::Captured(summary))
    }
}
