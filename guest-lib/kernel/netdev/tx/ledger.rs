// SPDX-License-Identifier: GPL-2.0

//! The bytes that the device has of a queue, for the kernel's limit of them (byte queue limits).

use tofu_ipotofu::rendezvous::{Requests, SLOTS};

use crate::engine::KernelMemory;
use crate::tx_queue::TxQueue;

/// The frames that the device has. It has one that goes in packets until the last of these was
/// sent, and one that is fetched until it was, or will not be any more.
#[derive(Default)]
pub(super) struct Ledger {
    /// Bytes that the kernel was not told of when they were sent.
    sent: u32,
    /// Frames that have left, of which the kernel was not told, and their bytes.
    left: (u32, u32),
    /// Bytes that are fetched, by slots.
    lent: [u32; SLOTS],
}

impl Ledger {
    /// Bytes that were sent since the kernel was told last.
    pub(super) fn sent(&self) -> u32 {
        self.sent
    }

    /// Notes a frame in packets.
    pub(super) fn note_sent(&mut self, bytes: u32) {
        self.sent += bytes;
    }

    /// Notes a frame that is fetched from a slot. The one before it is not any more.
    pub(super) fn note_lent(&mut self, slot: usize, bytes: u32) {
        let Some(place) = self.lent.get_mut(slot) else {
            return;
        };
        let before = core::mem::replace(place, bytes);
        self.sent += bytes;
        self.note_left(before);
    }

    /// Notes that a frame of so many bytes has left, or none with 0.
    pub(super) fn note_left(&mut self, bytes: u32) {
        self.left.0 += u32::from(bytes > 0);
        self.left.1 += bytes;
    }

    /// Notes which frames are fetched no more.
    pub(super) fn note_ended(&mut self, requests: &Requests<KernelMemory>) {
        for slot in 0..SLOTS {
            let ended = self.lent.get_mut(slot).filter(|bytes| **bytes > 0);
            if let Some(bytes) = ended.filter(|_| !requests.is_under_way(slot)) {
                let bytes = core::mem::take(bytes);
                self.note_left(bytes);
            }
        }
    }

    /// Tells the kernel what was sent; `more` if the stack is about to send more. Returns whether
    /// the stack waits until some of it has left.
    pub(super) fn tell_sent(&mut self, queue: TxQueue<'_>, more: bool) -> bool {
        match core::mem::take(&mut self.sent) {
            0 => false,
            bytes => queue.count_bytes_sent(bytes, more),
        }
    }

    /// Tells the kernel what has left, all of which it was told of before.
    pub(super) fn tell_left(&mut self, queue: TxQueue<'_>) {
        let (frames, bytes) = core::mem::take(&mut self.left);
        if frames > 0 {
            queue.count_bytes_left(frames, bytes);
        }
    }
}
