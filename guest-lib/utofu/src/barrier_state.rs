//! The state of the barrier gates of a process.

use tofu_abi::regs::{MAX_BG, NUM_BCH, NUM_TNI};
use tofu_abi::{BchId, TniId};

use crate::lock::Lock;
use crate::rest::{EmptyPolls, RestAfter};

/// The operation of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    Barrier,
    /// This many integers.
    Integers(usize),
    /// This many floating-point numbers.
    Doubles(usize),
}

/// A start and end gate of the process, with its channel.
pub(crate) struct Start<C> {
    pub(crate) channel: C,
    pub(crate) round: Option<Round>,
    pub(crate) empty: EmptyPolls,
}

/// The state of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// It does not belong to this process.
    None,
    /// It belongs to this process and has no links.
    Allocated,
    /// It is linked and belongs to a channel of an interface.
    Linked { tni: TniId, bch: BchId },
}

/// The barrier gates of a process.
pub(crate) struct Barriers<C> {
    pub(crate) gates: Lock<[[Gate; MAX_BG]; NUM_TNI]>,
    /// By interface and channel. Taken after `gates`, and held for a shorter time.
    pub(crate) starts: [[Lock<Option<Start<C>>>; NUM_BCH]; NUM_TNI],
    pub(crate) rest_after: RestAfter,
}

impl<C> Default for Barriers<C> {
    fn default() -> Self {
        Self {
            gates: Lock::new([[Gate::None; MAX_BG]; NUM_TNI]),
            starts: core::array::from_fn(|_| core::array::from_fn(|_| Lock::new(None))),
            rest_after: RestAfter::default(),
        }
    }
}
