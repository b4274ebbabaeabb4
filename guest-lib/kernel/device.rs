// SPDX-License-Identifier: GPL-2.0

//! A node's controller: its registers and interrupts, the rights of users, the gates in use.

use core::fmt::Debug;
use core::mem::ManuallyDrop;

use kernel::bindings;
use kernel::device::Core;
use kernel::fmt;
use kernel::io::poll::read_poll_timeout;
use kernel::io::{Io, IoBackend, IoBase, Mmio, MmioBackend};
use kernel::irq::IrqRequest;
use kernel::pci::{self, IrqType, IrqTypes};
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{new_mutex, Arc, Mutex};
use kernel::time::Delta;

use tofu_abi::generation::{Description, Generation};
use tofu_abi::irq::{self, CqsIrqs, TnrIrqs};
use tofu_abi::regs::{CqsReg, CqsStatus, NodeAddress, TniReg, TofuReg};
use tofu_abi::{Coords, Doorbell, TniId};
use tofu_ipotofu::dead_links_met;

use crate::engine::{now_ns, Health};
use crate::ids::{GateId, GateSet, QueueId};
use crate::registers::{Register, BAR_BYTES};
use crate::shim;
use crate::users::Users;

/// The time for which the driver waits for the device, as in the public driver. The device usually
/// responds immediately.
const PATIENCE: Delta = Delta::from_millis(3000);
/// The shortest time between two messages about events that other nodes cause.
const LOG_INTERVAL_NS: u64 = 5_000_000_000;

/// The state in which the driver finds a device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// It has its settings.
    AsSet,
    /// It has lost them: it was reset without the kernel's knowledge.
    Blank,
    /// It does not answer.
    Gone,
}

/// A node's controller.
#[pin_data]
pub(crate) struct Device {
    pdev: &'static pci::Device<kernel::device::Bound>,
    /// Unmapped by [`Taken`].
    bar: ManuallyDrop<pci::Bar<'static, BAR_BYTES>>,
    /// None without interrupts, and after the driver was unbound.
    #[pin]
    vectors: Mutex<Option<pci::IrqVectorRegistration<'static>>>,
    bar_addr: u64,
    coords: Coords,
    generation: Generation,
    /// Rights of users.
    #[pin]
    pub(crate) users: Mutex<Users>,
    /// Gates that channels have enabled.
    #[pin]
    gates: Mutex<GateSet>,
    /// The known dead links, if there is a network interface.
    #[pin]
    health: Mutex<Option<Arc<Health>>>,
    /// Even, or odd while the function is being reset. It never returns to an earlier value.
    epoch: Atomic<u64>,
    /// Not 0 from the time when the device was found gone until it was reset. The value that a
    /// sleeping device reads as depends on the platform.
    gone: Atomic<u64>,
    /// Pages that processes have pinned.
    pub(crate) pinned: Atomic<usize>,
    /// Pages that are charged to users: pinned pages, and the kernel's memory for them.
    pub(crate) charged: Atomic<usize>,
    /// Exceptions that processes have caused.
    pub(crate) faults: Atomic<u64>,
    /// Exceptions that other nodes may have caused, and when one was last logged.
    peer_faults: Atomic<u64>,
    peer_logged_ns: Atomic<u64>,
    /// Interrupt requests of the links that were handled; only [`Device::has_met_dead_link`] writes
    /// to it.
    links: Atomic<u64>,
}

/// A device that the driver has taken over. Dropping it gives the registers and the interrupts back
/// to the kernel. The device object stays if memory was leaked that refers to it, because the
/// device did not answer; the next driver needs its registers all the same.
pub(crate) struct Taken(Arc<Device>);

