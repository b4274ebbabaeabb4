//! The second device, TNW: driver against device, in a torus in one process.

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;
use tofu_abi::Coords;
use tofu_abi::tnw::{
    CREDIT_QUEUE, ChannelReg, Errors, LinkReg, MAX_MESSAGE, Notification, NwpReg, PACKET_DATA,
    RECEPTION_FIFO, Register, Start, WINDOW_BAR, WINDOW_RING, WINDOW_SIZE, WindowPlace, vector,
};
use tofu_abi::topology::Shape;
use tofu_driver::{DmaBuffer, Platform};
use tofu_fabric::{FaultPlan, Port, Ppm, Rates, ShardId};
use tofu_inproc::{AttachError, Buffer, InProcess};
use tofu_links::ErrorRate;
use tofu_machine::{Doorbells, Links, Torus, TorusConfig};
use tofu_pci::PciFunction;
use tofu_tests::shards::InShards;
use tofu_tnw::{
    Channel, Link, Nwp, OpenError, Outcome, PostError, SendError, Status, Stream, Ticket,
};

const MEMORY: usize = 4 << 20;
/// Longer than any of these tests takes: a message that has not arrived by then does not arrive.
const LONG_NS: u64 = 60_000_000_000;
const X_MINUS: Link = Link::ALL[0];
const X_PLUS: Link = Link::ALL[1];

type Attach = fn(&Arc<Torus>, Coords, usize) -> Result<InProcess, AttachError>;

struct World {
    torus: Arc<Torus>,
    nodes: Vec<Nwp<InProcess>>,
}

impl World {
    fn new(x: u8, y: u8, z: u8) -> Self {
        Self::with(Links::Direct, [x, y, z], InProcess::attach_nwp)
    }

    /// The same with devices whose windows can be memory.
    fn sharing(x: u8, y: u8, z: u8) -> Self {
        Self::with(Links::Direct, [x, y, z], InProcess::attach_sharing_nwp)
    }

    fn with(links: Links, [x, y, z]: [u8; 3], attach: Attach) -> Self {
        let shape = Shape::new([x, y, z, 1, 1, 1]).unwrap();
        let config = TorusConfig { links, ..TorusConfig::new(shape) };
        Self::of(Torus::with_manual_clock(config).unwrap(), attach)
    }

    fn of(torus: Torus, attach: Attach) -> Self {
        let torus = Arc::new(torus);
        let shape = *torus.wires().fabric().shape();
        let attach = |coords| attach(&torus, coords, MEMORY).unwrap();
        let nodes = shape.iter().map(|coords| Nwp::probe(attach(coords)).unwrap()).collect();
        let world = Self { torus, nodes };
        world.torus.run_pending();
        world
    }

    fn node(&self, coords: Coords) -> &Nwp<InProcess> {
        let id = self.torus.wires().fabric().shape().node_id(coords).unwrap();
        &self.nodes[id.index()]
    }

    /// The first node and its neighbour on X+.
    fn pair(&self) -> [&Nwp<InProcess>; 2] {
        [self.node(Coords::default()), self.node(Coords::new(1, 0, 0, 0, 0, 0))]
    }

    /// Lets time pass until a credit or Nget has ended.
    fn end(&self, stream: &mut Stream<'_, InProcess>, ticket: Ticket) -> Outcome {
        let mut ticket = ticket;
        for _ in 0..100_000 {
            self.torus.run_pending();
            match stream.test(ticket) {
                Ok(outcome) => return outcome,
                Err(waiting) => ticket = waiting,
            }
            self.torus.advance(1_000_000);
        }
        panic!("it does not end");
    }
}

fn buffer(node: &Nwp<InProcess>, bytes: &[u8]) -> Buffer {
    let buffer = node.platform().alloc_dma(bytes.len(), 8).unwrap();
    buffer.write(0, bytes);
    buffer
}

fn bytes(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.read(0, &mut bytes);
    bytes
}

fn message(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 13 + at / 128 + seed * 101) as u8).collect()
}

const fn ok(length: usize) -> Outcome {
    Outcome { status: Status::Ok, length: length as u32 }
}

#[test]
fn neighbours_exchange_on_every_channel() {
    every_neighbour(&World::new(4, 2, 3));
}

#[test]
fn modelled_links_reach_every_neighbour() {
    every_neighbour(&World::with(Links::Modelled, [4, 2, 3], InProcess::attach_nwp));
}

