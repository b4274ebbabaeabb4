//! The record of a packet: a header of our own layout, and the frame.
//!
//! The link type is USER0 (147), as the layout of TofuD's TLPs is not public. All of the following
//! is *ours*, except the sizes of frames and the names of the routing header's fields (TofuD paper,
//! Figures 5 and 6). Numbers are little endian. `tools/wireshark/tofu.lua` reads records.
//!
//! # The header
//!
//! By bytes:
//!
//! - 0: version of this header, 1
//! - 1: length of this header in bytes: 56, or 80 with the part about a link; later versions may
//!   have more
//! - 2: place: 0 to 5 is a TNI, 16 to 25 is port 0 to 9
//! - 3: direction: 0 out of the TNI or port, 1 into it. Packets that were lost here: 2 the link is
//!   down, 3 there is no such node, 4 there is no such path, 5 another reason
//! - 4: virtual channel; 255 at a TNI and for DLLPs
//! - 5: class: 0 request, 1 response, 2 system; 255 for DLLPs
//! - 6: kind, a [`PacketKind`]
//! - 7: routing: 0 shortest path, 1 by distances, 2 one hop; bit 7: marked as bad
//! - 8 to 13: the node: X, Y, Z, A, B, C
//! - 14, 15: TNI of the source and of the target
//! - 16 to 21, 22 to 27: source, target
//! - 28 to 30: path: A, B, C
//! - 31: for routing by one hop: the port
//! - 32 to 34: for routing by distances: hops on X, Y, Z, signed
//! - 35: generation of the machine: 1 K computer, 2 FX10, 3 FX100, 4 Fugaku; 16 is TNW; 0, in files
//!   of versions without this field, is Fugaku
//! - 36 to 39: number of TLPs: the record of a command is one burst, which may have many
//! - 40 to 47: bytes on the wire of all these TLPs
//! - 48 to 55: modelled time since the command began, in picoseconds
//!
//! At a port of modelled links each record is of one frame, and its header has 24 bytes more:
//!
//! - 56, 57: sequence number
//! - 58: number of lanes that the frame is spread over; with TofuD, 1 means that it is sent as a
//!   whole on each lane
//! - 59: STAT: bit mask of the lanes of the other direction that are received badly
//! - 60: bit mask of the lanes on which the frame is damaged
//! - 61: what the receiver finds: 0 the frame is good, 1 it is marked as bad, 2 it is damaged; a
//!   damaged DLLP is lost
//! - 62: bit 0: the frame is a retransmission; bit 1: the record has check sequences
//! - 64 to 67: number of the TLP in its packet, from 0
//! - 68 to 71: link CRC of the frame (LCRC)
//! - 72 to 74, 75 to 77: frame check sequences (FCS) of the slices on lane 0 and 1, most
//!   significant byte first
//!
//! Check sequences are TofuD's, as the layout of no other generation's frames is public, and the
//! ones that are sent; which bits of a damaged slice are wrong is not modelled.
//!
//! # The frame
//!
//! System and raw packets are recorded as they lie in memory ([`tofu_abi::frame`]). Commands have
//! no frame in this device, as their data goes from memory to memory. For them a routing header and
//! a TLP header are made (TLP kind 16 and the record's kind), then:
//!
//! - Put, Get, atomic: control queue (1 byte), session advance (1), command (2), generation (4),
//!   group process id (8), second command header (8), target and initiator address as
//!   CQ-STag-offset (8 each), position in the message, bytes of the burst, bytes of the message,
//!   mtu (4 each); atomic: operation (1 and 7 unused), operand, comparand (8 each); Put: data
//! - answers: control queue (1), result code (1), command (2), generation (4), position, bytes,
//!   bytes done (4 each and 4 unused), modelled time of the request (8); atomic: former value (8);
//!   Get: data
//! - DLLP: its 16 bytes; the headers are zeros
//! - barrier signal: source gate, target gate, operation, qwords of value (1 each), round (4),
//!   group process id (8), value
//!
//! A record of TNW is one data packet or one command of a link, 136 or 32 bytes after the header.
//! Class and TNIs are 255, and the channel takes the place of the virtual channel.

