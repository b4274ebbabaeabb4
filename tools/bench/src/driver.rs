//! Compares the kernel driver, with its `tofu0` and its queues, with VFIO, on the same devices of
//! the same two nodes. The devices are rebound from one driver to the other.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use tofu_image::{Arch, Cache, Kernel, Spec};
use tofu_linux_nodes::boot_files::tools;
use tofu_linux_nodes::lan::Ethernet;
use tofu_linux_nodes::progress::ImageProgress;
use tofu_spec::MachineSpec;
use tofu_spec::guest::{Guest, GuestName};
use tofu_spec::units::{ImageName, MemorySize};
use tofu_ui::Style;

use crate::ip::{Aims, BRIDGE, Figures, Side, tofu0};
use crate::linux::{self, Guests, Lab, PEER, Ratio, Say};
use crate::veth::Namespace;

/// The image with the driver and the measuring programs.
const IMAGE: &str = "bench-driver";
const PACKAGES: [&str; 3] = ["iperf3", "iproute2", "iputils-ping"];
/// Up to 1 GiB is registered, which may be at most half of the memory.
const MEMORY: MemorySize = MemorySize(3 << 30);
/// The least ratio of a command's time with VFIO to its time with the driver.
const TARGET: f64 = 0.95;
/// Targets for the driver's interface compared with virtio-net, for the same with frames of 256
/// KiB, and for the daemon's interface.
const AIMS: Aims = Aims { latency: 1.0, throughput: 1.0, processor: 1.0 };
const AIMS_OF_LONG_FRAMES: Aims = Aims { throughput: 1.3, ..AIMS };
const AIMS_OF_DAEMON: Aims = Aims { throughput: 0.6, ..AIMS };
/// The peer's address on the torus, for either node.
const PEERS: [&str; 2] = ["1,0,0,0,0,0", "0,0,0,0,0,0"];
/// The time for which a uTofu program may look for its device after a change of drivers.
const COMES_UP: Duration = Duration::from_secs(20);

/// Limits the size of TCP's unsegmented frames to 64 KiB, as with virtio-net, or to 256 KiB (BIG
/// TCP), which is the default.
const SHORT_FRAMES: &str = "ip link set tofu0 gso_max_size 65536 gso_ipv4_max_size 65536";
const LONG_FRAMES: &str = "ip link set tofu0 gso_max_size 262144 gso_ipv4_max_size 262144";

/// Gives the device to VFIO, and starts the programs of images without the driver.
const TO_VFIO: &str = "\
rmmod tofu
for what in broker network; do
setsid /usr/local/lib/tofu/session $what </dev/null >/dev/null 2>&1 &
done
for i in $(seq 100); do
ls /run/tofu/*.sock >/dev/null 2>&1 && exit 0
sleep 0.1
done
exit 1";
/// Gives the device back to the driver.
const TO_DRIVER: &str = "\
pkill tofu-net
for i in $(seq 100); do pgrep tofu-net >/dev/null || break; sleep 0.1; done
for file in $(grep -lE '0x1cc[12d]' /sys/bus/pci/devices/*/device); do
device=${file%/device}
echo >$device/driver_override
[ -e $device/driver ] && echo ${device##*/} >$device/driver/unbind
done
modprobe tofu
[ -e /proc/tofu ]";

/// All results for the driver.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Driver {
    monitor: String,
    /// The host's load average of one minute, before and after.
    load: Option<[f64; 2]>,
    #[serde(flatten)]
    figures: Figures,
    commands: Vec<Command>,
}

/// A value of `utofu-perf` with both drivers: the best median of several rounds.
#[derive(Debug, Serialize)]
struct Command {
    what: String,
    bytes: u64,
    driver_us: f64,
    vfio_us: f64,
    driver_p99_us: f64,
    vfio_p99_us: f64,
}

impl Command {
    fn header() -> String {
        format!(
            "{:22} {:>10} {:>12} {:>12} {:>12} {:>12}",
            "us", "bytes", "/proc/tofu", "p99", "VFIO", "p99"
        )
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:22} {:>10} {:>12.2} {:>12.2} {:>12.2} {:>12.2}",
            self.what,
            self.bytes,
            self.driver_us,
            self.driver_p99_us,
            self.vfio_us,
            self.vfio_p99_us
        )
    }
}

