// SPDX-License-Identifier: GPL-2.0

//! Whether the node can reach anybody: the state of its ports.
//!
//! No register has the state of a link; that a packet cannot leave is all that the device tells.
//! So a packet is sent through every port from time to time, that its neighbour does not look at:
//! a confirmation that nobody waits for.

use tofu_abi::{Coords, Rcode};
use tofu_ipotofu::topology::{Shape, PORT_NAMES};
use tofu_ipotofu::wire::{Repr, HEADER_SIZE};
use tofu_ipotofu::PacketTarget;

use super::spread::NO_PIECE;
use super::tx::Tx;
use super::Link;
use crate::packets::{Order, Purpose};

/// Ports of a node.
const PORTS: usize = PORT_NAMES.len();
/// Calls of [`Ports::is_time`] between two looks while all is well.
const QUIET_BEATS: u32 = 5;

/// How it stands with a port.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Port {
    /// The machine has no link there.
    Absent,
    Up,
    Down,
}

/// The ports of a node, as far as they are known.
pub(super) struct Ports {
    ports: [Port; PORTS],
    /// Those through which a packet is under way, a bit for each.
    asked: u16,
    /// A packet has met a dead link since they were looked at.
    suspect: bool,
    beats: u32,
    carrier: bool,
}

impl Ports {
    /// All links of a node, as if they worked.
    pub(super) fn new(shape: &Shape, me: Coords) -> Self {
        let mut ports = [Port::Absent; PORTS];
        for (n, port) in ports.iter_mut().enumerate() {
            if shape.neighbor(me, n).is_some() {
                *port = Port::Up;
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
        self.ports.contains(&Port::Up)
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
    pub(super) fn answered(&mut self, port: u8, code: Rcode) {
        let state = match code {
            Rcode::LINK_DOWN => Port::Down,
            _ => Port::Up,
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
        let doubt = core::mem::take(&mut self.suspect) || self.ports.contains(&Port::Down);
        if !doubt && self.beats < QUIET_BEATS {
            return false;
        }
        self.beats = 0;
        true
    }

    /// The names of those that there are, and whether they are up.
    pub(super) fn named(&self) -> impl Iterator<Item = (&'static str, bool)> + use<> {
        let ports = self.ports.into_iter().zip(PORT_NAMES);
        ports
            .filter(|(port, _)| *port != Port::Absent)
            .map(|(port, name)| (name, port == Port::Up))
    }
}

impl Tx {
    /// Looks at the ports if it is time. To be called every second. Returns whether answers will
    /// come.
    pub(super) fn look_at_ports(&mut self, link: &Link) -> bool {
        if !self.ports.is_time() {
            return false;
        }
        let nothing = Repr {
            origin: link.me,
            id: self.next_id,
            ..NO_PIECE
        };
        let header = nothing.emit();
        for n in 0..PORTS {
            let Some(to) = link.shape.neighbor(link.me, n) else {
                continue;
            };
            let Some(sender) = self.sender.as_mut() else {
                break;
            };
            // Without room much is on its way, and will tell.
            let Some(buffer) = sender.take() else { break };
            let place = sender
                .payload(buffer)
                .and_then(|all| all.first_chunk_mut::<HEADER_SIZE>());
            let Some(place) = place else {
                sender.give_up(buffer);
                break;
            };
            *place = header;
            let purpose = Purpose::Port(n as u8);
            let order = Order::new(to, 0, purpose, buffer, HEADER_SIZE);
            sender.post(order, &through(link, n, to), false);
            self.ports.asked |= 1 << n;
        }
        self.flush();
        self.ports.asked != 0
    }
}

/// The way through a port to the neighbour there.
fn through(link: &Link, port: usize, to: Coords) -> PacketTarget {
    let mut distances = [0; 3];
    // X-, X+, Y-, Y+, Z- and Z+, behind the four ports within a unit.
    if let Some(n) = port.checked_sub(4) {
        distances[n / 2] = if n % 2 == 0 { -1 } else { 1 };
    }
    PacketTarget {
        distances,
        node: to,
        path: to.default_path(),
        tni: link.tni.get(),
    }
}
