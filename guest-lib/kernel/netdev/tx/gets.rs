// SPDX-License-Identifier: GPL-2.0

//! The Gets with which this node fetches frames of others.

use kernel::prelude::*;

use tofu_abi::Rcode;
use tofu_ipotofu::rendezvous::SLOTS;

/// The number of frames that are taken together.
const BATCH: usize = 4;
/// The longest time for which a fetched frame waits for others, in nanoseconds.
const WAIT_NS: u64 = 500_000;

/// The Gets of a queue.
pub(in crate::netdev) struct Gets {
    /// Gets in flight.
    under_way: usize,
    /// True if some were posted without a doorbell.
    untold: bool,
    /// Slots of completed Gets with their result codes, in the order of the commands.
    ended: KVVec<(u8, Rcode)>,
    /// When the first of these ended.
    since: u64,
}

impl Gets {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            under_way: 0,
            untold: false,
            ended: KVVec::with_capacity(SLOTS, GFP_KERNEL)?,
            since: 0,
        })
    }

    /// Drops the records of all of them.
    pub(super) fn clear(&mut self) {
        self.ended.clear();
        (self.under_way, self.untold) = (0, false);
    }

    /// Notes that one was posted.
    pub(super) fn note_posted(&mut self) {
        self.under_way += 1;
        self.untold = true;
    }

    /// Notes that the doorbell was rung for those that were posted.
    pub(super) fn note_told(&mut self) {
        self.untold = false;
    }

    /// Notes that one has completed, and its result code.
    pub(super) fn note_ended(&mut self, slot: u8, rcode: Rcode, now: u64) {
        self.under_way = self.under_way.saturating_sub(1);
        if self.ended.is_empty() {
            self.since = now;
        }
        // There is room, because there is one place for each slot.
        let _ = self.ended.push_within_capacity((slot, rcode));
    }

    /// Returns true if there are Gets in flight.
    pub(super) fn are_under_way(&self) -> bool {
        self.under_way > 0
    }

    /// Returns true if some were posted without a doorbell.
    pub(in crate::netdev) fn are_untold(&self) -> bool {
        self.untold
    }

    /// Returns true if the fetched frames should be taken now. Taking them needs a register access,
    /// so several are taken together, unless they have waited too long or no other Get is in
    /// flight.
    pub(in crate::netdev) fn are_due(&self, now: u64) -> bool {
        let count = self.ended.len();
        let late = || now.saturating_sub(self.since) >= WAIT_NS;
        count >= BATCH || count > 0 && (!self.are_under_way() || late())
    }

    /// Takes the first completed one: its slot and its result code.
    pub(in crate::netdev) fn take_ended(&mut self) -> Option<(usize, Rcode)> {
        let (slot, rcode) = self.ended.remove(0).ok()?;
        Some((slot.into(), rcode))
    }
}
