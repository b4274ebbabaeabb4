//! Collectives of all nodes: by barrier gates, and the same by Puts alone.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use tofu_abi::Coords;
use tofu_abi::barrier::BgAddress;
use tofu_abi::irq::bgs;
use tofu_abi::reduce::{self, Input, Op, Value};
use tofu_abi::regs::NUM_BCH;
use tofu_collective::plan::{Choice, Costs, GateOf, Shape, choose};
use tofu_driver::{Channel, ChannelConfig, DmaBuffer, Gate, Order};

use crate::{Comm, Error, GPID, NodePlatform, SPIN_NS, TNI, fail};

/// Start and end gate, and the channel, of all nodes.
const BCH: u8 = 0;
/// A start and end gate, and the relay gates of a TNI.
const MOST_GATES: usize = 1 + 32;
/// How long a round may take, in nanoseconds, before a node is asked whether it still works.
const ROUND_NS: u64 = 10_000_000_000;

/// The nodes' barrier gates, linked.
pub struct Gates {
    channel: Channel<NodePlatform>,
    choice: Choice,
}

/// The gate of a node's device: all nodes have the same ones free.
fn gate_number(gate: u8) -> u8 {
    match gate {
        0 => BCH,
        relay => NUM_BCH as u8 + relay - 1,
    }
}

/// How far two nodes are apart, without the links that close a torus.
fn hops(a: Coords, b: Coords) -> u32 {
    let apart = |(a, b): (u8, u8)| u32::from(a.abs_diff(b));
    a.to_array().into_iter().zip(b.to_array()).map(apart).sum()
}

impl Gates {
    /// Links gates of all nodes that run programs, by the algorithm that is quickest for so many.
    /// All of them call this at the same place.
    ///
    /// # Errors
    ///
    /// If the device refuses, or a command fails.
    pub fn open(comm: &mut Comm) -> Result<Self, Error> {
        let node = |rank| comm.places.coords(rank).unwrap_or_default();
        let far = |a, b| hops(node(a), node(b));
        let choice = choose(Shape::line(comm.nodes), MOST_GATES, Costs::TOFUD, far)?;
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
        let config = ChannelConfig {
            gpid: GPID,
            interrupts: if comm.polling {
                0
            } else {
                bgs::SYNCHRONIZATION_ACKNOWLEDGE | bgs::ERROR_SYNCHRONIZATION_ACKNOWLEDGE
            },
            spin_ns: SPIN_NS,
            // It is the only channel of the interface.
            nap_ns: ROUND_NS,
            ..ChannelConfig::new(TNI, BCH)
        };
        let channel = Channel::open(comm.cq.device(), &config, &gates)?;
        // Signals to gates that are not linked yet would be lost.
        comm.barrier()?;
        Ok(Self { channel, choice })
    }

    /// How the gates are linked.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Gates of this node.
    pub fn count(&self, comm: &Comm) -> usize {
        self.choice.plan.gates(comm.rank as usize).len()
    }

    fn run(&mut self, op: Op, input: &Input, count: u8) -> Result<Value, Error> {
        self.channel.start(op, input, count)?;
        let outcome = self.channel.wait(ROUND_NS)?;
        match outcome.op {
            Some(_) => Ok(outcome.value),
            None => Err(fail!("nodes have started different operations")),
        }
    }

    /// Waits until all nodes are here.
    ///
    /// # Errors
    ///
    /// If one does not come within 10 s.
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.run(Op::Barrier, &Input::default(), 0).map(drop)
    }

    /// What comes of all nodes' integers, 8 at most.
    ///
    /// # Errors
    ///
    /// As [`Gates::barrier`].
    pub fn reduce<const N: usize>(&mut self, op: Op, data: [u64; N]) -> Result<[u64; N], Error> {
        let input = reduce::integers(&data).ok_or_else(|| fail!("{N} integers are too many"))?;
        let value = self.run(op, &input, N as u8)?;
        Ok(core::array::from_fn(|i| value[i]))
    }

    /// The sums of all nodes' numbers, 3 at most.
    ///
    /// # Errors
    ///
    /// As [`Gates::barrier`].
    pub fn sum<const N: usize>(&mut self, data: [f64; N]) -> Result<[f64; N], Error> {
        let input = reduce::doubles(&data.map(f64::to_bits));
        let input = input.ok_or_else(|| fail!("{N} numbers are too many"))?;
        let value = self.run(Op::FpSum, &input, N as u8)?;
        Ok(core::array::from_fn(|i| f64::from_bits(reduce::sums(&value)[i])))
    }
}

/// The same by Puts: each node works on every step, by recursive doubling.
///
/// It uses the first [`Messages::SIZE`] bytes of the node's data.
pub struct Messages {
    round: u64,
}

/// Steps at most.
const STEPS: u64 = 32;
/// A place for a message: the round that it is of, and the number.
const PLACE: u64 = 16;

impl Default for Messages {
    fn default() -> Self {
        Self::new()
    }
}

impl Messages {
    /// Bytes of data that it needs: for two rounds, as a node may be one round ahead.
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
