// SPDX-License-Identifier: GPL-2.0

//! Memory that a device may still use, as it was not seen to stop. It is kept until the function
//! was reset, or pulled out. If that never happens, it is lost.

use core::mem::ManuallyDrop;

use kernel::prelude::*;
use kernel::sync::{new_mutex, Arc, Mutex};

use crate::device::Device;

/// Something that is kept, and the device's period when it was put here.
struct Item<T> {
    since: u64,
    /// `None` once it was freed.
    value: ManuallyDrop<Option<T>>,
}

/// A list of such things. What is left when it is dropped is lost.
#[pin_data]
pub(crate) struct Kept<T> {
    device: Arc<Device>,
    #[pin]
    items: Mutex<KVec<Item<T>>>,
}

impl<T> Kept<T> {
    /// Creates an empty list.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Arc<Self>> {
        let this = pin_init!(Self {
            device: device.clone(),
            items <- new_mutex!(KVec::new()),
        });
        Arc::pin_init(this, GFP_KERNEL)
    }

    /// Keeps something. It is lost if there is no memory for the list.
    pub(crate) fn add(&self, value: T) {
        let item = Item {
            since: self.device.period(),
            value: ManuallyDrop::new(Some(value)),
        };
        let _ = self.items.lock().push(item, GFP_KERNEL);
    }

    /// Frees what the device can no longer use. May sleep.
    pub(crate) fn free(&self) {
        self.items.lock().retain(|item| {
            let is_free = self.device.has_ended(item.since);
            if is_free {
                drop(item.value.take());
            }
            !is_free
        });
    }
}
