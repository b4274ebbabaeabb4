//! Shares a Tofu device among processes, so that many uTofu programs can run on a Linux node.
//!
//! Errors are one line on stderr and exit code 2.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;
use rustix::fs::{FlockOperation, flock};
use tofu_vfio::Bdf;
use tofu_vfio::broker::socket_path;
use tofu_vfio::pci::Bus;
use tofud::{Server, VfioSource, listen};

/// Share a Tofu device among processes
///
/// VFIO gives a device to one process only. tofud is that process, and others, linked with
/// libtofucom, use the device through it. tofud opens the device for the first of them, closes it
/// after the last, and frees the resources of a process when it ends, even if it is killed.
/// Processes of root access the device directly, and must trust each other. Processes of other
/// users are isolated by user: the user ID is the group of their queues and gates, and only tofud
/// writes registers and tables.
///
/// It stays in the foreground, and may be killed at any time. Processes that use the device
/// continue. New ones can use it once tofud was started again and the others have ended. A device
/// that the kernel driver had lent to tofud goes back to the driver then.
#[derive(Parser)]
#[command(name = "tofud", version)]
struct Cli {
    /// PCI address, such as 0000:00:02.0 [default: the first Tofu device]
    #[arg(long, value_name = "DEVICE")]
    device: Option<Bdf>,
    /// Socket to listen on [default: /run/tofu/DEVICE.sock]
    #[arg(long, value_name = "PATH", env = "TOFUD_SOCKET")]
    socket: Option<PathBuf>,
}

fn main() -> ExitCode {
    tofu_vfio::close_inherited();
    let cli = Cli::parse();
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tofud: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    let device = Bus::default().find(cli.device)?;
    let path = cli.socket.clone().unwrap_or_else(|| socket_path(device.bdf));
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    // Held until the process ends in any way.
    let lock = path.with_extension("lock");
    let file = File::create(&lock).with_context(|| lock.display().to_string())?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => bail!("another tofud serves {}", path.display()),
        Err(error) => return Err(error).with_context(|| lock.display().to_string()),
    }
    let listener = listen(&path).with_context(|| format!("listening at {}", path.display()))?;
    log::info!("{} at {}", device.bdf, path.display());
    let source = VfioSource::new(device.bdf, path.with_extension("lent"));
    source.take_over().context("giving back what was lent")?;
    Server::new(listener, source).run().context("serving")
}
