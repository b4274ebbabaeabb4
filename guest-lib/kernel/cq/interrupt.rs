// SPDX-License-Identifier: GPL-2.0

//! The interrupt of a queue: exceptions become signals.

use kernel::irq::{self as kirq, IrqReturn};
use kernel::prelude::*;
use kernel::sync::Arc;

use tofu_abi::irq::{self, CqsIrqs};
use tofu_abi::regs::CqsReg;

use crate::device::Device;
use crate::ids::QueueId;
use crate::shim;
use crate::signal::{all_of, Cause, Codes, Signal};

/// Exceptions that are reported to a process.
const CODES: Codes<CqsIrqs> = &[
    (CqsIrqs::TOQ_DIRECT_DESCRIPTOR_EXCEPTION, 0, Cause::Process),
    (CqsIrqs::TOQ_SOURCE_TYPE_EXCEPTION, 1, Cause::Process),
    // Notices of other nodes' commands can fill the queue.
    (CqsIrqs::MRQ_OVERFLOW, 2, Cause::Peer),
];

/// A queue's interrupt. Dropping it waits for a running handler.
pub(super) type Registration = Pin<KBox<kirq::Registration<'static, Handler>>>;

/// The handler of the interrupt.
pub(super) struct Handler {
    device: Arc<Device>,
    id: QueueId,
    signal: Arc<Signal>,
}

/// Requests a queue's interrupt, and enables it in the device. If the device has no interrupts,
/// there are no signals, and this is `None`.
///
/// # Errors
///
/// Those of the kernel.
pub(super) fn register(
    device: &Arc<Device>,
    id: QueueId,
    signal: &Arc<Signal>,
) -> Result<Option<Registration>> {
    let Some(request) = device.vector(irq::vector::cq(id.tni, id.cq)) else {
        return Ok(None);
    };
    let handler = Handler {
        device: device.clone(),
        id,
        signal: signal.clone(),
    };
    // SAFETY: it is never leaked: it is dropped with the queue, and before the queue if that is
    // leaked.
    let registration =
        unsafe { kirq::Registration::new(request, kirq::Flags::SHARED, c"tofu-cq", Ok(handler)) };
    let registration = KBox::try_pin_init(registration, GFP_KERNEL)?;
    device.write(id, CqsReg::Imc, all_of(CODES).raw());
    Ok(Some(registration))
}

impl kirq::Handler for Handler {
    fn handle(&self) -> IrqReturn {
        // A device that is gone has no exceptions. Its process learns of that otherwise.
        let Ok(requests) = self.device.try_read(self.id, CqsReg::Irr) else {
            return IrqReturn::None;
        };
        let pending = CqsIrqs::from_raw(requests) & all_of(CODES);
        if pending.is_empty() {
            return IrqReturn::None;
        }
        self.device.write(self.id, CqsReg::Irc, pending.raw());
        let masked = self.signal.count(&self.device, self.id, CODES, pending);
        if !masked.is_empty() {
            self.device.write(self.id, CqsReg::Imr, masked.raw());
        }
        let QueueId { tni, cq } = self.id;
        shim::tofu_shim_trace_fault(tni, cq, pending.raw());
        dev_dbg!(
            self.device.pdev(),
            "{}: exceptions {:?}\n",
            self.id,
            pending
        );
        self.signal.tell(CODES, pending, self.id.si_int());
        IrqReturn::Handled
    }
}
