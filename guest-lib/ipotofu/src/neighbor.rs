//! Address queries (ARP, RFC 826; neighbour discovery, RFC 4861). They are answered locally,
//! because the answer follows from the requested address.

use tofu_abi::Coords;
use tofu_abi::topology::Shape;

use crate::addr::{self, Mac};
use crate::wire::ETHERNET_HEADER;

const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
/// Hardware type Ethernet, protocol IPv4, lengths 6 and 4.
const ARP_ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_REQUEST: [u8; 2] = [0, 1];
const ARP_REPLY: [u8; 2] = [0, 2];
const ARP_LEN: usize = 28;
const IPV6_HEADER: usize = 40;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// ICMPv6 header, flags, target.
const ND_LEN: usize = 24;
const ALL_NODES: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const ALL_NODES_MAC: Mac = [0x33, 0x33, 0, 0, 0, 1];
/// Flags: the advertisement answers a solicitation, and overrides an existing entry.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// Size of the longest reply, an advertisement, in bytes.
const REPLY_MAX: usize = ETHERNET_HEADER + IPV6_HEADER + ND_LEN + 8;

/// A frame that answers a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    bytes: [u8; REPLY_MAX],
    len: usize,
}

impl Reply {
    const EMPTY: Self = Self { bytes: [0; REPLY_MAX], len: 0 };

    /// The frame.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn push(&mut self, part: &[u8]) {
        let end = self.len + part.len();
        if let Some(place) = self.bytes.get_mut(self.len..end) {
            place.copy_from_slice(part);
            self.len = end;
        }
    }
}

/// The treatment of a multicast frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// This is the answer. The query need not be sent.
    Reply(Reply),
    /// No other node can have the requested address, so the query is not sent.
    Silence,
    /// It is for other nodes.
    None,
}

/// The destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Another node of the machine.
    Node(Coords),
    /// A group of nodes, or all.
    Group,
    /// No node has this address, or only the sender.
    Unknown(Mac),
    /// The frame has no Ethernet header.
    Runt,
}

impl Destination {
    /// The node, if the frame is for one.
    pub const fn node(self) -> Option<Coords> {
        match self {
            Self::Node(node) => Some(node),
            _ => None,
        }
    }
}

/// A node of a machine.
#[derive(Clone, Copy, Debug)]
pub struct LocalNode {
    /// The machine.
    pub shape: Shape,
    /// Its number, 0 to 7.
    pub machine: u8,
    /// The node.
    pub me: Coords,
}

impl LocalNode {
    /// The other node of the machine that has this hardware address.
    pub fn other(&self, mac: Mac) -> Option<Coords> {
        let is_other = |node: &Coords| *node != self.me && self.shape.contains(*node);
        addr::node_of_mac(mac).filter(is_other)
    }

    /// The destination of a frame of `len` bytes. `read` reads its first bytes, and returns false
    /// if it cannot.
    pub fn destination(&self, len: usize, read: impl FnOnce(&mut Mac) -> bool) -> Destination {
        let mut mac = [0; 6];
        if len < ETHERNET_HEADER || !read(&mut mac) {
            return Destination::Runt;
        }
        match self.other(mac) {
            _ if addr::is_multicast(mac) => Destination::Group,
            Some(node) => Destination::Node(node),
            None => Destination::Unknown(mac),
        }
    }

    /// Answers a frame of this node if it is an address query.
    pub fn answer(&self, frame: &[u8]) -> Answer {
        let found = match frame.get(12..ETHERNET_HEADER) {
            Some(kind) if kind == ETHERTYPE_ARP => self.arp(frame),
            Some(kind) if kind == ETHERTYPE_IPV6 => self.solicitation(frame),
            _ => None,
        };
        found.unwrap_or(Answer::None)
    }

    fn owner(&self, node: Option<Coords>) -> Option<Result<Coords, ()>> {
        let node = node.filter(|node| self.shape.contains(*node))?;
        Some(if node == self.me { Err(()) } else { Ok(node) })
    }

    fn arp(&self, frame: &[u8]) -> Option<Answer> {
        let arp: &[u8; ARP_LEN] = frame.get(ETHERNET_HEADER..)?.first_chunk()?;
        if arp[..6] != ARP_ETHERNET_IPV4 || arp[6..8] != ARP_REQUEST {
            return None;
        }
        let target: [u8; 4] = arp[24..].try_into().ok()?;
        let (machine, node) = addr::node_of_ipv4(target)?;
        let Ok(node) = self.owner(Some(node).filter(|_| machine == self.machine))? else {
            return Some(Answer::Silence);
        };
        let asker = arp[8..18].try_into().ok()?;
        let mut reply = arp_reply(node, target, asker);
        reply.bytes[..6].copy_from_slice(&frame[6..12]);
        Some(Answer::Reply(reply))
    }