use tofu_abi::frame::{
    self, FRAME_MAX, HEADER_SIZE as FRAME_HEADER, ROUTING_HEADER_SIZE, RoutingHeader, TLP_UNIT,
    TlpHeader,
};
use tofu_abi::tnw::Header;
use tofu_abi::{Coords, Rcode};
use tofu_fabric::{
    Class, Direction, DiscardReason, Observation, OnLink, Packet, Port, TapPoint, Way,
};
use tofu_icc::{Answer, Body, DmaMemory, Payload, Request};
use tofu_links::{Check, Dllp, LinkFrame, MAX_SLICE, Parameters, Slice, Slicing};
use tofu_tnw_device::ControlKind;

use crate::interconnect::Interconnect;

/// Version of the header.
pub const VERSION: u8 = 1;
/// Size of the header, in bytes.
pub const HEADER_SIZE: usize = 56;
/// Size of the additional header of a frame on a modelled link, in bytes.
pub(crate) const LINK_SIZE: usize = 24;
/// Size of a record with the largest frame, in bytes.
pub(crate) const SNAPLEN: usize = HEADER_SIZE + LINK_SIZE + FRAME_MAX;

/// Added to the kind in TLP headers that were made for the record. Kinds of packet buffers are
/// less.
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
    /// A data-link-layer packet.
    Dllp = 10,
    /// A data packet of TNW.
    TnwData = 11,
    /// A command of TNW: one end of a link announces itself.
    TnwHello = 12,
    /// A command of TNW: positive feedback.
    TnwAck = 13,
    /// A command of TNW: negative feedback.
    TnwNack = 14,
    /// A command of TNW: packets are sent again.
    TnwRestart = 15,
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
    pub(crate) const fn of_command(kind: ControlKind) -> Self {
        match kind {
            ControlKind::Hello => Self::TnwHello,
            ControlKind::Ack => Self::TnwAck,
            ControlKind::Nack => Self::TnwNack,
            ControlKind::Restart => Self::TnwRestart,
        }
    }

    const ALL: [Self; 15] = [
        Self::System,
        Self::Raw,
        Self::Put,
        Self::Get,
        Self::Atomic,
        Self::PutAnswer,
        Self::GetAnswer,
        Self::AtomicAnswer,
        Self::Signal,
        Self::Dllp,
        Self::TnwData,
        Self::TnwHello,
        Self::TnwAck,
        Self::TnwNack,
        Self::TnwRestart,
    ];
}

/// A parsed record, without the data of its packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// The kind of machine that recorded the packet.
    pub interconnect: Interconnect,
    /// The interface at which the packet was seen.
    pub place: TapPoint,
    /// Direction there: 0 out, 1 in, 2 to 5 lost. See the top of this file.
    pub direction: u8,
    /// Virtual channel; `None` at a TNI.
    pub vc: Option<u8>,
    /// The kind of packet.
    pub kind: PacketKind,
    /// True if the packet was marked as bad on its way.
    pub nullified: bool,
    /// The sending node and its TNI.
    pub source: (Coords, u8),
    /// The target node and its TNI.
    pub target: (Coords, u8),
    /// Number of TLPs in the burst.
    pub tlps: u32,
    /// Their size on the wire, in bytes.
    pub bytes: u64,
    /// The queue of a command and the part of the message that it moves; for an answer, the part
    /// that was done.
    pub message: Option<MessagePart>,
    /// The result in an answer.
    pub rcode: Option<Rcode>,
    /// The state of the frame on a modelled link.
    pub link: Option<LinkPart>,
    /// The contents of a data-link-layer packet.
    pub dllp: Option<Dllp>,
    /// The contents of a packet or command of TNW.
    pub tnw: Option<TnwPart>,
}

