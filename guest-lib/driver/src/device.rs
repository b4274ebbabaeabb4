//! The device as a whole: probe, network interfaces, interrupt units.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;

use thiserror::Error;
use tofu_abi::generation::{Description, Generation};
use tofu_abi::irq::{BgsIrqs, CqsIrqs, IrqSet, TniIrqs, TnrIrqs};
use tofu_abi::regs::{
    BgsReg, CqsReg, CqsStatus, NodeAddress, Register, TniReg, TniState, TofuReg, bgs_page,
    cqs_page, tni_base, tofu,
};
use tofu_abi::{BgId, Coords, CqId, TniId};

use crate::platform::{Platform, UserPage};

/// The time limit for a register to reflect a command: 3 s, as in the public kernel driver.
pub(crate) const REGISTER_TIMEOUT_NS: u64 = 3_000_000_000;

/// The texts of the requests in a set, separated by commas.
pub(crate) fn listed<S: IrqSet>(set: S, texts: &[(S, &str)]) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        let contained = texts.iter().filter(|(request, _)| set.raw() & request.raw() != 0);
        for (i, (_, text)) in contained.enumerate() {
            write!(f, "{} {text}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    })
}

/// A register did not reach the expected state within 3 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("timed out waiting for {what} (register {value:#x})")]
pub struct TimedOut {
    /// The expected state.
    pub what: &'static str,
    /// Last value of the register.
    pub value: u64,
}

/// The reason why a device or one of its network interfaces cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// NODE_ADDRESS has a value that no ICC has: there is no device behind BAR0, or its memory
    /// decoding is off.
    #[error("no Tofu device: NODE_ADDRESS reads {node_address:#x}")]
    NotPresent {
        /// The value of NODE_ADDRESS.
        node_address: u64,
    },
    /// The device is of a generation unknown to this driver.
    #[error(
        "a Tofu device of a generation that this driver does not know: GENERATION reads {0:#x}"
    )]
    Generation(u64),
    /// Timed out enabling or disabling a network interface.
    #[error(transparent)]
    Tni(TimedOut),
}

/// A probed device. Clones refer to the same device.
#[derive(Debug)]
pub struct Device<P> {
    platform: Arc<P>,
    coords: Coords,
    generation: Generation,
}

impl<P> Clone for Device<P> {
    fn clone(&self) -> Self {
        let &Self { coords, generation, .. } = self;
        Self { platform: Arc::clone(&self.platform), coords, generation }
    }
}

impl<P: Platform> Device<P> {
    /// Takes over the device behind `platform` and reads its coordinates.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NotPresent`] if the register space does not look like an ICC's, and
    /// [`DeviceError::Generation`] if the generation is unknown.
    pub fn probe(platform: P) -> Result<Self, DeviceError> {
        let raw = platform.bar0_read64(tofu(TofuReg::NodeAddress));
        let address = NodeAddress(raw);
        let coords = address.coords();
        // A missing device reads as all ones. B has two bits but only the values 0 to 2.
        if NodeAddress::from_coords(coords).0 != raw || coords.b > 2 {
            return Err(DeviceError::NotPresent { node_address: raw });
        }
        let raw = platform.bar0_read64(tofu(TofuReg::Generation));
        let generation = Generation::from_register(raw).ok_or(DeviceError::Generation(raw))?;
        Ok(Self { platform: Arc::new(platform), coords, generation })
    }

    /// Coordinates of the node.
    pub fn coords(&self) -> Coords {
        self.coords
    }

