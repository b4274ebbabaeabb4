// SPDX-License-Identifier: GPL-2.0

//! Signals that tell a process of exceptions of its queue or channel.

use kernel::bindings;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};

use crate::shim;
use crate::uapi;

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
    /// Without SET_RT_SIGNAL the process is told to end.
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

    /// Sends the signal with a code (`si_errno`) and the queue or channel (`si_int`).
    pub(crate) fn send(&self, code: i32, value: i32) {
        // SAFETY: we hold a reference to the pid.
        unsafe { shim::tofu_shim_signal(self.pid, self.number.load(Relaxed), code, value) };
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        // SAFETY: the reference of `new`.
        unsafe { bindings::put_pid(self.pid) };
    }
}
