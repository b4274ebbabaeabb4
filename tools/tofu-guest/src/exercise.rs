//! `tofu-guest exercise`: the device sends to itself through the kernel driver, which keeps it.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::json;
use tofu_abi::barrier::BgAddress;
use tofu_abi::desc::ArmwOp;
use tofu_abi::reduce::{Input, Op};
use tofu_abi::{BchId, BgId, CqId, StagOffset, TniId};
use tofu_driver::{ChannelConfig, DmaBuffer, Gate, Order, Target};
use tofu_tof::{BarrierChannel, Buffer, ControlQueue, OpenError, QueueConfig, TofDevice};

use crate::output::Output;

/// The time limit for a command or a round. A busy host may not run a node for seconds, and a
/// program that gives up closes its queue with a command in flight, which breaks rules.
const PATIENCE: Duration = Duration::from_secs(30);
const TNI: TniId = TniId::ALL[0];
const PAGE: usize = 4096;
/// Bytes of each half of the memory.
const HALF: usize = 64 << 10;
/// Bytes of a message: more than two TLPs, and an odd number.
const LEN: usize = 4001;
/// Rounds of the barrier.
const ROUNDS: u64 = 4;

/// Uses a queue and two barrier channels that the kernel driver sets up.
pub(crate) fn run(output: &Output) -> anyhow::Result<()> {
    let device = TofDevice::open().context("/proc/tofu, which the kernel driver makes")?;
    let commands = commands(&device).context("a control queue")?;
    let rounds = rounds(&device).context("barrier channels")?;
    let value = json!({ "commands": commands, "rounds": rounds });
    output.print(&value, |out| {
        writeln!(out, "{commands} commands and {rounds} rounds of a barrier as they should be")
    })
}

/// Polls until there is something.
fn wait<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = poll() {
            return Ok(found);
        }
        ensure!(start.elapsed() < PATIENCE, "{what} has not come after {} s", PATIENCE.as_secs());
        thread::yield_now();
    }
}

/// The first of these that no other process has.
fn first_free<I, T>(
    mut of: impl Iterator<Item = I>,
    open: impl Fn(&I) -> Result<T, OpenError>,
) -> anyhow::Result<(I, T)> {
    let found = of.find_map(|id| match open(&id) {
        Err(OpenError::Busy | OpenError::GateBusy) => None,
        opened => Some(opened.map(|opened| (id, opened))),
    });
    Ok(found.context("other processes have all of them")??)
}

/// A queue with memory that it sends from and to.
struct Loop {
    cq: CqId,
    queue: ControlQueue,
    memory: Buffer,
    base: StagOffset,
    to: Target,
}

impl Loop {
    /// The last queue of TNI 0 that is free: most programs begin with the first.
    #[allow(unsafe_code)]
    fn open(device: &TofDevice) -> anyhow::Result<Self> {
        let cqs = device.generation().description().user_cqs();
        let (cq, queue) = first_free((0..cqs).rev().filter_map(CqId::new), |&cq| {
            let session = false;
            ControlQueue::open(&QueueConfig { tni: TNI, cq, toq_size: 0, mrq_size: 0, session })
        })?;
        let memory = Buffer::new(2 * HALF, PAGE).map_err(OpenError::from)?;
        let addr = memory.device_addr() as usize;
        // SAFETY: the memory is only accessed by atomic loads and stores. The queue is dropped
        // before it.
        let (stag, offset) = unsafe { queue.register(addr, 2 * HALF, None, false)? };
        let to = Target::new(device.coords(), TNI);
        Ok(Self { cq, queue, memory, base: StagOffset::new(cq, stag, offset), to })
    }

    fn at(&self, offset: usize) -> StagOffset {
        self.base.advanced(offset as u64)
    }

    /// Runs a command, by the direct descriptor register or by the ring. Returns the old value that
    /// an atomic one brings.
    fn run(&mut self, order: &Order, direct: bool) -> anyhow::Result<u64> {
        let rings = self.queue.rings_mut();
        match direct {
            true => rings.post_direct(order, 0)?,
            false => rings.post_and_ring(order, 0)?,
        }
        let sent = wait("a completion", || rings.poll_tcq())?.rcode;
        ensure!(sent.is_success(), "a command ended with: {}", sent.describe());
        let notice = wait("a notice", || rings.poll_mrq())?;
        rings.acknowledge_mrq();
        let code = notice.word0().rcode();
        ensure!(code.is_success(), "a command ended with: {}", code.describe());
        Ok(notice.old_value())
    }

