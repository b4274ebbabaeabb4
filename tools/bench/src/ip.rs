//! IP between nodes: compares Linux nodes with virtio-net on a bridge between the same guests, bare
//! guests with the same TCP/IP stack on a veth pair, and network boot with boot by the monitor.

use std::io;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use tofu_linux_nodes::lan::Ethernet;
use tofu_spec::MachineSpec;
use tofu_spec::units::GuestArgs;

use crate::figures::{Latency, latency};
use crate::linux::{self, Guests, Lab, Ratio, Say, Throughput};
use crate::machine::{PATIENCE, run_machine, up};
use crate::netboot::{self, Boot};
use crate::veth::{self, Namespace};

/// Targets: how many times better than the other side ours should be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aims {
    /// For round trips, by time.
    pub(crate) latency: f64,
    /// For streams, by MiB/s.
    pub(crate) throughput: f64,
    /// For streams, by the host's processor time per MiB.
    pub(crate) processor: f64,
}

/// Targets compared with another stack or interface: the same bandwidth for no more processor time
/// of the host, and half the round-trip time.
const AIMS: Aims = Aims { latency: 2.0, throughput: 1.0, processor: 1.0 };
/// MTUs used between bare guests.
const MTUS: [u16; 2] = [1500, 9000];
/// Two interfaces on a bridge, for two nodes.
pub(crate) const BRIDGE: &str = "\
ip link add br0 type bridge
echo 1 >/proc/sys/net/ipv6/conf/br0/disable_ipv6
for tap in tap0 tap1; do
ip tuntap add dev $tap mode tap vnet_hdr
ip link set $tap master br0 up
done
ip link set br0 up";
/// The time limit for `tofu0` to come up after its node, and how often to check.
const COMES_UP: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(200);

/// All results for IP.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Ip {
    /// Monitor of the Linux nodes, and the accelerator of their processors.
    monitor: Option<String>,
    /// The host's load average of one minute, before and after.
    load: Option<[f64; 2]>,
    #[serde(flatten)]
    figures: Figures,
    boots: Vec<Boot>,
}

/// Figures of several sides, and their ratios.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Figures {
    pub(crate) latency: Vec<Latency>,
    pub(crate) throughput: Vec<Throughput>,
    pub(crate) ratios: Vec<Ratio>,
    /// Parts that this host could not measure, with the reasons.
    skipped: Vec<String>,
}

/// Runs the benchmark. `say` is called with each line of results.
pub(crate) fn measure(quick: bool, say: &mut Say<'_>) -> anyhow::Result<Ip> {
    let mut this = Ip::default();
    let before = linux::load();
    say(&Latency::header())?;
    for mtu in MTUS {
        this.bare(mtu, quick, say)?;
    }
    if let Err(error) = this.linux(quick, say) {
        this.figures.skip(&format!("Linux nodes: {error:#}"), say)?;
    }
    this.boots(quick, say)?;
    this.figures.say_ratios(say)?;
    this.load = linux::load_since(before, say)?;
    Ok(this)
}

/// One side of a comparison.
#[derive(Default)]
pub(crate) struct Side {
    /// Medians of round trips in microseconds.
    round_trips: Vec<f64>,
    /// Throughput of streams in MiB/s.
    streams: Vec<f64>,
    /// The host's processor time per MiB in milliseconds, if known.
    processor_ms: Vec<f64>,
}

impl Figures {
    pub(crate) fn skip(&mut self, why: &str, say: &mut Say<'_>) -> io::Result<()> {
        say(&format_args!("skipped {why}"))?;
        self.skipped.push(why.to_owned());
        Ok(())
    }

    fn round_trip(
        &mut self,
        latency: Latency,
        side: &mut Side,
        say: &mut Say<'_>,
    ) -> io::Result<()> {
        say(&latency)?;
        side.round_trips.push(latency.p50_us);
        self.latency.push(latency);
        Ok(())
    }

    fn stream(&mut self, stream: Throughput, side: &mut Side, say: &mut Say<'_>) -> io::Result<()> {
        say(&stream)?;
        side.streams.push(stream.mib_per_s);
        side.processor_ms.extend(stream.processor_ms_per_mib);
        self.throughput.push(stream);
        Ok(())
    }

    pub(crate) fn say_ratios(&self, say: &mut Say<'_>) -> io::Result<()> {
        say(&Ratio::header())?;
        self.ratios.iter().try_for_each(|ratio| say(ratio))
    }

    /// Compares our figures with the others', which have the same order.
    fn compare<S: AsRef<str>>(&mut self, names: &[S], aims: Aims, ours: &Side, others: &Side) {
        let pairs = ours.round_trips.iter().zip(&others.round_trips);
        let round_trips = pairs.map(|(ours, others)| (others / ours, aims.latency));
        let pairs = ours.streams.iter().zip(&others.streams);
        let streams = pairs.map(|(ours, others)| (ours / others, aims.throughput));
        let pairs = ours.processor_ms.iter().zip(&others.processor_ms);
        let processor_ms = pairs.map(|(ours, others)| (others / ours, aims.processor));
        let all = round_trips.chain(streams).chain(processor_ms);
        for (name, (times, target)) in names.iter().zip(all) {
            let what = name.as_ref().to_owned();
            self.ratios.push(Ratio { what, times, target: Some(target) });
        }
    }

