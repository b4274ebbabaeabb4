// SPDX-License-Identifier: GPL-2.0

//! The open queues and channels of a node.

use kernel::fmt;
use kernel::prelude::*;
use kernel::sync::{new_mutex, Arc, Mutex};

use crate::bch::Bch;
use crate::cq::Cq;
use crate::device::Device;
use crate::ids::{ChannelId, QueueId};
use crate::kept::Kept;

/// A node's device, and its open queues and channels.
#[pin_data]
pub(crate) struct Opened {
    pub(crate) device: Arc<Device>,
    #[pin]
    queues: Mutex<KVec<Arc<Cq>>>,
    #[pin]
    channels: Mutex<KVec<Arc<Bch>>>,
    /// Closed queues whose memory the device may still use.
    kept: Arc<Kept<Arc<Cq>>>,
}

impl Opened {
    /// Creates the state for a device without open queues and channels.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Arc<Self>> {
        let kept = Kept::new(device)?;
        let this = pin_init!(Self {
            device: device.clone(),
            queues <- new_mutex!(KVec::new()),
            channels <- new_mutex!(KVec::new()),
            kept,
        });
        Arc::pin_init(this, GFP_KERNEL)
    }

    /// Opens a queue for the calling process.
    ///
    /// # Errors
    ///
    /// `EACCES` if the user may not use it, `EBUSY` if it is open already, `ENOMEM`.
    pub(crate) fn open_queue(&self, id: QueueId) -> Result<Arc<Cq>> {
        let queue = Cq::open(&self.device, id)?;
        add(&mut self.queues.lock(), &queue, |open| open.id() == id)?;
        Ok(queue)
    }

    /// Opens a channel for the calling process.
    ///
    /// # Errors
    ///
    /// As [`Opened::open_queue`].
    pub(crate) fn open_channel(&self, id: ChannelId) -> Result<Arc<Bch>> {
        let channel = Bch::open(&self.device, id)?;
        add(&mut self.channels.lock(), &channel, |open| open.id() == id)?;
        Ok(channel)
    }

    /// Closes a queue permanently. Others may then open it.
    pub(crate) fn close_queue(&self, queue: &Arc<Cq>) {
        if !queue.release() {
            self.kept.add(queue.clone());
        }
        self.queues.lock().retain(|open| !Arc::ptr_eq(open, queue));
    }

    /// Frees the memory of closed queues that the device can no longer use.
    pub(crate) fn free_kept(&self) {
        self.kept.free();
    }

    /// Closes a channel permanently.
    pub(crate) fn close_channel(&self, channel: &Arc<Bch>) {
        channel.release();
        self.channels
            .lock()
            .retain(|open| !Arc::ptr_eq(open, channel));
    }

    /// The open queue of this name.
    pub(crate) fn queue(&self, id: QueueId) -> Option<Arc<Cq>> {
        let queues = self.queues.lock();
        queues.iter().find(|open| open.id() == id).cloned()
    }

    /// Stops all queues and channels before the device loses them, and notifies their processes.
    pub(crate) fn lose(&self) {
        self.queues.lock().iter().for_each(|queue| queue.lose());
        self.channels.lock().iter().for_each(|open| open.lose());
    }

    /// Returns true if queues or channels that the device has lost are still open.
    pub(crate) fn has_lost(&self) -> bool {
        self.queues.lock().iter().any(|open| open.is_lost())
            || self.channels.lock().iter().any(|open| open.is_lost())
    }

    /// Writes a line for each of those.
    ///
    /// # Errors
    ///
    /// Those of the formatter.
    pub(crate) fn write_lost(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for queue in self.queues.lock().iter().filter(|open| open.is_lost()) {
            writeln!(f, "{} LOST", queue.id())?;
        }
        for channel in self.channels.lock().iter().filter(|open| open.is_lost()) {
            writeln!(f, "{} LOST", channel.id())?;
        }
        Ok(())
    }
}

fn add<T>(open: &mut KVec<Arc<T>>, new: &Arc<T>, is_same: impl Fn(&T) -> bool) -> Result {
    if open.iter().any(|open| is_same(open)) {
        return Err(EBUSY);
    }
    Ok(open.push(new.clone(), GFP_KERNEL)?)
}
