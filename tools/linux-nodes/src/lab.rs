//! A machine of Linux nodes that a command starts for itself, and ends with itself.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tofu_image::Progress;
use tofu_spec::MachineSpec;
use tofu_spec::plan::Plan;
use tofu_supervisor::event;
use tofu_supervisor::registry::Registry;
use tofu_supervisor::runner::{Backend, Running};
use tofu_supervisor::session::{Rights, Session};

use crate::host::LinuxHost;
use crate::lan::Ethernet;
use crate::runtimes::{Monitors, Runtimes};

/// A machine of Linux nodes under QEMU. Dropping it ends the nodes.
pub struct Lab {
    // Dropped in this order: guests end before the values that own their files.
    _running: Box<dyn Running>,
    session: Session,
    /// The monitor that runs the nodes.
    pub monitor: String,
    /// The time from the plan until all nodes were ready.
    pub ready: Duration,
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
        let start = Instant::now();
        let plan = Plan::new(spec)?;
        let runtime = Runtimes::prepare(&plan, &Monitors::qemu(), progress)?;
        let monitor = runtime.first.runs_on();
        let (sender, _events) = event::events();
        let rights = Rights::Programs(&runtime.writes());
        let mut session = Session::start(&plan, rights, sender.clone(), None)?;
        let mut host = LinuxHost::new(&plan, &session, runtime);
        host.lan = lan;
        let running = session.machines(Some(Box::new(host))).start(&plan, sender)?;
        let ready = start.elapsed();
        Ok(Self { _running: running, session, monitor, ready })
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
