//! Collectives of all nodes: by barrier gates, and by Puts alone.

use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use tofu_abi::barrier::{BgAddress, Profile};
use tofu_abi::irq::BgsIrqs;
use tofu_abi::reduce::{self, Input, Op, Value};
use tofu_abi::{BchId, BgId};
use tofu_collective::plan::{Choice, Costs, GateOf, GroupShape, choose};
use tofu_driver::{Channel, ChannelConfig, ChannelWaitError, DmaBuffer, Gate, Order};

use crate::{Comm, Error, GPID, NodePlatform, SPIN_NS, TELL_NS, TNI, fail, tell};

/// Start and end gate, and the channel, of all nodes.
const BCH: BchId = BchId::ALL[0];
/// The time after which a node in a round is checked, in nanoseconds.
const ROUND_NS: u64 = 10_000_000_000;

/// The nodes' barrier gates, linked.
pub struct Gates {
    channel: Channel<NodePlatform>,
    choice: Choice,
    profile: Profile,
}

/// The gate of a node's device; the same ones are free on all nodes.
fn gate_number(profile: Profile, gate: u8) -> BgId {
    match gate {
        0 => BCH.gate(),
        relay => BgId::from_field(profile.channels + relay - 1),
    }
}

fn profile_of(comm: &Comm) -> Profile {
    comm.cq.device().description().barrier
}

/// Opens the channel with its gates; when this returns, all nodes have opened theirs.
fn open(comm: &mut Comm, gates: &[Gate]) -> Result<Channel<NodePlatform>, Error> {
    let config = ChannelConfig {
        gpid: GPID,
        interrupts: if comm.polling { BgsIrqs::NONE } else { BgsIrqs::ACKNOWLEDGES },
        spin_ns: SPIN_NS,
        // It is the only channel of the interface.
        nap_ns: ROUND_NS,
        ..ChannelConfig::new(TNI, BCH)
    };
    let channel = Channel::open(comm.cq.device(), &config, gates)?;
    // Signals to gates that are not linked yet would be lost.
    comm.barrier()?;
    Ok(channel)
}

fn run(
    channel: &mut Channel<NodePlatform>,
    op: Op,
    input: &Input,
    count: u8,
) -> Result<Value, Error> {
    channel.start(op, input, count)?;
    let outcome = match channel.wait(TELL_NS) {
        Err(ChannelWaitError::TimedOut { exceptions }) if exceptions.is_empty() => {
            tell(format_args!("waiting for the barrier gates of the other nodes\n"));
            channel.wait(ROUND_NS - TELL_NS)?
        }
        outcome => outcome?,
    };
    match outcome.op {
        Some(_) => Ok(outcome.value),
        None => Err(fail!("nodes have started different operations")),
    }
}

impl Gates {
    /// Links gates of all nodes that run programs, by the algorithm that is quickest for that
    /// number. All of them call this at the same place.
    ///
    /// # Errors
    ///
    /// If the device refuses, or a command fails.
    pub fn open(comm: &mut Comm) -> Result<Self, Error> {
        let profile = profile_of(comm);
        // A start and end gate, and the relay gates of a TNI.
        let most = usize::from(1 + profile.gates - profile.channels);
        let node = |rank| comm.places.coords(rank).unwrap_or_default();
        let far = |a, b| node(a).straight_hops(node(b));
        let choice = choose(GroupShape::line(comm.nodes), most, Costs::TOFUD, far)?;
        let gate_number = |gate| gate_number(profile, gate);
        let address = |at: GateOf| BgAddress::new(node(at.member), TNI, gate_number(at.gate));
        let links = choice.plan.gates(comm.rank as usize);
        let gates = (0..).zip(links).map(|(number, links)| Gate {
            src_local: links.src_local.map(gate_number),
            src_remote: links.src_remote.map(address),
            dst_local: links.dst_local.map(gate_number),
            dst_remote: links.dst_remote.map(address),
            ..Gate::new(TNI, gate_number(number))
        });
        let gates: Vec<_> = gates.collect();
        let channel = open(comm, &gates)?;
        Ok(Self { channel, choice, profile })
    }

    /// The links of the gates.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Gates of this node.
    pub fn count(&self, comm: &Comm) -> usize {
        self.choice.plan.gates(comm.rank as usize).len()
    }

    fn run(&mut self, op: Op, input: &Input, count: u8) -> Result<Value, Error> {
        run(&mut self.channel, op, input, count)
    }

    /// Waits until all nodes are here.
    ///
    /// # Errors
    ///
    /// If one does not come within 10 s.
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.run(Op::Barrier, &Input::default(), 0).map(drop)
    }

    /// Returns true if there is [`Op::MaxLoc`], which reduces two integers together.
    pub fn have_pairs(&self) -> bool {
        self.profile.integers >= 2
    }

    /// Reduces all nodes' integers, in as many rounds as needed.
    ///
    /// # Errors
    ///
    /// As [`Gates::barrier`].
    pub fn reduce<const N: usize>(
        &mut self,
        op: Op,
        mut data: [u64; N],
    ) -> Result<[u64; N], Error> {
        for part in data.chunks_mut(self.profile.integers.into()) {
            let input = reduce::integers(part).ok_or_else(too_many)?;
            let value = self.run(op, &input, part.len() as u8)?;
            part.iter_mut().zip(value).for_each(|(word, result)| *word = result);
        }
        Ok(data)
    }

    /// The sums of all nodes' numbers, in as many rounds as needed.
    ///
    /// # Errors
    ///
    /// As [`Gates::barrier`].
    pub fn sum<const N: usize>(&mut self, data: [f64; N]) -> Result<[f64; N], Error> {
        let mut bits = data.map(f64::to_bits);
        for part in bits.chunks_mut(self.profile.doubles.into()) {
            let input = reduce::doubles(part).ok_or_else(too_many)?;
            let value = self.run(Op::FpSum, &input, part.len() as u8)?;
            part.iter_mut().zip(reduce::sums(&value)).for_each(|(bits, sum)| *bits = sum);
        }
        Ok(bits.map(f64::from_bits))
    }
}

