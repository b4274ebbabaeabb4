//! A machine in shards, all of them in this process, with cables in memory.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use tofu_abi::Coords;
use tofu_fabric::ShardId;
use tofu_icc::Icc;
use tofu_inproc::InProcess;
use tofu_machine::{
    Drive, Links, Machine, MachineConfig, MachineOf, Shard, Surroundings, Transport,
};

type Mail = (ShardId, Vec<u8>);

/// A message that leaves a shard.
struct Outbox {
    own: ShardId,
    boxes: Vec<Sender<Mail>>,
    /// Messages are dropped once this is set.
    cut: Arc<Mutex<bool>>,
}

impl Transport for Outbox {
    fn send(&self, to: ShardId, message: Vec<u8>) -> bool {
        let cut = *self.cut.lock().unwrap();
        !cut && self.boxes[to.index()].send((self.own, message)).is_ok()
    }
}

/// A machine in shards, with devices of a kind.
pub struct InShards<D: Drive = Icc> {
    machines: Vec<Arc<MachineOf<D>>>,
    cut: Arc<Mutex<bool>>,
}

impl InShards {
    /// A machine as described by `config`, in this number of shards, whose engines and cables run.
    pub fn new(config: &MachineConfig, shards: u32) -> Self {
        if shards == 1 {
            let machine = Arc::new(Machine::new(config.clone()).unwrap());
            machine.start().unwrap();
            return Self { machines: vec![machine], cut: Arc::default() };
        }
        let config = MachineConfig { links: Links::Direct, ..config.clone() };
        Self::of(shards, |surroundings| Machine::within(config.clone(), surroundings).unwrap())
    }
}

impl<D: Drive> InShards<D> {
    /// A machine in this number of shards, each of which is built by `build`.
    pub fn of(shards: u32, build: impl Fn(Surroundings) -> MachineOf<D>) -> Self {
        let cut = Arc::new(Mutex::new(false));
        let (boxes, mail): (Vec<_>, Vec<_>) = (0..shards).map(|_| channel::<Mail>()).unzip();
        let shard = |own: u16| {
            let own = ShardId(own);
            let transport = Arc::new(Outbox { own, boxes: boxes.clone(), cut: Arc::clone(&cut) });
            let shard = Some(Shard { count: shards, own, transport });
            Arc::new(build(Surroundings { shard, ..Surroundings::default() }))
        };
        let machines: Vec<_> = (0..shards as u16).map(shard).collect();
        machines.iter().zip(mail).for_each(|(machine, mail)| deliver(machine, mail));
        for machine in &machines {
            machine.start().unwrap();
        }
        Self { machines, cut }
    }

    /// Its shards.
    pub fn machines(&self) -> &[Arc<MachineOf<D>>] {
        &self.machines
    }

    /// The shard with a node.
    pub fn with(&self, node: Coords) -> &Arc<MachineOf<D>> {
        let first = &self.machines[0];
        let id = first.fabric().shape().node_id(node).unwrap();
        let shard = first.network().shard().map_or(0, |(shards, _)| shards.of(id).unwrap().index());
        &self.machines[shard]
    }

    /// Blocks the cables. No shard has noticed that yet.
    pub fn cut_off(&self) {
        *self.cut.lock().unwrap() = true;
    }
}

impl InShards {
    /// Puts a device with `size` bytes of memory at each node.
    pub fn attach(&self, size: usize) -> Vec<InProcess> {
        let shape = self.machines[0].config().shape;
        shape.iter().map(|node| InProcess::attach(self.with(node), node, size).unwrap()).collect()
    }
}

/// Delivers a shard's mail from its own thread. All shards are present.
fn deliver<D: Drive>(machine: &MachineOf<D>, mail: Receiver<Mail>) {
    let network = machine.network().clone();
    let shards = network.shard().map(|(shards, _)| shards.all().collect::<Vec<_>>());
    shards.into_iter().flatten().for_each(|shard| network.shard_came(shard));
    let receive = move || {
        for (from, message) in mail {
            network.receive(from, &message).unwrap();
        }
    };
    thread::spawn(receive);
}
