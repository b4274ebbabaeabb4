//! Where packets go.
//!
//! This file needs no allocator: the kernel driver compiles it, too.

use tofu_abi::desc::Header1;
use tofu_abi::{Coords, Path};

/// Where a system packet goes, and which way: so many hops on X, Y and Z, towards higher
/// coordinates if positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PacketTarget {
    /// Hops on X, Y and Z.
    pub distances: [i8; 3],
    /// A, B and C of the target; its X, Y and Z follow from the distances.
    pub node: Coords,
    /// Where the packet enters X, Y, Z routing.
    pub path: Path,
    /// Network interface of the target, 0 to 5.
    pub tni: u8,
}

impl PacketTarget {
    /// The way from one node to another that crosses no date line, which every machine has, by
    /// the default path.
    pub fn straight(from: Coords, to: Coords, tni: u8) -> Self {
        let hops = |from: u8, to: u8| to.wrapping_sub(from) as i8;
        Self {
            distances: [hops(from.x, to.x), hops(from.y, to.y), hops(from.z, to.z)],
            node: to,
            path: to.default_path(),
            tni,
        }
    }

    /// Its part of the first qword of a descriptor.
    pub fn header(&self) -> Header1 {
        Header1(0)
            .with_target(self.node)
            .with_distances(self.distances)
            .with_path(self.path)
            .with_ri(self.tni)
    }
}
