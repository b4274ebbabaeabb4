//! What a machine is made from.

use tofu_abi::barrier::Profile;
use tofu_fabric::{Shape, Timing};

/// How doorbells arrive at the devices of a machine. The guest cannot tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbells {
    /// By an exit or an ioeventfd; engines sleep meanwhile.
    Trapped,
    /// In memory that the guest has mapped and the engines look at. Nodes have it if they were
    /// made with shared pages, otherwise their doorbells are trapped. After a while of quiet a
    /// page is write-protected, and its next doorbell is trapped.
    Polled,
}

/// What a machine is made from.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    /// Its box of nodes.
    pub shape: Shape,
    /// Times of its links.
    pub timing: Timing,
    /// Barrier gates and channels of its nodes.
    pub barrier: Profile,
    /// How doorbells arrive.
    pub doorbells: Doorbells,
    /// How many engines share the nodes; at least one.
    pub engines: usize,
    /// How long a command waits for an answer, in nanoseconds.
    pub timeout_ns: u64,
    /// How long an engine without work goes on looking at a polled doorbell all the time before
    /// it looks less and less often, in nanoseconds.
    pub spin_ns: u64,
}

impl MachineConfig {
    /// A TofuD machine of this shape with one engine and trapped doorbells.
    pub const fn new(shape: Shape) -> Self {
        Self {
            shape,
            timing: Timing::TOFUD,
            barrier: Profile::TOFUD,
            doorbells: Doorbells::Trapped,
            engines: 1,
            timeout_ns: 500_000_000,
            spin_ns: 50_000,
        }
    }
}

/// A generation of Tofu: so far, whose links and barrier gates the nodes have. All else is
/// TofuD's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Generation {
    /// K computer and FX10.
    Tofu,
    /// FX100.
    Tofu2,
    /// Fugaku.
    #[default]
    TofuD,
}

impl Generation {
    /// The generation with this name, in small letters.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "tofu" => Some(Self::Tofu),
            "tofu2" => Some(Self::Tofu2),
            "tofud" => Some(Self::TofuD),
            _ => None,
        }
    }
}

impl MachineConfig {
    /// A machine of this generation and shape with one engine and trapped doorbells.
    pub const fn of(generation: Generation, shape: Shape) -> Self {
        let (timing, barrier) = match generation {
            Generation::Tofu => (Timing::TOFU1, Profile::TOFU),
            Generation::Tofu2 => (Timing::TOFU2, Profile::TOFU),
            Generation::TofuD => (Timing::TOFUD, Profile::TOFUD),
        };
        Self { timing, barrier, ..Self::new(shape) }
    }
}
