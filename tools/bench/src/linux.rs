//! Linux nodes: compares our figures with those of an Ethernet between the same guests, and of soft
//! RoCE (`rxe`) over it.

use std::fmt;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use tofu_agent::wire::{Exec, Output, Status};
use tofu_image::{Cache, Silent, Spec};
use tofu_linux_nodes::boot_files::tools;
use tofu_linux_nodes::lab;
use tofu_linux_nodes::lan::Ethernet;
use tofu_linux_nodes::progress::ImageProgress;
use tofu_linux_nodes::runtimes::{Monitors, Runtimes};
use tofu_machine::Doorbells;
use tofu_spec::MachineSpec;
use tofu_spec::guest::Guest;
use tofu_spec::plan::Plan;
use tofu_spec::units::{Doorbell, Driver, ImageName, MemorySize};
use tofu_supervisor::node::AgentNode;
use tofu_supervisor::programs;
use tofu_supervisor::registry::Registry;
use tofu_supervisor::runner;
use tofu_ui::Style;

use crate::figures::Latency;
use crate::machine::empty;
use crate::tool_output;

/// The image with the third-party programs to compare with.
const IMAGE: &str = "bench";
const PACKAGES: [&str; 4] = ["iperf3", "iputils-ping", "perftest", "rdma-core"];
/// Two neighbours.
pub(crate) const SHAPE: &str = "2x1x1x1x1x1";
/// rxe and perftest need more than a node's usual memory.
const MEMORY: MemorySize = MemorySize(512 << 20);
/// Address of node 1 in the Ethernet.
pub(crate) const PEER: &str = "10.84.0.2";
/// The time limit for a program in a guest, in seconds.
const PATIENCE_S: u32 = 60;
/// The time for which a client tries to reach its server, and how often.
const CONNECT: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(300);
/// Sizes whose throughput is compared, in bytes.
const THROUGHPUT_SIZES: [u64; 2] = [64 << 10, 1 << 20];

/// Targets.
const TARGET_READY_S: f64 = 10.0;
const TARGET_LATENCY: f64 = 10.0;
const TARGET_THROUGHPUT: f64 = 50.0;

/// All results for Linux nodes.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Linux {
    /// Monitor of the nodes, and the accelerator of their processors.
    monitor: String,
    /// The host's load average of one minute, before and after.
    load: Option<[f64; 2]>,
    /// Time from the plan until both nodes are ready, with everything in the cache.
    ready_s: Option<f64>,
    /// Between the guests that were also used to measure the Ethernet, in the doorbell mode that
    /// `auto` chooses.
    latency: Vec<Latency>,
    throughput: Vec<Throughput>,
    /// Between other guests, in the other doorbell mode.
    other_mode: Vec<Latency>,
    /// Round trips over virtio-net, by ICMP.
    ethernet: Vec<Latency>,
    rxe: Vec<Latency>,
    /// Throughput of TCP and rxe.
    comparison: Vec<Throughput>,
    ratios: Vec<Ratio>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Throughput {
    pub(crate) what: String,
    /// Size of a message; `None` for a stream.
    pub(crate) bytes: Option<u64>,
    pub(crate) mib_per_s: f64,
    /// Processor time of this host per MiB, for the machine and its monitors.
    pub(crate) processor_ms_per_mib: Option<f64>,
}

/// The factor by which our figure is better than the other one.
#[derive(Debug, Serialize)]
pub(crate) struct Ratio {
    pub(crate) what: String,
    pub(crate) times: f64,
    pub(crate) target: Option<f64>,
}

/// The callback for each line of results.
pub(crate) type Say<'a> = dyn FnMut(&dyn fmt::Display) -> io::Result<()> + 'a;

