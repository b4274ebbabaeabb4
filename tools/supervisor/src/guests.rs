//! Small guests: virtual machines of our own VMM, each with a node's device.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use tofu_abi::Coords;
use tofu_abi::pci::REGISTER_BAR;
use tofu_abi::tnw::WINDOW_BAR;
use tofu_control::node_name;
use tofu_control::protocol::NodeKind;
use tofu_fabric::NodeId;
use tofu_icc::SharedPages;
use tofu_machine::{
    DoorbellBackend, Doorbells, NodeParts, SharedWindows, TorusParts, WindowBackend,
};
use tofu_pci::{EndpointDevice, PciFunction};
use tofu_programs::FIRMWARE;
use tofu_sandbox::Role;
use tofu_sync::lock;
use tofu_vmm::{Attachment, Holder, Hypervisor, Registers, Vm, VmConfig, Windows};
use vm_memory::{GuestMemoryBackend, MmapRegion};
use vmm_sys_util::eventfd::EventFd;

use crate::backtrace::{self, Frame};
use crate::command_line;
use crate::confine::Confinement;
use crate::event::{Event, EventSender, Outcome};
use crate::machine::AnyMachine;
use crate::registry::{Registry, SmallGuests};
use tofu_spec::plan::{Plan, VmPlan};
use tofu_spec::units::BootFrom;

/// The bytes of a guest's memory that are worth ending it for, if memory runs out.
const WORTH_ENDING: u64 = 2 << 20;
/// The time in which a guest ends.
const LEAVING: Duration = Duration::from_millis(200);

/// Threads for each processor that make virtual machines: KVM lets one wait more than half of the
/// time. More would wait for each other.
const BOOTS_PER_CORE: usize = 2;
/// The most of these threads. While KVM makes a virtual machine, it locks all memory of the process
/// for a part of the time.
const MOST_BOOTS: usize = 16;

/// Starts the small guests of a machine, also again after they have ended, and keeps them.
pub(crate) struct Guests {
    pub(crate) hypervisor: Hypervisor,
    pub(crate) machine: AnyMachine,
    pub(crate) plan: Plan,
    /// The rights that their threads give up.
    pub(crate) confinement: Confinement,
    pub(crate) registry: Option<Arc<Registry>>,
    pub(crate) events: EventSender,
    pub(crate) all: Mutex<All>,
}

/// The guests started so far.
#[derive(Default)]
pub(crate) struct All {
    guests: HashMap<NodeId, SmallGuest>,
    /// True if no more may be started.
    stopped: bool,
}

/// A guest that runs or has ended.
struct SmallGuest {
    vm: Vm,
    image: Image,
    device: Arc<Device>,
    /// True if it was ended together with its node.
    taken_down: bool,
}

/// The ELF of a guest.
type Image = Arc<Cow<'static, [u8]>>;

/// A node's device, which outlives each of the virtual machines that use it in turn.
struct Device {
    /// The same device as two traits: for the bus, and as an endpoint.
    function: Arc<dyn PciFunction>,
    endpoint: Arc<dyn EndpointDevice>,
    doorbells: Arc<WindowDoorbells>,
}

