//! A machine with a name, which other processes can use while it runs.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use tofu_control::rundir::RunDir;
use tofu_spec::plan::{CapturePlan, Plan};

use crate::capture::ToFile;
use crate::confine::Confinement;
use crate::event::EventSender;
use crate::gateway::{self, GatewaySetup};
use crate::janitor::Janitor;
use crate::memory;
use crate::node::LinuxBackend;
use crate::registry::Registry;
use crate::runner::Machines;
use crate::server::{self, Metrics};
use crate::shards::Others;
use crate::timed::outside::InputFile;

/// Rights on the host that the process of a machine keeps, unless the plan is without a sandbox.
#[derive(Clone, Copy, Debug)]
pub enum Rights<'a> {
    /// To run small guests.
    Guests,
    /// To start programs, such as QEMU, and to write in these folders besides its own.
    Programs(&'a [&'a Path]),
}

/// A machine's name with what belongs to it: the run directory, the janitor for it, the control
/// socket, and what has been set up on the host. Dropping it gives all of that up.
pub struct Session {
    // In this order: the janitor removes the directory as long as its name is taken.
    /// Cleans up after the machine.
    pub janitor: Janitor,
    /// The run directory.
    pub dir: RunDir,
    /// The state of the machine, which the control socket serves.
    pub registry: Arc<Registry>,
    /// The rights that the machine's threads give up.
    pub confinement: Confinement,
    /// Hints for the user on how to reach the machine from the host, as lines; `None` if it has no
    /// gateway here.
    pub gateway_hints: Option<Vec<String>>,
    gateway: Option<GatewaySetup>,
    captures: Vec<ToFile>,
    input: Option<InputFile>,
    others: Option<Others>,
}

impl Session {
    /// Takes the plan's name, sets up on the host what needs rights, gives up the rights, and
    /// serves the control socket. `events` receives the machine's events. `others` are the other
    /// shards of a machine in shards.
    ///
    /// Threads that exist before keep their rights.
    ///
    /// # Errors
    ///
    /// If the name is taken, or the host lacks something.
    pub fn start(
        plan: &Plan,
        rights: Rights<'_>,
        events: EventSender,
        others: Option<Others>,
    ) -> anyhow::Result<Self> {
        let dir = RunDir::create(plan.name.as_ref())?;
        let janitor = Janitor::start(&dir, gateway::table(plan, &dir).as_deref())?;
        let gateway = GatewaySetup::new(plan, &dir)?;
        let metrics = plan.metrics.map(Metrics::bind).transpose()?;
        let captures = plan.captures.iter().map(ToFile::create).collect::<Result<_, _>>()?;
        let input = plan.input.as_ref().map(InputFile::open).transpose()?;
        let confinement = match rights {
            Rights::Guests => Confinement::of_guests(&[dir.base()], !plan.sandbox)?,
            Rights::Programs(folders) => {
                let own = [dir.base()].into_iter();
                let folders: Vec<&Path> = own.chain(folders.iter().copied()).collect();
                Confinement::of_programs(&folders, !plan.sandbox)?
            }
        };
        let registry =
            Registry::new(&plan.network, events).with_others(others.clone(), plan.any_gateway())?;
        let registry = Arc::new(registry.fail_with_guest(plan.fail_with_guest));
        server::serve(&dir.control(), &registry)?;
        metrics.map_or(Ok(()), |metrics| metrics.serve(&registry))?;
        let gateway_hints = gateway.as_ref().map(GatewaySetup::hints);
        Ok(Self {
            janitor,
            dir,
            registry,
            confinement,
            gateway_hints,
            gateway,
            captures,
            input,
            others,
        })
    }

    /// Returns what starts the machine, once; `linux` starts its Linux nodes.
    pub fn machines(&mut self, linux: Option<Box<dyn LinuxBackend>>) -> Machines {
        Machines {
            linux,
            registry: Some(Arc::clone(&self.registry)),
            gateway: self.gateway.take(),
            captures: std::mem::take(&mut self.captures),
            input: self.input.take(),
            others: self.others.take(),
            confinement: self.confinement.clone(),
            memory: memory::available,
            is_patient: false,
        }
    }
}

impl ToFile {
    fn create(plan: &CapturePlan) -> anyhow::Result<Self> {
        let path = plan.path.clone();
        let file = File::create(&path)
            .with_context(|| format!("--capture: cannot write {}", path.display()))?;
        Ok(Self { at: plan.at, path, file: Arc::new(file) })
    }
}
