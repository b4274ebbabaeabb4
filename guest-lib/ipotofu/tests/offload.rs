//! Offloaded frames: their metadata, their receivers, and their completion.

use proptest::prelude::*;
use smoltcp::wire::{EthernetFrame, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket};
use tofu_abi::topology::Shape;
use tofu_abi::{Coords, TniId};
use tofu_ipotofu::offload::{BadMetadata, METADATA_SIZE, Metadata, Segments};
use tofu_ipotofu::testing::TestQueue;
use tofu_ipotofu::wire::{self, HEADER_SIZE, Packet, PacketKind};
use tofu_ipotofu::{Config, Core, Event, addr};

const ONE: Coords = Coords::new(0, 0, 0, 0, 0, 0);
const OTHER: Coords = Coords::new(1, 0, 0, 0, 0, 0);
const SECOND: u64 = 1_000_000_000;
const SEQUENCE: u32 = 0xffff_ff00;

/// A frame as an offloading kernel leaves it: the checksum field has the sum of the pseudo header.
/// `protocol` is 6 (TCP, with `flags`) or 17 (UDP).
fn frame(v6: bool, protocol: u8, flags: u8, payload: &[u8]) -> (Metadata, Vec<u8>) {
    let mut frame = [addr::mac(OTHER), addr::mac(ONE)].concat();
    let transport = if protocol == 6 { 20 } else { 8 };
    let length = transport + payload.len();
    let pseudo_at = if v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend((length as u16).to_be_bytes());
        frame.extend([protocol, 64]);
        frame.extend(addr::ipv6(0, ONE));
        frame.extend(addr::ipv6(0, OTHER));
        14 + 8
    } else {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((20 + length as u16).to_be_bytes());
        frame.extend([0x12, 0xff, 0x40, 0, 64, protocol, 0, 0]);
        frame.extend(addr::ipv4(0, ONE));
        frame.extend(addr::ipv4(0, OTHER));
        // The IP header's own checksum is valid, for frames that are sent unchanged.
        Ipv4Packet::new_unchecked(&mut frame[14..]).fill_checksum();
        14 + 12
    };
    let start = frame.len();
    let mut sum = u32::from(protocol) + length as u32;
    for pair in frame[pseudo_at..].chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame.extend([0x12, 0x34, 0x56, 0x78]);
    let offset = if protocol == 6 {
        frame.extend(SEQUENCE.to_be_bytes());
        frame.extend([0, 0, 0, 7, 0x50, flags, 1, 0]);
        16
    } else {
        frame.extend((length as u16).to_be_bytes());
        6
    };
    frame.extend((sum as u16).to_be_bytes());
    if protocol == 6 {
        frame.extend([0, 0]);
    }
    frame.extend(payload);
    (Metadata { checksum: Some((start as u16, offset)), ..Metadata::default() }, frame)
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31) >> 3) as u8).collect()
}

/// Parses a complete frame with another TCP/IP stack: sequence number, flags, payload.
fn look(v6: bool, frame: &[u8]) -> (u32, bool, bool, Vec<u8>) {
    let ethernet = EthernetFrame::new_checked(frame).unwrap();
    let (from, to, tcp) = if v6 {
        let ip = Ipv6Packet::new_checked(ethernet.payload()).unwrap();
        assert_eq!(ip.total_len(), ethernet.payload().len());
        (ip.src_addr().into(), ip.dst_addr().into(), ip.payload().to_vec())
    } else {
        let ip = Ipv4Packet::new_checked(ethernet.payload()).unwrap();
        assert!(ip.verify_checksum() && usize::from(ip.total_len()) == ethernet.payload().len());
        (ip.src_addr().into(), ip.dst_addr().into(), ip.payload().to_vec())
    };
    let tcp = TcpPacket::new_checked(&tcp[..]).unwrap();
    assert!(tcp.verify_checksum(&from, &to));
    (tcp.seq_number().0 as u32, tcp.fin(), tcp.psh(), tcp.payload().to_vec())
}

fn complete(metadata: &Metadata, frame: &[u8]) -> Result<Vec<Vec<u8>>, BadMetadata> {
    let mut all = Vec::new();
    metadata.complete(frame, &mut |one| all.push(one.to_vec()))?;
    Ok(all)
}

