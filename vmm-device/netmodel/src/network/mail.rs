//! Mail between nodes, and their reports to the caller that runs the network.

use tofu_abi::TniId;
use tofu_abi::topology::{NodeId, Port};
use tofu_fabric::{Class, Hop, OnLink, Ps};
use tofu_links::Dllp;

use super::agenda::NEVER;
use super::arena::Arena;
use super::broken::Which;
use super::calendar::{Calendar, Event};
use super::frame::{Far, Frame, PORTS};

/// Credit on its way back to the output of a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credit {
    pub(super) at: Ps,
    pub(super) slot: u16,
    pub(super) vc: u8,
    pub(super) rows: u8,
}

/// A DLLP, and whether both ends counted it when the frame came in that it is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said {
    pub(super) dllp: Dllp,
    pub(super) counted: bool,
}

/// Mail to nodes of an engine, sent in one window of time, that arrives in a later one. What one
/// port sends to another stays in order.
#[derive(Debug)]
pub(super) struct Mail {
    pub(super) frames: Vec<(u16, Frame)>,
    pub(super) credits: Vec<Credit>,
    pub(super) dllps: Vec<(Ps, u16, Said)>,
    /// When the first item other than a credit is due, and when the first credit is.
    pub(super) soonest: Ps,
    pub(super) credits_at: Ps,
}

impl Mail {
    pub(super) const fn new() -> Self {
        Self {
            frames: Vec::new(),
            credits: Vec::new(),
            dllps: Vec::new(),
            soonest: NEVER,
            credits_at: NEVER,
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.soonest == NEVER && self.credits_at == NEVER
    }

    /// The memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.frames.capacity() * size_of::<(u16, Frame)>()
            + self.credits.capacity() * size_of::<Credit>()
            + self.dllps.capacity() * size_of::<(Ps, u16, Said)>()
    }
}

/// A report about a message or a link.
#[derive(Clone, Copy, Debug)]
pub(super) enum Notice {
    /// The last frame of a message has arrived at a TNI.
    Delivered {
        tni: TniId,
        token: u64,
    },
    /// The last frame of a message has left a TNI.
    Left {
        tni: TniId,
        token: u64,
        request: bool,
    },
    /// A frame was thrown away.
    Discarded {
        port: Option<Port>,
        token: u64,
        which: Which,
    },
    /// No frame gets through a link.
    Failed {
        port: Port,
    },
    /// A frame starts to cross a link: for the first time and intact, or else `Again`.
    Hop {
        hop: Hop,
        class: Class,
        bytes: u32,
        token: u64,
        link: Option<OnLink>,
    },
    Again {
        hop: Hop,
        bytes: u32,
        token: u64,
        link: OnLink,
    },
    /// A DLLP starts to cross a link.
    Said {
        hop: Hop,
        dllp: Dllp,
        link: OnLink,
    },
}

/// A notice with its time and place: the node and, in the low byte, its rank at one time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) at: Ps,
    pub(super) what: u32,
    pub(super) notice: Notice,
}

impl Told {
    pub(super) const fn node(&self) -> NodeId {
        NodeId(self.what >> 8)
    }

    pub(super) const fn order(&self) -> (Ps, u32) {
        (self.at, self.what)
    }
}

// Ranks of notices at one time.
const LEFT: u32 = 16;
const NOW: u32 = 48;

/// Notices of some nodes.
#[derive(Debug)]
pub(super) struct Notices {
    ahead: Calendar,
    /// When the first notice in `ahead` is due.
    ahead_at: Ps,
    bodies: Arena<Notice>,
    /// Events so far, by node.
    now: Vec<Told>,
    /// Events to report, in order.
    pub(super) due: Vec<Told>,
}

impl Notices {
    pub(super) fn new() -> Self {
        Self {
            ahead: Calendar::new(),
            ahead_at: NEVER,
            bodies: Arena::new(),
            now: Vec::new(),
            due: Vec::new(),
        }
    }

    /// Returns true if there is nothing to report up to and including `until`.
    #[inline]
    pub(super) fn is_quiet(&self, until: Ps) -> bool {
        self.ahead_at > until && self.now.is_empty() && self.due.is_empty()
    }

    /// Sorts the reports up to and including `until`.
    pub(super) fn gather(&mut self, until: Ps) {
        if self.ahead_at <= until {
            while let Some(Event { at, what, argument }) = self.ahead.pop(until) {
                let notice = self.bodies[argument];
                self.bodies.free(argument);
                self.due.push(Told { at, what, notice });
            }
            self.ahead_at = self.ahead.next_at().unwrap_or(NEVER);
        }
        if !self.now.is_empty() {
            self.due.append(&mut self.now);
            self.due.sort_by_key(Told::order);
        }
    }

    pub(super) const fn next_at(&self) -> Ps {
        self.ahead_at
    }

    /// The tokens of messages whose loss is still to be reported. Losses are reported in the window
    /// in which they happen, so none is ahead.
    pub(super) fn lost(&self) -> impl Iterator<Item = u64> + '_ {
        self.now.iter().chain(&self.due).filter_map(|told| match told.notice {
            Notice::Discarded { token, .. } => Some(token),
            _ => None,
        })
    }

    /// The memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.bodies.bytes() + (self.now.capacity() + self.due.capacity()) * size_of::<Told>()
    }
}

/// The outlet for messages and events that leave an engine.
pub(super) struct Outlet<'a> {
    /// By engine.
    pub(super) mail: &'a mut [Mail],
    pub(super) notices: &'a mut Notices,
    /// True if hops are reported.
    pub(super) hops: bool,
}

impl Outlet<'_> {
    /// Sends a frame, which carries its time of arrival.
    #[inline]
    pub(super) fn frame(&mut self, to: Far, frame: Frame) {
        let mail = &mut self.mail[to.engine as usize];
        mail.soonest = mail.soonest.min(frame.arrived);
        mail.frames.push((to.slot, frame));
    }

    #[inline]
    pub(super) fn credit(&mut self, to: Far, credit: Credit) {
        let mail = &mut self.mail[to.engine as usize];
        mail.credits_at = mail.credits_at.min(credit.at);
        mail.credits.push(credit);
    }

    pub(super) fn dllp(&mut self, to: Far, at: Ps, said: Said) {
        let mail = &mut self.mail[to.engine as usize];
        mail.soonest = mail.soonest.min(at);
        mail.dllps.push((at, to.slot, said));
    }

    /// Reports what happens at a TNI, once that is due.
    pub(super) fn tell(&mut self, at: Ps, node: NodeId, notice: Notice) {
        let order = match notice {
            Notice::Delivered { tni, .. } => u32::from(tni.get()) + PORTS as u32,
            Notice::Left { tni, .. } => LEFT + u32::from(tni.get()) + PORTS as u32,
            _ => NOW,
        };
        let argument = self.notices.bodies.add(notice);
        self.notices.ahead_at = self.notices.ahead_at.min(at);
        self.notices.ahead.push(Event { at, what: node.0 << 8 | order, argument });
    }

    /// Reports what happens at a slot now.
    pub(super) fn tell_now(&mut self, at: Ps, node: NodeId, slot: u8, notice: Notice) {
        let what = node.0 << 8 | (NOW + u32::from(slot));
        self.notices.now.push(Told { at, what, notice });
    }
}
