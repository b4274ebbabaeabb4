// SPDX-License-Identifier: GPL-2.0

//! Queues, channels and gates of a node, by checked numbers.

use core::fmt::Display;

use kernel::fmt;

use tofu_abi::generation::Description;
use tofu_abi::regs::NUM_TNI;
use tofu_abi::{BchId, BgId, CqId, TniId};

/// A control queue of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueId {
    pub(crate) tni: TniId,
    pub(crate) cq: CqId,
}

impl QueueId {
    /// The kernel's own queue of a TNI, on a device with this description.
    pub(crate) const fn kernel(tni: TniId, description: &Description) -> Self {
        let cq = description.kernel_cq();
        Self { tni, cq }
    }

    /// Every queue of a node with this description.
    pub(crate) fn of(description: &'static Description) -> impl Iterator<Item = Self> {
        Self::all().filter(|id| description.has_tni(id.tni) && description.has_cq(id.cq))
    }

    /// Every queue that the register map has.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let queues = |tni| CqId::ALL.into_iter().map(move |cq| Self { tni, cq });
        TniId::ALL.into_iter().flat_map(queues)
    }

    /// The value of `si_int`.
    pub(crate) fn si_int(self) -> i32 {
        i32::from(self.tni.get()) << 8 | i32::from(self.cq.get())
    }
}

impl Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tni{}cq{}", self.tni, self.cq)
    }
}

// The kernel's macros have their own trait.
impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

/// A barrier channel of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChannelId {
    pub(crate) tni: TniId,
    pub(crate) bch: BchId,
}

impl ChannelId {
    /// Its start/end gate.
    pub(crate) const fn gate(self) -> GateId {
        GateId {
            tni: self.tni,
            bg: self.bch.gate(),
        }
    }

    /// Every channel that processes may have, on a node with this description.
    pub(crate) fn of(description: &'static Description) -> impl Iterator<Item = Self> {
        let barrier = description.barrier;
        let users = barrier.channels - description.system_channels;
        Self::all().filter(move |id| barrier.has_channel(id.tni, id.bch) && id.bch.get() < users)
    }

    /// Every channel that the register map has.
    fn all() -> impl Iterator<Item = Self> {
        let channels = |tni| BchId::ALL.into_iter().map(move |bch| Self { tni, bch });
        TniId::ALL.into_iter().flat_map(channels)
    }

    /// The value of `si_int`.
    pub(crate) fn si_int(self) -> i32 {
        i32::from(self.tni.get()) << 8 | i32::from(self.bch.get())
    }
}

impl Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tni{}bch{}", self.tni, self.bch)
    }
}

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

/// A barrier gate of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct GateId {
    pub(crate) tni: TniId,
    pub(crate) bg: BgId,
}

impl fmt::Display for GateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tni{}bg{}", self.tni, self.bg)
    }
}

/// Some of a node's gates: a mask for each TNI.
#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) struct GateSet(pub(crate) [u64; NUM_TNI]);

impl GateSet {
    fn mask(&self, tni: TniId) -> u64 {
        self.0.get(tni.index()).copied().unwrap_or(0)
    }

    /// Returns true if the gate is one of them.
    pub(crate) fn has(&self, gate: GateId) -> bool {
        self.mask(gate.tni) >> gate.bg.get() & 1 != 0
    }

    /// Adds a gate; false if it was there already.
    pub(crate) fn insert(&mut self, gate: GateId) -> bool {
        let is_new = !self.has(gate);
        if let Some(mask) = self.0.get_mut(gate.tni.index()) {
            *mask |= 1 << gate.bg.get();
        }
        is_new
    }

    /// Removes all gates of another set.
    pub(crate) fn remove(&mut self, others: &Self) {
        for (mask, other) in self.0.iter_mut().zip(others.0) {
            *mask &= !other;
        }
    }

    /// Returns true if there are gates of this TNI.
    pub(crate) fn has_some_of(&self, tni: TniId) -> bool {
        self.mask(tni) != 0
    }

    /// The gates of a TNI.
    pub(crate) fn of(&self, tni: TniId) -> impl Iterator<Item = GateId> {
        let mask = self.mask(tni);
        let gates = BgId::ALL.into_iter().map(move |bg| GateId { tni, bg });
        gates.filter(move |gate| mask >> gate.bg.get() & 1 != 0)
    }

    /// All gates.
    pub(crate) fn iter(&self) -> impl Iterator<Item = GateId> + '_ {
        TniId::ALL.into_iter().flat_map(|tni| self.of(tni))
    }
}

impl From<GateId> for GateSet {
    fn from(gate: GateId) -> Self {
        let mut set = Self::default();
        set.insert(gate);
        set
    }
}
