//! Shared by the guest programs: the places of nodes, and the communication with them.
//!
//! All nodes open control queue 0 of TNI 0 and register the same STags, so that each node knows
//! every other node's addresses without an exchange.
//!
//! Command line: `shape=` and `torus=` give the machine (see [`tofu_abi::topology`]). With `io=1`,
//! nodes with Z = 0 run no program; with `nodes=N`, only the first N of the others do; `without=N`
//! leaves out node N. `wait=irq` (the default) or `wait=poll` selects how to wait. `json=1` prints
//! results as a line of JSON.
//!
//! The programs run without an operating system (feature `bare`, the default) or as Linux
//! programs (feature `linux`). The differences are hidden behind [`entry!`], [`println!`],
//! [`option`], [`now_ns`], [`find_device`], [`NodePlatform`] and [`NodeBuffer`]; nodes of both
//! kinds work together.
#![cfg_attr(not(feature = "linux"), no_std)]

extern crate alloc;

#[cfg(not(feature = "linux"))]
mod bare;
pub mod collective;
mod error;
#[cfg(feature = "linux")]
mod linux;
pub mod net;
pub mod random;
mod results;
pub mod tnw;

#[cfg(not(feature = "linux"))]
pub use crate::bare::*;
pub use crate::error::{Error, exit_code};
#[cfg(feature = "linux")]
pub use crate::linux::*;
pub use crate::results::{
    Column, Hundredths, LATENCY_COLUMNS, Latencies, Table, latency_row, percentile,
};

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use tofu_abi::irq::CqsIrqs;
use tofu_abi::queue::MrqId;
use tofu_abi::table::PageSize;
use tofu_abi::topology::{Axis, NodeId, Shape};
use tofu_abi::{Coords, CqId, Rcode, StagOffset, TniId};
use tofu_driver::{
    Access, Cq, CqConfig, Device, DmaBuffer, MemoryRange, Order, Platform, Target, WaitError,
};

const TNI: TniId = TniId::ALL[0];
const CQ: CqId = CqId::ALL[0];
/// STag of the control block.
const CONTROL: u32 = 0;
/// STag of the program's data.
const DATA: u32 = 1;
/// Group process id of the shipped programs. Not 0, the reset value: a node that was never set up
/// cannot communicate with them.
const GPID: u64 = 1;
/// Offset in the control block of the number of the last barrier that all nodes have reached.
const RELEASE: u64 = 0;

/// Offset in node 0's control block of the number of barriers that a node has reached.
fn arrivals(rank: u32) -> u64 {
    8 + 8 * u64::from(rank)
}

/// The time to poll before sleeping, in nanoseconds: about what a wake-up costs.
const SPIN_NS: u64 = 5_000;
/// The interval at which an unlimited wait checks whether its queue still works, in nanoseconds.
/// Without an operating system only the program itself can reset the device, and a timer costs
/// time.
const PATROL_NS: u64 = if cfg!(feature = "linux") { 2_000_000_000 } else { u64::MAX };
/// Pause before a command to a node that is not up yet is tried again, in nanoseconds. It
/// doubles up to the longest.
const RETRY_NS: u64 = 1_000_000;
const RETRY_MAX_NS: u64 = 16_000_000;
/// After this time in nanoseconds a program reports that it waits for others, and again whenever
/// that time has doubled.
pub(crate) const TELL_NS: u64 = 3_000_000_000;
/// The time limit for a node to come up, in nanoseconds.
const START_NS: u64 = 60_000_000_000;

/// Commands in flight at most in [`Comm::run_all`].
const WINDOW: u64 = 512;

/// Prints. Output is collected and sent a line at a time.
#[macro_export]
macro_rules! print {
    ($($arg:tt)*) => { $crate::print_args(::core::format_args!($($arg)*)) };
}

/// Prints a line.
#[macro_export]
macro_rules! println {
    () => { $crate::print!("\n") };
    ($($arg:tt)*) => { $crate::print!("{}\n", ::core::format_args!($($arg)*)) };
}

/// A number from the command line.
///
/// # Errors
///
/// If there is something else than a number.
pub fn number(name: &str, default: u64) -> Result<u64, Error> {
    match option(name) {
        None => Ok(default),
        Some(text) => text.parse().map_err(|_| fail!("{name}={text} is not a number")),
    }
}

