//! `tofu image`.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use clap::Subcommand;
use serde_json::json;
use tofu_image::{Arch, Cache, Image, Kernel, Made, Module, Program, Spec};
use tofu_linux_nodes::boot_files::tools_for;
use tofu_linux_nodes::progress::{ImageProgress, is_interrupted};
use tofu_spec::units::ImageName;
use tofu_ui::{Style, exit, signals};

/// Make, list and remove images for Linux nodes
///
/// An image has a kernel, a small userland with our programs, and optionally a Debian root file
/// system with more packages. Images are made from Debian's packages, in a cache; nothing else on
/// the host changes.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ImageCommand {
    /// Make an image, and download QEMU if this host has no suitable one
    Build {
        /// Debian packages to install, in a root file system for the guest
        #[arg(long, value_name = "PACKAGE,...", value_delimiter = ',')]
        with: Vec<String>,
        /// Name of the image [default: default, or composed of the kernel, if it has our driver,
        /// and the packages]
        #[arg(long, value_name = "NAME")]
        name: Option<ImageName>,
        /// Architecture of its guests: x86-64 or arm64
        ///
        /// Packages of an image for arm64 are set up in a guest, which takes minutes.
        #[arg(long, value_name = "ARCH", default_value_t = Arch::host())]
        arch: Arch,
        /// Kernel: auto, cloud, generic, cloud-backports, generic-backports, 16k, 16k-backports,
        /// driver, driver-debug, driver-cloud, driver-generic, driver-16k, or a file
        ///
        /// Those named after the driver have tofu.ko: driver-cloud, driver-generic and driver-16k
        /// are Debian's own kernels, for which it is compiled in a few minutes; the other two are
        /// built here. For arm64 there are Debian's kernels with pages of 16 KiB, and `driver` has
        /// pages of 64 KiB, as Fugaku's kernel; driver-debug and files are for x86-64.
        #[arg(long, value_name = "KERNEL", default_value = "auto")]
        kernel: String,
        /// Build a kernel with the driver tofu.ko, which takes minutes the first time: the same as
        /// --kernel driver
        #[arg(long, conflicts_with = "kernel")]
        kernel_driver: bool,
        /// Kernel modules to add, with their dependencies. `net` means those with which programs
        /// make networks (veth, bridge, nf_tables and the like); images with packages always have
        /// them
        #[arg(long, value_name = "MODULE,...", value_delimiter = ',')]
        modules: Vec<String>,
        /// Debian mirror to download from [default: the one that this host's apt uses]
        #[arg(long, value_name = "URL")]
        mirror: Option<String>,
        /// Check for newer Debian packages even if nothing else has changed
        #[arg(long)]
        refresh: bool,
    },
    /// Compile a kernel module for nodes with the kernel of `driver-cloud`, or another one
    ///
    /// FOLDER has the sources, in C or Rust, and a Kbuild file. The compiler's messages are
    /// printed, and modules (*.ko) are written to FOLDER. If the build environment for the kernel's
    /// modules does not exist yet, it is made first, which takes minutes. Then use the module: tofu
    /// up --linux --driver tofu, tofu cp FOLDER/mine.ko 0:/tmp, tofu exec 0 -- insmod /tmp/mine.ko.
    Module {
        /// Folder with the sources and Kbuild
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
        /// Parent folder with more files that the sources need [default: FOLDER]
        #[arg(long, value_name = "FOLDER")]
        base: Option<PathBuf>,
        /// Folder for the modules [default: FOLDER]
        #[arg(long, short, value_name = "FOLDER")]
        out: Option<PathBuf>,
        /// Kernel: driver-cloud, driver-generic, driver, driver-debug or driver-16k
        #[arg(long, value_name = "KERNEL", default_value = "driver-cloud")]
        kernel: String,
        /// The processors of the nodes: x86-64 or arm64
        #[arg(long, value_name = "ARCH", default_value_t = Arch::host())]
        arch: Arch,
        /// The same as --kernel driver-debug
        #[arg(long, conflicts_with = "kernel")]
        debug: bool,
        /// Arguments for make, such as W=1 or CLIPPY=1
        #[arg(value_name = "ARG", last = true)]
        args: Vec<String>,
    },
    /// Write our programs for Linux nodes to a folder
    ///
    /// Programs for arm64 are built in a checkout of the sources. On hosts without a checkout, set
    /// TOFU_ARM64_PROGRAMS to such a folder.
    Programs {
        /// Architecture of the nodes: x86-64 or arm64
        #[arg(long, value_name = "ARCH", default_value_t = Arch::host())]
        arch: Arch,
        /// Folder for the programs
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
    /// List the images
    Ls {
        /// Print the list as JSON
        #[arg(long)]
        json: bool,
    },
    /// Run the QEMU that Linux nodes run under, and download it if necessary
    ///
    /// For virtual machines of your own that attach to `tofu serve`: tofu image qemu -- -M q35 ...
    Qemu {
        /// QEMU's arguments
        #[arg(value_name = "ARG", last = true)]
        args: Vec<OsString>,
    },
    /// Run the host's tshark, or one that is fetched, to read captures
    ///
    /// tofu image tshark -- -X lua_script:tools/wireshark/tofu.lua -r file.pcapng
    Tshark {
        /// Fetch it even if the host has one
        #[arg(long)]
        fetched: bool,
        /// tshark's arguments
        #[arg(value_name = "ARG", last = true)]
        args: Vec<OsString>,
    },
    /// Run headless Chromium, which is fetched, to test pages
    #[command(hide = true)]
    Chromium {
        /// Chromium's arguments
        #[arg(value_name = "ARG", last = true)]
        args: Vec<OsString>,
    },
    /// Remove an image
    Rm {
        /// The image
        #[arg(value_name = "NAME")]
        name: ImageName,
    },
}