    /// Generation of the device.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Features of the device's generation.
    pub fn description(&self) -> &'static Description {
        self.generation.description()
    }

    /// The platform that the device is driven through.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// A network interface.
    pub fn tni(&self, tni: TniId) -> Tni<'_, P> {
        Tni { device: self, tni }
    }

    /// Enables all network interfaces that the device has.
    ///
    /// # Errors
    ///
    /// As for [`Tni::enable`].
    pub fn enable_tnis(&self) -> Result<(), DeviceError> {
        self.description().tni_ids().try_for_each(|tni| self.tni(tni).enable())
    }

    /// Interrupt registers of the links (TNR, MSI-X vector 0).
    pub fn tnr_irq(&self) -> IrqUnit<'_, P, TnrIrqs> {
        IrqUnit::new(&self.platform, tofu(TofuReg::TnrIrr))
    }

    /// Interrupt registers of a control queue.
    pub(crate) fn cqs_irq(&self, tni: TniId, cq: CqId) -> IrqUnit<'_, P, CqsIrqs> {
        IrqUnit::new(&self.platform, cqs_page(tni, cq) + CqsReg::Irr.offset())
    }

    /// Interrupt registers of a barrier gate.
    pub(crate) fn bgs_irq(&self, tni: TniId, bg: BgId) -> IrqUnit<'_, P, BgsIrqs> {
        IrqUnit::new(&self.platform, bgs_page(tni, bg) + BgsReg::Irr.offset())
    }

    /// Reads a register.
    pub fn read(&self, register: Register) -> u64 {
        self.platform.bar0_read64(register.offset())
    }

    /// Writes a register. Only for registers that no other part of the driver manages.
    pub fn write(&self, register: Register, value: u64) {
        self.platform.bar0_write64(register.offset(), value);
    }

    /// Stops orphaned control queues, for example after the end of their process. Returns the
    /// queues that the device does not release within 3 s: their memory must not be reused. A queue
    /// that is not open stays closed.
    pub fn stop_queues(&self, queues: &[(TniId, CqId)]) -> Vec<(TniId, CqId)> {
        // Disables all of them first, so that they stop at the same time.
        for &(tni, cq) in queues {
            self.disable_queue(tni, cq);
        }
        let stuck = |&(tni, cq): &(TniId, CqId)| self.finish_queue(tni, cq).is_err();
        queues.iter().copied().filter(stuck).collect()
    }

    /// Tells a control queue to stop.
    pub(crate) fn disable_queue(&self, tni: TniId, cq: CqId) {
        self.platform.bar0_write64(cqs_page(tni, cq) + CqsReg::Enable.offset(), 0);
    }

    /// Waits until a control queue has stopped and no longer uses memory, then removes its
    /// interrupts and tables.
    pub(crate) fn finish_queue(&self, tni: TniId, cq: CqId) -> Result<(), TimedOut> {
        let page = cqs_page(tni, cq);
        // It still uses memory as long as commands or a cache flush are in progress.
        let done = |v| !CqsStatus(v).cq_enable() && !CqsStatus(v).cache_flush_busy();
        let status = page + CqsReg::Status.offset();
        self.poll_register(status, "STATUS.CQ_ENABLE to be clear", done)?;
        self.cqs_irq(tni, cq).reset(CqsIrqs::NONE);
        for reg in [CqsReg::SteeringTableEnable, CqsReg::MemoryBlockTableEnable] {
            self.platform.bar0_write64(page + reg.offset(), 0);
        }
        Ok(())
    }

    /// Reads the register at `offset` until `done` returns true, for at most 3 s.
    pub(crate) fn poll_register(
        &self,
        offset: u64,
        what: &'static str,
        done: impl Fn(u64) -> bool,
    ) -> Result<u64, TimedOut> {
        let start = self.platform.now_ns();
        loop {
            let value = self.platform.bar0_read64(offset);
            if done(value) {
                return Ok(value);
            }
            if self.platform.now_ns().saturating_sub(start) > REGISTER_TIMEOUT_NS {
                return Err(TimedOut { what, value });
            }
            self.platform.relax();
        }
    }
}

/// A user page among the registers of a device.
#[derive(Debug)]
pub(crate) struct DevicePage<P> {
    device: Device<P>,
    /// Offset in BAR0.
    base: u64,
}

impl<P: Platform> DevicePage<P> {
    pub(crate) const fn new(device: Device<P>, base: u64) -> Self {
        Self { device, base }
    }

    pub(crate) const fn device(&self) -> &Device<P> {
        &self.device
    }
}

