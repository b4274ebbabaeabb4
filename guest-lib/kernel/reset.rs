// SPDX-License-Identifier: GPL-2.0

//! Resets of the function, by whomever, suspends, and devices that are gone for a while: the device
//! forgets all that it was told. The kernel's own queues are made anew; those of processes are
//! theirs to open again.
//!
//! The kernel tells of what it does itself. Of a function that a program has reset or put to sleep
//! by its configuration, or that was pulled out, it knows nothing, so the device is looked at every
//! second.

use core::fmt::Write;

use kernel::ffi::{c_char, c_void};
use kernel::prelude::*;
use kernel::str::CStr;
use kernel::sync::Arc;

use crate::device::Presence;
use crate::netdev::Interfaces;
use crate::opened::Opened;
use crate::shim;
use crate::stats::Report;
use crate::text::Text;

/// A node that hears of resets of its function. Dropping it takes its interfaces away.
pub(crate) struct Watched {
    opened: Arc<Opened>,
    interfaces: Interfaces,
}

/// Hears of resets until it is dropped.
pub(crate) struct Watch(KBox<Watched>);

impl Watch {
    /// To be called while the driver takes the function.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(opened: &Arc<Opened>, interfaces: Interfaces) -> Result<Self> {
        let opened = opened.clone();
        let function = opened.device.raw_function();
        let this = Self(KBox::new(Watched { opened, interfaces }, GFP_KERNEL)?);
        let data = core::ptr::from_ref::<Watched>(&this.0).cast_mut().cast();
        // SAFETY: it stays where it is until `drop`.
        unsafe { shim::tofu_shim_watch_resets(function, data) };
        Ok(this)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: the kernel holds the function's lock, as it does when it tells of resets.
        unsafe { shim::tofu_shim_unwatch_resets() };
    }
}

impl Watched {
    /// The function is about to be reset.
    fn prepare(&self) {
        // What is set up from here on fails.
        if !self.opened.device.begin_reset() {
            return;
        }
        for interface in self.interfaces.iter().flatten() {
            interface.detach();
        }
        self.opened.lose();
    }

    /// The function was reset.
    fn done(&self) {
        let device = &self.opened.device;
        if device.end_reset().is_err() {
            dev_err!(device.pdev(), "no answer after a reset\n");
            return;
        }
        dev_info!(
            device.pdev(),
            "reset: queues and channels that were open are lost\n"
        );
        shim::tofu_shim_report_healthy();
        for interface in self.interfaces.iter().flatten() {
            if let Err(error) = interface.attach() {
                dev_err!(
                    device.pdev(),
                    "an interface is lost by a reset: {:?}\n",
                    error
                );
            }
        }
    }
}

/// Tells devlink's reporter. The caller holds the function's lock.
fn report(what: &CStr) {
    // SAFETY: the text is there during the call, which copies it.
    unsafe { shim::tofu_shim_report(what.as_char_ptr()) };
}

impl Watched {
    /// Finds out whether the device is as the driver has left it.
    fn look(&self) {
        let device = &self.opened.device;
        let was_lost = device.epoch().is_err();
        match (device.presence(), was_lost) {
            (Presence::AsSet, false) | (Presence::Gone, true) => return,
            (Presence::Gone, false) => {
                dev_err!(device.pdev(), "no answer any more from the device\n");
                report(c"no answer from the device");
                device.set_gone();
                self.prepare();
                return;
            }
            (Presence::Blank, false) => {
                dev_err!(device.pdev(), "something else has reset the device\n");
                report(c"something else has reset the device");
                self.prepare();
            }
            (_, true) => dev_info!(device.pdev(), "the device answers again\n"),
        }
        // SAFETY: the caller of `tofu_rs_look` holds the function's lock.
        unsafe { shim::tofu_shim_recover(device.raw_function()) };
    }
}

/// # Safety
///
/// As for [`tofu_rs_reset_prepare`].
#[no_mangle]
unsafe extern "C" fn tofu_rs_look(data: *mut c_void) {
    // SAFETY: `data` is of a watch that is there, by this function's contract.
    unsafe { &*data.cast::<Watched>() }.look();
}

/// # Safety
///
/// `data` must be of a [`Watch`] that is there.
#[no_mangle]
unsafe extern "C" fn tofu_rs_reset_prepare(data: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { &*data.cast::<Watched>() }.prepare();
}

/// # Safety
///
/// As for [`tofu_rs_reset_prepare`].
#[no_mangle]
unsafe extern "C" fn tofu_rs_reset_done(data: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { &*data.cast::<Watched>() }.done();
}

/// The node's health, in lines of words; as many bytes of it as there is room for.
///
/// # Safety
///
/// `data` must be of a [`Watch`] that is there, and `buf` have `size` bytes for this call alone.
#[no_mangle]
unsafe extern "C" fn tofu_rs_health(data: *mut c_void, buf: *mut c_char, size: usize) -> usize {
    // SAFETY: the caller's promise.
    let (watched, buf) = unsafe {
        (
            &*data.cast::<Watched>(),
            core::slice::from_raw_parts_mut(buf.cast::<u8>(), size),
        )
    };
    let mut text = Text::new(buf);
    // Lines without room are left out.
    let _ = write!(text, "{}", Report(&watched.opened));
    text.len()
}
