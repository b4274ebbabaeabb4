// SPDX-License-Identifier: GPL-2.0

//! The interrupt of a TNI's gates: exceptions become signals.

use kernel::irq::{self as kirq, IrqReturn};
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::Arc;

use tofu_abi::irq::{self, BgsIrqs};
use tofu_abi::regs::BgsReg;
use tofu_abi::TniId;

use crate::device::Device;
use crate::ids::{GateId, GateSet};
use crate::shim;
use crate::signal::{all_of, Cause, Codes, Signal};

/// Exceptions that are reported to a process. They are caused by signals from gates of other nodes.
const CODES: Codes<BgsIrqs> = &[
    (BgsIrqs::NODE_ADDRESS_UNMATCH, 0, Cause::Peer),
    (BgsIrqs::BSEQ_UNMATCH, 1, Cause::Peer),
    (BgsIrqs::SIGNAL_STATE_ERROR, 2, Cause::Peer),
    (BgsIrqs::ERROR_SYNCHRONIZATION_ACKNOWLEDGE, 3, Cause::Peer),
];

/// The exceptions that are reported to a process.
pub(super) fn told() -> BgsIrqs {
    all_of(CODES)
}

/// The interrupt of a channel's gates on one TNI. Dropping it waits for a running handler.
pub(super) struct Registration {
    _irq: Pin<KBox<kirq::Registration<'static, Handler>>>,
    seen: Arc<Atomic<u64>>,
}

impl Registration {
    /// Requests the interrupt of a TNI, for the gates in the set. If the device has no interrupts,
    /// there are no signals, and this is `None`.
    ///
    /// # Errors
    ///
    /// Those of the kernel.
    pub(super) fn new(
        device: &Arc<Device>,
        (tni, gates): (TniId, GateSet),
        (signal, si_int): (Arc<Signal>, i32),
    ) -> Result<Option<Self>> {
        let Some(request) = device.vector(irq::vector::bg(tni)) else {
            return Ok(None);
        };
        let seen = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let handler = Handler {
            device: device.clone(),
            tni,
            gates,
            signal,
            si_int,
            seen: seen.clone(),
        };
        // SAFETY: it is dropped with the channel's `Enabled`, which is never leaked.
        let irq = unsafe {
            kirq::Registration::new(request, kirq::Flags::SHARED, c"tofu-bg", Ok(handler))
        };
        Ok(Some(Self {
            _irq: KBox::try_pin_init(irq, GFP_KERNEL)?,
            seen,
        }))
    }

    /// Exceptions that were reported to the process, which are no longer in the registers.
    pub(super) fn seen(&self) -> BgsIrqs {
        BgsIrqs::from_raw(self.seen.load(Relaxed))
    }
}

struct Handler {
    device: Arc<Device>,
    tni: TniId,
    gates: GateSet,
    signal: Arc<Signal>,
    si_int: i32,
    seen: Arc<Atomic<u64>>,
}

impl kirq::Handler for Handler {
    fn handle(&self) -> IrqReturn {
        let mut result = IrqReturn::None;
        for gate in self.gates.of(self.tni) {
            // A device that is gone has no exceptions.
            let Ok(requests) = self.device.try_read(gate, BgsReg::Irr) else {
                break;
            };
            let pending = BgsIrqs::from_raw(requests) & told();
            if pending.is_empty() {
                continue;
            }
            self.device.write(gate, BgsReg::Irc, pending.raw());
            let masked = self.signal.count(&self.device, gate, CODES, pending);
            if !masked.is_empty() {
                self.device.write(gate, BgsReg::Imr, masked.raw());
            }
            // It is written only here.
            self.seen
                .store(self.seen.load(Relaxed) | pending.raw(), Relaxed);
            let GateId { tni, bg } = gate;
            let channel = self.si_int as u32;
            shim::tofu_shim_trace_gate_fault(tni, bg, channel, pending.raw());
            self.signal.tell(CODES, pending, self.si_int);
            result = IrqReturn::Handled;
        }
        result
    }
}
