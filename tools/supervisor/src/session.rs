//! The parts of a machine that other processes can use.

use std::sync::Arc;

use tofu_control::rundir::RunDir;

use crate::event::EventSender;
use crate::gateway::{self, GatewaySetup};
use crate::janitor::Janitor;
use crate::options::MachineArgs;
use crate::parts::Others;
use crate::plan::Plan;
use crate::registry::Registry;
use crate::server::{self, Metrics};

/// A machine's name: its run directory, with the janitor for it.
pub struct Session {
    // In this order: the janitor removes the directory as long as its name is taken.
    /// Cleans up after the machine.
    pub janitor: Janitor,
    /// The run directory.
    pub dir: RunDir,
    /// Connects the machine to the host.
    pub gateway: Option<GatewaySetup>,
    /// Where metrics are served. Bound before the process gives up the right to bind ports.
    metrics: Option<Metrics>,
}

impl Session {
    /// Takes the name from the options, and sets up what the gateway needs on the host.
    ///
    /// # Errors
    ///
    /// If the name is taken, or the host lacks something.
    pub fn new(plan: &Plan, args: &MachineArgs) -> anyhow::Result<Self> {
        let dir = RunDir::create(args.linux.name.as_ref())?;
        let janitor = Janitor::start_with(&dir, &[], gateway::table(plan, &dir).as_deref())?;
        let gateway = GatewaySetup::new(plan, &args.ip, &dir)?;
        let metrics = plan.metrics.map(Metrics::bind).transpose()?;
        Ok(Self { janitor, dir, gateway, metrics })
    }

    /// Serves the machine's control socket. `events` receives the machine's events.
    ///
    /// # Errors
    ///
    /// If the host has no threads or descriptors left.
    pub fn serve(&mut self, plan: &Plan, events: EventSender) -> anyhow::Result<Arc<Registry>> {
        self.serve_part(plan, events, None)
    }

    /// Serves one part of a machine like [`Session::serve`], with the given other parts.
    ///
    /// # Errors
    ///
    /// As [`Session::serve`].
    pub fn serve_part(
        &mut self,
        plan: &Plan,
        events: EventSender,
        others: Option<Others>,
    ) -> anyhow::Result<Arc<Registry>> {
        let registry =
            Registry::new(&plan.network, events).with_others(others, plan.any_gateway())?;
        let registry = Arc::new(registry.fail_with_guest(plan.fail_with_guest));
        server::serve(&self.dir.control(), &registry)?;
        self.metrics.take().map_or(Ok(()), |metrics| metrics.serve(&registry))?;
        Ok(registry)
    }
}