/// The machine's shape, from the command line.
///
/// # Errors
///
/// If it is not there or not a shape.
pub fn machine_shape() -> Result<Shape, Error> {
    let text = option("shape").ok_or_else(|| fail!("no shape= on the command line"))?;
    let shape: Shape = text.parse()?;
    let shape = option("torus").map_or(shape, |axes| shape.with_torus_letters(axes));
    Ok(shape.with_io_nodes(option("io") == Some("1")))
}

/// The nodes that run programs, numbered from 0.
#[derive(Clone, Copy, Debug)]
struct Numbering {
    shape: Shape,
    nodes: u32,
    /// A node that runs none, but joins the machine to others.
    gateway: Option<Coords>,
    /// Its number among the nodes that may run programs, if it is one of them.
    skipped: Option<u32>,
}

/// The number of a node among those that may run programs, which I/O nodes do not.
fn place(shape: &Shape, coords: Coords) -> Option<u32> {
    let NodeId(node) = shape.node_id(coords)?;
    if !shape.has_io_nodes() {
        return Some(node);
    }
    // Each X and Y has a block of I/O nodes before its others.
    let (block, column) = (shape.stride(Axis::Z), shape.stride(Axis::Y));
    let within = (node % column).checked_sub(block)?;
    Some(node / column * (column - block) + within)
}

/// The node with this number among those that may run programs.
fn node_at(shape: &Shape, place: u32) -> Option<Coords> {
    if !shape.has_io_nodes() {
        return shape.coords(NodeId(place));
    }
    let (block, column) = (shape.stride(Axis::Z), shape.stride(Axis::Y));
    let compute = column - block;
    let before = (place / compute).checked_mul(column)?;
    shape.coords(NodeId(before.checked_add(block + place % compute)?))
}

impl Numbering {
    fn new() -> Result<Self, Error> {
        let shape = machine_shape()?;
        let gateway = match option("without") {
            Some(_) => {
                let node = u32::try_from(number("without", 0)?).ok();
                node.and_then(|node| shape.coords(NodeId(node)))
            }
            None => None,
        };
        let skipped = gateway.and_then(|at| place(&shape, at));
        let most = shape.compute_nodes() - u32::from(skipped.is_some());
        let nodes = number("nodes", most.into())?.min(most.into()) as u32;
        Ok(Self { shape, nodes, gateway, skipped })
    }

    fn coords(&self, rank: u32) -> Option<Coords> {
        let skips = self.skipped.is_some_and(|skipped| rank >= skipped);
        node_at(&self.shape, rank.checked_add(skips.into())?).filter(|_| rank < self.nodes)
    }

    /// The node that is left out.
    fn gateway(&self) -> Option<Coords> {
        self.gateway
    }

    fn rank(&self, coords: Coords) -> Option<u32> {
        let place = place(&self.shape, coords)?;
        let rank = match self.skipped {
            Some(skipped) if place == skipped => return None,
            Some(skipped) if place > skipped => place - 1,
            _ => place,
        };
        (rank < self.nodes).then_some(rank)
    }
}

/// This node according to the command line and the device.
struct Setup {
    places: Numbering,
    rank: u32,
    /// True to poll instead of waiting for interrupts.
    polling: bool,
    device: Device<NodePlatform>,
}

impl Setup {
    fn new() -> Result<Self, Error> {
        let places = Numbering::new()?;
        let polling = match option("wait") {
            None | Some("irq") => false,
            Some("poll") => true,
            Some(other) => return Err(fail!("wait={other} is neither irq nor poll")),
        };
        let device = Device::probe(find_device()?)?;
        let coords = device.coords();
        let nodes = places.nodes;
        let rank = places.rank(coords).ok_or_else(|| {
            fail!("node {coords} is not one of the {nodes} nodes that run programs")
        })?;
        Ok(Self { places, rank, polling, device })
    }
}

/// This node's queue and its knowledge of the others.
pub struct Comm {
    places: Numbering,
    nodes: u32,
    rank: u32,
    polling: bool,
    sleeper: Sleeper,
    cq: Cq<NodePlatform>,
    control: NodeBuffer,
    data: NodeBuffer,
    barriers: u64,
    /// Commands of [`Comm::start`] in progress.
    started: Awaited,
}

