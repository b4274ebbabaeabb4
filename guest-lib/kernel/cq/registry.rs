// SPDX-License-Identifier: GPL-2.0

//! Which queues of a node are open.

use kernel::prelude::*;
use kernel::sync::{new_mutex, Arc, Mutex};

use crate::ids::QueueId;

use super::queue::Cq;

/// The open queues of a node.
#[pin_data]
pub(crate) struct OpenQueues {
    #[pin]
    queues: Mutex<KVec<Arc<Cq>>>,
}

impl OpenQueues {
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let this = pin_init!(Self { queues <- new_mutex!(KVec::new()) });
        Arc::pin_init(this, GFP_KERNEL)
    }

    /// Notes that a queue is open.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it is already, `ENOMEM`.
    pub(crate) fn add(&self, queue: &Arc<Cq>) -> Result {
        let mut queues = self.queues.lock();
        if queues.iter().any(|open| open.id() == queue.id()) {
            return Err(EBUSY);
        }
        Ok(queues.push(queue.clone(), GFP_KERNEL)?)
    }

    /// Forgets a queue, which others may open from now on.
    pub(crate) fn remove(&self, queue: &Arc<Cq>) {
        self.queues.lock().retain(|open| !Arc::ptr_eq(open, queue));
    }

    /// The open queue of this name.
    pub(crate) fn get(&self, id: QueueId) -> Option<Arc<Cq>> {
        let queues = self.queues.lock();
        queues.iter().find(|open| open.id() == id).cloned()
    }
}
