// SPDX-License-Identifier: GPL-2.0

//! Notifications to the driver that memory of a process is unmapped, or that the process has ended.

use kernel::bindings;
use kernel::mm::Mm;
use kernel::prelude::*;
use kernel::sync::aref::ARef;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::Arc;
use kernel::types::Opaque;

/// Memory that a queue uses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum UsedMemory {
    /// One of the queue's rings.
    Ring,
    /// The registration under this STag.
    Stag(u32),
}

/// The users of memory of a process.
pub(crate) trait MemoryUser: Send + Sync {
    /// Called when the memory is unmapped, or its process has ended. When this returns, the device
    /// no longer uses it. The kernel calls this under locks of the process's memory: no memory may
    /// be allocated or pinned.
    fn unmapped(self: Arc<Self>, memory: UsedMemory);
}

/// Notifies a user of memory when a range of a process's addresses is unmapped.
#[pin_data(PinnedDrop)]
pub(crate) struct UnmapNotifier {
    #[pin]
    notifier: Opaque<bindings::mmu_interval_notifier>,
    user: Arc<dyn MemoryUser>,
    memory: UsedMemory,
    /// True if the process may have other pages in place of those that are pinned.
    touched: Atomic<bool>,
}

// SAFETY: the kernel has the notifier until it is removed, which any thread may do.
unsafe impl Send for UnmapNotifier {}
// SAFETY: shared references only read what was set at creation.
unsafe impl Sync for UnmapNotifier {}

static OPS: bindings::mmu_interval_notifier_ops = bindings::mmu_interval_notifier_ops {
    invalidate: Some(invalidate),
    invalidate_start: None,
    invalidate_finish: None,
};

impl UnmapNotifier {
    /// Watches the addresses from `start` to `end`. [`MemoryUser::unmapped`] may be called before
    /// this returns.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, or `EINVAL` for addresses outside of the user's part.
    pub(crate) fn new(
        user: Arc<dyn MemoryUser>,
        memory: UsedMemory,
        mm: &ARef<Mm>,
        (start, end): (u64, u64),
    ) -> Result<Pin<KBox<Self>>> {
        let mm = mm.as_raw();
        KBox::try_pin_init(
            try_pin_init!(&this in Self {
                user,
                memory,
                touched: Atomic::new(false),
                notifier: Opaque::zeroed(),
                _: {
                    // SAFETY: the notifier does not move until `drop` removes it; the other fields,
                    // which the callback uses, exist.
                    kernel::error::to_result(unsafe {
                        bindings::mmu_interval_notifier_insert(
                            Opaque::cast_into(&raw const (*this.as_ptr()).notifier),
                            mm,
                            start as usize,
                            (end - start) as usize,
                            &OPS,
                        )
                    })?;
                },
            }? Error),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Returns true if the process's page table still has the original pages.
    pub(crate) fn is_untouched(&self) -> bool {
        !self.touched.load(Relaxed)
    }
}

#[pinned_drop]
impl PinnedDrop for UnmapNotifier {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: inserted in `new`. Waits for a running callback.
        unsafe { bindings::mmu_interval_notifier_remove(self.notifier.get()) };
    }
}

/// # Safety
///
/// Only the kernel may call this, for a notifier that [`UnmapNotifier::new`] has inserted.
unsafe extern "C" fn invalidate(
    notifier: *mut bindings::mmu_interval_notifier,
    range: *const bindings::mmu_notifier_range,
    _seq: usize,
) -> bool {
    // SAFETY: the kernel passes a range that exists during the call.
    let (event, flags) = unsafe { ((*range).event, (*range).flags) };
    // SAFETY: only notifiers of an `UnmapNotifier` have this callback, and it exists until the
    // notifier is removed.
    let this =
        unsafe { &*kernel::container_of!(Opaque::cast_from(notifier), UnmapNotifier, notifier) };
    this.touched.store(true, Relaxed);
    // The pages are pinned, so other events do not take them away from the device.
    if event != bindings::mmu_notifier_event_MMU_NOTIFY_UNMAP
        && event != bindings::mmu_notifier_event_MMU_NOTIFY_RELEASE
    {
        return true;
    }
    // Flushing the device's cache sleeps. A caller that cannot sleep (the OOM reaper) leaves this
    // memory alone.
    if flags & bindings::MMU_NOTIFIER_RANGE_BLOCKABLE == 0 {
        return false;
    }
    this.user.clone().unmapped(this.memory);
    true
}
