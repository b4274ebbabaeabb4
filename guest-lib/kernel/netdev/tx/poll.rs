// SPDX-License-Identifier: GPL-2.0

//! The sending part of a poll.
//!
//! Completions of sending raise no interrupt, unless the queue is nearly full or a packet is lost
//! (MODE.FAILURES). The doorbell rings immediately for the first answer to a lone packet, and once
//! for several others.

use kernel::cpu::CpuId;
use kernel::ffi::c_int;

use super::Tx;
use crate::engine::{now_ns, Peers};
use crate::packets::ENOUGH;

impl Tx {
    /// Begins a poll by this processor: the doorbell rings once, at [`Self::uncork`], for all that
    /// it posts, including answers of the stack to what the poll brings.
    pub(in crate::netdev) fn begin_poll(&mut self, now: u64) {
        if let Some(sender) = self.sender.as_ref() {
            sender.disarm();
        }
        // What was fetched is to be received, and answers need room; the rest can wait.
        if self.gets.are_under_way() || self.room() < ENOUGH {
            self.reap(now);
        }
        self.corked = Some(CpuId::current().as_u32());
        self.counters.polls += 1;
    }

    /// The poll has received `count` packets, which the stack is about to get. The doorbell
    /// rings at once for its first answer to a lone one.
    pub(in crate::netdev) fn received(&mut self, count: c_int) {
        self.lone = count <= 1;
    }

    /// Ends a poll.
    pub(in crate::netdev) fn uncork(&mut self) {
        self.corked = None;
        self.lone = false;
        self.flush();
    }

    /// Returns true if this processor polls.
    pub(super) fn is_corked(&self) -> bool {
        self.corked == Some(CpuId::current().as_u32())
    }

    /// Has broadcasts go round nodes that have not acknowledged them in time, and takes back frames
    /// that were not fetched in time.
    pub(in crate::netdev) fn expire(&mut self, now: u64) {
        self.requests.expire(now, self.outbound.count());
        if let Some(sender) = self.sender.as_mut() {
            self.outbound.expire(sender, now);
            self.outbound.report(sender, now);
        }
    }

    /// Tests the ports if it is time, and reports dead ones. To be called every second. Returns
    /// whether that continues.
    pub(in crate::netdev) fn look_at_ports(&mut self) -> bool {
        let Some(sender) = self.sender.as_mut() else {
            return false;
        };
        let asked = self.outbound.look_at_ports(sender);
        sender.flush();
        let due = self.outbound.report(sender, now_ns());
        asked || due
    }

    /// Returns true if the stack may go on, should it have been held.
    pub(in crate::netdev) fn goes_on(&mut self, peers: &Peers, now: u64) -> bool {
        self.room() >= ENOUGH && !self.is_blocked(peers, now)
    }
}
