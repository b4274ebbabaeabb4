//! Bodies of packets as bytes, for cables between processes.
//!
//! They are encoded by hand: ids, sizes, and a class that does not match the body are refused where
//! they are read, and the data of a Put goes from the sender's memory into the message without
//! another copy. A derived format would decode plain numbers, which a second pass had to check.

use tofu_abi::barrier::OpType;
use tofu_abi::desc::{ArmwOp, Header2};
use tofu_abi::frame::FRAME_MAX;
use tofu_abi::reduce::{VALUE_QWORDS, Value};
use tofu_abi::{BgId, CqId, Rcode, StagOffset};
use tofu_fabric::Class;
use tofu_fabric::wire::{Malformed, Reader, Vanished, Wire, Writer};

use crate::memory::read_segments;
use crate::tlp::{Answer, BURST_BYTES, Body, Payload, Request, Signal, Tag};

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

impl Wire for Body {
    const MOST_BYTES: usize = 128 + BURST_BYTES as usize;
    /// Each TLP has a byte, or it is the only one.
    const MOST_TLPS: u32 = BURST_BYTES;
    const CHANNELS: u8 = 4;

    fn class(&self) -> Class {
        match self {
            Self::Put { .. } | Self::Get { .. } | Self::Armw { .. } | Self::Signal(_) => {
                Class::Request
            }
            Self::PutAck { .. } | Self::GetData { .. } | Self::ArmwAck { .. } => Class::Response,
            Self::Frame { .. } => Class::System,
        }
    }

    fn write(&self, to: &mut Writer<'_>) -> Result<(), Vanished> {
        match self {
            Self::Put { request, payload } => {
                to.u8(kind::PUT);
                write_request(request, to);
                return write_payload(payload, to);
            }
            Self::Get { request } => {
                to.u8(kind::GET);
                write_request(request, to);
            }
            Self::Armw { request, op, operand, compare } => {
                to.u8(kind::ARMW);
                write_request(request, to);
                to.u8(*op as u8);
                to.u64(*operand);
                to.u64(*compare);
            }
            Self::PutAck { answer } => {
                to.u8(kind::PUT_ACK);
                write_answer(answer, to);
            }
            Self::GetData { answer, payload, mtu } => {
                to.u8(kind::GET_DATA);
                write_answer(answer, to);
                to.u32(*mtu);
                return write_payload(payload, to);
            }
            Self::ArmwAck { answer, old } => {
                to.u8(kind::ARMW_ACK);
                write_answer(answer, to);
                to.u64(*old);
            }
            Self::Frame { tag, frame } => {
                to.u8(kind::FRAME);
                write_tag(tag, to);
                to.bytes(frame);
            }
            Self::Signal(Signal { source, target, gpid, bseq, op, value }) => {
                to.u8(kind::SIGNAL);
                to.bytes(&[source.get(), target.get(), op.code()]);
                to.u32(*bseq);
                to.u64(*gpid);
                value.iter().flat_map(|value| value.iter()).for_each(|word| to.u64(*word));
            }
        }
        Ok(())
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match from.u8()? {
            kind::PUT => {
                let request = read_request(from)?;
                Self::Put { request, payload: read_payload(from)? }
            }
            kind::GET => Self::Get { request: read_request(from)? },
            kind::ARMW => {
                let request = read_request(from)?;
                let op = ArmwOp::from_code(from.u8()?).ok_or(Malformed::Field("operator"))?;
                Self::Armw { request, op, operand: from.u64()?, compare: from.u64()? }
            }
            kind::PUT_ACK => Self::PutAck { answer: read_answer(from)? },
            kind::GET_DATA => {
                let answer = read_answer(from)?;
                let mtu = Some(from.u32()?).filter(|mtu| *mtu > 0);
                let mtu = mtu.ok_or(Malformed::Field("size of TLPs"))?;
                Self::GetData { answer, payload: read_payload(from)?, mtu }
            }
            kind::ARMW_ACK => Self::ArmwAck { answer: read_answer(from)?, old: from.u64()? },
            kind::FRAME => {
                let tag = read_tag(from)?;
                Self::Frame { tag, frame: from.rest(FRAME_MAX, "length of the frame")? }
            }
            kind::SIGNAL => Self::Signal(read_signal(from)?),
            _ => return Err(Malformed::Field("kind")),
        })
    }

    fn without_data(&self) -> Self {
        match *self {
            Self::Put { request, .. } => Self::Put { request, payload: Payload::NONE },
            Self::Get { request } => Self::Get { request },
            Self::Armw { request, op, operand, compare } => {
                Self::Armw { request, op, operand, compare }
            }
            Self::PutAck { answer } => Self::PutAck { answer },
            Self::GetData { answer, mtu, .. } => {
                Self::GetData { answer, payload: Payload::NONE, mtu }
            }
            Self::ArmwAck { answer, old } => Self::ArmwAck { answer, old },
            Self::Frame { tag, .. } => Self::Frame { tag, frame: Box::default() },
            Self::Signal(ref signal) => Self::Signal(signal.clone()),
        }
    }
}

fn write_tag(tag: &Tag, to: &mut Writer<'_>) {
    to.u8(tag.cq.get());
    to.bytes(&tag.index.to_le_bytes());
    to.u32(tag.generation);
}

fn write_request(request: &Request, to: &mut Writer<'_>) {
    let Request { tag, gpid, header2, sps, remote, local, position, length, total, mtu } = request;
    write_tag(tag, to);
    to.u8(*sps);
    [*gpid, header2.0, remote.0, local.0].into_iter().for_each(|word| to.u64(word));
    [*position, *length, *total, *mtu].into_iter().for_each(|word| to.u32(word));
}