impl Guests {
    fn all(&self) -> MutexGuard<'_, All> {
        lock(&self.all)
    }

    /// Boots all small guests of the plan, in the order of their nodes as far as the threads that
    /// do it allow. KVM waits several milliseconds for each virtual machine, and one thread would
    /// wait for one after the other.
    ///
    /// # Errors
    ///
    /// If the host lacks something, or something is wrong with a guest. Some may run then.
    pub(crate) fn boot_all(&self) -> anyhow::Result<()> {
        let nodes: Vec<_> = self.plan.bare().map(|(id, _)| id).collect();
        let cores = thread::available_parallelism().map_or(1, |n| n.get());
        let threads = (cores * BOOTS_PER_CORE).min(MOST_BOOTS).min(nodes.len());
        let left = &Mutex::new(nodes.into_iter());
        let boot = || {
            // No guard lives while a guest boots.
            while let Some(id) = { lock(left).next() } {
                if let Err(error) = self.boot(id) {
                    lock(left).by_ref().for_each(drop);
                    return Err(error.context(format!("node {}", self.plan.coords(id))));
                }
            }
            Ok(())
        };
        thread::scope(|scope| {
            // A host without threads to spare boots more slowly.
            let spawn = |_| thread::Builder::new().name("boot".into()).spawn_scoped(scope, boot);
            let others: Vec<_> = (1..threads).map_while(|n| spawn(n).ok()).collect();
            let first = boot();
            let joined = others.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            joined.fold(first, anyhow::Result::and)
        })
    }

    /// Makes the virtual machine of a node, with its device, and starts its guest.
    fn boot(&self, id: NodeId) -> anyhow::Result<()> {
        let made = self.make(None, id)?;
        self.start(&mut self.all(), id, made, Event::Booted(id))
    }

    /// Makes a virtual machine for a node, in place of `former` if there was one, with its device
    /// and with its guest loaded.
    fn make(&self, former: Option<&SmallGuest>, id: NodeId) -> anyhow::Result<SmallGuest> {
        let plan = &self.plan;
        let (_, vm_plan) = plan.bare().find(|(bare, _)| *bare == id).context("no small guest")?;
        let (vm, device, windows) = self.put_in_place(former, (id, plan.coords(id)), vm_plan)?;
        if let Some(table) = device.endpoint.endpoint().msix() {
            table.connect(vm.msi_sink());
        }
        vm.add_function_with(Arc::clone(&device.function), windows)?;
        match plan.boot_server.filter(|_| vm_plan.boot == BootFrom::Tofu) {
            None => vm.boot(&vm_plan.guest.image, &command_line::guest(plan, vm_plan))?,
            Some(server) => vm.boot(FIRMWARE, &command_line::firmware(plan, &server))?,
        }
        let first = self.confinement.hook(Role::Vcpu);
        vm.on_thread_start(move |_| first());
        let image = Arc::clone(&vm_plan.guest.image);
        Ok(SmallGuest { vm, image, device, taken_down: false })
    }

    /// Starts a node's guest, and reports it with the event `news`.
    fn start(
        &self,
        all: &mut All,
        id: NodeId,
        guest: SmallGuest,
        news: Event,
    ) -> anyhow::Result<()> {
        anyhow::ensure!(!all.stopped, "the machine is going down");
        let noted = self.registry.clone();
        let note = move |state| {
            if let Some(registry) = &noted {
                registry.note(id, NodeKind::Bare, state);
            }
        };
        let SmallGuest { vm, image, device, .. } = &guest;
        let (ends, holder) = (self.events.clone(), vm.holder());
        let (image, memory) = (Arc::clone(image), vm.memory().clone());
        if let Some(registry) = &self.registry {
            registry.with_guest(id, holder.clone());
        }
        let function = Arc::clone(&device.function);
        note("running");
        // Sent first, because the guest may end immediately.
        self.events.send(news);
        vm.start(move |outcome| {
            if is_fault(outcome)
                && let Some(registers) = holder.registers()
            {
                for frame in backtrace::frames(&image, &memory, &registers) {
                    ends.send(Event::Frame(id, frame));
                }
            }
            // A guest that exited is like a processor that halted: its device continues to serve
            // others until the machine ends. A guest that crashed is like a node that lost power.
            if !matches!(outcome, tofu_vmm::Outcome::Exited(_)) {
                function.reset();
            }
            note("ended");
            ends.send(Event::Ended(id, outcome_of(outcome)));
        })?;
        all.guests.insert(id, guest);
        Ok(())
    }

    /// Makes a virtual machine for a node, in place of `former` if there was one. Returns it with
    /// its device and the windows for the device's doorbells.
    fn put_in_place(
        &self,
        former: Option<&SmallGuest>,
        (id, at): (NodeId, Coords),
        vm_plan: &VmPlan,
    ) -> anyhow::Result<(Vm, Arc<Device>, Windows)> {
        let lines = self.events.clone();
        let serial = move |line: &str| {
            lines.send(Event::Line(id, line.to_owned()));
        };
        let config =
            VmConfig { name: node_name(at), memory: vm_plan.memory.0, ..VmConfig::default() };
        let Some(SmallGuest { vm: former, device, .. }) = former else {
            let vm = Vm::new(&self.hypervisor, &config, serial)?;
            let windows = vm.new_windows();
            let device = Arc::new(device(&self.machine, at, &vm, &windows)?);
            return Ok((vm, device, windows));
        };
        let vm = former.renew(&self.hypervisor, &config, serial)?;
        // Also after a guest that exited, whose device was not reset when it ended.
        device.function.reset();
        let windows = vm.new_windows();
        device.doorbells.renew(windows.clone());
        Ok((vm, Arc::clone(device), windows))
    }

    /// Returns the registers of a node's guest, or `None` if it has none or does not answer.
    pub(crate) fn registers(&self, node: NodeId) -> Option<Registers> {
        self.all().guests.get(&node)?.vm.registers()
    }

    /// Returns the call stack of a node's guest, innermost function first.
    pub(crate) fn frames(&self, node: NodeId) -> Vec<Frame> {
        let all = self.all();
        let frames = all.guests.get(&node).and_then(|SmallGuest { vm, image, .. }| {
            Some(backtrace::frames(image, vm.memory(), &vm.registers()?))
        });
        frames.unwrap_or_default()
    }

    /// Returns the addresses where the mappings of guest memory start.
    pub(crate) fn regions(&self) -> BTreeSet<u64> {
        let all = self.all();
        let regions = all.guests.values().flat_map(|guest| guest.vm.memory().iter());
        regions.map(|region| region.as_ptr() as u64).collect()
    }

    /// Ends guests until there are `reserve` bytes of memory: `now` bytes are left now, and `left`
    /// returns them later. Returns whether there was a guest to end: none is if all have less than
    /// the reserve together, because others use the memory then.
    pub(crate) fn relieve(
        &self,
        mut now: u64,
        reserve: u64,
        left: &dyn Fn() -> Option<u64>,
    ) -> bool {
        let all = self.all();
        let sizes = all.guests.values().map(|guest| guest.vm.resident().unwrap_or(0));
        if sizes.sum::<u64>() < reserve {
            return false;
        }
        // Those that stand still touch no memory.
        let holders = all.guests.values().map(|guest| guest.vm.holder());
        let held: Vec<_> = holders.filter(Holder::hold).collect();
        let found = loop {
            if !self.end_largest(&all, now) {
                break false;
            }
            match left() {
                Some(left) if left < reserve => now = left,
                _ => break true,
            }
        };
        held.iter().for_each(Holder::resume);
        found
    }

    /// Ends the guest with most of the host's memory, and gives that back: `left` bytes are left.
    /// Returns whether there was one to end.
    fn end_largest(&self, all: &All, left: u64) -> bool {
        let running =
            all.guests.iter().filter(|(_, guest)| guest.vm.wait(Duration::ZERO).is_none());
        let sizes = running.map(|(id, guest)| (guest.vm.resident().unwrap_or(0), id, guest));
        let Some((size, id, guest)) = sizes.max_by_key(|(size, ..)| *size) else { return false };
        if size < WORTH_ENDING {
            return false;
        }
        let (left, size) = (left >> 20, size >> 20);
        log::info!("{}: ended for its memory, {size} MiB", self.plan.coords(*id));
        guest.vm.holder().end(format!(
            "memory runs out: {left} MiB are left, and this node has most, {size} MiB"
        ));
        // It takes longer only if its output is not read.
        if guest.vm.wait(LEAVING).is_some()
            && let Err(error) = guest.vm.give_back()
        {
            log::warn!("memory of an ended guest: {error}");
        }
        true
    }

    /// Ends all guests that still run. No guest can be started afterwards.
    pub(crate) fn stop(&self) {
        let mut all = self.all();
        all.stopped = true;
        // All are signalled before any is waited for. Otherwise those that still run would notice
        // that the others are gone, and fail.
        for guest in all.guests.values() {
            guest.vm.holder().stop();
        }
        for guest in all.guests.values() {
            guest.vm.stop();
        }
    }
}

