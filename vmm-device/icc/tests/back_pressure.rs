//! A network that takes a limited number of requests of an interface at a time. Queues wait for
//! room, lose nothing, and take turns.

mod common;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use common::{PEER, SELF};
use proptest::prelude::*;
use tofu_abi::desc::{Descriptor, Header1, Header2};
use tofu_abi::queue::TcqEntry;
use tofu_abi::regs::{CqsReg, Register, TniReg};
use tofu_abi::{Coords, CqId, Doorbell, Rcode, StagOffset, TniId};
use tofu_fabric::{Packet, Port, PortCounters, XbCounters};
use tofu_icc::{Body, Config, DmaMemory, Host, Icc, Net};
use vm_memory::{GuestAddress, GuestMemoryMmap};

const TNI: TniId = TniId::ALL[0];
/// Each queue has its rings at its number times this.
const RINGS: u64 = 0x10_0000;
const TCQ: u64 = 0x8_0000;
const MRQ: u64 = 0x9_0000;

/// A host with doorbells that the test must answer.
#[derive(Default)]
struct Bells(Mutex<VecDeque<Doorbell>>);

impl Host for Bells {
    fn interrupt(&self, _: u16) {}
    fn doorbell(&self, _: TniId, doorbell: Doorbell) {
        let mut rung = self.0.lock().unwrap();
        if !rung.contains(&doorbell) {
            rung.push_back(doorbell);
        }
    }
    fn queue_enabled(&self, _: TniId, _: Doorbell, _: bool) {}
    fn timer(&self, _: u64) {}
    fn now_ns(&self) -> u64 {
        0
    }
    fn port_counters(&self, _: Port) -> PortCounters {
        PortCounters::default()
    }
    fn xb_counters(&self) -> XbCounters {
        XbCounters::default()
    }
}

/// Keeps requests until they are taken out, and has room for a limited number.
struct Narrow {
    room: usize,
    sent: VecDeque<Packet<Body>>,
}

impl Net for Narrow {
    fn has_room(&self, from: Coords, tni: TniId) -> bool {
        assert_eq!((from, tni), (SELF, TNI));
        self.sent.len() < self.room
    }
    fn inject(&mut self, packet: Packet<Body>) {
        assert!(self.sent.len() < self.room);
        self.sent.push_back(packet);
    }
    fn progress(&mut self) {}
    fn now_ns(&self) -> u64 {
        0
    }
}

struct Node {
    icc: Icc,
    bells: Arc<Bells>,
    memory: GuestMemoryMmap<()>,
}

impl Node {
    fn new(queues: usize) -> Self {
        let size = queues * RINGS as usize;
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), size)]).unwrap();
        let bells = Arc::new(Bells::default());
        let icc = Icc::new(Config::tofud(SELF), Arc::clone(&bells) as _, Arc::new(memory.clone()));
        icc.set_bus_master(true);
        let node = Self { icc, bells, memory };
        node.write(Register::Tni { tni: TNI, reg: TniReg::Enable }, 1);
        for (cq, at) in CqId::ALL.into_iter().zip((0..queues as u64).map(|n| n * RINGS)) {
            for (reg, value) in [
                (CqsReg::ToqIpa, at),
                (CqsReg::TcqIpa, at + TCQ),
                (CqsReg::MrqIpa, at + MRQ),
                (CqsReg::Enable, 1),
            ] {
                node.write(Register::Cqs { tni: TNI, cq, reg }, value);
            }
        }
        node
    }

    fn write(&self, register: Register, value: u64) {
        self.icc.bar_write(register.offset(), &value.to_le_bytes());
    }

    /// Posts Puts of 8 bytes, and rings.
    fn post(&self, queue: usize, commands: u64) {
        let header1 = Header1(0).with_target(PEER).with_path(PEER.default_path());
        let at = StagOffset::new(CqId::ALL[0], 0, 0);
        let put = Descriptor::put_piggyback(header1, Header2(0), at, 0, 8);
        for n in 0..commands {
            let place = queue as u64 * RINGS + n * 32;
            self.memory.write(place, &put.with_flip(true).to_bytes()).unwrap();
        }
        self.bells.doorbell(TNI, CqId::ALL[queue].into());
    }

    /// Answers doorbells until none rings.
    fn run(&self, net: &mut Narrow) {
        loop {
            let Some(doorbell) = self.bells.0.lock().unwrap().pop_front() else { break };
            if self.icc.run_queue(TNI, doorbell, net) {
                self.bells.doorbell(TNI, doorbell);
            }
        }
    }

    /// Completions of the first lap.
    fn completions(&self, queue: usize) -> Vec<TcqEntry> {
        let entry = |n: u64| self.memory.load(queue as u64 * RINGS + TCQ + n * 8).unwrap();
        (0..1024).map(|n| TcqEntry(entry(n))).take_while(|entry| entry.flip()).collect()
    }
}

proptest! {
    /// However little room there is, all commands are sent, each once and in its queue's order. Of
    /// queues with more to send, none is ahead of another by more than the network's capacity plus
    /// one.
    #[test]
    fn all_queues_get_their_turn(
        room in 1..6usize,
        commands in prop::collection::vec(0..60u64, 1..=12),
    ) {
        let node = Node::new(commands.len());
        let mut net = Narrow { room, sent: VecDeque::new() };
        for (queue, n) in commands.iter().enumerate() {
            node.post(queue, *n);
        }
        let mut sent = vec![0; commands.len()];
        loop {
            node.run(&mut net);
            let Some(packet) = net.sent.pop_front() else { break };
            let Some((tag, true)) = packet.body.tag() else { panic!("not a request") };
            let queue = tag.cq.index();
            prop_assert_eq!(u64::from(tag.generation), sent[queue] + 1);
            sent[queue] += 1;
            node.icc.undeliverable(&packet, Rcode::LINK_DOWN, 0);
            node.icc.room(TNI);
            let busy = || sent.iter().zip(&commands).filter(|(sent, all)| sent < all);
            if let (Some(least), Some(most)) =
                (busy().map(|(n, _)| *n).min(), sent.iter().max())
            {
                prop_assert!(least + room as u64 + 1 >= *most, "{:?} of {:?}", sent, commands);
            }
        }
        prop_assert_eq!(&sent, &commands);
        for (queue, n) in commands.iter().enumerate() {
            prop_assert_eq!(node.completions(queue).len() as u64, *n);
        }
    }
}