fn write_answer(answer: &Answer, to: &mut Writer<'_>) {
    let Answer { tag, position, length, done, rcode, request_ps } = answer;
    write_tag(tag, to);
    to.u8(rcode.raw());
    [*position, *length, *done].into_iter().for_each(|word| to.u32(word));
    to.u64(*request_ps);
}

/// The data, up to the end of the packet.
fn write_payload(payload: &Payload, to: &mut Writer<'_>) -> Result<(), Vanished> {
    match payload {
        Payload::Inline { data, len } => {
            let len = usize::from(*len).min(data.len());
            to.bytes(&data[..len]);
        }
        Payload::Bytes(data) => to.bytes(data),
        Payload::Guest { segments, pin } => {
            let data = to.space(payload.len() as usize);
            read_segments(pin.memory(), segments, data).map_err(|_| Vanished)?;
        }
    }
    Ok(())
}

fn read_signal(from: &mut Reader<'_>) -> Result<Signal, Malformed> {
    let [source, target, op] = from.array()?;
    let gate = |number| BgId::new(number).ok_or(Malformed::Field("gate"));
    let (source, target) = (gate(source)?, gate(target)?);
    let (bseq, gpid) = (from.u32()?, from.u64()?);
    let value = match from.is_empty() {
        true => None,
        false => {
            let mut value: Value = [0; VALUE_QWORDS];
            for word in &mut value {
                *word = from.u64()?;
            }
            Some(Box::new(value))
        }
    };
    Ok(Signal { source, target, gpid, bseq, op: OpType::new(op), value })
}

fn read_tag(from: &mut Reader<'_>) -> Result<Tag, Malformed> {
    let cq = CqId::new(from.u8()?).ok_or(Malformed::Field("control queue"))?;
    Ok(Tag { cq, index: from.u16()?, generation: from.u32()? })
}

fn read_request(from: &mut Reader<'_>) -> Result<Request, Malformed> {
    let (tag, sps) = (read_tag(from)?, from.u8()?);
    let (gpid, header2) = (from.u64()?, Header2(from.u64()?));
    let (remote, local) = (StagOffset(from.u64()?), StagOffset(from.u64()?));
    let (position, length) = (from.u32()?, from.u32()?);
    let (total, mtu) = (from.u32()?, from.u32()?);
    Ok(Request { tag, gpid, header2, sps, remote, local, position, length, total, mtu })
}

fn read_answer(from: &mut Reader<'_>) -> Result<Answer, Malformed> {
    let (tag, rcode) = (read_tag(from)?, Rcode::new(from.u8()?));
    let (position, length, done) = (from.u32()?, from.u32()?, from.u32()?);
    Ok(Answer { tag, position, length, done, rcode, request_ps: from.u64()? })
}

fn read_payload(from: &mut Reader<'_>) -> Result<Payload, Malformed> {
    if from.len() <= 32 {
        let bytes = from.rest(32, "length of the data")?;
        let mut data = [0; 32];
        data[..bytes.len()].copy_from_slice(&bytes);
        return Ok(Payload::Inline { data, len: bytes.len() as u8 });
    }
    Ok(Payload::Bytes(from.rest(BURST_BYTES as usize, "length of the data")?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tofu_abi::{Coords, Path, TniId};
    use tofu_fabric::wire::{decode, encode, most_bytes};
    use tofu_fabric::{Crossing, NodeId, Packet, Port, Way};

    use super::*;

    const MAX_WIRE: usize = most_bytes::<Body>();

    fn crossing(body: Body) -> Crossing<Body> {
        let packet = Packet {
            src: Coords::new(1, 2, 3, 1, 2, 1),
            src_tni: TniId::ALL[5],
            dst: Coords::new(4, 5, 6, 0, 1, 0),
            dst_tni: 200,
            path: Path::new(1, 2, 0),
            way: Way::Distances([-3, 0, 7]),
            class: body.class(),
            system: false,
            tlps: 7,
            bytes: 1 << 40,
            tlp_bytes: 2000,
            gap: 9,
            sender: 15,
            before: 77,
            bad: Some(NodeId(9)),
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
            Body::Put { payload, .. } | Body::GetData { payload, .. } => match payload {
                Payload::Inline { data, len } => data[..usize::from(*len)].to_vec(),
                Payload::Bytes(bytes) => bytes.to_vec(),
                Payload::Guest { .. } => panic!("memory of a guest"),
            },
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
            let found = decode::<Body>(&bytes[6..]).unwrap();
            assert_eq!(shown(&found), shown(&sent));
        }
    }

    #[test]
    fn truncated_or_long_packets_are_refused() {
        for body in bodies() {
            let open = matches!(
                body,
                Body::Put { .. } | Body::GetData { .. } | Body::Frame { .. } | Body::Signal(_)
            );
            let mut bytes = Vec::new();
            encode(&crossing(body), &mut bytes).unwrap();
            for end in 0..bytes.len() {
                // Some have data up to the end of the packet.
                assert!(open || decode::<Body>(&bytes[..end]).is_err());
            }
            bytes.push(0);
            assert!(open || decode::<Body>(&bytes).is_err());
            bytes.resize(MAX_WIRE + 1, 0);
            assert!(decode::<Body>(&bytes).is_err());
        }
    }

    proptest! {
        /// Every accepted packet encodes to the same bytes.
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
            if let Ok(found) = decode::<Body>(&bytes) {
                let mut again = Vec::new();
                encode(&found, &mut again).unwrap();
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
