//! Our own monitor for a Linux node, in this process.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, RwLock};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use tofu_icc::{Access, DmaError, DmaMemory, DmaResult, Visit};
use tofu_pci::{Endpoint, EndpointDevice, PciFunction};
use tofu_sandbox::Role;
use tofu_sync::{read, write};
use tofu_virtio::iommu::Iommu;
use tofu_virtio::{
    Block, BlockConfig, Console, Device, DeviceMemory, Doorbells, Options, PortConfig, Rng, Virtio,
};
use tofu_vmm::{Hypervisor, KernelEntry, LinuxBoot, Slot, Viot, Vm, VmConfig, Windows};
use vm_memory::{GuestAddress, GuestMemory as _, Permissions};
use vmm_sys_util::eventfd::EventFd;

use crate::setup::VmSetup;

/// The name of the agent's port.
const AGENT_PORT: &str = "org.tofu.agent";
/// The time for which input waits for a guest that does not read it.
const TYPING: Duration = Duration::from_millis(20);

/// A node under our own monitor, with everything that outlives its virtual machines.
pub(crate) struct Own {
    pub(crate) hypervisor: Arc<Hypervisor>,
    /// The node's device, twice: as an endpoint, and as a function on a bus.
    pub(crate) device: Arc<dyn EndpointDevice>,
    pub(crate) function: Arc<dyn PciFunction>,
    pub(crate) memory: Arc<LatestMemory>,
}

/// A running virtual machine, with our ends of its console and of its agent's port.
pub(crate) struct Started {
    pub(crate) vm: Arc<Vm>,
    pub(crate) console: UnixStream,
    pub(crate) agent: UnixStream,
}

/// The memory of a node's current virtual machine, at the addresses that its guest has mapped for
/// the device.
#[derive(Default)]
pub(crate) struct LatestMemory(RwLock<Option<Arc<DeviceMemory>>>);

impl LatestMemory {
    fn set(&self, memory: Option<Arc<DeviceMemory>>) {
        *write(&self.0) = memory;
    }

    fn get(&self) -> Option<Arc<DeviceMemory>> {
        read(&self.0).clone()
    }
}

impl DmaMemory for LatestMemory {
    fn contains(&self, addr: u64, len: usize, access: Access) -> bool {
        let address = GuestAddress(addr);
        self.get().is_some_and(|memory| memory.check_range(address, len, permissions(access)))
    }

    fn access(&self, addr: u64, len: usize, access: Access, f: &mut Visit<'_>) -> DmaResult {
        let memory = self.get();
        let done = memory.is_some_and(|memory| memory.access(addr, len, permissions(access), f));
        if done { Ok(()) } else { Err(DmaError { addr, len }) }
    }
}

fn permissions(access: Access) -> Permissions {
    match access {
        Access::Read => Permissions::Read,
        Access::Write => Permissions::Write,
        Access::Update => Permissions::ReadWrite,
    }
}

/// Notifications of virtio devices through ioeventfd.
struct Notifications(Windows);

impl Doorbells for Notifications {
    fn attach(&self, bar: u8, offset: u64, event: EventFd) -> Result<(), String> {
        self.0.attach_doorbell(bar, offset, event).map(|_| ()).map_err(|error| error.to_string())
    }
}

/// Puts a virtio device on the bus.
fn add(
    vm: &Vm,
    name: &str,
    device: impl Device + 'static,
    first: Arc<dyn Fn() + Send + Sync>,
) -> anyhow::Result<Slot> {
    let options =
        Options { name: name.to_owned(), thread_start: Some(first), ..Options::default() };
    let function = Arc::new(Virtio::new(device, options, vm.memory().clone())?);
    connect(vm, function.endpoint());
    let slot = vm.add_function(Arc::clone(&function) as Arc<dyn PciFunction>)?;
    if let Some(windows) = vm.windows(slot)
        && let Err(error) = function.attach_doorbell(&Notifications(windows))
    {
        // The device works without ioeventfd, by exits.
        log::debug!("{name}: {error}");
    }
    Ok(slot)
}

fn connect(vm: &Vm, endpoint: &Endpoint) {
    if let Some(table) = endpoint.msix() {
        table.connect(vm.msi_sink());
    }
}

