//! Two ends of a link, and wires that lose, damage, repeat and reorder units.

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;
use tofu_abi::tnw::{CHANNELS, Channel, PACKET_DATA, RECEPTION_FIFO};
use tofu_fabric::Disturb;
use tofu_tnw_device::{Arrival, Data, LinkEnd, NEVER, Room, TIMEOUT_NS, TX_BUFFER, Unit};

/// The fate of a unit on a wire.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Fine,
    Lost,
    Damaged(u64),
    Twice,
    /// It arrives after this many others, or when nothing else is in flight.
    Late(u8),
    /// The packets of a run arrive one by one, and only this many of them.
    Part(u8),
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = prop_oneof![
        4 => Just(Fate::Fine),
        2 => Just(Fate::Lost),
        2 => any::<u64>().prop_map(Fate::Damaged),
        1 => Just(Fate::Twice),
        1 => (1..9u8).prop_map(Fate::Late),
        2 => (0..9u8).prop_map(Fate::Part),
    ];
    prop::collection::vec(fate, 0..300)
}

/// One direction of a link.
#[derive(Default)]
struct Wire {
    /// The fates of the next units. Later units arrive intact.
    fates: VecDeque<Fate>,
    queue: VecDeque<Unit>,
    late: Vec<(u8, Unit)>,
}

impl Wire {
    fn put(&mut self, mut unit: Unit) {
        match self.fates.pop_front().unwrap_or(Fate::Fine) {
            Fate::Fine => self.queue.push_back(unit),
            Fate::Lost => {}
            Fate::Damaged(random) => {
                unit.damage(random, false);
                self.queue.push_back(unit);
            }
            Fate::Twice => {
                self.queue.push_back(unit.clone());
                self.queue.push_back(unit);
            }
            Fate::Late(others) => self.late.push((others, unit)),
            Fate::Part(packets) => match &unit {
                Unit::Data(data) => {
                    let packets = data.to_wire().take(packets.into());
                    self.queue.extend(packets.filter_map(|bytes| Unit::from_wire(&bytes)));
                }
                Unit::Control(_) => self.queue.push_back(unit),
            },
        }
        for (others, _) in &mut self.late {
            *others = others.saturating_sub(1);
        }
        while let Some(index) = self.late.iter().position(|(others, _)| *others == 0) {
            self.queue.push_back(self.late.remove(index).1);
        }
    }

    fn get(&mut self) -> Option<Unit> {
        self.queue.pop_front().or_else(|| self.late.pop().map(|(_, unit)| unit))
    }
}

/// A node: an end, its packets to send, and its reception FIFOs.
struct Node {
    end: LinkEnd,
    to_send: [VecDeque<Data>; CHANNELS],
    fifos: [VecDeque<Data>; CHANNELS],
    received: [Vec<u8>; CHANNELS],
    /// Channels whose FIFOs are not emptied.
    stuck: [bool; CHANNELS],
    renewed: u32,
}

impl Node {
    fn new(life: u16) -> Self {
        Self {
            end: LinkEnd::new(life),
            to_send: Default::default(),
            fifos: Default::default(),
            received: Default::default(),
            stuck: Default::default(),
            renewed: 0,
        }
    }

    fn room(&self) -> Room {
        std::array::from_fn(|c| {
            let packets: u16 = self.fifos[c].iter().map(Data::packets).sum();
            RECEPTION_FIFO as u16 - packets
        })
    }

    fn send(&mut self, now: u64, wire: &mut Wire) {
        for channel in Channel::ALL {
            while let Some(data) = self.to_send[channel.index()].front() {
                if data.packets() > self.end.may_send(channel) {
                    self.end.stall(channel, now);
                    break;
                }
                let data = data.clone();
                self.to_send[channel.index()].pop_front();
                self.end.idle(channel);
                self.end.send(data, now, &mut |unit| wire.put(unit));
            }
        }
    }

    fn arrive(&mut self, unit: Unit, now: u64, wire: &mut Wire) {
        let room = self.room();
        match self.end.arrive(unit, &room, now, &mut |unit| wire.put(unit)) {
            Arrival::Nothing => {}
            Arrival::Data(data) => self.fifos[data.channel().index()].push_back(data),
            Arrival::Renewed => self.renewed += 1,
        }
        let room = self.room();
        self.end.answer(&room, &mut |unit| wire.put(unit));
    }

