// SPDX-License-Identifier: GPL-2.0

//! Which queues of a node are open.

use kernel::prelude::*;
use kernel::sync::{new_mutex, Arc, Mutex};

use tofu_abi::regs::NUM_TNI;

use crate::users::USER_CQS;

use super::queue::Cq;

/// The open queues of a node.
#[pin_data]
pub(crate) struct OpenQueues {
    #[pin]
    queues: Mutex<[[Option<Arc<Cq>>; USER_CQS]; NUM_TNI]>,
}

impl OpenQueues {
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                queues <- new_mutex!([const { [const { None }; USER_CQS] }; NUM_TNI]),
            }),
            GFP_KERNEL,
        )
    }

    /// Notes that a queue is open.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it is already.
    pub(crate) fn claim(&self, (tni, cq): (u8, u8), queue: &Arc<Cq>) -> Result {
        let mut queues = self.queues.lock();
        let open = queues
            .get_mut(usize::from(tni))
            .and_then(|queues| queues.get_mut(usize::from(cq)))
            .ok_or(ENODEV)?;
        if open.is_some() {
            return Err(EBUSY);
        }
        *open = Some(queue.clone());
        Ok(())
    }

    /// Forgets a queue, which others may open from now on.
    pub(crate) fn give_up(&self, (tni, cq): (u8, u8)) {
        let gone = {
            let mut queues = self.queues.lock();
            let open = queues
                .get_mut(usize::from(tni))
                .and_then(|queues| queues.get_mut(usize::from(cq)));
            open.and_then(Option::take)
        };
        // Outside of the lock: it may be the last reference.
        drop(gone);
    }

    /// The open queue of these numbers.
    pub(crate) fn get(&self, (tni, cq): (u8, u8)) -> Option<Arc<Cq>> {
        let queues = self.queues.lock();
        queues.get(usize::from(tni))?.get(usize::from(cq))?.clone()
    }
}