fn every_neighbour(world: &World) {
    let shape = *world.torus.wires().fabric().shape();
    for coords in shape.iter() {
        let node = world.node(coords);
        assert_eq!(node.coords(), coords);
        assert_eq!(node.shape(), [4, 2, 3]);
        for link in Link::ALL {
            let neighbour = world.node(shape.neighbor(coords, link.port()).unwrap());
            for channel in Channel::ALL {
                let mut near = node.open(link, channel).unwrap();
                let mut far = neighbour.open(link.opposite(), channel).unwrap();
                let seed = link.index() * 8 + channel.index();
                let (put, get) = (message(300, seed), message(1000, seed + 1));
                let sinks = [buffer(neighbour, &[0; 300]), buffer(neighbour, &[0; 1000])];
                let first = far.credit(&sinks[0], 0, 300).unwrap();
                let second = far.credit(&sinks[1], 0, 1000).unwrap();
                near.send(&put, LONG_NS).unwrap();
                let source = buffer(node, &get);
                let fetched = near.send_from(&source, 0, 1000).unwrap();
                assert_eq!(near.wait(fetched, LONG_NS), Ok(ok(1000)));
                assert_eq!(far.wait(first, LONG_NS), Ok(ok(300)));
                assert_eq!(far.wait(second, LONG_NS), Ok(ok(1000)));
                assert_eq!([bytes(&sinks[0]), bytes(&sinks[1])], [put, get]);
            }
        }
    }
    // 3 packets by stores and 8 by fetching on each of 8 channels.
    for node in &world.nodes {
        for link in Link::ALL {
            let counters = node.link_counters(link);
            assert_eq!((counters.sent, counters.received), (88, 88));
            assert_eq!((counters.resent, counters.nacks_sent, counters.timeouts), (0, 0, 0));
            assert!(node.link_status(link).answered());
        }
        assert_eq!(node.read(Register::Nwp(NwpReg::Errors)), 0);
    }
}

#[test]
fn long_messages_of_any_length_arrive_whole() {
    long_messages(&World::new(2, 1, 1), false);
}

#[test]
fn long_messages_arrive_by_shared_windows() {
    long_messages(&World::sharing(2, 1, 1), true);
}

#[test]
fn modelled_links_carry_long_messages_whole() {
    let shape = [2, 1, 1];
    long_messages(&World::with(Links::Modelled, shape, InProcess::attach_nwp), false);
    long_messages(&World::with(Links::Modelled, shape, InProcess::attach_sharing_nwp), true);
}

fn long_messages(world: &World, shared: bool) {
    let [near, far] = world.pair();
    let mut near_stream = near.open(X_PLUS, Channel::ALL[3]).unwrap();
    let mut far_stream = far.open(X_MINUS, Channel::ALL[3]).unwrap();
    for len in [1, 127, 128, 129, WINDOW_RING as usize * 3 + 5, 1 << 20] {
        let sent = message(len, len);
        let sink = buffer(far, &vec![0xee; len + 256]);
        let credit = far_stream.credit(&sink, 0, len).unwrap();
        near_stream.send(&sent, LONG_NS).unwrap();
        assert_eq!(near_stream.read(ChannelReg::TxMode), u64::from(shared));
        assert_eq!(world.end(&mut far_stream, credit), ok(len));
        let got = bytes(&sink);
        assert_eq!(got[..len], sent[..]);
        assert!(got[len..].iter().all(|byte| *byte == 0xee), "nothing beyond the credit");

        let source = buffer(near, &sent);
        sink.fill(0xee);
        let fetched = near_stream.send_from(&source, 0, len).unwrap();
        let credit = far_stream.credit(&sink, 0, len).unwrap();
        assert_eq!(world.end(&mut near_stream, fetched), ok(len));
        assert_eq!(world.end(&mut far_stream, credit), ok(len));
        assert_eq!(bytes(&sink), got);
    }
}

#[test]
fn channel_without_credits_stalls_alone() {
    let world = World::new(2, 1, 1);
    let [near, far] = world.pair();
    let mut stuck = near.open(X_PLUS, Channel::ALL[0]).unwrap();
    let mut free = near.open(X_PLUS, Channel::ALL[1]).unwrap();
    let mut sink = far.open(X_MINUS, Channel::ALL[1]).unwrap();
    let most = RECEPTION_FIFO * PACKET_DATA + WINDOW_RING as usize;
    let sent = message(most + PACKET_DATA, 1);
    assert_eq!(stuck.send(&sent, 0), Err(SendError::Stalled(most)));
    for n in 0..100 {
        let buffer = buffer(far, &[0; 500]);
        let credit = sink.credit(&buffer, 0, 500).unwrap();
        free.send(&message(500, n), LONG_NS).unwrap();
        assert_eq!(world.end(&mut sink, credit), ok(500));
        assert_eq!(bytes(&buffer), message(500, n));
    }
    assert_eq!(near.link_counters(X_PLUS).stalls, 1);
    let mut late = far.open(X_MINUS, Channel::ALL[0]).unwrap();
    let buffer = buffer(far, &vec![0; sent.len()]);
    let credit = late.credit(&buffer, 0, sent.len()).unwrap();
    world.torus.run_pending();
    stuck.send(&sent[most..], LONG_NS).unwrap();
    assert_eq!(world.end(&mut late, credit), ok(sent.len()));
    assert_eq!(bytes(&buffer), sent);
}