impl Taken {
    /// Takes over an enabled function: resets it, maps its registers and enables reception of
    /// packets.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the function is not such a device.
    pub(crate) fn new(pdev: &pci::Device<Core<'_>>) -> Result<Self> {
        let bound: &pci::Device<kernel::device::Bound> = pdev;
        // SAFETY: everything that holds a `Device` is gone before the function is unbound. Files
        // are gone when their entries in /proc are removed, and the driver's own data is dropped
        // last.
        let bound: &'static pci::Device<kernel::device::Bound> =
            unsafe { &*core::ptr::from_ref(bound) };
        // An earlier driver may have left it in any state. The reset preserves the configuration
        // space. A function that the kernel cannot reset is used as it is. SAFETY: the device is
        // not in use yet, and the kernel holds its lock during probe.
        unsafe { bindings::pci_reset_function_locked(Device::raw_pci(bound)) };

        let number = tofu_abi::pci::REGISTER_BAR.into();
        let bar_addr = bound.resource_start(number)?;
        let bar = bound
            .iomap_region_sized::<BAR_BYTES>(number, c"tofu")
            .inspect_err(|_| dev_err!(pdev, "BAR 0 is missing or too small\n"))?;
        let address = at((), TofuReg::NodeAddress, &bar).read_val();
        if address == u64::MAX {
            dev_err!(pdev, "no answer from the device\n");
            return Err(ENODEV);
        }
        let generation = Device::read_generation(bound, &bar)?;
        // All vectors are requested together, because the kernel's Rust bindings cannot add one
        // later.
        let count = u32::from(irq::vector::COUNT);
        let vectors = bound
            .alloc_irq_vectors(count, count, IrqTypes::default().with(IrqType::MsiX))
            .inspect_err(|_| dev_warn!(pdev, "no {} interrupts: there will be no signals\n", count))
            .ok();
        let device = Arc::pin_init(
            pin_init!(Device {
                pdev: bound,
                bar: ManuallyDrop::new(bar),
                vectors <- new_mutex!(vectors),
                bar_addr,
                coords: NodeAddress(address).coords(),
                generation,
                users <- new_mutex!(Users::new(generation.description())),
                gates <- new_mutex!(GateSet::default()),
                health <- new_mutex!(None),
                epoch: Atomic::new(0),
                gone: Atomic::new(0),
                pinned: Atomic::new(0),
                charged: Atomic::new(0),
                faults: Atomic::new(0),
                peer_faults: Atomic::new(0),
                peer_logged_ns: Atomic::new(0),
                links: Atomic::new(0),
            }),
            GFP_KERNEL,
        )?;
        device.let_packets_in();
        Ok(Self(device))
    }

    /// The device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.0
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let vectors = self.0.vectors.lock().take();
        drop(vectors);
        // SAFETY: a device has one `Taken`, so nothing else does this. It is the last user of the
        // device: what still refers to the object is memory that was leaked, and no code uses that.
        drop(unsafe { core::ptr::read(&*self.0.bar) });
    }
}

impl Device {
    fn let_packets_in(&self) {
        for tni in self.description().tni_ids() {
            self.write(tni, TniReg::Enable, 1);
        }
    }

    /// Returns the current epoch: the period between two resets. A caller that sets something up
    /// can later check whether the device has lost it.
    ///
    /// # Errors
    ///
    /// `EIO` while the function is being reset.
    pub(crate) fn epoch(&self) -> Result<u64> {
        let epoch = self.epoch.load(Relaxed);
        if epoch % 2 == 0 {
            Ok(epoch)
        } else {
            Err(EIO)
        }
    }

    /// Returns the current period for [`Device::has_ended`]: an epoch, or the reset after it.
    pub(crate) fn period(&self) -> u64 {
        self.epoch.load(Relaxed)
    }

    /// Returns true if the device no longer does what it did in that period: a reset has ended
    /// since then, or its slot is empty.
    pub(crate) fn has_ended(&self, period: u64) -> bool {
        self.epoch().is_ok_and(|epoch| epoch != period) || self.is_pulled_out()
    }

    /// Returns true if the device still has what was set up in that epoch.
    pub(crate) fn is_in(&self, epoch: u64) -> bool {
        self.epoch.load(Relaxed) == epoch
    }