/// The contents of a packet or command on a link of TNW.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TnwPart {
    /// The header of a data packet.
    Data(Header),
    /// The sequence number of the packet that a command names.
    Command(u16),
}

impl TnwPart {
    /// Parses the beginning of a packet or command.
    fn parse(kind: PacketKind, bytes: &[u8]) -> Option<Self> {
        match kind {
            PacketKind::TnwData => {
                let header = u32::from_le_bytes(*bytes.first_chunk()?);
                Some(Self::Data(Header(header.into())))
            }
            PacketKind::TnwHello
            | PacketKind::TnwAck
            | PacketKind::TnwNack
            | PacketKind::TnwRestart => {
                Some(Self::Command(u16::from_le_bytes(*bytes.get(6..)?.first_chunk()?)))
            }
            _ => None,
        }
    }
}

/// The state of a frame on a modelled link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkPart {
    /// The sequence number.
    pub seq: u16,
    /// True if the frame has been sent before.
    pub again: bool,
    /// True if the receiver found the frame damaged. A damaged data-link-layer packet is lost.
    pub damaged: bool,
    /// Lanes on which the frame was corrupted, one bit each.
    pub spoilt: u8,
}

impl LinkPart {
    fn parse(part: &[u8; LINK_SIZE]) -> Self {
        let &[low, high, _, _, spoilt, check, flags, ..] = part;
        let seq = u16::from_le_bytes([low, high]);
        Self { seq, again: flags & AGAIN != 0, damaged: check == BAD, spoilt }
    }
}

/// Flags of a link's part: the frame was sent again, and it has check sequences.
const AGAIN: u8 = 1;
const SEQUENCES: u8 = 2;
/// Flag of what a receiver found: the frame is damaged.
const BAD: u8 = 2;

/// The part of a message that a burst moves, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessagePart {
    /// The sender's control queue.
    pub cq: u8,
    /// Its offset in the message.
    pub position: u32,
    /// Its length.
    pub length: u32,
}

impl RecordHeader {
    /// Parses a record; `None` if it is not valid, or of a later version or generation.
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
        // The first fields of a command and of an answer.
        let cq = record.get(behind).copied();
        let part = |position: usize, length: usize| {
            let (position, length) = (number(behind + position)?, number(behind + length)?);
            Some(MessagePart { cq: cq?, position, length })
        };
        let (message, rcode) = match kind {
            PacketKind::Put | PacketKind::Get | PacketKind::Atomic => (part(40, 44), None),
            PacketKind::PutAnswer | PacketKind::GetAnswer | PacketKind::AtomicAnswer => {
                (part(8, 12), record.get(behind + 1).copied().map(Rcode::new))
            }
            _ => (None, None),
        };
        Some(Self {
            interconnect: Interconnect::from_number(header[35])?,
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
            link: record[HEADER_SIZE..usize::from(header[1]).clamp(HEADER_SIZE, record.len())]
                .first_chunk()
                .map(LinkPart::parse),
            dllp: record
                .get(behind..)
                .and_then(<[u8]>::first_chunk)
                .and_then(|body| Dllp::from_bytes(body).filter(|_| kind == PacketKind::Dllp)),
            tnw: TnwPart::parse(kind, record.get(header[1].into()..).unwrap_or_default()),
        })
    }
}