    /// Empties FIFOs.
    fn take(&mut self, wire: &mut Wire) {
        for c in 0..CHANNELS {
            if !self.stuck[c] {
                for data in self.fifos[c].drain(..) {
                    self.received[c].extend_from_slice(data.payload());
                }
            }
        }
        let room = self.room();
        self.end.answer(&room, &mut |unit| wire.put(unit));
    }
}

struct World {
    a: Node,
    b: Node,
    to_b: Wire,
    to_a: Wire,
    now: u64,
}

impl World {
    fn new(to_b: Vec<Fate>, to_a: Vec<Fate>) -> Self {
        let wire = |fates: Vec<Fate>| Wire { fates: fates.into(), ..Wire::default() };
        let (to_b, to_a) = (wire(to_b), wire(to_a));
        let mut world = Self { a: Node::new(1), b: Node::new(1), to_b, to_a, now: 0 };
        let World { a, b, to_b, to_a, .. } = &mut world;
        a.end.greet(&a.room(), &mut |unit| to_b.put(unit));
        b.end.greet(&b.room(), &mut |unit| to_a.put(unit));
        world
    }

    /// Runs until nothing happens and no deadline is pending, except for stalled channels.
    fn run(&mut self) {
        for _ in 0..100_000 {
            let Self { a, b, to_b, to_a, now } = self;
            a.send(*now, to_b);
            b.send(*now, to_a);
            let mut moved = false;
            if let Some(unit) = to_b.get() {
                b.arrive(unit, *now, to_a);
                moved = true;
            }
            if let Some(unit) = to_a.get() {
                a.arrive(unit, *now, to_b);
                moved = true;
            }
            a.take(to_b);
            b.take(to_a);
            if moved || !to_a.queue.is_empty() || !to_b.queue.is_empty() {
                continue;
            }
            let waits = |node: &Node| {
                node.end.unacknowledged() > 0
                    || (0..CHANNELS).any(|c| !node.stuck[c] && !node.to_send[c].is_empty())
            };
            if !waits(a) && !waits(b) {
                return;
            }
            let next = a.end.deadline().min(b.end.deadline());
            assert_ne!(next, NEVER, "something waits for ever");
            *now = next.max(*now);
            let (room_a, room_b) = (a.room(), b.room());
            a.end.expire(&room_a, *now, &mut |unit| to_b.put(unit));
            b.end.expire(&room_b, *now, &mut |unit| to_a.put(unit));
        }
        panic!("it does not come to an end");
    }
}

/// Packets with their own contents.
fn data(channel: Channel, packets: u8, first: u8) -> Data {
    let bytes = (0..packets).flat_map(|n| [first.wrapping_add(n); PACKET_DATA]);
    let payload: Arc<[u8]> = bytes.collect();
    Data::new(channel, 0, false, payload)
}

type Sends = Vec<(usize, u8)>;

fn sends() -> impl Strategy<Value = Sends> {
    prop::collection::vec((0..CHANNELS, 1..9u8), 0..60)
}