#[test]
fn link_errors_change_only_counters() {
    let world = World::new(2, 2, 1);
    let rate = |parts| Ppm::new(parts).unwrap();
    let everywhere = Rates {
        loss: rate(50_000),
        corrupt: rate(50_000),
        duplicate: rate(20_000),
        reorder: rate(20_000),
        ..Rates::NONE
    };
    let plan = FaultPlan { seed: 7, everywhere, ..FaultPlan::default() };
    world.torus.wires().set_faults(Some(plan)).unwrap();
    let [near, far] = world.pair();
    for channel in Channel::ALL {
        let mut stream = near.open(X_PLUS, channel).unwrap();
        let mut sink = far.open(X_MINUS, channel).unwrap();
        for n in 0..20 {
            let sent = message(100 + 700 * n, n);
            let got = buffer(far, &vec![0; sent.len()]);
            let credit = sink.credit(&got, 0, sent.len()).unwrap();
            let source = buffer(near, &sent);
            if n % 2 == 0 {
                let ticket = stream.send_from(&source, 0, sent.len()).unwrap();
                assert_eq!(world.end(&mut stream, ticket), ok(sent.len()));
            } else {
                stream.send(&sent, LONG_NS).unwrap();
            }
            assert_eq!(world.end(&mut sink, credit), ok(sent.len()));
            assert_eq!(bytes(&got), sent);
        }
    }
    let counters = far.link_counters(X_MINUS);
    assert!(counters.crc_errors > 0 && counters.nacks_sent > 0);
    assert!(near.link_counters(X_PLUS).resent > 0);
}

/// Each packet meets the wrong bits by itself, and the protocol of the link corrects them.
#[test]
fn wrong_bits_of_a_link_damage_single_packets() {
    for links in [Links::Direct, Links::Modelled] {
        let world = World::with(links, [2, 1, 1], InProcess::attach_nwp);
        let [near, far] = world.pair();
        let wires = world.torus.wires();
        // Of the 1088 bits of a packet one is wrong in one of 92 packets.
        let set = |rate| {
            let rate = ErrorRate::new(rate).unwrap();
            wires.set_bit_errors(Coords::default(), Port::XPlus, rate).unwrap();
        };
        set(1e-5);
        let mut stream = near.open(X_PLUS, Channel::ALL[0]).unwrap();
        let mut sink = far.open(X_MINUS, Channel::ALL[0]).unwrap();
        let mut send = || {
            for n in 0..20 {
                let sent = message(16 << 10, n);
                let got = buffer(far, &vec![0; sent.len()]);
                let credit = sink.credit(&got, 0, sent.len()).unwrap();
                let ticket = stream.send_from(&buffer(near, &sent), 0, sent.len()).unwrap();
                assert_eq!(world.end(&mut stream, ticket), ok(sent.len()));
                assert_eq!(world.end(&mut sink, credit), ok(sent.len()));
                assert_eq!(bytes(&got), sent);
            }
            far.link_counters(X_MINUS).crc_errors
        };
        let errors = send();
        // 2560 packets, and those that are sent again.
        assert!((10..100).contains(&errors), "{errors} {links:?}");
        set(0.0);
        assert_eq!(send(), errors, "{links:?}");
        let end = Coords::new(1, 0, 0, 0, 0, 0);
        assert!(wires.set_bit_errors(end, Port::YPlus, ErrorRate::NEVER).is_err());
    }
}

#[test]
fn downed_link_holds_messages() {
    for links in [Links::Direct, Links::Modelled] {
        link_down_and_up(&World::with(links, [3, 1, 1], InProcess::attach_nwp));
    }
}