impl SmallGuests for Guests {
    fn power(&self, node: NodeId, on: bool) -> anyhow::Result<()> {
        let mut all = self.all();
        let Some(guest) = all.guests.get_mut(&node) else { return Ok(()) };
        if !on {
            guest.taken_down = true;
            guest.vm.holder().stop();
            return Ok(());
        }
        let outcome = match std::mem::take(&mut guest.taken_down) {
            // It may still be ending.
            true => Some(guest.vm.stop()),
            false => guest.vm.wait(Duration::ZERO),
        };
        let has_exited =
            |outcome| matches!(outcome, tofu_vmm::Outcome::Exited(_)) && !is_fault(&outcome);
        if outcome.is_none_or(has_exited) {
            return Ok(());
        }
        anyhow::ensure!(!all.stopped, "the machine is going down");
        let made = self.make(all.guests.get(&node), node)?;
        self.start(&mut all, node, made, Event::Rebooted(node))
    }
}

/// Makes a node's device around the memory of its first virtual machine.
fn device(machine: &AnyMachine, at: Coords, vm: &Vm, windows: &Windows) -> anyhow::Result<Device> {
    let memory = Arc::new(vm.memory().clone());
    let doorbells = Arc::new(WindowDoorbells::new(windows.clone()));
    let machine = match machine {
        AnyMachine::Tofu(machine) => machine,
        AnyMachine::Tnw(torus) => {
            let region = MmapRegion::new(SharedWindows::SIZE).context("no memory for windows")?;
            let parts = TorusParts {
                memory,
                windows: SharedWindows::new(Arc::new(region)),
                backend: Some(Arc::new(WindowPages(Arc::clone(&doorbells)))),
            };
            let node = torus.add_node_of(at, parts)?;
            return Ok(Device { function: Arc::clone(&node) as _, endpoint: node, doorbells });
        }
        AnyMachine::Timed(_) => anyhow::bail!("small guests keep no modelled time"),
    };
    let pages = match machine.config().doorbells {
        Doorbells::Trapped => None,
        Doorbells::Polled => SharedPages::new(tofu_vmm::shared_region(SharedPages::SIZE)?),
    };
    let backend: Arc<dyn DoorbellBackend> = Arc::clone(&doorbells) as _;
    let parts = NodeParts { pages, backend: Some(backend), ..NodeParts::new(memory) };
    let node = machine.add_node_of(at, parts)?;
    Ok(Device { function: Arc::clone(&node) as _, endpoint: node, doorbells })
}

