//! Programs that use uTofu, in modelled time.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

use anyhow::{Context as _, anyhow, ensure};
use tofu_abi::Coords;
use tofu_abi::topology::Shape;
use tofu_driver::{DmaBuffer, Platform};
use tofu_fabric::Ps;
use tofu_inproc::Buffer;
use tofu_machine::Generation;
use tofu_timed::Turn;
use tofu_utofu::command::Posting;
use tofu_utofu::flags::{LOCAL_MRQ_NOTICE, TCQ_NOTICE};
use tofu_utofu::ids::{Stadd, VcqId};
use tofu_utofu::{Code, Context, DeviceShare, Error, Transfer, Vcq};

use super::memory::{NodeMemory, Provider, register};
use crate::machine::{Model, ModelConfig};

/// Bytes of each program's buffer.
pub(super) const BUFFER: usize = 2 << 20;
/// Memory of a node: the buffer, and queues and tables of six interfaces.
const MEMORY: usize = 32 << 20;
/// Size code of message receive queues: 2048 notices.
const MRQ_SIZE: u8 = 0;
/// Interfaces of a node.
const TNIS: u16 = 6;

/// The time that software takes: instructions of this library and of programs, and the time of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Software {
    /// Nanoseconds of an instruction.
    pub(super) ns_per_instruction: f64,
}

impl Software {
    /// `utofu_put`, `utofu_get` and `utofu_armw8`, until the doorbell.
    pub(super) const POST: u64 = 694;
    /// `utofu_poll_tcq` that finds nothing.
    pub(super) const LOOK: u64 = 219;
    /// `utofu_poll_tcq` that finds a completion.
    pub(super) const TCQ: u64 = 194;
    /// `utofu_poll_mrq` that finds a notice.
    pub(super) const MRQ: u64 = 628;
    /// A poll of a word of memory in a loop: a load, a comparison, a jump, and the loop counter.
    pub(super) const LOAD: u64 = 5;

    fn ps(self, instructions: u64) -> Ps {
        (instructions as f64 * self.ns_per_instruction * 1000.0).round() as Ps
    }
}

/// A program as the others know it: its queues, and its buffer in each.
#[derive(Clone, Debug)]
struct Peer {
    queues: Vec<(VcqId, Stadd)>,
}

/// A program's view of the machine: its queues, one for each interface, its buffer, and its time.
pub(super) struct Rank {
    turn: Turn,
    software: Software,
    vcqs: Arc<Vec<Vcq<Provider>>>,
    stadds: Vec<Stadd>,
    buffer: Arc<Buffer>,
    peers: Arc<Vec<Peer>>,
    /// Commands of each interface whose completions were not taken yet.
    pending: Vec<usize>,
    at: Ps,
}

/// A transfer between two programs: from a place in one program's buffer to a place in the other's,
/// over the interfaces with this number at both ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Move {
    pub(super) peer: usize,
    pub(super) tni: usize,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) bytes: usize,
}

impl Rank {
    /// This program's number.
    pub(super) const fn rank(&self) -> usize {
        self.turn.program()
    }

    /// The number of programs.
    pub(super) fn ranks(&self) -> usize {
        self.peers.len()
    }

    /// The time, in picoseconds.
    pub(super) const fn now(&self) -> Ps {
        self.at
    }

    /// Executes so many instructions.
    pub(super) fn compute(&mut self, instructions: u64) -> anyhow::Result<()> {
        self.at = self.turn.spend(self.software.ps(instructions))?;
        Ok(())
    }

    fn transfer(&self, of: &Move, flags: u64) -> Transfer {
        let (peer, remote) = self.peers[of.peer].queues[of.tni];
        let local = Stadd(self.stadds[of.tni].0 + of.from);
        let remote = Stadd(remote.0 + of.to);
        Transfer { peer, local, remote, length: of.bytes, edata: 0, flags }
    }

    /// Posts a command as soon as there is room.
    fn post(
        &mut self,
        tni: usize,
        post: impl Fn(&Vcq<Provider>) -> Result<(), Error>,
    ) -> anyhow::Result<()> {
        loop {
            self.compute(Software::POST)?;
            match post(&self.vcqs[tni]) {
                Err(error) if error.code() == Code::Busy => {}
                result => return result.map_err(|error| anyhow!("{error}")),
            }
        }
    }

    /// Puts bytes. The caller must take a completion for it.
    pub(super) fn put(&mut self, of: Move) -> anyhow::Result<()> {
        let transfer = self.transfer(&of, TCQ_NOTICE);
        self.pending[of.tni] += 1;
        self.post(of.tni, |vcq| vcq.put(&transfer, 0))
    }

    /// Gets bytes, from `of.to` in the peer's buffer to `of.from`.
    pub(super) fn get(&mut self, of: Move) -> anyhow::Result<()> {
        let transfer = self.transfer(&of, TCQ_NOTICE);
        self.pending[of.tni] += 1;
        self.post(of.tni, |vcq| vcq.get(&transfer, 0))
    }

