//! The addresses of a node's interface.

use std::net::{Ipv4Addr, Ipv6Addr};

use tofu_abi::Coords;
use tofu_abi::topology::Shape;
use tofu_ipotofu::addr::{self, Mac};

/// Addresses that follow from coordinates and the machine's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressPlan {
    /// Hardware address.
    pub mac: Mac,
    /// IPv4 address.
    pub ipv4: Ipv4Addr,
    /// Bits of the smallest IPv4 network that all nodes of the machine are in.
    pub ipv4_prefix: u8,
    /// Unique local IPv6 address.
    pub ipv6: Ipv6Addr,
    /// Bits of the network's part of it.
    pub ipv6_prefix: u8,
}

impl AddressPlan {
    /// The settings of node `me` of machine `machine` (0 to [`addr::MAX_MACHINE`]).
    pub fn new(shape: &Shape, machine: u8, me: Coords) -> Self {
        Self {
            mac: addr::mac(me),
            ipv4: addr::ipv4(machine, me).into(),
            ipv4_prefix: addr::ipv4_prefix(shape, machine),
            ipv6: addr::ipv6(machine, me).into(),
            ipv6_prefix: addr::IPV6_PREFIX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tofu_abi::topology::NodeId;

    fn plan(shape: &str, rank: u32) -> AddressPlan {
        let shape: Shape = shape.parse().unwrap();
        AddressPlan::new(&shape, 0, shape.coords(NodeId(rank)).unwrap())
    }

    #[test]
    fn network_is_the_smallest_for_the_machine() {
        // One node, with room for the gateway's side; a unit; two nodes on X; and the largest
        // machine.
        assert_eq!(plan("1x1x1x1x1x1", 0).ipv4_prefix, 30);
        assert_eq!(plan("1x1x1x2x3x2", 0).ipv4_prefix, 26);
        assert_eq!(plan("2x1x1x1x1x1", 1).ipv4_prefix, 15);
        assert_eq!(plan("32x32x32x2x3x2", 7).ipv4_prefix, 11);
        assert_eq!(plan("2x1x1x1x1x1", 1).ipv4, Ipv4Addr::new(10, 1, 0, 1));
    }

    #[test]
    fn network_has_all_nodes_and_no_others() {
        for text in ["1x1x1x2x3x2", "3x2x2x2x3x2", "2x1x1x1x1x1", "1x5x1x1x1x1"] {
            let shape: Shape = text.parse().unwrap();
            let all: Vec<_> = (0..shape.nodes()).map(|rank| plan(text, rank)).collect();
            let net = |plan: &AddressPlan| u32::from(plan.ipv4) >> (32 - plan.ipv4_prefix);
            assert!(all.iter().all(|plan| net(plan) == net(&all[0])), "{text}");
            let other = AddressPlan::new(&shape, 1, Coords::default());
            assert_ne!(net(&other), net(&all[0]), "{text}");
        }
    }
}
