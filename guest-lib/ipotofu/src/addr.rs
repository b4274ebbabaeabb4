//! Hardware and IP addresses, which follow from a node's coordinates.

use tofu_abi::Coords;
use tofu_abi::topology::Shape;

/// A hardware address.
pub type Mac = [u8; 6];

/// The broadcast address.
pub const BROADCAST: Mac = [0xff; 6];

/// Largest number of a machine. Several machines in one network have different numbers.
pub const MAX_MACHINE: u8 = 7;

/// First byte of all IPv4 addresses.
const NET10: u8 = 10;
/// Prefix length of the IPv6 network of a machine.
pub const IPV6_PREFIX: u8 = 64;
/// The interface of the node itself, in the last two bits of its IPv4 address. It is never 0 or
/// 3, so no address ends in 0 or 255.
const NODE_INTERFACE: u8 = 1;

/// First 48 bits of all IPv6 addresses: fd, and "Tofu" and a zero as the global id.
const ULA: [u8; 6] = [0xfd, b'T', b'o', b'f', b'u', 0];

/// Number of values of [`pack`].
const PACKED_MAX: u32 = 1 << 19;

const fn abc(node: Coords) -> u8 {
    (node.a & 1) << 3 | (node.b & 3) << 1 | (node.c & 1)
}

const fn from_xyz_abc(x: u8, y: u8, z: u8, abc: u8) -> Option<Coords> {
    let node = Coords::new(x, y, z, abc >> 3, abc >> 1 & 3, abc & 1);
    if Shape::LARGEST.contains(node) { Some(node) } else { None }
}

/// Coordinates as a number of 19 bits: X in bits 18:14, Y 13:9, Z 8:4, A 3, B 2:1, C 0.
pub const fn pack(node: Coords) -> u32 {
    (node.x as u32 & 31) << 14
        | (node.y as u32 & 31) << 9
        | (node.z as u32 & 31) << 4
        | abc(node) as u32
}

/// Inverse of [`pack`].
pub const fn unpack(number: u32) -> Option<Coords> {
    if number >= PACKED_MAX {
        return None;
    }
    from_xyz_abc(part_of(number, 14), part_of(number, 9), part_of(number, 4), (number & 15) as u8)
}

const fn part_of(number: u32, shift: u32) -> u8 {
    (number >> shift & 31) as u8
}

/// The hardware address of a node: 02:00, X, Y, Z, and A, B, C in one byte.
pub const fn mac(node: Coords) -> Mac {
    [0x02, 0x00, node.x, node.y, node.z, abc(node)]
}

/// The node with this hardware address.
pub const fn node_of_mac(mac: Mac) -> Option<Coords> {
    match mac {
        [0x02, 0x00, x, y, z, abc] => from_xyz_abc(x, y, z, abc),
        _ => None,
    }
}

/// Returns true if a hardware address is a group address, such as the broadcast address.
pub(crate) const fn is_multicast(mac: Mac) -> bool {
    mac[0] & 1 != 0
}

/// The IPv4 address of a node in machine `machine` (0 to 7), in the network 10.0.0.0/8. After the
/// first byte it has 3 bits of machine, 5 of X, of Y and of Z, 4 of A, B, C, and 01.
pub const fn ipv4(machine: u8, node: Coords) -> [u8; 4] {
    let host = (machine as u32 & 7) << 21 | pack(node) << 2 | NODE_INTERFACE as u32;
    let [_, a, b, c] = host.to_be_bytes();
    [NET10, a, b, c]
}

/// Prefix length of the smallest IPv4 network with all nodes of a machine.
pub fn ipv4_prefix(shape: &Shape, machine: u8) -> u8 {
    let first = u32::from_be_bytes(ipv4(machine, Coords::default()));
    let last = Coords::from_array(shape.lengths().map(|len| len - 1));
    // The addresses of all interfaces of the last node, not only of the node itself.
    let last = u32::from_be_bytes(ipv4(machine, last)) | 3;
    ((first & !3) ^ last).leading_zeros() as u8
}

