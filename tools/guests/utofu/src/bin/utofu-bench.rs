//! Node 0 measures uTofu with node 1: latency by size, then message rate and bandwidth by the
//! number of interfaces, beside what could do the same with the least: the driver's queue alone,
//! and a copy in the guest's memory.
//!
//! `count=N` is the number of messages for each latency (1000); ten times as many are timed for a
//! rate, half as many for a bandwidth. Rates are medians of slices of 2 ms, as others may take the
//! processors for a while. `json=1` prints a line of JSON for each value.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::hint::{black_box, spin_loop};

use tofu_abi::irq::CqsIrqs;
use tofu_abi::{CqId, StagOffset, TniId};
use tofu_bare::irq;
use tofu_driver::{Cq, CqConfig, Order, Target};
use tofu_guests::{Error, Hundredths, fail, now_ns, number, println};
use tofu_guests_utofu::{MEMORY, Node, Vcqs};
use tofu_utofu::command::{Packets, Posting};
use tofu_utofu::flags::{LOCAL_MRQ_NOTICE, REMOTE_MRQ_NOTICE, TCQ_NOTICE};
use tofu_utofu::ids::{Stadd, VcqId};
use tofu_utofu::{Code, Command, Context, Vcq};
use tofu_utofu_bare::BareProvider;

/// Bytes of each node's memory: one half is written, the other sent.
const SIZE: usize = 4 << 20;
const SIZES: [usize; 5] = [8, 64, 1024, 16_384, 262_144];
/// Bytes of messages whose bandwidth is measured.
const LARGE: usize = 262_144;
/// Commands in flight on each interface.
const WINDOW: u64 = 32;
/// The time limit for anything, in nanoseconds.
const PATIENCE_NS: u64 = 60_000_000_000;

/// The time for which the other node polls for messages before it sleeps, in nanoseconds.
const SPIN_NS: u64 = 1_000_000;

/// The purpose of a message, as edata.
const HELLO: u64 = 1;
const ECHO: u64 = 2;
const END: u64 = 3;

tofu_guests::entry!(bench);

struct Side {
    vcqs: Vec<Vcq<BareProvider>>,
    ids: Vec<VcqId>,
    context: Context<BareProvider>,
    peer: VcqId,
    memory: *mut u8,
    json: bool,
    count: u64,
}

/// Polls until there is something.
fn wait<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> Result<T, Error> {
    let start = now_ns();
    loop {
        for _ in 0..1000 {
            if let Some(found) = poll() {
                return Ok(found);
            }
            spin_loop();
        }
        if now_ns() - start > PATIENCE_NS {
            return Err(fail!("no {what}"));
        }
    }
}

/// The number of messages that end, by slices of time.
struct Rate {
    start: u64,
    ended: u64,
    slices: Vec<(u64, u64)>,
}

impl Rate {
    /// A slice is at least this long, in nanoseconds.
    const SLICE: u64 = 2_000_000;

    fn new() -> Self {
        Self { start: now_ns(), ended: 0, slices: Vec::new() }
    }

    fn ended(&mut self, more: u64) {
        self.ended += more;
        let now = now_ns();
        if now - self.start >= Self::SLICE && self.ended > 0 {
            self.slices.push((self.ended, now - self.start));
            (self.start, self.ended) = (now, 0);
        }
    }

    /// The slice in the middle.
    fn median(mut self) -> (u64, u64) {
        if self.slices.is_empty() {
            return (self.ended, now_ns() - self.start);
        }
        self.slices.sort_unstable_by_key(|&(ended, ns)| ended * 1_000_000_000 / ns.max(1));
        self.slices[self.slices.len() / 2]
    }
}

impl Side {
    fn at(&self, tni: usize) -> Result<u64, Error> {
        Ok(Stadd::reserved(self.ids[tni], MEMORY)?.0)
    }

    fn completed(&self, tni: usize) -> Result<Code, Error> {
        let vcq = &self.vcqs[tni];
        Ok(wait("completion", || vcq.poll_tcq())?.status())
    }

    fn good(&self, tni: usize) -> Result<(), Error> {
        match self.completed(tni)? {
            Code::Success => Ok(()),
            code => Err(fail!("a command ended with {}", code.name())),
        }
    }

    fn message(&self, edata: u64, size: usize) -> Result<Command, Error> {
        let to = Posting::new(self.ids[0].0, edata, TCQ_NOTICE | REMOTE_MRQ_NOTICE)?;
        let at = self.at(0)?;
        Ok(if size == 8 {
            to.put_piggyback8(edata, 8, at)?
        } else {
            to.put(at + SIZE as u64 / 2, at, size, Packets::default())?
        })
    }

    fn put(&self, tni: usize, size: usize) -> Result<Command, Error> {
        let to = Posting::new(self.ids[tni].0, 0, TCQ_NOTICE)?;
        let at = self.at(tni)?;
        Ok(if size == 8 {
            to.put_piggyback8(1, 8, at)?
        } else {
            to.put(at + SIZE as u64 / 2, at, size, Packets::default())?
        })
    }

