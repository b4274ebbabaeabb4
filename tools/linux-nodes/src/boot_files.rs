//! The parts of Linux nodes: a kernel, an initrd, a root, and QEMU if necessary.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use tofu_image::{Arch, Cache, Image, Progress, Qemu, Spec, Sysroot};
use tofu_process::{Resize, memory_file};
use tofu_programs::{LINUX, Shipped};
use tofu_spec::plan::Plan;
use tofu_spec::units::{ArmCpu, Driver, ImageName, MemorySize};
use tofu_vmm::LinuxSupport;

use crate::arm64;

/// The image that is used if none is named and no image of [`DRIVER_KERNELS`] exists. It is made if
/// necessary.
const DEFAULT_IMAGE: &str = "default";
/// The default image for arm64 nodes.
const ARM64_IMAGE: &str = "arm64";
/// Kernels with the driver tofu.ko. If no image is named, the first of these images that exists is
/// used. Debian's kernel for virtual machines boots faster than the one for all machines; our own
/// builds are for tests.
const DRIVER_KERNELS: [&str; 4] = ["driver-cloud", "driver-generic", "driver-16k", "driver"];
/// The cost of making the first of them.
const DRIVER_COST: &str = "480 MB to download, about 2 minutes";
/// A file in the cache with the last hint about images with the driver that the user was shown.
const OFFERED: &str = "driver-offered";

/// Files and programs that Linux nodes need.
#[derive(Clone, Debug)]
pub struct BootFiles {
    /// The architecture that it is for.
    pub(crate) arch: Arch,
    /// The kernel: an ELF file with a PVH note, or a bzImage; for arm64 an Image.
    pub(crate) kernel: PathBuf,
    /// A cpio archive with our programs.
    pub(crate) initrd: PathBuf,
    /// A file system image with more programs, read-only.
    pub(crate) root: Option<PathBuf>,
    /// True if the kernel must leave the device to programs, even if it has a driver for it.
    pub(crate) without_driver: bool,
    /// True if the kernel has the driver tofu.ko, which may have the device.
    pub(crate) has_driver: bool,
    /// True if nodes with them can be clones: their kernel takes devices that are plugged in, and
    /// their init is ours.
    pub(crate) can_clone: bool,
    /// A hint for the user about other images.
    pub hint: Option<String>,
}

