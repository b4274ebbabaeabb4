// SPDX-License-Identifier: GPL-2.0

//! Signals that tell a process of exceptions of its queue or channel.

use kernel::bindings;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};

use tofu_abi::irq::IrqSet;

use crate::shim;
use crate::uapi;

/// Exceptions that are reported to a process, each with its code.
pub(crate) type Codes<S> = &'static [(S, i32)];

/// All exceptions that have a code.
pub(crate) fn all_of<S: IrqSet>(codes: Codes<S>) -> S {
    S::from_raw(
        codes
            .iter()
            .fold(0, |all, (request, _)| all | request.raw()),
    )
}

/// Who gets signals, and which.
pub(crate) struct Signal {
    pid: *mut bindings::pid,
    number: Atomic<i32>,
}

// SAFETY: a `struct pid` is reference counted and used under RCU by any thread.
unsafe impl Send for Signal {}
// SAFETY: as above.
unsafe impl Sync for Signal {}

impl Signal {
    /// Without SET_RT_SIGNAL the process gets SIGTERM.
    const DEFAULT: i32 = bindings::SIGTERM as i32;

    /// For the calling process.
    pub(crate) fn new() -> Self {
        // SAFETY: no requirements; the reference is ours.
        let pid = unsafe { shim::tofu_shim_current_pid() };
        let number = Atomic::new(Self::DEFAULT);
        Self { pid, number }
    }

    /// SET_RT_SIGNAL.
    ///
    /// # Errors
    ///
    /// `EINVAL` for another than a real-time signal, `EFAULT`.
    pub(crate) fn set(&self, arg: u64) -> Result {
        let number: i32 = uapi::get(arg)?;
        if !(bindings::SIGRTMIN as i32..=bindings::_NSIG as i32).contains(&number) {
            return Err(EINVAL);
        }
        self.number.store(number, Relaxed);
        Ok(())
    }

    /// Sends a signal for each of the exceptions that are `pending`: with its code (`si_errno`) and
    /// the queue or channel (`si_int`).
    pub(crate) fn tell<S: IrqSet>(&self, codes: Codes<S>, pending: S, si_int: i32) {
        let number = self.number.load(Relaxed);
        for (request, code) in codes {
            if request.raw() & pending.raw() != 0 {
                // SAFETY: we hold a reference to the pid.
                unsafe { shim::tofu_shim_signal(self.pid, number, *code, si_int) };
            }
        }
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        // SAFETY: the reference of `new`.
        unsafe { bindings::put_pid(self.pid) };
    }
}
