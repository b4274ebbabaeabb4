//! The memory of an injection window: reorder logic and txFifo in one (section 2.1).
//!
//! Stores arrive in any order, as processors flush the buffers in which they combine them. A
//! window is a ring: bytes go out in the order of their places in it, packet by packet. *Ours* is
//! the ring, and that the second half of a window's addresses, which is the same memory,
//! marks the last packet of a message.

use std::sync::Arc;

use tofu_abi::tnw::{PACKET_DATA, WINDOW_RING};

use crate::unit::MAX_RUN;

const RING: usize = WINDOW_RING as usize;
/// Packets that the ring has places for.
const PLACES: usize = RING / PACKET_DATA;

/// Why a store was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// It goes across the end of the ring.
    Outside,
    /// Some of its bytes have been stored already and have not left the ring.
    Overlap,
}

/// Packets that leave a window together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Their data.
    pub data: Arc<[u8]>,
    /// Whether the last of them ends its message.
    pub last: bool,
}

/// The memory of a window.
#[derive(Debug)]
pub struct Window {
    ring: Box<[u8]>,
    /// What has been stored of the packet at each place: a bit for each byte.
    stored: Box<[u128]>,
    /// Places whose packet is the last one of its message, one bit each.
    last: u128,
    /// Bytes that have left the ring, a multiple of [`PACKET_DATA`].
    head: u64,
    /// The same, and complete packets that follow.
    tail: u64,
}

impl Default for Window {
    fn default() -> Self {
        Self::new()
    }
}

const fn place(at: u64) -> usize {
    (at / PACKET_DATA as u64) as usize % PLACES
}

impl Window {
    /// An empty window.
    pub fn new() -> Self {
        Self {
            ring: vec![0; RING].into(),
            stored: vec![0; PLACES].into(),
            last: 0,
            head: 0,
            tail: 0,
        }
    }

    /// Bytes that have left the ring.
    pub const fn head(&self) -> u64 {
        self.head
    }

    /// Bytes up to which complete packets have been stored.
    pub const fn tail(&self) -> u64 {
        self.tail
    }

    /// Stores bytes at an offset of the ring; `last` if that was in the second half of the window.
    ///
    /// # Errors
    ///
    /// The store is dropped then.
    pub fn store(&mut self, at: u64, data: &[u8], last: bool) -> Result<(), StoreError> {
        let end = at.checked_add(data.len() as u64).ok_or(StoreError::Outside)?;
        if end > WINDOW_RING {
            return Err(StoreError::Outside);
        }
        // It may be of two packets.
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
        if parts().any(|(at, part)| self.stored[at / PACKET_DATA] & bits(at, part) != 0) {
            return Err(StoreError::Overlap);
        }
        for (at, part) in parts() {
            self.ring[at..at + part.len()].copy_from_slice(part);
            self.stored[at / PACKET_DATA] |= bits(at, part);
            if last {
                self.last |= 1 << (at / PACKET_DATA);
            }
        }
        while self.tail < self.head + WINDOW_RING && self.stored[place(self.tail)] == u128::MAX {
            self.tail += PACKET_DATA as u64;
        }
        Ok(())
    }

    /// Takes up to `most` complete packets of one message, those before `end` only.
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
        let data = self.ring[first * PACKET_DATA..(first + packets) * PACKET_DATA].into();
        self.stored[first..first + packets].fill(0);
        if let Some(last) = last {
            self.last &= !(1 << last);
        }
        self.head += (packets * PACKET_DATA) as u64;
        Some(Taken { data, last: last.is_some() })
    }

    /// Throws away what has been stored. The next byte is that after the complete packets.
    pub fn clear(&mut self) {
        self.stored.fill(0);
        self.last = 0;
        self.head = self.tail;
    }
}