/// Runs the benchmark.
pub(crate) fn measure(quick: bool, say: &mut Say<'_>) -> anyhow::Result<Linux> {
    prepare()?;
    let mut this = Linux::default();
    let before = load();
    let (args, other) = modes()?;

    // Like `tofu up --linux`, except for the doorbell mode, which is decided later.
    let lab = Lab::start(&MachineSpec { doorbell: Some(other), ..args.clone() }, Ethernet::None)?;
    this.monitor.clone_from(&lab.monitor);
    this.ready_s = Some(lab.ready.as_secs_f64());
    say(&format_args!("{}", lab.monitor))?;
    say(&format_args!(
        "from tofu up to both nodes ready: {:.1} s (target: below {TARGET_READY_S:.0})",
        lab.ready.as_secs_f64()
    ))?;
    say(&Latency::header())?;
    if !quick {
        lab.guests.latencies(quick, other.name(), &mut |latency| {
            say(&latency)?;
            this.other_mode.push(latency);
            Ok(())
        })?;
    }
    drop(lab);

    let lab = Lab::start(&with_image(args), Ethernet::Sockets)?;
    let guests = &lab.guests;
    let mode = if other == Doorbell::Polled { Doorbell::Trapped } else { Doorbell::Polled };
    guests.latencies(quick, mode.name(), &mut |latency| {
        say(&latency)?;
        this.latency.push(latency);
        Ok(())
    })?;
    let count = if quick { 100 } else { 1000 };
    let ping = format!("-A -c {count}");
    let ping = guests.ping("virtio-net, ping, round trip", &ping, PEER)?;
    say(&ping)?;
    this.ethernet.push(ping);
    guests.soft_roce()?;
    let rxe = guests.rxe_latency(quick)?;
    say(&rxe)?;
    this.rxe.push(rxe);

    say(&Throughput::header())?;
    this.throughput = guests.throughput(quick)?;
    this.throughput.iter().try_for_each(|row| say(row))?;
    let seconds = if quick { 1 } else { 4 };
    let tcp = guests.tcp("virtio-net, TCP (iperf3)", PEER, seconds, "")?;
    say(&tcp)?;
    this.comparison.push(tcp);
    for bytes in THROUGHPUT_SIZES {
        let row = guests.rxe_throughput(bytes, quick)?;
        say(&row)?;
        this.comparison.push(row);
    }
    drop(lab);

    this.compare();
    say(&Ratio::header())?;
    this.ratios.iter().try_for_each(|ratio| say(ratio))?;
    this.load = load_since(before, say)?;
    Ok(this)
}

/// Fetches or makes everything that is missing in the cache.
pub(crate) fn prepare() -> anyhow::Result<()> {
    let progress =
        ImageProgress::new(Arc::new(AtomicBool::new(false)), Style::detect(false).progress);
    let (args, _) = modes()?;
    Runtimes::prepare(&Plan::new(&args)?, &Monitors::qemu(), &progress)?;
    let cache = Cache::from_env()?;
    let has_all = |with: &[String]| PACKAGES.iter().all(|name| with.iter().any(|w| w == name));
    let known = cache.find(IMAGE).ok().flatten();
    // A user's own image that contains more is good enough. It is updated when it boots.
    if !known.is_some_and(|image| has_all(&image.manifest.with)) {
        let spec = Spec::new(IMAGE)?.programs(tools()?).with(PACKAGES)?;
        cache.build(&spec, &progress)?;
    }
    Ok(())
}

/// Returns the machine, and the doorbell mode that `auto` does not choose for it.
pub(crate) fn modes() -> anyhow::Result<(MachineSpec, Doorbell)> {
    let driver = Some(Driver::Vfio);
    let args = MachineSpec { linux: Some(true), driver, ..empty(SHAPE)? };
    let plan = Plan::new(&args)?;
    let cores = thread::available_parallelism().map_or(1, |n| n.get());
    let engines = runner::engines(plan.engines, plan.interconnect, cores);
    Ok(match runner::doorbells(plan.doorbell, plan.vms().count(), cores, engines) {
        Doorbells::Trapped => (args, Doorbell::Polled),
        Doorbells::Polled => (args, Doorbell::Trapped),
    })
}

/// Returns the machine with the image that has the programs to compare with.
pub(crate) fn with_image(spec: MachineSpec) -> MachineSpec {
    let image = IMAGE.parse::<ImageName>().ok();
    MachineSpec { memory: Some(MEMORY), image, ..spec }
}

