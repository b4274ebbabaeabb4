//! Preparations of `tofu up` for Linux nodes before it starts them.

use std::io::{self, Write};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use anyhow::bail;
use tofu_control::rundir::RunDir;
use tofu_linux_nodes::boot_files::BootFiles;
use tofu_linux_nodes::progress::{ImageProgress, is_interrupted};
use tofu_linux_nodes::runtimes::{Monitors, Runtimes};
use tofu_spec::plan::Plan;
use tofu_supervisor::event::{Event, EventSender};
use tofu_ui::signals::Forwarding;
use tofu_ui::{Style, exit, signals};

/// Checks the plan as far as possible without fetching or making anything.
pub(crate) fn check(plan: &Plan, detach: bool) -> anyhow::Result<()> {
    if detach && plan.linux().next().is_some() && !plan.stays_up() {
        bail!("--detach: every Linux node runs a program to its end; leave --guest out");
    }
    plan.archs().into_iter().try_for_each(|arch| BootFiles::check(plan, arch))
}

/// Signals of a command that first fetches and makes files, which may take minutes.
pub(crate) struct Signals {
    cancelled: Arc<AtomicBool>,
    /// True if there is nothing to clean up, so that a signal ends the process immediately.
    idle: Arc<AtomicBool>,
    _forwarding: Forwarding,
}

impl Signals {
    pub(crate) fn new(events: EventSender) -> anyhow::Result<Self> {
        let [cancelled, idle] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (seen, nothing) = (Arc::clone(&cancelled), Arc::clone(&idle));
        let forwarding = signals::forward(signals::CLEANING, move |signal| {
            seen.store(true, SeqCst);
            if nothing.load(SeqCst) {
                process::exit(exit::of_signal(signal).into());
            }
            events.send(Event::Signal(signal));
        })?;
        Ok(Self { cancelled, idle, _forwarding: forwarding })
    }

    /// Prepares the plan's nodes. Returns `None` if a signal came during that.
    pub(crate) fn prepare(&self, plan: &Plan, style: Style) -> anyhow::Result<Option<Runtimes>> {
        let monitors = Monitors::choose(plan)?;
        let progress = ImageProgress::new(Arc::clone(&self.cancelled), style.progress);
        let runtimes = match Runtimes::prepare(plan, &monitors, &progress) {
            Ok(prepared) => prepared,
            Err(error) if is_interrupted(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        if let (Some(hint), false) = (runtimes.hint(), style.json) {
            // Whether or not there is a reader.
            let _ = writeln!(io::stderr(), "tofu: image: {hint}");
        }
        Ok(Some(runtimes))
    }

    /// Does something that may wait long, such as for the other shards of a machine. Returns `None`
    /// if a signal came before.
    pub(crate) fn while_idle<T>(&self, wait: impl FnOnce() -> T) -> Option<T> {
        self.idle.store(true, SeqCst);
        // After that, so that a signal either is seen here or ends the process.
        let result = (!self.cancelled.load(SeqCst)).then(wait);
        self.idle.store(false, SeqCst);
        result
    }
}

/// Hints for the user about a machine that is ready.
pub(crate) fn hints(dir: &RunDir, detached: bool, more: &[String]) -> Vec<String> {
    let mut hints = vec![
        "  tofu exec 0 -- uname -a       run a command on node 0 (--all: on all nodes)".into(),
        "  tofu console 0                its console (Ctrl-] leaves)".into(),
        "  tofu cp FILE 0:/tmp/          copy a file there".into(),
        format!("  tofu down {:<19} end the machine", dir.name().as_str()),
    ];
    hints.extend_from_slice(more);
    if !detached {
        hints.push("Ctrl-C ends it, too.".into());
    }
    hints
}
