//! A machine of Linux nodes that a command starts for itself, and ends with itself.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use tofu_image::Progress;
use tofu_pace::breaks::Breaks;
use tofu_spec::MachineSpec;
use tofu_spec::plan::Plan;
use tofu_supervisor::event;
use tofu_supervisor::registry::Registry;
use tofu_supervisor::runner::{Backend, Running};
use tofu_supervisor::session::{Rights, Session};

use crate::host::LinuxHost;
use crate::lan::Ethernet;
use crate::runtimes::{Monitors, Runtimes};
use crate::watch::Watch;

/// A machine of Linux nodes under QEMU. Dropping it ends the nodes.
pub struct Lab {
    // Dropped in this order: guests end before the values that own their files.
    _running: Box<dyn Running>,
    session: Session,
    /// The monitor that runs the nodes.
    pub monitor: String,
    /// The time from the plan until all nodes were ready.
    pub ready: Duration,
    /// Where the code of each node that breaks rules is noted, or why that cannot be.
    pub breaks: Result<Vec<Arc<Breaks>>, String>,
}

impl Lab {
    /// Starts the machine as `tofu up` does, and waits until all nodes are ready.
    ///
    /// # Errors
    ///
    /// If the machine cannot be made or a node does not boot.
    pub fn start(
        spec: &MachineSpec,
        lan: Ethernet,
        progress: &dyn Progress,
    ) -> anyhow::Result<Self> {
        Self::begin(spec, lan, false, progress)
    }

    /// The same for nodes whose code that breaks rules is to be found, if it can be.
    ///
    /// # Errors
    ///
    /// As [`Lab::start`].
    pub fn watched(spec: &MachineSpec, progress: &dyn Progress) -> anyhow::Result<Self> {
        Self::begin(spec, Ethernet::None, true, progress)
    }

    fn begin(
        spec: &MachineSpec,
        lan: Ethernet,
        watched: bool,
        progress: &dyn Progress,
    ) -> anyhow::Result<Self> {
        let start = Instant::now();
        let plan = Plan::new(spec)?;
        let runtime = Runtimes::prepare(&plan, &Monitors::qemu(), progress)?;
        let monitor = runtime.first.runs_on();
        let watch = match watched {
            true => Watch::new(&runtime.first, plan.linux().count()),
            false => Err(anyhow!("the nodes are not watched")),
        };
        let breaks = watch.as_ref().map(|watch| watch.breaks.clone());
        let breaks = breaks.map_err(|error| format!("{error:#}"));
        let (sender, _events) = event::events();
        let rights = Rights::Programs(&runtime.writes());
        let mut session = Session::start(&plan, rights, sender.clone(), None)?;
        let mut host = LinuxHost::new(&plan, &session, runtime);
        host.lan = lan;
        host.watch = watch.ok();
        let running = session.machines(Some(Box::new(host))).start(&plan, sender)?;
        let ready = start.elapsed();
        Ok(Self { _running: running, session, monitor, ready, breaks })
    }

    /// The nodes.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.session.registry
    }

    /// The machine's control socket.
    pub fn control(&self) -> PathBuf {
        self.session.dir.control()
    }
}