proptest! {
    #[test]
    fn segments_are_the_whole(
        v6: bool,
        len in 1usize..20000,
        size in 48u16..3000,
        fin: bool,
    ) {
        let payload = bytes(len);
        let (metadata, whole) = frame(v6, 6, 0x18 | u8::from(fin), &payload);
        let segments = if v6 { Segments::Tcp6 } else { Segments::Tcp4 };
        let metadata = Metadata { segments, size, ..metadata };
        let all = complete(&metadata, &whole).unwrap();
        prop_assert_eq!(all.len(), len.div_ceil(size.into()));
        let mut together = Vec::new();
        for (n, one) in all.iter().enumerate() {
            let (sequence, has_fin, psh, part) = look(v6, one);
            prop_assert_eq!(sequence, SEQUENCE.wrapping_add(together.len() as u32));
            let last = n + 1 == all.len();
            prop_assert_eq!((has_fin, psh), (fin && last, last));
            prop_assert!(part.len() == usize::from(size) || last);
            together.extend(part);
        }
        prop_assert_eq!(together, payload);
    }

    #[test]
    fn metadata_round_trips(checksum: Option<(u16, u16)>, kind in 0..3, size: u16, ecn: bool) {
        let segments = [Segments::One, Segments::Tcp4, Segments::Tcp6][kind as usize];
        let metadata = match segments {
            Segments::One => Metadata { checksum, ..Metadata::default() },
            _ => Metadata { checksum, segments, size, ecn },
        };
        prop_assert_eq!(Metadata::parse(&metadata.emit()), Ok(metadata));
    }

    /// Any metadata of any frame are refused, or handled within bounds.
    #[test]
    fn arbitrary_metadata_never_panics(
        said: [u8; METADATA_SIZE],
        frame in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        if let Ok(metadata) = Metadata::parse(&said) {
            let all = complete(&metadata, &frame);
            prop_assert_eq!(all.is_ok(), metadata.check(&frame).is_ok());
            let short = all.is_ok_and(|all| all.iter().all(|one| one.len() <= frame.len()));
            prop_assert!(short || metadata.check(&frame).is_err());
        }
    }
}

#[test]
fn lone_checksum_is_completed() {
    for v6 in [false, true] {
        let (metadata, one) = frame(v6, 6, 0x10, b"odd");
        let all = complete(&metadata, &one).unwrap();
        assert_eq!((all.len(), &look(v6, &all[0]).3[..]), (1, &b"odd"[..]));
    }
    let (metadata, one) = frame(false, 17, 0, b"datagram");
    let all = complete(&metadata, &one).unwrap();
    let udp = UdpPacket::new_checked(&all[0][34..]).unwrap();
    let [from, to] = [ONE, OTHER].map(|node| addr::ipv4(0, node).map(|b| b));
    let [from, to] = [from, to].map(|ip| std::net::Ipv4Addr::from(ip).into());
    assert!(udp.verify_checksum(&from, &to) && udp.payload() == b"datagram");
}

#[test]
fn unfit_metadata_is_refused() {
    let (metadata, one) = frame(false, 6, 0x10, &bytes(3000));
    let cut = Metadata { segments: Segments::Tcp4, size: 1000, ..metadata };
    assert_eq!(cut.check(&one), Ok(Some(54)));
    let udp = frame(false, 17, 0, &bytes(3000)).1;
    let mut fragment = one.clone();
    fragment[20] = 0x20;
    let mut offset = one.clone();
    offset[46] = 0x40;
    for (metadata, frame) in [
        (Metadata { size: 47, ..cut }, &one),
        (Metadata { segments: Segments::Tcp6, ..cut }, &one),
        (Metadata { checksum: None, ..cut }, &one),
        (Metadata { checksum: Some((34, 6)), ..cut }, &one),
        (Metadata { checksum: Some((38, 16)), ..cut }, &one),
        (cut, &udp),
        (cut, &fragment),
        (cut, &offset),
        (cut, &one[..54].to_vec()),
        (Metadata { checksum: Some((34, 3000)), ..Metadata::default() }, &one[..1000].to_vec()),
        (Metadata { checksum: Some((2, 2)), ..Metadata::default() }, &one),
    ] {
        assert_eq!(metadata.check(frame), Err(BadMetadata), "{metadata:?}");
        assert_eq!(complete(&metadata, frame), Err(BadMetadata), "{metadata:?}");
    }
}

/// A packet: header and body.
type Flying = ([u8; HEADER_SIZE], Vec<u8>);

fn node(at: Coords, offload: bool) -> Core {
    let shape: Shape = "2x1x1x1x1x1".parse().unwrap();
    Core::new(Config { offload, ..Config::new(shape) }, at, TniId::ALL[0], 0)
}

fn send(core: &mut Core, metadata: &Metadata, frame: &[u8], now_ns: u64) -> Option<Vec<Flying>> {
    let mut queue = TestQueue::default();
    let sent = core.send_offloaded(&mut queue, metadata, frame, now_ns).unwrap();
    sent.then(|| flying(queue))
}

/// The packets in a queue.
fn flying(queue: TestQueue) -> Vec<Flying> {
    let split = |payload: &[u8]| {
        let (header, body) = payload.split_first_chunk().unwrap();
        (*header, body.to_vec())
    };
    queue.posted.iter().map(|one| split(&one.payload)).collect()
}

