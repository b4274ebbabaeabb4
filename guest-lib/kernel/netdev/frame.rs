// SPDX-License-Identifier: GPL-2.0

//! Frames of the kernel's.

use tofu_ipotofu::offload::{Facts, Segments};
use tofu_ipotofu::wire::Sum;

use crate::dma;
use crate::shim::{self, NetFacts, NetQueue, SkBuff};

/// Bytes of a frame in which a question for an address, and all headers, are.
pub(super) const HEAD: usize = 256;

/// A frame of this node's.
pub(super) struct Frame {
    skb: *mut SkBuff,
    len: usize,
}

// SAFETY: a frame belongs to whoever has it, on any processor.
unsafe impl Send for Frame {}

impl Frame {
    pub(super) fn new(queue: *mut NetQueue, len: usize) -> Option<Self> {
        // SAFETY: the interface exists as long as it is polled.
        let skb = unsafe { shim::tofu_shim_skb_new(queue, len as u32) };
        (!skb.is_null()).then_some(Self { skb, len })
    }

    /// Writes a part, as far as the frame goes.
    pub(super) fn write(&mut self, at: usize, part: &[u8]) -> bool {
        // SAFETY: the frame is ours; whether the part is within it is looked at there.
        let error = unsafe {
            shim::tofu_shim_skb_write(self.skb, at as u32, part.as_ptr().cast(), part.len() as u32)
        };
        error == 0
    }

    /// The bytes from `at` on that lie together; none beyond its end.
    pub(super) fn part(&mut self, at: usize) -> &mut [u8] {
        let (part, len) = part(self.skb, at);
        if part.is_null() {
            return &mut [];
        }
        // SAFETY: so many bytes of the frame are there, and nobody else has it.
        unsafe { core::slice::from_raw_parts_mut(part, len) }
    }

    /// Its first bytes.
    pub(super) fn head<'a>(&self, buf: &'a mut [u8; HEAD]) -> &'a [u8] {
        let len = self.len.min(HEAD);
        read(self.skb, 0, &mut buf[..len]);
        &buf[..len]
    }

    /// Gives it to the stack; false if the facts do not fit.
    pub(super) fn receive(self, queue: *mut NetQueue, facts: Option<&Facts>) -> bool {
        let facts = facts.map(NetFacts::from);
        let facts = facts
            .as_ref()
            .map_or(core::ptr::null(), core::ptr::from_ref);
        let skb = self.skb;
        core::mem::forget(self);
        // SAFETY: the frame is complete, and the stack's from here on.
        unsafe { shim::tofu_shim_skb_receive(queue, skb, facts) }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // SAFETY: the frame is ours.
        unsafe { shim::tofu_shim_skb_free(self.skb) };
    }
}

/// Where the bytes of a frame from `at` on are that lie together, and how many; nowhere beyond its
/// end.
fn part(skb: *const SkBuff, at: usize) -> (*mut u8, usize) {
    let mut len = 0;
    // SAFETY: the caller has the frame.
    let part = unsafe { shim::tofu_shim_skb_part(skb, at as u32, &mut len) };
    (part.cast(), len as usize)
}

/// Copies a frame, which is as long as that, and adds it to `sum`.
pub(super) fn read_and_sum(skb: *const SkBuff, to: &mut [u8], sum: &mut Sum) -> bool {
    let mut at = 0;
    while at < to.len() {
        let (from, len) = part(skb, at);
        if from.is_null() || len == 0 {
            return false;
        }
        let len = len.min(to.len() - at);
        let to = &mut to[at..at + len];
        let from: *const u64 = from.cast_const().cast();
        // What is left of a qword at the end may be in the next page.
        let (whole, rest) = to.split_at_mut(if from.is_aligned() { len & !7 } else { 0 });
        // SAFETY: so many bytes of the frame are there, in whole qwords.
        unsafe { dma::copy(from, whole, at, sum) };
        at += whole.len();
        if !read(skb, at, rest) {
            return false;
        }
        sum.add_at(at, rest);
        at += rest.len();
    }
    true
}

/// Copies a part of a frame, which is as long as that.
pub(super) fn read(skb: *const SkBuff, at: usize, to: &mut [u8]) -> bool {
    // SAFETY: the caller has the frame; whether the part is within it is looked at there.
    let error = unsafe {
        shim::tofu_shim_skb_read(skb, at as u32, to.as_mut_ptr().cast(), to.len() as u32)
    };
    error == 0
}

impl From<&Facts> for NetFacts {
    fn from(facts: &Facts) -> Self {
        let (csum_start, csum_offset) = facts.checksum.unwrap_or_default();
        let segments = match facts.segments {
            Segments::One => 0,
            Segments::Tcp4 => Self::TCP4,
            Segments::Tcp6 => Self::TCP6,
        };
        Self {
            needs_csum: facts.checksum.is_some().into(),
            gso_type: segments | if facts.ecn { Self::ECN } else { 0 },
            gso_size: facts.size,
            csum_start,
            csum_offset,
        }
    }
}

impl NetFacts {
    /// What goes over the wire of it, if it can.
    pub(super) fn facts(&self) -> Option<Facts> {
        let segments = match self.gso_type & !Self::ECN {
            0 => Segments::One,
            Self::TCP4 => Segments::Tcp4,
            Self::TCP6 => Segments::Tcp6,
            _ => return None,
        };
        Some(Facts {
            checksum: (self.needs_csum != 0).then_some((self.csum_start, self.csum_offset)),
            segments,
            size: if segments == Segments::One {
                0
            } else {
                self.gso_size
            },
            ecn: self.gso_type & Self::ECN != 0,
        })
    }
}