impl BootFiles {
    /// Prepares the requested boot files for nodes of this architecture. Missing parts are fetched
    /// or made. `kvm` is true if the host's hardware runs the guests, and `qemu` if QEMU does.
    ///
    /// # Errors
    ///
    /// If something does not exist, is of the wrong kind, or cannot be fetched or made, or if a
    /// node has too little memory.
    pub(crate) fn prepare(
        plan: &Plan,
        arch: Arch,
        kvm: bool,
        qemu: bool,
        progress: &dyn Progress,
    ) -> anyhow::Result<Self> {
        Self::check(plan, arch)?;
        let cache = Cache::from_env()?;
        let asked = &plan.on_linux;
        let without_driver = asked.driver == Driver::Vfio;
        if let (Some(kernel), Some(initrd)) = (&asked.kernel, &asked.initrd) {
            let (kernel, initrd) = (kernel.clone(), initrd.clone());
            let boot_files = Self::of_files(arch, (kernel, initrd), without_driver);
            boot_files.check_memory(plan)?;
            return Ok(boot_files);
        }
        let of = |image: Image| {
            // Under emulation, a bzImage takes long to unpack itself. With hardware virtualisation
            // it does not, and QEMU with KVM has been seen to hang when it enters an ELF file.
            let packed = image.kernel_bz.filter(|_| kvm);
            let own = packed.unwrap_or(image.kernel_elf);
            // An initrd has modules only for its own kernel. A kernel from elsewhere may have
            // everything built in.
            let is = |what: fn(&Spec) -> bool| image.manifest.spec().is_ok_and(|spec| what(&spec));
            let is_whole = asked.kernel.is_none() && asked.initrd.is_none();
            let kernel = asked.kernel.clone().unwrap_or(own);
            let initrd = asked.initrd.clone().unwrap_or(image.initrd);
            let boot_files = Self {
                root: image.root.filter(|_| asked.initrd.is_none()),
                has_driver: is(Spec::has_driver) && !without_driver,
                can_clone: is_whole && is(Spec::has_debian_kernel),
                ..Self::of_files(arch, (kernel, initrd), without_driver)
            };
            let pages = is(Spec::has_pages_of_16k);
            if pages && asked.kernel.is_none() && asked.cpu == ArmCpu::A64fx {
                bail!(
                    "image {}: its kernel has pages of 16 KiB, which the A64FX has not; add \
                     --cpu max",
                    image.name
                );
            }
            boot_files.check_memory(plan).map(|()| boot_files)
        };
        let mut hint = None;
        let named = match (asked.driver, requested_image(plan, arch, &cache)?) {
            (Driver::Auto, None) if qemu && takes_driver(plan, arch) => {
                match driver_image(&cache, arch, |image| cache.has_driver_ready(image)) {
                    Some(name) => match find_image(&cache, arch, Some(&name), progress) {
                        // Nodes with too little memory for it get the other, smaller kernel.
                        Ok(image) => {
                            if let Ok(boot_files) = of(image) {
                                return Ok(boot_files);
                            }
                        }
                        Err(error) if crate::progress::is_interrupted(&error) => return Err(error),
                        // Machines that have worked without the driver must continue to do so.
                        Err(error) => log::warn!("without the kernel driver: {error:#}"),
                    },
                    None => hint = offer(&cache),
                }
                None
            }
            (_, name) => name,
        };
        let boot_files = find_image(&cache, arch, named.as_deref(), progress).and_then(&of)?;
        Ok(Self { hint, ..boot_files })
    }

    /// Boot files from the user, with unknown properties.
    fn of_files(arch: Arch, (kernel, initrd): (PathBuf, PathBuf), without_driver: bool) -> Self {
        let (root, has_driver, can_clone, hint) = (None, false, false, None);
        Self { arch, kernel, initrd, root, without_driver, has_driver, can_clone, hint }
    }

    /// Checks the request as far as possible before anything is fetched or made, so that mistakes
    /// are reported without delay.
    ///
    /// # Errors
    ///
    /// If a file or an image does not exist or is of the wrong kind, or options exclude each other.
    pub fn check(plan: &Plan, arch: Arch) -> anyhow::Result<()> {
        let asked = &plan.on_linux;
        let mixed = plan.archs().len() > 1;
        let own = [(asked.kernel.is_some(), "--kernel"), (asked.initrd.is_some(), "--initrd")];
        if let Some((_, option)) = own.into_iter().find(|(given, _)| mixed && *given) {
            bail!("{option}: nodes have processors of two kinds, and it is for one; leave it out");
        }
        if let Some(path) = &asked.kernel {
            check_kernel(arch, path)?;
        }
        if let Some(path) = &asked.initrd {
            check_initrd(path)?;
        }
        if asked.kernel.is_some() && asked.initrd.is_some() {
            if asked.driver == Driver::Tofu {
                bail!("--driver tofu: with --kernel and --initrd, nodes have the drivers of these");
            }
            return Ok(());
        }
        let cache = Cache::from_env()?;
        match requested_image(plan, arch, &cache)? {
            Some(name) => present_image(&cache, arch, &name).map(drop),
            None => Ok(()),
        }
    }

