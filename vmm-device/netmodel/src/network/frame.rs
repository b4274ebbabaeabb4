//! Frames, and where they go.

use tofu_abi::TniId;
use tofu_abi::topology::Port;
use tofu_fabric::{Class, Ps};
use tofu_links::{Check, Seq};

use super::steps::Steps;

/// Slots of a crossbar: ports, then TNIs.
pub(super) const SLOTS: usize = 16;
pub(super) const PORTS: usize = Port::COUNT;
pub(super) const CLASSES: usize = 3;

/// The other end of a link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Far {
    pub(super) engine: u32,
    pub(super) slot: u16,
}

/// A frame in a queue or on a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) token: u64,
    /// When its header arrived here or, on a link, when it will arrive.
    pub(super) arrived: Ps,
    /// The next in the queue. On a watched link, what the other end needs to know: [`on_wire`].
    pub(super) next: u32,
    /// The time for which it occupies a link.
    pub(super) wire: u32,
    /// Bytes of routing header and TLP.
    pub(super) bytes: u16,
    /// Its index among the frames of its message, from 0.
    pub(super) number: u32,
    pub(super) steps: Steps,
    pub(super) rows: u8,
    pub(super) flags: u8,
    pub(super) vc: u8,
    pub(super) dst_tni: TniId,
}

/// The last frame of its message.
pub(super) const LAST: u8 = 1;
/// Marked as bad by its sender.
pub(super) const NULLIFIED: u8 = 2;
/// The class, in the two bits from here on.
pub(super) const CLASS: u8 = 4;
/// Found bad while it was being forwarded: the node where it has arrived as a whole drops it.
pub(super) const DOOMED: u8 = 16;
/// Found bad, but not yet marked as such.
pub(super) const UNMARKED: u8 = 32;

/// A frame's sequence number, check and badly received lanes, as [`Frame::next`] has them on a
/// watched link.
pub(super) const fn on_wire(seq: Seq, check: Check, stat: u8) -> u32 {
    seq.get() as u32 | (check as u32) << 16 | (stat as u32) << 20
}

/// Inverse of [`on_wire`].
pub(super) const fn off_wire(word: u32) -> (Seq, Check, u8) {
    let check = match word >> 16 & 0xf {
        0 => Check::Good,
        1 => Check::Nullified,
        _ => Check::Bad,
    };
    (Seq::new(word as u16), check, (word >> 20) as u8)
}

pub(super) const CLASS_ORDER: [Class; CLASSES] = [Class::Request, Class::System, Class::Response];

/// The queue of a class at a TNI.
pub(super) const fn class_queue(class: Class) -> usize {
    match class {
        Class::Request => 0,
        Class::System => 1,
        Class::Response => 2,
    }
}

#[inline]
pub(super) const fn class_of(flags: u8) -> Class {
    CLASS_ORDER[((flags / CLASS) & 3) as usize % CLASSES]
}

impl Frame {
    pub(super) const fn class(&self) -> Class {
        class_of(self.flags)
    }
}
