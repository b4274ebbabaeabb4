//! The cost of an Nget: copies of its data, and units on the link. Both are the same on every host.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use proptest::prelude::*;
use tofu_abi::Coords;
use tofu_abi::tnw::{
    Channel, ChannelReg, Control, Link, Notification, NwpReg, PACKET_DATA, RECEPTION_FIFO,
    REGISTER_BAR, Register, Start,
};
use tofu_abi::topology::Shape;
use tofu_dma::{Access, DmaMemory, DmaResult, Visit};
use tofu_fabric::Disturb;
use tofu_tnw_device::{Config, Host, Net, Nwp, Unit};
use vm_memory::{GuestAddress, GuestMemoryMmap, VolatileSlice};

/// A host that drops notifications and in which no time passes.
struct Unused;

impl Host for Unused {
    fn interrupt(&self, _: u16) {}
    fn work(&self) {}
    fn timer(&self, _: u64) {}
    fn now_ns(&self) -> u64 {
        0
    }
}

/// Memory that counts its accesses.
struct Counted {
    memory: GuestMemoryMmap<()>,
    /// Bytes copied from the memory to buffers, from buffers to it, and to it from other memory.
    out: AtomicU64,
    into: AtomicU64,
    direct: AtomicU64,
}

impl DmaMemory for Counted {
    fn contains(&self, addr: u64, len: usize, access: Access) -> bool {
        self.memory.contains(addr, len, access)
    }

    fn access(&self, addr: u64, len: usize, access: Access, f: &mut Visit<'_>) -> DmaResult {
        self.memory.access(addr, len, access, f)
    }

    fn read(&self, addr: u64, buf: &mut [u8]) -> DmaResult {
        self.out.fetch_add(buf.len() as u64, Relaxed);
        self.memory.read(addr, buf)
    }

    fn write(&self, addr: u64, buf: &[u8]) -> DmaResult {
        self.into.fetch_add(buf.len() as u64, Relaxed);
        self.memory.write(addr, buf)
    }

    fn write_from(&self, addr: u64, source: VolatileSlice<'_>) -> DmaResult {
        self.direct.fetch_add(source.len() as u64, Relaxed);
        self.memory.write_from(addr, source)
    }
}

/// The units that were sent.
struct Sent {
    units: VecDeque<(Link, Unit)>,
    by_reference: bool,
}

impl Net for Sent {
    fn by_reference(&self) -> bool {
        self.by_reference
    }

    fn send(&mut self, link: Link, unit: Unit) {
        self.units.push_back((link, unit));
    }
}

const CHANNEL: Channel = Channel::ALL[3];
const LINKS: [Link; 2] = [Link::ALL[1], Link::ALL[0]];
const FROM: u64 = 0x1_0000;
const WORD: u64 = 0x1000;

struct Pair {
    memory: [Arc<Counted>; 2],
    nodes: [Nwp; 2],
    by_reference: bool,
    /// Number of units that went over the link.
    units: u64,
}