    /// Checks that each Linux node of a plan has the memory that its kernel and initramfs take
    /// before anything can run. The initramfs is in memory twice while it is unpacked.
    ///
    /// # Errors
    ///
    /// If a node has less, with the least that is enough, or if a file cannot be read.
    fn check_memory(&self, plan: &Plan) -> anyhow::Result<()> {
        /// Additional memory for Linux and the programs that every node runs, in bytes.
        const MORE: u64 = 32 << 20;
        let cannot = |path: &Path| format!("cannot read {}", path.display());
        let kernel = tofu_input::read(&self.kernel, tofu_input::BOOT)
            .with_context(|| cannot(&self.kernel))?;
        let kernel = tofu_image::kernel_size(&kernel).unwrap_or(0);
        let initrd = fs::metadata(&self.initrd).with_context(|| cannot(&self.initrd))?.len();
        let least = (kernel + 2 * initrd + MORE).next_multiple_of(1 << 20);
        let ours = plan.linux().filter(|(_, linux)| linux.arch == self.arch);
        let small = ours.map(|(_, linux)| linux.memory).min_by_key(|memory| memory.0);
        match small {
            Some(memory) if memory.0 < least => bail!(
                "{memory} of memory are too little for a Linux node with this kernel and image; \
                 give {} or more",
                MemorySize(least)
            ),
            _ => Ok(()),
        }
    }
}

/// Returns our programs, which every image has.
///
/// # Errors
///
/// If there are none for another architecture than the host's, and they cannot be built.
pub fn tools_for(arch: Arch, progress: &dyn Progress) -> anyhow::Result<Vec<tofu_image::Program>> {
    tools_there(arch, progress)?.context(arm64::NONE)
}

/// Returns our programs, or `None` if neither they nor their sources exist.
fn tools_there(
    arch: Arch,
    progress: &dyn Progress,
) -> anyhow::Result<Option<Vec<tofu_image::Program>>> {
    match arch {
        _ if Arch::own() == Some(arch) => Ok(Some(tools()?)),
        Arch::X86_64 => bail!("this host has no programs for x86-64 nodes, see --arch"),
        Arch::Arm64 => arm64::programs(progress),
    }
}

/// Returns the folder with our libraries for users' programs on arm64 nodes, and the other
/// libraries of these programs. If necessary, ours are built and the others are fetched.
///
/// # Errors
///
/// If our libraries do not exist and cannot be built, or something cannot be fetched.
pub fn arm64_libraries(progress: &dyn Progress) -> anyhow::Result<(PathBuf, Sysroot)> {
    let folder = arm64::libraries(progress)?.context(arm64::NONE)?;
    Ok((folder, Cache::from_env()?.arm64_sysroot(progress)?))
}

/// Returns our programs for the host's architecture.
///
/// # Errors
///
/// None as long as the shipped programs have valid names.
pub fn tools() -> tofu_image::Result<Vec<tofu_image::Program>> {
    let program =
        |shipped: &Shipped| tofu_image::Program::new(shipped.name, shipped.image.to_vec());
    LINUX.iter().map(program).collect()
}

/// Returns a QEMU that can be a client of our devices, and fetches one if there is none.
///
/// # Errors
///
/// If there is none and it cannot be fetched, or the host cannot share memory with it.
pub(crate) fn qemu(arch: Arch, progress: &dyn Progress) -> anyhow::Result<Arc<Qemu>> {
    shared_memory()?;
    Ok(Arc::new(Cache::from_env()?.qemu_for(arch, None, progress)?))
}

/// Returns whether Linux runs under KVM here, rather than on an emulated processor.
pub fn kvm_runs_linux(support: LinuxSupport) -> bool {
    support == LinuxSupport::Full
}

/// Returns the version of the QEMU that would be used without fetching one.
pub fn present_qemu(cache: &Cache, arch: Arch) -> Option<String> {
    cache.present_qemu(arch).map(|qemu| qemu.version)
}

/// Describes in one line what is available for arm64 nodes, and for programs on them. The first
/// value is true if such nodes are possible here, possibly after something has been fetched or
/// built.
pub fn about_arm64(cache: Option<&Cache>) -> (bool, String) {
    let (can_run, ours) = arm64::origin();
    let emulator = match cache.and_then(|cache| present_qemu(cache, Arch::Arm64)) {
        Some(version) => format!("emulated by QEMU {version}"),
        None => "emulated by a QEMU that is fetched at the first use".to_owned(),
    };
    let emulator = emulator + ", on every host: there is no KVM for arm64";
    let libc = match cache.and_then(Cache::present_arm64_sysroot) {
        Some(_) => "the C library is in the cache",
        None => "the C library is fetched at the first use",
    };
    let compiler = if tofu_image::has_arm64_gcc() {
        "programs are compiled by this host's aarch64-linux-gnu-gcc".to_owned()
    } else if let Some(version) = cache.and_then(Cache::present_arm64_compilers) {
        format!("programs are compiled by GCC {version} in the cache")
    } else {
        "tofu sdk --arch arm64 fetches GCC".to_owned()
    };
    (can_run && cache.is_some(), format!("{emulator}; {ours}; {libc}; {compiler}"))
}

