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
    /// Begins a poll by this processor. The doorbell is rung once, at [`Self::uncork`], for
    /// everything that the poll posts, including the stack's answers to received packets.
    pub(in crate::netdev) fn begin_poll(&mut self, now: u64) {
        if let Some(sender) = self.sender.as_ref() {
            sender.disarm();
        }
        // Reap now only for fetched frames, or if there is little room for answers.
        if self.gets.are_under_way() || self.room() < ENOUGH {
            self.reap(now);
        }
        self.corked = Some(CpuId::current().as_u32());
        self.counters.polls += 1;
    }

    /// Notes that the poll has received `count` packets, which the stack is about to get. For a
    /// single one, the doorbell is rung immediately at the stack's first answer.
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

    /// Routes broadcasts around nodes whose acknowledgements have timed out, and takes back frames
    /// whose fetches have timed out.
    pub(in crate::netdev) fn expire(&mut self, now: u64) {
        self.requests.expire(now, self.outbound.count());
        if let Some(sender) = self.sender.as_mut() {
            self.outbound.expire(sender, now);
            self.outbound.report(sender, now);
        }
    }

    /// Tests the ports if that is due, and reports dead ones. Must be called every second. Returns
    /// true if a test or report is in progress.
    pub(in crate::netdev) fn look_at_ports(&mut self) -> bool {
        let Some(sender) = self.sender.as_mut() else {
            return false;
        };
        let asked = self.outbound.look_at_ports(sender);
        sender.flush();
        let due = self.outbound.report(sender, now_ns());
        asked || due
    }

    /// Returns true if a stopped queue may be woken.
    pub(in crate::netdev) fn goes_on(&mut self, peers: &Peers, now: u64) -> bool {
        self.room() >= ENOUGH && !self.is_blocked(peers, now)
    }
}
