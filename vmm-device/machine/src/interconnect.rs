//! The kind of network that connects the nodes of a machine.

use std::str::FromStr;

use tofu_abi::Generation;
use tofu_abi::topology::Shape;

/// The kind of network that connects the nodes of a machine, and of their devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interconnect {
    /// Controllers of a generation of Tofu.
    Tofu(Generation),
    /// Network processors of the torus network TNW.
    Tnw,
}

/// The number of TNW in captures, where generations of Tofu have the smaller numbers.
const TNW: u8 = 16;

impl Default for Interconnect {
    fn default() -> Self {
        Self::Tofu(Generation::default())
    }
}

impl Interconnect {
    /// The names that are allowed, for an error message.
    pub const ALLOWED: &str =
        "\"k\" or \"fx10\" (Tofu), \"fx100\" (Tofu2), \"fugaku\" (TofuD) or \"tnw\" (TNW)";

    /// Returns the interconnect of a machine with only a known shape: Tofu for the shapes of the K
    /// computer, or the default.
    pub fn of_shape(shape: &Shape) -> Self {
        match [Shape::K, Shape::K_RACKS].contains(shape) {
            true => Self::Tofu(Generation::K),
            false => Self::default(),
        }
    }

    /// The name, as in machine files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tofu(generation) => generation.name(),
            Self::Tnw => "tnw",
        }
    }

    /// The number in captures: that of the generation, or 16 for TNW.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tofu(generation) => generation.number(),
            Self::Tnw => TNW,
        }
    }

    /// The interconnect with this number, if there is one.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            TNW => Some(Self::Tnw),
            number => Generation::from_number(number).map(Self::Tofu),
        }
    }

    /// The name of the network, and the name of a machine that has it.
    pub const fn titles(self) -> (&'static str, &'static str) {
        match self {
            Self::Tofu(generation) => {
                let description = generation.description();
                (description.interconnect, description.machine)
            }
            Self::Tnw => ("TNW", "QPACE and AuroraScience"),
        }
    }

    /// The generation of Tofu; `None` for TNW.
    pub const fn tofu(self) -> Option<Generation> {
        match self {
            Self::Tofu(generation) => Some(generation),
            Self::Tnw => None,
        }
    }
}

impl FromStr for Interconnect {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "tnw" => Ok(Self::Tnw),
            name => Generation::from_name(name).map(Self::Tofu).ok_or(Self::ALLOWED),
        }
    }
}