    /// Waits until the other node has all its VCQs.
    fn greet(&self) -> Result<(), Error> {
        let start = now_ns();
        let mut greeted = false;
        for (tni, vcq) in self.vcqs.iter().enumerate() {
            let to = Posting::new(self.ids[tni].0, 0, TCQ_NOTICE | LOCAL_MRQ_NOTICE)?;
            let put = to.put_piggyback8(1, 8, self.at(tni)?)?;
            loop {
                vcq.post(&put, 0)?;
                self.good(tni)?;
                // A Put to a node that is not ready is dropped, according to the local notice.
                let own = loop {
                    let notice = wait("notice", || vcq.poll_mrq())?;
                    if notice.kind.is_local() {
                        break notice;
                    }
                    // The other node is further on.
                    greeted = true;
                };
                match own.status() {
                    Code::Success => break,
                    _ if now_ns() - start < PATIENCE_NS => {}
                    code => return Err(fail!("the other node is not ready: {}", code.name())),
                }
            }
        }
        self.vcqs[0].post(&self.message(HELLO, 8)?, 0)?;
        self.good(0)?;
        if greeted { Ok(()) } else { self.expect(HELLO).map(drop) }
    }

    fn expect(&self, edata: u64) -> Result<u64, Error> {
        let vcq = &self.vcqs[0];
        let notice = wait("message", || vcq.poll_mrq())?;
        if u64::from(notice.edata) != edata {
            return Err(fail!("message {} where {edata} was due", notice.edata));
        }
        Ok(notice.rmt_stadd - Stadd::reserved(vcq.id(), MEMORY)?.0)
    }

    /// Sends back each message with the same length. Sleeps when nothing arrives, so that two
    /// processors are enough for node 0 and an engine.
    fn serve(&self) -> Result<(), Error> {
        let vcq = &self.vcqs[0];
        let quiet = irq::alloc_vector().ok_or_else(|| fail!("no interrupt vector left"))?;
        let mut last = now_ns();
        loop {
            let Some(notice) = vcq.poll_mrq() else {
                match now_ns() - last {
                    0..SPIN_NS => spin_loop(),
                    SPIN_NS..PATIENCE_NS => {
                        // Nothing raises this vector: only the time ends the wait.
                        irq::wait(quiet, irq::count(quiet), Some(2 * SPIN_NS));
                    }
                    _ => return Err(fail!("no message")),
                }
                continue;
            };
            last = now_ns();
            match u64::from(notice.edata) {
                END => return Ok(()),
                _ => {
                    let size = notice.rmt_stadd - Stadd::reserved(vcq.id(), MEMORY)?.0;
                    vcq.post(&self.message(ECHO, size as usize)?, 0)?;
                    self.good(0)?;
                }
            }
        }
    }

    fn row(
        &self,
        test: &str,
        bytes: usize,
        tnis: usize,
        names: [&str; 2],
        values: [Hundredths; 2],
    ) {
        let ([a, b], [first, second]) = (values, names);
        if self.json {
            println!(
                "{{\"test\":\"{test}\",\"bytes\":{bytes},\"tnis\":{tnis},\
                 \"{first}\":{a},\"{second}\":{b}}}"
            );
        } else {
            println!("{test:<13}{bytes:>7} bytes, {tnis} TNIs: {first} {a}, {second} {b}");
        }
    }

    fn times(&self, test: &str, bytes: usize, mut times: Vec<u64>) {
        times.sort_unstable();
        let at = |percent: usize| Hundredths::micros(times[times.len() * percent / 100]);
        self.row(test, bytes, 1, ["p50_us", "p99_us"], [at(50), at(99)]);
    }

    fn rate(&self, test: &str, bytes: usize, tnis: usize, rate: Rate) {
        let (count, ns) = rate.median();
        let names = ["thousand_per_s", "mib_per_s"];
        let all = bytes as u64 * count;
        let values = [Hundredths::thousands_per_s(count, ns), Hundredths::mib_per_s(all, ns)];
        self.row(test, bytes, tnis, names, values);
    }

    fn latency(&self, size: usize) -> Result<(), Error> {
        let mut times = Vec::new();
        for _ in 0..self.count {
            let start = now_ns();
            self.vcqs[0].post(&self.message(ECHO, size)?, 0)?;
            self.expect(ECHO)?;
            times.push((now_ns() - start) / 2);
            self.good(0)?;
        }
        self.times("latency", size, times);
        Ok(())
    }

    fn puts(&self, size: usize) -> Result<(), Error> {
        let mut times = Vec::new();
        for _ in 0..self.count {
            let start = now_ns();
            self.vcqs[0].post(&self.put(0, size)?, 0)?;
            self.good(0)?;
            times.push(now_ns() - start);
        }
        self.times("put", size, times);
        Ok(())
    }

