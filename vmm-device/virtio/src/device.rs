//! The interface between a kind of device and its transport.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use event_manager::EventSet;
use vmm_sys_util::eventfd::EventFd;

use crate::DeviceMemory;
use crate::ring::{Broken, Chain, Ring};
use crate::shared::Core;

/// The registers of a device.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Number of the device (1.2, 5); see [`crate::regs::kind`].
    pub kind: u16,
    /// PCI class code, 24 bits.
    pub class: u32,
    /// Features of the device; those of rings and transport are added.
    pub features: u64,
    /// Entries of each queue at most, each a power of two.
    pub queues: Vec<u16>,
    /// Its configuration, which never changes except for [`Device::fields`].
    pub config: Vec<u8>,
}

/// The state of a device after some work: finished, or with more to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// It may go to sleep: it will be woken.
    Done,
    /// It has ended its turn early, and wants another one.
    More,
}

/// A descriptor of the host's that a device waits for.
pub struct Interest {
    /// The descriptor.
    pub stream: Arc<UnixStream>,
    /// For what; not empty.
    pub events: EventSet,
}

/// Fields of a configuration that change, or that a driver may write. Called by vCPUs at any time.
pub trait ConfigFields: Send + Sync {
    /// Puts the fields as they are now into the configuration.
    fn read(&self, config: &mut [u8]);

    /// The driver writes `data` at `offset`; both are unchecked.
    fn write(&self, offset: u64, data: &[u8]);
}

/// A kind of device: all but the first method run on its own thread, except for
/// [`Device::reset`], which may run on a vCPU's while that thread is between two
/// turns.
pub trait Device: Send {
    /// Its registers.
    fn identity(&self) -> Identity;

    /// Gets what ends its sleep, before anything else. For devices that have a host's side.
    fn connect(&mut self, _wake: EventFd) {}

    /// The fields of its configuration that can change. Asked once.
    fn fields(&self) -> Option<Arc<dyn ConfigFields>> {
        None
    }

    /// Does the pending work, for one turn of bounded length: some queue was notified, a wanted
    /// descriptor is ready, or anything else happened. Called only between DRIVER_OK and reset.
    ///
    /// # Errors
    /// The device is reset, and requests a reset from the driver.
    fn work(&mut self, io: &mut Io<'_>) -> Result<Work, Broken>;

    /// The events, besides notifications, that end its sleep. Asked after each turn.
    fn interests(&self, _interests: &mut Vec<Interest>) {}

    /// Back to the state after power-on.
    fn reset(&mut self);
}

/// A device's access to its rings and to guest memory.
pub struct Io<'a> {
    pub(crate) core: &'a Core,
    pub(crate) rings: &'a mut [Option<Ring>],
    pub(crate) features: u64,
}

impl<'a> Io<'a> {
    /// Memory at the addresses that buffers have.
    pub fn memory(&self) -> &'a DeviceMemory {
        &self.core.memory
    }

    /// Returns true if driver and device have agreed on these features.
    pub(crate) fn negotiated(&self, features: u64) -> bool {
        self.features & features == features
    }

    /// The next chain of a queue. If there is none the device will be woken when there is.
    /// A queue that is not in use, or belongs to a device about to be reset, has none.
    ///
    /// # Errors
    /// If the ring or the chain is not as it can be.
    pub fn pop(&mut self, queue: usize) -> Result<Option<Chain>, Broken> {
        match self.rings.get_mut(queue) {
            Some(Some(ring)) if self.core.may_work() => ring.pop(&self.core.memory),
            _ => Ok(None),
        }
    }

    /// Gives a chain back to the driver with `written` bytes in it.
    ///
    /// # Errors
    /// If the ring is not as it can be.
    pub fn complete(&mut self, queue: usize, chain: Chain, written: u32) -> Result<(), Broken> {
        if let Some(Some(ring)) = self.rings.get_mut(queue)
            && ring.complete(&self.core.memory, chain, written)?
        {
            self.core.interrupt_queue(queue);
        }
        Ok(())
    }

    /// Logs a line about this device: the first one as a warning, the others at debug level,
    /// because a guest can cause any number of them.
    pub fn complain(&self, what: &dyn std::fmt::Display) {
        self.core.complain(what);
    }
}
