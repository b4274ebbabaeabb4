//! The errors of a machine.

use thiserror::Error;
use tofu_abi::Coords;
use tofu_abi::topology::Shape;

/// The reason why a node or a machine cannot be created.
#[derive(Debug, Error)]
pub enum Error {
    /// The coordinates are not in the machine.
    #[error("node {0} is not in the machine")]
    NoSuchNode(Coords),
    /// There is already a device at these coordinates.
    #[error("node {0} exists already")]
    NodeExists(Coords),
    /// A torus of TNW has no axes A, B and C.
    #[error("shape {0}: TNW has the axes X, Y and Z only, so A, B and C must be 1")]
    NotThreeAxes(Shape),
    /// The machine cannot be cut into this number of shards.
    #[error(transparent)]
    Shards(#[from] tofu_fabric::BadShards),
    /// There is no shard with this number.
    #[error("shard {shard}: the machine has {count} shards, from 0 on")]
    NoSuchShard {
        /// The number of the shard.
        shard: tofu_fabric::ShardId,
        /// The number of shards.
        count: u32,
    },
    /// A machine with modelled links must be in one process as a whole.
    #[error("links between shards of a machine cannot be modelled")]
    ModelledShards,
    /// The host has no memory, threads or descriptors left.
    #[error("{what}: {source}")]
    Host {
        /// The operation that failed.
        what: &'static str,
        /// The error of the host.
        source: std::io::Error,
    },
    /// The options of modelled links are not valid.
    #[error("links: {0}")]
    Links(#[from] tofu_netmodel::BadOption),
    /// The endpoint could not be built.
    #[error("PCI endpoint: {0}")]
    Pci(#[from] tofu_pci::Error),
}

impl Error {
    pub(crate) fn host(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Host { what, source }
    }
}
