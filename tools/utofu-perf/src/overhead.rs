//! The cost of the library compared to posting by hand: the same commands through the driver's
//! queue alone, through the Rust API, and through the C functions, on a machine in this process.
//! All three poll for the completion, then for the notice, and poll equally often.

use std::hint::black_box;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use serde::Serialize;
use tofu_abi::irq::CqsIrqs;
use tofu_abi::{Coords, CqId, Rcode, StagOffset, TniId};
use tofu_driver::{Cq, CqConfig, Order, Target};
use tofu_utofu::command::Posting;
use tofu_utofu::{Code, Context, DeviceShare, Vcq, flags};
use tofu_utofu_local::{LocalMachine, LocalPlatform, LocalProvider};

use crate::api;
use crate::measure::{Rate, Row, WINDOW};

/// Commands in a round: so few that others seldom take the processor during one.
const ROUND: u32 = 100;
/// Rounds of each kind, in turn.
const ROUNDS: usize = 4000;

/// Through what commands are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    /// The driver's queue alone.
    Hand,
    /// The Rust API.
    Rust,
    /// The C functions.
    C,
}

/// Time of a Put of 8 bytes to the own node, from posting until its completion and its notice were
/// taken, in nanoseconds: medians of rounds, and of the fastest round.
#[derive(Debug, Serialize)]
pub(crate) struct Overhead {
    /// Through the driver's queue alone.
    pub(crate) hand: Times,
    /// Through the Rust API.
    pub(crate) rust: Times,
    /// Through the C functions.
    pub(crate) c: Times,
}

/// Times of one way, in nanoseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Times {
    /// Median of the rounds.
    pub(crate) median_ns: f64,
    /// The fastest round.
    pub(crate) fastest_ns: f64,
    /// Looks at both queues for a command.
    pub(crate) looks: f64,
}

/// A function that posts one command, takes its completion, and returns the number of its polls.
type One = Box<dyn FnMut(u64) -> Result<u64>>;

/// The completions that every command requests.
const FLAGS: u64 = flags::TCQ_NOTICE | flags::LOCAL_MRQ_NOTICE;

/// Measures all ways in turn.
pub(crate) fn measure() -> Result<Overhead> {
    let mut ways = [by_hand()?, through_rust()?, through_c()?];
    let mut rounds = [(); 3].map(|()| Vec::with_capacity(ROUNDS));
    let mut looks = [0; 3];
    for round in 0..=ROUNDS {
        for ((one, times), looks) in ways.iter_mut().zip(&mut rounds).zip(&mut looks) {
            let start = Instant::now();
            for i in 0..ROUND {
                *looks += one(i.into())?;
            }
            let took = start.elapsed().as_nanos() as f64 / f64::from(ROUND);
            if round > 0 {
                times.push(took);
            }
        }
    }
    let commands = f64::from(ROUND) * (ROUNDS + 1) as f64;
    let [hand, rust, c] = rounds.map(|mut times| {
        times.sort_by(f64::total_cmp);
        (times[times.len() / 2], times[0])
    });
    let times = |(median_ns, fastest_ns), looks| Times {
        median_ns,
        fastest_ns,
        looks: looks as f64 / commands,
    };
    let [a, b, d] = looks;
    Ok(Overhead { hand: times(hand, a), rust: times(rust, b), c: times(c, d) })
}

/// Posts commands in one way, for a program that counts instructions.
pub(crate) fn repeat(way: Way, commands: u64) -> Result<()> {
    let mut one = match way {
        Way::Hand => by_hand()?,
        Way::Rust => through_rust()?,
        Way::C => through_c()?,
    };
    for i in 0..commands {
        one(i)?;
    }
    Ok(())
}

/// A machine with one node.
fn alone() -> Result<(LocalMachine, Context<LocalProvider>)> {
    let machine = LocalMachine::new("1x1x1x1x1x1".parse()?)?;
    let node = machine.node(Coords::default())?;
    let context = Context::new(Arc::clone(&node), DeviceShare::new(0, 1)?);
    Ok((machine, context))
}

/// The driver's queue alone, and a target for it.
struct Hand {
    cq: Cq<LocalPlatform>,
    to: Target,
    remote: StagOffset,
    // Kept alive.
    _target: Vcq<LocalProvider>,
    _machine: LocalMachine,
}

impl Hand {
    fn new() -> Result<Self> {
        let (machine, context) = alone()?;
        let target = context.create_vcq(0, None, 0)?;
        let memory = api::memory(4096);
        // SAFETY: the memory is never freed, and nothing in Rust refers to it.
        let stadd = unsafe { target.reg_mem(memory, 4096, None, 0)? };
        let node = Arc::clone(context.provider());
        let config = CqConfig {
            interrupts: CqsIrqs::NONE,
            mrq_size: 2,
            stags: 1,
            ..CqConfig::new(TniId::ALL[2], CqId::ALL[0])
        };
        node.device().tni(TniId::ALL[2]).enable()?;
        let cq = Cq::open(node.device(), &config)?;
        let (to, remote) = (Target::new(Coords::default(), TniId::ALL[0]), StagOffset(stadd.0));
        Ok(Self { cq, to, remote, _target: target, _machine: machine })
    }

