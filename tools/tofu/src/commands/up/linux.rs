//! `tofu up` of a machine with Linux nodes.

use std::io::{self, Write};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use anyhow::bail;
use tofu_control::rundir::RunDir;
use tofu_linux_nodes::boot_files::BootFiles;
use tofu_linux_nodes::host::LinuxHost;
use tofu_linux_nodes::progress::{ImageProgress, is_interrupted};
use tofu_linux_nodes::runtimes::{Monitors, Runtimes};
use tofu_supervisor::confine::Confinement;
use tofu_supervisor::event::{self, Event};
use tofu_supervisor::gateway::GatewaySetup;
use tofu_supervisor::options::{MachineArgs, Net};
use tofu_supervisor::parts::Others;
use tofu_supervisor::plan::Plan;
use tofu_supervisor::runner::Machines;
use tofu_supervisor::session::Session;
use tofu_ui::{Style, exit, signals};

use crate::commands::up::detach;
use crate::commands::up::screen::Screen;
use crate::commands::up::watch::watch;

/// Refuses options that have no meaning without Linux nodes, rather than ignore them.
pub(crate) fn refuse_options(args: &MachineArgs) -> anyhow::Result<()> {
    let linux = &args.linux;
    let given = [
        (linux.cpus.is_some(), "--cpus"),
        (linux.image.is_some(), "--image"),
        (linux.driver.is_some(), "--driver"),
        (linux.arch.is_some(), "--arch"),
        (linux.cpu.is_some(), "--cpu"),
        (linux.kernel.is_some(), "--kernel"),
        (linux.initrd.is_some(), "--initrd"),
        (linux.append.is_some(), "--append"),
        (linux.net != Net::None, "--net"),
    ];
    match given.iter().find(|(given, _)| *given) {
        Some((_, option)) => bail!("{option} is for machines with Linux nodes; add --linux"),
        None => Ok(()),
    }
}

/// Checks the options as far as possible without fetching or making anything.
pub(crate) fn check(plan: &Plan, args: &MachineArgs) -> anyhow::Result<()> {
    if plan.network.part.is_some() && args.linux.net != Net::None {
        bail!("--net: a machine in parts has no Ethernet among all of its nodes; leave it out");
    }
    if args.linux.detach && !plan.stays_up() {
        bail!("--detach: every Linux node runs a program to its end; leave --guest out");
    }
    plan.archs().into_iter().try_for_each(|arch| BootFiles::check(plan, arch, &args.linux))
}

/// Runs `tofu up` and returns the exit code. `meet` waits for the other parts of the machine, if it
/// is in parts.
pub(crate) fn run(
    plan: &Plan,
    args: &MachineArgs,
    (json, grace): (bool, Duration),
    meet: impl FnOnce(&mut MachineArgs) -> anyhow::Result<Option<Others>>,
) -> anyhow::Result<u8> {
    let start = Instant::now();
    let mut parent = args.linux.detached.then(detach::Parent::new).transpose()?;
    let monitors = Monitors::choose(plan, &args.linux)?;
    let (sender, events) = event::events();
    let (signal_sender, cancelled) = (sender.clone(), Arc::new(AtomicBool::new(false)));
    let (seen, waits) = (Arc::clone(&cancelled), Arc::new(AtomicBool::new(false)));
    let waiting = Arc::clone(&waits);
    let _signals = signals::forward(signals::CLEANING, move |signal| {
        seen.store(true, SeqCst);
        if waiting.load(SeqCst) {
            // There is nothing to tidy up yet.
            process::exit(exit::of_signal(signal).into());
        }
        signal_sender.send(Event::Signal(signal));
    })?;
    let style = Style::detect(json);
    let runtime = {
        let progress = ImageProgress::new(Arc::clone(&cancelled), style.progress);
        match Runtimes::prepare(plan, &args.linux, &monitors, &progress) {
            Ok(prepared) => prepared,
            Err(error) if is_interrupted(&error) => return Ok(exit::INTERRUPTED),
            Err(error) => return Err(error),
        }
    };
    if let (Some(hint), false) = (runtime.hint(), json) {
        // Whether or not there is a reader.
        let _ = writeln!(io::stderr(), "tofu: image: {hint}");
    }
    // Once the image is ready, because parts that have met do not wait long for each other's
    // devices.
    let mut args = args.clone();
    waits.store(true, SeqCst);
    if cancelled.load(SeqCst) {
        return Ok(exit::INTERRUPTED);
    }
    let others = meet(&mut args)?;
    waits.store(false, SeqCst);
    let args = &args;
    let mut session = Session::new(plan, args)?;
    let registry = session.serve_part(plan, sender.clone(), others.clone())?;
    let gateway = session.gateway.take();
    let dir = &session.dir;
    let confinement = Confinement::of_programs(&[dir.base()], args.sandbox.off)?;
    let host = LinuxHost {
        runtime,
        dir: dir.path().to_owned(),
        group: session.janitor.group(),
        boot_timeout: args.linux.boot_timeout.0,
        lan: args.linux.net.into(),
        registry: Arc::clone(&registry),
        confinement,
    };
    let more = gateway.as_ref().map(GatewaySetup::hints).unwrap_or_default();
    let machines = Machines {
        confinement: host.confinement.clone(),
        linux: Some(Box::new(host)),
        registry: Some(registry),
        gateway,
        others,
    };

    let mut out = detach::output(args.linux.detached);
    let mut screen = Screen::new(&mut *out, style, plan, dir.name().as_str())?;
    let mut started = |screen: &mut Screen<'_>| {
        if !plan.stays_up() {
            return Ok(());
        }
        screen.ready(dir.name().as_str(), start.elapsed(), &hints(dir, args, &more))?;
        match &mut parent {
            Some(parent) => parent.leave(&dir.path().join("log")),
            None => Ok(()),
        }
    };
    watch(plan, grace, &machines, sender, &events, &mut screen, &mut started)
}

/// Hints for the user about a machine that is ready.
fn hints(dir: &RunDir, args: &MachineArgs, more: &[String]) -> Vec<String> {
    let mut hints = vec![
        "  tofu exec 0 -- uname -a       run a command on node 0 (--all: on all nodes)".into(),
        "  tofu console 0                its console (Ctrl-] leaves)".into(),
        "  tofu cp FILE 0:/tmp/          copy a file there".into(),
        format!("  tofu down {:<19} end the machine", dir.name().as_str()),
    ];
    hints.extend_from_slice(more);
    if !args.linux.detached {
        hints.push("Ctrl-C ends it, too.".into());
    }
    hints
}