/// Runs the benchmark. `say` is called with each line of results. `perf` is a static utofu-perf.
pub(crate) fn measure(
    quick: bool,
    perf: Option<&Path>,
    say: &mut Say<'_>,
) -> anyhow::Result<Driver> {
    let perf =
        perf.map(|file| Guest::load_linux(&GuestName::File(file.to_owned()), Arch::default()));
    let perf = perf.transpose().context("--utofu-perf")?;
    let args = prepare()?;
    let mut this = Driver::default();
    let before = linux::load();
    let bridge = Namespace::new(BRIDGE).context("virtio-net")?;
    let lab = Lab::start(&args, Ethernet::Taps(bridge.path()))?;
    let guests = &lab.guests;
    this.monitor.clone_from(&lab.monitor);
    say(&lab.monitor)?;

    let figures = &mut this.figures;
    let virtio = figures.between("virtio-net", PEER, guests, quick, say)?;
    let peer = tofu0(guests)?;
    both(guests, SHORT_FRAMES)?;
    let driver = figures.between("tofu0 of tofu.ko", &peer, guests, quick, say)?;
    both(guests, LONG_FRAMES)?;
    let name = "tofu0 of tofu.ko, frames of 256 KiB";
    let long = figures.streams(name, &peer, guests, quick, Side::default(), say)?;
    both(guests, TO_VFIO)?;
    let peer = tofu0(guests)?;
    let daemon = figures.between("tofu0 of tofu-net", &peer, guests, quick, say)?;
    both(guests, TO_DRIVER)?;
    let (virtio, long) = (("virtio-net", &virtio), ("tofu.ko, frames of 256 KiB", &long));
    figures.compare_linux(("tofu.ko", &driver), ("tofu-net", &daemon), AIMS);
    figures.compare_linux(("tofu.ko", &driver), virtio, AIMS);
    figures.compare_linux(long, virtio, AIMS_OF_LONG_FRAMES);
    figures.compare_linux(("tofu-net", &daemon), virtio, AIMS_OF_DAEMON);

    match perf {
        Some(perf) => this.commands(&perf, guests, quick, say)?,
        None => this.figures.skip("uTofu: no --utofu-perf FILE", say)?,
    }
    this.figures.say_ratios(say)?;
    this.load = linux::load_since(before, say)?;
    Ok(this)
}

/// Makes the image if it does not exist, and returns the machine that boots it.
fn prepare() -> anyhow::Result<MachineSpec> {
    linux::prepare()?;
    let cache = Cache::from_env()?;
    let kernel = Kernel::DriverCloud;
    if !cache.list()?.iter().any(|image| image.manifest.asked_kernel == kernel.to_string()) {
        bail!("there is no kernel with the driver: tofu image build --kernel {kernel} makes it");
    }
    let progress =
        ImageProgress::new(Arc::new(AtomicBool::new(false)), Style::detect(false).progress);
    let spec = Spec::new(IMAGE)?.kernel(kernel).programs(tools()?);
    cache.build(&spec.with(PACKAGES)?, &progress)?;
    let (args, _) = linux::modes()?;
    let image = IMAGE.parse::<ImageName>().ok();
    Ok(MachineSpec { memory: Some(MEMORY), image, driver: None, ..args })
}

/// Runs a script on both nodes at the same time.
fn both(guests: &Guests, script: &str) -> anyhow::Result<()> {
    thread::scope(|scope| {
        let other = scope.spawn(|| guests.script(1, script));
        let first = guests.script(0, script);
        let other = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        first.and(other).map(drop)
    })
}

/// The output of `utofu-perf`.
#[derive(Deserialize)]
struct Report {
    results: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    test: String,
    size: u64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
}

/// Median and 99th percentile by test and bytes, from the round with the smallest median.
type Best = BTreeMap<(String, u64), (f64, f64)>;

impl Driver {
    /// Measures commands and registration, with both drivers in turn.
    fn commands(
        &mut self,
        program: &Guest,
        guests: &Guests,
        quick: bool,
        say: &mut Say<'_>,
    ) -> anyhow::Result<()> {
        let perf = guests.put(0, program)?;
        guests.put(1, program)?;
        let (rounds, time) = if quick { (1, 50) } else { (4, 300) };
        let (mut driver, mut vfio) = (Best::new(), Best::new());
        for _ in 0..rounds {
            run(guests, &perf, time, &mut driver)?;
            both(guests, TO_VFIO)?;
            run(guests, &perf, time, &mut vfio)?;
            both(guests, TO_DRIVER)?;
        }
        say(&Command::header())?;
        for ((what, bytes), (driver_us, driver_p99_us)) in driver {
            let Some(&(vfio_us, vfio_p99_us)) = vfio.get(&(what.clone(), bytes)) else { continue };
            let is_memory = what.contains("register");
            let command = Command { what, bytes, driver_us, vfio_us, driver_p99_us, vfio_p99_us };
            say(&command)?;
            self.figures.ratios.push(Ratio {
                what: format!("{}, {bytes} bytes: VFIO / tofu.ko", command.what),
                times: vfio_us / driver_us,
                target: (!is_memory).then_some(TARGET),
            });
            self.commands.push(command);
        }
        Ok(())
    }
}

/// Runs one round between the two nodes.
fn run(guests: &Guests, perf: &str, time: u32, best: &mut Best) -> anyhow::Result<()> {
    let common = format!("--tnis 1 --time {time} --json");
    let tests = "latency put get registration --sizes 8,65536,1048576";
    let server = format!("{perf} --serve --tnis 1 --peer {}", PEERS[1]);
    let client = format!("{perf} {tests} {common} --peer {}", PEERS[0]);
    let start = Instant::now();
    let said = loop {
        match guests.client(&server, &client) {
            Err(_) if start.elapsed() < COMES_UP => {}
            said => break said?,
        }
    };
    let report: Report = serde_json::from_str(&said).context("utofu-perf: no result")?;
    for row in report.results {
        let Some(times) = row.p50_us.zip(row.p99_us) else { continue };
        let known = best.entry((row.test, row.size)).or_insert(times);
        if times.0 < known.0 {
            *known = times;
        }
    }
    Ok(())
}