/// Outstanding completions and notices of commands in progress. Each command has a completion,
/// which reports that it was sent, and a notice with its target's result.
#[derive(Clone, Copy, Debug, Default)]
struct Awaited {
    completions: u64,
    notices: u64,
}

impl Awaited {
    fn posted(&mut self) {
        self.completions += 1;
        self.notices += 1;
    }

    fn none(self) -> bool {
        self.completions == 0 && self.notices == 0
    }
}

impl Comm {
    /// Opens this node's queue, with zeroed memory for the program that every node can reach:
    /// as many bytes as `data_size` says for that number of nodes.
    ///
    /// # Errors
    ///
    /// If there is no device, or the command line makes no sense.
    pub fn open(data_size: impl FnOnce(u32) -> usize) -> Result<Self, Error> {
        let Setup { places, rank, polling, device } = Setup::new()?;
        let nodes = places.nodes;
        let allocate = |size| device.platform().alloc_dma(size, 4096);
        let (control, data) =
            (allocate(arrivals(nodes) as usize)?, allocate(data_size(nodes).max(1))?);
        let config = CqConfig {
            stags: 2,
            gpid: GPID,
            interrupts: if polling { CqsIrqs::NONE } else { CqsIrqs::ACKNOWLEDGES },
            spin_ns: SPIN_NS,
            ..CqConfig::new(TNI, CQ)
        };
        let mut cq = Cq::open(&device, &config)?;
        for (buffer, stag) in [(&control, CONTROL), (&data, DATA)] {
            let range = [MemoryRange::of(buffer)];
            cq.register(&range, PageSize::Size4K, Access::ReadWrite, Some(stag))?;
        }
        // Last, because from here on packets of others are accepted.
        device.tni(TNI).enable()?;
        let sleeper = Sleeper::new()?;
        Ok(Self {
            places,
            nodes,
            rank,
            polling,
            sleeper,
            cq,
            control,
            data,
            barriers: 0,
            started: Awaited::default(),
        })
    }

    /// The settings for other parts of the program.
    fn setup(&self) -> Setup {
        let device = self.cq.device().clone();
        Setup { places: self.places, rank: self.rank, polling: self.polling, device }
    }

    /// The machine's shape.
    pub fn shape(&self) -> &Shape {
        &self.places.shape
    }

    /// The number of nodes that run programs.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// The number of this node.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Coordinates of this node.
    pub fn coords(&self) -> Coords {
        self.cq.device().coords()
    }

    /// The numbers of the other nodes that run programs, beginning with the next one, so that the
    /// nodes do not all address the same one at the same time.
    pub fn peers(&self) -> impl Iterator<Item = u32> + use<> {
        let (rank, nodes) = (self.rank, self.nodes);
        (1..nodes).map(move |i| (rank + i) % nodes)
    }

    /// The program's memory.
    pub fn data(&self) -> &NodeBuffer {
        &self.data
    }

    /// The queue, for operations that are not offered here.
    pub fn cq(&mut self) -> &mut Cq<NodePlatform> {
        &mut self.cq
    }

    /// The target of commands to a node.
    ///
    /// # Panics
    ///
    /// If the machine has no such node.
    pub fn target(&self, rank: u32) -> Target {
        Target::new(self.places.coords(rank).expect("a node of the machine"), TNI)
    }

    /// Returns true if the device has atomic commands.
    pub fn has_atomics(&self) -> bool {
        self.cq.device().description().atomics
    }

    /// The address of a byte of a node's data, the same on every node.
    pub fn at(&self, offset: u64) -> StagOffset {
        StagOffset::new(CQ, DATA, offset)
    }

    /// Runs a command to its end and returns the old value that an atomic command brings.
    ///
    /// While the other node is not up yet, tries again.
    ///
    /// # Errors
    ///
    /// If the command fails or the node does not come up within a minute.
    pub fn run(&mut self, order: &Order) -> Result<u64, Error> {
        self.finish()?;
        let start = now_ns();
        let (mut pause, mut told) = (RETRY_NS, false);
        loop {
            self.cq.post_and_ring(order, 0)?;
            // Every command but NOP ends with its own notice; others may come between.
            let notice = loop {
                let notice = self.wait(Cq::wait_mrq)?;
                if notice.id().is_some_and(MrqId::ends_own_command) {
                    break notice;
                }
            };
            self.wait(Cq::wait_tcq)?;
            let code = notice.word0().rcode();
            if code.is_success() {
                return Ok(notice.old_value());
            }
            if !is_not_up(code) || now_ns() - start > START_NS {
                return Err(fail!("{}", code.describe()));
            }
            if !told && now_ns() - start > TELL_NS {
                told = true;
                let at = notice.word0().coords();
                tell(format_args!("waiting for node {at}, where no program has started\n"));
            }
            self.pause(pause);
            pause = (2 * pause).min(RETRY_MAX_NS);
        }
    }

