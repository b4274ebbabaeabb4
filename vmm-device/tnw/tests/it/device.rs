//! Two devices whose threads the test is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tofu_abi::Coords;
use tofu_abi::tnw::{
    Channel, Control, Link, LinkReg, NwpReg, REGISTER_BAR, Register, WINDOW_BAR, window,
};
use tofu_abi::topology::Shape;
use tofu_tnw_device::{Config, Host, Net, Nwp, TIMEOUT_NS, Unit};
use vm_memory::{GuestAddress, GuestMemoryMmap};

/// Nobody is told of anything, and time is what the test says.
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

/// What was sent.
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
        let host = Arc::new(Surroundings::default());
        let shape = Shape::new([2, 1, 1, 1, 1, 1]).unwrap();
        let node = |x| {
            let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x1_0000)]);
            let config = Config { coords: Coords::new(x, 0, 0, 0, 0, 0), shape, life: 1 };
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

    /// One node does what there is to do; the other one gets what it says.
    fn run(&self, node: usize) {
        let mut sent = Sent::default();
        while self.nodes[node].run(&mut sent) {}
        self.hand_over(node, sent);
    }

    /// Deadlines of a node that have come are seen.
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
fn an_answer_that_nobody_has_looked_at_is_an_answer() {
    let pair = Pair::new();
    let at = window(X_PLUS, Channel::ALL[0]);
    for n in [0, 64] {
        pair.nodes[0].bar_write(WINDOW_BAR, at + n, &[1; 64]);
    }
    pair.run(0);
    pair.run(1);
    // Its thread is late.
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
    let at = window(X_PLUS, Channel::ALL[0]);
    for n in [0, 64] {
        pair.nodes[0].bar_write(WINDOW_BAR, at + n, &[1; 64]);
    }
    pair.run(0);
    pair.host.0.fetch_add(2 * TIMEOUT_NS, Relaxed);
    pair.expire(0);
    assert_eq!(pair.counter(0, X_PLUS, LinkReg::Timeouts), 1);
    assert_eq!(pair.counter(0, X_PLUS, LinkReg::Resent), 1);
    assert_ne!(pair.nodes[0].next_deadline(), u64::MAX);
}
