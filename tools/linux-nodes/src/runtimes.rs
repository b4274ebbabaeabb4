//! Resources of a machine's Linux nodes, for each kind of processor in it: the files that they
//! boot, and the monitor that runs them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::bail;
use tofu_image::{Arch, Cache, Progress, Qemu};
use tofu_spec::plan::{LinuxPlan, OnLinux, Plan};
use tofu_spec::units::{BootFrom, Net, Vmm};
use tofu_vmm::{Hypervisor, LinuxSupport};

use crate::boot_files::{self, BootFiles, kvm_runs_linux};
use crate::timekeeper;

/// The monitor of a machine's Linux nodes.
#[derive(Clone)]
pub enum MonitorChoice {
    /// Our own.
    Own(Arc<Hypervisor>),
    /// QEMU.
    Qemu(Arc<Qemu>),
}

/// Resources of nodes of one architecture.
pub struct Runtime {
    /// Their boot files.
    pub boot_files: Arc<BootFiles>,
    /// The monitor that runs them.
    pub monitor: MonitorChoice,
    /// True if the host's hardware runs the guests.
    pub kvm: bool,
}

impl Runtime {
    /// Describes in a few words what runs the nodes.
    pub fn runs_on(&self) -> String {
        match &self.monitor {
            MonitorChoice::Own(_) => "our own monitor".into(),
            MonitorChoice::Qemu(qemu) => {
                let processors = if self.kvm { "KVM" } else { "emulated processors" };
                format!("QEMU {}, {processors}", qemu.version)
            }
        }
    }
}

/// A [`Runtime`] for each architecture in a machine.
pub struct Runtimes {
    /// The runtime of the first architecture.
    pub first: Runtime,
    /// The runtime of the other architecture, in a machine with both.
    pub second: Option<Runtime>,
    /// The folder in which templates of nodes are made; `None` if there can be none.
    templates: Option<PathBuf>,
}

impl Runtimes {
    /// Prepares the files that the plan's nodes boot, with the monitors of [`Monitors::choose`].
    /// Missing files are fetched or made.
    ///
    /// # Errors
    ///
    /// If the options do not fit to the plan, or something cannot be fetched or made.
    pub fn prepare(
        plan: &Plan,
        monitors: &Monitors,
        progress: &dyn Progress,
    ) -> anyhow::Result<Self> {
        let archs = plan.archs();
        archs.iter().try_for_each(|arch| BootFiles::check(plan, *arch))?;
        let runtime = |arch| -> anyhow::Result<Runtime> {
            // The hardware runs this host's processors only. Others are emulated.
            // Only emulated instructions can be counted.
            let kvm =
                arch == Arch::X86_64 && plan.modelled.is_none() && kvm_runs_linux(monitors.support);
            let monitor = match (arch, &monitors.own) {
                (Arch::X86_64, Some(own)) => MonitorChoice::Own(Arc::clone(own)),
                (arch, _) => MonitorChoice::Qemu(boot_files::qemu(arch, progress)?),
            };
            if let (Some(_), MonitorChoice::Qemu(qemu)) = (plan.modelled, &monitor) {
                timekeeper::check(qemu)?;
            }
            let qemu = matches!(monitor, MonitorChoice::Qemu(_));
            let boot_files = BootFiles::prepare(plan, arch, kvm, qemu, progress)?;
            Ok(Runtime { boot_files: Arc::new(boot_files), monitor, kvm })
        };
        let first = runtime(archs.first().copied().unwrap_or_default())?;
        let second = archs.get(1).copied().map(runtime).transpose()?;
        let templates = Cache::from_env()?.templates();
        let templates = templates.map_err(|error| log::info!("no clones: {error}")).ok();
        Ok(Self { first, second, templates })
    }

    /// Returns the folders that starting the nodes writes to, besides the machine's own.
    pub fn writes(&self) -> Vec<&Path> {
        self.templates.as_deref().into_iter().collect()
    }

    pub(crate) fn of(&self, arch: Arch) -> &Runtime {
        self.second.as_ref().filter(|second| second.boot_files.arch == arch).unwrap_or(&self.first)
    }

    /// Returns true if any node of a plan can be a clone.
    pub fn any_clone(&self, plan: &Plan) -> bool {
        plan.on_linux.net == Net::None && plan.linux().any(|(_, linux)| self.can_clone(plan, linux))
    }

    /// Returns true if a node without an Ethernet can be a clone. One with an Ethernet gets its
    /// address there from its init. A record holds what the guest gets from its first instruction
    /// on, and time may be wanted to stop while it boots.
    pub(crate) fn can_clone(&self, plan: &Plan, linux: &LinuxPlan) -> bool {
        let Runtime { boot_files, kvm, .. } = self.of(linux.arch);
        let from_the_start =
            plan.input.is_some() || plan.modelled.is_some_and(|time| time.until.is_some());
        boot_files.can_clone
            && linux.arch == Arch::X86_64
            && linux.boot == BootFrom::Monitor
            && !(*kvm || plan.on_linux.cold || from_the_start)
    }

    /// Returns a hint for the user about other images.
    pub fn hint(&self) -> Option<&str> {
        [Some(&self.first), self.second.as_ref()]
            .into_iter()
            .flatten()
            .find_map(|runtime| runtime.boot_files.hint.as_deref())
    }
}

/// The monitors that run a machine's Linux nodes.
pub struct Monitors {
    /// Our own monitor; QEMU if there is none.
    own: Option<Arc<Hypervisor>>,
    /// Which Linux guests the host's hardware can run.
    support: LinuxSupport,
}

impl Monitors {
    /// Takes our own monitor for x86-64 nodes, if it is requested or the best choice: it needs
    /// hardware virtualisation, and has no Ethernet.
    ///
    /// # Errors
    ///
    /// If it is requested and cannot run the nodes.
    pub fn choose(plan: &Plan) -> anyhow::Result<Self> {
        let support = tofu_vmm::probe().linux();
        let is_own = || -> anyhow::Result<bool> {
            Ok(plan.modelled.is_none()
                && plan.archs().contains(&Arch::X86_64)
                && is_own(&plan.on_linux, support)?)
        };
        let own = match is_own()? {
            true => Some(Arc::new(Hypervisor::open()?)),
            false => None,
        };
        Ok(Self { own, support })
    }

    /// Takes QEMU, with the host's hardware if that runs Linux guests.
    pub fn qemu() -> Self {
        Self { own: None, support: tofu_vmm::probe().linux() }
    }
}

/// True if our own monitor is to run x86-64 nodes.
fn is_own(nodes: &OnLinux, support: LinuxSupport) -> anyhow::Result<bool> {
    let with_net = nodes.net != Net::None;
    match nodes.vmm {
        Vmm::Qemu => return Ok(false),
        Vmm::Auto => return Ok(support == LinuxSupport::Full && !with_net),
        Vmm::Tofu if with_net => {
            bail!("--net: our own monitor has no Ethernet device; take --vmm qemu")
        }
        Vmm::Tofu => {}
    }
    match support {
        LinuxSupport::None => bail!("--vmm tofu: {}", support.explanation()),
        LinuxSupport::KernelOnly => log::warn!("--vmm tofu: {}", support.explanation()),
        LinuxSupport::Full => {}
    }
    Ok(true)
}