    /// Starts a command that must not fail, and does not wait for its end, which is checked later:
    /// by the next call of this or by [`Comm::finish`].
    ///
    /// # Errors
    ///
    /// If an earlier command failed, or too many are in progress.
    pub fn start(&mut self, order: &Order) -> Result<(), Error> {
        self.cq.post_and_ring(order, 0)?;
        self.started.posted();
        self.reap_started()
    }

    fn reap_started(&mut self) -> Result<(), Error> {
        let mut started = self.started;
        let failed = self.reap(&mut started);
        self.started = started;
        failed.map_or(Ok(()), Err)
    }

    /// Takes the completions and notices that have arrived; returns the first failure.
    fn reap(&mut self, awaited: &mut Awaited) -> Option<Error> {
        let mut failed = None;
        while let Some(done) = self.cq.poll_tcq() {
            awaited.completions = awaited.completions.saturating_sub(1);
            if !done.is_success() {
                failed.get_or_insert_with(|| fail!("{}", done.rcode.describe()));
            }
        }
        while let Some(notice) = self.cq.poll_mrq() {
            if !notice.id().is_some_and(MrqId::ends_own_command) {
                continue;
            }
            awaited.notices = awaited.notices.saturating_sub(1);
            let word0 = notice.word0();
            if !word0.rcode().is_success() {
                failed.get_or_insert_with(|| {
                    fail!("a command to {}: {}", word0.coords(), word0.rcode().describe())
                });
            }
        }
        failed
    }

    /// Waits for the end of all commands that were started.
    ///
    /// # Errors
    ///
    /// If one of them failed.
    pub fn finish(&mut self) -> Result<(), Error> {
        loop {
            self.reap_started()?;
            if self.started.none() {
                return Ok(());
            }
            self.wait(Cq::wait)?;
        }
    }

    /// Waits for something that only a fault can prevent.
    fn wait<T>(
        &mut self,
        mut wait: impl FnMut(&mut Cq<NodePlatform>, u64) -> Result<T, WaitError>,
    ) -> Result<T, Error> {
        loop {
            match wait(&mut self.cq, PATROL_NS) {
                Err(WaitError::TimedOut) if self.cq.status().cq_enable() => {}
                Err(WaitError::TimedOut) => return Err(fail!("the device was reset")),
                other => return Ok(other?),
            }
        }
    }

