//! Gives a clone of a node its identity.
//!
//! A clone starts with the memory of a node that has booted without a device and without a name.
//! Its device is plugged in before its processors run. System calls are used, not programs:
//! processors are often emulated, and each program is translated again in each clone.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::mem;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::mount::mount_bind;
use rustix::system::sethostname;
use rustix::time::{ClockId, Timespec, clock_settime};

use crate::startup;
use crate::wire::Identity;

/// The command line of the node, which is mounted over /proc/cmdline.
const COMMAND_LINE: &str = "/run/tofu-cmdline";
/// The vendor of the device.
const VENDOR: &str = "0x10cf";
/// The time within which the kernel finds the device that was plugged in.
const PLUGGED: Duration = Duration::from_secs(20);
/// The modules that this project's init has left for later, because they read the command line.
const LATER: &str = "/run/tofu-later";

/// Assumes an identity, starts what has waited for it, and waits until programs can use it.
pub(crate) fn assume(identity: &Identity) -> io::Result<()> {
    let held = Path::new(startup::HELD);
    if !held.exists() {
        // The host has greeted this node before.
        return Ok(());
    }
    let Identity { host, command_line, time_ns, seed } = identity;
    if let Some(ns) = time_ns {
        let time = Timespec {
            tv_sec: (ns / 1_000_000_000).cast_signed(),
            tv_nsec: (ns % 1_000_000_000).cast_signed(),
        };
        clock_settime(ClockId::Realtime, time)?;
    }
    fs::write("/dev/urandom", seed)?;
    name(host)?;
    fs::write(COMMAND_LINE, format!("{command_line}\n"))?;
    mount_bind(COMMAND_LINE, "/proc/cmdline")?;
    if !startup::until(PLUGGED, has_device) {
        return Err(io::Error::new(ErrorKind::NotFound, "the node's device has not appeared"));
    }
    load_modules()?;
    // Those that wait are released when it is opened. Those that come later do not find it, and
    // those in between can open it for as long as this process lives.
    mem::forget(OpenOptions::new().read(true).write(true).open(held)?);
    fs::remove_file(held)?;
    startup::wait();
    Ok(())
}

fn name(host: &str) -> io::Result<()> {
    sethostname(host.as_bytes())?;
    if Path::new("/etc/hostname").exists() {
        fs::write("/etc/hostname", format!("{host}\n"))?;
    }
    fs::write("/etc/hosts", format!("127.0.0.1\tlocalhost {host}\n"))
}

fn has_device() -> bool {
    let is_ours = |entry: fs::DirEntry| {
        fs::read_to_string(entry.path().join("vendor")).is_ok_and(|vendor| vendor.trim() == VENDOR)
    };
    fs::read_dir("/sys/bus/pci/devices").is_ok_and(|entries| entries.flatten().any(is_ours))
}

/// Loads the modules that read the command line.
fn load_modules() -> io::Result<()> {
    let modules = match fs::read_to_string(LATER) {
        Ok(modules) => modules,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for module in modules.lines() {
        // One that the command line excludes is not loaded, as at boot.
        Command::new("modprobe").arg(module).status()?;
    }
    Ok(())
}
