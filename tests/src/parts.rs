//! A machine in parts, all of them in this process, with cables in memory.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use tofu_fabric::{PartId, Shape};
use tofu_inproc::InProcess;
use tofu_machine::{Links, Machine, MachineConfig, Transport};

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
        let part = |own: u16| {
            let part = (parts > 1).then_some((parts, PartId(own)));
            let links = if parts > 1 { Links::Direct } else { config.links };
            Arc::new(Machine::new(MachineConfig { part, links, ..config.clone() }).unwrap())
        };
        let machines: Vec<_> = (0..parts as u16).map(part).collect();
        let cut = Arc::new(Mutex::new(false));
        if parts > 1 {
            connect(&machines, &cut);
        }
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

fn connect(machines: &[Arc<Machine>], cut: &Arc<Mutex<bool>>) {
    let all = (0..).map(PartId).zip(machines);
    let (boxes, mail): (Vec<_>, Vec<_>) = machines.iter().map(|_| channel::<Mail>()).unzip();
    for ((own, machine), mail) in all.clone().zip(mail) {
        let (boxes, cut) = (boxes.clone(), Arc::clone(cut));
        let network = machine.network().clone();
        network.connect(Arc::new(Outbox { own, boxes, cut }));
        all.clone().for_each(|(part, _)| network.part_came(part));
        let receive = move |mail: Receiver<Mail>| {
            for (from, message) in mail {
                network.receive(from, &message).unwrap();
            }
        };
        thread::spawn(move || receive(mail));
    }
}