    /// Many messages in progress on some interfaces.
    fn stream(&self, test: &str, size: usize, tnis: usize) -> Result<(), Error> {
        let commands: Vec<_> = (0..tnis).map(|t| self.put(t, size)).collect::<Result<_, _>>()?;
        let all = if size == 8 { self.count * 10 } else { self.count / 2 };
        let mut under_way = vec![0; tnis];
        let (mut posted, mut ended) = (0, 0);
        let (start, mut rate) = (now_ns(), Rate::new());
        while ended < all {
            let before = ended;
            for (tni, count) in under_way.iter_mut().enumerate() {
                let vcq = &self.vcqs[tni];
                while *count < WINDOW && posted < all {
                    vcq.post(&commands[tni], 0)?;
                    *count += 1;
                    posted += 1;
                }
                while let Some(done) = vcq.poll_tcq() {
                    if done.status() != Code::Success {
                        return Err(fail!("a command ended with {}", done.status().name()));
                    }
                    *count -= 1;
                    ended += 1;
                }
            }
            rate.ended(ended - before);
            if now_ns() - start > PATIENCE_NS {
                return Err(fail!("{ended} of {all} messages"));
            }
        }
        self.rate(test, size, tnis, rate);
        Ok(())
    }

    /// Puts of 8 bytes through the driver's queue, without uTofu: one at a time, and many in
    /// flight.
    fn by_hand(&self) -> Result<(), Error> {
        let provider = Arc::clone(self.context.provider());
        let config = CqConfig {
            interrupts: CqsIrqs::NONE,
            stags: 1,
            ..CqConfig::new(TniId::ALL[0], CqId::ALL[9])
        };
        let mut cq = Cq::open(provider.device(), &config)?;
        let to = Target::new(self.peer.coords(), TniId::ALL[0]);
        let remote = StagOffset(self.at(0)?).with_cqid(0);
        let post = |cq: &mut Cq<_>| -> Result<(), Error> {
            let order = Order::put_piggyback(to, remote, &black_box(1u64).to_le_bytes())?;
            Ok(cq.post_and_ring(&order, 0)?)
        };
        let mut times = Vec::new();
        for _ in 0..self.count {
            let start = now_ns();
            post(&mut cq)?;
            let done = wait("completion", || cq.poll_tcq())?;
            times.push(now_ns() - start);
            if !done.is_success() {
                return Err(fail!("by hand: result {:#x}", done.rcode));
            }
            while cq.poll_mrq().is_some() {}
        }
        self.times("put by hand", 8, times);
        let all = self.count * 10;
        let (mut posted, mut ended) = (0u64, 0u64);
        let (start, mut rate) = (now_ns(), Rate::new());
        while ended < all {
            let before = ended;
            while posted - ended < WINDOW && posted < all {
                post(&mut cq)?;
                posted += 1;
            }
            while cq.poll_tcq().is_some() {
                ended += 1;
            }
            while cq.poll_mrq().is_some() {}
            rate.ended(ended - before);
            if now_ns() - start > PATIENCE_NS {
                return Err(fail!("by hand: {ended} of {all} messages"));
            }
        }
        self.rate("rate by hand", 8, 1, rate);
        Ok(())
    }

    fn copies(&self) {
        let half = SIZE / 2;
        let all = self.count / 2;
        let mut rate = Rate::new();
        for _ in 0..all {
            // SAFETY: both halves are this program's memory, which nothing writes to now.
            unsafe {
                let (to, from) = (self.memory, self.memory.add(half));
                core::ptr::copy_nonoverlapping(black_box(from), black_box(to), LARGE);
            }
            rate.ended(1);
        }
        self.rate("copy", LARGE, 0, rate);
    }

    fn measure(&self) -> Result<(), Error> {
        for size in SIZES {
            self.latency(size)?;
        }
        for size in SIZES {
            self.puts(size)?;
        }
        self.by_hand()?;
        for tnis in 1..=self.vcqs.len() {
            self.stream("rate", 8, tnis)?;
        }
        self.copies();
        for tnis in 1..=self.vcqs.len() {
            self.stream("bandwidth", LARGE, tnis)?;
        }
        self.vcqs[0].post(&self.message(END, 8)?, 0)?;
        self.good(0)
    }
}

fn bench() -> Result<(), Error> {
    let node = Node::open()?;
    let rank = node.rank;
    if rank > 1 || node.shape.nodes() < 2 {
        return Err(fail!("this is for machines of two nodes (--shape 1x1x1x2x1x1)"));
    }
    let Vcqs { own: vcqs, ids, memory } = Vcqs::open(&node, node.coords(1 - rank)?, SIZE)?;
    let context = node.context;
    let (peer, count) = (ids[0], number("count", 1000)?.max(10));
    let json = number("json", 0)? != 0;
    let side = Side { vcqs, ids, context, peer, memory, json, count };
    side.greet()?;
    if rank == 1 { side.serve() } else { side.measure() }
}
