//! The configuration of a node's virtual machine, for either monitor.

use std::path::PathBuf;
use std::sync::Arc;

use tofu_supervisor::confine::Confinement;
use tofu_supervisor::netboot::Firmware;
use tofu_supervisor::units::{ArmCpu, MemorySize};

use crate::kit::Kit;
use crate::lan::LanPort;

/// The configuration of a node's virtual machine.
#[derive(Clone, Debug)]
pub struct VmSetup {
    /// Kernel, initrd, root.
    pub(crate) kit: Arc<Kit>,
    /// Name of the process.
    pub(crate) name: String,
    /// Guest memory.
    pub(crate) memory: MemorySize,
    /// Its processor if it is for arm64.
    pub(crate) arm_cpu: ArmCpu,
    /// Virtual processors.
    pub(crate) cpus: u32,
    /// For the kernel.
    pub(crate) command_line: String,
    /// The firmware that it starts with instead of the kernel, which the firmware fetches.
    pub(crate) firmware: Option<Firmware>,
    /// The socket at which the node's device is served.
    pub(crate) device: PathBuf,
    /// The path of QEMU's own control socket.
    pub(crate) qmp: PathBuf,
    /// Its place in the Ethernet of the nodes.
    pub(crate) lan: Option<LanPort>,
    /// Whether the host's hardware runs the guest.
    pub(crate) kvm: bool,
    /// The rights that threads give up which serve the guest in this process.
    pub(crate) confinement: Confinement,
}
