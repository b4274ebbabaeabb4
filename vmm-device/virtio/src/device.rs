//! The interface between a kind of device and its transport.
//!
//! # Devices
//!
//! **Block device** (5.2), device ID `1042`, class `018000`. It has one queue of 128. It uses a raw
//! image or a block device of the host, and the whole sectors of 512 bytes in it are the capacity.
//! A request has up to 64 buffers of 64 KiB (`SEG_MAX`, `SIZE_MAX`) (ours). A longer request fails,
//! as does one that is not whole sectors, ends behind the capacity, or has a buffer outside of
//! memory. `FLUSH` and `GET_ID` work; if a driver has not accepted `FLUSH`, each write is synced.
//! Discard and write zeroes are not offered. The image is locked with flock(2): one writer, or any
//! number of readers, on this host.
//!
//! **Entropy source** (5.4), device ID `1044`, class `ff0000`. It has one queue of 64. A request
//! gets at most 4096 bytes (ours), from getrandom(2).
//!
//! **Console** (5.3), device ID `1043`, class `078000`. Its queues have 64 entries. It has up to 16
//! ports (ours), each connected to a UNIX stream of the host. A single unnamed terminal comes
//! without `MULTIPORT`; everything else comes with it. The agent is found by the name of its port:
//! where udev runs, Linux makes it `/dev/virtio-ports/org.tofu.agent`; without udev the name is in
//! `/sys/class/virtio-ports/*/name`, next to `dev`.
//!
//! The monitor buffers nothing: bytes stay in the stream until the guest has a buffer, and in the
//! guest's buffer until the stream takes them. Data that a guest writes to a port without a stream
//! is lost. `PORT_OPEN` tells the driver when the host's end closes or another one is connected.
//!
//! **IOMMU** (5.13), device ID `1057`, class `080600`. It has a request queue of 256 and an event
//! queue of 64.
//!
//! - features: `INPUT_RANGE`, `DOMAIN_RANGE`, `MAP_UNMAP`, `PROBE`, `BYPASS_CONFIG`
//! - pages (ours): 4 KiB and any multiple
//! - addresses (ours): 0 to 2^48 - 1. `PROBE` reports `0xfee0_0000` to `0xfeef_ffff` as reserved
//!   for interrupt messages; mapping there is `INVAL`
//! - domains (ours): 0 to `0xffff`; a domain exists as long as an endpoint is attached to it
//! - endpoints: those that the monitor has created; identified by their PCI function (ours)
//! - mappings (ours): 2^20 in all domains together, further ones are `NOMEM`
//! - `bypass`: 1 at first (ours); a reset keeps it, but detaches all endpoints and forgets all
//!   mappings
//!
//! A request whose parts have other sizes than its type has is `INVAL`; one of an unknown type is
//! `UNSUPP`. `MAP` over an existing mapping is `INVAL`. `UNMAP` that would cut a mapping in two is
//! `RANGE` and removes nothing. Rights are those of the mapping: a range that is mapped for writing
//! only cannot be read.
//!
//! `UNMAP`, `DETACH`, `ATTACH` to another domain, a reset and a write to `bypass` return only when
//! every access that may have used the removed mappings has ended. Refused accesses are reported on
//! the event queue. Up to 64 reports wait for a buffer, and at most 100 a second are made (ours);
//! the rest is lost.
//!
//! Interrupt messages are not translated.

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