/// Checks that the host can share guest memory between processes.
///
/// # Errors
///
/// The host's error.
pub fn shared_memory() -> anyhow::Result<()> {
    memory_file("tofu-probe", 0, Resize::Never).context(
        "no shared memory: memfd_create fails on this host, and Linux nodes and tofu serve need it",
    )?;
    Ok(())
}

/// Returns the first image of [`DRIVER_KERNELS`] that exists, has the driver, and fits.
fn driver_image(cache: &Cache, arch: Arch, fits: impl Fn(&Image) -> bool) -> Option<String> {
    let has = |image: &Image| image.manifest.spec().is_ok_and(|spec| spec.has_driver());
    DRIVER_KERNELS.into_iter().map(|kernel| Spec::name_with(kernel, arch)).find(|name| {
        cache.find(name).ok().flatten().is_some_and(|image| has(&image) && fits(&image))
    })
}

/// Returns the image that nodes of this architecture boot if none is named, if this host has it.
///
/// # Errors
///
/// If the cache cannot be read.
pub fn present_default(plan: &Plan, arch: Arch) -> anyhow::Result<Option<String>> {
    let asked = &plan.on_linux;
    if asked.kernel.is_some() && asked.initrd.is_some() {
        return Ok(None);
    }
    let cache = Cache::from_env()?;
    let with_driver = match asked.driver {
        Driver::Tofu => return Ok(driver_image(&cache, arch, |_| true)),
        Driver::Auto => takes_driver(plan, arch),
        Driver::Vfio => false,
    };
    let ready = || driver_image(&cache, arch, |image| cache.has_driver_ready(image));
    let name = with_driver.then(ready).flatten();
    let name = name.unwrap_or_else(|| default_image(arch).to_owned());
    // A damaged image counts as missing, because it can be made again.
    Ok(cache.find(&name).ok().flatten().map(|image| image.name))
}

/// Returns true if nodes use a kernel with the driver by default, if there is one. Programs that
/// run to their end need the device exclusively, and a user's kernel has no module of ours.
fn takes_driver(plan: &Plan, arch: Arch) -> bool {
    let own = &plan.on_linux;
    arch == Arch::default() && plan.stays_up() && own.kernel.is_none() && own.initrd.is_none()
}

/// Returns the command that makes an image with the driver.
fn make_driver(arch: Arch) -> String {
    let kernel = DRIVER_KERNELS[0];
    format!("`tofu image build{} --kernel {kernel}`", arch_option(arch))
}

/// Returns the option for another architecture than the host's.
fn arch_option(arch: Arch) -> String {
    if arch == Arch::default() { String::new() } else { format!(" --arch {arch}") }
}

/// Checks that an image has the driver, if it exists.
fn check_driver(cache: &Cache, arch: Arch, name: &str) -> anyhow::Result<()> {
    let Some(image) = cache.find(name)? else { return Ok(()) };
    let spec = image.manifest.spec()?;
    if spec.has_driver() || image.manifest.arch != arch {
        return Ok(());
    }
    let with = match image.manifest.with.as_slice() {
        [] => String::new(),
        packages => format!(" --with {}", packages.join(",")),
    };
    bail!(
        "--driver tofu: image {name} has no tofu.ko; `tofu image build{} --name {name} --kernel \
         driver-cloud{with}` makes it with one",
        arch_option(arch)
    )
}

