//! Reassembly of frames whose fragments arrive in any order, some of them twice or never.

use core::fmt::Debug;

use tofu_abi::Coords;

use crate::counters::Counters;
use crate::offload::METADATA_SIZE;
use crate::storage::Storage;
use crate::wire::{PacketKind, Repr, Sum};

/// The time limit for a frame from its first fragment to its last, in nanoseconds.
const LIFETIME_NS: u64 = 1_000_000_000;
/// The most incomplete frames of one node, so that no node blocks the frames of others.
const PER_ORIGIN: usize = 8;

/// Memory for a frame.
pub trait FrameBuffer: Debug {
    /// Writes a part at offset `at`. False if it does not lie within the frame.
    fn write(&mut self, at: usize, part: &[u8]) -> bool;

    /// Calls `look` with the first bytes of the frame, which include all headers.
    fn look<R>(&self, look: impl FnOnce(&[u8]) -> R) -> R;
}

#[cfg(any(feature = "link", test))]
impl FrameBuffer for alloc::vec::Vec<u8> {
    fn write(&mut self, at: usize, part: &[u8]) -> bool {
        let place = at.checked_add(part.len()).and_then(|end| self.get_mut(at..end));
        place.map(|place| place.copy_from_slice(part)).is_some()
    }

    fn look<R>(&self, look: impl FnOnce(&[u8]) -> R) -> R {
        look(self)
    }
}

/// A frame of which some fragments have arrived.
#[derive(Debug)]
pub(crate) struct Partial<F> {
    origin: Coords,
    id: u32,
    kind: PacketKind,
    total: u16,
    /// The sum that the frame must have, and the sum of the bytes so far.
    sum: u32,
    sum_so_far: Sum,
    since_ns: u64,
    /// Bit n is set if fragment n has arrived.
    there: u64,
    /// The offload metadata, which precede the frame in its first fragment.
    pub(crate) metadata: [u8; METADATA_SIZE],
    pub(crate) frame: F,
}

/// Incomplete frames, in a bounded number of places.
#[derive(Debug)]
pub(crate) struct Reassembly<S: Storage, F: FrameBuffer> {
    partials: S::Places<Option<Partial<F>>>,
}

impl<S: Storage, F: FrameBuffer> Reassembly<S, F> {
    pub(crate) fn new(limit: usize) -> Result<Self, S::Error> {
        Ok(Self { partials: S::places(limit.max(1), || None)? })
    }

    /// Drops incomplete frames.
    pub(crate) fn clear(&mut self) {
        self.partials.iter_mut().for_each(|place| *place = None);
    }

    /// Adds a fragment, and returns the frame if it is complete now. `body` must have the length
    /// given in `repr`. `make` allocates the memory for a frame of the given length.
    pub(crate) fn insert(
        &mut self,
        repr: &Repr,
        body: &[u8],
        now_ns: u64,
        counters: &mut Counters,
        make: impl FnOnce(usize) -> Option<F>,
    ) -> Option<Partial<F>> {
        let place = self.place(repr, now_ns, counters)?;
        let front = repr.metadata_size();
        if place.is_none() {
            let Some(frame) = make(usize::from(repr.total).checked_sub(front)?) else {
                counters.no_memory += 1;
                return None;
            };
            *place = Some(Partial {
                origin: repr.origin,
                id: repr.id,
                kind: repr.kind,
                total: repr.total,
                sum: repr.sum,
                sum_so_far: Sum::default(),
                since_ns: now_ns,
                there: 0,
                metadata: [0; METADATA_SIZE],
                frame,
            });
        }
        let partial = place.as_mut()?;
        if (partial.total, partial.sum) != (repr.total, repr.sum) {
            counters.damaged += 1;
            return None;
        }
        let bit = 1 << repr.number();
        if partial.there & bit != 0 {
            counters.duplicates += 1;
            return None;
        }
        partial.sum_so_far.add(body);
        let offset = usize::from(repr.offset);
        let part = if offset == 0 {
            let (metadata, part) = body.split_at_checked(front)?;
            partial.metadata[..front].copy_from_slice(metadata);
            part
        } else {
            body
        };
        let written = partial.frame.write(offset.saturating_sub(front), part);
        partial.there |= bit;
        if partial.there.count_ones() as usize != repr.count() {
            return None;
        }
        let whole = place.take()?;
        if !written || whole.sum_so_far.finish() != whole.sum {
            counters.damaged += 1;
            return None;
        }
        Some(whole)
    }

    /// The place of the frame that a fragment belongs to. The first fragment of a frame gets an
    /// empty place, or that of an older frame if there are too many.
    fn place(
        &mut self,
        repr: &Repr,
        now_ns: u64,
        counters: &mut Counters,
    ) -> Option<&mut Option<Partial<F>>> {
        let (mut known, mut free, mut oldest, mut oldest_of_origin) = (None, None, None, None);
        let mut of_origin = 0;
        for (at, place) in self.partials.iter_mut().enumerate() {
            let late =
                |partial: &mut Partial<F>| now_ns.saturating_sub(partial.since_ns) >= LIFETIME_NS;
            if place.take_if(late).is_some() {
                counters.abandoned += 1;
            }
            let Some(partial) = place else {
                free = free.or(Some(at));
                continue;
            };
            if (partial.origin, partial.id, partial.kind) == (repr.origin, repr.id, repr.kind) {
                known = Some(at);
                break;
            }
            let older = |than: Option<(usize, u64)>| match than {
                Some((_, since_ns)) if since_ns <= partial.since_ns => than,
                _ => Some((at, partial.since_ns)),
            };
            oldest = older(oldest);
            if partial.origin == repr.origin {
                of_origin += 1;
                oldest_of_origin = older(oldest_of_origin);
            }
        }
        if let Some(known) = known {
            return self.partials.get_mut(known);
        }
        let place_of = |partial: Option<(usize, u64)>| partial.map(|(at, _)| at);
        let at = if of_origin >= PER_ORIGIN {
            place_of(oldest_of_origin)
        } else {
            free.or(place_of(oldest))
        };
        let place = self.partials.get_mut(at?)?;
        if place.take().is_some() {
            counters.abandoned += 1;
        }
        Some(place)
    }
}