    fn post(&mut self, value: u64) -> Result<()> {
        let data = black_box(value).to_le_bytes();
        let order = Order::put_piggyback(self.to, self.remote, &data)?;
        Ok(self.cq.post_and_ring(&order, value)?)
    }
}

/// Baseline of the message rate: messages of 8 bytes by hand, over one interface of a machine in
/// this process.
pub(crate) fn rate_by_hand(time: Duration) -> Result<Row> {
    let mut hand = Hand::new()?;
    let (mut posted, mut ended, mut rate) = (0u64, 0u64, Rate::new());
    let start = Instant::now();
    while posted == 0 || start.elapsed() < time {
        while posted - ended < WINDOW as u64 {
            hand.post(posted)?;
            posted += 1;
        }
        while hand.cq.poll_tcq().is_some() {
            ended += 1;
            rate.ended();
        }
        // The device reports each command here, too.
        while hand.cq.poll_mrq().is_some() {}
        rate.tick();
    }
    let mut row = Row::new("rate by hand", 8, 1, posted);
    row.million_per_s = Some(rate.median() / 1e6);
    Ok(row)
}

fn by_hand() -> Result<One> {
    let mut hand = Hand::new()?;
    Ok(Box::new(move |value| {
        hand.post(value)?;
        let mut looks = 2;
        let done = loop {
            match hand.cq.poll_tcq() {
                Some(done) => break done,
                None => looks += 1,
            }
        };
        let notice = loop {
            match hand.cq.poll_mrq() {
                Some(notice) => break notice,
                None => looks += 1,
            }
        };
        if done.rcode != Rcode::SUCCESS || notice.word0().rcode() != Rcode::SUCCESS {
            bail!("a Put has failed: {}, {}", done.rcode, notice.word0().rcode());
        }
        Ok(looks)
    }))
}

fn through_rust() -> Result<One> {
    let (machine, context) = alone()?;
    let target = context.create_vcq(0, None, 0)?;
    let memory = api::memory(4096);
    // SAFETY: the memory is never freed, and nothing in Rust refers to it.
    let stadd = unsafe { target.reg_mem(memory, 4096, None, 0)? };
    let vcq = context.create_vcq(2, None, 0)?;
    Ok(Box::new(move |value| {
        let _alive = &machine;
        let posting = Posting::new(target.id().0, 0, FLAGS)?;
        vcq.post(&posting.put_piggyback8(black_box(value), 8, stadd.0)?, value as usize)?;
        let mut looks = 2;
        let done = loop {
            match vcq.poll_tcq() {
                Some(done) => break done,
                None => looks += 1,
            }
        };
        let notice = loop {
            match vcq.poll_mrq() {
                Some(notice) => break notice,
                None => looks += 1,
            }
        };
        if done.status() != Code::Success || notice.status() != Code::Success {
            bail!("a Put has failed: {}, {}", done.rcode, notice.rcode);
        }
        Ok(looks)
    }))
}

/// On the C library's own machine.
fn through_c() -> Result<One> {
    let (mut target, mut handle, mut id, mut stadd) = (0, 0, 0, 0);
    let memory = api::memory(4096);
    // SAFETY: the memory is never freed, and nothing in Rust refers to it; the other pointers lead
    // to what they are said to.
    unsafe {
        api::ok(tofucom::utofu_create_vcq(0, 0, &raw mut target))
            .context("TOFU_PROVIDER=inproc is needed")?;
        api::ok(tofucom::utofu_query_vcq_id(target, &raw mut id))?;
        api::ok(tofucom::utofu_reg_mem(target, memory.cast(), 4096, 0, &raw mut stadd))?;
        api::ok(tofucom::utofu_create_vcq(2, 0, &raw mut handle))?;
    }
    Ok(Box::new(move |value| {
        let mut cbdata = ptr::null_mut();
        let mut notice = tofucom::MrqNotice::default();
        let mut looks = 2;
        // SAFETY: as above.
        unsafe {
            let data = black_box(value);
            let none = ptr::null_mut();
            api::ok(tofucom::utofu_put_piggyback8(handle, id, data, stadd, 8, 0, FLAGS, none))?;
            while let code @ ..0 = tofucom::utofu_poll_tcq(handle, 0, &raw mut cbdata) {
                looks += api::nothing_yet(code)?;
            }
            while let code @ ..0 = tofucom::utofu_poll_mrq(handle, 0, &raw mut notice) {
                looks += api::nothing_yet(code)?;
            }
        }
        Ok(looks)
    }))
}