/// Returns a hint about images with the driver, once for each cache: that such images are possible,
/// or that the existing one was made by another version of these sources.
fn offer(cache: &Cache) -> Option<String> {
    let said = cache.folder().join(OFFERED);
    let arch = Arch::default();
    let what = match driver_image(cache, arch, |_| true) {
        Some(name) => format!(
            "`tofu image build --kernel {name}` renews the image {name}, which another version of \
             tofu has made (minutes)"
        ),
        None => format!(
            "{} makes nodes whose kernel drives the device ({DRIVER_COST})",
            make_driver(arch)
        ),
    };
    let hint = format!("{what}; this is said once");
    if fs::read_to_string(&said).is_ok_and(|text| text == hint) {
        return None;
    }
    // If the hint cannot be recorded, it is not given, because it would be repeated each time.
    fs::write(&said, &hint).ok().map(|()| hint)
}

/// Returns the name of the image without the driver.
const fn default_image(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => DEFAULT_IMAGE,
        Arch::Arm64 => ARM64_IMAGE,
    }
}

/// Returns the image that nodes of this architecture must boot: the named one, or one with the
/// driver if that is requested.
fn requested_image(plan: &Plan, arch: Arch, cache: &Cache) -> anyhow::Result<Option<String>> {
    let named = match plan.on_linux.image.as_ref().map(ImageName::as_str) {
        // In a machine with both architectures, the image applies to the nodes that it is for.
        Some(name) if plan.archs().len() > 1 => {
            cache.find(name)?.is_none_or(|image| image.manifest.arch == arch).then_some(name)
        }
        image => image,
    };
    match (plan.on_linux.driver, named) {
        (Driver::Tofu, Some(name)) => check_driver(cache, arch, name)?,
        (Driver::Tofu, None) => {
            let there = driver_image(cache, arch, |_| true).with_context(|| {
                format!(
                    "--driver tofu: there is no image with tofu.ko{}; {} makes one ({DRIVER_COST})",
                    if arch == Arch::default() { "" } else { " for arm64" },
                    make_driver(arch)
                )
            });
            return there.map(Some);
        }
        _ => {}
    }
    Ok(named.map(str::to_owned))
}

/// Returns the image of this name, or `None` if it is the default one and does not exist.
fn present_image(cache: &Cache, arch: Arch, name: &str) -> anyhow::Result<Option<Image>> {
    let is_default = name == default_image(arch);
    // A damaged image is made again if the way to do so is known.
    let known = match cache.find(name) {
        Ok(image) => image,
        Err(_) if is_default => None,
        Err(error) => return Err(error.into()),
    };
    match known {
        Some(image) if image.manifest.arch != arch => bail!(
            "image {name}: it is for {} and the nodes are for {arch}; take another one by \
             --image, or --arch {0}",
            image.manifest.arch
        ),
        None if !is_default => bail!(
            "image {name}: there is none; `tofu image ls` lists those there are, and \
             `tofu image build --name {name} --with ...` makes one"
        ),
        known => Ok(known),
    }
}

/// Returns the image of this name with the current programs. The default one is made if it does not
/// exist.
fn find_image(
    cache: &Cache,
    arch: Arch,
    name: Option<&str>,
    progress: &dyn Progress,
) -> anyhow::Result<Image> {
    let name = name.unwrap_or(default_image(arch));
    let known = present_image(cache, arch, name)?;
    let spec = match &known {
        Some(image) => image.manifest.spec()?,
        None => Spec::new(name)?.arch(arch),
    };
    match tools_there(arch, progress)? {
        Some(programs) => Ok(cache.build(&spec.programs(programs), progress)?),
        // The image stays as it is if the programs are not available.
        None => known.context(arm64::NONE),
    }
}

/// Checks that a file is a kernel.
fn check_kernel(arch: Arch, path: &Path) -> anyhow::Result<()> {
    let bytes = tofu_input::read(path, tofu_input::BOOT)
        .with_context(|| format!("kernel {}: cannot read it", path.display()))?;
    match arch {
        Arch::X86_64 => tofu_image::inspect_kernel(path, &bytes).map(|_| ())?,
        Arch::Arm64 => tofu_image::inspect_kernel_arm64(path, &bytes)?,
    }
    Ok(())
}

