//! Which of a node's own ports work.
//!
//! No register has the state of a link. The device only reports that a packet could not leave. So
//! from time to time a packet is sent through every port: an acknowledgement that the neighbour
//! does not expect and therefore ignores.

use tofu_abi::irq::{PortRequest, TnrIrqs};
use tofu_abi::topology::{Axis, Port};
use tofu_abi::{PacketTarget, Rcode, TniId};

use crate::neighbor::LocalNode;
use crate::wire::{HEADER_SIZE, Repr};

/// Selects those of a node's pending interrupt requests that report a dead link: a packet of any
/// node could not leave through a port.
pub fn dead_links_met(pending: TnrIrqs) -> TnrIrqs {
    let of = |port: Port| TnrIrqs::of(port, PortRequest::PortError);
    pending & Port::ALL.into_iter().fold(TnrIrqs::NONE, |all, port| all | of(port))
}

/// The state of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PortState {
    /// The machine has no link there.
    Absent,
    Up,
    Down,
}

/// The known state of a node's ports.
#[derive(Debug)]
pub struct Ports {
    ports: [PortState; Port::COUNT],
    /// Ports with a test packet in flight, one bit each.
    asked: u16,
    /// True if a packet has met a dead link since the last test.
    suspect: bool,
    /// Calls of [`Ports::look`] since the last test, and the number after which a test is due
    /// anyway.
    beats: u32,
    quiet_beats: u32,
    carrier: bool,
}

impl Ports {
    /// The ports of a node, whose links are assumed to work. Every `quiet_beats`th call of
    /// [`Ports::look`] tests them, and the first call does if they are `suspect`.
    pub fn new(node: &LocalNode, quiet_beats: u32, suspect: bool) -> Self {
        let mut ports = [PortState::Absent; Port::COUNT];
        for (port, _) in node.shape.neighbors(node.me) {
            ports[port.index()] = PortState::Up;
        }
        let carrier = ports.contains(&PortState::Up);
        Self { ports, asked: 0, suspect, beats: 0, quiet_beats, carrier }
    }

    /// Returns true if any link worked at the last test.
    pub fn carrier(&self) -> bool {
        self.carrier
    }

    /// The value of [`Ports::carrier`], if it has changed.
    pub fn news(&mut self) -> Option<bool> {
        let carrier = self.ports.contains(&PortState::Up);
        if self.asked != 0 || carrier == self.carrier {
            return None;
        }
        self.carrier = carrier;
        Some(carrier)
    }

    /// Notes that a packet has met a dead link, here or elsewhere.
    pub fn suspect(&mut self) {
        self.suspect = true;
    }

    /// Notes the outcome of the packet that tested a port. Returns the dead ports if this was the
    /// last one awaited.
    pub fn answered(&mut self, port: Port, rcode: Rcode) -> Option<u16> {
        let state = match rcode {
            Rcode::LINK_DOWN => PortState::Down,
            _ => PortState::Up,
        };
        self.ports[port.index()] = state;
        self.asked &= !(1 << port.index());
        (self.asked == 0).then_some(self.dead())
    }

    /// The dead ports, one bit each.
    pub fn dead(&self) -> u16 {
        let down = |state: &PortState| u16::from(*state == PortState::Down);
        self.ports.iter().rev().fold(0, |mask, state| mask << 1 | down(state))
    }

    /// Returns true if a test is due: at each call if a port is known or suspected to be down,
    /// otherwise at every few calls.
    fn is_time(&mut self) -> bool {
        self.beats = self.beats.saturating_add(1);
        if self.asked != 0 {
            return false;
        }
        let doubt = core::mem::take(&mut self.suspect) || self.ports.contains(&PortState::Down);
        if !doubt && self.beats < self.quiet_beats {
            return false;
        }
        self.beats = 0;
        true
    }

    /// The names of the ports with links, and whether they are up.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, bool)> + use<> {
        let ports = self.ports.into_iter().zip(Port::ALL);
        ports
            .filter(|(state, _)| *state != PortState::Absent)
            .map(|(state, port)| (port.name(), state == PortState::Up))
    }

    /// Tests the ports if a test is due: passes a packet for each to `post`, with its port and its
    /// target. `post` returns false when there is no room. To be called every second. Returns
    /// whether results will come.
    pub fn look(
        &mut self,
        node: &LocalNode,
        tni: TniId,
        mut post: impl FnMut(Port, &PacketTarget, &[u8; HEADER_SIZE]) -> bool,
    ) -> bool {
        if !self.is_time() {
            return false;
        }
        let header = Repr::probe(node.me).emit();
        for (port, to) in node.shape.neighbors(node.me) {
            let target = PacketTarget {
                distances: Axis::XYZ.map(|axis| match port.axis() == axis {
                    true => port.direction(),
                    false => 0,
                }),
                node: to,
                path: to.default_path(),
                tni,
            };
            // If there is no room, many packets are in flight, and their results will show dead
            // links.
            if !post(port, &target, &header) {
                break;
            }
            self.asked |= 1 << port.index();
        }
        self.asked != 0
    }
}
