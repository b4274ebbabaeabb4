//! Frames over networks that lose, repeat, reorder and damage packets, and invalid packets.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tofu_abi::topology::{NodeId, Shape};
use tofu_abi::{Coords, TniId};
use tofu_ipotofu::testing::TestQueue;
use tofu_ipotofu::wire::{
    Capabilities, FRAGMENT_MAX, HEADER_SIZE, Packet, PacketKind, Repr, Sum, sum,
};
use tofu_ipotofu::{Config, Core, Event, SendError, addr, tree};

/// A packet in flight: its sender, its receiver, header and body.
#[derive(Clone, Debug)]
struct Flying {
    from: Coords,
    to: Coords,
    bytes: Vec<u8>,
}

fn shape(text: &str) -> Shape {
    text.parse().unwrap()
}

fn config(shape: Shape, mtu: u16) -> Config {
    Config { mtu, ..Config::new(shape) }
}

fn frame(from: Coords, to: addr::Mac, len: usize, seed: u8) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend_from_slice(&to);
    frame.extend_from_slice(&addr::mac(from));
    frame.extend_from_slice(&[0x88, 0xb5]);
    frame.extend((0..len - 14).map(|i| (i as u8).wrapping_mul(7) ^ (i >> 8) as u8 ^ seed));
    frame
}

fn core_of(config: Config, me: Coords) -> Core {
    Core::new(config, me, TniId::ALL[0], 0)
}

/// The packets that a node has posted. No buffer may be missing.
fn flying(from: Coords, queue: TestQueue) -> Vec<Flying> {
    assert_eq!(queue.missing(), 0);
    let posted = queue.posted.into_iter();
    posted.map(|one| Flying { from, to: one.tag().to, bytes: one.payload }).collect()
}

fn send(core: &mut Core, frame: &[u8]) -> Result<Vec<Flying>, SendError> {
    let mut queue = TestQueue::default();
    core.send(&mut queue, frame, 0)?;
    Ok(flying(core.me(), queue))
}

/// Delivers a packet. Returns the resulting frame, and the packets that are relayed.
fn arrive(core: &mut Core, packet: &Flying) -> (Option<Vec<u8>>, Vec<Flying>) {
    let (header, body) = packet.bytes.split_at(HEADER_SIZE.min(packet.bytes.len()));
    let mut queue = TestQueue::default();
    let event = core.receive(&mut queue, packet.from, (header, body), 0);
    let frame = match event {
        Event::Whole(metadata, part) if metadata.is_empty() => Some(body[part].to_vec()),
        Event::Assembled(metadata, frame) if metadata.is_empty() => Some(frame),
        Event::Whole(..) | Event::Assembled(..) | Event::Acknowledged(..) => {
            panic!("that was not asked for")
        }
        Event::Nothing => None,
    };
    (frame, flying(core.me(), queue))
}

/// All nodes of a machine.
struct Net {
    nodes: BTreeMap<Coords, Core>,
}

impl Net {
    fn new(shape: Shape, mtu: u16) -> Self {
        let all = shape.iter();
        Self { nodes: all.map(|node| (node, core_of(config(shape, mtu), node))).collect() }
    }

    /// Delivers all packets. Returns the frames that each node receives.
    fn run(&mut self, mut flying: Vec<Flying>) -> BTreeMap<Coords, Vec<Vec<u8>>> {
        let mut received = BTreeMap::<_, Vec<_>>::new();
        while let Some(packet) = flying.pop() {
            let node = self.nodes.get_mut(&packet.to).expect("a node of the machine");
            let (frame, more) = arrive(node, &packet);
            received.entry(packet.to).or_default().extend(frame);
            flying.extend(more);
        }
        received
    }
}

fn listens(more_queues: u8) -> Capabilities {
    Capabilities { more_queues, ..Capabilities::default() }
}

#[test]
fn further_tnis_are_announced_only() {
    let repr = Repr {
        kind: PacketKind::Unicast,
        takes_offloaded: true,
        acknowledge: false,
        total: 100,
        offset: 0,
        length: 100,
        id: 7,
        sum: 0,
        origin: Coords::new(1, 2, 3, 1, 2, 1),
    };
    for count in 0..=3 {
        let mut header = repr.emit();
        header[1] |= listens(count).flags();
        assert_eq!(Capabilities::of(&header).more_queues, count);
        let bytes = [&header[..], &[9; 100]].concat();
        let packet = Packet::new_checked(&bytes[..]).unwrap();
        assert_eq!(Repr::parse(&packet, packet.body().len()), Ok(repr));
    }
    assert_eq!(listens(9).flags(), listens(3).flags());
    assert_eq!(Capabilities::of(&[0x10]).more_queues, 0, "no header");
}

