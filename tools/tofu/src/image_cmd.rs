//! `tofu image`, and how the making of images is shown.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tofu_image::{Cache, Image, Kernel, Made, Module, Phase, Progress, Spec};

use crate::cli::ImageCommand;
use crate::linux::guest;
use crate::signals;
use crate::ui::Style;

/// Runs `tofu image` and returns the exit code.
pub(crate) fn run(command: &ImageCommand) -> anyhow::Result<u8> {
    let cancelled = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&cancelled);
    let _signals =
        signals::forward(move |_| seen.store(true, SeqCst)).context("cannot handle signals")?;
    let progress = Shown::new(cancelled, Style::detect(false).progress);
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
            let mut spec = spec.programs(guest::tools()?).modules(modules)?;
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

/// Whether the user has stopped it.
pub(crate) fn is_interrupted(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(tofu_image::Error::Interrupted))
}

fn build(cache: &Cache, spec: &Spec, progress: &Shown) -> anyhow::Result<()> {
    let image = cache.build(spec, progress)?;
    let qemu = cache.qemu(None, progress)?;
    progress.clear();
    let mut out = io::stdout().lock();
    writeln!(out, "{}", describe(&image))?;
    writeln!(out, "QEMU {} ({:?})", qemu.version, qemu.origin)?;
    Ok(())
}

/// Says what came of a module.
fn tell(made: &Made, progress: &Shown) -> anyhow::Result<()> {
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
fn become_program(mut command: Command, args: &[OsString], progress: &Shown) -> anyhow::Result<()> {
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

/// Progress on a terminal; without one, a line for each phase.
pub(crate) struct Shown {
    cancelled: Arc<AtomicBool>,
    terminal: bool,
    state: Mutex<(Option<Phase>, Option<ProgressBar>)>,
}

impl Shown {
    /// Nothing is shown before something is to be done.
    pub(crate) fn new(cancelled: Arc<AtomicBool>, terminal: bool) -> Self {
        Self { cancelled, terminal, state: Mutex::default() }
    }

    /// Takes the bar away.
    pub(crate) fn clear(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bar) = state.1.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Progress for Shown {
    fn update(&self, phase: Phase, done: u64, total: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, bar) = &mut *state;
        let begins = *last != Some(phase);
        *last = Some(phase);
        if !self.terminal {
            if begins {
                eprintln!("tofu: image: {phase}");
            }
            return;
        }
        let bar = bar.get_or_insert_with(|| {
            let bar = ProgressBar::new(0);
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        if begins {
            let template = match phase {
                Phase::Download => "{msg} {bar:24} {bytes}/{total_bytes} {elapsed}",
                _ => "{msg} {spinner} {elapsed}",
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_message(format!("image: {phase}"));
        }
        bar.set_length(total);
        bar.set_position(done);
    }

    fn note(&self, text: &str) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &state.1 {
            Some(bar) => bar.suspend(|| eprintln!("tofu: image: {text}")),
            None => eprintln!("tofu: image: {text}"),
        }
    }

    fn cancelled(&self) -> bool {
        self.cancelled.load(SeqCst)
    }
}
