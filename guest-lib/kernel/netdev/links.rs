// SPDX-License-Identifier: GPL-2.0

//! Whether the node can reach anybody: the state of its ports.
//!
//! No register has the state of a link. The device only reports that a packet could not leave. So
//! from time to time a packet is sent through every port that the neighbour ignores: an
//! acknowledgement that it does not wait for.

use tofu_abi::topology::{Axis, Port};
use tofu_abi::{PacketTarget, Rcode, TniId};
use tofu_ipotofu::neighbor::LocalNode;
use tofu_ipotofu::wire::Repr;

use crate::packets::{Purpose, Sender};

/// Calls of [`Ports::is_time`] between two looks while all is well.
const QUIET_BEATS: u32 = 5;

/// How it stands with a port.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PortState {
    /// The machine has no link there.
    Absent,
    Up,
    Down,
}

/// The ports of a node, as far as they are known.
pub(super) struct Ports {
    ports: [PortState; Port::COUNT],
    /// Those through which a packet is under way, a bit for each.
    asked: u16,
    /// A packet has met a dead link since they were looked at.
    suspect: bool,
    beats: u32,
    carrier: bool,
}

impl Ports {
    /// All links of a node, as if they worked.
    pub(super) fn new(node: &LocalNode) -> Self {
        let mut ports = [PortState::Absent; Port::COUNT];
        for (state, port) in ports.iter_mut().zip(Port::ALL) {
            if node.shape.neighbor(node.me, port).is_some() {
                *state = PortState::Up;
            }
        }
        let mut this = Self {
            ports,
            asked: 0,
            suspect: true,
            beats: 0,
            carrier: false,
        };
        this.carrier = this.is_any_up();
        this
    }

    fn is_any_up(&self) -> bool {
        self.ports.contains(&PortState::Up)
    }

    /// Whether the interface has a carrier.
    pub(super) fn carrier(&self) -> bool {
        self.carrier
    }

    /// The carrier if it is another one than it was.
    pub(super) fn news(&mut self) -> Option<bool> {
        let carrier = self.is_any_up();
        if self.asked != 0 || carrier == self.carrier {
            return None;
        }
        self.carrier = carrier;
        Some(carrier)
    }

    /// A packet has met a dead link, here or elsewhere.
    pub(super) fn suspect(&mut self) {
        self.suspect = true;
    }

    /// What became of the packet that was sent through a port to learn of that.
    pub(super) fn answered(&mut self, port: u8, rcode: Rcode) {
        let state = match rcode {
            Rcode::LINK_DOWN => PortState::Down,
            _ => PortState::Up,
        };
        if let Some(place) = self.ports.get_mut(usize::from(port)) {
            *place = state;
            self.asked &= !(1 << port);
        }
    }

    /// Whether it is time to look at them, which is asked every second: each time if one is known
    /// or suspected to be down, else now and then.
    fn is_time(&mut self) -> bool {
        self.beats += 1;
        if self.asked != 0 {
            return false;
        }
        let doubt = core::mem::take(&mut self.suspect) || self.ports.contains(&PortState::Down);
        if !doubt && self.beats < QUIET_BEATS {
            return false;
        }
        self.beats = 0;
        true
    }

    /// The names of those that there are, and whether they are up.
    pub(super) fn named(&self) -> impl Iterator<Item = (&'static str, bool)> + use<> {
        let ports = self.ports.into_iter().zip(Port::ALL);
        ports
            .filter(|(state, _)| *state != PortState::Absent)
            .map(|(state, port)| (port.name(), state == PortState::Up))
    }

    /// Looks at them if it is time. To be called every second. Returns whether answers will come.
    pub(super) fn look(&mut self, node: &LocalNode, tni: TniId, sender: &mut Sender) -> bool {
        if !self.is_time() {
            return false;
        }
        let header = Repr::probe(node.me).emit();
        for port in Port::ALL {
            let Some(to) = node.shape.neighbor(node.me, port) else {
                continue;
            };
            let target = PacketTarget {
                distances: Axis::XYZ.map(|axis| match port.axis() == axis {
                    true => port.direction(),
                    false => 0,
                }),
                node: to,
                path: to.default_path(),
                tni,
            };
            // Without room much is on its way, and will tell.
            if !sender.post_parts(Purpose::Port(port.index() as u8), &target, &[&header]) {
                break;
            }
            self.asked |= 1 << port.index();
        }
        sender.flush();
        self.asked != 0
    }
}
