// SPDX-License-Identifier: GPL-2.0

//! The ports of the node: looks at them, and reports of dead ones to other nodes.

use super::Tx;
use crate::engine::now_ns;
use crate::packets::{Purpose, ENOUGH};

impl Tx {
    /// Looks at the ports if it is time. To be called every second. Returns whether answers will
    /// come.
    pub(in crate::netdev) fn look_at_ports(&mut self) -> bool {
        let Self {
            node, tni, ports, ..
        } = self;
        let Some(sender) = self.sender.as_mut() else {
            return false;
        };
        let asked = ports.look(node, *tni, |port, target, header| {
            sender.post_parts(Purpose::Port(port), target, &[header])
        });
        sender.flush();
        let due = self.report(now_ns());
        asked || due
    }

    /// Tells other nodes of dead ports. Returns whether there are more to be told soon.
    pub(super) fn report(&mut self, now: u64) -> bool {
        let Self {
            sender,
            outbound,
            reporter,
            ..
        } = self;
        let (Some(sender), Some(reporter)) = (sender, reporter) else {
            return false;
        };
        if outbound.health().own() == 0 && reporter.is_silent() {
            return false;
        }
        let health = outbound.health().clone();
        reporter.step(&health, now, |to, header| {
            sender.room() > ENOUGH / 2 && outbound.report(sender, to, header, now)
        });
        !reporter.is_settled()
    }
}