fn link_down_and_up(world: &World) {
    let [near, far] = world.pair();
    let fabric = world.torus.wires().fabric();
    fabric.set_link(near.coords(), X_PLUS.port(), false).unwrap();
    let mut stream = near.open(X_PLUS, Channel::ALL[0]).unwrap();
    let mut sink = far.open(X_MINUS, Channel::ALL[0]).unwrap();
    let got = buffer(far, &[0; 128]);
    let credit = sink.credit(&got, 0, 128).unwrap();
    stream.send(&[7; 128], LONG_NS).unwrap();
    for _ in 0..10 {
        world.torus.advance(1_000_000_000);
        world.torus.run_pending();
    }
    assert!(near.link_status(X_PLUS).silent());
    let credit = sink.test(credit).unwrap_err();
    // The other link of the same node works.
    let mut other = near.open(X_MINUS, Channel::ALL[0]).unwrap();
    let third = world.node(Coords::new(2, 0, 0, 0, 0, 0));
    let mut other_sink = third.open(X_PLUS, Channel::ALL[0]).unwrap();
    let other_got = buffer(third, &[0; 128]);
    let other_credit = other_sink.credit(&other_got, 0, 128).unwrap();
    other.send(&[8; 128], LONG_NS).unwrap();
    assert_eq!(world.end(&mut other_sink, other_credit), ok(128));
    fabric.set_link(near.coords(), X_PLUS.port(), true).unwrap();
    assert_eq!(world.end(&mut sink, credit), ok(128));
    assert_eq!(bytes(&got), [7; 128]);
    assert!(!near.link_status(X_PLUS).silent());
    assert_eq!(near.link_counters(X_PLUS).nacks_received, 0);
}

/// Packets that wait for a link do not reference their memory, which may change once the Nget is
/// over.
#[test]
fn fetched_message_is_kept_for_its_link() {
    let world = World::new(2, 1, 1);
    let [near, far] = world.pair();
    let mut stream = near.open(X_PLUS, Channel::ALL[1]).unwrap();
    let mut sink = far.open(X_MINUS, Channel::ALL[1]).unwrap();
    let fabric = world.torus.wires().fabric();
    fabric.set_link(near.coords(), X_PLUS.port(), false).unwrap();
    let len = 3 * PACKET_DATA + 1;
    let source = buffer(near, &message(len, 1));
    let nget = stream.send_from(&source, 0, len).unwrap();
    world.torus.run_pending();
    let nget = stream.test(nget).unwrap_err();
    assert_eq!(world.end(&mut stream, nget), ok(len));
    source.write(0, &message(len, 2));
    fabric.set_link(near.coords(), X_PLUS.port(), true).unwrap();
    let got = buffer(far, &vec![0; len]);
    let credit = sink.credit(&got, 0, len).unwrap();
    assert_eq!(world.end(&mut sink, credit), ok(len));
    assert_eq!(bytes(&got), message(len, 1));
}

#[test]
fn reset_neighbour_cuts_its_messages() {
    let world = World::new(2, 1, 1);
    let [near, far] = world.pair();
    let mut sink = far.open(X_MINUS, Channel::ALL[2]).unwrap();
    let got = buffer(far, &[0; 1024]);
    let credit = sink.credit(&got, 0, 1024).unwrap();
    // The first half of a message.
    let place = WindowPlace { link: X_PLUS, channel: Channel::ALL[2], at: 0, last: false };
    let function = world.torus.node(near.coords()).unwrap();
    for at in (0..512).step_by(64) {
        function.bar_write(WINDOW_BAR, place.offset() + at, &[9; 64]);
    }
    let credit = sink.test(credit).unwrap_err();
    assert_eq!(sink.read(ChannelReg::Credits), 1);
    let reset = tofu_abi::tnw::Control(0).with_reset(true).with_enable(true).0;
    near.platform().bar0_write64(Register::Nwp(NwpReg::Control).offset(), reset);
    assert_eq!(world.end(&mut sink, credit), Outcome { status: Status::Cut, length: 512 },);
    assert_eq!(far.read(Register::Link(X_MINUS, LinkReg::Renewals)), 1);
    // From then on both directions work as usual.
    let mut stream = near.open(X_PLUS, Channel::ALL[2]).unwrap();
    let credit = sink.credit(&got, 0, 1024).unwrap();
    stream.send(&message(1024, 5), LONG_NS).unwrap();
    assert_eq!(world.end(&mut sink, credit), ok(1024));
    assert_eq!(bytes(&got), message(1024, 5));
    let back = buffer(near, &[0; 300]);
    let credit = stream.credit(&back, 0, 300).unwrap();
    sink.send(&message(300, 6), LONG_NS).unwrap();
    assert_eq!(world.end(&mut stream, credit), ok(300));
    assert_eq!(bytes(&back), message(300, 6));
}

