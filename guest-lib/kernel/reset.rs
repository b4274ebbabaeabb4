// SPDX-License-Identifier: GPL-2.0

//! Resets of the function from any source, suspends, and devices that are gone for a while. In all
//! cases the device loses its settings. The kernel's own queues are set up again; processes must
//! open theirs again.
//!
//! The kernel notifies the driver of its own resets. It does not notice if a program resets the
//! function or puts it to sleep by its configuration space, or if the function is unplugged. So the
//! device is polled every second.

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

/// A node that is notified of resets of its function. Dropping it removes its interfaces.
pub(crate) struct Watched {
    opened: Arc<Opened>,
    interfaces: Interfaces,
}

/// Gets notifications of resets until it is dropped.
pub(crate) struct Watch(KBox<Watched>);

impl Watch {
    /// Must be called during probe.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(opened: &Arc<Opened>, interfaces: Interfaces) -> Result<Self> {
        let opened = opened.clone();
        let function = opened.device.raw_function();
        let this = Self(KBox::new(Watched { opened, interfaces }, GFP_KERNEL)?);
        let data = core::ptr::from_ref::<Watched>(&this.0).cast_mut().cast();
        // SAFETY: it does not move until `drop`.
        unsafe { shim::tofu_shim_watch_resets(function, data) };
        Ok(this)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: the kernel holds the function's lock, as it does for its notifications of resets.
        unsafe { shim::tofu_shim_unwatch_resets() };
    }
}

impl Watched {
    /// Prepares for a reset of the function.
    fn prepare(&self) {
        // Set-up attempts fail from here on.
        if !self.opened.device.begin_reset() {
            return;
        }
        for interface in self.interfaces.iter().flatten() {
            interface.detach();
        }
        self.opened.lose();
    }

    /// Handles the end of a reset.
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
        self.opened.free_kept();
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

/// Notifies devlink's health reporter. The caller holds the function's lock.
fn report(what: &CStr) {
    // SAFETY: the text exists during the call, which copies it.
    unsafe { shim::tofu_shim_report(what.as_char_ptr()) };
}

impl Watched {
    /// Checks whether the device still has its settings.
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
    // SAFETY: `data` belongs to a watch that exists, by this function's contract.
    unsafe { &*data.cast::<Watched>() }.look();
}

/// # Safety
///
/// `data` must belong to a [`Watch`] that exists.
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

/// Writes the node's health, in lines of words, as far as there is room.
///
/// # Safety
///
/// `data` must belong to a [`Watch`] that exists, and `buf` must have `size` bytes that nothing
/// else uses.
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
