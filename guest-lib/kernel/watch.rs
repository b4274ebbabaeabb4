// SPDX-License-Identifier: GPL-2.0

//! How the driver learns that registered memory is unmapped, or its process gone.

use kernel::bindings;
use kernel::mm::Mm;
use kernel::prelude::*;
use kernel::sync::aref::ARef;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::Arc;
use kernel::types::Opaque;

use crate::cq::Cq;

/// What is watched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// One of the queue's rings.
    Ring,
    /// Memory with this STag.
    Stag(u32),
}

/// Tells a queue when a range of a process's addresses is unmapped.
#[pin_data(PinnedDrop)]
pub(crate) struct Watch {
    #[pin]
    notifier: Opaque<bindings::mmu_interval_notifier>,
    cq: Arc<Cq>,
    what: What,
    /// Whether the process may have other pages in place of those that are pinned.
    touched: Atomic<bool>,
}

// SAFETY: the notifier is the kernel's until it is removed, which any thread may do.
unsafe impl Send for Watch {}
// SAFETY: shared references only read what was set at creation.
unsafe impl Sync for Watch {}

static OPS: bindings::mmu_interval_notifier_ops = bindings::mmu_interval_notifier_ops {
    invalidate: Some(invalidate),
    invalidate_start: None,
    invalidate_finish: None,
};

impl Watch {
    /// Watches `len` bytes from `start`. [`Cq::unmapped`] may be called before this returns.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, or `EINVAL` for addresses that no process has.
    pub(crate) fn new(
        cq: &Arc<Cq>,
        what: What,
        mm: &ARef<Mm>,
        start: u64,
        len: u64,
    ) -> Result<Pin<KBox<Self>>> {
        let mm = mm.as_raw();
        KBox::try_pin_init(
            try_pin_init!(&this in Self {
                cq: cq.clone(),
                what,
                touched: Atomic::new(false),
                notifier: Opaque::zeroed(),
                _: {
                    // SAFETY: the notifier stays where it is until `drop` removes it; the other
                    // fields, which the callback uses, are there.
                    kernel::error::to_result(unsafe {
                        bindings::mmu_interval_notifier_insert(
                            Opaque::cast_into(&raw const (*this.as_ptr()).notifier),
                            mm,
                            start as usize,
                            len as usize,
                            &OPS,
                        )
                    })?;
                },
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Whether the process's page table still has the pages that were there at first.
    pub(crate) fn is_untouched(&self) -> bool {
        !self.touched.load(Relaxed)
    }
}

#[pinned_drop]
impl PinnedDrop for Watch {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: inserted in `new`. Waits for a callback that runs.
        unsafe { bindings::mmu_interval_notifier_remove(self.notifier.get()) };
    }
}

/// # Safety
///
/// For the kernel alone, of a notifier that [`Watch::new`] has inserted.
unsafe extern "C" fn invalidate(
    notifier: *mut bindings::mmu_interval_notifier,
    range: *const bindings::mmu_notifier_range,
    _seq: usize,
) -> bool {
    // SAFETY: the kernel hands us a range that is there during the call.
    let (event, flags) = unsafe { ((*range).event, (*range).flags) };
    // SAFETY: only notifiers of a `Watch` have this callback, and it is there until the notifier
    // is removed.
    let watch = unsafe { &*kernel::container_of!(Opaque::cast_from(notifier), Watch, notifier) };
    watch.touched.store(true, Relaxed);
    // Pages are pinned, so the other events do not take them away from the device.
    if event != bindings::mmu_notifier_event_MMU_NOTIFY_UNMAP
        && event != bindings::mmu_notifier_event_MMU_NOTIFY_RELEASE
    {
        return true;
    }
    // Emptying the device's cache sleeps. Who cannot wait (the OOM killer's reaper) leaves this
    // memory alone.
    if flags & bindings::MMU_NOTIFIER_RANGE_BLOCKABLE == 0 {
        return false;
    }
    watch.cq.unmapped(watch.what);
    true
}
