//! Two devices, driven by the test's thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use proptest::prelude::*;
use tofu_abi::Coords;
use tofu_abi::tnw::{
    Channel, ChannelReg, Control, Link, LinkReg, Mark, Mode, NwpReg, PACKET_DATA, REGISTER_BAR,
    Register, WINDOW_BAR, WINDOW_PLACES, WINDOW_RING, WINDOW_SIZE, mark_offset, window,
};
use tofu_abi::topology::Shape;
use tofu_tnw_device::{Config, Host, Net, Nwp, SharedWindows, TIMEOUT_NS, Unit};
use vm_memory::{GuestAddress, GuestMemoryMmap, MmapRegion};

/// A host that drops notifications and whose time the test sets.
#[derive(Default)]
struct Surroundings(AtomicU64);

impl Host for Surroundings {
    fn interrupt(&self, _: u16) {}
    fn work(&self) {}
    fn timer(&self, _: u64) {}
    fn now_ns(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The units that were sent.
#[derive(Default)]
struct Sent(VecDeque<(Link, Unit)>);

impl Net for Sent {
    fn send(&mut self, link: Link, unit: Unit) {
        self.0.push_back((link, unit));
    }
}

const X_MINUS: Link = Link::ALL[0];
const X_PLUS: Link = Link::ALL[1];

struct Pair {
    host: Arc<Surroundings>,
    nodes: [Nwp; 2],
}

impl Pair {
    fn new() -> Self {
        Self::with(None)
    }

    /// Two devices. The windows of the first one can be memory.
    fn with(windows: Option<SharedWindows>) -> Self {
        let host = Arc::new(Surroundings::default());
        let shape = Shape::new([2, 1, 1, 1, 1, 1]).unwrap();
        let node = |x| {
            let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x1_0000)]);
            let config = Config {
                coords: Coords::new(x, 0, 0, 0, 0, 0),
                shape,
                life: 1,
                windows: windows.clone().filter(|_| x == 0),
            };
            let nwp = Nwp::new(config, Arc::clone(&host) as _, Arc::new(memory.unwrap()));
            nwp.set_bus_master(true);
            let enable = Control(0).with_enable(true).0.to_le_bytes();
            nwp.bar_write(REGISTER_BAR, Register::Nwp(NwpReg::Control).offset(), &enable);
            nwp
        };
        let nodes = [node(0), node(1)];
        let pair = Self { host, nodes };
        for _ in 0..4 {
            pair.run(0);
            pair.run(1);
        }
        pair
    }

    /// Stores a packet at a place in the windows of the first node.
    fn store(&self, at: u64) {
        for n in [0, 64] {
            self.nodes[0].bar_write(WINDOW_BAR, at + n, &[1; 64]);
        }
    }

    /// Does the pending work of one node and delivers to the other what it sends.
    fn run(&self, node: usize) {
        let mut sent = Sent::default();
        while self.nodes[node].run(&mut sent) {}
        self.hand_over(node, sent);
    }

    /// Handles the deadlines of a node that have passed.
    fn expire(&self, node: usize) {
        let mut sent = Sent::default();
        self.nodes[node].expire(self.host.now_ns(), &mut sent);
        self.hand_over(node, sent);
    }

    fn hand_over(&self, node: usize, sent: Sent) {
        for (link, unit) in sent.0 {
            self.nodes[1 - node].push(link.opposite(), unit);
        }
    }

    fn counter(&self, node: usize, link: Link, reg: LinkReg) -> u64 {
        self.nodes[node].read_register(Register::Link(link, reg))
    }
}

#[test]
fn unread_answer_counts_as_answer() {
    let pair = Pair::new();
    pair.store(window(X_PLUS, Channel::ALL[0]));
    pair.run(0);
    pair.run(1);
    // The thread of node 0 is late.
    pair.host.0.fetch_add(2 * TIMEOUT_NS, Relaxed);
    pair.expire(0);
    assert_eq!(pair.counter(0, X_PLUS, LinkReg::Timeouts), 0);
    assert_eq!(pair.counter(0, X_PLUS, LinkReg::Resent), 0);
    assert_eq!(pair.nodes[0].next_deadline(), u64::MAX);
    assert_eq!(pair.counter(1, X_MINUS, LinkReg::Received), 1);
}

