//! The state of the barrier gates of a process.

use tofu_abi::regs::{MAX_BG, NUM_BCH, NUM_TNI};
use tofu_abi::{BchId, TniId};

use crate::lock::Lock;

/// What a round is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    Barrier,
    /// So many integers.
    Integers(usize),
    /// So many floating-point numbers.
    Doubles(usize),
}

/// A start and end gate of the process's, with its channel.
pub(crate) struct Start<C> {
    pub(crate) channel: C,
    pub(crate) round: Option<Round>,
}

/// What a gate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Not this process's.
    None,
    /// This process's, with no links.
    Allocated,
    /// Linked, and looked after by the channel of an interface.
    Linked { tni: TniId, bch: BchId },
}

/// The barrier gates of a process.
pub(crate) struct Barriers<C> {
    pub(crate) gates: Lock<[[Gate; MAX_BG]; NUM_TNI]>,
    /// By interface and channel. Locked for less than `gates`, and after it.
    pub(crate) starts: [[Lock<Option<Start<C>>>; NUM_BCH]; NUM_TNI],
}

impl<C> Default for Barriers<C> {
    fn default() -> Self {
        Self {
            gates: Lock::new([[Gate::None; MAX_BG]; NUM_TNI]),
            starts: core::array::from_fn(|_| core::array::from_fn(|_| Lock::new(None))),
        }
    }
}