#[test]
fn header_matches_the_manual() {
    let repr = Repr {
        kind: PacketKind::Broadcast,
        takes_offloaded: false,
        acknowledge: false,
        total: 3000,
        offset: FRAGMENT_MAX as u16,
        length: 3000 - FRAGMENT_MAX as u16,
        id: 0x0102_0304,
        sum: 0x0506_0708,
        origin: Coords::new(1, 2, 3, 1, 2, 1),
    };
    let bytes = repr.emit();
    assert_eq!(FRAGMENT_MAX, 1952);
    assert_eq!(
        bytes,
        [0x11, 0, 0x0b, 0xb8, 0x07, 0xa0, 0x04, 0x18, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x44, 0x3d]
    );
    let packet = Packet::new_checked(&bytes).unwrap();
    assert_eq!(Repr::parse(&packet, 1048), Ok(repr));
    assert!(Repr::parse(&packet, 1047).is_err());
}

#[test]
fn sums_ignore_the_order_of_words() {
    assert_eq!(sum(&[]), u32::MAX);
    assert_eq!(sum(&[0; 7]), u32::MAX);
    assert_eq!(sum(&[1, 0, 0, 0, 2]), 3);
    assert_eq!(sum(&[0xff, 0xff, 0xff, 0xff, 5]), 5);
}

/// The sum, computed slowly byte by byte.
fn by_bytes(frame: &[u8]) -> u32 {
    let sum = frame.iter().enumerate().fold(0u64, |sum, (at, byte)| {
        (sum + (u64::from(*byte) << (8 * (at % 4)))) % u64::from(u32::MAX)
    });
    if sum == 0 { u32::MAX } else { sum as u32 }
}

proptest! {
    #[test]
    fn sums_of_parts_of_any_length_make_the_sum(
        parts in prop::collection::vec(prop::collection::vec(any_byte(), 0..40), 0..9),
        front in prop::collection::vec(any::<[u8; 4]>(), 0..5),
    ) {
        let front = front.concat();
        let mut summed = Sum::default();
        summed.add(&front);
        let mut at = 0;
        for part in &parts {
            summed.add_at(at, part);
            at += part.len();
        }
        let whole = [front, parts.concat()].concat();
        prop_assert_eq!(summed.finish(), sum(&whole));
        prop_assert_eq!(summed.finish(), by_bytes(&whole));
    }
}

/// Bytes that often cause a carry.
fn any_byte() -> impl Strategy<Value = u8> {
    prop_oneof![Just(0), Just(0xff), any::<u8>()]
}

#[test]
fn neighbour_requests_are_answered_locally() {
    let shape = shape("1x1x1x2x3x2");
    let (me, other) = (Coords::new(0, 0, 0, 0, 1, 0), Coords::new(0, 0, 0, 1, 2, 1));
    let mut core = core_of(config(shape, 1500), me);
    let arp = |target: [u8; 4]| {
        let mut frame = Vec::from(addr::BROADCAST);
        frame.extend_from_slice(&addr::mac(me));
        frame.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        frame.extend_from_slice(&addr::mac(me));
        frame.extend_from_slice(&addr::ipv4(0, me));
        frame.extend_from_slice(&[0; 6]);
        frame.extend_from_slice(&target);
        frame
    };
    assert!(send(&mut core, &arp(addr::ipv4(0, other))).unwrap().is_empty());
    let reply = core.take_reply().unwrap();
    assert_eq!(reply[..6], addr::mac(me));
    assert_eq!(reply[6..14], [2, 0, 0, 0, 0, 13, 8, 6]);
    assert_eq!(reply[20..22], [0, 2]);
    assert_eq!(reply[22..28], addr::mac(other));
    assert_eq!(reply[28..32], addr::ipv4(0, other));
    assert_eq!(reply[32..38], addr::mac(me));
    assert_eq!(reply[38..42], addr::ipv4(0, me));
    assert_eq!(core.take_reply(), None);
    // A query for the node's own address, as before its first use: no other node has it.
    assert!(send(&mut core, &arp(addr::ipv4(0, me))).unwrap().is_empty());
    assert_eq!(core.take_reply(), None);
    // Addresses that belong to no node of this machine.
    let absent = addr::ipv4(0, Coords::new(1, 0, 0, 0, 0, 0));
    for target in [[192, 168, 0, 1], addr::ipv4(1, other), absent, [10, 0, 0, 2]] {
        assert_eq!(send(&mut core, &arp(target)).unwrap().len(), 4, "{target:?}");
    }
    assert_eq!(core.counters().answered, 1);
    // The same answers without a query.
    assert!(core.introduce(other));
    assert_eq!(core.take_reply(), Some(reply));
    assert_eq!(core.take_reply().unwrap()[..12], [addr::mac(me), addr::mac(other)].concat());
    // Many queries do not fill the memory.
    for _ in 0..10_000 {
        send(&mut core, &arp(addr::ipv4(0, other))).unwrap();
    }
    let replies = std::iter::from_fn(|| core.take_reply()).count();
    assert!((1..=64).contains(&replies), "{replies}");
}

