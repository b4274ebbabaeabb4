//! What is recorded of a packet: a header of ours, and the frame.

use tofu_abi::frame::{self, ROUTING_HEADER_SIZE, RoutingHeader, TlpHeader};
use tofu_abi::{Coords, Generation};
use tofu_fabric::{Class, Direction, DiscardReason, Observation, Packet, Port, TapPoint, Way};
use tofu_icc::{Answer, Body, Payload, Request};

/// Version of the header.
pub const VERSION: u8 = 1;
/// Bytes of the header.
pub const HEADER_SIZE: usize = 56;

/// Kinds in TLP headers that were made for the record, above those that packet buffers know.
const SYNTHETIC: u8 = 16;

/// Kinds of packets, with their codes in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PacketKind {
    /// A system packet.
    System = 1,
    /// A raw packet.
    Raw = 2,
    /// A Put.
    Put = 3,
    /// A Get.
    Get = 4,
    /// An atomic command.
    Atomic = 5,
    /// Answer to a Put.
    PutAnswer = 6,
    /// Answer to a Get, with its data.
    GetAnswer = 7,
    /// Answer to an atomic command.
    AtomicAnswer = 8,
    /// A signal of a barrier gate.
    Signal = 9,
}

impl PacketKind {
    pub(crate) fn of(packet: &Packet<Body>) -> Self {
        match &packet.body {
            Body::Frame { .. } if packet.system => Self::System,
            Body::Frame { .. } => Self::Raw,
            Body::Put { .. } => Self::Put,
            Body::Get { .. } => Self::Get,
            Body::Armw { .. } => Self::Atomic,
            Body::PutAck { .. } => Self::PutAnswer,
            Body::GetData { .. } => Self::GetAnswer,
            Body::ArmwAck { .. } => Self::AtomicAnswer,
            Body::Signal(_) => Self::Signal,
        }
    }
}

impl PacketKind {
    const ALL: [Self; 9] = [
        Self::System,
        Self::Raw,
        Self::Put,
        Self::Get,
        Self::Atomic,
        Self::PutAnswer,
        Self::GetAnswer,
        Self::AtomicAnswer,
        Self::Signal,
    ];
}

/// What a record says of its packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// What kind of machine its node is in.
    pub generation: Generation,
    /// Where it was seen.
    pub place: TapPoint,
    /// Which way it went there: 0 out, 1 in, 2 to 5 lost, see the manual's page on captures.
    pub direction: u8,
    /// Its virtual channel; none at a TNI.
    pub vc: Option<u8>,
    /// What it is.
    pub kind: PacketKind,
    /// Marked as bad on its way.
    pub nullified: bool,
    /// The sending node and its TNI.
    pub source: (Coords, u8),
    /// The node that it is for, and its TNI there.
    pub target: (Coords, u8),
    /// TLPs of the burst.
    pub tlps: u32,
    /// Bytes of them on the wire.
    pub bytes: u64,
    /// A command's queue, how much it moves, and where in the message that begins; of an answer
    /// how much was done.
    pub message: Option<MessagePart>,
    /// The result that an answer brings.
    pub rcode: Option<u8>,
}

/// The part of a message that a burst moves, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessagePart {
    /// The sender's control queue.
    pub cq: u8,
    /// Where it begins in the message.
    pub position: u32,
    /// How much it is.
    pub length: u32,
}