/// Returns the load average of the last minute.
pub(crate) fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// Says what the load was before and is now. Returns both, if they are known.
pub(crate) fn load_since(before: Option<f64>, say: &mut Say<'_>) -> io::Result<Option<[f64; 2]>> {
    let Some((before, after)) = before.zip(load()) else { return Ok(None) };
    say(&format_args!("host load before and after: {before:.1}, {after:.1}"))?;
    Ok(Some([before, after]))
}

/// Returns the processor time of this process and its children in seconds. These are the machine
/// and the monitors of its nodes.
pub(crate) fn processor_s() -> Option<f64> {
    let me = std::process::id();
    let ticks = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let (parent, ticks) =
            parent_and_ticks(&fs::read_to_string(entry.path().join("stat")).ok()?)?;
        (pid == me || parent == me).then_some(ticks)
    });
    Some(ticks.sum::<u64>() as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Parses the parent, and the time in user and system mode, from a process's `stat`.
fn parent_and_ticks(stat: &str) -> Option<(u32, u64)> {
    // The name may contain any character.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some((u32::try_from(number(1)?).ok()?, number(11)? + number(12)?))
}

/// A machine of two Linux nodes. Dropping it ends the nodes.
pub(crate) struct Lab {
    _lab: lab::Lab,
    pub(crate) guests: Guests,
    pub(crate) monitor: String,
    pub(crate) ready: Duration,
}

impl Lab {
    /// Starts the machine as `tofu up` does, and waits until both nodes are ready.
    pub(crate) fn start(spec: &MachineSpec, lan: Ethernet) -> anyhow::Result<Self> {
        let lab = lab::Lab::start(spec, lan, &Silent)?;
        let guests = Guests(Arc::clone(lab.registry()));
        Ok(Self { guests, monitor: lab.monitor.clone(), ready: lab.ready, _lab: lab })
    }
}

/// The two guests of a machine.
pub(crate) struct Guests(Arc<Registry>);

impl Guests {
    fn node(&self, index: usize) -> anyhow::Result<&Arc<dyn AgentNode>> {
        self.0.linux().get(index).with_context(|| format!("there is no node {index}"))
    }

    /// Runs a command on a node. Returns its exit code and its output, including errors.
    pub(crate) fn run(&self, node: usize, command: &str) -> anyhow::Result<(Option<i32>, String)> {
        self.run_words(node, &command.split_whitespace().collect::<Vec<_>>())
    }

    /// Runs a command that must succeed. Returns its output.
    pub(crate) fn must(&self, node: usize, command: &str) -> anyhow::Result<String> {
        succeeded(node, command, self.run(node, command)?)
    }

    /// Runs a shell script that must succeed. Returns its output.
    pub(crate) fn script(&self, node: usize, script: &str) -> anyhow::Result<String> {
        succeeded(node, script, self.run_words(node, &["sh", "-c", script])?)
    }

    /// Copies a program to a node. Returns its path there.
    pub(crate) fn put(&self, node: usize, program: &Guest) -> anyhow::Result<String> {
        programs::put(&**self.node(node)?, program)
    }

    /// Runs a command like [`run`](Self::run), given as words.
    fn run_words(&self, node: usize, words: &[&str]) -> anyhow::Result<(Option<i32>, String)> {
        let patience = PATIENCE_S.to_string();
        let exec = Exec::named(["timeout", &patience].iter().chain(words).copied());
        let mut said = [Vec::new(), Vec::new()];
        let status = programs::run(self.node(node)?.agent(), exec, &[], |output, bytes| {
            said[output as usize].extend_from_slice(bytes);
        })
        .with_context(|| format!("node {node}: {}", words.join(" ")))?;
        let code = match status {
            Status::Code(code) => Some(code),
            _ => None,
        };
        let kind = if code == Some(0) { Output::Out } else { Output::Err };
        Ok((code, String::from_utf8_lossy(&said[kind as usize]).into_owned()))
    }

    /// Runs a server on node 1 and its client on node 0. Returns the client's output.
    pub(crate) fn client(&self, server: &str, client: &str) -> anyhow::Result<String> {
        thread::scope(|scope| {
            let serving = scope.spawn(|| self.must(1, server));
            let deadline = Instant::now() + CONNECT;
            let result = loop {
                // The server may not be listening yet.
                match self.must(0, client) {
                    Err(_) if Instant::now() < deadline && !serving.is_finished() => {
                        thread::sleep(RETRY);
                    }
                    result => break result,
                }
            };
            if result.is_err() && !serving.is_finished() {
                // Otherwise the server would wait for its client until its time limit.
                let name = server.split_whitespace().next().unwrap_or_default();
                let _ = self.run(1, &format!("pkill {name}"));
            }
            let served = serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result.and_then(|output| served.map(|_| output))
        })
    }

    /// Runs one of our programs on both nodes. Returns the rows of node 0.
    fn ours(&self, command: &str) -> anyhow::Result<Vec<Row>> {
        #[derive(Deserialize)]
        struct Table {
            rows: Vec<Row>,
        }
        let command = format!("{command} json=1");
        let output = thread::scope(|scope| {
            let peer = scope.spawn(|| self.must(1, &command));
            let first = self.must(0, &command);
            let peer = peer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            first.and_then(|output| peer.map(|_| output))
        })?;
        let table: Table = serde_json::from_str(output.trim())
            .with_context(|| format!("{command}: its output makes no sense"))?;
        Ok(table.rows)
    }

    /// Measures Puts by size: until they complete, and one way.
    pub(crate) fn latencies(
        &self,
        quick: bool,
        mode: &str,
        each: &mut dyn FnMut(Latency) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        let count = if quick { 100 } else { 1000 };
        let max = if quick { 8 } else { 32 << 10 };
        for (what, command) in [
            (TO_COMPLETION, "puts"),
            (ONE_WAY_IRQ, "pingpong wait=irq"),
            (ONE_WAY_POLL, "pingpong wait=poll"),
        ] {
            for row in self.ours(&format!("{command} count={count} max={max}"))? {
                each(row.latency(&format!("{what}, {mode}"))?)?;
            }
        }
        Ok(())
    }

    fn throughput(&self, quick: bool) -> anyhow::Result<Vec<Throughput>> {
        let bytes = if quick { 16 << 20 } else { 256 << 20 };
        let mut rows = Vec::new();
        // The largest size of a series is always measured.
        for max in THROUGHPUT_SIZES {
            rows.extend(self.ours(&format!("stream max={max} bytes={bytes}"))?);
        }
        rows.retain(|row| row.bytes >= 4096);
        rows.sort_by_key(|row| row.bytes);
        rows.dedup_by_key(|row| row.bytes);
        let row = |row: Row| {
            let mib_per_s = row.mib_s.context("stream: no throughput")?;
            Ok(Throughput::new(STREAM, Some(row.bytes), mib_per_s))
        };
        rows.into_iter().map(row).collect()
    }

    /// Measures round trips from node 0 by ICMP.
    pub(crate) fn ping(&self, what: &str, options: &str, peer: &str) -> anyhow::Result<Latency> {
        let output = self.must(0, &format!("ping {options} {peer}"))?;
        let mut times = tool_output::ping(&output);
        times.sort_by(f64::total_cmp);
        let at = |percent: usize| {
            times.get(times.len() * percent / 100).copied().context("ping: no answers")
        };
        Ok(Latency {
            what: what.to_owned(),
            bytes: 56,
            min_us: at(0)?,
            p50_us: at(50)?,
            p99_us: at(99)?,
        })
    }

    /// Measures a TCP stream between the nodes, or several with other options of iperf3.
    pub(crate) fn tcp(
        &self,
        what: &str,
        peer: &str,
        seconds: u32,
        options: &str,
    ) -> anyhow::Result<Throughput> {
        let client = format!("iperf3 --json -c {peer} -t {seconds}{options}");
        let before = processor_s();
        let output = self.client("iperf3 -s -1", &client)?;
        let after = processor_s();
        let mib_per_s = tool_output::iperf(&output).context("iperf3: no result")?;
        let spent_s = before.zip(after).map(|(before, after)| after - before);
        let processor_ms_per_mib =
            spent_s.map(|spent_s| 1e3 * spent_s / (mib_per_s * f64::from(seconds)));
        Ok(Throughput { processor_ms_per_mib, ..Throughput::new(what, None, mib_per_s) })
    }

    /// Sets up soft RoCE.
    fn soft_roce(&self) -> anyhow::Result<()> {
        for node in 0..2 {
            self.must(node, "modprobe rdma_rxe")?;
            self.must(node, "rdma link add rxe0 type rxe netdev eth0")?;
        }
        Ok(())
    }

    fn rxe_latency(&self, quick: bool) -> anyhow::Result<Latency> {
        let count = if quick { 100 } else { 1000 };
        let server = format!("ib_write_lat -F -d rxe0 -s 8 -n {count}");
        let output = self.client(&server, &format!("{server} {PEER}"))?;
        let times = tool_output::write_latency(&output, 8).context("ib_write_lat: no result")?;
        let [min_us, p50_us, p99_us] = times;
        Ok(Latency { what: "rxe, ib_write_lat, one way".into(), bytes: 8, min_us, p50_us, p99_us })
    }

    fn rxe_throughput(&self, bytes: u64, quick: bool) -> anyhow::Result<Throughput> {
        // Enough for some seconds.
        let total = if quick { 16 << 20 } else { 64 << 20 };
        let server = format!("ib_write_bw -F -d rxe0 -s {bytes} -n {} -t 16", total / bytes);
        let output = self.client(&server, &format!("{server} {PEER}"))?;
        let mib_per_s =
            tool_output::write_throughput(&output, bytes).context("ib_write_bw: no result")?;
        Ok(Throughput::new(RXE, Some(bytes), mib_per_s))
    }
}

/// Returns the output of a command that must have succeeded.
fn succeeded(
    node: usize,
    command: &str,
    (code, said): (Option<i32>, String),
) -> anyhow::Result<String> {
    if code == Some(0) {
        return Ok(said);
    }
    let code = code.map_or_else(|| "a signal".to_owned(), |code| code.to_string());
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    let last = tofu_ui::printable(last.unwrap_or("no message").trim());
    bail!("node {node}: {command}: exit code {code}: {last}")
}

const TO_COMPLETION: &str = "Put to completion, spinning";
const ONE_WAY_IRQ: &str = "Put one way, by interrupt";
const ONE_WAY_POLL: &str = "Put one way, spinning";
const STREAM: &str = "Put, many in flight";
const RXE: &str = "rxe, ib_write_bw";

/// A row in the output of one of our programs.
#[derive(Deserialize)]
struct Row {
    bytes: u64,
    min_us: Option<f64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    mib_s: Option<f64>,
}

impl Row {
    fn latency(&self, what: &str) -> anyhow::Result<Latency> {
        let get = |number: Option<f64>| number.with_context(|| format!("{what}: no times"));
        Ok(Latency {
            what: what.to_owned(),
            bytes: self.bytes,
            min_us: get(self.min_us)?,
            p50_us: get(self.p50_us)?,
            p99_us: get(self.p99_us)?,
        })
    }
}

impl Linux {
    /// Compares our figures with the others.
    fn compare(&mut self) {
        let mut ratios = Vec::new();
        let first = |rows: &[Latency]| rows.first().map(|row| row.p50_us);
        let (rxe, ping) = (first(&self.rxe), first(&self.ethernet));
        for row in self.latency.iter().filter(|row| row.bytes == 8) {
            if let Some(rxe) = rxe.filter(|_| !row.what.starts_with(TO_COMPLETION)) {
                let what = format!("{}: rxe's median / ours", row.what);
                ratios.push(Ratio { what, times: rxe / row.p50_us, target: Some(TARGET_LATENCY) });
            }
            if let Some(ping) = ping.filter(|_| row.what.starts_with(ONE_WAY_IRQ)) {
                let what = format!("{}: ping's median / our round trip", row.what);
                ratios.push(Ratio { what, times: ping / (2.0 * row.p50_us), target: None });
            }
        }
        for row in &self.comparison {
            let same = |ours: &&Throughput| row.bytes.is_none() || ours.bytes == row.bytes;
            let ours = self.throughput.iter().filter(same).map(|ours| ours.mib_per_s);
            let Some(ours) = ours.max_by(f64::total_cmp) else { continue };
            let (what, target) = match row.bytes {
                Some(bytes) => {
                    (format!("throughput, {bytes} bytes: ours / rxe"), Some(TARGET_THROUGHPUT))
                }
                None => ("best throughput / TCP".to_owned(), None),
            };
            ratios.push(Ratio { what, times: ours / row.mib_per_s, target });
        }
        self.ratios = ratios;
    }
}

impl Throughput {
    pub(crate) fn new(what: &str, bytes: Option<u64>, mib_per_s: f64) -> Self {
        Self { what: what.to_owned(), bytes, mib_per_s, processor_ms_per_mib: None }
    }

    pub(crate) fn header() -> String {
        format!("{:52} {:>8} {:>10} {:>10}", "", "bytes", "MiB/s", "CPU ms/MiB")
    }
}

impl fmt::Display for Throughput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes.map_or_else(|| "stream".to_owned(), |bytes| bytes.to_string());
        write!(f, "{:52} {bytes:>8} {:>10.1}", self.what, self.mib_per_s)?;
        self.processor_ms_per_mib.map_or(Ok(()), |ms| write!(f, " {ms:>10.2}"))
    }
}

