//! Checks that a frame claims no address of another node.
//!
//! The link has checked that a frame comes from the node whose hardware address it has. IP
//! addresses follow from coordinates, too, so frames that claim another node's IP address can be
//! dropped. The host's kernel, for example, would believe any ARP reply.

use std::net::Ipv4Addr;

use smoltcp::wire::{ArpPacket, EthernetFrame, EthernetProtocol, Ipv4Packet, Ipv6Packet};
use tofu_abi::Coords;
use tofu_ipotofu::addr;

/// ICMPv6, and its neighbour advertisement (RFC 4861).
const ICMPV6: u8 = 58;
const ADVERTISEMENT: u8 = 136;

/// Returns true if the frame's claims about addresses of machine `machine` are true. Addresses
/// outside of the machine and incomplete headers are not checked.
pub(crate) fn is_honest(frame: &[u8], machine: u8) -> bool {
    let Ok(ethernet) = EthernetFrame::new_checked(frame) else { return true };
    let from = ethernet.src_addr().0;
    let fits = |owner: Option<Coords>| owner.is_none_or(|node| addr::mac(node) == from);
    let v6 = |address: [u8; 16]| fits(addr::node_of_ipv6(machine, address));
    match ethernet.ethertype() {
        EthernetProtocol::Arp => ArpPacket::new_checked(ethernet.payload()).is_ok_and(|arp| {
            let sender: Option<[u8; 4]> = arp.source_protocol_addr().try_into().ok();
            let owner = sender.and_then(|sender| owner_of_ipv4(sender.into(), machine));
            fits(owner) && (owner.is_none() || arp.source_hardware_addr() == from)
        }),
        EthernetProtocol::Ipv4 => Ipv4Packet::new_checked(ethernet.payload())
            .map_or(true, |packet| fits(owner_of_ipv4(packet.src_addr(), machine))),
        EthernetProtocol::Ipv6 => {
            Ipv6Packet::new_checked(ethernet.payload()).map_or(true, |packet| {
                let message = packet.payload();
                let target =
                    match (u8::from(packet.next_header()), message.first(), message.get(8..24)) {
                        (ICMPV6, Some(&ADVERTISEMENT), Some(target)) => target.try_into().ok(),
                        _ => None,
                    };
                v6(packet.src_addr().octets()) && target.is_none_or(v6)
            })
        }
        _ => true,
    }
}

/// The node that an address belongs to, also that of a gateway's other side.
fn owner_of_ipv4(address: Ipv4Addr, machine: u8) -> Option<Coords> {
    let bits = u32::from(address);
    let [own, other] = [bits, bits ^ 3].map(|bits| addr::node_of_ipv4(bits.to_be_bytes()));
    own.or(other).filter(|(of, _)| *of == machine).map(|(_, node)| node)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Coords = Coords::new(0, 0, 0, 0, 0, 1);
    const TWO: Coords = Coords::new(0, 0, 0, 0, 1, 0);

    fn frame(from: Coords, kind: u16, body: &[u8]) -> Vec<u8> {
        let kind = kind.to_be_bytes();
        [&addr::BROADCAST[..], &addr::mac(from), &kind, body].concat()
    }

    fn arp(from: Coords, hardware: Coords, protocol: [u8; 4]) -> bool {
        let start = [0, 1, 8, 0, 6, 4, 0, 2];
        let body = [&start[..], &addr::mac(hardware), &protocol, &[0; 10]].concat();
        is_honest(&frame(from, 0x0806, &body), 0)
    }

    #[test]
    fn arp_for_other_nodes_is_dropped() {
        let (one, two) = (addr::ipv4(0, ONE), addr::ipv4(0, TWO));
        assert!(arp(ONE, ONE, one));
        assert!(!arp(ONE, ONE, two));
        assert!(!arp(ONE, TWO, two));
        assert!(!arp(ONE, TWO, one));
        // The address of a node's other side belongs to the node, too.
        assert!(arp(ONE, ONE, [10, 0, 0, 6]));
        assert!(!arp(TWO, TWO, [10, 0, 0, 6]));
        // Addresses of no node, and of another machine.
        assert!(arp(ONE, TWO, [192, 0, 2, 1]));
        assert!(arp(ONE, TWO, addr::ipv4(1, TWO)));
    }

    #[test]
    fn foreign_source_addresses_are_dropped() {
        let v4 = |from, source: [u8; 4]| {
            let start = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0];
            is_honest(&frame(from, 0x0800, &[&start[..], &source, &[10, 0, 0, 1]].concat()), 0)
        };
        assert!(v4(ONE, addr::ipv4(0, ONE)) && v4(ONE, [192, 0, 2, 1]));
        assert!(!v4(ONE, addr::ipv4(0, TWO)));
        let v6 = |from, source: [u8; 16], target: [u8; 16]| {
            let start = [0x60, 0, 0, 0, 0, 24, ICMPV6, 255];
            let icmp = [ADVERTISEMENT, 0, 0, 0, 0, 0, 0, 0];
            let body = [&start[..], &source, &[0xff; 16], &icmp, &target].concat();
            is_honest(&frame(from, 0x86dd, &body), 0)
        };
        let (one, two) = (addr::ipv6(0, ONE), addr::ipv6(0, TWO));
        assert!(v6(ONE, one, one) && v6(ONE, addr::link_local(ONE), one));
        assert!(!v6(ONE, two, one) && !v6(ONE, one, two) && !v6(ONE, one, addr::link_local(TWO)));
    }

    #[test]
    fn truncated_headers_are_passed() {
        for kind in [0x0800, 0x86dd, 0x88b5] {
            assert!(is_honest(&frame(ONE, kind, &[0x45]), 0));
        }
        assert!(is_honest(&[0; 5], 0));
        // An incomplete ARP packet is useless, however.
        assert!(!is_honest(&frame(ONE, 0x0806, &[0, 1, 8, 0, 6, 4, 0, 2, 2, 0]), 0));
    }
}