    /// Resets of the function since the driver was loaded, those in progress included.
    pub(crate) fn resets(&self) -> u64 {
        self.epoch.load(Relaxed).div_ceil(2)
    }

    /// Notes that the function is about to be reset. Returns false if that is known already. One
    /// caller at a time.
    pub(crate) fn begin_reset(&self) -> bool {
        let begins = self.epoch().is_ok();
        if begins {
            self.epoch.add(1, Relaxed);
        }
        begins
    }

    /// Returns the state of the device. The caller holds the function's lock.
    pub(crate) fn presence(&self) -> Presence {
        // SAFETY: the function exists as long as this object.
        let is_awake = unsafe { shim::tofu_shim_is_awake(self.raw_function()) };
        if !is_awake {
            Presence::Gone
        } else if self.read(TniId::ALL[0], TniReg::Enable) == 1 {
            Presence::AsSet
        } else {
            Presence::Blank
        }
    }

    /// Handles the end of a reset: enables reception of packets again. One caller at a time.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the device does not respond; it then still counts as being reset.
    pub(crate) fn end_reset(&self) -> Result {
        self.gone.store(0, Relaxed);
        if !self.answers() {
            return Err(ENODEV);
        }
        self.let_packets_in();
        if self.epoch().is_err() {
            self.epoch.add(1, Relaxed);
        }
        Ok(())
    }

    /// Sleeps until the function is not being reset, or was pulled out. Its memory can be freed
    /// then.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the device is gone and may come back, `ETIMEDOUT` after 3 s.
    pub(crate) fn wait_for_reset(&self) -> Result {
        if self.is_pulled_out() {
            return Ok(());
        }
        let delay = Delta::from_micros(1000);
        let epoch = || match self.gone.load(Relaxed) {
            0 => Ok(self.epoch()),
            _ => Err(ENODEV),
        };
        read_poll_timeout(epoch, Result::is_ok, delay, PATIENCE).map(drop)
    }

    /// Returns true if the kernel has found the slot of the device empty. Nothing can use memory
    /// then, however the device was left.
    fn is_pulled_out(&self) -> bool {
        // SAFETY: the function exists as long as this object.
        unsafe { shim::tofu_shim_is_pulled_out(self.raw_function()) }
    }

    fn read_generation(
        pdev: &pci::Device<kernel::device::Bound>,
        bar: &pci::Bar<'static, BAR_BYTES>,
    ) -> Result<Generation> {
        let raw = at((), TofuReg::Generation, bar).read_val();
        Generation::from_register(raw).ok_or_else(|| {
            dev_err!(
                pdev,
                "a generation that this driver does not know: {:#x}\n",
                raw
            );
            ENODEV
        })
    }

    /// The PCI function, for the kernel.
    pub(crate) fn raw_function(&self) -> *mut bindings::pci_dev {
        Self::raw_pci(self.pdev)
    }

    fn raw_pci(pdev: &pci::Device<kernel::device::Bound>) -> *mut bindings::pci_dev {
        // A `pci::Device` is a transparent wrapper.
        core::ptr::from_ref(pdev).cast_mut().cast()
    }

    /// The `struct device`, for DMA.
    pub(crate) fn raw(&self) -> *mut bindings::device {
        // SAFETY: only the address of a field of a live object is taken.
        unsafe { &raw mut (*Self::raw_pci(self.pdev)).dev }
    }

    /// The PCI function, for messages.
    pub(crate) fn pdev(&self) -> &pci::Device<kernel::device::Bound> {
        self.pdev
    }

    /// The known dead links, if there is a network interface.
    pub(crate) fn health(&self) -> Option<Arc<Health>> {
        self.health.lock().clone()
    }

    /// Sets the link state of the network interface; none if there is no interface any more.
    pub(crate) fn set_health(&self, health: Option<Arc<Health>>) {
        *self.health.lock() = health;
    }

