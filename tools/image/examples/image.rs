//! Drives the library: `image build [--name N] [--kernel K] [--with A,B] [--program FILE]...
//! [--modules A,B] [--mirror URL] [--refresh]`, `image ls`, `image rm NAME`, `image qemu`,
//! `image fetch [--backports] PACKAGE,PACKAGE` (prints a folder with them unpacked),
//! `image arm64-compilers` (prints a folder with `aarch64-linux-gnu-gcc` and `-g++`).

use std::cell::Cell;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, bail};
use tofu_image::{Arch, Cache, Kernel, Phase, Program, Progress, Spec};

/// Prints each phase once, and downloads by the megabyte.
#[derive(Default)]
struct Lines(Cell<Option<(Phase, u64)>>);

impl Progress for Lines {
    fn update(&self, phase: Phase, done: u64, total: u64) {
        let step = if phase == Phase::Download { done >> 24 } else { 0 };
        if self.0.replace(Some((phase, step))) != Some((phase, step)) {
            eprintln!("{phase} {done}/{total}");
        }
    }

    fn note(&self, text: &str) {
        eprintln!("note: {text}");
    }
}

/// The command line behind the action.
#[derive(Default)]
struct Options {
    name: Option<String>,
    with: Vec<String>,
    mirror: Option<String>,
    programs: Vec<Program>,
    modules: Vec<String>,
    kernel: Kernel,
    refresh: bool,
    backports: bool,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let mut options = Self::default();
        while let Some(argument) = arguments.next() {
            let mut value =
                || arguments.next().with_context(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--name" => options.name = Some(value()?),
                "--kernel" => options.kernel = value()?.parse()?,
                "--with" => options.with.extend(value()?.split(',').map(str::to_owned)),
                "--modules" => options.modules.extend(value()?.split(',').map(str::to_owned)),
                "--mirror" => options.mirror = Some(value()?),
                "--refresh" => options.refresh = true,
                "--backports" => options.backports = true,
                "--program" => {
                    let path = value()?;
                    let name = Path::new(&path).file_name().unwrap_or_default().to_string_lossy();
                    let bytes = std::fs::read(&path).context(path.clone())?;
                    options.programs.push(Program::new(&name, bytes)?);
                }
                other if !other.starts_with('-') => options.name = Some(other.into()),
                other => bail!("unknown option {other}"),
            }
        }
        Ok(options)
    }
}

fn main() -> anyhow::Result<()> {
    env_logger::init();
    let mut arguments = std::env::args().skip(1);
    let action = arguments.next().unwrap_or_default();
    let options = Options::parse(arguments)?;
    let cache = Cache::from_env()?.mirror(options.mirror);
    let progress = Lines::default();
    let began = Instant::now();
    match action.as_str() {
        "build" => {
            let name =
                options.name.unwrap_or_else(|| Spec::name_for(Arch::default(), &options.with));
            let spec = Spec::new(&name)?
                .kernel(options.kernel)
                .with(&options.with)?
                .modules(&options.modules)?;
            let image = cache
                .build(&spec.programs(options.programs).refresh(options.refresh), &progress)?;
            println!("{}", image.kernel_elf.display());
            println!("{}", image.initrd.display());
            if let Some(root) = image.root {
                println!("{}", root.display());
            }
        }
        "ls" => {
            for image in cache.list()? {
                let manifest = &image.manifest;
                let with = manifest.with.join(",");
                println!("{} {} {} bytes {with}", image.name, manifest.kernel, manifest.size());
            }
        }
        "rm" => cache.remove(&options.name.context("rm needs a name")?, &progress)?,
        "qemu" => {
            let qemu = cache.qemu(None, &progress)?;
            println!("{} {:?} {:?}", qemu.version, qemu.origin, qemu.command());
        }
        "fetch" => {
            let packages = options.name.context("fetch needs packages")?;
            let packages: Vec<&str> = packages.split(',').collect();
            println!("{}", cache.packages(&packages, options.backports, &progress)?.display());
        }
        "arm64-compilers" => println!("{}", cache.arm64_compilers(&progress)?.display()),
        other => bail!("unknown action {other:?}: build, ls, rm, qemu, fetch or arm64-compilers"),
    }
    eprintln!("{:.3} s", began.elapsed().as_secs_f64());
    Ok(())
}
