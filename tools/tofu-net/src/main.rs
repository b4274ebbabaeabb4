//! IP over Tofu on a Linux node: the interface tofu0.
//!
//! Errors are one line on stderr and exit code 2.
#![forbid(unsafe_code)]

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use rustix::fs::{FlockOperation, flock};
use tofu_driver::topology::Shape;
use tofu_net::{Daemon, Settings, ask};
use tofu_vfio::Bdf;

/// Where the daemon tells what it has done.
const STATS: &str = "/run/tofu/net.sock";

/// The network interface tofu0, whose frames go over the torus
///
/// It shares the device with other programs by way of tofud. A program that wants the device for
/// itself gets it; tofu0 has no carrier then, and has it again after that.
#[derive(Parser)]
#[command(name = "tofu-net", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Have the interface, in the foreground
    Run(Box<Run>),
    /// Print what the interface has done
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
    /// Number of the machine, 0 to 7, a part of its addresses
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=7))]
    machine: u8,
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
    /// Where tofud listens [default: where it does by itself]
    #[arg(long, value_name = "PATH", env = "TOFUD_SOCKET")]
    broker: Option<PathBuf>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    let done = match cli.command {
        Command::Run(run) => serve(*run),
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

fn shape(run: &Run) -> anyhow::Result<Shape> {
    let shape = match run.shape {
        Some(shape) => shape,
        None => kernel_option("shape")
            .context("no --shape, and the kernel's command line has no tofu.shape")?
            .parse()
            .context("tofu.shape")?,
    };
    let axes = run.torus.clone().or_else(|| kernel_option("torus"));
    Ok(axes.map_or(shape, |axes| shape.with_torus(&axes)))
}

fn mtu(run: &Run) -> anyhow::Result<u16> {
    let told = || kernel_option("mtu").map(|text| (text.parse().ok(), text));
    match (run.mtu, told()) {
        (Some(mtu), _) | (None, Some((Some(mtu @ 1280..=65521), _))) => Ok(mtu),
        (None, None) => Ok(1500),
        (None, Some((_, text))) => anyhow::bail!("tofu.mtu={text}: an MTU is 1280 to 65521"),
    }
}

fn serve(run: Run) -> anyhow::Result<()> {
    let settings = Settings {
        shape: shape(&run)?,
        machine: run.machine,
        mtu: mtu(&run)?,
        interface: run.interface,
        tni: run.tni,
        device: run.device,
        broker: run.broker,
        stats: STATS.into(),
    };
    fs::create_dir_all("/run/tofu").context("making /run/tofu")?;
    // Held until the end, whatever that is.
    let lock = fs::File::create("/run/tofu/net.lock").context("/run/tofu/net.lock")?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        anyhow::bail!("another tofu-net is running");
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
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{state}")?;
        return Ok(());
    }
    for key in ["interface", "state", "why", "last_loss"] {
        let text = state[key].as_str().unwrap_or_default();
        if !text.is_empty() {
            writeln!(out, "{key:14} {text}")?;
        }
    }
    for part in ["addresses", "counters"] {
        for (key, value) in state[part].as_object().into_iter().flatten() {
            writeln!(out, "{key:14} {}", value.to_string().trim_matches('"'))?;
        }
    }
    Ok(())
}
