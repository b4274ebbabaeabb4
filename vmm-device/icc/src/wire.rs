//! Packets as bytes, for cables between processes.
//!
//! Numbers are little-endian. This module decodes what a peer sends, and refuses whatever no device
//! could have sent: by its size, by the ids in it, or by a class that does not match its content.
//! The fabric and the target decide what an accepted packet may do.

use tofu_abi::barrier::OpType;
use tofu_abi::desc::{ArmwOp, Header2};
use tofu_abi::frame::FRAME_MAX;
use tofu_abi::reduce::{VALUE_QWORDS, Value};
use tofu_abi::{BgId, Coords, CqId, Path, Rcode, StagOffset, TniId};
use tofu_fabric::{Class, Crossing, Packet, Port, SENDERS, Way};

use crate::memory::{DmaError, read_segments};
use crate::tlp::{Answer, BURST_BYTES, Body, Payload, Request, Signal, Tag};

/// Most bytes that one packet takes.
pub const MAX_WIRE: usize = 256 + BURST_BYTES as usize;
/// Most TLPs of a burst: each has a byte, or it is the only one.
const MAX_TLPS: u32 = BURST_BYTES;

/// The reason why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// They end too early.
    #[error("the packet ends too early")]
    Short,
    /// They go on after its end.
    #[error("there is something behind the packet")]
    Long,
    /// A field has a value that no device gives it.
    #[error("{0} has a value that no device gives it")]
    Field(&'static str),
}

mod kind {
    pub(super) const PUT: u8 = 0;
    pub(super) const GET: u8 = 1;
    pub(super) const ARMW: u8 = 2;
    pub(super) const PUT_ACK: u8 = 3;
    pub(super) const GET_DATA: u8 = 4;
    pub(super) const ARMW_ACK: u8 = 5;
    pub(super) const FRAME: u8 = 6;
    pub(super) const SIGNAL: u8 = 7;
}

/// The class that goes with a body.
const fn class_of(body: &Body) -> Class {
    match body {
        Body::Put { .. } | Body::Get { .. } | Body::Armw { .. } | Body::Signal(_) => Class::Request,
        Body::PutAck { .. } | Body::GetData { .. } | Body::ArmwAck { .. } => Class::Response,
        Body::Frame { .. } => Class::System,
    }
}

/// Appends a packet to `out`. Its data is read from the sender's memory here.
///
/// # Errors
///
/// If that memory has vanished; `out` is then unchanged.
pub fn encode(crossing: &Crossing<Body>, out: &mut Vec<u8>) -> Result<(), DmaError> {
    let start = out.len();
    let written = Writer(out).crossing(crossing);
    if written.is_err() {
        out.truncate(start);
    }
    written
}

/// Decodes a packet.
///
/// # Errors
///
/// [`Malformed`] if no device sends such bytes.
pub fn decode(bytes: &[u8]) -> Result<Crossing<Body>, Malformed> {
    let mut reader = Reader(bytes);
    let crossing = reader.crossing()?;
    if reader.0.is_empty() { Ok(crossing) } else { Err(Malformed::Long) }
}

