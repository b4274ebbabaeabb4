//! Which of a node's own ports work.
//!
//! No register has the state of a link. The device only reports that a packet could not leave. So
//! from time to time a packet is sent through every port that the neighbour ignores: an
//! acknowledgement that it does not wait for.

use tofu_abi::irq::{PortRequest, TnrIrqs};
use tofu_abi::topology::{Axis, Port};
use tofu_abi::{PacketTarget, Rcode, TniId};

use crate::neighbor::LocalNode;
use crate::wire::{HEADER_SIZE, Repr};

/// Selects the pending interrupt requests of a node that say that a packet, of any node, could not
/// leave through a port, so that the link is dead.
pub fn dead_links_met(pending: TnrIrqs) -> TnrIrqs {
    let of = |port: Port| TnrIrqs::of(port.index() as u8, PortRequest::PortError);
    pending & Port::ALL.into_iter().fold(TnrIrqs::NONE, |all, port| all | of(port))
}

/// How it stands with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PortState {
    /// The machine has no link there.
    Absent,
    Up,
    Down,
}

/// The ports of a node, as far as they are known.
#[derive(Debug)]
pub struct Ports {
    ports: [PortState; Port::COUNT],
    /// Ports through which a packet is under way, a bit for each.
    asked: u16,
    /// A packet has met a dead link since they were looked at.
    suspect: bool,
    /// Calls of [`Ports::look`] since then, and after how many they are looked at in any case.
    beats: u32,
    quiet_beats: u32,
    carrier: bool,
}

impl Ports {
    /// All links of a node, as if they worked. They are looked at by every `quiet_beats`th
    /// [`Ports::look`], and at once if they are `suspect`.
    pub fn new(node: &LocalNode, quiet_beats: u32, suspect: bool) -> Self {
        let mut ports = [PortState::Absent; Port::COUNT];
        for (state, port) in ports.iter_mut().zip(Port::ALL) {
            if node.shape.neighbor(node.me, port).is_some() {
                *state = PortState::Up;
            }
        }
        let carrier = ports.contains(&PortState::Up);
        Self { ports, asked: 0, suspect, beats: 0, quiet_beats, carrier }
    }

    /// Whether any of them worked when that was looked at last.
    pub fn carrier(&self) -> bool {
        self.carrier
    }

    /// [`Ports::carrier`] if it is another one than it was.
    pub fn news(&mut self) -> Option<bool> {
        let carrier = self.ports.contains(&PortState::Up);
        if self.asked != 0 || carrier == self.carrier {
            return None;
        }
        self.carrier = carrier;
        Some(carrier)
    }

    /// A packet has met a dead link, here or elsewhere.
    pub fn suspect(&mut self) {
        self.suspect = true;
    }

    /// Notes the outcome of the packet that tested a port. Returns the dead ports if this was the
    /// last one awaited.
    pub fn answered(&mut self, port: u8, rcode: Rcode) -> Option<u16> {
        let state = match rcode {
            Rcode::LINK_DOWN => PortState::Down,
            _ => PortState::Up,
        };
        *self.ports.get_mut(usize::from(port))? = state;
        self.asked &= !(1 << port);
        (self.asked == 0).then_some(self.dead())
    }

    /// The dead ports, a bit for each.
    pub fn dead(&self) -> u16 {
        let down = |state: &PortState| u16::from(*state == PortState::Down);
        self.ports.iter().rev().fold(0, |mask, state| mask << 1 | down(state))
    }

    /// Whether it is time to look at them: each time if one is known or suspected to be down, else
    /// now and then.
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

    /// The names of those that there are, and whether they are up.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, bool)> + use<> {
        let ports = self.ports.into_iter().zip(Port::ALL);
        ports
            .filter(|(state, _)| *state != PortState::Absent)
            .map(|(state, port)| (port.name(), state == PortState::Up))
    }

    /// Looks at them if it is time: hands `post` a packet for each, with its port and where it
    /// goes, which is false when there is no room. To be called every second. Returns whether
    /// answers will come.
    pub fn look(
        &mut self,
        node: &LocalNode,
        tni: TniId,
        mut post: impl FnMut(u8, &PacketTarget, &[u8; HEADER_SIZE]) -> bool,
    ) -> bool {
        if !self.is_time() {
            return false;
        }
        let header = Repr::probe(node.me).emit();
        for port in Port::ALL {
            let Some(to) = node.shape.neighbor(node.me, port) else { continue };
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
            if !post(port.index() as u8, &target, &header) {
                break;
            }
            self.asked |= 1 << port.index();
        }
        self.asked != 0
    }
}
