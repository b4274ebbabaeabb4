//! Split rings, over virtio-queue, and the chains of buffers that come through them.

use std::sync::atomic::Ordering::Acquire;

use thiserror::Error;
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemory, Permissions, VolatileSlice};

use crate::DeviceMemory;

/// Available ring flag: the driver wants no interrupts (1.2, 2.7.6).
const AVAIL_NO_INTERRUPT: u16 = 1;

/// The guest did something that a driver may not do; the device needs a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Broken(pub &'static str);

/// A driver's settings of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QueueSettings {
    /// Entries; a power of two.
    pub(crate) size: u16,
    pub(crate) enabled: bool,
    pub(crate) desc: u64,
    pub(crate) avail: u64,
    pub(crate) used: u64,
}

/// A queue in use.
pub(crate) struct Ring {
    queue: Queue,
    /// True if the driver was asked to notify when it adds something.
    armed: bool,
    /// The memory of a chain that was completed, for the next one.
    spare: Vec<Segment>,
}

impl Ring {
    /// Checks what the driver has said: rings that are aligned and in memory.
    pub(crate) fn new(
        settings: &QueueSettings,
        event_idx: bool,
        memory: &DeviceMemory,
    ) -> Result<Self, Broken> {
        let Ok(mut queue) = Queue::new(settings.size) else {
            return Err(Broken("a queue size that is no power of two"));
        };
        let size = u64::from(settings.size);
        // With the event fields at the ends of the rings (1.2, 2.7).
        let parts = [
            (settings.desc, 16 * size, Permissions::Read),
            (settings.avail, 6 + 2 * size, Permissions::Read),
            (settings.used, 6 + 8 * size, Permissions::Write),
        ];
        let inside = |&(start, len, access): &(u64, u64, Permissions)| {
            memory.check_range(GuestAddress(start), len as usize, access)
        };
        // virtio-queue takes an available ring at 0 for one that was not set.
        if !parts.iter().all(inside) || settings.avail == 0 {
            return Err(Broken("a ring outside of memory"));
        }
        queue
            .try_set_desc_table_address(GuestAddress(settings.desc))
            .and_then(|()| queue.try_set_avail_ring_address(GuestAddress(settings.avail)))
            .and_then(|()| queue.try_set_used_ring_address(GuestAddress(settings.used)))
            .map_err(|_| Broken("a ring that is not aligned"))?;
        queue.set_event_idx(event_idx);
        queue.set_ready(true);
        Ok(Self { queue, armed: true, spare: Vec::new() })
    }

    /// The next chain. If there is none the driver will notify when there is.
    pub(crate) fn pop(&mut self, memory: &DeviceMemory) -> Result<Option<Chain>, Broken> {
        const LOST: Broken = Broken("a ring that is gone");
        loop {
            let next =
                self.queue.iter(memory).map_err(|_| Broken("an impossible ring index"))?.next();
            if let Some(chain) = next {
                if self.armed {
                    self.queue.disable_notification(memory).map_err(|_| LOST)?;
                    self.armed = false;
                }
                let spare = std::mem::take(&mut self.spare);
                return Chain::collect(chain, self.queue.size(), spare).map(Some);
            }
            if self.armed {
                return Ok(None);
            }
            self.armed = true;
            if !self.queue.enable_notification(memory).map_err(|_| LOST)? {
                return Ok(None);
            }
        }
    }

    /// Returns a chain to the driver with `written` bytes in it. Returns whether the driver wants
    /// to be interrupted.
    pub(crate) fn complete(
        &mut self,
        memory: &DeviceMemory,
        chain: Chain,
        written: u32,
    ) -> Result<bool, Broken> {
        const LOST: Broken = Broken("a used ring that is gone");
        self.queue.add_used(memory, chain.head, written).map_err(|_| LOST)?;
        self.spare = chain.segments;
        let needed = self.queue.needs_notification(memory).map_err(|_| LOST)?;
        if !needed || self.queue.event_idx_enabled() {
            return Ok(needed);
        }
        let flags: u16 =
            memory.load(GuestAddress(self.queue.avail_ring()), Acquire).map_err(|_| LOST)?;
        Ok(u16::from_le(flags) & AVAIL_NO_INTERRUPT == 0)
    }
}

/// One buffer of a chain. It may lie outside memory.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: GuestAddress,
    len: u32,
}

/// A chain of buffers: first those that the device reads, then those that it writes.
#[derive(Debug)]
pub struct Chain {
    head: u16,
    segments: Vec<Segment>,
    readable: usize,
}

