//! Network boot: nodes get what they run from a boot server in this process, over the torus.
//!
//! A node that boots so starts with our firmware alone (`tofu-boot`, see tools/guests). The server
//! is an I/O node of its own; what it says, and to whom, is `tofu_netboot`'s matter.

pub(crate) mod board;
mod tenant;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use tofu_abi::Coords;
use tofu_fabric::NodeId;
use tofu_gateway::{Config, IoNode, Prepared};
use tofu_machine::Machine;
use tofu_netboot::wire::{Kind, MTU};
use tofu_netboot::{Boot, Content, Fault, Server};
use tofu_programs::FIRMWARE;
use tofu_sandbox::Role;

use self::tenant::BootServer;
use crate::confine::Confinement;
use crate::plan::Plan;
use crate::runner::{self, Event};
use crate::units::Timeout;

/// Where a node's guest or kernel comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum BootFrom {
    /// The machine monitor puts it into the node's memory
    #[default]
    Monitor,
    /// The node fetches it from a boot server, over the torus
    Tofu,
}

impl FromStr for BootFrom {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "monitor" => Ok(Self::Monitor),
            "tofu" => Ok(Self::Tofu),
            _ => Err("\"monitor\" or \"tofu\""),
        }
    }
}

/// Coordinates as on a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At(pub(crate) Coords);

impl FromStr for At {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let parts: Option<Vec<u8>> = text
            .split(',')
            .map(|part| part.parse().ok().filter(|n: &u8| digits(part) && *n < 32))
            .collect();
        let coords = parts.and_then(|parts| <[u8; 6]>::try_from(parts).ok());
        coords
            .map(|coords| Self(Coords::from_array(coords)))
            .ok_or("coordinates X,Y,Z,A,B,C, six whole numbers from 0 to 31")
    }
}

/// What a server does wrong, for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BootFault {
    /// Changes a byte of each file
    Corrupt,
    /// Answers no more half-way
    Silent,
}

/// Network boot.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Network boot")]
pub(crate) struct BootArgs {
    /// Where guests and kernels come from [default: monitor]
    #[arg(long, value_name = "FROM")]
    pub(crate) boot: Option<BootFrom>,

    /// Node of the boot server, which runs nothing else: X,Y,Z,A,B,C
    ///
    /// [default: the last node without a VM; the last node if all have one]
    #[arg(long, value_name = "NODE")]
    pub(crate) boot_server: Option<At>,

    /// How long the boot server may be silent until a node gives up [default: 10s]
    #[arg(long, value_name = "TIME")]
    pub(crate) boot_patience: Option<Timeout>,

    /// Lets the boot server make mistakes
    #[arg(long, value_name = "FAULT", hide = true)]
    pub(crate) boot_fault: Option<BootFault>,
}

impl BootArgs {
    fn fault(&self) -> Fault {
        match self.boot_fault {
            None => Fault::None,
            Some(BootFault::Corrupt) => Fault::Corrupt,
            Some(BootFault::Silent) => Fault::Silent(50),
        }
    }
}

/// The boot server of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerPlan {
    /// Its node.
    pub(crate) at: NodeId,
    /// How long nodes wait for it, in milliseconds.
    patience_ms: u64,
    fault: Fault,
}

impl ServerPlan {
    pub(crate) fn new(at: NodeId, args: &BootArgs) -> Self {
        let patience = args.boot_patience.map_or(DEFAULT_PATIENCE_MS, |patience| {
            u64::try_from(patience.0.as_millis()).unwrap_or(u64::MAX)
        });
        Self { at, patience_ms: patience, fault: args.fault() }
    }
}

const DEFAULT_PATIENCE_MS: u64 = 10_000;

/// What the firmware is told.
pub(crate) fn firmware_line(plan: &Plan, server: &ServerPlan) -> String {
    let (words, at, patience) = (runner::machine_words(plan, ""), server.at.0, server.patience_ms);
    format!("{words} server={at} patience_ms={patience}")
}

/// Our firmware as a file, for other monitors.
#[derive(Clone, Debug)]
pub(crate) struct Firmware {
    pub(crate) file: PathBuf,
    pub(crate) command_line: String,
}

