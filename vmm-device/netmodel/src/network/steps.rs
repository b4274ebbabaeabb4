//! The rest of a frame's way in a few bytes, as in a routing header.

use tofu_abi::topology::{Axis, Leg, Port, Stage};

/// The ports of a frame's A, B and C hops, by bit of [`Steps::abc`]: those of stage 1, in the order
/// of legs, then those of stage 3.
const ABC_PORTS: [Port; 8] =
    [Port::BMinus, Port::BPlus, Port::C, Port::A, Port::A, Port::C, Port::BMinus, Port::BPlus];
const STAGE_1: u8 = 0x0f;

const CROSSED: u8 = 1;
const ONE_HOP: u8 = 2;

/// The hops that a frame has yet to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Steps {
    /// A bit for each hop on A, B and C: no leg on these has more than one. With [`ONE_HOP`],
    /// the port.
    abc: u8,
    /// Hops on X, Y and Z, towards higher coordinates if positive. With [`ONE_HOP`], the virtual
    /// channel and how many hops are left.
    xyz: [i8; 3],
    flags: u8,
}

/// The next hop of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// The port to leave through.
    pub(super) port: u8,
    /// The channel of the frame's class that the step takes.
    pub(super) channel: Channel,
}

/// The virtual channel of a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channel {
    /// The first of the class.
    First,
    /// The second of the class.
    Second,
    /// On a ring: it depends on the date line and on whether this is the last hop.
    Ring {
        /// The frame has crossed the date line before this hop.
        crossed: bool,
        /// This is the last hop on the axis.
        last: bool,
    },
    /// This one, for any class.
    Given(u8),
}

impl Steps {
    /// The steps of a way.
    pub(super) fn new(legs: impl Iterator<Item = Leg>) -> Self {
        let mut steps = Self { abc: 0, xyz: [0; 3], flags: 0 };
        for leg in legs {
            let bit = match (leg.stage, leg.axis) {
                (_, Axis::X | Axis::Y | Axis::Z) => {
                    steps.xyz[leg.axis.index()] = leg.hops;
                    continue;
                }
                (Stage::ToTarget, Axis::A) => 4,
                (Stage::ToTarget, Axis::C) => 5,
                (Stage::ToTarget, _) => 6 + u8::from(leg.hops > 0),
                (_, Axis::B) => u8::from(leg.hops > 0),
                (_, Axis::C) => 2,
                (_, _) => 3,
            };
            steps.abc |= 1 << bit;
        }
        steps
    }

    /// One hop through a port.
    pub(super) const fn one_hop(port: Port, vc: u8) -> Self {
        Self { abc: port.index() as u8, xyz: [vc as i8, 1, 0], flags: ONE_HOP }
    }

    /// The next hop; `None` at the target.
    #[inline]
    pub(super) fn next(&self) -> Option<Step> {
        if self.flags & ONE_HOP != 0 {
            let channel = Channel::Given(self.xyz[0] as u8);
            return (self.xyz[1] != 0).then_some(Step { port: self.abc, channel });
        }
        let abc = |channel| {
            let port = ABC_PORTS[(self.abc.trailing_zeros() & 7) as usize].index() as u8;
            Some(Step { port, channel })
        };
        if self.abc & STAGE_1 != 0 {
            return abc(Channel::First);
        }
        if let Some(axis) = self.axis() {
            let hops = self.xyz[axis];
            let port = (Port::XMinus.index() + 2 * axis) as u8 + u8::from(hops > 0);
            let (crossed, last) = (self.flags & CROSSED != 0, hops.unsigned_abs() == 1);
            return Some(Step { port, channel: Channel::Ring { crossed, last } });
        }
        if self.abc != 0 { abc(Channel::Second) } else { None }
    }

    /// The first of X, Y and Z on which there are hops left.
    #[inline]
    fn axis(&self) -> Option<usize> {
        self.xyz.iter().position(|hops| *hops != 0)
    }

    /// Takes the next hop, over the date line or not.
    #[inline]
    pub(super) fn advance(&mut self, over_date_line: bool) {
        if self.flags & ONE_HOP != 0 {
            self.xyz[1] = 0;
        } else if self.abc & STAGE_1 != 0 {
            self.abc &= self.abc - 1;
        } else if let Some(axis) = self.axis() {
            self.xyz[axis] -= self.xyz[axis].signum();
            if self.xyz[axis] == 0 {
                self.flags &= !CROSSED;
            } else if over_date_line {
                self.flags |= CROSSED;
            }
        } else {
            self.abc &= self.abc.wrapping_sub(1);
        }
    }
}
