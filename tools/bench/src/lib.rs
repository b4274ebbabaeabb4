//! `tofu bench`: figures of this emulation on this host, each with a baseline measured in the same
//! run.

#![forbid(unsafe_code)]

mod arm64;
mod barrier;
mod baseline;
mod clones;
mod driver;
mod figures;
mod ip;
mod linux;
mod machine;
mod netboot;
mod options;
mod tnw;
mod tool_output;
mod trend;
mod veth;

use std::fmt;
use std::hint::black_box;
use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Serialize;
use serde_json::Value;
use tofu_abi::desc::MAX_MESSAGE;
use tofu_inproc::Pair;
use tofu_machine::{Generation, Links};
use tofu_spec::MachineSpec;
use tofu_spec::plan::Plan;
use tofu_spec::units::{Doorbell, GuestArgs};
use tofu_supervisor::memory;

use crate::figures::{Host, Latency, latency, quantiles};
use crate::machine::{PATIENCE, run_machine, up};
pub use options::{BenchPart, Options};

/// The time for which each figure is measured.
const FULL: Duration = Duration::from_millis(300);
const QUICK: Duration = Duration::from_millis(30);
/// Sizes of Puts in this process, in bytes.
const SIZES: [u32; 11] =
    [8, 64, 512, 1920, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20, MAX_MESSAGE];

/// All results.
#[derive(Debug, Default, Serialize)]
struct Report {
    host: Host,
    /// The load average of one minute before and after the run.
    load: [f64; 2],
    /// Puts between two devices of this process, by one thread.
    put: Vec<Put>,
    rate: Option<Rate>,
    /// Puts over modelled links and over direct ones, measured in turn.
    modelled: Vec<Modelled>,
    /// Puts between devices of other generations and between TofuD's, measured in turn.
    generations: Vec<OfGeneration>,
    /// Messages of TNW between two devices of this process, by one thread.
    tnw: Vec<tnw::Message>,
    /// Baselines of the latencies between guests.
    bare: Vec<Latency>,
    /// Puts from guest to guest.
    guests: Vec<Latency>,
    machines: Vec<MachineRun>,
    barriers: Option<barrier::Barriers>,
    /// Linux nodes that are clones, compared with nodes that boot.
    clones: Option<clones::Clones>,
    linux: Option<linux::Linux>,
    /// Nodes with Fugaku's processor compared with x86 ones.
    arm64: Option<Vec<arm64::Beside>>,
    ip: Option<ip::Ip>,
    driver: Option<driver::Driver>,
    /// Parts that this host could not measure, with the reasons.
    skipped: Vec<Skipped>,
}

impl Report {
    /// Puts in this process: of TofuD, over modelled links, and of other generations.
    fn measure_puts(&mut self, time: Duration, say: &mut linux::Say<'_>) -> anyhow::Result<()> {
        say(&"\nPut in this process, one thread, against a memory copy between the same buffers")?;
        say(&Put::header())?;
        let mut pair = Bench::new()?;
        for bytes in SIZES {
            let put = pair.put(bytes, time)?;
            say(&put)?;
            self.put.push(put);
        }
        let rate = pair.rate(time)?;
        say(&rate)?;
        self.rate = Some(rate);
        say(&"\nThe same over modelled links, against direct ones")?;
        say(&Modelled::header())?;
        let mut modelled = Pair::over(Links::Modelled)?;
        for (bytes, at_once) in [(8, 1), (8, 1024), (1 << 20, 1), (1 << 20, 16)] {
            let modelled = pair.modelled(&mut modelled, (bytes, at_once), time)?;
            say(&modelled)?;
            self.modelled.push(modelled);
        }
        say(&"\nThe same between devices of other generations, against TofuD's")?;
        say(&OfGeneration::header())?;
        for generation in Generation::ALL {
            let mut other = Pair::of(generation, Links::Direct)?;
            for (bytes, at_once) in [(8, 1), (8, 1024), (1 << 20, 1)] {
                let [p50_ns, tofud_p50_ns] = pair.beside(&mut other, (bytes, at_once), time)?;
                let ratio = p50_ns as f64 / tofud_p50_ns.max(1) as f64;
                let generation = generation.name();
                let row = OfGeneration { generation, bytes, at_once, p50_ns, tofud_p50_ns, ratio };
                say(&row)?;
                self.generations.push(row);
            }
        }
        Ok(())
    }