fn arrive(core: &mut Core, from: Coords, packets: &[Flying], now_ns: u64) -> Event<Vec<u8>> {
    let mut last = Event::Nothing;
    for (header, body) in packets {
        let mut queue = TestQueue::default();
        last = core.receive(&mut queue, from, (header, body), now_ns);
        assert!(queue.posted.is_empty(), "relayed");
    }
    last
}

fn plain(core: &mut Core, to: Coords) -> Vec<Flying> {
    let frame = [&addr::mac(to)[..], &addr::mac(core.me()), &[0x88, 0xb5, 1, 2, 3]].concat();
    let mut queue = TestQueue::default();
    core.send(&mut queue, &frame, 0).unwrap();
    flying(queue)
}

#[test]
fn offloaded_frames_go_to_capable_nodes() {
    let (mut one, mut other) = (node(ONE, true), node(OTHER, true));
    let (metadata, whole) = frame(false, 6, 0x18, &bytes(60000));
    let metadata = Metadata { segments: Segments::Tcp4, size: 1448, ..metadata };
    assert!(send(&mut one, &metadata, &whole, 0).is_none(), "it has not said anything yet");
    let hello = plain(&mut other, ONE);
    assert!(matches!(arrive(&mut one, OTHER, &hello, 0), Event::Whole(..)));
    let packets = send(&mut one, &metadata, &whole, SECOND).unwrap();
    assert_eq!(packets.len(), (METADATA_SIZE + whole.len()).div_ceil(1952));
    match arrive(&mut other, ONE, &packets, SECOND) {
        Event::Assembled(said, bytes) => {
            assert_eq!(said, metadata);
            assert!(bytes == whole, "another frame");
        }
        event => panic!("{event:?}"),
    }
    // A short frame fits into one packet.
    let (metadata, small) = frame(true, 17, 0, b"hello");
    let packets = send(&mut one, &metadata, &small, SECOND).unwrap();
    let event = arrive(&mut other, ONE, &packets, SECOND);
    assert_eq!(event, Event::Whole(metadata, METADATA_SIZE..METADATA_SIZE + small.len()));
    // Meanwhile the other node may have been replaced by one that accepts no such frames.
    assert!(send(&mut one, &metadata, &small, 3 * SECOND).is_none());
    arrive(&mut one, OTHER, &hello, 4 * SECOND);
    assert!(send(&mut one, &metadata, &small, 4 * SECOND).is_some());
    let mut replaced = node(OTHER, false);
    let hello = plain(&mut replaced, ONE);
    arrive(&mut one, OTHER, &hello, 4 * SECOND);
    assert!(send(&mut one, &metadata, &small, 4 * SECOND).is_none());
    // A node that does not accept them counts them as malformed.
    assert_eq!(arrive(&mut replaced, ONE, &packets, 0), Event::Nothing);
    assert_eq!(replaced.counters().malformed, 1);
}

#[test]
fn hostile_neighbour_gets_nothing_through() {
    let (mut one, mut other) = (node(ONE, true), node(OTHER, true));
    let hello = plain(&mut other, ONE);
    arrive(&mut one, OTHER, &hello, 0);
    let (metadata, small) = frame(false, 6, 0x10, b"hello");
    let packets = send(&mut one, &metadata, &small, 0).unwrap();
    let packet = Packet::new_checked(&packets[0].0).unwrap();
    assert_eq!((packet.kind(), packet.takes_offloaded()), (Some(PacketKind::Offloaded), true));
    // A bit of the metadata is changed: the frame is refused, or the metadata is still consistent.
    for byte in 0..METADATA_SIZE {
        for bit in 0..8 {
            let mut changed = packets.clone();
            changed[0].1[byte] ^= 1 << bit;
            // Damage is detected. A malicious sender makes the sum match.
            assert_eq!(arrive(&mut other, ONE, &changed, 0), Event::Nothing);
            let sum = wire::sum(&changed[0].1).to_be_bytes();
            changed[0].0[12..16].copy_from_slice(&sum);
            if let Event::Whole(said, part) = arrive(&mut other, ONE, &changed, 0) {
                assert!(said.check(&changed[0].1[part]).is_ok());
            }
        }
    }
    assert!(other.counters().malformed > 30, "{:?}", other.counters());
    assert_eq!(other.counters().damaged, 64);
    // A frame for another node, or in the name of another node.
    let mut stray = packets.clone();
    stray[0].1[METADATA_SIZE + 5] ^= 2;
    let sum = wire::sum(&stray[0].1).to_be_bytes();
    stray[0].0[12..16].copy_from_slice(&sum);
    assert_eq!(arrive(&mut other, ONE, &stray, 0), Event::Nothing);
    assert_eq!(other.counters().misdirected, 1);
    assert_eq!(arrive(&mut other, OTHER, &packets, 0), Event::Nothing);
    assert_eq!(other.counters().spoofed, 1);
}