#[test]
fn lengths_that_do_not_agree_are_told() {
    let world = World::new(2, 1, 1);
    let [near, far] = world.pair();
    let mut stream = near.open(X_PLUS, Channel::ALL[0]).unwrap();
    let mut sink = far.open(X_MINUS, Channel::ALL[0]).unwrap();
    let got = buffer(far, &[0; 4096]);
    for (sent, credited, outcome) in [
        (256, 1024, Outcome { status: Status::Short, length: 256 }),
        (1024, 200, Outcome { status: Status::Truncated, length: 200 }),
        (200, 250, ok(250)),
        (512, 512, ok(512)),
    ] {
        let credit = sink.credit(&got, 0, credited).unwrap();
        stream.send(&message(sent, sent), LONG_NS).unwrap();
        assert_eq!(world.end(&mut sink, credit), outcome, "{sent} to {credited}");
    }
    assert_eq!(bytes(&got)[..512], message(512, 512));
    assert_eq!(stream.send(&[], 0), Err(SendError::Length(0)));
    let range = PostError::Range { at: 4000, len: 97, buffer: 4096 };
    assert_eq!(sink.credit(&got, 4000, 97).unwrap_err(), range);
    assert!(sink.credit(&got, 0, 0).is_err());
}

/// Requests that are posted directly by registers end with this status; other channels are not
/// affected.
#[test]
fn impossible_posts_are_refused_by_status() {
    let world = World::new(2, 1, 1);
    let [near, far] = world.pair();
    let words = buffer(near, &[0; 8]);
    let memory = buffer(near, &[0; 4096]);
    let (good, notify) = (memory.device_addr(), words.device_addr());
    let post = |link: Link, credit: bool, address: u64, length: u64, notify: u64| {
        use ChannelReg as R;
        let registers = match credit {
            true => [R::CreditAddress, R::CreditLength, R::CreditNotify, R::CreditStart],
            false => [R::NgetAddress, R::NgetLength, R::NgetNotify, R::NgetStart],
        };
        words.store_u64(0, 0, std::sync::atomic::Ordering::Relaxed);
        let start = Start(0).with_tag(77).0;
        for (reg, value) in registers.into_iter().zip([address, length, notify, start]) {
            let at = Register::Channel(link, Channel::ALL[5], reg).offset();
            near.platform().bar0_write64(at, value);
        }
        let word = Notification(words.load_u64(0, std::sync::atomic::Ordering::Acquire));
        (word.done(), word.tag(), Status::from_raw(word.status()))
    };
    for credit in [true, false] {
        for (link, address, length, status) in [
            (X_PLUS, good, 0, Status::BadLength),
            (X_PLUS, good, MAX_MESSAGE + 1, Status::BadLength),
            (X_PLUS, good, u64::MAX, Status::BadLength),
            (X_PLUS, 0, 128, Status::BadAddress),
            (X_PLUS, 1 << 40, 128, Status::BadAddress),
            (X_PLUS, u64::MAX - 100, 128, Status::BadAddress),
            (X_PLUS, good, MAX_MESSAGE, Status::BadAddress),
            (Link::ALL[4], good, 128, Status::NoLink),
        ] {
            let end = post(link, credit, address, length, notify);
            assert_eq!(end, (true, 77, Some(status)), "{credit} {address:#x} {length}");
        }
        // No notification is possible.
        for bad in [0, 1 << 40, notify + 4, u64::MAX] {
            assert_eq!(post(X_PLUS, credit, good, 128, bad), (false, 0, Some(Status::Ok)));
        }
    }
    let refused = Register::Channel(X_PLUS, Channel::ALL[5], ChannelReg::Refused);
    assert_eq!(near.read(refused), 2 * (7 + 4));
    let errors = Errors(near.read(Register::Nwp(NwpReg::Errors)));
    assert_eq!(errors, Errors(0).with_refused(true));
    near.platform().bar0_write64(Register::Nwp(NwpReg::Errors).offset(), u64::MAX);
    assert_eq!(near.read(Register::Nwp(NwpReg::Errors)), 0);
    // All of that does not affect users that keep to the rules.
    let mut stream = near.open(X_PLUS, Channel::ALL[5]).unwrap();
    let mut sink = far.open(X_MINUS, Channel::ALL[5]).unwrap();
    let got = buffer(far, &[0; 128]);
    let credit = sink.credit(&got, 0, 128).unwrap();
    stream.send(&[3; 128], LONG_NS).unwrap();
    assert_eq!(world.end(&mut sink, credit), ok(128));
    assert_eq!(near.open(Link::ALL[2], Channel::ALL[0]).err(), Some(OpenError::NoLink));
}

