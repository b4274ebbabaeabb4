//! Transport layer packets, which TNIs exchange.
//!
//! The layout of a TLP on the wire is not public, so its fields are ours; sizes are those of the
//! TofuD frame format ([`wire_bytes`]). A [`Body`] represents a burst of consecutive TLPs of one
//! command.

use std::fmt;
use std::sync::atomic::{Ordering, fence};

use tofu_abi::barrier::{BSEQ_MASK, GPID_MASK, OpType};
use tofu_abi::desc::{ArmwOp, Header2, MAX_MESSAGE, MAX_MTU, MTU_UNIT};
use tofu_abi::frame::{TLP_MAX, frame_around};
use tofu_abi::reduce::{MAX_INTEGERS, Op, Value};
use tofu_abi::{BgId, CqId, Rcode, StagOffset};
use tofu_inspect::inspect;
use vm_memory::VolatileSlice;

use crate::memory::{
    DmaError, DmaMemory, Segment, Segments, before_last_word, copy_in_order, copy_segments,
    end_of_segments, fill_in_order, read_segments, skip_segments,
};
use crate::translate::Pin;

/// The most payload bytes of one burst. Long enough that the copy dominates its cost, short enough
/// that queues take turns.
pub(crate) const BURST_BYTES: u32 = 256 << 10;
/// Most TLPs of one burst when each of them needs a notice.
pub(crate) const BURST_NOTICES: u32 = 256;
/// Bytes of a TLP besides its payload: header and ECRC (ours, so that the most payload fills the
/// longest TLP).
const TLP_OVERHEAD: usize = TLP_MAX - MAX_MTU as usize;

/// Bytes on the wire of one TLP with `payload` bytes of payload.
pub const fn wire_bytes(payload: u32) -> u64 {
    frame_around(payload as usize + TLP_OVERHEAD) as u64
}

/// Returns the number of TLPs of a burst of `length` bytes, and their bytes on the wire.
///
/// A message without data takes one TLP. `mtu` must not be 0.
#[inline(always)]
pub const fn burst_size(length: u32, mtu: u32, padding: bool) -> (u32, u64) {
    if length <= mtu {
        return (1, wire_bytes(padded(length, padding)));
    }
    let full = length / mtu;
    let rest = length % mtu;
    let mut bytes = full as u64 * wire_bytes(padded(mtu, padding));
    let mut tlps = full;
    if rest > 0 {
        bytes += wire_bytes(padded(rest, padding));
        tlps += 1;
    }
    (tlps, bytes)
}

/// Bytes on the wire of each TLP of such a burst but the last one.
pub(crate) const fn full_tlp(mtu: u32, padding: bool) -> u32 {
    wire_bytes(padded(mtu, padding)) as u32
}

/// Payload bytes on the wire: with the padding flag, whole cache lines of 256 bytes as far as a
/// TLP can hold them (ours).
const fn padded(payload: u32, padding: bool) -> u32 {
    let max = MAX_MTU;
    if !padding {
        return payload;
    }
    let lines = payload.next_multiple_of(256);
    if lines > max { max } else { lines }
}

/// The size of a packet on the wire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) tlps: u32,
    pub(crate) bytes: u64,
    /// Of each TLP but the last.
    pub(crate) tlp_bytes: u32,
}

impl Size {
    /// Bytes of the answer to a Put of that many TLPs, each of which is answered separately.
    pub(crate) fn of_put_ack(tlps: u32) -> Self {
        let each = wire_bytes(0);
        Self { tlps, bytes: each * u64::from(tlps), tlp_bytes: each as u32 }
    }

    /// Of data.
    pub(crate) fn of_data(length: u32, mtu: u32, padding: bool) -> Self {
        let (tlps, bytes) = burst_size(length, mtu, padding);
        Self { tlps, bytes, tlp_bytes: full_tlp(mtu, padding) }
    }
}

/// The queue and command that a TLP belongs to; answers return it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Control queue of the initiator.
    pub cq: CqId,
    /// Place in the queue's table of outstanding commands.
    pub index: u16,
    /// Distinguishes commands that had the same place.
    pub generation: u32,
}

inspect!(Tag { cq as said, index, generation });

/// The part that all requests share.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The initiator's command.
    pub tag: Tag,
    /// Group process id of the initiator's queue.
    pub gpid: u64,
    /// The command's second header: flags and edata.
    pub header2: Header2,
    /// The number of descriptors by which the target queue's session advances when the message has
    /// arrived.
    pub sps: u8,
    /// Address at the target where this burst begins.
    pub remote: StagOffset,
    /// Address at the initiator where this burst begins. For piggyback and atomic commands only its
    /// CQ id has a meaning: it is the initiator's.
    pub local: StagOffset,
    /// Offset of this burst in the message, in bytes.
    pub position: u32,
    /// Bytes of this burst.
    pub length: u32,
    /// Bytes of the whole message.
    pub total: u32,
    /// Most payload bytes of one TLP; not 0.
    pub mtu: u32,
}

