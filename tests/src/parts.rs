//! A machine in parts, all of them in this process, with cables in memory.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use tofu_abi::Coords;
use tofu_fabric::PartId;
use tofu_icc::Icc;
use tofu_inproc::InProcess;
use tofu_machine::{
    Drive, Links, Machine, MachineConfig, MachineOf, Part, Surroundings, Transport,
};

type Mail = (PartId, Vec<u8>);

/// A message that leaves a part.
struct Outbox {
    own: PartId,
    boxes: Vec<Sender<Mail>>,
    /// Messages are dropped once this is set.
    cut: Arc<Mutex<bool>>,
}

impl Transport for Outbox {
    fn send(&self, to: PartId, message: Vec<u8>) -> bool {
        let cut = *self.cut.lock().unwrap();
        !cut && self.boxes[to.index()].send((self.own, message)).is_ok()
    }
}

/// A machine in parts, with devices of a kind.
pub struct InParts<D: Drive = Icc> {
    machines: Vec<Arc<MachineOf<D>>>,
    cut: Arc<Mutex<bool>>,
}

impl InParts {
    /// A machine as described by `config`, in this number of parts, whose engines and cables run.
    pub fn new(config: &MachineConfig, parts: u32) -> Self {
        if parts == 1 {
            let machine = Arc::new(Machine::new(config.clone()).unwrap());
            machine.start().unwrap();
            return Self { machines: vec![machine], cut: Arc::default() };
        }
        let config = MachineConfig { links: Links::Direct, ..config.clone() };
        Self::of(parts, |surroundings| Machine::within(config.clone(), surroundings).unwrap())
    }
}

impl<D: Drive> InParts<D> {
    /// A machine in this number of parts, each of which is built by `build`.
    pub fn of(parts: u32, build: impl Fn(Surroundings) -> MachineOf<D>) -> Self {
        let cut = Arc::new(Mutex::new(false));
        let (boxes, mail): (Vec<_>, Vec<_>) = (0..parts).map(|_| channel::<Mail>()).unzip();
        let part = |own: u16| {
            let own = PartId(own);
            let transport = Arc::new(Outbox { own, boxes: boxes.clone(), cut: Arc::clone(&cut) });
            let part = Some(Part { count: parts, own, transport });
            Arc::new(build(Surroundings { part, ..Surroundings::default() }))
        };
        let machines: Vec<_> = (0..parts as u16).map(part).collect();
        machines.iter().zip(mail).for_each(|(machine, mail)| deliver(machine, mail));
        for machine in &machines {
            machine.start().unwrap();
        }
        Self { machines, cut }
    }

    /// Its parts.
    pub fn machines(&self) -> &[Arc<MachineOf<D>>] {
        &self.machines
    }

    /// The part with a node.
    pub fn with(&self, node: Coords) -> &Arc<MachineOf<D>> {
        let first = &self.machines[0];
        let id = first.fabric().shape().node_id(node).unwrap();
        let part = first.network().part().map_or(0, |(parts, _)| parts.of(id).unwrap().index());
        &self.machines[part]
    }

    /// From now on nothing gets through the cables, which no part has noticed yet.
    pub fn cut_off(&self) {
        *self.cut.lock().unwrap() = true;
    }
}

impl InParts {
    /// Puts a device with `size` bytes of memory at each node.
    pub fn attach(&self, size: usize) -> Vec<InProcess> {
        let shape = self.machines[0].config().shape;
        shape.iter().map(|node| InProcess::attach(self.with(node), node, size).unwrap()).collect()
    }
}

/// Delivers a part's mail from its own thread. All parts are present.
fn deliver<D: Drive>(machine: &MachineOf<D>, mail: Receiver<Mail>) {
    let network = machine.network().clone();
    let parts = network.part().map(|(parts, _)| parts.all().collect::<Vec<_>>());
    parts.into_iter().flatten().for_each(|part| network.part_came(part));
    let receive = move || {
        for (from, message) in mail {
            network.receive(from, &message).unwrap();
        }
    };
    thread::spawn(receive);
}