/// The machine and the node with this IPv4 address.
pub const fn node_of_ipv4(addr: [u8; 4]) -> Option<(u8, Coords)> {
    let host = u32::from_be_bytes([0, addr[1], addr[2], addr[3]]);
    if addr[0] != NET10 || host & 3 != NODE_INTERFACE as u32 {
        return None;
    }
    match unpack(host >> 2 & (PACKED_MAX - 1)) {
        Some(node) => Some(((host >> 21) as u8, node)),
        None => None,
    }
}

/// The last eight bytes of a node's IPv6 addresses: its hardware address as a modified EUI-64
/// (RFC 4291, appendix A).
const fn interface_id(node: Coords) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac(node);
    [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}

const fn with_prefix(prefix: [u8; 8], node: Coords) -> [u8; 16] {
    let mut addr = [0; 16];
    let id = interface_id(node);
    let mut i = 0;
    while i < 8 {
        addr[i] = prefix[i];
        addr[8 + i] = id[i];
        i += 1;
    }
    addr
}

const LINK_LOCAL: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];

/// The unique local IPv6 address (RFC 4193) of a node: fd54:6f66:7500:M::/64 for machine M.
pub const fn ipv6(machine: u8, node: Coords) -> [u8; 16] {
    let [a, b, c, d, e, f] = ULA;
    with_prefix([a, b, c, d, e, f, 0, machine], node)
}

/// The link-local IPv6 address of a node, which systems choose themselves by RFC 4862.
pub const fn link_local(node: Coords) -> [u8; 16] {
    with_prefix(LINK_LOCAL, node)
}

/// The node of machine `machine` with this unique local or link-local IPv6 address.
pub fn node_of_ipv6(machine: u8, addr: [u8; 16]) -> Option<Coords> {
    let [_, _, _, _, _, _, _, _, a, b, c, 0xff, 0xfe, d, e, f] = addr else { return None };
    let node = node_of_mac([a ^ 2, b, c, d, e, f])?;
    (addr == ipv6(machine, node) || addr == link_local(node)).then_some(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_manual() {
        let zero = Coords::default();
        assert_eq!(mac(zero), [2, 0, 0, 0, 0, 0]);
        assert_eq!(ipv4(0, zero), [10, 0, 0, 1]);
        assert_eq!(ipv4(0, Coords::new(0, 0, 0, 1, 2, 1)), [10, 0, 0, 53]);
        let far = Coords::new(31, 30, 29, 1, 2, 0);
        assert_eq!(mac(far), [2, 0, 31, 30, 29, 12]);
        assert_eq!(ipv4(7, far), [10, 255, 247, 113]);
        assert_eq!(
            ipv6(1, far),
            [0xfd, 0x54, 0x6f, 0x66, 0x75, 0, 0, 1, 0, 0, 31, 0xff, 0xfe, 30, 29, 12]
        );
    }

    #[test]
    fn nodes_are_found_by_their_addresses() {
        for number in 0..PACKED_MAX {
            let Some(node) = unpack(number) else {
                assert_eq!(number >> 1 & 3, 3, "only B has values that it does not take");
                continue;
            };
            assert_eq!(pack(node), number);
            assert_eq!(node_of_mac(mac(node)), Some(node));
            assert_eq!(node_of_ipv4(ipv4(5, node)), Some((5, node)));
            assert_eq!(node_of_ipv6(3, ipv6(3, node)), Some(node));
            assert_eq!(node_of_ipv6(3, link_local(node)), Some(node));
            assert_eq!(node_of_ipv6(2, ipv6(3, node)), None);
        }
        assert_eq!(unpack(PACKED_MAX), None);
    }

    #[test]
    fn other_addresses_are_nobodys() {
        assert_eq!(node_of_ipv4([10, 0, 0, 0]), None);
        assert_eq!(node_of_ipv4([10, 255, 255, 255]), None);
        assert_eq!(node_of_ipv4([10, 0, 0, 2]), None);
        assert_eq!(node_of_ipv4([11, 0, 0, 1]), None);
        assert_eq!(node_of_ipv4([10, 0, 0, 0b0001_1001]), None, "B = 3");
        assert_eq!(node_of_mac([2, 0, 32, 0, 0, 0]), None);
        assert_eq!(node_of_mac([2, 1, 0, 0, 0, 0]), None);
        assert_eq!(node_of_mac(BROADCAST), None);
        assert_eq!(node_of_ipv6(0, [0; 16]), None);
    }
}