/// Runs `tofu image` and returns the exit code.
pub(crate) fn run(command: &ImageCommand) -> anyhow::Result<u8> {
    let (cancelled, _signals) = signals::flag(signals::CLEANING)?;
    let progress = ImageProgress::new(cancelled, Style::detect(false).progress);
    let cache = Cache::from_env()?;
    let result = match command {
        ImageCommand::Build {
            with,
            name,
            arch,
            kernel,
            kernel_driver,
            modules,
            mirror,
            refresh,
        } => {
            let kernel = if *kernel_driver { Kernel::Driver } else { kernel.parse()? };
            let name = match name {
                Some(name) => name.as_str().to_owned(),
                None => default_name(&kernel, *arch, with),
            };
            let spec = Spec::new(&name)?.arch(*arch).kernel(kernel).refresh(*refresh);
            // Before programs are built for it.
            spec.check_arch()?;
            let mut spec = spec.programs(tools_for(*arch, &progress)?).modules(modules)?;
            if !with.is_empty() {
                spec = spec.with(with)?;
            }
            build(&cache.mirror(mirror.clone()), *arch, &spec, &progress)
        }
        ImageCommand::Module { folder, base, out, kernel, arch, debug, args } => {
            let kernel = if *debug { Kernel::DriverDebug } else { kernel.parse()? };
            let module = Module::new(folder).base(base.clone()).kernel(&kernel, *arch)?;
            let to = out.as_ref().unwrap_or(folder);
            let made = module.arguments(args.iter().cloned()).make(&cache, to, &progress);
            made.map_err(Into::into).and_then(|made| tell(&made, &progress))
        }
        ImageCommand::Programs { arch, folder } => {
            tools_for(*arch, &progress).and_then(|programs| write(&programs, folder))
        }
        ImageCommand::Qemu { args } => {
            let qemu = cache.qemu(None, &progress).map_err(Into::into);
            qemu.and_then(|qemu| become_program(qemu.command(), args, &progress))
        }
        ImageCommand::Tshark { fetched, args } => {
            let tshark =
                if *fetched { cache.fetched_tshark(&progress) } else { cache.tshark(&progress) };
            tshark.map_err(Into::into).and_then(|command| become_program(command, args, &progress))
        }
        ImageCommand::Chromium { args } => {
            let chromium = cache.chromium(&progress).map_err(Into::into);
            chromium.and_then(|command| become_program(command, args, &progress))
        }
        ImageCommand::Ls { json } => list(&cache, *json),
        ImageCommand::Rm { name } => cache.remove(name.as_str(), &progress).map_err(Into::into),
    };
    match result {
        Ok(()) => Ok(0),
        Err(error) if is_interrupted(&error) => Ok(exit::INTERRUPTED),
        Err(error) => Err(error),
    }
}

