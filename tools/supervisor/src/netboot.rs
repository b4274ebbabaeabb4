//! Network boot: nodes fetch their programs from a boot server in this process, over the torus.
//!
//! A node that boots in this way starts with nothing but our firmware (`tofu-boot`, see
//! tools/guests). The server is a separate I/O node; its protocol is implemented in `tofu_netboot`.

mod tenant;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use tofu_fabric::NodeId;
use tofu_gateway::{Config, IoNode, Prepared};
use tofu_machine::Machine;
use tofu_netboot::wire::{ImageKind, MTU};
use tofu_netboot::{Boot, Content, Server};
use tofu_programs::FIRMWARE;
use tofu_sandbox::Role;

use self::tenant::BootServer;
use crate::command_line;
use crate::confine::Confinement;
use crate::event::EventSender;
use tofu_spec::plan::Plan;
use tofu_spec::units::BootFrom;

/// Our firmware as a file, for other virtual machine monitors.
#[derive(Clone, Debug)]
pub struct Firmware {
    /// Path of the file.
    pub file: PathBuf,
    /// Its command line.
    pub command_line: String,
}

/// Writes the firmware to a folder if Linux nodes of a plan need it.
///
/// # Errors
///
/// If it cannot be written.
pub fn firmware(plan: &Plan, folder: &Path) -> anyhow::Result<Option<Firmware>> {
    let wanted = plan.linux().any(|(_, linux)| linux.boot == BootFrom::Tofu);
    let Some(server) = plan.boot_server.filter(|_| wanted) else { return Ok(None) };
    let file = folder.join("tofu-boot.elf");
    std::fs::write(&file, FIRMWARE).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(Some(Firmware { file, command_line: command_line::firmware(plan, &server) }))
}

/// Files that Linux nodes boot. Each is read and hashed once.
pub struct LinuxFiles<'a> {
    /// The kernel.
    pub kernel: &'a Path,
    /// Its initrd.
    pub initrd: &'a Path,
    /// The kernel's command lines.
    pub command_lines: HashMap<NodeId, String>,
}

/// Starts the boot server of a plan, for the nodes of all shards. Returns `None` if no node needs
/// one, or if another shard has it.
///
/// # Errors
///
/// If a file cannot be read or sent, or its place in the machine is taken.
pub fn start(
    machine: &Arc<Machine>,
    plan: &Plan,
    linux: Option<&LinuxFiles<'_>>,
    events: &EventSender,
    confinement: &Confinement,
) -> anyhow::Result<Option<IoNode>> {
    let Some(place) = plan.own_boot_server() else { return Ok(None) };
    let at = plan.coords(place.at);
    let mut server = Server::new(place.fault);
    let unfit = |what: &dyn fmt::Display| {
        format!(
            "{what}: cannot be booted over the torus: a file of 1 byte to 1 GiB can, and a \
                 command line of up to 2047 bytes"
        )
    };
    let mut guests: HashMap<&str, Boot> = HashMap::new();
    for (id, vm) in plan.netbooted_bare() {
        let line = command_line::guest(plan, vm);
        let name = vm.guest.name.as_str();
        let boot = match guests.get(name) {
            Some(boot) => boot.with_command_line(line),
            None => {
                let image: Content = Arc::clone(&vm.guest.image) as Content;
                let boot = Boot::new(generation(), ImageKind::Guest, image, None, line);
                guests.extend(boot.clone().map(|boot| (name, boot)));
                boot
            }
        };
        let Some(boot) = boot else { bail!(unfit(&format_args!("guest {name}"))) };
        server.set(plan.coords(id), boot);
    }
    let mut kernel: Option<Boot> = None;
    for (id, _) in plan.netbooted_linux() {
        let Some(files) = linux else { bail!("there are no files for Linux nodes to boot") };
        let line = files.command_lines.get(&id).cloned().unwrap_or_default();
        let boot = match &kernel {
            Some(boot) => boot.with_command_line(line),
            None => {
                let read = |path: &Path| -> anyhow::Result<Content> {
                    let bytes = tofu_input::read(path, tofu_input::BOOT)
                        .with_context(|| format!("cannot read {}", path.display()))?;
                    Ok(Arc::new(bytes))
                };
                let (image, initrd) = (read(files.kernel)?, read(files.initrd)?);
                kernel = Boot::new(generation(), ImageKind::Linux, image, Some(initrd), line);
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

/// Returns a number for the files of this run of the server, which another run is unlikely to use.
fn generation() -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u32)
}