#[test]
fn unmatched_credits_can_be_cancelled() {
    let world = World::new(2, 1, 1);
    let [near, far] = world.pair();
    let mut sink = far.open(X_MINUS, Channel::ALL[0]).unwrap();
    let got = buffer(far, &[0; 128]);
    let credits: Vec<_> = (0..CREDIT_QUEUE).map(|_| sink.credit(&got, 0, 128).unwrap()).collect();
    assert_eq!(sink.credit(&got, 0, 128).unwrap_err(), PostError::Full);
    sink.cancel();
    let cancelled = Outcome { status: Status::Cancelled, length: 0 };
    for credit in credits {
        assert_eq!(sink.test(credit), Ok(cancelled));
    }
    assert_eq!(sink.read(ChannelReg::Credits), 0);
    let credit = sink.credit(&got, 0, 128).unwrap();
    let mut stream = near.open(X_PLUS, Channel::ALL[0]).unwrap();
    stream.send(&[1; 128], LONG_NS).unwrap();
    assert_eq!(world.end(&mut sink, credit), ok(128));
}

#[test]
fn begun_nget_can_be_cancelled() {
    let world = World::new(2, 1, 1);
    let [near, far] = world.pair();
    let mut stream = near.open(X_PLUS, Channel::ALL[0]).unwrap();
    let len = 2 * RECEPTION_FIFO * PACKET_DATA;
    let source = buffer(near, &message(len, 1));
    let nget = stream.send_from(&source, 0, len).unwrap();
    world.torus.run_pending();
    stream.cancel();
    let end = stream.test(nget).unwrap();
    assert_eq!((end.status, end.length as usize), (Status::Cancelled, len / 2));
    // The part that was sent is a short message, and the next message is complete.
    stream.send(&message(128, 2), LONG_NS).unwrap();
    let mut sink = far.open(X_MINUS, Channel::ALL[0]).unwrap();
    let got = buffer(far, &vec![0; len]);
    let first = sink.credit(&got, 0, len).unwrap();
    let short = Outcome { status: Status::Short, length: (len / 2 + PACKET_DATA) as u32 };
    assert_eq!(world.end(&mut sink, first), short);
    assert_eq!(bytes(&got)[..len / 2], message(len, 1)[..len / 2]);
    let second = sink.credit(&got, 0, 128).unwrap();
    assert_eq!(world.end(&mut sink, second), ok(128));
    assert_eq!(bytes(&got)[..128], message(128, 2));
}

#[test]
fn stores_that_no_message_has_are_counted() {
    let world = World::new(2, 1, 1);
    let [near, _] = world.pair();
    let function = world.torus.node(near.coords()).unwrap();
    let read = |reg| near.read(Register::Nwp(reg));
    // A link that does not exist, a link without a neighbour, a place beyond a window, and stores
    // that are too long or empty.
    let places: [(u64, usize); 5] = [
        (WINDOW_SIZE * 48, 64),
        (
            WindowPlace { link: Link::ALL[2], channel: Channel::ALL[0], at: 0, last: false }
                .offset(),
            64,
        ),
        (tofu_abi::tnw::window(X_PLUS, Channel::ALL[0]) + WINDOW_RING - 32, 64),
        (tofu_abi::tnw::window(X_PLUS, Channel::ALL[0]), 65),
        (tofu_abi::tnw::window(X_PLUS, Channel::ALL[0]), 0),
    ];
    for (index, (offset, len)) in places.into_iter().enumerate() {
        function.bar_write(WINDOW_BAR, offset, &vec![1; len]);
        assert_eq!(read(NwpReg::StrayStores), index as u64 + 1);
    }
    let at = tofu_abi::tnw::window(X_PLUS, Channel::ALL[0]);
    function.bar_write(WINDOW_BAR, at, &[1; 8]);
    function.bar_write(WINDOW_BAR, at + 4, &[2; 8]);
    let overlaps = Register::Channel(X_PLUS, Channel::ALL[0], ChannelReg::Overlaps);
    assert_eq!(near.read(overlaps), 1);
    near.platform().bar0_read64(0x7000);
    assert_eq!(read(NwpReg::BadAccesses), 1);
    let errors = Errors(0).with_stray_store(true).with_overlap(true).with_bad_access(true);
    assert_eq!(Errors(read(NwpReg::Errors)), errors);
    let mut data = [0; 8];
    function.bar_read(WINDOW_BAR, at, &mut data);
    assert_eq!(data, [0; 8], "windows cannot be read");
}