    /// Messages between guests.
    fn measure_guests(&mut self, quick: bool, say: &mut linux::Say<'_>) -> anyhow::Result<()> {
        say(&"\nFrom guest to guest, against a guest and a host thread with no device between")?;
        say(&Latency::header())?;
        let baseline = baseline::measure(if quick { 100 } else { 1000 })?;
        for bare in [
            Latency::bare("bare cache line, guest and host spin", baseline.spin),
            Latency::bare("bare ioeventfd, guest spins", baseline.ring),
        ] {
            say(&bare)?;
            self.bare.push(bare);
        }
        for guest in ["puts", "pingpong"] {
            for doorbell in [Doorbell::Trapped, Doorbell::Polled] {
                for latency in between_guests(guest, doorbell, quick)? {
                    say(&latency)?;
                    self.guests.push(latency);
                }
            }
        }
        Ok(())
    }

    /// Machines from the command to the end of the last guest. Those of several racks are started
    /// by another process: its heap is set up for them before it has threads.
    fn measure_machines(&mut self, quick: bool, say: &mut linux::Say<'_>) -> anyhow::Result<()> {
        say(&"\nMachines from the command to the end of the last guest")?;
        say(&MachineRun::header())?;
        let shapes = ["1x1x1x1x1x1", "unit", "shelf", "half-rack"];
        let count = if quick { 2 } else { shapes.len() };
        for shape in &shapes[..count] {
            for guest in ["hello", "ring", "allpairs"] {
                // The number of pairs grows with the square of the nodes, and the guest is meant
                // for one unit.
                if guest == "allpairs" && *shape != "unit" {
                    continue;
                }
                let run = machine_run(shape, guest)?;
                say(&run)?;
                self.machines.push(run);
            }
        }
        for shape in ["4x2x8x2x3x2", "4x4x8x2x3x2"].iter().filter(|_| !quick) {
            let least = Plan::new(&up(shape, "ring")?)?.least_memory();
            if memory::available().is_some_and(|available| available < least) {
                say(&format_args!("skipped {shape}: it takes {} MiB of memory", least >> 20))?;
                break;
            }
            let run = command_run(shape, "ring")?;
            say(&run)?;
            self.machines.push(run);
        }
        Ok(())
    }

    /// Parts that need Linux nodes.
    fn measure_nodes(&mut self, args: &Options, say: &mut linux::Say<'_>) -> anyhow::Result<()> {
        let wanted = |part| args.only.is_none_or(|only| only == part);
        if wanted(BenchPart::Clones) {
            say(&"\nLinux nodes until they are ready: clones, against nodes that boot")?;
            let measured = clones::measure(args.quick, say);
            self.clones = self.unless_skipped(args, "clones", measured, say)?;
        }
        if wanted(BenchPart::Linux) {
            say(
                &"\nFrom Linux to Linux, against an Ethernet and soft RoCE between the same guests",
            )?;
            let measured = linux::measure(args.quick, say);
            self.linux = self.unless_skipped(args, "linux", measured, say)?;
        }
        if wanted(BenchPart::Arm64) {
            say(&"\nLinux nodes with Fugaku's processor, against x86 ones")?;
            let measured = arm64::measure(args.quick, say);
            self.arm64 = self.unless_skipped(args, "arm64", measured, say)?;
        }
        if wanted(BenchPart::Ip) {
            say(&"\nIP between two nodes, against virtio-net on a bridge, and stacks on veth")?;
            self.ip = Some(ip::measure(args.quick, say)?);
        }
        if wanted(BenchPart::Driver) {
            say(&"\nThe kernel driver, against VFIO, tofu-net and virtio-net")?;
            let measured = driver::measure(args.quick, args.utofu_perf.as_deref(), say);
            self.driver = self.unless_skipped(args, "driver", measured, say)?;
        }
        Ok(())
    }

    /// Records why a part could not be measured, or returns the error if no other part was
    /// requested.
    fn unless_skipped<T>(
        &mut self,
        args: &Options,
        part: &str,
        measured: anyhow::Result<T>,
        say: &mut dyn FnMut(&dyn fmt::Display) -> io::Result<()>,
    ) -> anyhow::Result<Option<T>> {
        match measured {
            Err(error) if args.only.is_none() => {
                let skipped = Skipped { part: part.to_owned(), why: format!("{error:#}") };
                say(&format_args!("skipped {}: {}", skipped.part, skipped.why))?;
                self.skipped.push(skipped);
                Ok(None)
            }
            measured => measured.map(Some),
        }
    }
}