/// Encodes a record of at most `snaplen` bytes. Also returns its size without that limit.
pub(super) fn encode(
    interconnect: Interconnect,
    at: Coords,
    observation: Observation,
    kind: PacketKind,
    packet: &Packet<Body>,
    snaplen: usize,
) -> (Vec<u8>, u32) {
    let mut out = Vec::with_capacity(snaplen.min(SNAPLEN));
    About::packet(kind, packet).write(&mut out, interconnect, at, observation);
    let Some(link) = observation.link else {
        let tail = body(&mut out, kind, packet, None, snaplen.max(HEADER_SIZE));
        return cut(out, tail, snaplen);
    };
    let start = out.len() + LINK_SIZE;
    out.resize(start, 0);
    // The whole frame, because its check sequences cover all of it.
    body(&mut out, kind, packet, Some(link.tlp), start + FRAME_MAX);
    out.resize(start + packet.bytes.min(FRAME_MAX as u64) as usize, 0);
    let (head, frame) = out.split_at_mut(start);
    let nullified = is_marked(packet) || link.check == Check::Nullified;
    let vc = observation.vc.unwrap_or_default();
    let part = link_part(link, vc, frame, None, nullified, interconnect);
    head[HEADER_SIZE..].copy_from_slice(&part);
    cut(out, 0, snaplen)
}

/// Encodes a frame without a TLP at the first of the two ends of a link.
pub(super) fn encode_dllp(
    interconnect: Interconnect,
    (at, peer): (Coords, Coords),
    observation: Observation,
    dllp: Dllp,
    snaplen: usize,
) -> (Vec<u8>, u32) {
    let (src, dst) = if observation.direction == Direction::Out { (at, peer) } else { (peer, at) };
    let mut out = Vec::with_capacity(HEADER_SIZE + LINK_SIZE + FRAME_HEADER + Dllp::SIZE);
    let kind = PacketKind::Dllp as u8;
    let (class, tnis, ends) = (u8::MAX, [u8::MAX; 2], [src, dst]);
    About { class, kind, tnis, ends, ..About::default() }.write(
        &mut out,
        interconnect,
        at,
        observation,
    );
    if let Some(link) = observation.link {
        let header = [0; ROUTING_HEADER_SIZE];
        out.extend(link_part(link, 0, &header, Some(dllp), false, interconnect));
    }
    // Empty headers keep the DLLP at the same offset as in other records.
    out.extend([0; FRAME_HEADER]);
    out.extend(dllp.to_bytes());
    cut(out, 0, snaplen)
}

/// Encodes a packet or command of TNW at a port of a node, the first of its link's ends.
pub(super) fn encode_unit(
    (at, peer): (Coords, Coords),
    port: Port,
    observation: Observation,
    kind: PacketKind,
    bytes: &[u8],
    snaplen: usize,
) -> (Vec<u8>, u32) {
    let (src, dst, port) = match observation.direction {
        Direction::In => (peer, at, port.opposite()),
        _ => (at, peer, port),
    };
    let mut out = Vec::with_capacity(HEADER_SIZE + bytes.len());
    About {
        class: u8::MAX,
        kind: kind as u8,
        way: 2,
        tnis: [u8::MAX; 2],
        ends: [src, dst],
        port: port as u8,
        tlps: 1,
        bytes: bytes.len() as u64,
        ..About::default()
    }
    .write(&mut out, Interconnect::Tnw, at, observation);
    out.extend_from_slice(bytes);
    cut(out, 0, snaplen)
}

/// Cuts a record to `snaplen` bytes but never its header. `tail` bytes were left out already.
fn cut(mut out: Vec<u8>, tail: usize, snaplen: usize) -> (Vec<u8>, u32) {
    let length = u32::try_from(out.len() + tail).unwrap_or(u32::MAX);
    out.truncate(snaplen.max(HEADER_SIZE));
    (out, length)
}

/// Appends the frame of a burst, or of its TLP with this number, with data up to a limit of the
/// record's size. Returns how many bytes are left out.
fn body(
    out: &mut Vec<u8>,
    kind: PacketKind,
    packet: &Packet<Body>,
    number: Option<u32>,
    snaplen: usize,
) -> usize {
    match &packet.body {
        Body::Frame { frame, .. } => {
            let kept = frame.len().min(snaplen.saturating_sub(out.len()));
            out.extend_from_slice(&frame[..kept]);
            frame.len() - kept
        }
        body => {
            tlp(out, kind, packet);
            let Some((payload, skip, length)) = fields(out, body, number) else { return 0 };
            let room = snaplen.saturating_sub(out.len()).min(length as usize);
            length as usize - copy(out, payload, skip, room)
        }
    }
}

