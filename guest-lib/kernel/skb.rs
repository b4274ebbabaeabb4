// SPDX-License-Identifier: GPL-2.0

//! The kernel's frames, `struct sk_buff`: those that the stack sends, and those that it receives.

use core::mem::ManuallyDrop;
use core::ptr::NonNull;

use kernel::bindings;

use tofu_ipotofu::offload::{Fields, Metadata, HEAD};
use tofu_ipotofu::wire::Sum;
use tofu_ipotofu::FrameBuffer;

use crate::dma;
use crate::shim::{self, SkBuff};
use crate::tx_queue::TxQueue;

/// A frame. Dropping it frees it as a dropped frame.
///
/// # Invariants
///
/// `raw` is a frame of `len` bytes, on no list, and this is its only reference.
#[derive(Debug)]
pub(crate) struct Skb {
    raw: NonNull<SkBuff>,
    len: usize,
}

// SAFETY: a frame may be used and freed on any processor, by one at a time.
unsafe impl Send for Skb {}

impl Skb {
    /// Takes over a frame.
    ///
    /// # Safety
    ///
    /// `raw` must be a frame on no list; the caller owns it, and passes that ownership.
    pub(crate) unsafe fn from_raw(raw: NonNull<SkBuff>) -> Self {
        // SAFETY: the frame exists, by this function's contract.
        let len = unsafe { shim::tofu_shim_skb_len(raw.as_ptr()) } as usize;
        // INVARIANT: by this function's contract, and that is its length.
        Self { raw, len }
    }

    /// Gives the frame up without freeing it.
    pub(crate) fn into_raw(self) -> NonNull<SkBuff> {
        ManuallyDrop::new(self).raw
    }

    /// Allocates a frame of `len` bytes, which the caller must write. `None` if there is no memory.
    pub(crate) fn new(queue: TxQueue<'_>, len: usize) -> Option<Self> {
        // SAFETY: the queue's interface exists as long as `queue`.
        let raw = unsafe { shim::tofu_shim_skb_new(queue.as_raw(), len as u32) };
        // INVARIANT: it was allocated for us, with this many bytes.
        NonNull::new(raw).map(|raw| Self { raw, len })
    }

    /// For netdev.c, which only reads it.
    pub(crate) fn as_ptr(&self) -> *const SkBuff {
        self.raw.as_ptr()
    }

    /// Its bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The checksum and segmentation that the frame still needs. `None` if it needs neither; a kind
    /// of [`u8::MAX`] if that is unknown.
    pub(crate) fn offload(&self) -> Option<Fields> {
        let mut offload = Fields::default();
        // SAFETY: the frame is ours, and `offload` has the layout of `struct tofu_offload`.
        let some = unsafe { shim::tofu_shim_skb_offload(self.raw.as_ptr(), &mut offload) };
        some.then_some(offload)
    }

    /// Copies its bytes from `at` on. Returns false if there are not enough.
    pub(crate) fn read(&self, at: usize, to: &mut [u8]) -> bool {
        let (place, len) = (to.as_mut_ptr().cast(), to.len() as u32);
        // SAFETY: the frame is ours, and `to` has room for `len` bytes. C checks the range.
        let error = unsafe { shim::tofu_shim_skb_read(self.raw.as_ptr(), at as u32, place, len) };
        error == 0
    }

    /// The same, and adds them to `sum`.
    pub(crate) fn read_and_sum(&self, first: usize, to: &mut [u8], sum: &mut Sum) -> bool {
        let end = first + to.len();
        let mut at = first;
        while at < end {
            let mut len = 0;
            // SAFETY: the frame is ours. C checks that `at` is in it.
            let from = unsafe { shim::tofu_shim_skb_part(self.raw.as_ptr(), at as u32, &mut len) };
            if from.is_null() || len == 0 {
                return false;
            }
            let len = (len as usize).min(end - at);
            let Some(to) = to.get_mut(at - first..at - first + len) else {
                return false;
            };
            let from: *const u64 = from.cast_const().cast();
            // The rest of a partial qword at the end may be in the next page.
            let (whole, rest) = to.split_at_mut(if from.is_aligned() { len & !7 } else { 0 });
            // SAFETY: `from` has `len` bytes of the frame, at least the whole qwords that are
            // copied, and is aligned if there are some.
            unsafe { dma::copy(from, whole, at, sum) };
            at += whole.len();
            if !self.read(at, rest) {
                return false;
            }
            sum.add_at(at, rest);
            at += rest.len();
        }
        true
    }

    /// The size of the head that must be sent to a node, so that it can fetch the rest in place. 0
    /// if that is not possible.
    pub(crate) fn head_len(&self) -> usize {
        // SAFETY: the frame is ours.
        unsafe { shim::tofu_shim_skb_head(self.raw.as_ptr()) as usize }
    }

    /// Lets its socket send more, although the frame is kept for a while.
    pub(crate) fn orphan(&self) {
        // SAFETY: the frame is ours.
        unsafe { shim::tofu_shim_skb_orphan(self.raw.as_ptr()) };
    }

    /// Completes the offloaded checksum and segmentation. If that is not possible, returns `None`,
    /// and the frame is dropped.
    pub(crate) fn complete(self) -> Option<SkbList> {
        let raw = self.into_raw().as_ptr();
        // SAFETY: the frame is ours, and C takes it over; the result is ours, or null.
        unsafe { SkbList::from_raw(shim::tofu_shim_skb_complete(raw)) }
    }