    /// Runs many commands, as many of them at a time as fit.
    ///
    /// # Errors
    ///
    /// If a command fails: the first of the failures.
    pub fn run_all(&mut self, orders: impl IntoIterator<Item = Order>) -> Result<(), Error> {
        self.finish()?;
        let mut orders = orders.into_iter();
        let mut awaited = Awaited::default();
        let mut failed = None;
        loop {
            let mut posted = false;
            while awaited.notices < WINDOW && self.cq.free_slots() >= 2 {
                let Some(order) = orders.next() else { break };
                self.cq.post(&order, 0)?;
                awaited.posted();
                posted = true;
            }
            if posted {
                self.cq.doorbell();
            }
            if awaited.none() {
                break;
            }
            failed = failed.or(self.reap(&mut awaited));
            if !awaited.none() {
                self.wait(Cq::wait)?;
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Waits until `done` says so of this node's own memory, which others write with a remote
    /// notice.
    ///
    /// # Errors
    ///
    /// If the queue reports an exception.
    pub fn wait_until(&mut self, done: impl FnMut(&Self) -> bool) -> Result<(), Error> {
        self.wait_until_or_tell(PATROL_NS, done, |_, out| out.push_str("another node"))
    }

    /// The same. If it takes long, prints a message with the text of `whom`. It wakes up at the
    /// latest after `patrol` nanoseconds to check the time, unless that is the greatest value.
    fn wait_until_or_tell(
        &mut self,
        patrol: u64,
        mut done: impl FnMut(&Self) -> bool,
        whom: impl Fn(&Self, &mut String),
    ) -> Result<(), Error> {
        let start = now_ns();
        let mut next = TELL_NS;
        loop {
            self.reap_started()?;
            if done(self) {
                return Ok(());
            }
            let elapsed = now_ns() - start;
            if elapsed >= next {
                let mut text = String::from("waiting for ");
                whom(self, &mut text);
                tell(format_args!("{text}\n"));
                next = elapsed.saturating_mul(2);
            }
            let nap = match patrol {
                u64::MAX => patrol,
                _ => patrol.min(next.saturating_sub(elapsed)),
            };
            match self.cq.wait(nap) {
                Err(WaitError::TimedOut) if !self.cq.status().cq_enable() => {
                    return Err(fail!("the device was reset"));
                }
                Ok(_) | Err(WaitError::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits until every node has come here. The first time it also waits for nodes that are
    /// not up yet.
    ///
    /// # Errors
    ///
    /// If a command fails.
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.barriers += 1;
        let number = self.barriers;
        if self.nodes == 1 {
            return Ok(());
        }
        if self.rank != 0 {
            let arrivals = StagOffset::new(CQ, CONTROL, arrivals(self.rank));
            // This needs no atomic command, which the first Tofu lacks.
            let arrive = Order::put_piggyback(self.target(0), arrivals, &number.to_le_bytes())?;
            self.run(&arrive.remote_notice())?;
            return self.wait_until_or_tell(
                TELL_NS,
                |c| c.control.load_u64(RELEASE as usize, Ordering::Acquire) >= number,
                |c, out| {
                    let first = c.places.coords(0).unwrap_or_default();
                    out.push_str(&format!("node {first}, which waits for the others"));
                },
            );
        }
        let nodes = self.nodes;
        let has_come = move |c: &Self, rank: u32| {
            c.control.load_u64(arrivals(rank) as usize, Ordering::Acquire) >= number
        };
        let mut come = 1;
        self.wait_until_or_tell(
            TELL_NS,
            |c| {
                while come < nodes && has_come(c, come) {
                    come += 1;
                }
                come == nodes
            },
            |c, out| c.list(out, (1..nodes).filter(|rank| !has_come(c, *rank))),
        )?;
        let release = StagOffset::new(CQ, CONTROL, RELEASE);
        let orders: Vec<_> = self
            .peers()
            .map(|rank| {
                let order = Order::put_piggyback(self.target(rank), release, &number.to_le_bytes());
                Ok(order?.remote_notice())
            })
            .collect::<Result<_, Error>>()?;
        self.run_all(orders)
    }

    /// Writes a list of these nodes, the first of them by name.
    fn list(&self, out: &mut String, ranks: impl Iterator<Item = u32> + Clone) {
        const NAMED: usize = 4;
        let (count, others) = (ranks.clone().count(), self.nodes - 1);
        out.push_str(&format!("{count} of {others} other nodes:"));
        for at in ranks.filter_map(|rank| self.places.coords(rank)).take(NAMED) {
            out.push_str(&format!(" {at}"));
        }
        if count > NAMED {
            out.push_str(" ...");
        }
    }

    /// Sleeps.
    pub fn pause(&self, ns: u64) {
        self.sleeper.sleep(ns);
    }
}

/// Returns true if a command with this result may work later because its target is still starting.
/// Its queue may also be that of the job before, until the broker has taken it back.
fn is_not_up(code: Rcode) -> bool {
    const STAG_DISABLED: Rcode = Rcode::STAG_DISABLED.remote();
    matches!(
        code,
        Rcode::TARGET_DMA_OFF
            | Rcode::TNI_DISABLED
            | Rcode::CQ_DISABLED
            | Rcode::GPID
            | Rcode::STEERING_TABLE_DISABLED
            | STAG_DISABLED
    )
}

/// Fills `bytes` with data that depends on `seed` and on the place.
pub fn fill_pattern(seed: u64, bytes: &mut [u8]) {
    // xorshift64, with a seed that is never 0.
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for chunk in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let n = chunk.len();
        chunk.copy_from_slice(&state.to_le_bytes()[..n]);
    }
}
