// SPDX-License-Identifier: GPL-2.0

//! The process that opened a queue or channel. Only this process may use the file, and all later
//! operations on the file have its rights.

use core::ptr::NonNull;

use kernel::bindings;
use kernel::cred::Credential;
use kernel::mm::Mm;
use kernel::prelude::*;
use kernel::sync::aref::ARef;

use crate::shim;

/// A process, by its memory and its credentials at the time of open.
pub(crate) struct Opener {
    pid: *mut bindings::pid,
    mm: ARef<Mm>,
    cred: ARef<Credential>,
}

// SAFETY: a `struct pid` is reference counted and used under RCU by any thread.
unsafe impl Send for Opener {}
// SAFETY: the operations of a shared reference, to check and to signal, are allowed in any thread.
unsafe impl Sync for Opener {}

/// The conditions for a signal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// Unconditionally.
    Always,
    /// Only if the process handles or ignores it, so that the signal does not end it.
    IfHandled,
}

impl Opener {
    /// The calling process.
    ///
    /// # Errors
    ///
    /// `EPERM` for a kernel thread.
    pub(crate) fn current() -> Result<Self> {
        let mm = current_mm()?;
        let cred = shim::tofu_shim_current_cred();
        let cred = NonNull::new(cred.cast_mut().cast()).ok_or(EPERM)?;
        Ok(Self {
            pid: shim::tofu_shim_current_pid(),
            mm,
            // SAFETY: the credentials exist, with a reference of ours, which is dropped here.
            cred: unsafe { ARef::from_raw(cred) },
        })
    }

    /// Checks that the caller is this process, with the same users. A child, another program after
    /// exec, and a process that was sent the descriptor are not.
    ///
    /// # Errors
    ///
    /// `EPERM` for other memory, `EACCES` for other users.
    pub(crate) fn check(&self) -> Result {
        if self.mm.as_raw() != current_mm()?.as_raw() {
            return Err(EPERM);
        }
        // SAFETY: we have a reference.
        if unsafe { shim::tofu_shim_is_current_cred(self.cred()) } {
            Ok(())
        } else {
            Err(EACCES)
        }
    }

    /// Its memory.
    pub(crate) fn mm(&self) -> &ARef<Mm> {
        &self.mm
    }

    /// Its credentials.
    pub(crate) fn cred(&self) -> *const bindings::cred {
        self.cred.as_ptr()
    }

    /// Sends the process a signal, unless it has executed another program, or has a user whom the
    /// opener may not signal. May be called by an interrupt handler.
    pub(crate) fn signal(&self, number: i32, code: i32, value: i32, delivery: Delivery) {
        let if_handled = delivery == Delivery::IfHandled;
        let (mm, cred) = (self.mm.as_raw(), self.cred());
        // SAFETY: we have references to all of them.
        unsafe { shim::tofu_shim_signal(self.pid, mm, cred, number, code, value, if_handled) };
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        // SAFETY: the reference of `current`.
        unsafe { bindings::put_pid(self.pid) };
    }
}

fn current_mm() -> Result<ARef<Mm>> {
    let current = kernel::current!();
    let mm: &Mm = current.mm().ok_or(EPERM)?;
    Ok(mm.into())
}