struct Writer<'a>(&'a mut Vec<u8>);

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    fn crossing(&mut self, crossing: &Crossing<Body>) -> Result<(), DmaError> {
        let Crossing { packet, hops, held, duplicated } = crossing;
        self.u32(*hops);
        self.u32(held.map_or(0, |others| others.saturating_add(1)));
        self.u8(u8::from(*duplicated) | u8::from(packet.system) << 1);
        self.bytes(&packet.src.to_array());
        self.u8(packet.src_tni.get());
        self.bytes(&packet.dst.to_array());
        self.u8(packet.dst_tni);
        self.bytes(&[packet.path.a, packet.path.b, packet.path.c]);
        match packet.way {
            Way::Shortest => self.bytes(&[0; 4]),
            Way::Distances([x, y, z]) => self.bytes(&[1, x as u8, y as u8, z as u8]),
            Way::Hop { port, vc, nullified } => {
                self.bytes(&[2, port.index() as u8, vc, nullified.into()]);
            }
        }
        self.bytes(&[packet.gap, packet.sender]);
        self.u32(packet.tlps);
        self.u32(packet.tlp_bytes);
        self.u32(packet.before);
        self.u64(packet.bytes);
        self.u64(packet.model_ps);
        self.body(&packet.body)
    }

    fn body(&mut self, body: &Body) -> Result<(), DmaError> {
        match body {
            Body::Put { request, payload } => {
                self.u8(kind::PUT);
                self.request(request);
                return self.payload(payload);
            }
            Body::Get { request } => {
                self.u8(kind::GET);
                self.request(request);
            }
            Body::Armw { request, op, operand, compare } => {
                self.u8(kind::ARMW);
                self.request(request);
                self.u8(*op as u8);
                self.u64(*operand);
                self.u64(*compare);
            }
            Body::PutAck { answer } => {
                self.u8(kind::PUT_ACK);
                self.answer(answer);
            }
            Body::GetData { answer, payload, mtu } => {
                self.u8(kind::GET_DATA);
                self.answer(answer);
                self.u32(*mtu);
                return self.payload(payload);
            }
            Body::ArmwAck { answer, old } => {
                self.u8(kind::ARMW_ACK);
                self.answer(answer);
                self.u64(*old);
            }
            Body::Frame { tag, frame } => {
                self.u8(kind::FRAME);
                self.tag(tag);
                self.bytes(frame);
            }
            Body::Signal(Signal { source, target, gpid, bseq, op, value }) => {
                self.u8(kind::SIGNAL);
                self.bytes(&[source.get(), target.get(), op.code()]);
                self.u32(*bseq);
                self.u64(*gpid);
                value.iter().flat_map(|value| value.iter()).for_each(|word| self.u64(*word));
            }
        }
        Ok(())
    }

    fn tag(&mut self, tag: &Tag) {
        self.u8(tag.cq.get());
        self.bytes(&tag.index.to_le_bytes());
        self.u32(tag.generation);
    }

    fn request(&mut self, request: &Request) {
        let Request { tag, gpid, header2, sps, remote, local, position, length, total, mtu } =
            request;
        self.tag(tag);
        self.u8(*sps);
        [*gpid, header2.0, remote.0, local.0].into_iter().for_each(|word| self.u64(word));
        [*position, *length, *total, *mtu].into_iter().for_each(|word| self.u32(word));
    }

    fn answer(&mut self, answer: &Answer) {
        let Answer { tag, position, length, done, rcode, request_ps } = answer;
        self.tag(tag);
        self.u8(rcode.raw());
        [*position, *length, *done].into_iter().for_each(|word| self.u32(word));
        self.u64(*request_ps);
    }

    /// The data, up to the end of the packet.
    fn payload(&mut self, payload: &Payload) -> Result<(), DmaError> {
        match payload {
            Payload::Inline { data, len } => {
                let len = usize::from(*len).min(data.len());
                self.bytes(&data[..len]);
            }
            Payload::Bytes(data) => self.bytes(data),
            Payload::Guest { memory, segments, .. } => {
                let start = self.0.len();
                self.0.resize(start + payload.len() as usize, 0);
                read_segments(&**memory, segments, &mut self.0[start..])?;
            }
        }
        Ok(())
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(*first)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// All that is left, if it is at most `most` bytes.
    fn rest(&mut self, most: usize, what: &'static str) -> Result<Box<[u8]>, Malformed> {
        if self.0.len() > most {
            return Err(Malformed::Field(what));
        }
        Ok(std::mem::take(&mut self.0).into())
    }

    fn crossing(&mut self) -> Result<Crossing<Body>, Malformed> {
        let hops = self.u32()?;
        let held = self.u32()?.checked_sub(1);
        let flags = self.u8()?;
        let src = Coords::from_array(self.array()?);
        let src_tni = TniId::new(self.u8()?).ok_or(Malformed::Field("interface"))?;
        let dst = Coords::from_array(self.array()?);
        let dst_tni = self.u8()?;
        let [a, b, c] = self.array()?;
        let way = match self.array()? {
            [0, 0, 0, 0] => Way::Shortest,
            [1, x, y, z] => Way::Distances([x as i8, y as i8, z as i8]),
            [2, port, vc @ 0..=3, bad @ 0..=1] => {
                let port = Port::from_index(port.into()).ok_or(Malformed::Field("port"))?;
                Way::Hop { port, vc, nullified: bad == 1 }
            }
            _ => return Err(Malformed::Field("way")),
        };
        let [gap, sender] = self.array()?;
        let (tlps, tlp_bytes, before) = (self.u32()?, self.u32()?, self.u32()?);
        let (bytes, model_ps) = (self.u64()?, self.u64()?);
        let body = self.body()?;
        let (class, system) = (class_of(&body), flags & 2 != 0);
        let fields = [
            ("flags", flags <= 3),
            ("sender", usize::from(sender) < SENDERS),
            ("number of TLPs", (1..=MAX_TLPS).contains(&tlps)),
            ("system", !system || class == Class::System),
        ];
        if let Some((what, _)) = fields.into_iter().find(|(_, right)| !right) {
            return Err(Malformed::Field(what));
        }
        let path = Path::new(a, b, c);
        let packet = Packet {
            src,
            src_tni,
            dst,
            dst_tni,
            path,
            way,
            class,
            system,
            tlps,
            bytes,
            tlp_bytes,
            gap,
            sender,
            before,
            model_ps,
            body,
        };
        Ok(Crossing { packet, hops, held, duplicated: flags & 1 != 0 })
    }

    fn body(&mut self) -> Result<Body, Malformed> {
        Ok(match self.u8()? {
            kind::PUT => {
                let request = self.request()?;
                Body::Put { request, payload: self.payload()? }
            }
            kind::GET => Body::Get { request: self.request()? },
            kind::ARMW => {
                let request = self.request()?;
                let op = ArmwOp::from_code(self.u8()?).ok_or(Malformed::Field("operator"))?;
                Body::Armw { request, op, operand: self.u64()?, compare: self.u64()? }
            }
            kind::PUT_ACK => Body::PutAck { answer: self.answer()? },
            kind::GET_DATA => {
                let answer = self.answer()?;
                let mtu = Some(self.u32()?).filter(|mtu| *mtu > 0);
                let mtu = mtu.ok_or(Malformed::Field("size of TLPs"))?;
                Body::GetData { answer, payload: self.payload()?, mtu }
            }
            kind::ARMW_ACK => Body::ArmwAck { answer: self.answer()?, old: self.u64()? },
            kind::FRAME => {
                let tag = self.tag()?;
                Body::Frame { tag, frame: self.rest(FRAME_MAX, "length of the frame")? }
            }
            kind::SIGNAL => Body::Signal(self.signal()?),
            _ => return Err(Malformed::Field("kind")),
        })
    }

    fn signal(&mut self) -> Result<Signal, Malformed> {
        let [source, target, op] = self.array()?;
        let gate = |number| BgId::new(number).ok_or(Malformed::Field("gate"));
        let (source, target) = (gate(source)?, gate(target)?);
        let (bseq, gpid) = (self.u32()?, self.u64()?);
        let value = match self.0.is_empty() {
            true => None,
            false => {
                let mut value: Value = [0; VALUE_QWORDS];
                for word in &mut value {
                    *word = self.u64()?;
                }
                Some(Box::new(value))
            }
        };
        Ok(Signal { source, target, gpid, bseq, op: OpType::new(op), value })
    }

    fn tag(&mut self) -> Result<Tag, Malformed> {
        let cq = CqId::new(self.u8()?).ok_or(Malformed::Field("control queue"))?;
        Ok(Tag { cq, index: self.u16()?, generation: self.u32()? })
    }

    fn request(&mut self) -> Result<Request, Malformed> {
        let (tag, sps) = (self.tag()?, self.u8()?);
        let (gpid, header2) = (self.u64()?, Header2(self.u64()?));
        let (remote, local) = (StagOffset(self.u64()?), StagOffset(self.u64()?));
        let (position, length) = (self.u32()?, self.u32()?);
        let (total, mtu) = (self.u32()?, self.u32()?);
        Ok(Request { tag, gpid, header2, sps, remote, local, position, length, total, mtu })
    }

    fn answer(&mut self) -> Result<Answer, Malformed> {
        let (tag, rcode) = (self.tag()?, Rcode::new(self.u8()?));
        let (position, length, done) = (self.u32()?, self.u32()?, self.u32()?);
        Ok(Answer { tag, position, length, done, rcode, request_ps: self.u64()? })
    }

    fn payload(&mut self) -> Result<Payload, Malformed> {
        if self.0.len() <= 32 {
            let bytes = std::mem::take(&mut self.0);
            let mut data = [0; 32];
            data[..bytes.len()].copy_from_slice(bytes);
            return Ok(Payload::Inline { data, len: bytes.len() as u8 });
        }
        Ok(Payload::Bytes(self.rest(BURST_BYTES as usize, "length of the data")?))
    }
}

