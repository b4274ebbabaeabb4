//! Makes what Linux guests need, out of Debian's packages, in a cache of the user's: a kernel, an
//! initial RAM file system with busybox and our programs, if wanted a Debian root file system with
//! more packages, and QEMU where the host has none that is new enough.
//!
//! Nothing of the host is changed and nobody needs to be root; apt-get and dpkg-deb of the host do
//! the fetching, resolving and checking of signatures, with folders of their own.
//!
//! ```no_run
//! use tofu_image::{Cache, Program, Silent, Spec};
//!
//! # fn main() -> tofu_image::Result<()> {
//! let cache = Cache::from_env()?;
//! let agent = Program::new("tofu-agent", std::fs::read("agent").unwrap_or_default())?;
//! let image = cache.build(&Spec::new("default")?.programs([agent]), &Silent)?;
//! let qemu = cache.qemu(None, &Silent)?;
//! let mut command = qemu.command();
//! command.arg("-kernel").arg(&image.kernel_elf).arg("-initrd").arg(&image.initrd);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

/// What to put on the kernel's command line so that it boots fast: silent, without security modules
/// and self-tests of its cryptography, which a guest of ours has no use for. Saves a second under
/// emulation. A kernel that panics restarts, which ends a monitor that does not restart guests
/// (QEMU's `-no-reboot`).
pub const BOOT_ARGUMENTS: &str = "quiet panic=-1 lsm=capability cryptomgr.notests \
                                  initcall_blacklist=jent_mod_init random.trust_cpu=on";

/// What to add under QEMU's emulation (TCG), where the kernel's measurements of its clocks take
/// long and find what is known.
pub const TCG_ARGUMENTS: &str = "no_timer_check tsc=reliable";

mod apt;
mod arch;
mod cache;
mod chromium;
mod cpio;
mod cross;
mod driver;
mod error;
mod fetched;
mod hash;
mod initramfs;
mod kernel;
mod manifest;
mod mirror;
mod modules;
mod progress;
mod qemu;
mod root;
mod run;
mod spec;
mod tshark;

pub use arch::Arch;
pub use cache::{Cache, Image};
pub use cross::{Sysroot, has_arm64_gcc};
pub use driver::{Made, Module};
pub use error::{Error, Result};
pub use kernel::{
    KernelKind, LoadedSize, inspect as inspect_kernel, inspect_arm64 as inspect_kernel_arm64,
    kernel_size, loaded_size,
};
pub use manifest::{FileInfo, Manifest, Package};
pub use progress::{Phase, Progress, Silent};
pub use qemu::{MINIMUM as QEMU_MINIMUM, Origin as QemuOrigin, Qemu};
pub use spec::{Kernel, Program, Spec};
