//! The device's side of rings: takes the orders of a process, and writes completions and notices.

use core::mem;
use core::sync::atomic::Ordering;

use tofu_abi::Rcode;
use tofu_abi::desc::{Command, DESC_SIZE, Descriptor, Header1};
use tofu_abi::queue::{MRQ_ENTRY_SIZE, MrqEntry, MrqWord0, RingIndex, TCQ_ENTRY_SIZE, TcqEntry};

use crate::arm::Arm;
use crate::order::Order;
use crate::platform::DmaBuffer;
use crate::rings::RingMemory;

/// The rings of a process, for another process that serves them. The first one posts and polls with
/// [`Rings`](crate::Rings) on the same memory.
///
/// The first process may write anything there, and harms only itself: orders are copied before they
/// are checked, and no more are taken at a time than the ring has entries.
#[derive(Debug)]
pub struct ServedRings<D> {
    memory: RingMemory<D>,
    /// Position of the next order to take.
    fetch: RingIndex,
    /// Position of the next completion to write.
    complete: RingIndex,
    /// Position of the next notice to write.
    notify: RingIndex,
    /// Number of notices that the process has reported as taken.
    full_pointer: u64,
    /// The word by which the process requests to be woken, if it can be.
    arm: Option<Arm<D>>,
    /// Something was written since the word was last read.
    is_news: bool,
}

impl<D: DmaBuffer> ServedRings<D> {
    /// Serves rings in this memory, which is blank still.
    pub fn new(memory: RingMemory<D>) -> Self {
        let (fetch, notify) = (RingIndex::new(memory.orders()), RingIndex::new(memory.notices()));
        let (complete, arm) = (fetch, None);
        Self { memory, fetch, complete, notify, full_pointer: 0, arm, is_news: false }
    }

    /// Serves a process that requests by this word to be woken.
    pub fn with_arm(self, arm: Arm<D>) -> Self {
        Self { arm: Some(arm), ..self }
    }

    /// Returns whether the process must be woken now, because something was written for it and it
    /// has requested that, and takes the request.
    pub fn must_wake(&mut self) -> bool {
        mem::take(&mut self.is_news) && self.arm.as_ref().is_some_and(Arm::take)
    }

    /// Returns the descriptor at a position, if the process has posted it.
    fn posted(&self, at: RingIndex) -> Option<Descriptor> {
        if at.count() - self.complete.count() >= at.entries().into() {
            return None;
        }
        let place = at.slot() as usize * DESC_SIZE;
        let header = Header1(self.memory.toq().load_u64(place, Ordering::Acquire));
        if header.flip() != at.flip() {
            return None;
        }
        let [a, b, c] = self.memory.toq().load_words(place + 8, Ordering::Relaxed);
        Some(Descriptor([header.0, a, b, c]))
    }

    /// Takes the next command, with all of its descriptors. The caller must complete commands by
    /// [`ServedRings::complete`], in the order in which they were taken.
    pub fn take(&mut self) -> Option<Order> {
        let first = self.posted(self.fetch)?;
        let mut next = self.fetch;
        next.advance();
        let order = if first.header1().command() == Command::WritePiggybackBuffer as u8 {
            // It fills the buffer that the next descriptor reads.
            let second = self.posted(next)?;
            next.advance();
            Order::raw(&[first, second])
        } else {
            Order::raw(&[first])
        };
        self.fetch = next;
        Some(order)
    }

    /// Completes the oldest command that was taken, which has this many descriptors. Does nothing
    /// if none is left.
    pub fn complete(&mut self, descriptors: usize, rcode: Rcode) {
        for left in (0..descriptors).rev() {
            if self.complete.count() >= self.fetch.count() {
                return;
            }
            let rcode = if left == 0 { rcode } else { Rcode::SUCCESS };
            let entry = TcqEntry(0).with_rcode(rcode).with_flip(self.complete.flip());
            let place = self.complete.slot() as usize * TCQ_ENTRY_SIZE;
            self.memory.tcq().store_u64(place, entry.0, Ordering::Release);
            self.complete.advance();
            self.is_news = true;
        }
    }

    /// Writes a notice to the process. Returns false if it has no room; the notice is then lost.
    pub fn notify(&mut self, notice: &MrqEntry) -> bool {
        let unread = self.notify.count().saturating_sub(self.full_pointer);
        if unread >= self.notify.entries().into() {
            return false;
        }
        let place = self.notify.slot() as usize * MRQ_ENTRY_SIZE;
        let [word, a, b, c] = notice.0;
        self.memory.mrq().store_words(place + 8, [a, b, c], Ordering::Relaxed);
        let word = MrqWord0(word).with_flip(self.notify.flip());
        self.memory.mrq().store_u64(place, word.0, Ordering::Release);
        self.notify.advance();
        self.is_news = true;
        true
    }

    /// The process has written this to its register MRQ_FULL_POINTER.
    pub fn acknowledge(&mut self, full_pointer: u64) {
        self.full_pointer = full_pointer;
    }
}