#[test]
fn interrupts_come_if_asked_for() {
    let world = World::new(2, 1, 1);
    let [near, far] = world.pair();
    let mut stream = near.open(X_PLUS, Channel::ALL[0]).unwrap();
    let mut sink = far.open(X_MINUS, Channel::ALL[0]).unwrap();
    let got = buffer(far, &[0; 128]);
    let quiet = sink.credit(&got, 0, 128).unwrap();
    stream.send(&[1; 128], LONG_NS).unwrap();
    assert_eq!(world.end(&mut sink, quiet), ok(128));
    let irq = X_MINUS.index() as u16;
    assert!(!far.platform().irq_wait(irq, 0));
    sink.use_interrupts().unwrap();
    let loud = sink.credit(&got, 0, 128).unwrap();
    stream.send(&[2; 128], LONG_NS).unwrap();
    assert!(far.platform().irq_wait(irq, 0));
    assert_eq!(sink.wait(loud, LONG_NS), Ok(ok(128)));
    // Errors have their own vector.
    assert!(!near.platform().irq_wait(vector::ERROR, 0));
    near.platform().bar0_read64(0x7000);
    assert!(near.platform().irq_wait(vector::ERROR, 0));
}

#[test]
fn engine_and_threads_send_at_once() {
    threads_that_send(Doorbells::Trapped, InProcess::attach_nwp);
}

#[test]
fn engine_polls_windows_of_threads() {
    threads_that_send(Doorbells::Polled, InProcess::attach_sharing_nwp);
}

#[test]
fn engine_is_notified_of_threads_windows() {
    threads_that_send(Doorbells::Trapped, InProcess::attach_sharing_nwp);
}

fn threads_that_send(doorbells: Doorbells, attach: Attach) {
    threads_that_send_beside(1, Links::Direct, doorbells, attach);
}

#[test]
fn engines_that_share_nodes_keep_order() {
    let shared = InProcess::attach_sharing_nwp;
    threads_that_send_beside(3, Links::Direct, Doorbells::Polled, shared);
    threads_that_send_beside(2, Links::Direct, Doorbells::Trapped, InProcess::attach_nwp);
}

#[test]
fn modelled_links_keep_the_order_of_threads() {
    threads_that_send_beside(2, Links::Modelled, Doorbells::Trapped, InProcess::attach_nwp);
}

fn threads_that_send_beside(engines: usize, links: Links, doorbells: Doorbells, attach: Attach) {
    let shape = Shape::new([2, 2, 1, 1, 1, 1]).unwrap();
    let torus = Torus::new(TorusConfig { shape, links, engines }).unwrap();
    torus.set_doorbells(doorbells);
    torus.start().unwrap();
    let world = World::of(torus, attach);
    let shape = *world.torus.wires().fabric().shape();
    std::thread::scope(|scope| {
        for coords in shape.iter() {
            for link in [X_PLUS, Link::ALL[3]] {
                let (world, channel) = (&world, Channel::ALL[link.index()]);
                let neighbour = shape.neighbor(coords, link.port()).unwrap();
                scope.spawn(move || {
                    let mut stream = world.node(coords).open(link, channel).unwrap();
                    for n in 0..200 {
                        stream.send(&message(1 + n * 37, n), LONG_NS).unwrap();
                    }
                    // The window's last bytes are still on their way when the stream ends.
                });
                scope.spawn(move || {
                    let node = world.node(neighbour);
                    let mut sink = node.open(link.opposite(), channel).unwrap();
                    let got = buffer(node, &vec![0; 200 * 37]);
                    for n in 0..200 {
                        let len = 1 + n * 37;
                        let credit = sink.credit(&got, 0, len).unwrap();
                        assert_eq!(sink.wait(credit, LONG_NS), Ok(ok(len)));
                        assert_eq!(bytes(&got)[..len], message(len, n));
                    }
                });
            }
        }
    });
    for node in &world.nodes {
        let resent: u64 = Link::ALL.map(|link| node.link_counters(link).nacks_sent).iter().sum();
        assert_eq!(resent, 0, "what goes over a link stays in order");
    }
}

