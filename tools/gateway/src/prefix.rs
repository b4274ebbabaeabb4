//! The IPv4 addresses of a machine.

use std::fmt;
use std::net::Ipv4Addr;

use tofu_abi::Coords;
use tofu_abi::topology::Shape;
use tofu_ipotofu::addr;

/// A range of IPv4 addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The first of them.
    pub first: Ipv4Addr,
    /// Bits that all have in common, 0 to 32.
    pub bits: u8,
}

impl Prefix {
    /// The smallest one that has the addresses of all nodes of a machine, number `machine`.
    pub fn of_machine(machine: u8, shape: &Shape) -> Self {
        let highest = shape.iter().map(addr::pack).max().unwrap_or(0);
        // Two more bits tell the interfaces of a node apart.
        let varying = 32 - highest.leading_zeros() + 2;
        let first = u32::from(Ipv4Addr::from(addr::ipv4(machine, Coords::default())));
        Self { first: (first & !3).into(), bits: 32 - varying as u8 }
    }

    fn mask(self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.bits.min(32))).unwrap_or(0)
    }

    /// Whether an address is one of them.
    pub fn contains(self, address: Ipv4Addr) -> bool {
        u32::from(address) & self.mask() == u32::from(self.first) & self.mask()
    }

    /// Whether the two have addresses in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

impl std::str::FromStr for Prefix {
    type Err = &'static str;

    /// As in `10.0.0.0/26`; without a length it is one address.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const ALLOWED: &str = "an IPv4 address, with / and 0 to 32 behind it";
        let (first, bits) = text.split_once('/').unwrap_or((text, "32"));
        let bits = bits.parse().ok().filter(|bits| *bits <= 32).ok_or(ALLOWED)?;
        Ok(Self { first: first.parse().map_err(|_| ALLOWED)?, bits })
    }
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
    fn a_machine_has_the_smallest_prefix() {
        for (shape, machine, expected) in [
            ("1x1x1x1x1x1", 0, "10.0.0.0/30"),
            ("2x1x1x1x1x1", 0, "10.0.0.0/15"),
            ("unit", 0, "10.0.0.0/26"),
            ("unit", 3, "10.96.0.0/26"),
            ("1x1x4x2x3x2", 7, "10.224.0.0/24"),
        ] {
            let shape: Shape = shape.parse().unwrap();
            let prefix = Prefix::of_machine(machine, &shape);
            assert_eq!(prefix.to_string(), expected);
            for node in shape.iter() {
                assert!(prefix.contains(node_address(machine, node)), "{node}");
                assert!(prefix.contains(other_side(machine, node)), "{node}");
            }
        }
        assert_eq!(other_side(0, Coords::default()), Ipv4Addr::new(10, 0, 0, 2));
    }

    #[test]
    fn prefixes_overlap() {
        let prefix = |text: &str| text.parse::<Prefix>().unwrap();
        let ours = prefix("10.0.0.0/26");
        for other in ["10.0.0.0/8", "10.0.0.0/26", "10.0.0.63", "0.0.0.0/0"] {
            assert!(ours.overlaps(prefix(other)) && prefix(other).overlaps(ours), "{other}");
        }
        for other in ["10.0.0.64/26", "10.32.0.0/11", "192.168.0.0/16"] {
            assert!(!ours.overlaps(prefix(other)), "{other}");
        }
        for bad in ["", "10.0.0/8", "10.0.0.0/33", "default"] {
            assert!(bad.parse::<Prefix>().is_err(), "{bad}");
        }
    }
}