impl Request {
    /// Returns true if the TLPs have a size that a device sends.
    pub(crate) fn has_legal_mtu(&self) -> bool {
        self.mtu > 0 && self.mtu <= MAX_MTU && self.mtu.is_multiple_of(MTU_UNIT)
    }

    /// The MTU, or the nearest legal one.
    pub(crate) fn legal_mtu(&self) -> u32 {
        self.mtu.clamp(1, MAX_MTU)
    }

    /// Returns true if the sizes are ones that a device sends. A peer that sends others could make
    /// the target work or allocate without bound.
    pub(crate) fn is_legal(&self) -> bool {
        let notices = || self.length.div_ceil(self.mtu.max(1));
        self.has_legal_mtu()
            && self.length <= BURST_BYTES
            && (!self.header2.packet_response() || notices() <= BURST_NOTICES)
            && self.total <= MAX_MESSAGE
            && self.position.checked_add(self.length).is_some_and(|end| end <= self.total)
    }
}

/// The result of a request at the target.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The initiator's command.
    pub tag: Tag,
    /// Offset of the burst in the message, in bytes.
    pub position: u32,
    /// Bytes of the burst.
    pub length: u32,
    /// Bytes of the burst that were written or read; less than `length` after an error.
    pub done: u32,
    /// Result code, see [`Rcode`](tofu_abi::Rcode).
    pub rcode: Rcode,
    /// Modelled time of the request's way, in picoseconds.
    pub request_ps: u64,
}

/// A signal from one barrier gate to another. It is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signal {
    /// The gate that it comes from.
    pub source: BgId,
    /// The gate that it is for.
    pub target: BgId,
    /// Group process id of the sender's gate, 40 bits.
    pub gpid: u64,
    /// Sequence number of the round, 24 bits.
    pub bseq: u32,
    /// The operator of the round, or an error.
    pub op: OpType,
    /// The value; none for a barrier or an error.
    pub value: Option<Box<Value>>,
}

impl Signal {
    /// Payload bytes in the TLP (ours): those of the elements that the operation can have.
    pub fn payload_bytes(&self) -> u32 {
        match (&self.value, self.op.op()) {
            (None, _) => 0,
            (Some(_), Some(Op::FpSum)) => size_of::<Value>() as u32,
            (Some(_), _) => MAX_INTEGERS as u32 * 8,
        }
    }

    /// Returns true if it is one that a gate sends.
    pub(crate) fn is_legal(&self) -> bool {
        let op = self.op.op();
        let without_value = op == Some(Op::Barrier) || self.op == OpType::ERROR;
        (op.is_some() || without_value)
            && self.value.is_none() == without_value
            && self.bseq <= BSEQ_MASK
            && self.gpid <= GPID_MASK
    }
}

/// Data of a burst.
pub enum Payload {
    /// Up to 32 bytes that came with the command.
    Inline {
        /// The data; bytes beyond `len` are 0.
        data: [u8; 32],
        /// Bytes in use.
        len: u8,
    },
    /// A copy of the data.
    Bytes(Box<[u8]>),
    /// The sender's memory itself, where both ends are in one process. The sender's
    /// translations stay in force until this is dropped.
    Guest {
        /// The places of the data in the memory of the pin.
        segments: Segments,
        /// Keeps the translations.
        pin: Pin,
    },
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inline { len, .. } => write!(f, "Inline({len} bytes)"),
            Self::Bytes(data) => write!(f, "Bytes({} bytes)", data.len()),
            Self::Guest { segments, .. } => write!(f, "Guest({segments:x?})"),
        }
    }
}

impl Payload {
    /// No data.
    pub(crate) const NONE: Self = Self::Inline { data: [0; 32], len: 0 };