    /// The node's coordinates.
    pub(crate) fn coords(&self) -> Coords {
        self.coords
    }

    /// The device's generation.
    pub(crate) fn generation(&self) -> Generation {
        self.generation
    }

    /// The description of the device's generation.
    pub(crate) fn description(&self) -> &'static Description {
        self.generation.description()
    }

    /// Physical address of a doorbell's page, which a process may map.
    pub(crate) fn page_phys(&self, tni: TniId, doorbell: impl Into<Doorbell>) -> u64 {
        self.bar_addr + doorbell.into().page(tni)
    }

    /// Returns true if the device responds.
    pub(crate) fn answers(&self) -> bool {
        self.gone.load(Relaxed) == 0 && self.read((), TofuReg::NodeAddress) != u64::MAX
    }

    /// Marks the device as gone, until the end of a reset.
    pub(crate) fn set_gone(&self) {
        self.gone.store(1, Relaxed);
    }

    /// The reason why a queue was not seen to stop, for a message.
    pub(crate) fn why_not_stopped(&self) -> &'static str {
        match self.answers() {
            true => "does not stop",
            false => "is gone with the device",
        }
    }

    /// Reads a register; all ones from a device that is gone.
    pub(crate) fn read<R: Register>(&self, unit: R::Unit, reg: R) -> u64 {
        at(unit, reg, &self.bar).read_val()
    }

    /// Reads a register that is never all ones.
    ///
    /// # Errors
    ///
    /// `EIO` if the device is gone.
    pub(crate) fn try_read<R: Register>(&self, unit: R::Unit, reg: R) -> Result<u64> {
        match self.read(unit, reg) {
            u64::MAX => Err(EIO),
            value => Ok(value),
        }
    }

    /// Writes a register, ordered after all earlier writes to memory.
    pub(crate) fn write<R: Register>(&self, unit: R::Unit, reg: R, value: u64) {
        at(unit, reg, &self.bar).write_val(value);
    }

    /// Writes registers of a queue, one after the other.
    pub(crate) fn write_all(&self, id: QueueId, settings: &[(CqsReg, u64)]) {
        for &(reg, value) in settings {
            self.write(id, reg, value);
        }
    }

    /// Reads the 8 bytes at `offset` of the BAR.
    ///
    /// # Errors
    ///
    /// `EINVAL` outside of the BAR.
    pub(crate) fn load(&self, offset: u64) -> Result<u64> {
        (&*self.bar).try_read64(offset as usize)
    }

    /// Sleeps until `wanted` accepts the value of a register.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT` after 3 s, `ENODEV` if the device is gone.
    pub(crate) fn wait<R: Register>(
        &self,
        unit: R::Unit,
        reg: R,
        wanted: impl Fn(u64) -> bool,
    ) -> Result {
        let delay = Delta::from_micros(20);
        let value = || match self.read(unit, reg) {
            u64::MAX => Err(ENODEV),
            _ if self.gone.load(Relaxed) != 0 => Err(ENODEV),
            value => Ok(value),
        };
        read_poll_timeout(value, |v| wanted(*v), delay, PATIENCE).map(drop)
    }

    /// Enables or disables a queue, and waits until the device has done so. A device that was
    /// pulled out has no queues.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`; `EIO` if the device refuses; `ENODEV` if it is gone and may come back.
    pub(crate) fn enable_cq(&self, id: QueueId, on: bool) -> Result {
        if !on && self.is_pulled_out() {
            return Ok(());
        }
        self.write(id, CqsReg::Enable, on.into());
        let requests = CqsIrqs::from_raw(self.read(id, CqsReg::Irr));
        if on && requests.intersects(CqsIrqs::TOQ_READ_EXCEPTION) {
            return Err(EIO);
        }
        self.wait(id, CqsReg::Status, |v| {
            let status = CqsStatus(v);
            status.cq_enable() == on && (on || !status.cache_flush_busy())
        })
    }

    /// Flushes the translation cache of a queue. Afterwards the device no longer uses memory whose
    /// entries were disabled before.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`.
    pub(crate) fn flush_cq(&self, id: QueueId) -> Result {
        self.write(id, CqsReg::CacheFlush, 1);
        self.wait(id, CqsReg::Status, |v| !CqsStatus(v).cache_flush_busy())
    }

    /// Requests of the links since the driver was loaded.
    pub(crate) fn link_requests(&self) -> TnrIrqs {
        let taken = TnrIrqs::from_raw(self.links.load(Relaxed));
        let pending = TnrIrqs::from_raw(self.read((), TofuReg::TnrIrr));
        (taken | pending) & TnrIrqs::ALL
    }

    /// Returns true if any node's packet could not leave through a port of this node since the last
    /// call, which means that the link is dead. For one caller at a time.
    pub(crate) fn has_met_dead_link(&self) -> bool {
        let Ok(pending) = self.try_read((), TofuReg::TnrIrr) else {
            return false;
        };
        let met = dead_links_met(TnrIrqs::from_raw(pending));
        if met.is_empty() {
            return false;
        }
        self.links
            .store(self.links.load(Relaxed) | met.raw(), Relaxed);
        self.write((), TofuReg::TnrIrc, met.raw());
        true
    }

    /// Exceptions that other nodes may have caused.
    pub(crate) fn peer_faults(&self) -> u64 {
        self.peer_faults.load(Relaxed)
    }

    /// Counts exceptions of a queue or gate that another node may have caused, and logs them at a
    /// limited rate. May be called by an interrupt handler.
    pub(crate) fn log_peer(&self, of: impl fmt::Display, exceptions: impl Debug) {
        let count = self.peer_faults.fetch_add(1, Relaxed) + 1;
        let (now, last) = (now_ns(), self.peer_logged_ns.load(Relaxed));
        let is_due = last == 0 || now.saturating_sub(last) >= LOG_INTERVAL_NS;
        if is_due && self.peer_logged_ns.cmpxchg(last, now, Relaxed).is_ok() {
            dev_warn!(
                self.pdev,
                "{}: {:?}, possibly caused by another node ({} in all)\n",
                of,
                exceptions,
                count
            );
        }
    }

    /// Claims a gate.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it is enabled.
    pub(crate) fn claim_gate(&self, gate: GateId) -> Result {
        if self.gates.lock().insert(gate) {
            Ok(())
        } else {
            Err(EBUSY)
        }
    }

    /// Releases gates.
    pub(crate) fn release_gates(&self, gates: &GateSet) {
        self.gates.lock().remove(gates);
    }

    /// The interrupt of a vector; `None` if the kernel did not have enough of them. Its handler
    /// must hold a reference to the device.
    pub(crate) fn vector(&self, vector: u16) -> Option<IrqRequest<'static>> {
        let vectors = core::ptr::from_ref(self.vectors.lock().as_ref()?);
        // SAFETY: it does not move. Handlers hold a reference to the device, and are dropped before
        // it and before `Taken`.
        let vectors: &'static pci::IrqVectorRegistration<'static> = unsafe { &*vectors };
        vectors.index(vector.into()).ok().map(Into::into)
    }

    /// Stops all TNIs.
    pub(crate) fn quiesce(&self) {
        for tni in self.description().tni_ids() {
            self.write(tni, TniReg::Enable, 0);
        }
    }
}

/// A register of the BAR.
fn at<'a, R: Register>(
    unit: R::Unit,
    reg: R,
    bar: &'a pci::Bar<'static, BAR_BYTES>,
) -> Mmio<'a, u64> {
    let view = bar.as_view();
    let register = MmioBackend::as_ptr(view)
        .cast::<u64>()
        .wrapping_byte_add(reg.offset(unit));
    // SAFETY: the BAR has at least `BAR_BYTES`, and `Register` promises that these contain the
    // register.
    unsafe { MmioBackend::project_view(view, register) }
}