fn queue(node: &mut Node, sends: &Sends) -> [Vec<u8>; CHANNELS] {
    let mut sent: [Vec<u8>; CHANNELS] = Default::default();
    for (number, &(c, packets)) in (0..).zip(sends) {
        let data = data(Channel::ALL[c], packets, number);
        sent[c].extend_from_slice(data.payload());
        node.to_send[c].push_back(data);
    }
    sent
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Everything arrives once and in order on every channel, regardless of faults of the wires.
    #[test]
    fn link_keeps_all_in_order(
        to_b in fates(),
        to_a in fates(),
        from_a in sends(),
        from_b in sends(),
    ) {
        let mut world = World::new(to_b, to_a);
        let sent_a = queue(&mut world.a, &from_a);
        let sent_b = queue(&mut world.b, &from_b);
        world.run();
        prop_assert_eq!(&world.b.received, &sent_a);
        prop_assert_eq!(&world.a.received, &sent_b);
        prop_assert_eq!(world.a.renewed + world.b.renewed, 0);
        let packets: u64 = from_a.iter().map(|(_, packets)| u64::from(*packets)).sum();
        prop_assert_eq!(world.a.end.counters().sent, packets);
        prop_assert_eq!(world.b.end.counters().received, packets);
        prop_assert!(!world.a.end.is_resending() && !world.a.end.is_silent());
    }

    /// A channel from which no packets are taken fills up and stalls alone.
    #[test]
    fn full_channel_stalls_no_other(
        to_b in fates(),
        to_a in fates(),
        from_a in sends(),
        full in 0..CHANNELS,
    ) {
        let mut world = World::new(to_b, to_a);
        world.b.stuck[full] = true;
        world.a.stuck[full] = true;
        let mut sent = queue(&mut world.a, &from_a);
        for number in 0..(RECEPTION_FIFO / 8 + 24) as u8 {
            let data = data(Channel::ALL[full], 8, number);
            sent[full].extend_from_slice(data.payload());
            world.a.to_send[full].push_back(data);
        }
        world.run();
        for c in (0..CHANNELS).filter(|c| *c != full) {
            prop_assert_eq!(&world.b.received[c], &sent[c]);
        }
        prop_assert!(world.b.received[full].is_empty());
        prop_assert!(!world.a.to_send[full].is_empty());
        // Then the channel is emptied.
        world.b.stuck[full] = false;
        world.a.stuck[full] = false;
        world.run();
        prop_assert_eq!(&world.b.received, &sent);
    }

    /// After a reset of one end, everything that either end sends from then on arrives.
    #[test]
    fn reset_ends_only_its_own(
        to_b in fates(),
        to_a in fates(),
        before in sends(),
        from_b in sends(),
        after in sends(),
        steps in 0..200usize,
    ) {
        let mut world = World::new(to_b, to_a);
        queue(&mut world.a, &before);
        let sent_b = queue(&mut world.b, &from_b);
        for _ in 0..steps {
            let World { a, b, to_b, to_a, now } = &mut world;
            a.send(*now, to_b);
            b.send(*now, to_a);
            if let Some(unit) = to_b.get() {
                b.arrive(unit, *now, to_a);
            }
            if let Some(unit) = to_a.get() {
                a.arrive(unit, *now, to_b);
            }
        }
        // Packets that A has received before its reset are lost with it.
        let forgotten: [usize; CHANNELS] = std::array::from_fn(|c| {
            world.a.fifos[c].iter().map(|data| data.payload().len()).sum()
        });
        let mut renewed = Node::new(2);
        let sent_a = queue(&mut renewed, &after);
        world.a = renewed;
        let World { a, to_b, .. } = &mut world;
        a.end.greet(&a.room(), &mut |unit| to_b.put(unit));
        world.run();
        for c in 0..CHANNELS {
            prop_assert!(world.b.received[c].ends_with(&sent_a[c]), "channel {}", c);
            // A packet whose feedback was in flight at the reset is sent again.
            let got = &world.a.received[c];
            prop_assert!(sent_b[c].ends_with(got));
            prop_assert!(got.len() + forgotten[c] >= sent_b[c].len());
        }
    }
}

#[test]
fn faultless_link_repeats_nothing() {
    let mut world = World::new(Vec::new(), Vec::new());
    let sends: Sends = (0..200).map(|n| (n % CHANNELS, 8)).collect();
    let sent = queue(&mut world.a, &sends);
    world.run();
    assert_eq!(world.b.received, sent);
    let (a, b) = (world.a.end.counters(), world.b.end.counters());
    assert_eq!((a.resent, a.nacks_received, a.timeouts), (0, 0, 0));
    assert_eq!((b.nacks_sent, b.crc_errors, b.sequence_errors), (0, 0, 0));
    assert_eq!(world.now, 0, "nothing was waited for");
}