#[derive(Debug, Serialize)]
struct Skipped {
    part: String,
    why: String,
}

/// A Put compared with a memory copy of the same size between the same buffers.
#[derive(Debug, Serialize)]
struct Put {
    bytes: u32,
    p50_ns: u64,
    p99_ns: u64,
    memcpy_p50_ns: u64,
    memcpy_p99_ns: u64,
    gigabytes_per_s: f64,
    /// Throughput of the Put divided by that of the copy.
    ratio: f64,
}

/// 8-byte Puts that are posted in batches.
#[derive(Debug, Serialize)]
struct Rate {
    commands_per_s: f64,
}

/// Puts over modelled links compared with Puts over direct ones.
#[derive(Debug, Serialize)]
struct Modelled {
    bytes: u32,
    /// The number of Puts that share a doorbell.
    at_once: usize,
    /// Time of one Put, or of its share.
    p50_ns: u64,
    direct_p50_ns: u64,
    /// Time over modelled links divided by time over direct ones.
    ratio: f64,
}

/// Puts between devices of a generation compared with Puts between TofuD's, all in this process.
/// Fugaku's are compared with others of the same kind, which shows how precise the figures are.
#[derive(Debug, Serialize)]
struct OfGeneration {
    generation: &'static str,
    bytes: u32,
    /// The number of Puts that share a doorbell.
    at_once: usize,
    /// Time of one Put, or of its share.
    p50_ns: u64,
    tofud_p50_ns: u64,
    /// Time with these devices divided by time with TofuD's.
    ratio: f64,
}

/// A machine whose guests only print a greeting, or pass on a token.
#[derive(Debug, Serialize)]
struct MachineRun {
    nodes: u32,
    guest: String,
    /// From the command to the end of the last guest.
    seconds: f64,
    /// Memory of this process beyond that of the guests, divided by the number of nodes, without
    /// kernel memory.
    kib_per_node: Option<f64>,
}

/// Runs `tofu bench` and returns the exit code.
///
/// # Errors
///
/// One line for the user.
pub fn run(args: &Options) -> anyhow::Result<u8> {
    let time = if args.quick { QUICK } else { FULL };
    let wanted = |part| args.only.is_none_or(|only| only == part);
    let host = host();
    let mut trend = match &args.trend {
        Some(path) => Some(trend::Trend::open(path, &host, args.quick)?),
        None => None,
    };
    let load = || linux::load().unwrap_or_default();
    let mut report = Report { host, load: [load(), 0.0], ..Report::default() };
    let mut out = io::stdout();
    let mut say = |text: &dyn fmt::Display| match args.json {
        true => Ok(()),
        false => writeln!(out, "{text}"),
    };
    say(&report.host)?;
    if wanted(BenchPart::Put) {
        report.measure_puts(time, &mut say)?;
    }
    if wanted(BenchPart::Tnw) {
        say(&"\nMessages of TNW in this process, one thread, against Puts of Tofu and copies")?;
        report.tnw = tnw::measure(time, &mut say)?;
    }
    if wanted(BenchPart::Guests) {
        report.measure_guests(args.quick, &mut say)?;
    }
    if wanted(BenchPart::Barrier) {
        let barriers = barrier::measure(args.quick, &mut say)?;
        if let Some(path) = &args.plot {
            std::fs::write(path, barrier::svg(&barriers))
                .with_context(|| format!("writing {}", path.display()))?;
        }
        report.barriers = Some(barriers);
    }
    if wanted(BenchPart::Boot) {
        report.measure_machines(args.quick, &mut say)?;
    }
    report.measure_nodes(args, &mut say)?;
    report.load[1] = load();
    if let Some(trend) = &mut trend {
        let figures = serde_json::to_value(&report)?;
        say(&trend.append(&figures, report.host.clone(), report.load, args.quick)?)?;
    }
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    }
    Ok(0)
}

fn host() -> Host {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or_else(|| "unknown processor".to_owned(), |(_, name)| name.to_owned());
    Host {
        processor,
        cores: thread::available_parallelism().map_or(1, |n| n.get()),
        virtualisation: format!("{:?}", tofu_vmm::probe().virtualisation).to_lowercase(),
    }
}

/// Two devices, and two buffers for the copies to compare with.
struct Bench {
    pair: Pair,
    source: Vec<u8>,
    sink: Vec<u8>,
}

impl Bench {
    fn new() -> anyhow::Result<Self> {
        let (source, sink) = (vec![1; Pair::BUFFER], vec![2; Pair::BUFFER]);
        Ok(Self { pair: Pair::new()?, source, sink })
    }