    /// Bytes of data.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Inline { data, len } => u64::from(*len).min(data.len() as u64),
            Self::Bytes(data) => data.len() as u64,
            Self::Guest { segments, .. } => segments.iter().map(|s| u64::from(s.len)).sum(),
        }
    }

    /// Reads the data, if that has not been done, so that the sender may change its memory.
    ///
    /// # Errors
    ///
    /// If the memory cannot be read. The payload stays as it is.
    fn detach(&mut self) -> Result<(), DmaError> {
        let Self::Guest { segments, pin } = self else { return Ok(()) };
        let mut data = vec![0; segments.iter().map(|s| s.len as usize).sum()];
        read_segments(pin.memory(), segments, &mut data)?;
        *self = Self::Bytes(data.into());
        Ok(())
    }

    /// Copies data to memory that is in one piece, if the data is, too. Returns false if not, and
    /// if there is less of it.
    #[inline]
    pub(crate) fn fill(&self, to: VolatileSlice<'_>) -> bool {
        let bytes = match self {
            Self::Inline { data, len } => data.get(..usize::from(*len)).unwrap_or_default(),
            Self::Bytes(data) => data,
            Self::Guest { segments, pin } => {
                let [only] = segments.as_slice() else { return false };
                let from = pin.memory().slice(only.addr, only.len as usize);
                let from = from.filter(|from| from.len() >= to.len());
                return from.is_some_and(|from| {
                    copy_in_order(from, to);
                    true
                });
            }
        };
        let bytes = bytes.get(..to.len());
        bytes.is_some_and(|bytes| {
            fill_in_order(bytes, to);
            true
        })
    }

    /// Writes the first `len` bytes to memory. A reader that sees the last word of the data sees
    /// all of it.
    pub(crate) fn copy_in(
        &self,
        memory: &dyn DmaMemory,
        to: &[Segment],
        len: u32,
    ) -> Result<(), DmaError> {
        let head = before_last_word(end_of_segments(to, len), len as usize) as u32;
        if head == 0 {
            return self.copy_to(0, memory, to, len);
        }
        self.copy_to(0, memory, to, head)?;
        fence(Ordering::Release);
        self.copy_to(head, memory, &skip_segments(to, head), len - head)
    }

    /// Copies `len` bytes from `skip` on to memory.
    fn copy_to(
        &self,
        skip: u32,
        memory: &dyn DmaMemory,
        to: &[Segment],
        len: u32,
    ) -> Result<(), DmaError> {
        let bytes: &[u8] = match self {
            Self::Inline { data, .. } => data,
            Self::Bytes(data) => data,
            Self::Guest { segments, pin } if skip == 0 => {
                return copy_segments((pin.memory(), segments), (memory, to), len);
            }
            Self::Guest { segments, pin } => {
                let from = skip_segments(segments, skip);
                return copy_segments((pin.memory(), &from), (memory, to), len);
            }
        };
        let mut at = skip as usize;
        let mut left = len as usize;
        for s in to {
            let n = left.min(s.len as usize);
            let Some(part) = bytes.get(at..at + n) else {
                return Err(DmaError { addr: s.addr, len: n });
            };
            memory.write(s.addr, part)?;
            at += n;
            left -= n;
        }
        Ok(())
    }
}

/// The payload of a packet.
#[derive(Debug)]
pub enum Body {
    /// Data to be written at the target.
    Put {
        /// The command.
        request: Request,
        /// Its data.
        payload: Payload,
    },
    /// A range to be read at the target.
    Get {
        /// The command.
        request: Request,
    },
    /// A word to be changed at the target.
    Armw {
        /// The command.
        request: Request,
        /// The action.
        op: ArmwOp,
        /// The operand; for a compare-and-swap the new value.
        operand: u64,
        /// The value to compare with.
        compare: u64,
    },
    /// Answer to a Put.
    PutAck {
        /// Its end.
        answer: Answer,
    },
    /// Answer to a Get.
    GetData {
        /// Its end.
        answer: Answer,
        /// The data, `answer.done` bytes.
        payload: Payload,
        /// Bytes of it in each TLP but the last; not 0.
        mtu: u32,
    },
    /// Answer to an atomic command.
    ArmwAck {
        /// Its end.
        answer: Answer,
        /// The value before the change.
        old: u64,
    },
    /// A raw or system packet, which has no answer.
    Frame {
        /// The command, so that its sender can be notified if the network loses the packet.
        tag: Tag,
        /// The frame, see [`tofu_abi::frame`].
        frame: Box<[u8]>,
    },
    /// A barrier gate's signal, which has no answer.
    Signal(Signal),
}

impl Body {
    /// Returns true if its target answers it.
    pub fn is_request(&self) -> bool {
        matches!(self, Self::Put { .. } | Self::Get { .. } | Self::Armw { .. })
    }

    /// Bytes of the message that the packet is for, if it is a request.
    pub(crate) fn requested(&self) -> u32 {
        match self {
            Self::Put { request, .. } | Self::Get { request } | Self::Armw { request, .. } => {
                request.length
            }
            _ => 0,
        }
    }

    /// The command whose Put this is a part of, and whether it is the last one.
    pub fn part_of_put(&self) -> Option<(Tag, bool)> {
        let Self::Put { request, .. } = self else { return None };
        let end = request.position.saturating_add(request.length);
        Some((request.tag, end >= request.total))
    }

    /// Reads the data of a Put, if that has not been done, so that its sender may change it.
    ///
    /// # Errors
    ///
    /// If the sender's memory cannot be read. The packet stays as it is.
    pub fn detach(&mut self) -> Result<(), DmaError> {
        match self {
            Self::Put { payload, .. } => payload.detach(),
            _ => Ok(()),
        }
    }

    /// The initiator's command, and whether the packet comes from the initiator rather than being
    /// an answer to it; `None` for packets that belong to no command.
    pub fn tag(&self) -> Option<(Tag, bool)> {
        match self {
            Self::Put { request, .. } | Self::Get { request } | Self::Armw { request, .. } => {
                Some((request.tag, true))
            }
            Self::Frame { tag, .. } => Some((*tag, true)),
            Self::PutAck { answer }
            | Self::GetData { answer, .. }
            | Self::ArmwAck { answer, .. } => Some((answer.tag, false)),
            Self::Signal(_) => None,
        }
    }
}