#[test]
fn neighbour_solicitations_are_answered() {
    let shape = shape("2x1x1x2x3x2");
    let (me, other) = (Coords::default(), Coords::new(1, 0, 0, 1, 0, 0));
    let mut core = core_of(config(shape, 1500), me);
    let solicitation = |source: [u8; 16], target: [u8; 16]| {
        let mut multicast = [0; 16];
        multicast[..13].copy_from_slice(&[0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff]);
        multicast[13..].copy_from_slice(&target[13..]);
        let mut icmp = vec![135, 0, 0, 0, 0, 0, 0, 0];
        icmp.extend_from_slice(&target);
        let pseudo = [&source[..], &multicast, &[0, 0, 0, 24, 0, 0, 0, 58], &icmp].concat();
        let words = pseudo.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
        let total = words.sum::<u32>();
        let folded = (total & 0xffff) + (total >> 16);
        let check = !(((folded & 0xffff) + (folded >> 16)) as u16);
        icmp[2..4].copy_from_slice(&check.to_be_bytes());
        let mut frame = vec![0x33, 0x33, 0xff, target[13], target[14], target[15]];
        frame.extend_from_slice(&addr::mac(me));
        frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 58, 255]);
        frame.extend_from_slice(&source);
        frame.extend_from_slice(&multicast);
        frame.extend_from_slice(&icmp);
        frame
    };
    for target in [addr::ipv6(0, other), addr::link_local(other)] {
        let question = solicitation(addr::link_local(me), target);
        assert!(send(&mut core, &question).unwrap().is_empty());
        let reply = core.take_reply().unwrap();
        assert_eq!(reply[..6], addr::mac(me));
        assert_eq!(reply[6..12], addr::mac(other));
        assert_eq!(reply[22..38], target);
        assert_eq!(reply[38..54], addr::link_local(me));
        assert_eq!((reply[54], reply[58]), (136, 0x60));
        assert_eq!(reply[62..78], target);
        assert_eq!(reply[78..86], [2, 1, 2, 0, 1, 0, 0, 8]);
        // With the checksum in its place, the words add up to all ones.
        let pseudo = [&reply[22..54], &[0, 0, 0, 32, 0, 0, 0, 58], &reply[54..]].concat();
        let words = pseudo.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
        let total = words.sum::<u32>();
        assert_eq!((total & 0xffff) + (total >> 16), 0xffff);
        // A node without an address is answered by multicast, without the flag for solicited
        // answers.
        assert!(send(&mut core, &solicitation([0; 16], target)).unwrap().is_empty());
        let reply = core.take_reply().unwrap();
        assert_eq!((reply[..6].to_vec(), reply[58]), (vec![0x33, 0x33, 0, 0, 0, 1], 0x20));
        // A query with a wrong checksum is not answered.
        let mut wrong = question.clone();
        wrong[56] ^= 1;
        assert!(!send(&mut core, &wrong).unwrap().is_empty());
    }
    // The node's own address.
    assert!(send(&mut core, &solicitation([0; 16], addr::ipv6(0, me))).unwrap().is_empty());
    assert_eq!(core.take_reply(), None);
}

#[test]
fn frames_that_cannot_go_are_refused() {
    let shape = shape("1x1x1x2x1x1");
    let (me, other) = (Coords::default(), Coords::new(0, 0, 0, 1, 0, 0));
    let mut core = core_of(config(shape, 1500), me);
    let to = addr::mac(other);
    assert_eq!(send(&mut core, &[0; 13]).unwrap_err(), SendError::Runt(13));
    let long = send(&mut core, &frame(me, to, 1515, 0)).unwrap_err();
    assert_eq!(long, SendError::TooLong { len: 1515, max: 1514 });
    for mac in [addr::mac(me), addr::mac(Coords::new(0, 0, 0, 1, 1, 0)), [0x52, 0, 0, 0, 0, 1]] {
        let refused = send(&mut core, &frame(me, mac, 60, 0)).unwrap_err();
        assert_eq!(refused, SendError::NoSuchNode(mac));
    }
    assert_eq!(core.counters().no_such_node, 3);
}

