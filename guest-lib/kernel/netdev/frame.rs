// SPDX-License-Identifier: GPL-2.0

//! Frames of the kernel's.

use tofu_ipotofu::offload::{Metadata, HEAD};
use tofu_ipotofu::wire::Sum;
use tofu_ipotofu::FrameBuffer;

use crate::dma;
use crate::rendezvous::Chunk;
use crate::shim::{self, NetQueue, SkBuff};

/// A frame of this node's.
#[derive(Debug)]
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

    /// Its bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Has the `len` bytes of a chunk from `at` on be the next ones, or a copy of them. What the
    /// stack has of the chunk lasts until it lets go of the frame. False without memory for a copy.
    pub(super) fn add(&mut self, chunk: &Chunk, at: usize, len: usize, copy: bool) -> bool {
        // SAFETY: the frame and the pages are ours; a frame has room for all chunks of the longest.
        let added =
            unsafe { shim::tofu_shim_skb_add(self.skb, chunk.page(), at as u32, len as u32, copy) };
        self.len += len;
        added
    }

    /// Gives it to the stack; false if the metadata do not fit.
    pub(super) fn receive(self, queue: *mut NetQueue, metadata: &Metadata) -> bool {
        let offload = metadata.fields();
        let offload = match metadata.is_empty() {
            true => core::ptr::null(),
            false => core::ptr::from_ref(&offload),
        };
        let skb = self.skb;
        core::mem::forget(self);
        // SAFETY: the frame is complete, and the stack's from here on.
        unsafe { shim::tofu_shim_skb_receive(queue, skb, offload) }
    }
}

impl FrameBuffer for Frame {
    fn write(&mut self, at: usize, part: &[u8]) -> bool {
        // SAFETY: the frame is ours; whether the part is within it is looked at there.
        let error = unsafe {
            shim::tofu_shim_skb_write(self.skb, at as u32, part.as_ptr().cast(), part.len() as u32)
        };
        error == 0
    }

    fn look<R>(&self, look: impl FnOnce(&[u8]) -> R) -> R {
        let mut head = [0; HEAD];
        let head = &mut head[..self.len.min(HEAD)];
        read(self.skb, 0, head);
        look(head)
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

/// Copies the bytes of a frame from `first` on, and adds them to `sum`.
pub(super) fn read_and_sum(skb: *const SkBuff, first: usize, to: &mut [u8], sum: &mut Sum) -> bool {
    let end = first + to.len();
    let mut at = first;
    while at < end {
        let (from, len) = part(skb, at);
        if from.is_null() || len == 0 {
            return false;
        }
        let len = len.min(end - at);
        let to = &mut to[at - first..at - first + len];
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