    /// Segments a TCP frame into several of less than 64 KiB, which still need the same offloads.
    ///
    /// # Errors
    ///
    /// The unchanged frame, if that is not possible.
    pub(crate) fn gso_segment(self) -> Result<SkbList, Self> {
        let raw = self.into_raw();
        // SAFETY: the frame is ours; the result is ours, or null.
        let list = unsafe { SkbList::from_raw(shim::tofu_shim_skb_gso_segment(raw.as_ptr())) };
        // SAFETY: if C returns null, the frame is unchanged, and nothing else refers to it.
        list.ok_or_else(|| unsafe { Self::from_raw(raw) })
    }

    /// Appends `len` bytes of pages from `at` on, or a copy of them. Returns false if there is no
    /// memory for a copy.
    ///
    /// # Safety
    ///
    /// `page` must be compound pages that have these bytes, and that are not written to as long as
    /// the stack refers to them. The frame must have room for one more fragment.
    pub(crate) unsafe fn add_frag(
        &mut self,
        page: *mut bindings::page,
        at: usize,
        len: usize,
        copy: bool,
    ) -> bool {
        let (raw, at, size) = (self.raw.as_ptr(), at as u32, len as u32);
        // SAFETY: the frame is ours, and by this function's contract the pages have these bytes.
        let added = unsafe { shim::tofu_shim_skb_add(raw, page, at, size, copy) };
        // INVARIANT: they are bytes of the frame now.
        self.len += if added { len } else { 0 };
        added
    }

    /// Passes it to the stack. Returns false if the metadata do not match.
    pub(crate) fn receive(self, queue: TxQueue<'_>, metadata: &Metadata) -> bool {
        let offload = metadata.fields();
        let offload = match metadata.is_empty() {
            true => core::ptr::null(),
            false => core::ptr::from_ref(&offload),
        };
        let raw = self.into_raw().as_ptr();
        // SAFETY: the frame is ours and complete, and the stack takes it over; `offload` is null or
        // lives during the call; the queue's interface exists as long as `queue`.
        unsafe { shim::tofu_shim_skb_receive(queue.as_raw(), raw, offload) }
    }
}

impl Drop for Skb {
    fn drop(&mut self) {
        // SAFETY: the frame is ours, and not used after this.
        unsafe { shim::tofu_shim_skb_free(self.raw.as_ptr()) };
    }
}

impl FrameBuffer for Skb {
    fn write(&mut self, at: usize, part: &[u8]) -> bool {
        let (raw, from, len) = (self.raw.as_ptr(), part.as_ptr().cast(), part.len() as u32);
        // SAFETY: the frame is ours, and `part` has `len` bytes. C checks the range.
        unsafe { shim::tofu_shim_skb_write(raw, at as u32, from, len) == 0 }
    }

    fn look<R>(&self, look: impl FnOnce(&[u8]) -> R) -> R {
        let mut head = [0; HEAD];
        let head = head.get_mut(..self.len.min(HEAD)).unwrap_or_default();
        self.read(0, head);
        look(head)
    }
}

/// A frame that was sent. Dropping it consumes it, without counting a drop.
#[derive(Debug)]
pub(crate) struct SentSkb(ManuallyDrop<Skb>);

impl SentSkb {
    pub(crate) fn new(skb: Skb) -> Self {
        Self(ManuallyDrop::new(skb))
    }

    /// See [`Skb::orphan`].
    pub(crate) fn orphan(&self) {
        self.0.orphan();
    }
}

impl Drop for SentSkb {
    fn drop(&mut self) {
        // SAFETY: the frame is ours; `ManuallyDrop` keeps it from being freed once more.
        unsafe { shim::tofu_shim_consume_skb(self.0.raw.as_ptr()) };
    }
}

/// A list of frames. Dropping it drops them.
///
/// # Invariants
///
/// `head` is null, or the first frame of a list, and this is its only reference.
pub(crate) struct SkbList {
    head: *mut SkBuff,
}

impl From<Skb> for SkbList {
    fn from(skb: Skb) -> Self {
        // INVARIANT: a frame on no list is a list of one.
        Self {
            head: skb.into_raw().as_ptr(),
        }
    }
}

impl SkbList {
    /// Takes over a list; `None` if it is null.
    ///
    /// # Safety
    ///
    /// `head` must be null, or the first of a list of frames; the caller owns the list, and passes
    /// that ownership.
    unsafe fn from_raw(head: *mut SkBuff) -> Option<Self> {
        // INVARIANT: by this function's contract.
        (!head.is_null()).then_some(Self { head })
    }

    /// Takes the first one off.
    pub(crate) fn pop(&mut self) -> Option<Skb> {
        let first = NonNull::new(self.head)?;
        // SAFETY: the list is ours. C returns the rest after its first frame, or null, and unlinks
        // that frame.
        self.head = unsafe { shim::tofu_shim_skb_next(first.as_ptr()) };
        // SAFETY: the frame is on no list, and this has not kept a reference to it.
        Some(unsafe { Skb::from_raw(first) })
    }

    /// Puts the frames of another list before those of this one.
    pub(crate) fn prepend(&mut self, list: Self) {
        let list = ManuallyDrop::new(list);
        if list.head.is_null() {
            return;
        }
        // SAFETY: both lists are ours; the first is not empty, and has the frames of both after
        // this.
        unsafe { shim::tofu_shim_skb_append(list.head, self.head) };
        self.head = list.head;
    }
}

impl Drop for SkbList {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}
