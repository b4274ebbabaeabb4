//! Makes the files that Linux guests need from Debian's packages, in a user's cache: a kernel, an
//! initial RAM file system with busybox and our programs, optionally a Debian root file system with
//! more packages, and QEMU if the host has none that is new enough.
//!
//! Nothing on the host is changed, and root is not needed. The host's apt-get and dpkg-deb fetch
//! packages, resolve dependencies and check signatures, with folders of our own.
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

/// Options for the kernel's command line that make it boot fast: silent, without security modules
/// and without self-tests of its cryptography, which our guests do not need. They save a second
/// under emulation. A kernel that panics restarts, which ends a monitor that does not restart
/// guests (QEMU's `-no-reboot`).
pub const BOOT_ARGUMENTS: &str = "quiet panic=-1 lsm=capability cryptomgr.notests \
                                  initcall_blacklist=jent_mod_init random.trust_cpu=on";

/// Further options under QEMU's emulation (TCG), where the kernel's clock measurements take long
/// and yield known results.
pub const TCG_ARGUMENTS: &str = "no_timer_check tsc=reliable";

/// The processor of x86-64 guests under QEMU's emulation: all that QEMU can emulate, but without
/// what makes a guest copy and fill memory with `rep movsb` and `rep stosb`. These are emulated
/// byte by byte, and take an instruction a byte of modelled time.
pub const TCG_CPU: &str = "max,-erms,-fsrm,-fsrs,-fsrc,-fzrm";

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
mod template;
mod tshark;

pub use arch::Arch;
pub use cache::{Cache, Image};
pub use cross::{Sysroot, has_arm64_gcc};
pub use driver::{Made, Module};
pub use error::{Error, Result};
pub use hash::hex;
pub use kernel::{
    KernelKind, LoadedSize, inspect as inspect_kernel, inspect_arm64 as inspect_kernel_arm64,
    kernel_size, loaded_size,
};
pub use manifest::{FileInfo, Manifest, Package};
pub use progress::{Phase, Progress, Silent};
pub use qemu::{MINIMUM as QEMU_MINIMUM, Origin as QemuOrigin, Qemu};
pub use spec::{Kernel, Program, Spec};
pub use template::{Template, TemplateKey};
