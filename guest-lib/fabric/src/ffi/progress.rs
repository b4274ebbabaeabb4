//! Progress of endpoints, which reads of their queues and counters make.

use std::sync::{Arc, Mutex, Weak};

use super::object::lock;

/// An endpoint, as its queues and counters use it.
pub(super) trait Progress: Send + Sync {
    /// Makes progress, and reports what has ended.
    fn progress(&self);

    /// Returns whether there is nothing to do until the device has an event.
    fn is_quiet(&self) -> bool;
}

/// The endpoints that a queue or counter is bound to.
#[derive(Default)]
pub(super) struct Bound(Mutex<Vec<Weak<dyn Progress>>>);

impl Bound {
    pub(super) fn add(&self, endpoint: &Arc<impl Progress + 'static>) {
        let endpoint = Arc::downgrade(endpoint);
        lock(&self.0).push(endpoint);
    }

    fn open(&self) -> Vec<Arc<dyn Progress>> {
        lock(&self.0).iter().filter_map(Weak::upgrade).collect()
    }

    /// Makes progress on all endpoints that are still open.
    pub(super) fn progress(&self) {
        self.open().iter().for_each(|endpoint| endpoint.progress());
    }

    /// Returns whether there is nothing to do until a device has an event.
    pub(super) fn is_quiet(&self) -> bool {
        self.open().iter().all(|endpoint| endpoint.is_quiet())
    }
}