impl Pair {
    fn new(by_reference: bool) -> Self {
        let memory = [(); 2].map(|()| {
            let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 4 << 20)]).unwrap();
            let [out, into, direct] = Default::default();
            Arc::new(Counted { memory, out, into, direct })
        });
        let shape = Shape::new([2, 1, 1, 1, 1, 1]).unwrap();
        let nodes = [0, 1].map(|x| {
            let coords = Coords::new(x, 0, 0, 0, 0, 0);
            let config = Config { coords, shape, life: 1, windows: None };
            let nwp = Nwp::new(config, Arc::new(Unused), Arc::clone(&memory[usize::from(x)]) as _);
            nwp.set_bus_master(true);
            let enable = Control(0).with_enable(true).0.to_le_bytes();
            nwp.bar_write(REGISTER_BAR, Register::Nwp(NwpReg::Control).offset(), &enable);
            nwp
        });
        let mut pair = Self { memory, nodes, by_reference, units: 0 };
        pair.run();
        pair.units = 0;
        pair
    }

    /// Runs both nodes until nothing moves.
    fn run(&mut self) {
        let mut idle = 0;
        for node in [0, 1].into_iter().cycle() {
            let mut sent = Sent { units: VecDeque::new(), by_reference: self.by_reference };
            while self.nodes[node].run(&mut sent) {}
            idle = if sent.units.is_empty() { idle + 1 } else { 0 };
            self.units += sent.units.len() as u64;
            for (link, unit) in sent.units {
                self.nodes[1 - node].push(link.opposite(), unit);
            }
            if idle == 2 {
                return;
            }
        }
    }

    fn post(&self, node: usize, registers: [ChannelReg; 4], address: u64, len: u64) {
        self.memory[node].memory.store(WORD, 0).unwrap();
        let start = Start(0).with_tag(7).0;
        for (reg, value) in registers.into_iter().zip([address, len, WORD, start]) {
            let at = Register::Channel(LINKS[node], CHANNEL, reg).offset();
            self.nodes[node].bar_write(REGISTER_BAR, at, &value.to_le_bytes());
        }
    }

    fn credit(&self, len: u64) {
        use ChannelReg as R;
        let registers = [R::CreditAddress, R::CreditLength, R::CreditNotify, R::CreditStart];
        self.post(1, registers, FROM, len);
    }

    fn nget(&self, len: u64) {
        use ChannelReg as R;
        self.post(0, [R::NgetAddress, R::NgetLength, R::NgetNotify, R::NgetStart], FROM, len);
    }

    /// Number of bytes moved, if a node's request has ended successfully.
    fn done(&self, node: usize) -> Option<u32> {
        let word = Notification(self.memory[node].memory.load(WORD).unwrap());
        assert_eq!(word.status(), 0);
        word.done().then_some(word.length())
    }

    /// The contents of a node's memory.
    fn contents(&self, node: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory[node].memory.read(FROM, &mut bytes).unwrap();
        bytes
    }

    fn fill(&self, len: usize, seed: usize) -> Vec<u8> {
        let bytes: Vec<u8> = (0..len).map(|at| (at + at / 251 + seed) as u8).collect();
        self.memory[0].memory.write(FROM, &bytes).unwrap();
        bytes
    }
}

const LEN: usize = 1 << 20;

#[test]
fn awaited_message_is_copied_once() {
    for len in [1, 127, 128, 5000, LEN - 1, LEN] {
        let mut pair = Pair::new(true);
        let sent = pair.fill(len, 3);
        pair.credit(len as u64);
        pair.nget(len as u64);
        pair.run();
        assert_eq!([pair.done(0), pair.done(1)], [Some(len as u32); 2]);
        assert!(pair.contents(1, len) == sent, "{len} bytes");
        let [from, to] = &pair.memory;
        assert_eq!(from.out.load(Relaxed), 0, "{len} bytes: to a buffer");
        assert_eq!(to.into.load(Relaxed), 0, "{len} bytes: from a buffer");
        assert_eq!(to.direct.load(Relaxed), len as u64);
        // A run fills a reception FIFO and causes one answer.
        let runs = len.div_ceil(RECEPTION_FIFO * PACKET_DATA) as u64;
        assert!(pair.units <= 2 * runs + 2, "{len} bytes: {} units", pair.units);
    }
}

#[test]
fn lending_nothing_copies_bytes() {
    let mut pair = Pair::new(false);
    let sent = pair.fill(LEN, 4);
    pair.credit(LEN as u64);
    pair.nget(LEN as u64);
    pair.run();
    assert_eq!([pair.done(0), pair.done(1)], [Some(LEN as u32); 2]);
    assert!(pair.contents(1, LEN) == sent);
    let [from, to] = &pair.memory;
    let counts = [&from.out, &to.into, &to.direct].map(|count| count.load(Relaxed));
    assert_eq!(counts, [LEN as u64, LEN as u64, 0]);
}