/// Starts a virtual machine.
pub(crate) fn start(own: &Own, setup: &VmSetup) -> anyhow::Result<Started> {
    let boot_files = &setup.boot_files;
    let read = |path: &std::path::Path| {
        tofu_input::read(path, tofu_input::BOOT)
            .with_context(|| format!("cannot read {}", path.display()))
    };
    let (kernel, initrd, command_line) = match &setup.firmware {
        None => (read(&boot_files.kernel)?, Some(read(&boot_files.initrd)?), &setup.command_line),
        Some(firmware) => (read(&firmware.file)?, None, &firmware.command_line),
    };
    let config = VmConfig {
        name: setup.name.clone(),
        memory: setup.memory.0,
        vcpus: u8::try_from(setup.cpus).unwrap_or(u8::MAX),
        shared_memory: false,
    };
    // The console needs bytes, so lines are ignored.
    let vm = Vm::new(&own.hypervisor, &config, |_| {})?;
    own.function.reset();
    connect(&vm, own.device.endpoint());
    let device = vm.add_function(Arc::clone(&own.function))?;
    // Programs use the device through VFIO, which needs an IOMMU. The other devices are not behind
    // it, and so work whether or not the kernel has a driver for it.
    let iommu = Iommu::new();
    let endpoint = iommu.endpoint(device.requester_id().into());
    own.memory.set(Some(Arc::new(DeviceMemory::new(vm.memory().clone(), Some(endpoint)))));

    let (agent, stream) = UnixStream::pair().context("no sockets left")?;
    let port =
        PortConfig { name: Some(AGENT_PORT.to_owned()), console: false, stream: Some(stream) };
    let (ports, _) = Console::new(vec![port])?;
    let first = || setup.confinement.hook(Role::Virtio);
    add(&vm, "agent", ports, first())?;
    let iommu = add(&vm, "iommu", iommu, first())?;
    add(&vm, "rng", Rng::new(), first())?;
    if let Some(root) = &boot_files.root {
        let id = "tofu-root".to_owned();
        let disk = Block::open(&BlockConfig { path: root.clone(), read_only: true, id })?;
        add(&vm, "root", disk, first())?;
    }

    let console = serial_console(&vm, setup)?;
    vm.boot_linux(&LinuxBoot {
        kernel: &kernel,
        initrd: initrd.as_deref(),
        command_line,
        acpi: true,
        entry: KernelEntry::Auto,
        viot: Some(Viot { iommu, behind: &[device] }),
    })?;
    let first = setup.confinement.hook(Role::Vcpu);
    vm.on_thread_start(move |_| first());
    vm.start(|_| {})?;
    Ok(Started { vm: Arc::new(vm), console, agent })
}

/// Connects the serial port to a stream: output to it, and a thread that types what comes from it.
fn serial_console(vm: &Vm, setup: &VmSetup) -> anyhow::Result<UnixStream> {
    let (console, there) = UnixStream::pair().context("no sockets left")?;
    let mut typed = there.try_clone()?;
    // This runs on the vCPU's thread, which may call write but not send. Our reader never blocks.
    let there = File::from(OwnedFd::from(there));
    vm.set_console(move |bytes| {
        let _ = (&there).write_all(bytes);
    });
    let mut input = vm.console_input();
    let first = setup.confinement.hook(Role::Reader);
    thread::Builder::new()
        .name("typing".into())
        .spawn(move || {
            first();
            let mut buffer = [0; 256];
            // The thread ends with the machine, when our end of the pair is closed.
            while let Ok(n @ 1..) = typed.read(&mut buffer) {
                let mut left = &buffer[..n];
                while !left.is_empty() {
                    match input.write(left) {
                        Ok(n) => left = &left[n..],
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            thread::sleep(TYPING);
                        }
                        Err(_) => return,
                    }
                }
            }
        })
        .context("no threads left")?;
    Ok(console)
}

/// Reclaims everything that a virtual machine held of its node.
pub(crate) fn end(own: &Own) {
    if let Some(table) = own.device.endpoint().msix() {
        table.disconnect();
    }
    own.function.reset();
    own.memory.set(None);
}