/// Offset and size of the TLP with this number in a burst of `length` bytes with `each` bytes in
/// each TLP. Without a number it is the whole burst.
fn part_of(length: u32, number: Option<u32>, each: u32) -> (u32, u32) {
    let Some(number) = number else { return (0, length) };
    let skip = number.saturating_mul(each).min(length);
    (skip, each.min(length - skip))
}

/// The additional header fields of a frame on a modelled link. Replaces the frame's routing header
/// by the one that the link sends.
fn link_part(
    link: OnLink,
    vc: u8,
    frame: &[u8],
    dllp: Option<Dllp>,
    nullified: bool,
    interconnect: Interconnect,
) -> [u8; LINK_SIZE] {
    let OnLink { seq, tlp: number, lanes, stat, spoilt, check, again } = link;
    let mut part = [0; LINK_SIZE];
    part[..2].copy_from_slice(&seq.get().to_le_bytes());
    let check = match check {
        Check::Good => 0,
        Check::Nullified => 1,
        Check::Bad => BAD,
    };
    part[2..7].copy_from_slice(&[lanes, stat, spoilt, check, if again { AGAIN } else { 0 }]);
    part[8..12].copy_from_slice(&number.to_le_bytes());
    let Some((header, tlp)) = frame.split_first_chunk() else { return part };
    let routing = RoutingHeader(u64::from_le_bytes(*header))
        .with_tlp_units((tlp.len() / TLP_UNIT).saturating_sub(1) as u8)
        .with_vc(vc)
        .with_stat(stat)
        .with_seq(seq.get());
    let frame = LinkFrame { routing, tlp, dllp, nullified };
    // Layouts of other generations are not public.
    let slicing = interconnect.tofu().map(|generation| Parameters::of(generation).slicing);
    if slicing != Some(Slicing::Dynamic) || !frame.is_valid() {
        return part;
    }
    part[6] |= SEQUENCES;
    let mut bytes = [0; MAX_SLICE];
    for lane in 0..2 {
        let length = frame.slice(lanes > 1, lane, &mut bytes);
        let Some(slice) = bytes.get(..length) else { continue };
        let Ok(slice) = Slice::parse(slice) else { continue };
        if lane == 0 {
            part[12..16].copy_from_slice(&slice.control());
        }
        part[16 + 3 * usize::from(lane)..][..3].copy_from_slice(&slice.fcs());
    }
    part
}

/// Header fields about a packet. See the top of this file.
#[derive(Default)]
struct About {
    class: u8,
    kind: u8,
    way: u8,
    tnis: [u8; 2],
    ends: [Coords; 2],
    path: [u8; 3],
    port: u8,
    distances: [i8; 3],
    tlps: u32,
    bytes: u64,
    model_ps: u64,
}

/// Returns true if a packet is marked as bad: it was sent as such, or met wrong bits in a router.
const fn is_marked(packet: &Packet<Body>) -> bool {
    matches!(packet.way, Way::Hop { nullified: true, .. }) || packet.bad.is_some()
}

impl About {
    fn packet(kind: PacketKind, packet: &Packet<Body>) -> Self {
        let (way, port, distances) = match packet.way {
            Way::Shortest => (0, 0, [0; 3]),
            Way::Distances(distances) => (1, 0, distances),
            Way::Hop { port, .. } => (2, port as u8, [0; 3]),
        };
        let way = way | u8::from(is_marked(packet)) << 7;
        Self {
            class: match packet.class {
                Class::Request => 0,
                Class::Response => 1,
                Class::System => 2,
            },
            kind: kind as u8,
            way,
            tnis: [packet.src_tni.get(), packet.dst_tni],
            ends: [packet.src, packet.dst],
            path: [packet.path.a, packet.path.b, packet.path.c],
            port,
            distances,
            tlps: packet.tlps,
            bytes: packet.bytes,
            model_ps: packet.model_ps,
        }
    }