    /// Registers other memory, has a Put write it, and frees it while the queue stays open.
    #[allow(unsafe_code)]
    fn lend(&mut self) -> anyhow::Result<()> {
        let memory = Buffer::new(PAGE, PAGE).map_err(OpenError::from)?;
        let addr = memory.device_addr() as usize;
        // SAFETY: the program does not use the memory, and the registration ends before it.
        let (stag, offset) = unsafe { self.queue.register(addr, PAGE, None, false)? };
        let (there, here) = (StagOffset::new(self.cq, stag, offset), self.at(13));
        let put = self.run(&Order::put(self.to, there, here, 64), false);
        self.queue.deregister(stag)?;
        put.map(drop)
    }
}

/// Put, Get, a Put to memory that is registered for it alone, a direct descriptor, and an atomic
/// addition where there are any. Returns the number of commands.
fn commands(device: &TofDevice) -> anyhow::Result<u32> {
    let mut queue = Loop::open(device)?;
    let (here, there) = (queue.at(13), queue.at(HALF));
    let sent: Vec<u8> = (0..LEN).map(|i| (i * 7 + i / 251) as u8).collect();
    queue.memory.write(13, &sent);
    queue.run(&Order::put(queue.to, there, here, LEN as u32), false)?;
    queue.memory.write(13, &[0; LEN]);
    queue.run(&Order::get(queue.to, there, here, LEN as u32), false)?;
    let mut found = vec![0; LEN];
    queue.memory.read(13, &mut found);
    ensure!(found == sent, "other bytes came back than were sent");
    queue.lend()?;
    let word = Order::put_piggyback(queue.to, there, &40u64.to_le_bytes())?;
    queue.run(&word, true)?;
    if !device.generation().description().atomics {
        return Ok(4);
    }
    let old = queue.run(&Order::armw8(queue.to, ArmwOp::Add, there, 2), false)?;
    ensure!(old == 40, "an atomic addition found {old} instead of 40");
    Ok(5)
}

/// A sum over two channels of this node; each sends to the other's second gate.
fn rounds(device: &TofDevice) -> anyhow::Result<u64> {
    let profile = device.generation().description().barrier;
    // Neither a queue's nor a program's first choice.
    let relays = profile.gates - 8;
    let pairs = (0..profile.channels.min(7) - 1).rev();
    let open = |first: u8, own: u8| {
        let (bch, relay) = (first + own, relays + own);
        let (peer, peers) = (first + 1 - own, relays + 1 - own);
        let id = |bg: u8| BgId::new(bg).ok_or(OpenError::None);
        let at = |bg: u8| Ok::<_, OpenError>(BgAddress::new(device.coords(), TNI, id(bg)?));
        let (start, relay) = (id(bch)?, id(relay)?);
        let gates = [
            Gate {
                src_local: Some(relay),
                dst_local: Some(relay),
                dst_remote: Some(at(peers)?),
                ..Gate::new(TNI, start)
            },
            Gate {
                src_local: Some(start),
                src_remote: Some(at(peer)?),
                dst_local: Some(start),
                ..Gate::new(TNI, relay)
            },
        ];
        let bch = BchId::new(bch).ok_or(OpenError::None)?;
        BarrierChannel::open(&ChannelConfig::new(TNI, bch), profile, &gates)
    };
    let (_, mut both) = first_free(pairs, |&first| Ok([open(first, 0)?, open(first, 1)?]))?;
    for round in 0..ROUNDS {
        for (own, channel) in both.iter_mut().enumerate() {
            let mut input: Input = Default::default();
            input[0] = round + own as u64;
            channel.rounds_mut().start(Op::Sum, &input, 1)?;
        }
        for channel in &mut both {
            let outcome = wait("the end of a round", || channel.rounds_mut().poll())?;
            let sum = outcome.value[0];
            ensure!(outcome.op == Some(Op::Sum), "a round ended without a sum");
            ensure!(sum == 2 * round + 1, "a sum of {round} and {} is {sum}", round + 1);
        }
    }
    Ok(ROUNDS)
}
