// SPDX-License-Identifier: GPL-2.0

//! What is known of other nodes for a while.

use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};

use tofu_abi::Coords;
use tofu_ipotofu::addr;

/// Nodes of which something is known at a time, a power of two.
const KNOWN: usize = 256;

/// Something that is known of some nodes for a while. Of two nodes with the same place the later
/// one is kept.
pub(super) struct Known {
    places: KVVec<(u32, u64, u8)>,
}

/// The place of a node in a table of [`KNOWN`].
fn place(node: Coords) -> (u32, usize) {
    let key = addr::pack(node);
    (key, (key.wrapping_mul(0x9e37_79b1) >> 24) as usize % KNOWN)
}

/// The key of no node.
const NOBODY: u32 = u32::MAX;

impl Known {
    pub(super) fn new() -> Result<Self> {
        let places = KVVec::from_elem((NOBODY, 0, 0), KNOWN, GFP_KERNEL)?;
        Ok(Self { places })
    }

    pub(super) fn get(&self, node: Coords, now: u64, lifetime: u64) -> Option<u8> {
        let (key, at) = place(node);
        let (found, since, value) = *self.places.get(at)?;
        (found == key && now.saturating_sub(since) < lifetime).then_some(value)
    }

    pub(super) fn set(&mut self, node: Coords, now: u64, value: u8) {
        let (key, at) = place(node);
        if let Some(entry) = self.places.get_mut(at) {
            *entry = (key, now, value);
        }
    }

    pub(super) fn forget(&mut self, node: Coords) {
        let (key, at) = place(node);
        if let Some(entry) = self.places.get_mut(at).filter(|entry| entry.0 == key) {
            entry.0 = NOBODY;
        }
    }
}

/// How long it is believed of a node what it has said of itself, in milliseconds.
const TAKES_MS: u64 = 2_000;
/// Bits of a time in [`Takers`].
const TAKER_TIME: u32 = 44;

/// Nodes that take something: key plus one, above when they have said so last, in milliseconds. The
/// receiving side writes what the sending side reads.
pub(super) struct Takers(KVVec<Atomic<u64>>);

impl Takers {
    pub(super) fn new() -> Result<Self> {
        let mut places = KVVec::with_capacity(KNOWN, GFP_KERNEL)?;
        for _ in 0..KNOWN {
            places.push(Atomic::new(0), GFP_KERNEL)?;
        }
        Ok(Self(places))
    }

    pub(super) fn has(&self, node: Coords, now: u64) -> bool {
        let (key, at) = place(node);
        let entry = self.0.get(at).map_or(0, |taker| taker.load(Relaxed));
        let since = entry & ((1 << TAKER_TIME) - 1);
        entry >> TAKER_TIME == u64::from(key) + 1
            && (now / 1_000_000).saturating_sub(since) <= TAKES_MS
    }

    pub(super) fn learn(&self, node: Coords, takes: bool, now: u64) {
        let (key, at) = place(node);
        let Some(taker) = self.0.get(at) else {
            return;
        };
        let key = u64::from(key) + 1;
        let time = (now / 1_000_000) & ((1 << TAKER_TIME) - 1);
        if takes {
            taker.store(key << TAKER_TIME | time, Relaxed);
        } else if taker.load(Relaxed) >> TAKER_TIME == key {
            taker.store(0, Relaxed);
        }
    }
}