    fn write(
        &self,
        out: &mut Vec<u8>,
        interconnect: Interconnect,
        at: Coords,
        observation: Observation,
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
        let size = HEADER_SIZE + observation.link.map_or(0, |_| LINK_SIZE);
        out.extend([VERSION, size as u8, place, direction]);
        out.extend([observation.vc.unwrap_or(u8::MAX), self.class, self.kind, self.way]);
        out.extend(at.to_array());
        out.extend(self.tnis);
        self.ends.iter().for_each(|end| out.extend(end.to_array()));
        out.extend(self.path);
        out.push(self.port);
        out.extend(self.distances.map(|hops| hops as u8));
        out.push(interconnect.number());
        out.extend(self.tlps.to_le_bytes());
        out.extend(self.bytes.to_le_bytes());
        out.extend(self.model_ps.to_le_bytes());
        debug_assert_eq!(out.len(), HEADER_SIZE);
    }
}

/// Appends the two headers of a packet that has no frame, in the layout of a frame.
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
    let tlp = TlpHeader(0).with_kind(kind).with_source(packet.src).with_i(packet.src_tni.get());
    out.extend(routing.0.to_le_bytes());
    out.extend(tlp.0.to_le_bytes());
}

/// Appends the fields of a command or answer, or of its TLP with this number. Returns the data, the
/// offset of the part in it, and the size of the part.
fn fields<'a>(
    out: &mut Vec<u8>,
    body: &'a Body,
    number: Option<u32>,
) -> Option<(&'a Payload, u32, u32)> {
    match body {
        Body::Put { request: command, payload } => {
            let (skip, length) = part_of(command.length, number, command.mtu);
            request(out, &Request { position: command.position + skip, length, ..*command });
            Some((payload, skip, length))
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
        Body::GetData { answer: end, payload, mtu } => {
            let (skip, done) = part_of(end.done, number, *mtu);
            let length = if number.is_some() { done } else { end.length };
            answer(out, &Answer { position: end.position + skip, length, done, ..*end });
            Some((payload, skip, done))
        }
        Body::ArmwAck { answer: end, old } => {
            answer(out, end);
            out.extend(old.to_le_bytes());
            None
        }
        Body::Signal(signal) => {
            let value = signal.value.as_deref();
            let words = signal.payload_bytes() as usize / 8;
            out.extend([signal.source.get(), signal.target.get(), signal.op.code(), words as u8]);
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

/// Appends up to `room` bytes of data after the first `skip`. Returns the size of the data.
fn copy(out: &mut Vec<u8>, payload: &Payload, skip: u32, room: usize) -> usize {
    let start = out.len();
    let mut skip = skip as usize;
    let of = |data: &[u8]| {
        let data = data.get(skip..).unwrap_or_default();
        data[..room.min(data.len())].to_vec()
    };
    match payload {
        Payload::Inline { data, len } => out.extend(of(&data[..data.len().min((*len).into())])),
        Payload::Bytes(data) => out.extend(of(data)),
        Payload::Guest { segments, pin } => {
            for segment in segments {
                let skipped = skip.min(segment.len as usize);
                skip -= skipped;
                let at = out.len();
                let take = (segment.len as usize - skipped).min(room - (at - start));
                out.resize(at + take, 0);
                // Memory that has since been unmapped does not matter to the capture: the packet's
                // target reports it.
                let from = segment.addr + skipped as u64;
                if take > 0 && pin.memory().read(from, &mut out[at..]).is_err() {
                    out.truncate(at);
                    break;
                }
                if out.len() - start == room {
                    break;
                }
            }
        }
    }
    out.len() - start
}