impl Chain {
    /// Follows a chain of at most `limit` buffers, the longest that a driver may make (1.2,
    /// 2.7.5.3.1).
    fn collect(
        mut chain: DescriptorChain<&DeviceMemory>,
        limit: u16,
        mut segments: Vec<Segment>,
    ) -> Result<Self, Broken> {
        segments.clear();
        let (mut readable, mut ended) = (0, false);
        for descriptor in chain.by_ref().take(usize::from(limit)) {
            ended = !descriptor.has_next();
            if !descriptor.is_write_only() {
                if readable != segments.len() {
                    return Err(Broken("a readable buffer behind a writable one"));
                }
                readable += 1;
            }
            segments.push(Segment { start: descriptor.addr(), len: descriptor.len() });
        }
        // virtio-queue ends a chain early if it loops, leaves its table, or has a table in a table.
        // That is detected by a last descriptor that names a next one.
        if !ended {
            return Err(Broken("a chain that does not end"));
        }
        Ok(Self { head: chain.head_index(), segments, readable })
    }

    /// Bytes that the device may read.
    pub fn readable(&self) -> u64 {
        total(&self.segments[..self.readable])
    }

    /// Bytes that the device may write.
    pub fn writable(&self) -> u64 {
        total(&self.segments[self.readable..])
    }

    /// The memory of `len` bytes from the `from`th readable one on, part by part; fewer if the
    /// chain ends before. A part outside of memory is an error, and not the last item.
    pub(crate) fn read_slices<'a>(
        &'a self,
        memory: &'a DeviceMemory,
        from: u64,
        len: u64,
    ) -> impl Iterator<Item = Result<VolatileSlice<'a>, Broken>> {
        slices(&self.segments[..self.readable], memory, Permissions::Read, from, len)
    }

    /// The same for those that the device writes.
    pub(crate) fn write_slices<'a>(
        &'a self,
        memory: &'a DeviceMemory,
        from: u64,
        len: u64,
    ) -> impl Iterator<Item = Result<VolatileSlice<'a>, Broken>> {
        slices(&self.segments[self.readable..], memory, Permissions::Write, from, len)
    }

    /// Fills `data` from the `from`th readable byte on.
    ///
    /// # Errors
    /// If the chain is shorter, or a buffer lies outside of memory.
    pub fn read(&self, memory: &DeviceMemory, from: u64, data: &mut [u8]) -> Result<(), Broken> {
        let mut done = 0;
        for slice in self.read_slices(memory, from, data.len() as u64) {
            done += slice?.copy_to(&mut data[done..]);
        }
        if done == data.len() { Ok(()) } else { Err(SHORT) }
    }

    /// Writes `data` from the `from`th writable byte on.
    ///
    /// # Errors
    /// If the chain is shorter, or a buffer lies outside of memory.
    pub fn write(&self, memory: &DeviceMemory, from: u64, data: &[u8]) -> Result<(), Broken> {
        let mut done = 0;
        for slice in self.write_slices(memory, from, data.len() as u64) {
            let slice = slice?;
            slice.copy_from(&data[done..]);
            done += slice.len();
        }
        if done == data.len() { Ok(()) } else { Err(SHORT) }
    }
}

const OUTSIDE: Broken = Broken("a buffer outside of memory");
const SHORT: Broken = Broken("a request that is too short");

fn total(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.len)).sum()
}

fn slices<'a>(
    segments: &'a [Segment],
    memory: &'a DeviceMemory,
    access: Permissions,
    from: u64,
    len: u64,
) -> impl Iterator<Item = Result<VolatileSlice<'a>, Broken>> {
    parts(segments, from, len).flat_map(move |(address, len)| {
        let (slices, error) = match memory.get_slices(address, len, access) {
            Ok(slices) => (Some(slices), None),
            Err(_) => (None, Some(Err(OUTSIDE))),
        };
        let slices = slices.into_iter().flatten().map(|slice| slice.map_err(|_| OUTSIDE));
        slices.chain(error)
    })
}

fn parts(
    segments: &[Segment],
    mut skip: u64,
    mut left: u64,
) -> impl Iterator<Item = (GuestAddress, usize)> {
    segments.iter().filter_map(move |segment| {
        let len = u64::from(segment.len);
        let from = skip.min(len);
        skip -= from;
        let taken = (len - from).min(left);
        left -= taken;
        // A buffer at the end of the address space leads nowhere, and is found out upon access.
        let start = GuestAddress(segment.start.0.saturating_add(from));
        (taken > 0).then_some((start, taken as usize))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Parts are the same bytes as those of the buffers put together.
        #[test]
        fn parts_are_a_part_of_the_whole(
            lens in proptest::collection::vec(0u32..20, 0..8), from in 0u64..100, len in 0u64..100,
        ) {
            let segments: Vec<_> = (1..)
                .zip(&lens)
                .map(|(at, &len)| Segment { start: GuestAddress(at * 1000), len })
                .collect();
            let bytes = |(start, len): (GuestAddress, usize)| {
                (start.0..start.0 + len as u64).collect::<Vec<_>>()
            };
            let all: Vec<u64> =
                segments.iter().flat_map(|s| bytes((s.start, s.len as usize))).collect();
            let end = all.len().min((from + len) as usize);
            let expected = all.get(from as usize..end).unwrap_or_default();
            let found: Vec<u64> = parts(&segments, from, len).flat_map(bytes).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
