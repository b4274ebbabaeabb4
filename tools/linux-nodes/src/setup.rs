//! The configuration of a node's virtual machine, for either monitor.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tofu_abi::Coords;
use tofu_spec::units::{ArmCpu, InstructionTime, MemorySize};
use tofu_supervisor::confine::Confinement;
use tofu_supervisor::netboot::Firmware;
use tofu_supervisor::timed::TimedMachine;

use crate::boot_files::BootFiles;
use crate::lan::LanPort;
use crate::watch::NodeWatch;

/// The modelled time of a guest.
#[derive(Clone)]
pub(crate) struct GuestTime {
    pub(crate) machine: Arc<TimedMachine>,
    pub(crate) at: Coords,
    /// QEMU's plugin.
    pub(crate) plugin: PathBuf,
    /// True if its input comes from a record.
    pub(crate) replays: bool,
    /// The modelled time of an instruction.
    pub(crate) instruction: InstructionTime,
}

impl fmt::Debug for GuestTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestTime").field("plugin", &self.plugin).finish_non_exhaustive()
    }
}

/// The configuration of a node's virtual machine.
#[derive(Clone, Debug)]
pub(crate) struct VmSetup {
    /// Kernel, initrd and root.
    pub(crate) boot_files: Arc<BootFiles>,
    /// Name of the monitor's process.
    pub(crate) name: String,
    /// Guest memory.
    pub(crate) memory: MemorySize,
    /// The processor model, if it is an arm64 node.
    pub(crate) arm_cpu: ArmCpu,
    /// Virtual processors.
    pub(crate) cpus: u32,
    /// Command line of the kernel.
    pub(crate) command_line: String,
    /// Command line of the kernel of its template, which has no name; `None` if it is no clone.
    pub(crate) template: Option<String>,
    /// The firmware to start with instead of the kernel, which the firmware fetches.
    pub(crate) firmware: Option<Firmware>,
    /// The socket that serves the node's device.
    pub(crate) device: PathBuf,
    /// The path of QEMU's own control socket.
    pub(crate) qmp: PathBuf,
    /// Its place in the Ethernet of the nodes.
    pub(crate) lan: Option<LanPort>,
    /// The modelled time that it keeps, if it does.
    pub(crate) time: Option<GuestTime>,
    /// Where its code that breaks rules is noted, if that is wanted.
    pub(crate) watch: Option<NodeWatch>,
    /// True if the host's hardware runs the guest.
    pub(crate) kvm: bool,
    /// The rights that the threads which serve the guest in this process give up.
    pub(crate) confinement: Confinement,
}
