//! The configuration of a node's virtual machine, for either monitor.

use std::path::PathBuf;
use std::sync::Arc;

use tofu_spec::units::{ArmCpu, MemorySize};
use tofu_supervisor::confine::Confinement;
use tofu_supervisor::netboot::Firmware;

use crate::boot_files::BootFiles;
use crate::lan::LanPort;

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
    /// True if the host's hardware runs the guest.
    pub(crate) kvm: bool,
    /// The rights that the threads which serve the guest in this process give up.
    pub(crate) confinement: Confinement,
}
