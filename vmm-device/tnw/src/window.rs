//! The memory of an injection window: reorder logic and txFifo in one (section 2.1).
//!
//! Stores arrive in any order, as processors flush their write-combining buffers. A window is a
//! ring: bytes go out in the order of their places in it, packet by packet. *Ours* are the ring and
//! the use of the second half of a window's addresses: it is the same memory, and marks the last
//! packet of a message.
//!
//! A window can be guest memory instead; see [`crate::SharedWindows`].

use std::sync::Arc;

use tofu_abi::tnw::{PACKET_DATA, WINDOW_PLACES as PLACES, WINDOW_RING};
use tofu_inspect::{Inspect, Visit};

use crate::shared::{SharedWindow, number};
use crate::unit::MAX_RUN;

const RING: usize = WINDOW_RING as usize;

/// The reason why a store was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// It crosses the end of the ring.
    Outside,
    /// Some of its bytes have been stored already and have not left the ring.
    Overlap,
}

/// Packets that leave a window together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Their data.
    pub data: Arc<[u8]>,
    /// True if the last of them ends its message.
    pub last: bool,
}

/// The memory of a window.
#[derive(Debug)]
pub struct Window {
    ring: Ring,
    /// Places with the last packet of a message, one bit each.
    last: u128,
    /// Number of bytes that have left the ring, a multiple of [`PACKET_DATA`].
    head: u64,
    /// `head` plus the size of the complete packets that follow, in bytes.
    tail: u64,
}

#[derive(Debug)]
enum Ring {
    /// Memory of the device only.
    Own {
        bytes: Box<[u8]>,
        /// Bytes of the packet at each place that have been stored, one bit each.
        stored: Box<[u128]>,
    },
    /// Memory that the guest has mapped.
    Shared(SharedWindow),
}

impl Ring {
    fn own() -> Self {
        Self::Own { bytes: vec![0; RING].into(), stored: vec![0; PLACES].into() }
    }
}

impl Default for Window {
    fn default() -> Self {
        Self::new()
    }
}

impl Inspect for Window {
    fn inspect(&self, visit: Visit<'_>) {
        let Self { ring, last, head, tail } = self;
        visit.tree(|tree| {
            tree.add("shared", &matches!(ring, Ring::Shared(_)));
            tree.add("head", head);
            tree.add("tail", tail);
            tree.add("messages_that_end", &last.count_ones());
        });
    }
}

const fn place(at: u64) -> usize {
    (at / PACKET_DATA as u64) as usize % PLACES
}

impl Window {
    /// An empty window.
    pub fn new() -> Self {
        Self { ring: Ring::own(), last: 0, head: 0, tail: 0 }
    }

    /// The guest memory of the window, if the window is shared.
    pub(crate) const fn shared(&self) -> Option<&SharedWindow> {
        match &self.ring {
            Ring::Own { .. } => None,
            Ring::Shared(shared) => Some(shared),
        }
    }

    /// Makes the window guest memory, or registers. Stored bytes are dropped.
    pub(crate) fn share(&mut self, shared: Option<SharedWindow>) {
        self.clear();
        self.ring = shared.map_or_else(Ring::own, Ring::Shared);
    }

    /// The mark that the next packet will have, if the window is shared.
    pub(crate) fn next_mark(&self) -> Option<u64> {
        self.shared().map(|_| number(self.tail))
    }

    /// Looks for packets in a shared window.
    pub fn look(&mut self) {
        let Ring::Shared(shared) = &self.ring else { return };
        while self.tail < self.head + WINDOW_RING {
            let place = place(self.tail);
            let mark = shared.mark(place);
            if mark.number() != number(self.tail) {
                break;
            }
            if mark.last() {
                self.last |= 1 << place;
            }
            self.tail += PACKET_DATA as u64;
        }
    }

    /// Number of bytes that have left the ring.
    pub const fn head(&self) -> u64 {
        self.head
    }

    /// Position in the byte stream up to which complete packets have been stored, in bytes.
    pub const fn tail(&self) -> u64 {
        self.tail
    }

    /// Stores bytes at an offset of the ring; `last` if it was in the second half of the window.
    ///
    /// # Errors
    ///
    /// Says why the store was dropped.
    pub fn store(&mut self, at: u64, data: &[u8], last: bool) -> Result<(), StoreError> {
        let end = at.checked_add(data.len() as u64).ok_or(StoreError::Outside)?;
        if end > WINDOW_RING {
            return Err(StoreError::Outside);
        }
        // The bytes may belong to two packets.
        let parts = || {
            let mut rest = (at as usize, data);
            std::iter::from_fn(move || {
                let (at, data) = rest;
                let (part, tail) = data.split_at(data.len().min(PACKET_DATA - at % PACKET_DATA));
                rest = (at + part.len(), tail);
                (!part.is_empty()).then_some((at, part))
            })
        };
        let bits = |at: usize, part: &[u8]| {
            let ones = u128::MAX >> (PACKET_DATA - part.len());
            ones << (at % PACKET_DATA)
        };
        let (ring, stored) = match &mut self.ring {
            Ring::Own { bytes, stored } => (bytes, stored),
            Ring::Shared(shared) => {
                shared.store(if last { WINDOW_RING + at } else { at }, data);
                self.look();
                return Ok(());
            }
        };
        if parts().any(|(at, part)| stored[at / PACKET_DATA] & bits(at, part) != 0) {
            return Err(StoreError::Overlap);
        }
        for (at, part) in parts() {
            ring[at..at + part.len()].copy_from_slice(part);
            stored[at / PACKET_DATA] |= bits(at, part);
            if last {
                self.last |= 1 << (at / PACKET_DATA);
            }
        }
        while self.tail < self.head + WINDOW_RING && stored[place(self.tail)] == u128::MAX {
            self.tail += PACKET_DATA as u64;
        }
        Ok(())
    }

    /// Takes up to `most` complete packets of one message, only those before `end`.
    pub fn take(&mut self, most: u16, end: u64) -> Option<Taken> {
        let ready = self.tail.min(end).saturating_sub(self.head) / PACKET_DATA as u64;
        let first = place(self.head);
        let most = (ready as usize).min(most.min(MAX_RUN).into()).min(PLACES - first);
        if most == 0 {
            return None;
        }
        let is_last = |place: &usize| self.last & 1 << place != 0;
        let last = (first..first + most).find(is_last);
        let packets = last.map_or(most, |last| last + 1 - first);
        let (start, end) = (first * PACKET_DATA, (first + packets) * PACKET_DATA);
        let data = match &mut self.ring {
            Ring::Own { bytes, stored } => {
                stored[first..first + packets].fill(0);
                bytes[start..end].into()
            }
            Ring::Shared(shared) => {
                let mut data: Arc<[u8]> = std::iter::repeat_n(0, end - start).collect();
                if let Some(data) = Arc::get_mut(&mut data) {
                    shared.read(start as u64, data);
                }
                data
            }
        };
        if let Some(last) = last {
            self.last &= !(1 << last);
        }
        self.head += (packets * PACKET_DATA) as u64;
        Some(Taken { data, last: last.is_some() })
    }

    /// Drops the stored bytes. The next byte is the one after the complete packets.
    pub fn clear(&mut self) {
        match &mut self.ring {
            Ring::Own { stored, .. } => stored.fill(0),
            Ring::Shared(shared) => shared.clear(),
        }
        self.last = 0;
        self.head = self.tail;
    }
}
