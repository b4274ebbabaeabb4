//! The errors of a machine.

use thiserror::Error;
use tofu_abi::Coords;
use tofu_abi::topology::Shape;

/// Why a node or a machine cannot be had.
#[derive(Debug, Error)]
pub enum Error {
    /// The coordinates are not in the machine.
    #[error("node {0} is not in the machine")]
    NoSuchNode(Coords),
    /// There is a device at these coordinates already.
    #[error("node {0} exists already")]
    NodeExists(Coords),
    /// A torus of TNW has no axes A, B and C.
    #[error("shape {0}: TNW has the axes X, Y and Z only, so A, B and C must be 1")]
    NotThreeAxes(Shape),
    /// It cannot be cut into so many parts.
    #[error(transparent)]
    Parts(#[from] tofu_fabric::BadParts),
    /// There is no such part.
    #[error("part {part}: the machine has {count} parts, from 0 on")]
    NoSuchPart {
        /// The part.
        part: tofu_fabric::PartId,
        /// How many there are.
        count: u32,
    },
    /// Modelled links have all of a machine in one process.
    #[error("links between parts of a machine cannot be modelled")]
    ModelledParts,
    /// The host has no memory, threads or descriptors left.
    #[error("{what}: {source}")]
    Host {
        /// What was tried.
        what: &'static str,
        /// What the host said.
        source: std::io::Error,
    },
    /// The links cannot be modelled so.
    #[error("links: {0}")]
    Links(#[from] tofu_fabric::network::BadOption),
    /// The endpoint could not be built.
    #[error("PCI endpoint: {0}")]
    Pci(#[from] tofu_pci::Error),
}

impl Error {
    pub(crate) fn host(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Host { what, source }
    }
}