impl<P: Platform> UserPage for DevicePage<P> {
    fn read(&self, offset: u64) -> u64 {
        self.device.platform.bar0_read64(self.base + offset)
    }

    #[inline]
    fn write(&self, offset: u64, value: u64) {
        self.device.platform.doorbell_write64(self.base + offset, value);
    }
}

/// A network interface of a device.
#[derive(Debug)]
pub struct Tni<'a, P> {
    device: &'a Device<P>,
    tni: TniId,
}

impl<'a, P: Platform> Tni<'a, P> {
    fn set_enable(&self, on: bool, state: TniState, what: &'static str) -> Result<(), DeviceError> {
        let base = tni_base(self.tni);
        self.device.platform.bar0_write64(base + TniReg::Enable.offset(), on.into());
        self.device
            .poll_register(base + TniReg::State.offset(), what, |v| v & 3 == state as u64)
            .map(drop)
            .map_err(DeviceError::Tni)
    }

    /// Enables the interface and waits until it is working.
    ///
    /// # Errors
    ///
    /// If it does not start within 3 s.
    pub fn enable(&self) -> Result<(), DeviceError> {
        self.set_enable(true, TniState::Normal, "TNI STATE normal")
    }

    /// Disables the interface: requests to its queues end with an error.
    ///
    /// # Errors
    ///
    /// If it does not stop within 3 s.
    pub fn disable(&self) -> Result<(), DeviceError> {
        self.set_enable(false, TniState::Disable, "TNI STATE disabled")
    }

    /// Interrupt registers of the interface.
    pub fn irq(&self) -> IrqUnit<'a, P, TniIrqs> {
        let base = tni_base(self.tni);
        IrqUnit::new(&self.device.platform, base + TniReg::Irr.offset())
    }
}

/// The interrupt registers of one unit (CQS, BGS, TNI or TNR).
#[derive(Debug)]
pub struct IrqUnit<'a, P, S> {
    platform: &'a P,
    /// Offset of IRR. IMR, IRC and IMC follow, in every unit.
    irr: u64,
    requests: PhantomData<S>,
}

impl<'a, P: Platform, S: IrqSet> IrqUnit<'a, P, S> {
    const IMR: u64 = 0x08;
    const IRC: u64 = 0x10;
    const IMC: u64 = 0x18;

    fn new(platform: &'a P, irr: u64) -> Self {
        Self { platform, irr, requests: PhantomData }
    }

    fn write(&self, register: u64, value: u64) {
        self.platform.bar0_write64(self.irr + register, value);
    }

    /// Masks all requests, clears pending ones, then unmasks `wanted`. This is the order of the
    /// public kernel driver.
    pub fn reset(&self, wanted: S) {
        self.write(Self::IMR, u64::MAX);
        self.write(Self::IRC, u64::MAX);
        if wanted.raw() != 0 {
            self.unmask(wanted);
        }
    }

    /// The pending requests, including masked ones.
    pub fn pending(&self) -> S {
        S::from_raw(self.platform.bar0_read64(self.irr))
    }

    /// The masked requests. Bits that the unit does not have are always set.
    pub fn masked(&self) -> S {
        S::from_raw(self.platform.bar0_read64(self.irr + Self::IMR))
    }

    /// Clears pending requests.
    pub fn clear(&self, requests: S) {
        self.write(Self::IRC, requests.raw());
    }

    /// Masks requests.
    pub fn mask(&self, requests: S) {
        self.write(Self::IMR, requests.raw());
    }

    /// Unmasks requests. Pending ones then fire.
    pub fn unmask(&self, requests: S) {
        self.write(Self::IMC, requests.raw());
    }
}

const _: () = {
    // The offsets that `IrqUnit` relies on.
    assert!(CqsReg::Imr.offset() - CqsReg::Irr.offset() == 0x08);
    assert!(CqsReg::Imc.offset() - CqsReg::Irr.offset() == 0x18);
    assert!(BgsReg::Imc.offset() - BgsReg::Irr.offset() == 0x18);
    assert!(TniReg::Imc.offset() - TniReg::Irr.offset() == 0x18);
};