impl Body {
    /// The body without its data, as a report of a lost packet needs it.
    #[must_use]
    pub fn without_data(self) -> Self {
        match self {
            Self::Put { request, .. } => Self::Put { request, payload: Payload::NONE },
            Self::GetData { answer, mtu, .. } => {
                Self::GetData { answer, payload: Payload::NONE, mtu }
            }
            Self::Frame { tag, .. } => Self::Frame { tag, frame: Box::default() },
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn crossing(body: Body) -> Crossing<Body> {
        let packet = Packet {
            src: Coords::new(1, 2, 3, 1, 2, 1),
            src_tni: TniId::ALL[5],
            dst: Coords::new(4, 5, 6, 0, 1, 0),
            dst_tni: 200,
            path: Path::new(1, 2, 0),
            way: Way::Distances([-3, 0, 7]),
            class: class_of(&body),
            system: false,
            tlps: 7,
            bytes: 1 << 40,
            tlp_bytes: 2000,
            gap: 9,
            sender: 15,
            before: 77,
            model_ps: u64::MAX - 1,
            body,
        };
        Crossing { packet, hops: 11, held: Some(3), duplicated: true }
    }

    fn bodies() -> Vec<Body> {
        let tag = Tag { cq: CqId::ALL[11], index: 513, generation: 0x0102_0304 };
        let request = Request {
            tag,
            gpid: 0x12_3456_789a,
            header2: Header2(0x0123_4567_89ab_cdef),
            sps: 3,
            remote: StagOffset(1 << 63 | 5),
            local: StagOffset(77),
            position: 1,
            length: 2,
            total: 3,
            mtu: 1920,
        };
        let rcode = Rcode::LINK_DOWN;
        let answer = Answer { tag, position: 4, length: 5, done: 6, rcode, request_ps: 7 };
        let data = [0x5a; 32];
        let signal = |value| Signal {
            source: BgId::from_field(63),
            target: BgId::from_field(1),
            gpid: 5,
            bseq: 6,
            op: OpType::new(8),
            value,
        };
        let (op, operand, compare) = (ArmwOp::Xor, 8, 9);
        vec![
            Body::Put { request, payload: Payload::Inline { data, len: 32 } },
            Body::Put { request, payload: Payload::NONE },
            Body::Put { request, payload: Payload::Bytes([1; 100].into()) },
            Body::Get { request },
            Body::Armw { request, op, operand, compare },
            Body::PutAck { answer },
            Body::GetData { answer, payload: Payload::Bytes([2; 3000].into()), mtu: 104 },
            Body::ArmwAck { answer, old: 10 },
            Body::Frame { tag, frame: [3; 100].into() },
            Body::Signal(signal(None)),
            Body::Signal(signal(Some(Box::new([0xfeed; VALUE_QWORDS])))),
        ]
    }

    /// All of a packet, with its data.
    fn shown(crossing: &Crossing<Body>) -> String {
        let data = match &crossing.packet.body {
            Body::Put { payload, .. } | Body::GetData { payload, .. } => {
                let mut bytes = Vec::new();
                Writer(&mut bytes).payload(payload).unwrap();
                bytes
            }
            _ => Vec::new(),
        };
        format!("{crossing:?} {data:?}")
    }

    #[test]
    fn every_packet_comes_out_as_it_went_in() {
        let ways = [
            Way::Shortest,
            Way::Distances([-128, 127, 1]),
            Way::Hop { port: Port::C, vc: 3, nullified: true },
        ];
        for (way, body) in ways.into_iter().cycle().zip(bodies()) {
            let mut sent = crossing(body);
            sent.packet.way = way;
            let mut bytes = b"before".to_vec();
            encode(&sent, &mut bytes).unwrap();
            assert!(bytes.len() <= MAX_WIRE);
            let found = decode(&bytes[6..]).unwrap();
            assert_eq!(shown(&found), shown(&sent));
        }
    }

    #[test]
    fn what_is_cut_off_or_too_long_is_refused() {
        for body in bodies() {
            let open = matches!(
                body,
                Body::Put { .. } | Body::GetData { .. } | Body::Frame { .. } | Body::Signal(_)
            );
            let mut bytes = Vec::new();
            encode(&crossing(body), &mut bytes).unwrap();
            for end in 0..bytes.len() {
                // The data of some goes on to the end, wherever that is.
                assert!(open || decode(&bytes[..end]).is_err());
            }
            bytes.push(0);
            assert!(open || decode(&bytes).is_err());
            bytes.resize(MAX_WIRE + 1, 0);
            assert!(decode(&bytes).is_err());
        }
    }

    proptest! {
        /// Whatever is accepted is a packet that encodes to the same bytes.
        #[test]
        fn any_bytes_are_a_packet_or_none(
            start in 0..11usize,
            changes in prop::collection::vec((any::<u16>(), any::<u8>()), 0..6),
        ) {
            let body = bodies().into_iter().nth(start);
            let mut bytes = Vec::new();
            encode(&crossing(body.unwrap()), &mut bytes).unwrap();
            for (at, value) in changes {
                let at = usize::from(at) % bytes.len();
                bytes[at] = value;
            }
            if let Ok(found) = decode(&bytes) {
                let mut again = Vec::new();
                encode(&found, &mut again).unwrap();
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