#[test]
fn error_brings_nack_restart_and_resend() {
    // First the initial HELLO, RESTART and ACK, then data.
    let mut world = World::new(Vec::new(), Vec::new());
    world.run();
    world.to_b.fates = [Fate::Fine, Fate::Damaged(0)].into();
    let sends = vec![(0, 1); 4];
    let sent = queue(&mut world.a, &sends);
    world.run();
    assert_eq!(world.b.received, sent);
    let (a, b) = (world.a.end.counters(), world.b.end.counters());
    assert_eq!((b.crc_errors, b.nacks_sent, a.nacks_received), (1, 1, 1));
    // The second packet is sent again, and so are the discarded ones behind it.
    assert_eq!((a.resent, b.discarded, b.received), (3, 2, 4));
    assert_eq!(a.timeouts, 0);
}

#[test]
fn unanswered_sender_backs_off_and_reports() {
    let mut node = Node::new(1);
    node.to_send[0].push_back(data(Channel::ALL[0], 1, 0));
    let (mut now, mut nowhere) = (0, Wire::default());
    let mut waits = Vec::new();
    for _ in 0..10 {
        node.send(now, &mut nowhere);
        let deadline = node.end.deadline();
        waits.push((deadline - now) / TIMEOUT_NS);
        now = deadline;
        let room = node.room();
        node.end.expire(&room, now, &mut |unit| nowhere.put(unit));
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 64, 64, 64]);
    assert!(node.end.is_silent() && !node.end.is_answered());
    assert_eq!(nowhere.queue.len(), 10, "one HELLO each time");
}

#[test]
fn rest_of_a_partial_run_is_resent() {
    let mut world = World::new(Vec::new(), Vec::new());
    world.run();
    world.to_b.fates = [Fate::Part(3)].into();
    let sent = queue(&mut world.a, &vec![(0, 8)]);
    world.run();
    assert_eq!(world.b.received, sent);
    assert_eq!((world.a.end.counters().resent, world.b.end.counters().discarded), (5, 0));
    // If the acknowledgement is lost, the receiver discards the repeated packets.
    world.to_b.fates = [Fate::Part(3)].into();
    world.to_a.fates = vec![Fate::Lost; 3].into();
    world.b.received = Default::default();
    let sent = queue(&mut world.a, &vec![(0, 8)]);
    world.run();
    assert_eq!(world.b.received, sent);
    assert_eq!((world.a.end.counters().resent, world.b.end.counters().discarded), (13, 3));
}

#[test]
fn stalled_sender_keeps_its_timeout() {
    let mut world = World::new(Vec::new(), Vec::new());
    world.run();
    (world.a.stuck[0], world.b.stuck[0]) = (true, true);
    queue(&mut world.a, &vec![(0, 8); RECEPTION_FIFO / 8 + 4]);
    world.run();
    // Requests for room become ever less frequent.
    for _ in 0..6 {
        world.now = world.a.end.deadline();
        let room = world.a.room();
        world.a.end.expire(&room, world.now, &mut |unit| world.to_b.put(unit));
        world.run();
    }
    let waits = |world: &World| (world.a.end.deadline() - world.now) / TIMEOUT_NS;
    assert_eq!(waits(&world), 64);
    // Answers to another channel's packets are awaited as usual.
    queue(&mut world.a, &vec![(1, 1)]);
    world.a.send(world.now, &mut world.to_b);
    assert_eq!(waits(&world), 1);
    world.run();
    // When there is room, the stalled packets are sent; then nothing is pending.
    (world.a.stuck[0], world.b.stuck[0]) = (false, false);
    let World { a, b, to_b, to_a, now } = &mut world;
    b.take(to_a);
    while let Some(unit) = to_a.get() {
        a.arrive(unit, *now, to_b);
    }
    a.send(*now, to_b);
    assert_eq!(waits(&world), 1);
    world.run();
    assert_eq!(world.a.end.deadline(), NEVER);
}

#[test]
fn in_flight_packets_fit_the_buffer() {
    let mut world = World::new(Vec::new(), Vec::new());
    world.run();
    world.to_b.fates = vec![Fate::Lost; 4096].into();
    for c in 0..CHANNELS {
        for _ in 0..100 {
            world.a.to_send[c].push_back(data(Channel::ALL[c], 8, 0));
        }
    }
    world.a.send(0, &mut world.to_b);
    assert_eq!(world.a.end.unacknowledged(), TX_BUFFER);
    assert!(Channel::ALL.iter().all(|channel| world.a.end.may_send(*channel) == 0));
}
