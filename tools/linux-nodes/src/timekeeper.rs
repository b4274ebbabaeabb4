//! QEMU's plugin that keeps a guest in modelled time, and finds code that breaks rules.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use tofu_image::Qemu;

/// The file, beside this program.
const PLUGIN: &str = "libtofutime.so";
/// The versions of QEMU whose internals it knows.
const KNOWN: &str = "11.1.";

/// Words for the kernel of a guest in modelled time.
///
/// Linux calibrates its APIC timer by a loop with `pause`. QEMU leaves its generated code at each
/// `pause`, so the loop takes a second of the host for each 10 ms. Without the APIC timer, Linux
/// uses the HPET, whose period the plugin sets.
pub const KERNEL_WORDS: &str = "nolapic_timer";

/// Words for every kernel in modelled time. They keep an idle one from waking up, which costs the
/// host as much as work does: for its watchdog, for statistics of memory and of waiting, and to
/// look for fragmented memory.
pub const IDLE_WORDS: &str = "nowatchdog psi=0 sysctl.vm.stat_interval=600 \
                              sysctl.vm.compaction_proactiveness=0";

/// A word for every kernel in modelled time. Linux puts it into the environment of the first
/// program, and so of all, where `libtofucom` finds it: stores to registers cost a guest no time
/// there, so that commands go by direct descriptors, as on the machine.
pub const DIRECT: &str = "UTOFU_DIRECT_DESCRIPTORS=1";

/// Finds the plugin.
///
/// # Errors
///
/// If it does not exist.
pub fn plugin() -> anyhow::Result<PathBuf> {
    let itself = std::env::current_exe().context("finding this program")?;
    let plugin = itself.with_file_name(PLUGIN);
    ensure!(
        plugin.exists(),
        "{} is missing; cargo build --release -p tofu-timekeeper makes it",
        plugin.display()
    );
    Ok(plugin)
}

/// Checks that this QEMU can load the plugin.
///
/// # Errors
///
/// If it is of another version than those that the plugin knows.
pub(crate) fn check(qemu: &Qemu) -> anyhow::Result<()> {
    let version = &qemu.version;
    ensure!(
        version.starts_with(KNOWN),
        "{PLUGIN} needs QEMU 11.1, and {} is {version}",
        qemu.program.display()
    );
    plugin().map(drop)
}