    /// Measures pings and TCP streams between two nodes, over the interface with the peer's
    /// address.
    pub(crate) fn between(
        &mut self,
        name: &str,
        peer: &str,
        guests: &Guests,
        quick: bool,
        say: &mut Say<'_>,
    ) -> anyhow::Result<Side> {
        let (count, spaced) = if quick { (200, 50) } else { (2000, 400) };
        let mut side = Side::default();
        // The first pings resolve the addresses.
        guests.must(0, &format!("ping -c 2 -i 0.2 -W 5 {peer}"))?;
        for (how, options) in [
            ("one after another", format!("-A -c {count}")),
            ("spaced by 20 ms", format!("-i 0.02 -c {spaced}")),
        ] {
            let row = guests.ping(&format!("{name}, ping {how}"), &options, peer)?;
            self.round_trip(row, &mut side, say)?;
        }
        self.streams(name, peer, guests, quick, side, say)
    }

    /// Adds TCP streams to a side.
    pub(crate) fn streams(
        &mut self,
        name: &str,
        peer: &str,
        guests: &Guests,
        quick: bool,
        mut side: Side,
        say: &mut Say<'_>,
    ) -> anyhow::Result<Side> {
        let seconds = if quick { 1 } else { 5 };
        for (how, options) in [("out", ""), ("in", " -R"), ("both ways", " --bidir")] {
            let row = guests.tcp(&format!("{name}, TCP {how}"), peer, seconds, options)?;
            self.stream(row, &mut side, say)?;
        }
        Ok(side)
    }

    /// Compares two interfaces between Linux nodes.
    pub(crate) fn compare_linux(
        &mut self,
        (name, ours): (&str, &Side),
        (other, others): (&str, &Side),
        aims: Aims,
    ) {
        let pings = ["ping, one after another", "ping, spaced"];
        let streams = ["TCP out", "TCP in", "TCP both ways"];
        let pings = pings.iter().take(ours.round_trips.len());
        let names: Vec<_> = pings
            .map(|what| format!("{what}: {other} / {name}"))
            .chain(streams.map(|what| format!("{what}: {name} / {other}")))
            .chain(streams.map(|what| format!("processor time of {what}: {other} / {name}")))
            .collect();
        self.compare(&names, aims, ours, others);
    }
}

impl Ip {
    /// Measures between bare guests, and with the same stack on a veth pair.
    fn bare(&mut self, mtu: u16, quick: bool, say: &mut Say<'_>) -> anyhow::Result<()> {
        let (count, bytes) = if quick { (100, 4 << 20) } else { (1000, 32 << 20) };
        let mut ours = Side::default();
        for line in guest("ping", &format!("mtu={mtu} count={count}"))? {
            let what = format!("bare guests, ping, MTU {mtu}");
            let Some(row) = latency(&what, &line).filter(|row| row.bytes == 56) else { continue };
            self.figures.round_trip(row, &mut ours, say)?;
        }
        for line in guest("tcpbench", &format!("mtu={mtu} bytes={bytes}"))? {
            let Some(rates) = tcpbench(&line) else { continue };
            for (way, mib_per_s) in ["out", "in"].into_iter().zip(rates) {
                let what = format!("bare guests, TCP {way}, MTU {mtu}");
                self.figures.stream(Throughput::new(&what, None, mib_per_s), &mut ours, say)?;
            }
        }
        let figures = match veth::measure(mtu, count, bytes) {
            Ok(figures) => figures,
            Err(error) => return Ok(self.figures.skip(&format!("veth pair: {error:#}"), say)?),
        };
        let mut others = Side::default();
        let [min_us, p50_us, p99_us] = figures.ping.map(|ns| ns as f64 / 1000.0);
        let what = format!("veth pair, ping, MTU {mtu}");
        let row = Latency { what, bytes: 56, min_us, p50_us, p99_us };
        self.figures.round_trip(row, &mut others, say)?;
        for (way, bytes_per_s) in ["out", "in"].into_iter().zip(figures.tcp) {
            let what = format!("veth pair, TCP {way}, MTU {mtu}");
            let mib_per_s = bytes_per_s / f64::from(1 << 20);
            self.figures.stream(Throughput::new(&what, None, mib_per_s), &mut others, say)?;
        }
        let names = [
            "ping: veth / bare guests",
            "TCP out: bare guests / veth",
            "TCP in: bare guests / veth",
        ];
        let names = names.map(|name| format!("{name}, MTU {mtu}"));
        self.figures.compare(&names, AIMS, &ours, &others);
        Ok(())
    }

