//! IP over Tofu on a Linux node: the interface tofu0.
//!
//! Errors are one line on stderr and exit code 2.
#![forbid(unsafe_code)]

use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use rustix::fs::{FlockOperation, flock};
use tofu_abi::TniId;
use tofu_abi::topology::Shape;
use tofu_net::{Daemon, Settings, ask, names};
use tofu_vfio::Bdf;

/// The socket at which the daemon serves its statistics.
const STATS: &str = "/run/tofu/net.sock";
/// The file in which it records dead links.
const LINKS: &str = "/run/tofu/links";

/// The network interface tofu0, whose frames travel over the torus
///
/// It shares the device with other programs through tofud. A program that needs the device for
/// itself gets it; until that program ends, tofu0 has no carrier.
#[derive(Parser)]
#[command(name = "tofu-net", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the interface, in the foreground
    Run(Box<Run>),
    /// Put the names of all nodes into a file such as /etc/hosts, according to the kernel's
    /// tofu.shape, tofu.torus and tofu.machine, and end
    Hosts {
        /// The file
        file: PathBuf,
    },
    /// Print the counters of the interface
    Stats {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
struct Run {
    /// The machine's shape, such as 1x1x1x2x3x2 [default: the kernel's tofu.shape]
    #[arg(long)]
    shape: Option<Shape>,
    /// Which of its axes X, Y and Z are rings, such as xyz [default: the kernel's tofu.torus]
    #[arg(long, value_name = "AXES")]
    torus: Option<String>,
    /// Number of the machine, 0 to 7, a part of its addresses [default: the kernel's tofu.machine,
    /// or 0]
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=7))]
    machine: Option<u8>,
    /// Name of the interface
    #[arg(long, value_name = "NAME", default_value = "tofu0")]
    interface: String,
    /// Largest IP packet in bytes, 1280 to 65521 [default: the kernel's tofu.mtu, or 1500]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1280..=65521))]
    mtu: Option<u16>,
    /// Network interface of the device, the same on all nodes
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..6))]
    tni: u8,
    /// PCI address of the device [default: the first Tofu device]
    #[arg(long, value_name = "DEVICE")]
    device: Option<Bdf>,
    /// IPv4 address of the node to send packets to that are not for the machine, if there is no
    /// other route [default: the kernel's tofu.gateway, or none]
    #[arg(long, value_name = "ADDRESS")]
    gateway: Option<Ipv4Addr>,
    /// Put the names of all nodes into this file, in the format of /etc/hosts
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// Write the name server of the kernel's tofu.dns to this file, unless the file names one
    #[arg(long, value_name = "FILE")]
    resolver: Option<PathBuf>,
    /// Socket of tofud [default: the one that tofud chooses]
    #[arg(long, value_name = "PATH", env = "TOFUD_SOCKET")]
    broker: Option<PathBuf>,
}