    /// Adds 1 to 8 bytes of the peer's buffer, and returns what was there, by the notice.
    pub(super) fn fetch_add(&mut self, of: Move) -> anyhow::Result<u64> {
        const ADD: u32 = 2;
        let Transfer { peer, remote, .. } = self.transfer(&of, 0);
        let posting = Posting::new(peer.0, 0, LOCAL_MRQ_NOTICE).map_err(|error| anyhow!("{error}"));
        let command = posting?.armw(ADD, 1, 8, remote.0).map_err(|error| anyhow!("{error}"))?;
        self.post(of.tni, |vcq| vcq.post(&command, 0))?;
        let notice = self.poll(of.tni, Software::MRQ, Vcq::poll_mrq)?;
        ensure!(notice.status() == Code::Success, "an atomic command: {:?}", notice.status());
        Ok(notice.rmt_value)
    }

    /// Polls until there is something, which takes so many instructions then.
    fn poll<T>(
        &mut self,
        tni: usize,
        found: u64,
        poll: impl Fn(&Vcq<Provider>) -> Option<T>,
    ) -> anyhow::Result<T> {
        loop {
            if let Some(something) = poll(&self.vcqs[tni]) {
                self.compute(found)?;
                return Ok(something);
            }
            self.at = self.turn.look(self.software.ps(Software::LOOK), Ps::MAX)?;
        }
    }

    /// Takes completions of an interface until that many are left to be taken, and waits for them.
    pub(super) fn complete(&mut self, tni: usize, left: usize) -> anyhow::Result<()> {
        while self.pending[tni] > left {
            let done = self.poll(tni, Software::TCQ, Vcq::poll_tcq)?;
            ensure!(done.status() == Code::Success, "a command: {:?}", done.status());
            self.pending[tni] -= 1;
        }
        Ok(())
    }

    /// Stores a word into the buffer.
    pub(super) fn store(&self, at: u64, word: u64) {
        self.buffer.store_u64(at as usize, word, SeqCst);
    }

    /// Looks at a word of the buffer until it is this one or a later one.
    pub(super) fn wait_for(&mut self, at: u64, word: u64) -> anyhow::Result<()> {
        let every = self.software.ps(Software::LOAD);
        while self.buffer.load_u64(at as usize, SeqCst) < word {
            self.at = self.turn.look(every, Ps::MAX)?;
        }
        self.compute(Software::LOAD)
    }
}

/// Runs a program on these nodes of a machine, one on each, and returns what they return.
pub(super) fn run<T: Send>(
    (generation, shape): (Generation, Shape),
    nodes: &[Coords],
    software: Software,
    program: impl Fn(&mut Rank) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let config = ModelConfig { memory: MEMORY, ..ModelConfig::new(generation, shape) };
    let model = Model::new(&config)?;
    let mut starts = Vec::new();
    for &node in nodes {
        let device = model.device(node)?.clone();
        let buffer = Arc::new(device.platform().alloc_dma(BUFFER, 1 << 16)?);
        let provider = Provider::new(device, NodeMemory, MRQ_SIZE, 0).with_direct_descriptors(true);
        let share = DeviceShare::of(generation, 0, 1).map_err(|error| anyhow!("{error}"))?;
        let context = Context::new(Arc::new(provider), share);
        let (mut vcqs, mut stadds) = (Vec::new(), Vec::new());
        for tni in 0..TNIS.min(generation.description().tni_ids().count() as u16) {
            let vcq = context.create_vcq(tni, None, 0).map_err(|error| anyhow!("{error}"))?;
            stadds.push(register(&vcq, &buffer).map_err(|error| anyhow!("{error}"))?);
            vcqs.push(vcq);
        }
        starts.push((Arc::new(vcqs), stadds, buffer));
    }
    let peers = starts.iter().map(|(vcqs, stadds, _)| Peer {
        queues: vcqs.iter().map(Vcq::id).zip(stadds.iter().copied()).collect(),
    });
    let peers = Arc::new(peers.collect::<Vec<_>>());
    // The queues close after this, when all programs have ended: that takes time, too.
    let results = model.in_turns(nodes.iter().copied(), |turns| {
        thread::scope(|s| {
            let programs = turns.into_iter().zip(&starts).map(|(turn, (vcqs, stadds, buffer))| {
                let (vcqs, buffer, peers) =
                    (Arc::clone(vcqs), Arc::clone(buffer), Arc::clone(&peers));
                let (stadds, program) = (stadds.clone(), &program);
                s.spawn(move || {
                    let at = turn.begin()?;
                    let pending = vec![0; vcqs.len()];
                    program(&mut Rank { turn, software, vcqs, stadds, buffer, peers, pending, at })
                })
            });
            let programs: Vec<_> = programs.collect();
            let ended = programs.into_iter().map(|thread| thread.join());
            ended
                .map(|ended| ended.unwrap_or_else(|_| Err(anyhow!("a program has panicked"))))
                .collect::<Vec<_>>()
        })
    })?;
    results.into_iter().collect::<anyhow::Result<_>>().context("programs in modelled time")
}