impl Ratio {
    pub(crate) fn header() -> String {
        format!("{:70} {:>8} {:>7}", "", "times", "target")
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:70} {:>8.2}", self.what, self.times)?;
        self.target.map_or(Ok(()), |target| write!(f, " {target:>7}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency(what: &str, bytes: u64, p50_us: f64) -> Latency {
        Latency { what: what.into(), bytes, min_us: 1.0, p50_us, p99_us: 1000.0 }
    }

    fn throughput(bytes: Option<u64>, mib_per_s: f64) -> Throughput {
        Throughput::new("any", bytes, mib_per_s)
    }

    #[test]
    fn processor_time_is_summed_by_process() {
        let stat = "77 (CPU 0) (x) S 42 77 77 0 -1 4194560 9 0 0 0 150 50 7 8 20 0 6 0 100 0";
        assert_eq!(parent_and_ticks(stat), Some((42, 200)));
        assert_eq!(parent_and_ticks("77 (x) S 42"), None);
        assert!(processor_s().is_some_and(|seconds| seconds >= 0.0));
    }

    #[test]
    fn figures_are_compared_by_size() {
        let mut linux = Linux {
            latency: vec![
                latency(TO_COMPLETION, 8, 5.0),
                latency(ONE_WAY_IRQ, 8, 50.0),
                latency(ONE_WAY_IRQ, 64, 60.0),
                latency(ONE_WAY_POLL, 8, 20.0),
            ],
            rxe: vec![latency("rxe", 8, 300.0)],
            ethernet: vec![latency("ping", 56, 400.0)],
            throughput: vec![throughput(Some(1 << 16), 2000.0), throughput(Some(1 << 20), 3000.0)],
            comparison: vec![throughput(None, 300.0), throughput(Some(1 << 16), 20.0)],
            ..Linux::default()
        };
        linux.compare();
        let times: Vec<f64> = linux.ratios.iter().map(|ratio| ratio.times).collect();
        // rxe and ping against interrupts, rxe against spinning, TCP, rxe at 64 KiB.
        assert_eq!(times, [6.0, 4.0, 15.0, 10.0, 100.0]);
        let targets: Vec<_> = linux.ratios.iter().map(|ratio| ratio.target).collect();
        assert_eq!(targets, [Some(10.0), None, Some(10.0), None, Some(50.0)]);
    }
}
