//! The IPv4 addresses of a machine.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use tofu_abi::Coords;
use tofu_abi::topology::Shape;
use tofu_ipotofu::addr;

/// The smallest network that contains the addresses of all nodes of machine number `machine`.
pub fn machine_network(machine: u8, shape: &Shape) -> Ipv4Net {
    let first = node_address(machine, Coords::default());
    // No prefix is longer than an address.
    Ipv4Net::new(first, addr::ipv4_prefix(shape, machine)).unwrap_or_default().trunc()
}

/// The address of a node.
pub(crate) fn node_address(machine: u8, node: Coords) -> Ipv4Addr {
    addr::ipv4(machine, node).into()
}

/// The address of the other side of a node that is a gateway: its last two bits are 10.
pub(crate) fn other_side(machine: u8, node: Coords) -> Ipv4Addr {
    (u32::from(node_address(machine, node)) ^ 3).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_gets_the_smallest_network() {
        for (shape, machine, expected) in [
            ("1x1x1x1x1x1", 0, "10.0.0.0/30"),
            ("2x1x1x1x1x1", 0, "10.0.0.0/15"),
            ("unit", 0, "10.0.0.0/26"),
            ("unit", 3, "10.96.0.0/26"),
            ("1x1x4x2x3x2", 7, "10.224.0.0/24"),
        ] {
            let shape: Shape = shape.parse().unwrap();
            let network = machine_network(machine, &shape);
            assert_eq!(network.to_string(), expected);
            for node in shape.iter() {
                assert!(network.contains(&node_address(machine, node)), "{node}");
                assert!(network.contains(&other_side(machine, node)), "{node}");
            }
        }
        assert_eq!(other_side(0, Coords::default()), Ipv4Addr::new(10, 0, 0, 2));
    }
}
