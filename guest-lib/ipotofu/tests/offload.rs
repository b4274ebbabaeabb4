//! Frames that others finish: what is said of them, who gets them, and finishing them.

use proptest::prelude::*;
use smoltcp::wire::{EthernetFrame, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket};
use tofu_abi::Coords;
use tofu_abi::topology::Shape;
use tofu_ipotofu::offload::{BadFacts, FACTS_SIZE, Facts, Segments};
use tofu_ipotofu::wire::{self, HEADER_SIZE, Kind, Packet};
use tofu_ipotofu::{Config, Core, Event, addr};

const ONE: Coords = Coords::new(0, 0, 0, 0, 0, 0);
const OTHER: Coords = Coords::new(1, 0, 0, 0, 0, 0);
const SECOND: u64 = 1_000_000_000;
const SEQUENCE: u32 = 0xffff_ff00;

/// A frame as a kernel leaves it that others finish: its checksum field has the sum of the pseudo
/// header. `protocol` is 6 with `flags` of TCP, or 17.
fn frame(v6: bool, protocol: u8, flags: u8, payload: &[u8]) -> (Facts, Vec<u8>) {
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
        // The header's own checksum is there, for those that go as they are.
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
    (Facts { checksum: Some((start as u16, offset)), ..Facts::default() }, frame)
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31) >> 3) as u8).collect()
}

/// Looks at a finished frame with another TCP/IP stack's eyes: sequence number, flags, payload.
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

fn finish(facts: &Facts, frame: &[u8]) -> Result<Vec<Vec<u8>>, BadFacts> {
    let mut all = Vec::new();
    facts.finish(frame, &mut |one| all.push(one.to_vec()))?;
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
        let (facts, whole) = frame(v6, 6, 0x18 | u8::from(fin), &payload);
        let segments = if v6 { Segments::Tcp6 } else { Segments::Tcp4 };
        let facts = Facts { segments, size, ..facts };
        let all = finish(&facts, &whole).unwrap();
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
    fn what_is_said_comes_back(checksum: Option<(u16, u16)>, kind in 0..3, size: u16, ecn: bool) {
        let segments = [Segments::One, Segments::Tcp4, Segments::Tcp6][kind as usize];
        let facts = match segments {
            Segments::One => Facts { checksum, ..Facts::default() },
            _ => Facts { checksum, segments, size, ecn },
        };
        prop_assert_eq!(Facts::parse(&facts.emit()), Ok(facts));
    }

    /// Whatever is said of whatever frame: it is refused, or done within bounds.
    #[test]
    fn nothing_that_is_said_does_harm(
        said: [u8; FACTS_SIZE],
        frame in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        if let Ok(facts) = Facts::parse(&said) {
            let all = finish(&facts, &frame);
            prop_assert_eq!(all.is_ok(), facts.check(&frame).is_ok());
            let short = all.is_ok_and(|all| all.iter().all(|one| one.len() <= frame.len()));
            prop_assert!(short || facts.check(&frame).is_err());
        }
    }
}

#[test]
fn a_checksum_alone_is_completed() {
    for v6 in [false, true] {
        let (facts, one) = frame(v6, 6, 0x10, b"odd");
        let all = finish(&facts, &one).unwrap();
        assert_eq!((all.len(), &look(v6, &all[0]).3[..]), (1, &b"odd"[..]));
    }
    let (facts, one) = frame(false, 17, 0, b"datagram");
    let all = finish(&facts, &one).unwrap();
    let udp = UdpPacket::new_checked(&all[0][34..]).unwrap();
    let [from, to] = [ONE, OTHER].map(|node| addr::ipv4(0, node).map(|b| b));
    let [from, to] = [from, to].map(|ip| std::net::Ipv4Addr::from(ip).into());
    assert!(udp.verify_checksum(&from, &to) && udp.payload() == b"datagram");
}

#[test]
fn what_does_not_fit_is_refused() {
    let (facts, one) = frame(false, 6, 0x10, &bytes(3000));
    let cut = Facts { segments: Segments::Tcp4, size: 1000, ..facts };
    assert_eq!(cut.check(&one), Ok(Some(54)));
    let udp = frame(false, 17, 0, &bytes(3000)).1;
    let mut fragment = one.clone();
    fragment[20] = 0x20;
    let mut offset = one.clone();
    offset[46] = 0x40;
    for (facts, frame) in [
        (Facts { size: 47, ..cut }, &one),
        (Facts { segments: Segments::Tcp6, ..cut }, &one),
        (Facts { checksum: None, ..cut }, &one),
        (Facts { checksum: Some((34, 6)), ..cut }, &one),
        (Facts { checksum: Some((38, 16)), ..cut }, &one),
        (cut, &udp),
        (cut, &fragment),
        (cut, &offset),
        (cut, &one[..54].to_vec()),
        (Facts { checksum: Some((34, 3000)), ..Facts::default() }, &one[..1000].to_vec()),
        (Facts { checksum: Some((2, 2)), ..Facts::default() }, &one),
    ] {
        assert_eq!(facts.check(frame), Err(BadFacts), "{facts:?}");
        assert_eq!(finish(&facts, frame), Err(BadFacts), "{facts:?}");
    }
}

/// A packet: header, and what follows.
type Flying = ([u8; HEADER_SIZE], Vec<u8>);