    /// Measures Puts and copies in turn, so that both see the same load of the host.
    fn put(&mut self, bytes: u32, time: Duration) -> anyhow::Result<Put> {
        let order = match bytes {
            8 => self.pair.piggyback(),
            _ => self.pair.put(bytes),
        };
        // A batch is long enough to make the cost of reading the clock small.
        let batch = (4000 / (200 + bytes / 20)).max(1);
        let (mut puts, mut copies) = (Vec::new(), Vec::new());
        let end = Instant::now() + time;
        while Instant::now() < end || puts.len() < 10 {
            let start = Instant::now();
            for _ in 0..batch {
                self.pair.run(&order)?;
            }
            puts.push(start.elapsed().as_nanos() as u64 / u64::from(batch));
            let start = Instant::now();
            for _ in 0..batch {
                self.copy(bytes as usize);
            }
            copies.push(start.elapsed().as_nanos() as u64 / u64::from(batch));
        }
        let [p50_ns, p99_ns] = quantiles(&mut puts);
        let [memcpy_p50_ns, memcpy_p99_ns] = quantiles(&mut copies);
        Ok(Put {
            bytes,
            p50_ns,
            p99_ns,
            memcpy_p50_ns,
            memcpy_p99_ns,
            gigabytes_per_s: f64::from(bytes) / p50_ns.max(1) as f64,
            ratio: memcpy_p50_ns as f64 / p50_ns.max(1) as f64,
        })
    }

    /// Measures Puts over modelled links and over direct ones.
    fn modelled(
        &mut self,
        modelled: &mut Pair,
        (bytes, at_once): (u32, usize),
        time: Duration,
    ) -> anyhow::Result<Modelled> {
        let [p50_ns, direct_p50_ns] = self.beside(modelled, (bytes, at_once), time)?;
        let ratio = p50_ns as f64 / direct_p50_ns.max(1) as f64;
        Ok(Modelled { bytes, at_once, p50_ns, direct_p50_ns, ratio })
    }

    /// Measures Puts between two other devices and between these in turn. Returns the median of
    /// each, for one Put or its share.
    fn beside(
        &mut self,
        other: &mut Pair,
        (bytes, at_once): (u32, usize),
        time: Duration,
    ) -> anyhow::Result<[u64; 2]> {
        let mut times = [Vec::new(), Vec::new()];
        let end = Instant::now() + time;
        while Instant::now() < end || times[1].len() < 10 {
            for (pair, times) in [&mut *other, &mut self.pair].into_iter().zip(&mut times) {
                let order = if bytes == 8 { pair.piggyback() } else { pair.put(bytes) };
                let start = Instant::now();
                pair.run_many(&order, at_once)?;
                times.push(start.elapsed().as_nanos() as u64 / at_once as u64);
            }
        }
        Ok(times.map(|mut times| quantiles(&mut times)[0]))
    }

    fn copy(&mut self, bytes: usize) {
        let (source, sink) = (black_box(&self.source), &mut self.sink);
        sink[..bytes].copy_from_slice(&source[..bytes]);
        black_box(sink);
    }

    /// Measures 8-byte Puts, a full ring at a time.
    fn rate(&mut self, time: Duration) -> anyhow::Result<Rate> {
        const BATCH: usize = 1024;
        let order = self.pair.piggyback();
        let mut times = Vec::new();
        let end = Instant::now() + time;
        while Instant::now() < end {
            let start = Instant::now();
            self.pair.run_many(&order, BATCH)?;
            times.push(start.elapsed().as_nanos() as u64);
        }
        // The median ignores batches during which the host ran something else.
        let [p50, _] = quantiles(&mut times);
        Ok(Rate { commands_per_s: BATCH as f64 * 1e9 / p50.max(1) as f64 })
    }
}

/// Runs a guest program that measures latency between neighbours: `puts` from doorbell to
/// completion with a guest that spins, `pingpong` one way between guests that sleep.
fn between_guests(guest: &str, doorbell: Doorbell, quick: bool) -> anyhow::Result<Vec<Latency>> {
    let count = if quick { 100 } else { 1000 };
    let args = MachineSpec {
        args: Some(GuestArgs(format!("count={count}"))),
        doorbell: Some(doorbell),
        ..up("1x1x1x2x1x1", guest)?
    };
    let name = doorbell.name();
    let what = match guest {
        "puts" => format!("Put to completion, spinning, {name}"),
        _ => format!("Put one way, by interrupt, {name}"),
    };
    let run = run_machine(&args, PATIENCE)?;
    if !run.ok {
        bail!("{guest} with {name} doorbells failed");
    }
    Ok(run.lines.iter().filter_map(|line| latency(&what, line)).collect())
}

