//! Runs the set-up scripts of packages for another architecture in a QEMU guest that has the root
//! file system as its disk.

use std::fs;
use std::path::Path;

use crate::BOOT_ARGUMENTS;
use crate::arch::Arch;
use crate::cache::Cache;
use crate::error::{IoContext, Result};
use crate::initramfs::{self, SETUP};
use crate::modules::Tree;
use crate::progress::{Phase, Progress};
use crate::qemu::Qemu;
use crate::run;
use crate::spec::{Kernel, Program};

/// The beginning of the guest's last line.
const END: &str = "tofu: the packages' scripts have ended with ";
/// The beginning of the line that dpkg prints for each package.
const PACKAGE: &str = "Setting up ";
/// Modules for the disk; some kernels have them built in.
const MODULES: [&str; 4] = ["virtio_pci", "virtio_blk", "virtio-rng", "ext4"];
/// Memory in MiB.
const MEMORY: &str = "768";

/// The parts of such a guest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Guest<'a> {
    pub(crate) arch: Arch,
    pub(crate) qemu: &'a Qemu,
    /// One of Debian's kernels.
    pub(crate) kernel: &'a Kernel,
}

impl Guest<'_> {
    /// Runs the scripts of the packages, whose number is given, on `image`. `enter` is the script
    /// that enters a root folder.
    ///
    /// # Errors
    /// If the guest does not run to its end. Packages that cannot be configured are not an error.
    pub(crate) fn configure(
        &self,
        cache: &Cache,
        image: &Path,
        (enter, packages): (&str, u64),
        progress: &dyn Progress,
    ) -> Result<()> {
        const PURPOSE: &str = "configuring packages in a guest";
        let (key, kernel) = cache.kernel_part(self.kernel, self.arch, false, progress)?;
        let folder = cache.part_folder(&key);
        let tree = Tree::open(&folder.join("modules"), &kernel.kernel)?;
        let names: Vec<&str> = MODULES.into_iter().filter(|name| tree.has_file(name)).collect();
        let (busybox, _) = cache.busybox_part(self.arch, false, progress)?;
        let busybox = cache.part_folder(&busybox).join("busybox");
        let busybox = fs::read(&busybox).on("read", &busybox)?;
        let modules = (kernel.kernel.as_str(), &*tree.closure(&names)?);
        let enter = Program::new("enter", enter.into())?;
        let archive = initramfs::build_with(SETUP, &busybox, modules, &names, &[enter])?;
        let (initrd, log) = (image.with_file_name("setup"), image.with_file_name("setup.log"));
        fs::write(&initrd, archive).on("write", &initrd)?;
        fs::write(&log, "").on("write", &log)?;

        let mut command = run::command(&self.qemu.program);
        command.args(&self.qemu.args_prefix);
        command.envs(self.qemu.envs.iter().map(|(name, value)| (name, value)));
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        // This processor has no pointer authentication, which is slow to emulate.
        command.args(["-machine", "virt,gic-version=3", "-accel", "tcg", "-cpu", "cortex-a57"]);
        command.args(["-m", MEMORY, "-device", "virtio-rng-pci"]);
        let plain = |path: &Path| path.display().to_string().replace(',', ",,");
        command.arg("-serial").arg(format!("file:{}", log.display()));
        let disk = format!("if=none,id=root,format=raw,cache=unsafe,file={}", plain(image));
        command.args(["-drive", &disk, "-device", "virtio-blk-pci,drive=root"]);
        command.arg("-kernel").arg(folder.join("vmlinux")).arg("-initrd").arg(&initrd);
        command.arg("-append").arg(format!("console=ttyAMA0 {BOOT_ARGUMENTS}"));

        let said = || String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
        let tell = |said: &str| {
            let done = said.lines().filter(|line| line.starts_with(PACKAGE)).count() as u64;
            progress.update(Phase::Configure, done.min(packages), packages);
        };
        tell("");
        let mut ticks = 0u32;
        let output = run::run(command, PURPOSE, progress, || {
            ticks += 1;
            if ticks.is_multiple_of(20) {
                tell(&said());
            }
        })?;
        let said = said();
        log::debug!("{said}");
        let status = said.lines().rev().find_map(|line| line.strip_prefix(END));
        let ended = status.is_some_and(|status| status.trim().parse::<u8>().is_ok());
        if !(output.ok && ended) {
            let stderr = format!("{}\n{said}", output.stderr);
            let output = run::Output { stderr, ..output };
            return Err(run::failure(&output, "the guest".into(), PURPOSE, image));
        }
        tell(&said);
        fs::remove_file(&initrd).on("remove", &initrd)?;
        fs::remove_file(&log).on("remove", &log)
    }
}
