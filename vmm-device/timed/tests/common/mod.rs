//! Machines of nodes with packet queues, in modelled time.
#![allow(dead_code, unreachable_pub)] // Each test program uses its part.

use std::sync::Arc;

use tofu_abi::topology::{NodeId, Shape};
use tofu_abi::{Generation, TniId};
use tofu_driver::{Device, PacketConfig, PacketTarget, Packets};
use tofu_fabric::Ps;
use tofu_icc::Icc;
use tofu_inproc::{Arena, Backend, InProcess, Interrupts};
use tofu_netmodel::Arbiter;
use tofu_timed::{EventEngine, Interrupt};
use vm_memory::{GuestAddress, GuestMemoryMmap};

pub const TNI: TniId = TniId::ALL[0];
/// The time for which an idle driver waits between two looks.
const IDLE_PS: Ps = 1_000_000;

struct Node(Arc<EventEngine>, NodeId);

impl Node {
    fn icc(&self) -> &Icc {
        self.0.icc(self.1).expect("a node of the machine")
    }
}

impl Backend for Node {
    fn bar_read(&self, offset: u64, data: &mut [u8]) {
        self.icc().bar_read(offset, data);
    }

    fn bar_write(&self, offset: u64, data: &[u8]) {
        self.icc().bar_write(offset, data);
    }

    fn now_ns(&self) -> u64 {
        self.0.now() / 1000
    }

    fn pump(&self) -> bool {
        self.0.run_until(self.0.now() + IDLE_PS);
        true
    }
}

/// A machine, its devices, and the packet queues of its nodes.
pub struct Machine {
    pub engine: Arc<EventEngine>,
    pub shape: Shape,
    pub devices: Vec<Device<InProcess>>,
    pub ends: Vec<Packets<InProcess>>,
}

pub fn machine(shape: &str, interrupt: Box<dyn Fn(Interrupt) + Send + Sync>) -> Machine {
    let shape: Shape = shape.parse().unwrap();
    let range = (GuestAddress(0x1000), 4 << 20);
    let memory = |_| GuestMemoryMmap::<()>::from_ranges(&[range]).unwrap();
    let memories: Vec<_> = shape.iter().map(memory).collect();
    let engine = EventEngine::new(
        Generation::Fugaku,
        shape,
        Arbiter::InTurn,
        memories.iter().map(|memory| Arc::new(memory.clone()) as _),
        interrupt,
    );
    let engine = engine.unwrap();
    let devices = (0..).map(NodeId).zip(memories).map(|(node, memory)| {
        let backend = Node(Arc::clone(&engine), node);
        backend.icc().set_bus_master(true);
        let arena = Arena::new(memory).unwrap();
        let platform = InProcess::new(Arc::new(backend), arena, Arc::new(Interrupts::default()));
        Device::probe(platform).unwrap()
    });
    let devices: Vec<_> = devices.collect();
    let ends = devices.iter().map(|device| Packets::open(device, &PacketConfig::new(TNI)).unwrap());
    Machine { shape, ends: ends.collect(), devices, engine }
}

impl Machine {
    pub fn to(&self, from: u32, to: u32) -> PacketTarget {
        let [from, to] = [from, to].map(|node| self.shape.coords(NodeId(node)).unwrap());
        PacketTarget::straight(from, to, TNI)
    }
}