    /// Measures between Linux nodes, over `tofu0` and over virtio-net.
    fn linux(&mut self, quick: bool, say: &mut Say<'_>) -> anyhow::Result<()> {
        linux::prepare()?;
        let (args, _) = linux::modes()?;
        let bridge = Namespace::new(BRIDGE);
        let lan = match &bridge {
            Ok(bridge) => Ethernet::Taps(bridge.path()),
            Err(_) => Ethernet::None,
        };
        let lab = Lab::start(&linux::with_image(args), lan)?;
        say(&format_args!("{}", lab.monitor))?;
        self.monitor = Some(lab.monitor.clone());
        let ours = match tofu0(&lab.guests) {
            Ok(peer) => Some(self.figures.between("tofu0", &peer, &lab.guests, quick, say)?),
            Err(error) => {
                self.figures.skip(&format!("tofu0: {error:#}"), say)?;
                None
            }
        };
        let others = match &bridge {
            Ok(_) => {
                Some(self.figures.between("virtio-net", linux::PEER, &lab.guests, quick, say)?)
            }
            Err(error) => {
                self.figures.skip(&format!("virtio-net: {error:#}"), say)?;
                None
            }
        };
        if let Some((ours, others)) = ours.zip(others) {
            self.figures.compare_linux(("tofu0", &ours), ("virtio-net", &others), AIMS);
        }
        Ok(())
    }

    /// Measures machines that boot over the torus.
    fn boots(&mut self, quick: bool, say: &mut Say<'_>) -> anyhow::Result<()> {
        let nodes = if quick { 2 } else { 12 };
        say(&Boot::header())?;
        type Measure = fn(u32) -> anyhow::Result<Boot>;
        let both: [(&str, Measure); 2] =
            [("bare guests", netboot::bare), ("Linux nodes", netboot::linux)];
        for (what, measure) in both {
            match measure(nodes) {
                Ok(boot) => {
                    say(&boot)?;
                    let what = format!("{}: monitor / torus", boot.what);
                    let times = boot.monitor_s / boot.torus_s;
                    self.figures.ratios.push(Ratio { what, times, target: None });
                    self.boots.push(boot);
                }
                Err(error) => {
                    self.figures.skip(&format!("network boot of {what}: {error:#}"), say)?
                }
            }
        }
        Ok(())
    }
}

/// Returns the lines of a guest that runs on two neighbouring nodes.
fn guest(name: &str, args: &str) -> anyhow::Result<Vec<String>> {
    let args = MachineSpec { args: Some(GuestArgs(args.to_owned())), ..up("1x1x1x2x1x1", name)? };
    let run = run_machine(&args, PATIENCE)?;
    if !run.ok {
        bail!("the guest {name} failed");
    }
    Ok(run.lines)
}

/// Parses the throughput out and in, in MiB/s, from a line of the guest's table.
fn tcpbench(line: &str) -> Option<[f64; 2]> {
    let numbers: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
    match numbers.ok()?[..] {
        [out, back, _, _] => Some([out, back]),
        _ => None,
    }
}

/// Returns the address of node 1's `tofu0`, once both nodes have one.
pub(crate) fn tofu0(guests: &Guests) -> anyhow::Result<String> {
    let start = std::time::Instant::now();
    loop {
        let address = |node| {
            let (_, said) = guests.run(node, "ip -4 -o address show dev tofu0")?;
            anyhow::Ok(interface_address(&said))
        };
        if let (Some(_), Some(peer)) = (address(0)?, address(1)?) {
            return Ok(peer);
        }
        if start.elapsed() > COMES_UP {
            return Err(anyhow::anyhow!("no address")).context("the nodes have no such interface");
        }
        std::thread::sleep(LOOK);
    }
}

/// Parses the address in `N: tofu0    inet ADDRESS/LENGTH ...`.
fn interface_address(said: &str) -> Option<String> {
    let (_, rest) = said.split_once(" inet ")?;
    Some(rest.split_once('/')?.0.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_output_is_parsed() {
        assert_eq!(tcpbench("     123.45      67.80      10.00     20.50"), Some([123.45, 67.8]));
        assert_eq!(tcpbench(" MiB/s out  MiB/s in     p50 us     p99 us"), None);
        assert_eq!(tcpbench("received and sent 8388608 bytes"), None);
        let said = "3: tofu0    inet 10.1.0.1/13 brd 10.7.255.255 scope global tofu0\\  valid_lft";
        assert_eq!(interface_address(said).as_deref(), Some("10.1.0.1"));
        assert_eq!(interface_address("Device \"tofu0\" does not exist."), None);
    }

    #[test]
    fn ratios_are_better_if_greater() {
        let mut ip = Figures::default();
        let side = |ping, streams: [f64; 2], processor| Side {
            round_trips: vec![ping],
            streams: streams.into(),
            processor_ms: vec![processor],
        };
        let (ours, others) = (side(50.0, [300.0, 100.0], 8.0), side(100.0, [100.0, 200.0], 2.0));
        ip.compare(&["a", "b", "c", "d"], AIMS, &ours, &others);
        let times: Vec<f64> = ip.ratios.iter().map(|ratio| ratio.times).collect();
        assert_eq!(times, [2.0, 3.0, 0.5, 0.25]);
    }
}
