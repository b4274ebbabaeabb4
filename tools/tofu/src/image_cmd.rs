//! `tofu image`.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use anyhow::Context;
use serde_json::json;
use tofu_image::{Cache, Image, Kernel, Made, Module, Spec};
use tofu_linux_nodes::kit::tools;
use tofu_ui::{ImageProgress, Style, is_interrupted, signals};

use crate::cli::ImageCommand;

/// Runs `tofu image` and returns the exit code.
pub(crate) fn run(command: &ImageCommand) -> anyhow::Result<u8> {
    let cancelled = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&cancelled);
    let _signals =
        signals::forward(move |_| seen.store(true, SeqCst)).context("cannot handle signals")?;
    let progress = ImageProgress::new(cancelled, Style::detect(false).progress);
    let cache = Cache::from_env()?;
    let result = match command {
        ImageCommand::Build { with, name, kernel, kernel_driver, modules, mirror, refresh } => {
            let name = match name {
                Some(name) => name.as_str().to_owned(),
                None if *kernel_driver && with.is_empty() => "driver".into(),
                None if *kernel_driver => format!("driver+{}", Spec::name_for(with)),
                None => Spec::name_for(with),
            };
            let kernel = if *kernel_driver { Kernel::Driver } else { kernel.parse()? };
            let spec = Spec::new(&name)?.kernel(kernel).refresh(*refresh);
            let mut spec = spec.programs(tools()?).modules(modules)?;
            if !with.is_empty() {
                spec = spec.with(with)?;
            }
            build(&cache.mirror(mirror.clone()), &spec, &progress)
        }
        ImageCommand::Module { folder, base, out, debug, args } => {
            let module = Module::new(folder).base(base.clone()).debug(*debug);
            let to = out.as_ref().unwrap_or(folder);
            module
                .arguments(args.iter().cloned())
                .make(&cache, to, &progress)
                .map_err(Into::into)
                .and_then(|made| tell(&made, &progress))
        }
        ImageCommand::Qemu { args } => cache
            .qemu(None, &progress)
            .map_err(Into::into)
            .and_then(|qemu| become_program(qemu.command(), args, &progress)),
        ImageCommand::Tshark { fetched, args } => {
            let tshark =
                if *fetched { cache.fetched_tshark(&progress) } else { cache.tshark(&progress) };
            tshark.map_err(Into::into).and_then(|command| become_program(command, args, &progress))
        }
        ImageCommand::Ls { json } => list(&cache, *json),
        ImageCommand::Rm { name } => cache.remove(name.as_str(), &progress).map_err(Into::into),
    };
    match result {
        Ok(()) => Ok(0),
        Err(error) if is_interrupted(&error) => Ok(130),
        Err(error) => Err(error),
    }
}

fn build(cache: &Cache, spec: &Spec, progress: &ImageProgress) -> anyhow::Result<()> {
    let image = cache.build(spec, progress)?;
    let qemu = cache.qemu(None, progress)?;
    progress.clear();
    let mut out = io::stdout().lock();
    writeln!(out, "{}", describe(&image))?;
    writeln!(out, "QEMU {} ({:?})", qemu.version, qemu.origin)?;
    Ok(())
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

/// Becomes a program, or says why not.
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
    format!("image {}: kernel {}{with}, {} MiB", image.name, manifest.kernel, manifest.size() >> 20)
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
                    "name": image.name, "kernel": image.manifest.kernel,
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
