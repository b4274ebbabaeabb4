//! Progress of endpoints, which reads of their queues and counters make.

use std::sync::{Arc, Mutex, Weak};

use super::object::lock;

/// An endpoint, as its queues and counters use it.
pub(super) trait Progress: Send + Sync {
    /// Makes progress, and reports what has ended.
    fn progress(&self);
}

/// The endpoints that a queue or counter is bound to.
#[derive(Default)]
pub(super) struct Bound(Mutex<Vec<Weak<dyn Progress>>>);

impl Bound {
    pub(super) fn add(&self, endpoint: &Arc<impl Progress + 'static>) {
        let endpoint = Arc::downgrade(endpoint);
        lock(&self.0).push(endpoint);
    }

    /// Makes progress of all that are still open.
    pub(super) fn progress(&self) {
        let endpoints: Vec<_> = lock(&self.0).iter().filter_map(Weak::upgrade).collect();
        endpoints.iter().for_each(|endpoint| endpoint.progress());
    }
}