impl RecordHeader {
    /// Reads a record; `None` if it is none, or one of a later version or generation.
    pub fn parse(record: &[u8]) -> Option<Self> {
        let header = record.first_chunk::<HEADER_SIZE>()?;
        let coords = |at: usize| {
            header[at..at + 6].try_into().ok().map(|six: [u8; 6]| Coords::from_array(six))
        };
        let number = |at: usize| Some(u32::from_le_bytes(record.get(at..at + 4)?.try_into().ok()?));
        if header[0] != VERSION {
            return None;
        }
        let kind = PacketKind::ALL.into_iter().find(|kind| *kind as u8 == header[6])?;
        let (place, behind) = (header[2], usize::from(header[1]) + 2 * size_of::<u64>());
        // The first fields of a command, and of an answer.
        let cq = record.get(behind).copied();
        let part = |position: usize, length: usize| {
            let (position, length) = (number(behind + position)?, number(behind + length)?);
            Some(MessagePart { cq: cq?, position, length })
        };
        let (message, rcode) = match kind {
            PacketKind::Put | PacketKind::Get | PacketKind::Atomic => (part(40, 44), None),
            PacketKind::PutAnswer | PacketKind::GetAnswer | PacketKind::AtomicAnswer => {
                (part(8, 12), record.get(behind + 1).copied())
            }
            PacketKind::System | PacketKind::Raw | PacketKind::Signal => (None, None),
        };
        Some(Self {
            generation: Generation::from_number(header[35])?,
            place: match place.checked_sub(16) {
                None => TapPoint::Tni(place),
                Some(port) => TapPoint::Port(Port::from_index(port.into())?),
            },
            direction: header[3],
            vc: Some(header[4]).filter(|vc| *vc != u8::MAX),
            kind,
            nullified: header[7] & 1 << 7 != 0,
            source: (coords(16)?, header[14]),
            target: (coords(22)?, header[15]),
            tlps: number(36)?,
            bytes: header[40..48].try_into().map(u64::from_le_bytes).ok()?,
            message,
            rcode,
        })
    }
}

/// A record of at most `snaplen` bytes, and how long it would be otherwise.
pub(super) fn encode(
    generation: Generation,
    at: Coords,
    observation: Observation,
    kind: PacketKind,
    packet: &Packet<Body>,
    snaplen: usize,
) -> (Vec<u8>, u32) {
    let snaplen = snaplen.max(HEADER_SIZE);
    let mut out = Vec::with_capacity(snaplen.min(2048));
    header(&mut out, generation, at, observation, kind, packet);
    let mut tail = 0;
    match &packet.body {
        Body::Frame { frame, .. } => {
            let kept = frame.len().min(snaplen - HEADER_SIZE);
            out.extend_from_slice(&frame[..kept]);
            tail = frame.len() - kept;
        }
        body => {
            tlp(&mut out, kind, packet);
            let payload = fields(&mut out, body);
            if let Some((payload, length)) = payload {
                let room = snaplen.saturating_sub(out.len()).min(length);
                let kept = copy(&mut out, payload, room);
                tail = length - kept;
            }
        }
    }
    let length = u32::try_from(out.len() + tail).unwrap_or(u32::MAX);
    out.truncate(snaplen);
    (out, length)
}

/// See the manual's page on captures.
fn header(
    out: &mut Vec<u8>,
    generation: Generation,
    at: Coords,
    observation: Observation,
    kind: PacketKind,
    packet: &Packet<Body>,
) {
    let place = match observation.point {
        TapPoint::Tni(tni) => tni,
        TapPoint::Port(port) => 16 + port.index() as u8,
    };
    let direction = match observation.direction {
        Direction::Out => 0,
        Direction::In => 1,
        Direction::Lost(DiscardReason::LinkDown) => 2,
        Direction::Lost(DiscardReason::NoSuchNode) => 3,
        Direction::Lost(DiscardReason::NoSuchPath) => 4,
        Direction::Lost(_) => 5,
    };
    let class = match packet.class {
        Class::Request => 0,
        Class::Response => 1,
        Class::System => 2,
    };
    let (way, port, distances) = match packet.way {
        Way::Shortest => (0, 0, [0; 3]),
        Way::Distances(distances) => (1, 0, distances),
        Way::Hop { port, nullified, .. } => (2 | u8::from(nullified) << 7, port as u8, [0; 3]),
    };
    out.extend([VERSION, HEADER_SIZE as u8, place, direction]);
    out.extend([observation.vc.unwrap_or(u8::MAX), class, kind as u8, way]);
    out.extend(at.to_array());
    out.extend([packet.src_tni, packet.dst_tni]);
    out.extend(packet.src.to_array());
    out.extend(packet.dst.to_array());
    out.extend([packet.path.a, packet.path.b, packet.path.c, port]);
    out.extend(distances.map(|hops| hops as u8));
    out.push(generation.number());
    out.extend(packet.tlps.to_le_bytes());
    out.extend(packet.bytes.to_le_bytes());
    out.extend(packet.model_ps.to_le_bytes());
    debug_assert_eq!(out.len(), HEADER_SIZE);
}