#[test]
fn frames_with_a_false_sender_are_dropped() {
    let shape = shape("1x1x1x2x3x2");
    let node = |rank| shape.coords(NodeId(rank)).unwrap();
    let mut victim = core_of(config(shape, 1500), node(5));
    let mut other = core_of(config(shape, 1500), node(1));
    let to = addr::mac(node(5));
    // An origin that is not the packet's source.
    let mut packet = send(&mut other, &frame(node(1), to, 100, 0)).unwrap().remove(0);
    packet.from = node(2);
    assert_eq!(arrive(&mut victim, &packet).0, None);
    // Another address in the frame.
    let packet = send(&mut other, &frame(node(2), to, 100, 0)).unwrap().remove(0);
    assert_eq!(arrive(&mut victim, &packet).0, None);
    // A broadcast from a node that is not on its path.
    let all = send(&mut other, &frame(node(1), addr::BROADCAST, 100, 0)).unwrap();
    let mut packet = all[0].clone();
    let leaf = (0..12)
        .map(node)
        .find(|n| *n != node(5) && !tree::is_ancestor(&shape, node(1), *n, node(5)))
        .unwrap();
    packet.from = leaf;
    assert_eq!(arrive(&mut victim, &packet), (None, vec![].into_iter().collect::<Vec<Flying>>()));
    // The node's own broadcast comes back.
    packet.from = node(1);
    let mut origin = core_of(config(shape, 1500), node(1));
    assert_eq!(arrive(&mut origin, &packet).0, None);
    assert_eq!(victim.counters().spoofed, 3);
    assert_eq!(victim.counters().received, 0);
    // A frame for another node.
    let mut packet = send(&mut other, &frame(node(1), addr::mac(node(3)), 100, 0)).unwrap();
    packet[0].to = node(5);
    assert_eq!(arrive(&mut victim, &packet[0]).0, None);
    assert_eq!(victim.counters().misdirected, 1);
}

impl PartialEq for Flying {
    fn eq(&self, other: &Self) -> bool {
        (self.from, self.to, &self.bytes) == (other.from, other.to, &other.bytes)
    }
}