fn main() -> ExitCode {
    tofu_vfio::close_inherited();
    let cli = Cli::parse();
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    let done = match cli.command {
        Command::Run(run) => serve(*run),
        Command::Hosts { file } => {
            shape(None, None).and_then(|shape| write_hosts(&file, shape, machine(None)?))
        }
        Command::Stats { json } => stats(json),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tofu-net: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// The last `tofu.NAME=value` of the kernel's command line.
fn kernel_option(name: &str) -> Option<String> {
    let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let value = |word: &str| {
        word.strip_prefix("tofu.")?.strip_prefix(name)?.strip_prefix('=').map(str::to_owned)
    };
    line.split_ascii_whitespace().rev().find_map(value)
}

fn shape(shape: Option<Shape>, torus: Option<String>) -> anyhow::Result<Shape> {
    let shape = match shape {
        Some(shape) => shape,
        None => kernel_option("shape")
            .context("no --shape, and the kernel's command line has no tofu.shape")?
            .parse()
            .context("tofu.shape")?,
    };
    let axes = torus.or_else(|| kernel_option("torus"));
    Ok(axes.map_or(shape, |axes| shape.with_torus_letters(&axes)))
}

/// The value of an option, or else of a word on the kernel's command line, if it is `allowed`.
fn value<T: FromStr + Copy>(
    own: Option<T>,
    word: &str,
    allowed: &str,
    fits: impl Fn(T) -> bool,
) -> anyhow::Result<Option<T>> {
    match (own, kernel_option(word)) {
        (Some(own), _) => Ok(Some(own)),
        (None, None) => Ok(None),
        (None, Some(text)) => match text.parse().ok().filter(|value| fits(*value)) {
            Some(value) => Ok(Some(value)),
            None => bail!("tofu.{word}={text}: {allowed}"),
        },
    }
}

fn machine(own: Option<u8>) -> anyhow::Result<u8> {
    let number = value(own, "machine", "a machine has a number from 0 to 7", |n| n < 8)?;
    Ok(number.unwrap_or(0))
}

/// Writes the names of all nodes into a file, unless there are too many.
fn write_hosts(path: &Path, shape: Shape, machine: u8) -> anyhow::Result<()> {
    if !names::write(path, shape, machine).with_context(|| path.display().to_string())? {
        log::warn!("{}: too many nodes for it", path.display());
    }
    Ok(())
}

/// Writes a name server into a file that has none.
fn write_resolver(path: &Path, server: IpAddr) -> std::io::Result<()> {
    let text = fs::read_to_string(path).unwrap_or_default();
    if text.lines().any(|line| line.trim_start().starts_with("nameserver")) {
        return Ok(());
    }
    fs::write(path, format!("{text}nameserver {server}\n"))
}

fn serve(run: Run) -> anyhow::Result<()> {
    let shape = shape(run.shape, run.torus.clone())?;
    let machine = machine(run.machine)?;
    let mtu =
        value(run.mtu, "mtu", "an MTU is 1280 to 65521", |mtu| (1280..=65521).contains(&mtu))?;
    let gateway = value(run.gateway, "gateway", "an IPv4 address, as in 10.0.0.2", |_| true)?;
    let server = value(None::<IpAddr>, "dns", "an IP address, as in 10.0.0.2", |_| true)?;
    if let Some(path) = &run.hosts {
        write_hosts(path, shape, machine)?;
    }
    if let (Some(path), Some(server)) = (&run.resolver, server) {
        write_resolver(path, server).with_context(|| path.display().to_string())?;
    }
    let settings = Settings {
        shape,
        machine,
        mtu: mtu.unwrap_or(1500),
        gateway,
        interface: run.interface,
        tni: TniId::new(run.tni).context("there are TNIs 0 to 5")?,
        device: run.device,
        broker: run.broker,
        stats: STATS.into(),
        links: LINKS.into(),
    };
    fs::create_dir_all("/run/tofu").context("making /run/tofu")?;
    // Held until the process ends in any way.
    let lock = fs::File::create("/run/tofu/net.lock").context("/run/tofu/net.lock")?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        bail!("another tofu-net is running");
    }
    let (stop, write) = rustix::pipe::pipe().context("making a pipe")?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        let write = write.try_clone().context("making a pipe")?;
        signal_hook::low_level::pipe::register(signal, write).context("handling signals")?;
    }
    Daemon::new(settings, stop)?.run()
}

fn stats(json: bool) -> anyhow::Result<()> {
    let state = ask(STATS.as_ref())?;
    let mut text = String::new();
    if json {
        text = format!("{state}\n");
    } else {
        for key in ["interface", "state", "why", "last_loss"] {
            let value = state[key].as_str().unwrap_or_default();
            if !value.is_empty() {
                text += &format!("{key:14} {value}\n");
            }
        }
        for part in ["addresses", "counters"] {
            for (key, value) in state[part].as_object().into_iter().flatten() {
                text += &format!("{key:14} {}\n", value.to_string().trim_matches('"'));
            }
        }
    }
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        // The reader has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}