#[test]
fn without_an_answer_there_is_a_time_out() {
    let pair = Pair::new();
    pair.store(window(X_PLUS, Channel::ALL[0]));
    pair.run(0);
    pair.host.0.fetch_add(2 * TIMEOUT_NS, Relaxed);
    pair.expire(0);
    assert_eq!(pair.counter(0, X_PLUS, LinkReg::Timeouts), 1);
    assert_eq!(pair.counter(0, X_PLUS, LinkReg::Resent), 1);
    assert_ne!(pair.nodes[0].next_deadline(), u64::MAX);
}

const CHANNEL: Channel = Channel::ALL[2];
const PACKET: u64 = PACKET_DATA as u64;

impl Pair {
    fn register(&self, reg: ChannelReg) -> u64 {
        self.nodes[0].read_register(Register::Channel(X_PLUS, CHANNEL, reg))
    }

    fn write(&self, reg: ChannelReg, value: u64) {
        let at = Register::Channel(X_PLUS, CHANNEL, reg).offset();
        self.nodes[0].bar_write(REGISTER_BAR, at, &value.to_le_bytes());
    }

    /// Runs both nodes until nothing moves.
    fn settle(&self) {
        for _ in 0..8 {
            self.run(0);
            self.run(1);
        }
    }
}

fn shared() -> (Pair, SharedWindows) {
    let region = MmapRegion::new(SharedWindows::SIZE).unwrap();
    let windows = SharedWindows::new(Arc::new(region)).unwrap();
    let pair = Pair::with(Some(windows.clone()));
    pair.write(ChannelReg::TxMode, Mode(0).with_shared(true).0);
    assert_eq!(pair.register(ChannelReg::TxMode), 1);
    (pair, windows)
}

/// Stores a packet as a guest does.
fn put(windows: &SharedWindows, number: u64, last: bool) {
    let (base, place) = (window(X_PLUS, CHANNEL), (number - 1) as usize % WINDOW_PLACES);
    windows.store(base + place as u64 * PACKET, &[number as u8; PACKET_DATA]);
    let mark = Mark(0).with_number(number).with_last(last);
    windows.store(base + mark_offset(place), &mark.0.to_le_bytes());
}

#[test]
fn window_is_memory_between_writes() {
    let (pair, windows) = shared();
    let at = window(X_PLUS, CHANNEL);
    // The guest must notify the device until the window is polled.
    assert_eq!(windows.load(at + tofu_abi::tnw::BELL_OFFSET), 1);
    put(&windows, 1, true);
    assert!(pair.nodes[0].window_rings(X_PLUS, CHANNEL));
    pair.write(ChannelReg::TxBell, 1);
    assert!(!pair.nodes[0].window_rings(X_PLUS, CHANNEL));
    pair.settle();
    assert_eq!(pair.counter(1, X_MINUS, LinkReg::Received), 1);
    assert_eq!(pair.register(ChannelReg::TxHead), PACKET);
    // Stores that reach the device itself have the same effect.
    pair.store(at + PACKET);
    let mark = Mark(0).with_number(2).0.to_le_bytes();
    pair.nodes[0].bar_write(WINDOW_BAR, at + mark_offset(1), &mark);
    let mut read = [0; 8];
    pair.nodes[0].bar_read(WINDOW_BAR, at + mark_offset(1), &mut read);
    assert_eq!(read, mark);
    pair.settle();
    assert_eq!(pair.counter(1, X_MINUS, LinkReg::Received), 2);
    // Emptying the window removes the marks of packets that were not sent.
    put(&windows, 4, true);
    pair.write(ChannelReg::Cancel, 2);
    put(&windows, 3, false);
    pair.write(ChannelReg::TxBell, 1);
    pair.settle();
    assert_eq!(pair.register(ChannelReg::TxTail), 3 * PACKET);
    // The window becomes registers again.
    pair.write(ChannelReg::TxMode, 0);
    put(&windows, 4, true);
    pair.write(ChannelReg::TxBell, 1);
    pair.settle();
    assert_eq!(pair.register(ChannelReg::TxTail), 3 * PACKET);
    assert!(!pair.nodes[0].window_rings(X_PLUS, CHANNEL));
    // A reset also turns it into registers, and its earlier contents cannot be seen afterwards.
    pair.write(ChannelReg::TxMode, 1);
    put(&windows, 9, true);
    pair.nodes[0].reset();
    assert_eq!(pair.register(ChannelReg::TxMode), 0);
    pair.write(ChannelReg::TxMode, 1);
    assert_eq!(pair.register(ChannelReg::TxMode), 0, "it is disabled");
    let enable = Control(0).with_enable(true).0.to_le_bytes();
    let control = Register::Nwp(NwpReg::Control).offset();
    pair.nodes[0].bar_write(REGISTER_BAR, control, &enable);
    pair.write(ChannelReg::TxMode, 1);
    assert_eq!(windows.load(at + mark_offset(8)), 0);
    assert_eq!(windows.load(at), 0);
}

