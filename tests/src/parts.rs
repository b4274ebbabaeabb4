//! A machine in parts, all of them in this process, with cables in memory.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use tofu_fabric::{PartId, Shape};
use tofu_inproc::InProcess;
use tofu_machine::{Links, Machine, MachineConfig, Part, Surroundings, Transport};

type Mail = (PartId, Vec<u8>);

/// What leaves a part.
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

/// A machine in parts.
pub struct InParts {
    machines: Vec<Arc<Machine>>,
    cut: Arc<Mutex<bool>>,
}

impl InParts {
    /// A machine as described by `config`, in this number of parts, whose engines and cables run.
    pub fn new(config: &MachineConfig, parts: u32) -> Self {
        let cut = Arc::new(Mutex::new(false));
        if parts == 1 {
            let machine = Arc::new(Machine::new(config.clone()).unwrap());
            machine.start().unwrap();
            return Self { machines: vec![machine], cut };
        }
        let (boxes, mail): (Vec<_>, Vec<_>) = (0..parts).map(|_| channel::<Mail>()).unzip();
        let part = |own: u16| {
            let own = PartId(own);
            let transport = Arc::new(Outbox { own, boxes: boxes.clone(), cut: Arc::clone(&cut) });
            let part = Some(Part { count: parts, own, transport });
            let config = MachineConfig { links: Links::Direct, ..config.clone() };
            let surroundings = Surroundings { part, ..Surroundings::default() };
            Arc::new(Machine::within(config, surroundings).unwrap())
        };
        let machines: Vec<_> = (0..parts as u16).map(part).collect();
        machines.iter().zip(mail).for_each(|(machine, mail)| deliver(machine, mail));
        for machine in &machines {
            machine.start().unwrap();
        }
        Self { machines, cut }
    }

    /// Its parts.
    pub fn machines(&self) -> &[Arc<Machine>] {
        &self.machines
    }

    /// Puts a device with `size` bytes of memory at each node.
    pub fn attach(&self, size: usize) -> Vec<InProcess> {
        let shape: Shape = self.machines[0].config().shape;
        let of = |node| {
            let id = shape.node_id(node).unwrap();
            let parts = self.machines[0].network().part();
            parts.map_or(0, |(parts, _)| parts.of(id).unwrap().index())
        };
        let attach = |node| InProcess::attach(&self.machines[of(node)], node, size).unwrap();
        shape.iter().map(attach).collect()
    }

    /// From now on nothing gets through the cables, which no part has noticed yet.
    pub fn cut_off(&self) {
        *self.cut.lock().unwrap() = true;
    }
}

/// Delivers a part's mail from a thread of its own. All parts are present.
fn deliver(machine: &Machine, mail: Receiver<Mail>) {
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