/// The name of an image without a name from the user.
fn default_name(kernel: &Kernel, arch: Arch, with: &[String]) -> String {
    if !kernel.has_driver() {
        Spec::name_for(arch, with)
    } else if with.is_empty() {
        Spec::name_with(&kernel.to_string(), arch)
    } else {
        format!("{kernel}+{}", Spec::name_for(arch, with))
    }
}

fn build(cache: &Cache, arch: Arch, spec: &Spec, progress: &ImageProgress) -> anyhow::Result<()> {
    let image = cache.build(spec, progress)?;
    let qemu = cache.qemu_for(arch, None, progress)?;
    progress.clear();
    let mut out = io::stdout().lock();
    writeln!(out, "{}", describe(&image))?;
    writeln!(out, "QEMU {} ({:?})", qemu.version, qemu.origin)?;
    Ok(())
}

/// Writes programs into a folder.
fn write(programs: &[Program], folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(programs.iter().try_for_each(|program| program.write(folder))?)
}

/// Says what came of a module.
fn tell(made: &Made, progress: &ImageProgress) -> anyhow::Result<()> {
    progress.clear();
    eprint!("{}", made.said);
    if !made.ok {
        anyhow::bail!("the module cannot be compiled; what the compiler said is above");
    }
    let mut out = io::stdout().lock();
    for module in &made.modules {
        writeln!(out, "{}", module.display())?;
    }
    Ok(())
}

/// Becomes a program, or returns why that failed.
fn become_program(
    mut command: Command,
    args: &[OsString],
    progress: &ImageProgress,
) -> anyhow::Result<()> {
    progress.clear();
    let error = command.args(args).exec();
    Err(error).with_context(|| format!("cannot run {}", command.get_program().display()))
}

fn describe(image: &Image) -> String {
    let manifest = &image.manifest;
    let with = match manifest.with.as_slice() {
        [] => String::new(),
        packages => format!(", Debian with {}", packages.join(" ")),
    };
    let arch = match manifest.arch {
        Arch::X86_64 => String::new(),
        other => format!(" for {other}"),
    };
    format!(
        "image {}{arch}: kernel {}{with}, {} MiB",
        image.name,
        manifest.kernel,
        manifest.size() >> 20
    )
}

fn list(cache: &Cache, as_json: bool) -> anyhow::Result<()> {
    let images = cache.list()?;
    let mut out = io::stdout().lock();
    if as_json {
        let images: Vec<_> = images
            .iter()
            .map(|image| {
                let folder: Option<PathBuf> = image.initrd.parent().map(Into::into);
                json!({
                    "name": image.name, "arch": image.manifest.arch,
                    "kernel": image.manifest.kernel,
                    "with": image.manifest.with, "bytes": image.manifest.size(),
                    "built": image.manifest.built, "folder": folder,
                })
            })
            .collect();
        writeln!(out, "{}", json!(images))?;
    } else if images.is_empty() {
        writeln!(
            out,
            "no images; `tofu image build` makes one, and `tofu up --linux` the default"
        )?;
    } else {
        for image in &images {
            writeln!(out, "{}", describe(image))?;
        }
    }
    Ok(out.flush()?)
}
