//! Shares a Tofu device among processes: many uTofu programs at once on a Linux node.
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

/// Shares a Tofu device among processes
///
/// VFIO gives a device to one process. tofud is that process while others, linked with libtofucom,
/// use the device by way of it: it opens the device for the first of them and gives it up after the
/// last, and takes back what a process leaves behind, however it ends. Root's processes get the
/// device itself, and must trust each other. Those of all other users are kept apart: the number of
/// the user is the group of their queues and gates, and what registers and tables say is tofud's.
///
/// It stays in the foreground, and may be killed at any time: processes that use the device go on;
/// new ones come when it was started again and the others are gone. What it had lent goes back to
/// the kernel's driver then.
#[derive(Parser)]
#[command(name = "tofud", version)]
struct Cli {
    /// PCI address, such as 0000:00:02.0 [default: the first Tofu device]
    #[arg(long, value_name = "DEVICE")]
    device: Option<Bdf>,
    /// Where to listen [default: /run/tofu/DEVICE.sock]
    #[arg(long, value_name = "PATH", env = "TOFUD_SOCKET")]
    socket: Option<PathBuf>,
}

fn main() -> ExitCode {
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
    // Held until the end, whatever that is.
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