/// Checks that a file can be an initrd.
fn check_initrd(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    let size = tofu_input::open(path, tofu_input::BOOT).and_then(|file| Ok(file.metadata()?.len()));
    match size.with_context(|| format!("initrd {shown}: cannot read it"))? {
        0 => bail!("initrd {shown}: it is empty"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts an image into a cache, with the named kernel.
    fn put(cache: &Cache, name: &str, kernel: &str) {
        let folder = cache.folder().join("images").join(name);
        fs::create_dir_all(&folder).unwrap();
        let text = format!(
            "format = 1\nname = \"{name}\"\nfingerprint = \"\"\nbuilt = 0\n\
             asked_kernel = \"{kernel}\"\nwith = [\"mpich\"]\n"
        );
        fs::write(folder.join("manifest.toml"), text).unwrap();
    }

    #[test]
    fn images_with_the_driver_have_an_order() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        let on = |arch| driver_image(&cache, arch, |_| true);
        let found = || on(Arch::X86_64);
        assert_eq!(found(), None);
        // It has the name, but another kernel.
        put(&cache, "driver-cloud", "cloud");
        assert_eq!(found(), None);
        for name in ["driver", "driver-generic", "driver-cloud"] {
            put(&cache, name, name);
            assert_eq!(found().as_deref(), Some(name));
        }
        let not_that = |image: &Image| image.name != "driver-cloud";
        let other = driver_image(&cache, Arch::X86_64, not_that);
        assert_eq!(other.as_deref(), Some("driver-generic"));
        assert_eq!(on(Arch::Arm64), None);
        put(&cache, "driver-16k-arm64", "driver-16k");
        assert_eq!(on(Arch::Arm64).as_deref(), Some("driver-16k-arm64"));
        let make = "`tofu image build --arch arm64 --kernel driver-cloud`";
        assert_eq!(make_driver(Arch::Arm64), make);
        put(&cache, "mine", "auto");
        let check = |name| check_driver(&cache, Arch::X86_64, name);
        check("driver").unwrap();
        assert_eq!(
            check("mine").unwrap_err().to_string(),
            "--driver tofu: image mine has no tofu.ko; `tofu image build --name mine --kernel \
             driver-cloud --with mpich` makes it with one"
        );
    }

    #[test]
    fn images_with_the_driver_are_offered_once() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        let hint = offer(&cache).unwrap();
        assert!(hint.starts_with("`tofu image build --kernel driver-cloud` makes"), "{hint}");
        assert!(hint.contains("480 MB") && !hint.contains('\n'), "{hint}");
        assert_eq!(offer(&cache), None);
        // The existing image is of another version, so there is another hint, once.
        put(&cache, "driver-cloud", "driver-cloud");
        assert!(offer(&cache).unwrap().contains("renews the image driver-cloud, which"));
        assert_eq!(offer(&cache), None);
        // Where nothing can be recorded, no hint is repeated.
        assert_eq!(offer(&Cache::at(folder.path().join("none/such"))), None);
    }

    #[test]
    fn kernels_and_initrds_are_recognised() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let one_line = |error: anyhow::Error| {
            let text = format!("{error:#}");
            assert!(!text.contains('\n') && text.contains("file"), "{text}");
            text
        };
        assert!(one_line(check_kernel(Arch::X86_64, &path).unwrap_err()).contains("No such file"));
        assert!(one_line(check_initrd(&path).unwrap_err()).contains("No such file"));
        fs::write(&path, "").unwrap();
        assert!(one_line(check_kernel(Arch::X86_64, &path).unwrap_err()).contains("it is empty"));
        assert!(one_line(check_initrd(&path).unwrap_err()).contains("it is empty"));
        fs::write(&path, "#!/bin/sh").unwrap();
        assert!(
            one_line(check_kernel(Arch::X86_64, &path).unwrap_err())
                .contains("neither a bzImage nor")
        );
        assert!(check_initrd(&path).is_ok());
    }
}
