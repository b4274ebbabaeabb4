//! What a node's virtual machine is to be like, whatever runs it.

use std::path::PathBuf;
use std::sync::Arc;

use tofu_supervisor::confine::Confinement;
use tofu_supervisor::netboot::Firmware;
use tofu_supervisor::units::MemorySize;

use crate::kit::Kit;
use crate::lan::LanPort;

/// What a node's virtual machine is to be like.
#[derive(Clone, Debug)]
pub struct VmSetup {
    /// Kernel, initrd, root.
    pub kit: Arc<Kit>,
    /// Name of the process.
    pub name: String,
    /// Guest memory.
    pub memory: MemorySize,
    /// Virtual processors.
    pub cpus: u32,
    /// For the kernel.
    pub command_line: String,
    /// What it starts with instead of the kernel, which that fetches.
    pub firmware: Option<Firmware>,
    /// Where the node's device is served.
    pub device: PathBuf,
    /// Where QEMU's own control socket goes.
    pub qmp: PathBuf,
    /// Its place in the Ethernet of the nodes.
    pub lan: Option<LanPort>,
    /// Whether the host's hardware runs the guest.
    pub kvm: bool,
    /// What threads give up that serve the guest in this process.
    pub confinement: Confinement,
}