/// Messages of all lengths in both directions between all neighbours of a machine in two
/// shards.
#[test]
fn shards_exchange_messages_over_cables() {
    let shape = Shape::new([4, 2, 1, 1, 1, 1]).unwrap();
    let config = TorusConfig::new(shape);
    let shards = InShards::of(2, |surroundings| Torus::within(config, surroundings).unwrap());
    let attach = |at| InProcess::attach_nwp(shards.with(at), at, MEMORY).unwrap();
    let nodes: Vec<_> = shape.iter().map(|at| Nwp::probe(attach(at)).unwrap()).collect();
    let node = |at: Coords| &nodes[shape.node_id(at).unwrap().index()];
    std::thread::scope(|scope| {
        for at in shape.iter() {
            for link in [X_MINUS, X_PLUS, Link::ALL[3]] {
                let far = shape.neighbor(at, link.port()).unwrap();
                let channel = Channel::ALL[link.index()];
                let node = &node;
                scope.spawn(move || {
                    let mut stream = node(at).open(link, channel).unwrap();
                    for n in 0..20 {
                        stream.send(&message(1 + n * 500, n), LONG_NS).unwrap();
                    }
                    let source = buffer(node(at), &message(200_000, 99));
                    let fetched = stream.send_from(&source, 0, 200_000).unwrap();
                    assert_eq!(stream.wait(fetched, LONG_NS), Ok(ok(200_000)));
                });
                scope.spawn(move || {
                    let mut sink = node(far).open(link.opposite(), channel).unwrap();
                    let got = buffer(node(far), &vec![0; 200_000]);
                    for (n, len) in (0..20).map(|n| (n, 1 + n * 500)).chain([(99, 200_000)]) {
                        let credit = sink.credit(&got, 0, len).unwrap();
                        assert_eq!(sink.wait(credit, LONG_NS), Ok(ok(len)));
                        assert_eq!(bytes(&got)[..len], message(len, n));
                    }
                });
            }
        }
    });
    let counters = shards.machines()[0].network().cables(ShardId(1)).unwrap();
    assert!(counters.sent > 0 && counters.received > 0 && counters.refused == 0, "{counters:?}");
}

#[test]
fn cables_refuse_units_that_no_shard_sends() {
    let shape = Shape::new([2, 2, 1, 1, 1, 1]).unwrap();
    let config = TorusConfig::new(shape);
    let shards = InShards::of(2, |surroundings| Torus::within(config, surroundings).unwrap());
    let network = shards.machines()[0].network();
    for message in [&[][..], &[9], &[1], &[1; 60], &[1; 400], &[2, 0, 0]] {
        assert!(network.receive(ShardId(1), message).is_err(), "{message:?}");
    }
    assert_eq!(network.cables(ShardId(1)).unwrap().refused, 6);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Messages of several channels, whose packets are interleaved in any order, are sent through
    /// registers or through windows in memory, over links that lose, damage, repeat and reorder.
    /// They arrive with the same bytes in the same order.
    #[test]
    fn interleavings_keep_the_bytes(
        lengths in prop::collection::vec((0..3usize, 1..2000usize), 1..8),
        order in prop::collection::vec(0..3usize, 0..100),
        parts in [0..150_000u32, 0..150_000, 0..100_000, 0..100_000],
        seed in any::<u64>(),
        [shared, modelled] in any::<[bool; 2]>(),
    ) {
        let attach = if shared { InProcess::attach_sharing_nwp } else { InProcess::attach_nwp };
        let links = if modelled { Links::Modelled } else { Links::Direct };
        let world = World::with(links, [2, 1, 1], attach);
        let [near, far] = world.pair();
        let [loss, corrupt, duplicate, reorder] = parts.map(|parts| Ppm::new(parts).unwrap());
        let everywhere = Rates { loss, corrupt, duplicate, reorder, ..Rates::NONE };
        let plan = FaultPlan { seed, everywhere, ..FaultPlan::default() };
        world.torus.wires().set_faults(Some(plan)).unwrap();
        let channels = [0, 3, 7].map(|channel| Channel::ALL[channel]);
        let mut streams = channels.map(|channel| near.open(X_PLUS, channel).unwrap());
        let mut sinks = channels.map(|channel| far.open(X_MINUS, channel).unwrap());
        let mut messages: [VecDeque<Vec<u8>>; 3] = Default::default();
        let mut credits = Vec::new();
        for (n, (which, len)) in lengths.into_iter().enumerate() {
            let sent = message(len, n);
            let got = buffer(far, &vec![0; len]);
            let credit = sinks[which].credit(&got, 0, len).unwrap();
            credits.push((which, sent.clone(), got, credit));
            messages[which].push_back(sent);
        }
        let mut rest: [usize; 3] = [0; 3];
        // In the order that is drawn, then what is left.
        let all = order.into_iter().chain((0..10_000).map(|n| n % 3));
        for which in all {
            let Some(sent) = messages[which].front() else { continue };
            match streams[which].send_packet(&sent[rest[which]..]) {
                Some([]) => {
                    messages[which].pop_front();
                    rest[which] = 0;
                }
                Some(tail) => rest[which] = sent.len() - tail.len(),
                None => {
                    world.torus.run_pending();
                    world.torus.advance(1_000_000);
                }
            }
        }
        prop_assert!(messages.iter().all(VecDeque::is_empty));
        for (which, sent, got, credit) in credits {
            prop_assert_eq!(world.end(&mut sinks[which], credit), ok(sent.len()));
            prop_assert_eq!(bytes(&got), sent);
        }
    }
}