/// Writes the firmware to a folder if Linux nodes of a plan need it.
///
/// # Errors
///
/// If it cannot be written.
pub(crate) fn firmware(plan: &Plan, folder: &Path) -> anyhow::Result<Option<Firmware>> {
    let wanted = plan.linux().any(|(_, linux)| linux.boot == BootFrom::Tofu);
    let Some(server) = plan.boot_server.filter(|_| wanted) else { return Ok(None) };
    let file = folder.join("tofu-boot.elf");
    std::fs::write(&file, FIRMWARE).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(Some(Firmware { file, command_line: firmware_line(plan, &server) }))
}

/// Files that Linux nodes boot; each is read and hashed once.
pub(crate) struct LinuxFiles<'a> {
    pub(crate) kernel: &'a Path,
    pub(crate) initrd: &'a Path,
    /// The kernel's command lines.
    pub(crate) command_lines: HashMap<NodeId, String>,
}

/// Starts the boot server of a plan; `None` if no node wants one.
///
/// # Errors
///
/// If a file cannot be read or sent, or its place in the machine is taken.
pub(crate) fn start(
    machine: &Arc<Machine>,
    plan: &Plan,
    linux: Option<&LinuxFiles<'_>>,
    events: &Sender<Event>,
    confinement: &Confinement,
) -> anyhow::Result<Option<IoNode>> {
    let Some(place) = plan.boot_server else { return Ok(None) };
    let at = plan.coords(place.at);
    let mut server = Server::new(place.fault);
    let unfit = |what: &dyn fmt::Display| {
        format!(
            "{what}: cannot be booted over the torus: a file of 1 byte to 1 GiB can, and a \
                 command line of up to 2047 bytes"
        )
    };
    let mut guests: HashMap<&str, Boot> = HashMap::new();
    for (id, vm) in plan.bare().filter(|(_, vm)| vm.boot == BootFrom::Tofu) {
        let line = runner::command_line(plan, vm);
        let name = vm.guest.name.as_str();
        let boot = match guests.get(name) {
            Some(boot) => boot.with_command_line(line),
            None => {
                let image: Content = Arc::clone(&vm.guest.image) as Content;
                let boot = Boot::new(generation(), Kind::Guest, image, None, line);
                guests.extend(boot.clone().map(|boot| (name, boot)));
                boot
            }
        };
        let Some(boot) = boot else { bail!(unfit(&format_args!("guest {name}"))) };
        server.set(plan.coords(id), boot);
    }
    let mut kernel: Option<Boot> = None;
    for (id, _) in plan.linux().filter(|(_, linux)| linux.boot == BootFrom::Tofu) {
        let Some(files) = linux else { bail!("there are no files for Linux nodes to boot") };
        let line = files.command_lines.get(&id).cloned().unwrap_or_default();
        let boot = match &kernel {
            Some(boot) => boot.with_command_line(line),
            None => {
                let read = |path: &Path| -> anyhow::Result<Content> {
                    let bytes = std::fs::read(path)
                        .with_context(|| format!("cannot read {}", path.display()))?;
                    Ok(Arc::new(bytes))
                };
                let (image, initrd) = (read(files.kernel)?, read(files.initrd)?);
                kernel = Boot::new(generation(), Kind::Linux, image, Some(initrd), line);
                kernel.clone()
            }
        };
        let Some(boot) = boot else { bail!(unfit(&files.kernel.display())) };
        server.set(plan.coords(id), boot);
    }
    let config = Config { mtu: MTU, ..Config::new(plan.network.shape) };
    let prepared =
        Prepared::new(machine, at, &config).with_context(|| format!("boot server at {at}"))?;
    let ids = plan.vms().map(|id| (plan.coords(id), id)).collect();
    let tenant = BootServer::new(server, ids, events.clone());
    let first = confinement.hook(Role::Virtio);
    Ok(Some(prepared.start(vec![Box::new(tenant)], move || first())?))
}

/// A number for the files of this run of the server, which those of another one most likely do not
/// have.
fn generation() -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_are_six_small_numbers() {
        assert_eq!("1,2,3,0,2,1".parse(), Ok(At(Coords::new(1, 2, 3, 0, 2, 1))));
        for text in ["", "1", "1,2,3,0,2", "1,2,3,0,2,1,0", "32,0,0,0,0,0", "+1,0,0,0,0,0"] {
            assert!(text.parse::<At>().is_err(), "{text}");
        }
    }
}