fn machine_run(shape: &str, guest: &str) -> anyhow::Result<MachineRun> {
    let args = up(shape, guest)?;
    let nodes = args.shape.map_or(0, |shape| shape.nodes());
    let run = run_machine(&args, PATIENCE)?;
    if !run.ok {
        bail!("{guest} on {shape} failed");
    }
    Ok(MachineRun {
        nodes,
        guest: guest.to_owned(),
        seconds: run.took.as_secs_f64(),
        kib_per_node: run.beyond_kib.map(|kib| kib / f64::from(nodes.max(1))),
    })
}

/// Runs a machine by `tofu up`.
fn command_run(shape: &str, guest: &str) -> anyhow::Result<MachineRun> {
    let options = ["up", "--json", "--no-sandbox", "--shape", shape, "--guest", guest];
    let output = Command::new(std::env::current_exe()?)
        .args(options)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()?;
    anyhow::ensure!(output.status.success(), "{guest} on {shape} failed");
    let events = output.stdout.split(|byte| *byte == b'\n');
    let events = events.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let ended: Vec<_> = events.filter(|event| event["event"] == "ended").collect();
    let seconds = ended.iter().filter_map(|event| event["seconds"].as_f64()).fold(0.0, f64::max);
    let (nodes, guest) = (ended.len() as u32, guest.to_owned());
    Ok(MachineRun { nodes, guest, seconds, kib_per_node: None })
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { processor, cores, virtualisation } = self;
        write!(f, "{processor}, {cores} cores, virtualisation: {virtualisation}")
    }
}

impl Put {
    fn header() -> String {
        format!(
            "{:>10} {:>12} {:>12} {:>12} {:>12} {:>8} {:>8}",
            "bytes", "put p50 us", "put p99 us", "copy p50 us", "copy p99 us", "GB/s", "ratio"
        )
    }
}

impl fmt::Display for Put {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: u64| ns as f64 / 1000.0;
        write!(
            f,
            "{:>10} {:>12.3} {:>12.3} {:>12.3} {:>12.3} {:>8.2} {:>8.2}",
            self.bytes,
            us(self.p50_ns),
            us(self.p99_ns),
            us(self.memcpy_p50_ns),
            us(self.memcpy_p99_ns),
            self.gigabytes_per_s,
            self.ratio
        )
    }
}

impl Modelled {
    fn header() -> String {
        format!(
            "{:>10} {:>8} {:>12} {:>12} {:>8}",
            "bytes", "at once", "modelled us", "direct us", "ratio"
        )
    }
}

impl fmt::Display for Modelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: u64| ns as f64 / 1000.0;
        let Self { bytes, at_once, ratio, .. } = self;
        let (modelled, direct) = (us(self.p50_ns), us(self.direct_p50_ns));
        write!(f, "{bytes:>10} {at_once:>8} {modelled:>12.3} {direct:>12.3} {ratio:>8.2}")
    }
}

impl OfGeneration {
    fn header() -> String {
        format!(
            "{:>10} {:>10} {:>8} {:>12} {:>12} {:>8}",
            "generation", "bytes", "at once", "Put us", "TofuD's us", "ratio"
        )
    }
}

impl fmt::Display for OfGeneration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: u64| ns as f64 / 1000.0;
        let Self { generation, bytes, at_once, ratio, .. } = self;
        let (put, tofud) = (us(self.p50_ns), us(self.tofud_p50_ns));
        write!(
            f,
            "{generation:>10} {bytes:>10} {at_once:>8} {put:>12.3} {tofud:>12.3} {ratio:>8.2}"
        )
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "8-byte Puts, 1024 to a doorbell: {:.2} million a second",
            self.commands_per_s / 1e6
        )
    }
}

impl MachineRun {
    fn header() -> String {
        format!("{:>6} {:10} {:>10} {:>14}", "nodes", "guest", "seconds", "KiB per node")
    }
}

impl fmt::Display for MachineRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>6} {:10} {:>10.2} ", self.nodes, self.guest, self.seconds)?;
        match self.kib_per_node {
            Some(kib) => write!(f, "{kib:>14.0}"),
            None => write!(f, "{:>14}", "unknown"),
        }
    }
}