/// Gates of nodes 0 and 2 of three, whose signals to each other go through relay gates of node 1.
pub struct Through {
    channel: Channel<NodePlatform>,
}

impl Through {
    /// The node with the relay gates.
    pub const RELAY: u32 = 1;

    /// Links the gates. All nodes call this at the same place.
    ///
    /// # Errors
    ///
    /// If there are not three nodes, or the device refuses.
    pub fn open(comm: &mut Comm) -> Result<Self, Error> {
        if comm.nodes != 3 {
            return Err(fail!("this takes three nodes, not {}", comm.nodes));
        }
        let profile = profile_of(comm);
        if profile.integers < 2 {
            return Err(fail!("the device reduces one integer in a round, and this takes two"));
        }
        let gate = |rank, number| {
            let node = comm.places.coords(rank).unwrap_or_default();
            BgAddress::new(node, TNI, gate_number(profile, number))
        };
        // Gate 1 of the relay leads from node 0 to node 2, gate 2 back.
        let own = |src_remote, dst_remote| Gate {
            src_local: Some(BCH.gate()),
            dst_local: Some(BCH.gate()),
            src_remote,
            dst_remote,
            ..Gate::new(TNI, BCH.gate())
        };
        let relay = |number, from, to| Gate {
            src_remote: Some(gate(from, 0)),
            dst_remote: Some(gate(to, 0)),
            ..Gate::new(TNI, gate_number(profile, number))
        };
        let via = |number| Some(gate(Self::RELAY, number));
        let gates = match comm.rank {
            0 => vec![own(via(2), via(1))],
            Self::RELAY => vec![own(None, None), relay(1, 0, 2), relay(2, 2, 0)],
            _ => vec![own(via(1), via(2))],
        };
        Ok(Self { channel: open(comm, &gates)? })
    }

    /// The sums of the two nodes' integers.
    ///
    /// # Errors
    ///
    /// If the other one does not come within 10 s.
    pub fn sum(&mut self, data: [u64; 2]) -> Result<[u64; 2], Error> {
        let input = reduce::integers(&data).ok_or_else(too_many)?;
        let value = run(&mut self.channel, Op::Sum, &input, 2)?;
        Ok([value[0], value[1]])
    }
}

fn too_many() -> Error {
    fail!("the device reports that it reduces more elements than there is room for")
}

/// The same by Puts: each node works on every step, by recursive doubling.
///
/// It uses the first [`Messages::SIZE`] bytes of the node's data.
pub struct Messages {
    round: u64,
}

/// Steps at most.
const STEPS: u64 = 32;
/// A place for a message: its round, and the number.
const PLACE: u64 = 16;

impl Default for Messages {
    fn default() -> Self {
        Self::new()
    }
}

impl Messages {
    /// Bytes of data that it needs: for two rounds, because a node may be one round ahead.
    pub const SIZE: usize = (2 * (STEPS + 2) * PLACE) as usize;

    /// Before the first round.
    pub const fn new() -> Self {
        Self { round: 0 }
    }

    fn place(&self, step: u64) -> u64 {
        (self.round % 2 * (STEPS + 2) + step) * PLACE
    }

    fn send(&self, comm: &mut Comm, to: u32, step: u64, number: u64) -> Result<(), Error> {
        let place = comm.at(self.place(step));
        let bytes: Vec<u8> = [number, self.round].into_iter().flat_map(u64::to_le_bytes).collect();
        let order = Order::put_piggyback(comm.target(to), place, &bytes)?;
        comm.start(&order.remote_notice())
    }

    fn receive(&self, comm: &mut Comm, step: u64) -> Result<u64, Error> {
        let at = self.place(step) as usize;
        comm.wait_until(|c| c.data().load_u64(at + 8, Ordering::Acquire) == self.round)?;
        Ok(comm.data().load_u64(at, Ordering::Relaxed))
    }

    /// The sum of all nodes' numbers, as soon as all have called this.
    ///
    /// # Errors
    ///
    /// If a command fails.
    pub fn sum(&mut self, comm: &mut Comm, number: u64) -> Result<u64, Error> {
        self.round += 1;
        let (rank, bits) = (comm.rank, comm.nodes.ilog2());
        let core = 1 << bits;
        let mut sum = number;
        if rank >= core {
            self.send(comm, rank - core, STEPS, sum)?;
            return self.receive(comm, STEPS + 1);
        }
        if rank + core < comm.nodes {
            sum = sum.wrapping_add(self.receive(comm, STEPS)?);
        }
        for bit in 0..bits {
            self.send(comm, rank ^ 1 << bit, bit.into(), sum)?;
            sum = sum.wrapping_add(self.receive(comm, bit.into())?);
        }
        if rank + core < comm.nodes {
            self.send(comm, rank + core, STEPS + 1, sum)?;
        }
        Ok(sum)
    }
}