fn node(at: Coords, unfinished: bool) -> Core {
    let shape: Shape = "2x1x1x1x1x1".parse().unwrap();
    Core::new(Config { unfinished, ..Config::new(shape) }, at)
}

fn send(core: &mut Core, facts: &Facts, frame: &[u8], now_ns: u64) -> Option<Vec<Flying>> {
    let mut all = Vec::new();
    let sent = core.send_unfinished(facts, frame, now_ns, &mut |piece| {
        all.push((piece.header, [piece.prefix, piece.body].concat()));
    });
    sent.then_some(all)
}

fn arrive(core: &mut Core, from: Coords, packets: &[Flying], now_ns: u64) -> Event {
    let mut last = Event::Nothing;
    for (header, body) in packets {
        last = core.receive(from, header, body, now_ns, &mut |_| panic!("handed on"));
    }
    last
}

fn plain(core: &mut Core, to: Coords) -> Vec<Flying> {
    let frame = [&addr::mac(to)[..], &addr::mac(core.me()), &[0x88, 0xb5, 1, 2, 3]].concat();
    let mut all = Vec::new();
    core.send(&frame, &mut |piece| all.push((piece.header, piece.body.to_vec()))).unwrap();
    all
}

#[test]
fn they_go_to_nodes_that_say_that_they_take_them() {
    let (mut one, mut other) = (node(ONE, true), node(OTHER, true));
    let (facts, whole) = frame(false, 6, 0x18, &bytes(60000));
    let facts = Facts { segments: Segments::Tcp4, size: 1448, ..facts };
    assert!(send(&mut one, &facts, &whole, 0).is_none(), "it has not said anything yet");
    let hello = plain(&mut other, ONE);
    assert!(matches!(arrive(&mut one, OTHER, &hello, 0), Event::Whole(_)));
    let packets = send(&mut one, &facts, &whole, SECOND).unwrap();
    assert_eq!(packets.len(), (FACTS_SIZE + whole.len()).div_ceil(1952));
    match arrive(&mut other, ONE, &packets, SECOND) {
        Event::Unfinished(said, len, Some(bytes)) => {
            assert_eq!(said, facts);
            assert!(bytes[FACTS_SIZE..len] == whole, "another frame");
        }
        event => panic!("{event:?}"),
    }
    // A small one is in one packet.
    let (facts, small) = frame(true, 17, 0, b"hello");
    let packets = send(&mut one, &facts, &small, SECOND).unwrap();
    let event = arrive(&mut other, ONE, &packets, SECOND);
    assert_eq!(event, Event::Unfinished(facts, FACTS_SIZE + small.len(), None));
    // It may have been replaced by something else meanwhile.
    assert!(send(&mut one, &facts, &small, 3 * SECOND).is_none());
    arrive(&mut one, OTHER, &hello, 4 * SECOND);
    assert!(send(&mut one, &facts, &small, 4 * SECOND).is_some());
    let mut replaced = node(OTHER, false);
    let hello = plain(&mut replaced, ONE);
    arrive(&mut one, OTHER, &hello, 4 * SECOND);
    assert!(send(&mut one, &facts, &small, 4 * SECOND).is_none());
    // Whoever does not take them counts them as what they do not know.
    assert_eq!(arrive(&mut replaced, ONE, &packets, 0), Event::Nothing);
    assert_eq!(replaced.counters().malformed, 1);
}

#[test]
fn a_hostile_neighbour_gets_nothing_through() {
    let (mut one, mut other) = (node(ONE, true), node(OTHER, true));
    let hello = plain(&mut other, ONE);
    arrive(&mut one, OTHER, &hello, 0);
    let (facts, small) = frame(false, 6, 0x10, b"hello");
    let packets = send(&mut one, &facts, &small, 0).unwrap();
    let packet = Packet::new_checked(&packets[0].0).unwrap();
    assert_eq!((packet.kind(), packet.takes_unfinished()), (Some(Kind::Unfinished), true));
    // Every byte of what is said changed in every bit: refused, or another thing that fits.
    for byte in 0..FACTS_SIZE {
        for bit in 0..8 {
            let mut changed = packets.clone();
            changed[0].1[byte] ^= 1 << bit;
            // Damage is found; a liar makes the sum fit.
            assert_eq!(arrive(&mut other, ONE, &changed, 0), Event::Nothing);
            let sum = wire::sum(&changed[0].1).to_be_bytes();
            changed[0].0[12..16].copy_from_slice(&sum);
            if let Event::Unfinished(said, len, None) = arrive(&mut other, ONE, &changed, 0) {
                assert!(said.check(&changed[0].1[FACTS_SIZE..len]).is_ok());
            }
        }
    }
    assert!(other.counters().malformed > 30, "{:?}", other.counters());
    assert_eq!(other.counters().damaged, 64);
    // For another node, or by one that it does not come from.
    let mut stray = packets.clone();
    stray[0].1[FACTS_SIZE + 5] ^= 2;
    let sum = wire::sum(&stray[0].1).to_be_bytes();
    stray[0].0[12..16].copy_from_slice(&sum);
    assert_eq!(arrive(&mut other, ONE, &stray, 0), Event::Nothing);
    assert_eq!(other.counters().misdirected, 1);
    assert_eq!(arrive(&mut other, OTHER, &packets, 0), Event::Nothing);
    assert_eq!(other.counters().spoofed, 1);
}
