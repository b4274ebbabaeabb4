//! Frames of raw and system packets: their headers and check sequence.

use tofu_abi::desc::Header1;
use tofu_abi::frame::{
    ECRC_SIZE, HEADER_SIZE, ROUTING_HEADER_SIZE, Report, RoutingHeader, TLP_UNIT, TlpHeader,
    TlpKind, frame_size, is_frame_size,
};
use tofu_abi::{Coords, TniId};
use tofu_fabric::{Port, Way};

use crate::command::Message;
use crate::notice::Peer;

/// A frame and where it goes.
pub(crate) struct Outgoing {
    pub(crate) frame: Box<[u8]>,
    pub(crate) dst: Coords,
    pub(crate) dst_tni: u8,
    pub(crate) way: Way,
}

impl Outgoing {
    /// A system packet of interface `tni` of the node at `source`, whose payload lies behind the
    /// headers in `frame`.
    pub(crate) fn system(
        source: Coords,
        tni: TniId,
        message: &Message,
        mut frame: Vec<u8>,
    ) -> Self {
        let (header, payload) = (message.header1, message.length as usize - HEADER_SIZE);
        let (to, distances) = (message.tni.get(), header.distances());
        let from = Peer { node: source, tni };
        put_header(&mut frame, TlpKind::System, payload, from);
        seal(&mut frame);
        let routing = routing_header(header, frame.len()).with_distances(distances);
        Self {
            frame: finished(frame, routing.with_di(to).with_system(true)),
            // The carrier works out X, Y and Z.
            dst: Coords { x: source.x, y: source.y, z: source.z, ..header.target() },
            dst_tni: to,
            way: Way::Distances(distances),
        }
    }

    /// A frame as it is, to a node.
    pub(crate) fn raw(message: &Message, frame: Vec<u8>) -> Self {
        let (header, to) = (message.header1, message.tni.get());
        let system = is_system(&frame);
        let routing = routing_header(header, frame.len()).with_di(to).with_system(system);
        Self {
            frame: finished(frame, routing),
            dst: header.target(),
            dst_tni: to,
            way: Way::Shortest,
        }
    }

    /// A frame as it is, one hop from the node at `source`.
    pub(crate) fn hop(source: Coords, header: Header1, port: Port, frame: Vec<u8>) -> Self {
        let di = routing_of(&frame).di();
        let system = is_system(&frame);
        let routing = RoutingHeader(0)
            .with_tlp_units(len_field(frame.len()))
            .with_path(header.path())
            .with_di(di)
            .with_system(system);
        Self {
            frame: finished(frame, routing),
            dst: source,
            dst_tni: di,
            way: Way::Hop { port, vc: header.vc(), nullified: header.e() },
        }
    }

    /// Returns true if its TLP is a system TLP.
    pub(crate) fn is_system(&self) -> bool {
        is_system(&self.frame)
    }
}

/// A frame that a device writes for its own node.
pub(crate) fn report_frame(from: Peer, report: &Report) -> Vec<u8> {
    let mut frame = vec![0; frame_size(Report::SIZE)];
    put_header(&mut frame, TlpKind::Report, Report::SIZE, from);
    frame[HEADER_SIZE..HEADER_SIZE + Report::SIZE].copy_from_slice(&report.to_bytes());
    let routing = RoutingHeader(0).with_tlp_units(len_field(frame.len()));
    frame[..ROUTING_HEADER_SIZE].copy_from_slice(&routing.0.to_le_bytes());
    seal(&mut frame);
    frame
}

/// Writes the TLP's header into a frame.
fn put_header(frame: &mut [u8], kind: TlpKind, payload: usize, from: Peer) {
    let tlp = TlpHeader(0)
        .with_kind(kind as u8)
        .with_length(payload as u16)
        .with_source(from.node)
        .with_i(from.tni.get());
    frame[ROUTING_HEADER_SIZE..HEADER_SIZE].copy_from_slice(&tlp.0.to_le_bytes());
}

/// The routing header of a packet that is routed by its descriptor.
fn routing_header(header: Header1, frame: usize) -> RoutingHeader {
    let target = header.target();
    RoutingHeader(0)
        .with_tlp_units(len_field(frame))
        .with_path(header.path())
        .with_a(target.a)
        .with_b(target.b)
        .with_c(target.c)
}

/// The LEN field of a frame of that many bytes.
const fn len_field(frame: usize) -> u8 {
    ((frame - ROUTING_HEADER_SIZE) / TLP_UNIT - 1) as u8
}

fn finished(mut frame: Vec<u8>, routing: RoutingHeader) -> Box<[u8]> {
    frame[..ROUTING_HEADER_SIZE].copy_from_slice(&routing.0.to_le_bytes());
    frame.into_boxed_slice()
}

/// The qword at a place of a frame; 0 beyond its end.
fn qword(frame: &[u8], at: usize) -> u64 {
    let bytes = frame.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u64::from_le_bytes)
}

fn routing_of(frame: &[u8]) -> RoutingHeader {
    RoutingHeader(qword(frame, 0))
}

/// The header of the TLP in a frame.
pub(crate) fn tlp_header(frame: &[u8]) -> TlpHeader {
    TlpHeader(qword(frame, ROUTING_HEADER_SIZE))
}

/// Returns true if the TLP in a frame is a system TLP.
pub(crate) fn is_system(frame: &[u8]) -> bool {
    tlp_header(frame).kind() == TlpKind::System as u8
}

/// Returns true if a frame is as long as it says; no link lets any other through.
pub(crate) fn is_whole(frame: &[u8]) -> bool {
    is_frame_size(frame.len()) && routing_of(frame).tlp_size() + ROUTING_HEADER_SIZE == frame.len()
}

/// The ECRC that a frame should end with.
fn ecrc(frame: &[u8]) -> u32 {
    let end = frame.len().saturating_sub(ECRC_SIZE);
    frame.get(ROUTING_HEADER_SIZE..end).map_or(0, crc32fast::hash)
}

/// Makes a frame end with its ECRC.
pub(crate) fn seal(frame: &mut [u8]) {
    let sum = ecrc(frame);
    if let Some(end) = frame.last_chunk_mut::<ECRC_SIZE>() {
        *end = sum.to_le_bytes();
    }
}

pub(crate) fn ecrc_is_right(frame: &[u8]) -> bool {
    frame.last_chunk::<ECRC_SIZE>().is_some_and(|end| u32::from_le_bytes(*end) == ecrc(frame))
}