/// Returns whether a guest could not continue, or has said so: the run-time of small guests exits
/// with these codes after a panic or an exception.
fn is_fault(outcome: &tofu_vmm::Outcome) -> bool {
    const PANIC: u32 = 101;
    const EXCEPTION: u32 = 102;
    match outcome {
        tofu_vmm::Outcome::Exited(code) => matches!(*code, PANIC | EXCEPTION),
        tofu_vmm::Outcome::TripleFault(_) | tofu_vmm::Outcome::InternalError(_) => true,
        _ => false,
    }
}

fn outcome_of(outcome: &tofu_vmm::Outcome) -> Outcome {
    match outcome {
        tofu_vmm::Outcome::Exited(code) => Outcome::Exited(*code),
        tofu_vmm::Outcome::Reset => Outcome::Reset,
        tofu_vmm::Outcome::Stopped => Outcome::Stopped,
        fault => Outcome::Fault(fault.to_string()),
    }
}

/// Doorbells through KVM: ioeventfds and shared pages.
struct WindowDoorbells {
    /// Windows of the virtual machine that has the device now.
    windows: Mutex<Windows>,
    attached: Mutex<HashMap<u64, Attachment>>,
}

impl WindowDoorbells {
    fn new(windows: Windows) -> Self {
        Self { windows: Mutex::new(windows), attached: Mutex::new(HashMap::new()) }
    }

    fn windows(&self) -> Windows {
        lock(&self.windows).clone()
    }

    /// Switches to another virtual machine, in which nothing is attached yet.
    fn renew(&self, windows: Windows) {
        self.attached().clear();
        *lock(&self.windows) = windows;
    }

    fn attached(&self) -> MutexGuard<'_, HashMap<u64, Attachment>> {
        lock(&self.attached)
    }

    fn keep(&self, offset: u64, attachment: Attachment) {
        if let Some(former) = self.attached().insert(offset, attachment) {
            self.windows().detach(former);
        }
    }
}

impl DoorbellBackend for WindowDoorbells {
    fn attach_event(&self, offset: u64, event: &EventFd) -> Result<(), String> {
        let event = event.try_clone().map_err(|error| error.to_string())?;
        let attachment = self
            .windows()
            .attach_doorbell(REGISTER_BAR, offset, event)
            .map_err(|error| error.to_string())?;
        self.keep(offset, attachment);
        Ok(())
    }

    fn attach_page(
        &self,
        offset: u64,
        region: &Arc<MmapRegion<()>>,
        page_offset: usize,
        written: Box<dyn Fn() + Send + Sync>,
    ) -> Result<(), String> {
        let attachment = self
            .windows()
            .attach_watched_page(REGISTER_BAR, offset, region, page_offset, written)
            .map_err(|error| error.to_string())?;
        self.keep(offset, attachment);
        Ok(())
    }

    fn protect_page(&self, offset: u64) {
        let attachment = self.attached().get(&offset).copied();
        if let Some(attachment) = attachment
            && let Err(error) = self.windows().set_read_only(attachment, true)
        {
            log::warn!("protecting a control queue page: {error}");
        }
    }

    fn detach(&self, offset: u64) {
        if let Some(attachment) = self.attached().remove(&offset) {
            self.windows().detach(attachment);
        }
    }
}

/// Windows of a TNW network processor that are memory.
struct WindowPages(Arc<WindowDoorbells>);

impl WindowBackend for WindowPages {
    fn attach_window(
        &self,
        offset: u64,
        region: &Arc<MmapRegion<()>>,
        at: usize,
        len: usize,
    ) -> Result<(), String> {
        let attachment = self
            .0
            .windows()
            .attach_pages(WINDOW_BAR, offset, Arc::clone(region), (at, len))
            .map_err(|error| error.to_string())?;
        self.0.keep(offset, attachment);
        Ok(())
    }

    fn detach_window(&self, offset: u64) {
        self.0.detach(offset);
    }
}
