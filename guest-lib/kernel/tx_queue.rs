// SPDX-License-Identifier: GPL-2.0

//! The kernel's queue of a network interface.

use core::marker::PhantomData;
use core::ptr::NonNull;

use crate::shim::{self, NetQueue};

/// The traffic of a transmit queue in some time.
#[derive(Clone, Copy, Default)]
pub(crate) struct Passed {
    /// Bytes of packets that were posted.
    pub(crate) posted: u32,
    /// Packets that have ended, and their bytes.
    pub(crate) packets: u32,
    pub(crate) bytes: u32,
}

/// A transmit queue and the NAPI context with the same number, of an interface that exists as long
/// as `'a`.
#[derive(Clone, Copy)]
pub(crate) struct TxQueue<'a>(NonNull<NetQueue>, PhantomData<&'a NetQueue>);

// SAFETY: the kernel's functions for queues may be called on any processor.
unsafe impl Send for TxQueue<'_> {}
// SAFETY: they may be called on several processors at a time.
unsafe impl Sync for TxQueue<'_> {}

impl TxQueue<'_> {
    /// The queue that netdev.c has passed.
    ///
    /// # Safety
    ///
    /// `raw` must be a queue of an interface that is not freed before the last use of the result
    /// and its copies.
    pub(crate) unsafe fn from_raw(raw: NonNull<NetQueue>) -> Self {
        Self(raw, PhantomData)
    }

    /// For netdev.c.
    pub(crate) fn as_raw(self) -> *mut NetQueue {
        self.0.as_ptr()
    }

    /// Stops the stack from sending until [`Self::wake_queue`].
    pub(crate) fn stop_queue(self) {
        // SAFETY: the queue exists as long as `self`.
        unsafe { shim::tofu_shim_stop_queue(self.as_raw()) };
    }

    /// Lets the stack send again.
    pub(crate) fn wake_queue(self) {
        // SAFETY: the queue exists as long as `self`.
        unsafe { shim::tofu_shim_wake_queue(self.as_raw()) };
    }

    /// Returns true if it is stopped.
    pub(crate) fn is_stopped(self) -> bool {
        // SAFETY: the queue exists as long as `self`.
        unsafe { shim::tofu_shim_queue_stopped(self.as_raw()) }
    }

    /// Schedules a poll as soon as possible.
    pub(crate) fn schedule_napi(self) {
        // SAFETY: the queue exists as long as `self`.
        unsafe { shim::tofu_shim_schedule_napi(self.as_raw()) };
    }

    /// Schedules a poll in about 10 ms, unless one is already scheduled.
    pub(crate) fn start_timer(self) {
        // SAFETY: the queue exists as long as `self`.
        unsafe { shim::tofu_shim_start_timer(self.as_raw()) };
    }

    /// Schedules a poll in this many nanoseconds.
    pub(crate) fn start_hrtimer(self, nanoseconds: u64) {
        // SAFETY: the queue exists as long as `self`.
        unsafe { shim::tofu_shim_start_hrtimer(self.as_raw(), nanoseconds) };
    }

    /// Sets whether its interface has a carrier.
    pub(crate) fn set_carrier(self, on: bool) {
        // SAFETY: the queue's interface exists as long as `self`.
        unsafe { shim::tofu_shim_set_carrier(self.as_raw(), on) };
    }

    /// Counts a frame of `len` bytes that was sent, or else dropped.
    pub(crate) fn count_tx(self, len: usize, sent: bool) {
        // SAFETY: the queue's interface exists as long as `self`.
        unsafe { shim::tofu_shim_count_tx(self.as_raw(), len as u32, sent) };
    }

    /// Tells the kernel's byte queue limits what has passed since the last call. Returns how many
    /// more bytes may be posted; if less than 0, the stack waits. For one caller at a time.
    pub(crate) fn account(self, passed: &Passed) -> i32 {
        let Passed {
            posted,
            packets,
            bytes,
        } = *passed;
        // SAFETY: the queue's interface exists as long as `self`. The bytes of packets that have
        // ended were posted before.
        unsafe { shim::tofu_shim_account(self.as_raw(), posted, packets, bytes) }
    }

    /// Passes the stack an answer to its latest query.
    pub(crate) fn answer(self, frame: &[u8]) {
        let (bytes, len) = (frame.as_ptr().cast(), frame.len() as u32);
        // SAFETY: the queue's interface exists as long as `self`; C copies `len` bytes of `frame`.
        unsafe { shim::tofu_shim_skb_answer(self.as_raw(), bytes, len) };
    }
}
