// SPDX-License-Identifier: GPL-2.0

//! The interrupt of a queue: exceptions become signals.

use kernel::irq::{self as kirq, IrqReturn};
use kernel::prelude::*;
use kernel::sync::atomic::Relaxed;
use kernel::sync::Arc;

use tofu_abi::irq;
use tofu_abi::regs::{cqs_page, CqsReg};

use crate::device::Device;
use crate::shim;
use crate::signal::Signal;

/// Exceptions that a process is told of, with their codes.
const EXCEPTIONS: [(u64, i32); 3] = [
    (irq::cqs::TOQ_DIRECT_DESCRIPTOR_EXCEPTION, 0),
    (irq::cqs::TOQ_SOURCE_TYPE_EXCEPTION, 1),
    (irq::cqs::MRQ_OVERFLOW, 2),
];

/// A queue's interrupt. Dropping it waits for a handler that runs.
pub(super) type Registration = Pin<KBox<kirq::Registration<'static, Handler>>>;

/// What handles the interrupt.
pub(super) struct Handler {
    device: Arc<Device>,
    tni: u8,
    cq: u8,
    signal: Arc<Signal>,
}

impl Handler {
    fn mask() -> u64 {
        EXCEPTIONS.iter().fold(0, |mask, (bit, _)| mask | bit)
    }
}

/// Asks for a queue's interrupt, and has the device raise it. Where the device has no interrupts
/// there are no signals, and this is `None`.
///
/// # Errors
///
/// Those of the kernel.
pub(super) fn register(
    device: &Arc<Device>,
    (tni, cq): (u8, u8),
    signal: &Arc<Signal>,
) -> Result<Option<Registration>> {
    let Some(request) = device.vector(irq::vector::cq(tni, cq)) else {
        return Ok(None);
    };
    let handler = Handler {
        device: device.clone(),
        tni,
        cq,
        signal: signal.clone(),
    };
    // SAFETY: it is never forgotten: it goes with the queue, and first when that is leaked.
    let registration =
        unsafe { kirq::Registration::new(request, kirq::Flags::SHARED, c"tofu-cq", Ok(handler)) };
    let registration = KBox::try_pin_init(registration, GFP_KERNEL)?;
    device.write(cqs_page(tni, cq) + CqsReg::Imc.offset(), Handler::mask());
    Ok(Some(registration))
}

impl kirq::Handler for Handler {
    fn handle(&self) -> IrqReturn {
        let page = cqs_page(self.tni, self.cq);
        let pending = self.device.read(page + CqsReg::Irr.offset()) & Self::mask();
        if pending == 0 {
            return IrqReturn::None;
        }
        self.device.write(page + CqsReg::Irc.offset(), pending);
        self.device.faults.add(1, Relaxed);
        // SAFETY: no requirements.
        unsafe { shim::tofu_shim_trace_fault(self.tni, self.cq, pending) };
        for (bit, code) in EXCEPTIONS {
            if pending & bit != 0 {
                dev_dbg!(
                    self.device.pdev(),
                    "tni{}cq{}: exception {}\n",
                    self.tni,
                    self.cq,
                    code
                );
                self.signal
                    .send(code, i32::from(self.tni) << 8 | i32::from(self.cq));
            }
        }
        IrqReturn::Handled
    }
}