/// The two headers of a packet that has no frame of its own, in the manner of one that has.
fn tlp(out: &mut Vec<u8>, kind: PacketKind, packet: &Packet<Body>) {
    let each = packet.bytes / u64::from(packet.tlps.max(1));
    let units = each.saturating_sub(ROUTING_HEADER_SIZE as u64).div_ceil(frame::TLP_UNIT as u64);
    let routing = RoutingHeader(0)
        .with_tlp_units(units.saturating_sub(1).min(61) as u8)
        .with_path(packet.path)
        .with_a(packet.dst.a)
        .with_b(packet.dst.b)
        .with_c(packet.dst.c)
        .with_di(packet.dst_tni)
        .with_barrier(matches!(packet.body, Body::Signal(_)));
    let kind = SYNTHETIC + kind as u8;
    let tlp = TlpHeader(0).with_kind(kind).with_source(packet.src).with_i(packet.src_tni);
    out.extend(routing.0.to_le_bytes());
    out.extend(tlp.0.to_le_bytes());
}

/// The fields of a command or answer. Returns its data, and how much that is.
fn fields<'a>(out: &mut Vec<u8>, body: &'a Body) -> Option<(&'a Payload, usize)> {
    match body {
        Body::Put { request: command, payload } => {
            request(out, command);
            Some((payload, command.length as usize))
        }
        Body::Get { request: command } => {
            request(out, command);
            None
        }
        Body::Armw { request: command, op, operand, compare } => {
            request(out, command);
            out.extend([*op as u8, 0, 0, 0, 0, 0, 0, 0]);
            out.extend(operand.to_le_bytes());
            out.extend(compare.to_le_bytes());
            None
        }
        Body::PutAck { answer: end } => {
            answer(out, end);
            None
        }
        Body::GetData { answer: end, payload } => {
            answer(out, end);
            Some((payload, end.done as usize))
        }
        Body::ArmwAck { answer: end, old } => {
            answer(out, end);
            out.extend(old.to_le_bytes());
            None
        }
        Body::Signal(signal) => {
            let value = signal.value.as_deref();
            let words = signal.payload_bytes() as usize / 8;
            out.extend([signal.source.get(), signal.target.get(), signal.op, words as u8]);
            out.extend(signal.bseq.to_le_bytes());
            out.extend(signal.gpid.to_le_bytes());
            for word in value.into_iter().flatten().take(words) {
                out.extend(word.to_le_bytes());
            }
            None
        }
        Body::Frame { .. } => None,
    }
}

fn request(out: &mut Vec<u8>, request: &Request) {
    out.extend([request.tag.cq.get(), request.sps]);
    out.extend(request.tag.index.to_le_bytes());
    out.extend(request.tag.generation.to_le_bytes());
    for word in [request.gpid, request.header2.0, request.remote.0, request.local.0] {
        out.extend(word.to_le_bytes());
    }
    for word in [request.position, request.length, request.total, request.mtu] {
        out.extend(word.to_le_bytes());
    }
}

fn answer(out: &mut Vec<u8>, answer: &Answer) {
    out.extend([answer.tag.cq.get(), answer.rcode.raw()]);
    out.extend(answer.tag.index.to_le_bytes());
    out.extend(answer.tag.generation.to_le_bytes());
    for word in [answer.position, answer.length, answer.done, 0] {
        out.extend(word.to_le_bytes());
    }
    out.extend(answer.request_ps.to_le_bytes());
}

/// Appends up to `room` bytes of data. Returns how much there was.
fn copy(out: &mut Vec<u8>, payload: &Payload, room: usize) -> usize {
    let start = out.len();
    match payload {
        Payload::Inline { data, len } => {
            out.extend_from_slice(&data[..room.min((*len).into()).min(data.len())]);
        }
        Payload::Bytes(data) => out.extend_from_slice(&data[..room.min(data.len())]),
        Payload::Guest { memory, segments, .. } => {
            for segment in segments {
                let at = out.len();
                let take = (segment.len as usize).min(room - (at - start));
                out.resize(at + take, 0);
                // Memory that has gone since is not the capture's affair: the packet's target
                // will find out.
                if take == 0 || memory.read(segment.addr, &mut out[at..]).is_err() {
                    out.truncate(at);
                    break;
                }
            }
        }
    }
    out.len() - start
}
