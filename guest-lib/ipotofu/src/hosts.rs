//! Host names of nodes, as in a hosts file.

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};

use tofu_abi::Coords;
use tofu_abi::topology::Shape;

use crate::addr;

/// A node's names and addresses. As text, it is two lines of a hosts file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// The node.
    pub node: Coords,
    /// The node's number, with X varying slowest and C fastest.
    pub rank: u32,
    /// Its IPv4 address.
    pub ipv4: Ipv4Addr,
    /// Its unique local IPv6 address.
    pub ipv6: Ipv6Addr,
}

impl Host {
    /// Creates the entry of node `node`, number `rank` of machine `machine`.
    pub fn new(machine: u8, node: Coords, rank: u32) -> Self {
        let (ipv4, ipv6) = (addr::ipv4(machine, node).into(), addr::ipv6(machine, node).into());
        Self { node, rank, ipv4, ipv6 }
    }

    /// The host name: t-x-y-z-a-b-c.
    pub fn name(&self) -> impl fmt::Display + use<> {
        Name(self.node)
    }

    /// The short name, from the number: n0, n1 and so on.
    pub fn alias(&self) -> impl fmt::Display + use<> {
        Alias(self.rank)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, alias) = (self.name(), self.alias());
        writeln!(f, "{}\t{name} {alias}", self.ipv4)?;
        writeln!(f, "{}\t{name} {alias}", self.ipv6)
    }
}

struct Name(Coords);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t-{}", self.0.separated('-'))
    }
}

struct Alias(u32);

impl fmt::Display for Alias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// All nodes of machine `machine`, in order.
pub fn all(shape: Shape, machine: u8) -> impl Iterator<Item = Host> {
    (0..).zip(shape.iter()).map(move |(rank, node)| Host::new(machine, node, rank))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;
    use std::vec::Vec;

    #[test]
    fn lines_are_those_of_a_hosts_file() {
        let shape: Shape = "2x1x1x1x1x2".parse().unwrap();
        let hosts: Vec<_> = all(shape, 1).collect();
        assert_eq!(hosts.len(), 4);
        assert_eq!(
            hosts[3].to_string(),
            "10.33.0.5\tt-1-0-0-0-0-1 n3\nfd54:6f66:7500:1:0:1ff:fe00:1\tt-1-0-0-0-0-1 n3\n"
        );
    }
}