/// When an Nget is over, its memory may be reused, even if its packets are still in flight.
#[test]
fn memory_is_not_read_when_its_nget_is_over() {
    const SHORT: usize = 3 * PACKET_DATA + 5;
    // In the reception FIFO, because no credit has been posted.
    let mut pair = Pair::new(true);
    let sent = pair.fill(SHORT, 5);
    pair.nget(SHORT as u64);
    pair.run();
    assert_eq!(pair.done(0), Some(SHORT as u32));
    pair.fill(SHORT, 6);
    pair.credit(SHORT as u64);
    pair.run();
    assert_eq!(pair.done(1), Some(SHORT as u32));
    assert_eq!(pair.contents(1, SHORT), sent);
    // On the link: the Nget is cancelled, or the device is disabled, reset, or loses bus
    // mastership.
    let cancel = |nwp: &Nwp| {
        let at = Register::Channel(LINKS[0], CHANNEL, ChannelReg::Cancel).offset();
        nwp.bar_write(REGISTER_BAR, at, &1u64.to_le_bytes());
    };
    let disable = |nwp: &Nwp| {
        nwp.bar_write(REGISTER_BAR, Register::Nwp(NwpReg::Control).offset(), &[0; 8]);
    };
    let ways: [&dyn Fn(&Nwp); 4] =
        [&cancel, &disable, &Nwp::reset, &|nwp| nwp.set_bus_master(false)];
    for way in ways {
        let mut pair = Pair::new(true);
        let sent = pair.fill(SHORT, 7);
        pair.credit(SHORT as u64);
        pair.nget(SHORT as u64);
        let mut on_link = Sent { units: VecDeque::new(), by_reference: true };
        while pair.nodes[0].run(&mut on_link) {}
        assert_eq!((on_link.units.len(), pair.done(0)), (1, None), "not over yet");
        way(&pair.nodes[0]);
        pair.fill(SHORT, 8);
        for (link, unit) in on_link.units {
            pair.nodes[1].push(link.opposite(), unit);
        }
        pair.run();
        assert_eq!(pair.done(1), Some(SHORT as u32));
        assert_eq!(pair.contents(1, SHORT), sent);
    }
}

/// The fate of a unit on the link.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Fine,
    Lost,
    Damaged(u64),
    Twice,
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = prop_oneof![
        3 => Just(Fate::Fine),
        2 => Just(Fate::Lost),
        2 => any::<u64>().prop_map(Fate::Damaged),
        1 => Just(Fate::Twice),
    ];
    prop::collection::vec(fate, 0..100)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Each message arrives unchanged, regardless of faults of the link, although memory is reused
    /// as soon as its Nget is over.
    #[test]
    fn any_loss_leaves_messages_as_they_were(
        lens in prop::collection::vec(1..200_000usize, 1..4),
        fates in fates(),
    ) {
        let pair = Pair::new(true);
        let mut fates = fates.into_iter();
        for (seed, len) in lens.into_iter().enumerate() {
            let sent = pair.fill(len, seed);
            // Every second message arrives before its credit.
            let early = seed % 2 == 0;
            if early {
                pair.credit(len as u64);
            }
            pair.nget(len as u64);
            let (mut over, mut posted) = (false, early);
            for turn in 0.. {
                prop_assert!(turn < 10_000, "it does not come to an end");
                let mut moved = false;
                for node in [0, 1] {
                    let mut sent = Sent { units: VecDeque::new(), by_reference: true };
                    while pair.nodes[node].run(&mut sent) {}
                    moved |= !sent.units.is_empty();
                    for (link, mut unit) in sent.units {
                        let to = |unit| pair.nodes[1 - node].push(link.opposite(), unit);
                        match fates.next().unwrap_or(Fate::Fine) {
                            Fate::Fine => to(unit),
                            Fate::Lost => {}
                            Fate::Damaged(random) => {
                                unit.damage(random, false);
                                to(unit);
                            }
                            Fate::Twice => {
                                to(unit.clone());
                                to(unit);
                            }
                        }
                    }
                }
                if !over && pair.done(0).is_some() {
                    over = true;
                    pair.fill(len, 99);
                }
                if moved {
                    continue;
                }
                if !posted {
                    posted = true;
                    pair.credit(len as u64);
                } else if pair.done(1).is_some() && over {
                    break;
                }
                for node in [0, 1] {
                    let mut late = Sent { units: VecDeque::new(), by_reference: true };
                    let deadline = pair.nodes[node].next_deadline();
                    pair.nodes[node].expire(deadline, &mut late);
                    for (link, unit) in late.units {
                        pair.nodes[1 - node].push(link.opposite(), unit);
                    }
                }
            }
            prop_assert_eq!(pair.done(1), Some(len as u32));
            prop_assert!(pair.contents(1, len) == sent);
        }
    }
}

/// Without an answer, memory can be reused after the first timeout.
#[test]
fn nget_ends_without_an_answer() {
    let pair = Pair::new(true);
    pair.fill(1000, 9);
    pair.nget(1000);
    let mut lost = Sent { units: VecDeque::new(), by_reference: true };
    while pair.nodes[0].run(&mut lost) {}
    assert_eq!(pair.done(0), None);
    pair.nodes[0].expire(pair.nodes[0].next_deadline(), &mut lost);
    assert_eq!(pair.done(0), Some(1000));
}