#[test]
fn unfit_window_is_refused() {
    let pair = Pair::new();
    assert_eq!(pair.nodes[0].read_register(Register::Nwp(NwpReg::Features)), 0);
    pair.write(ChannelReg::TxMode, 1);
    assert_eq!(pair.register(ChannelReg::TxMode), 0);
    pair.write(ChannelReg::TxBell, 1);
    // A window of a link without a neighbour cannot be memory either.
    let (pair, _) = shared();
    let at = Register::Channel(Link::ALL[3], CHANNEL, ChannelReg::TxMode);
    pair.nodes[0].bar_write(REGISTER_BAR, at.offset(), &1u64.to_le_bytes());
    assert_eq!(pair.nodes[0].read_register(at), 0);
}

/// An action of a guest on a window that is memory.
#[derive(Clone, Debug)]
enum Deed {
    Bytes(u64, Vec<u8>),
    /// A mark for a place, for a packet this many laps and places from the next one.
    Mark(u64, i64, bool),
    Packets(u8),
    Bell,
    Empty,
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let deed = prop_oneof![
        (0..WINDOW_SIZE, prop::collection::vec(any::<u8>(), 1..300))
            .prop_map(|(at, bytes)| Deed::Bytes(at, bytes)),
        (0..128u64, -200..200i64, any::<bool>()).prop_map(|(p, n, last)| Deed::Mark(p, n, last)),
        (1..200u8).prop_map(Deed::Packets),
        Just(Deed::Bell),
        Just(Deed::Empty),
    ];
    prop::collection::vec(deed, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// For any contents of a window, packets go out in the order of their numbers and no others do.
    #[test]
    fn any_bytes_of_a_window_that_is_memory(deeds in deeds()) {
        let (pair, windows) = shared();
        let base = window(X_PLUS, CHANNEL);
        for deed in deeds {
            let next = pair.register(ChannelReg::TxTail) / PACKET + 1;
            match deed {
                Deed::Bytes(at, bytes) => {
                    let bytes = &bytes[..bytes.len().min((WINDOW_SIZE - at) as usize)];
                    windows.store(base + at, bytes);
                }
                Deed::Mark(place, number, last) => {
                    let number = next.wrapping_add_signed(number) & (u64::MAX >> 1);
                    let mark = Mark(0).with_number(number).with_last(last);
                    windows.store(base + mark_offset(place as usize), &mark.0.to_le_bytes());
                }
                Deed::Packets(count) => {
                    for n in 0..u64::from(count) {
                        put(&windows, next + n, n % 3 == 0);
                    }
                }
                Deed::Bell => pair.write(ChannelReg::TxBell, 1),
                Deed::Empty => pair.write(ChannelReg::Cancel, 2),
            }
            pair.settle();
            let tail = pair.register(ChannelReg::TxTail);
            let head = pair.register(ChannelReg::TxHead);
            prop_assert!(head <= tail && tail <= head + WINDOW_RING);
            let place = (tail / PACKET) as usize % WINDOW_PLACES;
            let mark = Mark(windows.load(base + mark_offset(place)));
            prop_assert!(mark.number() != tail / PACKET + 1 || tail == head + WINDOW_RING);
            let received = pair.counter(1, X_MINUS, LinkReg::Received);
            prop_assert_eq!(pair.counter(0, X_PLUS, LinkReg::Sent), received);
        }
        // Another channel is not affected.
        pair.write(ChannelReg::TxBell, 1);
        pair.settle();
        let other = Channel::ALL[3];
        let before = pair.counter(1, X_MINUS, LinkReg::Received);
        pair.store(window(X_PLUS, other));
        pair.settle();
        prop_assert_eq!(pair.counter(1, X_MINUS, LinkReg::Received), before + 1);
    }
}
