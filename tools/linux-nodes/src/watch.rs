//! Looking at which code of the guests breaks rules of their devices.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use tofu_abi::Coords;
use tofu_image::Arch;
use tofu_pace::breaks::Breaks;
use tofu_supervisor::machine::AnyMachine;
use tofu_vfio_user::accessed_node;

use crate::runtimes::{MonitorChoice, Runtime};
use crate::timekeeper;

/// The memory in which QEMU's plugin notes such code, of each node.
pub(crate) struct Watch {
    /// The plugin.
    plugin: PathBuf,
    /// Where it notes it, by node.
    pub(crate) breaks: Vec<Arc<Breaks>>,
}

/// The same of one node.
#[derive(Clone)]
pub(crate) struct NodeWatch {
    pub(crate) plugin: PathBuf,
    pub(crate) breaks: Arc<Breaks>,
}

impl fmt::Debug for NodeWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeWatch").field("plugin", &self.plugin).finish_non_exhaustive()
    }
}

impl Watch {
    /// Makes memory for so many nodes.
    ///
    /// # Errors
    ///
    /// If these nodes cannot be watched: only QEMU can do that, if it emulates their processors,
    /// and knows the stacks of x86-64.
    pub(crate) fn new(runtime: &Runtime, nodes: usize) -> anyhow::Result<Self> {
        let MonitorChoice::Qemu(qemu) = &runtime.monitor else { bail!("only QEMU can find them") };
        if runtime.kvm || runtime.boot_files.arch != Arch::X86_64 {
            bail!("only an emulated x86-64 processor can find them");
        }
        timekeeper::check(qemu)?;
        let plugin = timekeeper::plugin()?;
        let breaks = (0..nodes).map(|_| Breaks::new().map(Arc::new));
        let breaks = breaks.collect::<Result<_, _>>().context("no shared memory")?;
        Ok(Self { plugin, breaks })
    }

    /// Watches a node, whose device exists.
    pub(crate) fn begin(
        &self,
        index: usize,
        machine: &AnyMachine,
        at: Coords,
    ) -> Option<NodeWatch> {
        let breaks = Arc::clone(self.breaks.get(index)?);
        let (noted, node) = (Arc::clone(&breaks), machine.tofu()?.node(at)?);
        node.icc().watch_rules(move |rule| {
            if accessed_node() == Some(at) {
                noted.note(rule as usize);
            }
        });
        Some(NodeWatch { plugin: self.plugin.clone(), breaks })
    }
}