#[test]
fn unfinished_fragments_release_their_room() {
    let shape = shape("1x1x1x2x3x2");
    let node = |rank| shape.coords(NodeId(rank)).unwrap();
    let mut target = core_of(config(shape, 9000), node(0));
    let to = addr::mac(node(0));
    let mut hostile = core_of(config(shape, 9000), node(1));
    let mut friend = core_of(config(shape, 9000), node(2));
    let mut good = send(&mut friend, &frame(node(2), to, 9014, 1)).unwrap();
    let last = good.pop().unwrap();
    for fragment in &good {
        assert_eq!(arrive(&mut target, fragment).0, None);
    }
    for seed in 0..1000u32 {
        let first = send(&mut hostile, &frame(node(1), to, 9014, seed as u8)).unwrap().remove(0);
        assert_eq!(arrive(&mut target, &first).0, None);
    }
    assert!(target.counters().abandoned > 900);
    // Frames of other nodes are still received.
    assert_eq!(arrive(&mut target, &last).0, Some(frame(node(2), to, 9014, 1)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Nothing that arrives causes a panic, and only frames that were sent are received.
    #[test]
    fn any_bytes_are_taken(
        header in proptest::collection::vec(any::<u8>(), 0..40),
        body in proptest::collection::vec(any::<u8>(), 0..2000),
        from in 0..48u32,
    ) {
        let shape = shape("1x1x4x2x3x2");
        let mut core = core_of(config(shape, 9000), shape.coords(NodeId(7)).unwrap());
        let from = shape.coords(NodeId(from)).unwrap();
        let mut queue = TestQueue::default();
        core.receive(&mut queue, from, (&header, &body), 0);
        let _ = core.send(&mut queue, &body, 0);
        prop_assert_eq!(queue.missing(), 0);
    }

    #[test]
    fn headers_come_out_as_they_went_in(bytes in any::<[u8; HEADER_SIZE]>(), len in 0..2048usize) {
        let packet = Packet::new_checked(&bytes).unwrap();
        if let Ok(repr) = Repr::parse(&packet, len) {
            let mut expected = bytes;
            expected[1] &= if repr.kind == PacketKind::Broadcast { 3 } else { 1 };
            prop_assert_eq!(repr.emit(), expected);
            prop_assert!(usize::from(repr.length) <= FRAGMENT_MAX.min(len));
            prop_assert!(u32::from(repr.offset) + u32::from(repr.length) <= repr.total.into());
        }
    }

    /// Packets are lost, repeated, reordered and changed. Each received frame was sent.
    #[test]
    fn receivers_get_only_sent_frames(
        lengths in proptest::collection::vec(60usize..9015, 1..12),
        mix in proptest::collection::vec((any::<u16>(), 0u8..20, any::<u16>(), 1u8..), 1..120),
    ) {
        let shape = shape("1x1x1x2x1x1");
        let (a, b) = (shape.coords(NodeId(0)).unwrap(), shape.coords(NodeId(1)).unwrap());
        let mut net = Net::new(shape, 9000);
        let frames: Vec<_> = lengths
            .iter()
            .enumerate()
            .map(|(n, len)| frame(a, addr::mac(b), *len, n as u8))
            .collect();
        let mut flying = Vec::new();
        for frame in &frames {
            flying.extend(send(net.nodes.get_mut(&a).unwrap(), frame).unwrap());
        }
        let mut received = Vec::new();
        let mut changed = false;
        let target = net.nodes.get_mut(&b).unwrap();
        for (which, what, place, change) in mix {
            if flying.is_empty() {
                break;
            }
            let index = usize::from(which) % flying.len();
            let mut packet = flying[index].clone();
            match what {
                0 => {
                    // The device's ECRC detects such changes. Without it the sum does, for frames
                    // of several fragments.
                    let at = usize::from(place) % packet.bytes.len();
                    packet.bytes[at] ^= change;
                    changed = true;
                }
                1 | 2 => {
                    flying.swap_remove(index);
                    continue;
                }
                3 | 4 => {}
                _ => {
                    flying.swap_remove(index);
                }
            }
            received.extend(arrive(target, &packet).0);
        }
        for frame in &received {
            let whole = frame.len() <= FRAGMENT_MAX;
            prop_assert!(frames.contains(frame) || (changed && whole), "{} bytes", frame.len());
        }
    }

    /// Without loss every frame arrives, in any order of its fragments.
    #[test]
    fn fragments_may_come_in_any_order(
        lengths in proptest::collection::vec(60usize..=65535, 1..6),
        order in proptest::collection::vec(any::<u16>(), 220),
    ) {
        let shape = shape("1x1x1x2x1x1");
        let (a, b) = (shape.coords(NodeId(0)).unwrap(), shape.coords(NodeId(1)).unwrap());
        let mut net = Net::new(shape, Config::MAX_MTU);
        let mut expected = Vec::new();
        let mut flying = Vec::new();
        for (n, len) in lengths.iter().enumerate() {
            let frame = frame(a, addr::mac(b), *len, n as u8);
            flying.extend(send(net.nodes.get_mut(&a).unwrap(), &frame).unwrap());
            expected.push(frame);
        }
        let mut received = Vec::new();
        for n in order {
            if flying.is_empty() {
                break;
            }
            let packet = flying.swap_remove(usize::from(n) % flying.len());
            received.extend(arrive(net.nodes.get_mut(&b).unwrap(), &packet).0);
        }
        prop_assert!(flying.is_empty());
        received.sort();
        expected.sort();
        prop_assert_eq!(received, expected);
    }

    /// Each node of any machine gets a broadcast once. Nodes relay it one hop, and never to
    /// themselves.
    #[test]
    fn broadcast_reaches_each_node_once(
        len in (1..=4u8, 1..=3u8, 1..=3u8, 1..=2u8, 1..=3u8, 1..=2u8),
        torus in "x?y?z?",
        origin in any::<u32>(),
        size in prop_oneof![Just(100usize), Just(5000)],
    ) {
        let (x, y, z, a, b, c) = len;
        let shape = shape(&format!("{x}x{y}x{z}x{a}x{b}x{c}")).with_torus_letters(&torus);
        let origin = shape.coords(NodeId(origin % shape.nodes())).unwrap();
        let mut net = Net::new(shape, 9000);
        let sent = frame(origin, addr::BROADCAST, size, 3);
        let flying = send(net.nodes.get_mut(&origin).unwrap(), &sent).unwrap();
        let received = net.run(flying);
        prop_assert_eq!(received.len() as u32, shape.nodes() - 1);
        for (node, frames) in received {
            prop_assert_ne!(node, origin);
            prop_assert_eq!(frames.len(), 1);
            prop_assert_eq!(&frames[0], &sent);
            let parent = tree::parent(&shape, origin, node).unwrap();
            prop_assert!(shape.adjacent(parent, node));
            prop_assert!(tree::children(&shape, origin, parent).any(|child| child == node));
        }
        for core in net.nodes.values() {
            prop_assert_eq!(core.counters().duplicates, 0);
            prop_assert_eq!(core.counters().spoofed, 0);
        }
    }
}
