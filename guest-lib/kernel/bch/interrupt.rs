// SPDX-License-Identifier: GPL-2.0

//! The interrupt of a TNI's gates: exceptions become signals.

use kernel::irq::{self as kirq, IrqReturn};
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::Arc;

use tofu_abi::irq;
use tofu_abi::regs::{bgs_page, BgsReg, NUM_BG};

use crate::device::Device;
use crate::shim;
use crate::signal::Signal;

/// Exceptions that a process is told of, with their codes.
const EXCEPTIONS: [(u64, i32); 4] = [
    (irq::bgs::NODE_ADDRESS_UNMATCH, 0),
    (irq::bgs::BSEQ_UNMATCH, 1),
    (irq::bgs::SIGNAL_STATE_ERROR, 2),
    (irq::bgs::ERROR_SYNCHRONIZATION_ACKNOWLEDGE, 3),
];

/// The exceptions that a process is told of.
pub(super) fn told() -> u64 {
    EXCEPTIONS.iter().fold(0, |mask, (bit, _)| mask | bit)
}

/// The interrupt of one TNI's gates, as far as they are a channel's. Dropping it waits for a
/// handler that runs.
pub(super) struct Registration {
    _irq: Pin<KBox<kirq::Registration<'static, Handler>>>,
    seen: Arc<Atomic<u64>>,
}

impl Registration {
    /// Asks for the interrupt of the `gates` of a TNI. Where the device has no interrupts there are
    /// no signals, and this is `None`. `value` is what the process is told: TNI and channel.
    ///
    /// # Errors
    ///
    /// Those of the kernel.
    pub(super) fn new(
        device: &Arc<Device>,
        tni: u8,
        gates: u64,
        signal: &Arc<Signal>,
        value: i32,
    ) -> Result<Option<Self>> {
        let Some(request) = device.vector(irq::vector::bg(tni)) else {
            return Ok(None);
        };
        let seen = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let handler = Handler {
            device: device.clone(),
            tni,
            gates,
            signal: signal.clone(),
            value,
            seen: seen.clone(),
        };
        // SAFETY: it goes with the channel's `Enabled`, which is never forgotten.
        let irq = unsafe {
            kirq::Registration::new(request, kirq::Flags::SHARED, c"tofu-bg", Ok(handler))
        };
        Ok(Some(Self {
            _irq: KBox::try_pin_init(irq, GFP_KERNEL)?,
            seen,
        }))
    }

    /// Exceptions that the process was told of, which are no longer in the registers.
    pub(super) fn seen(&self) -> u64 {
        self.seen.load(Relaxed)
    }
}

struct Handler {
    device: Arc<Device>,
    tni: u8,
    gates: u64,
    signal: Arc<Signal>,
    value: i32,
    seen: Arc<Atomic<u64>>,
}

impl kirq::Handler for Handler {
    fn handle(&self) -> IrqReturn {
        let mut result = IrqReturn::None;
        for gate in (0..NUM_BG as u8).filter(|gate| self.gates >> gate & 1 != 0) {
            let page = bgs_page(self.tni, gate);
            let pending = self.device.read(page + BgsReg::Irr.offset()) & told();
            if pending == 0 {
                continue;
            }
            self.device.write(page + BgsReg::Irc.offset(), pending);
            self.device.faults.add(1, Relaxed);
            // Nobody else writes it.
            self.seen.store(self.seen.load(Relaxed) | pending, Relaxed);
            // SAFETY: no requirements.
            unsafe { shim::tofu_shim_trace_gate_fault(self.tni, gate, self.value as u32, pending) };
            for (bit, code) in EXCEPTIONS {
                if pending & bit != 0 {
                    self.signal.send(code, self.value);
                }
            }
            result = IrqReturn::Handled;
        }
        result
    }
}
