//! The links of a shape.

use tofu_abi::Coords;
use tofu_abi::topology::{Port, Shape};
use tofu_links::{ErrorRate, MAX_LANES};

/// A link between two nodes, in no particular direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// One end.
    pub from: Coords,
    /// The port at `from`; the other end's is its [`Port::opposite`].
    pub port: Port,
    /// The other end.
    pub to: Coords,
    /// True if the link closes its axis into a ring, from the last coordinate to the first.
    pub wrap: bool,
}

impl Link {
    /// All links of a machine, each once: from the end with the + port or, on A and C, from
    /// coordinate 0.
    pub fn all(shape: &Shape) -> impl Iterator<Item = Self> + use<> {
        const PLUS: [Port; 6] =
            [Port::XPlus, Port::YPlus, Port::ZPlus, Port::A, Port::BPlus, Port::C];
        let shape = *shape;
        shape.iter().flat_map(move |from| {
            PLUS.into_iter().filter_map(move |port| {
                let to = shape.neighbor(from, port)?;
                let back = to < from;
                let twice = port == port.opposite() && back;
                (!twice).then_some(Self { from, port, to, wrap: back })
            })
        })
    }
}

/// There is no link at that port of that node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {node} has no link at port {port}")]
pub struct NoSuchLink {
    /// The requested coordinates.
    pub node: Coords,
    /// The requested port.
    pub port: Port,
}

/// The machine has no such node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the machine has no node {0}")]
pub struct NoSuchNode(pub Coords);

/// Errors of a direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkErrors {
    /// Bit error rate of each lane.
    pub rates: [ErrorRate; MAX_LANES],
    /// Dead lanes, as bits.
    pub dead: u8,
    /// Loss rate of data-link-layer packets about this direction.
    pub dllp_loss: ErrorRate,
}

/// The reason why link errors are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadErrors {
    /// There is no such link.
    #[error(transparent)]
    Link(#[from] NoSuchLink),
    /// The generation's links have fewer lanes.
    #[error("lane {lane} does not exist: links have 0 to {}", .lanes - 1)]
    Lane {
        /// The requested lane.
        lane: u8,
        /// Their number.
        lanes: u8,
    },
    /// With so many dead lanes a link moves nothing.
    #[error("a link of {name} moves nothing with these lanes dead")]
    Dead {
        /// The generation.
        name: &'static str,
    },
}