    fn solicitation(&self, frame: &[u8]) -> Option<Answer> {
        let packet = frame.get(ETHERNET_HEADER..)?;
        let (header, icmp) = packet.split_first_chunk::<IPV6_HEADER>()?;
        let [_, _, _, _, len_high, len_low, next, hops, ..] = *header;
        let icmp = icmp.get(..usize::from(u16::from_be_bytes([len_high, len_low])))?;
        if next != ICMPV6 || hops != 255 || icmp.len() < ND_LEN || icmp[..2] != [SOLICITATION, 0] {
            return None;
        }
        let source: [u8; 16] = header[8..24].try_into().ok()?;
        let destination: [u8; 16] = header[24..40].try_into().ok()?;
        if checksum(source, destination, icmp) != 0 {
            return None;
        }
        let target: [u8; 16] = icmp[8..ND_LEN].try_into().ok()?;
        let Ok(node) = self.owner(addr::node_of_ipv6(self.machine, target))? else {
            return Some(Answer::Silence);
        };
        // A query without a source address checks whether this address is in use.
        let probe = source == [0; 16];
        let (to, to_mac, flags) = if probe {
            (ALL_NODES, ALL_NODES_MAC, OVERRIDE)
        } else {
            (source, frame[6..12].try_into().ok()?, OVERRIDE | SOLICITED)
        };
        Some(Answer::Reply(advertisement(node, target, (to, to_mac), flags)))
    }

    /// The answers that this node would get to queries for the addresses of `node`.
    pub fn introduction(&self, node: Coords) -> [Reply; 2] {
        let (mac, machine) = (addr::mac(self.me), self.machine);
        let mut asker = [0; 10];
        asker[..6].copy_from_slice(&mac);
        asker[6..].copy_from_slice(&addr::ipv4(machine, self.me));
        let to = (addr::ipv6(machine, self.me), mac);
        [
            arp_reply(node, addr::ipv4(machine, node), asker),
            advertisement(node, addr::ipv6(machine, node), to, OVERRIDE | SOLICITED),
        ]
    }
}

/// An ARP reply for `node`, which has the address `target`, to an asker with this hardware and
/// protocol address.
fn arp_reply(node: Coords, target: [u8; 4], asker: [u8; 10]) -> Reply {
    let mac = addr::mac(node);
    let mut reply = Reply::EMPTY;
    reply.push(&asker[..6]);
    reply.push(&mac);
    reply.push(&ETHERTYPE_ARP);
    reply.push(&ARP_ETHERNET_IPV4);
    reply.push(&ARP_REPLY);
    reply.push(&mac);
    reply.push(&target);
    reply.push(&asker);
    reply
}

/// A neighbour advertisement for `node`, which has the address `target`.
fn advertisement(
    node: Coords,
    target: [u8; 16],
    (to, to_mac): ([u8; 16], Mac),
    flags: u8,
) -> Reply {
    let mac = addr::mac(node);
    let mut reply = Reply::EMPTY;
    reply.push(&to_mac);
    reply.push(&mac);
    reply.push(&ETHERTYPE_IPV6);
    reply.push(&[0x60, 0, 0, 0, 0, ND_LEN as u8 + 8, ICMPV6, 255]);
    reply.push(&target);
    reply.push(&to);
    let start = reply.len;
    reply.push(&[ADVERTISEMENT, 0, 0, 0, flags, 0, 0, 0]);
    reply.push(&target);
    // The target's hardware address: option 2, 8 bytes long.
    reply.push(&[2, 1]);
    reply.push(&mac);
    let sum = checksum(target, to, &reply.as_bytes()[start..]);
    reply.bytes[start + 2..start + 4].copy_from_slice(&sum.to_be_bytes());
    reply
}

/// The ICMPv6 checksum (RFC 4443). For a message with a zero checksum field it is the value of that
/// field; for a message with a correct checksum it is 0.
fn checksum(source: [u8; 16], destination: [u8; 16], message: &[u8]) -> u16 {
    let length = (message.len() as u32).to_be_bytes();
    let pseudo = [0, 0, 0, ICMPV6];
    let mut sum = 0u32;
    for part in [&source[..], &destination, &length, &pseudo, message] {
        for pair in part.chunks(2) {
            let low = pair.get(1).copied().unwrap_or(0);
            sum += u32::from(u16::from_be_bytes([pair[0], low]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
