// SPDX-License-Identifier: GPL-2.0

//! What a node has once: registers, interrupts, who may use what, the gates that are taken.

use kernel::bindings;
use kernel::device::Core;
use kernel::io::poll::read_poll_timeout;
use kernel::io::Io;
use kernel::irq::IrqRequest;
use kernel::pci::{self, IrqType, IrqTypes};
use kernel::prelude::*;
use kernel::sync::atomic::Atomic;
use kernel::sync::{new_mutex, Arc, Mutex};
use kernel::time::Delta;

use tofu_abi::regs::{
    self, cqs_page, tni_base, CqsReg, CqsStatus, NodeAddress, PortReg, Register, TniReg, TofuReg,
    BAR0_SIZE, NUM_TNI,
};
use tofu_abi::{irq, Coords};

use crate::gates::Taken;
use crate::users::Users;

/// How long the device may take for what takes no time as a rule, as in the public driver.
const PATIENCE: Delta = Delta::from_millis(3000);

/// A node's controller.
#[pin_data]
pub(crate) struct Device {
    pdev: &'static pci::Device<kernel::device::Bound>,
    bar: pci::Bar<'static>,
    vectors: Option<pci::IrqVectorRegistration<'static>>,
    bar_addr: u64,
    coords: Coords,
    /// Who may use what.
    #[pin]
    pub(crate) users: Mutex<Users>,
    /// Barrier channels and gates that are taken.
    #[pin]
    pub(crate) taken: Mutex<Taken>,
    /// Pages that processes have pinned.
    pub(crate) pinned: Atomic<usize>,
    /// Exceptions that a process was told of.
    pub(crate) faults: Atomic<u64>,
}

impl Device {
    /// Takes over a function that is enabled: maps its registers, brings it to its reset state,
    /// lets packets in.
    ///
    /// # Errors
    ///
    /// `ENODEV` if there is no such device behind the function.
    pub(crate) fn new(pdev: &pci::Device<Core<'_>>) -> Result<Arc<Self>> {
        let bound: &pci::Device<kernel::device::Bound> = pdev;
        // SAFETY: whatever holds a `Device` is gone before the function is unbound: files are, at
        // the removal of their entries in /proc, and the driver's own data is last.
        let bound: &'static pci::Device<kernel::device::Bound> =
            unsafe { &*core::ptr::from_ref(bound) };
        // What an earlier driver may have left. The function's configuration is kept; one that
        // cannot be reset was so by whoever made it.
        // SAFETY: nobody uses the device at this time, and the kernel holds its lock in probe.
        unsafe { bindings::pci_reset_function_locked(Self::raw_pci(bound)) };

        let bar = bound.iomap_region(tofu_abi::pci::REGISTER_BAR.into(), c"tofu")?;
        let bar_addr = bound.resource_start(tofu_abi::pci::REGISTER_BAR.into())?;
        if bound.resource_len(tofu_abi::pci::REGISTER_BAR.into())? < BAR0_SIZE {
            dev_err!(pdev, "BAR 0 is smaller than the register space\n");
            return Err(ENODEV);
        }
        let address = (&bar).try_read64(regs::tofu(TofuReg::NodeAddress) as usize)?;
        if address == u64::MAX {
            dev_err!(pdev, "no answer from the device\n");
            return Err(ENODEV);
        }
        let count = u32::from(irq::vector::COUNT);
        let vectors = bound
            .alloc_irq_vectors(count, count, IrqTypes::default().with(IrqType::MsiX))
            .inspect_err(|_| dev_warn!(pdev, "no {} interrupts: there will be no signals\n", count))
            .ok();
        let device = Arc::pin_init(
            pin_init!(Self {
                pdev: bound,
                bar,
                vectors,
                bar_addr,
                coords: NodeAddress(address).coords(),
                users <- new_mutex!(Users::new()),
                taken <- new_mutex!(Taken::new()),
                pinned: Atomic::new(0),
                faults: Atomic::new(0),
            }),
            GFP_KERNEL,
        )?;
        for tni in 0..NUM_TNI as u8 {
            device.write(tni_base(tni) + TniReg::Enable.offset(), 1);
        }
        Ok(device)
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

    /// For messages.
    pub(crate) fn pdev(&self) -> &pci::Device<kernel::device::Bound> {
        self.pdev
    }

    /// Where the node is.
    pub(crate) fn coords(&self) -> Coords {
        self.coords
    }

    /// Physical address of the byte at `offset` of BAR 0.
    pub(crate) fn bar_phys(&self, offset: u64) -> u64 {
        self.bar_addr + offset
    }

    /// Reads the register at `offset`; all ones outside of the BAR, as from a device that is gone.
    pub(crate) fn read(&self, offset: u64) -> u64 {
        (&self.bar).try_read64(offset as usize).unwrap_or(u64::MAX)
    }

    /// Writes the register at `offset`, after all that was written to memory before.
    pub(crate) fn write(&self, offset: u64, value: u64) {
        // Offsets come from the register map, which lies in the BAR.
        let _ = (&self.bar).try_write64(value, offset as usize);
    }

    /// Sleeps until the register at `offset` is as wanted.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT` after 3 s.
    pub(crate) fn wait(&self, offset: u64, wanted: impl Fn(u64) -> bool) -> Result<u64> {
        let delay = Delta::from_micros(20);
        read_poll_timeout(|| Ok(self.read(offset)), |v| wanted(*v), delay, PATIENCE)
    }

    /// Turns a queue on or off, and waits until it is.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT` if it does not, `EIO` if it refuses.
    pub(crate) fn enable_cq(&self, tni: u8, cq: u8, on: bool) -> Result {
        let page = cqs_page(tni, cq);
        self.write(page + CqsReg::Enable.offset(), on.into());
        let status = page + CqsReg::Status.offset();
        let is_so = |v| {
            let status = CqsStatus(v);
            status.cq_enable() == on && (on || !status.cache_flush_busy())
        };
        if on && self.read(page + CqsReg::Irr.offset()) & irq::cqs::TOQ_READ_EXCEPTION != 0 {
            return Err(EIO);
        }
        self.wait(status, is_so).map(drop)
    }

    /// Empties the translation cache of a queue: afterwards the device uses no memory whose
    /// entries were disabled before.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`.
    pub(crate) fn flush_cq(&self, tni: u8, cq: u8) -> Result {
        let page = cqs_page(tni, cq);
        self.write(page + CqsReg::CacheFlush.offset(), 1);
        let status = page + CqsReg::Status.offset();
        self.wait(status, |v| !CqsStatus(v).cache_flush_busy())
            .map(drop)
    }

    /// The interrupt of a vector, if the kernel had enough for the device.
    ///
    /// Whoever has it must not outlive the device, which all do by a reference.
    pub(crate) fn vector(&self, vector: u16) -> Option<IrqRequest<'static>> {
        let vectors = core::ptr::from_ref(self.vectors.as_ref()?);
        // SAFETY: handlers hold a reference to the device and go before it.
        let vectors: &'static pci::IrqVectorRegistration<'static> = unsafe { &*vectors };
        vectors.index(vector.into()).ok().map(Into::into)
    }

    /// A counter of a port, in the order of the registers.
    pub(crate) fn port_counter(&self, port: u8, reg: PortReg) -> u64 {
        self.read(Register::Port { port, reg }.offset())
    }

    /// Stops all that the node does by itself.
    pub(crate) fn quiesce(&self) {
        for tni in 0..NUM_TNI as u8 {
            self.write(tni_base(tni) + TniReg::Enable.offset(), 0);
        }
    }
}
