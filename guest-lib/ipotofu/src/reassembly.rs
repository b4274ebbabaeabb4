//! Frames that come in several pieces, in any order, some of them twice or never.

use alloc::vec;
use alloc::vec::Vec;

use tofu_abi::Coords;

use crate::wire::{self, PIECE_MAX, Repr};

/// How long a frame may take from its first piece to its last, in nanoseconds.
const LIFETIME_NS: u64 = 1_000_000_000;
/// Frames of one node under way at a time, so that none keeps others from being put together.
const PER_ORIGIN: usize = 8;

/// A frame some pieces of which are there.
#[derive(Debug)]
struct Partial {
    origin: Coords,
    id: u32,
    sum: u32,
    kind: wire::Kind,
    since_ns: u64,
    /// Bit n is set if piece n is there.
    there: u64,
    data: Vec<u8>,
}

impl Partial {
    fn belongs(&self, repr: &Repr) -> bool {
        (self.origin, self.id, self.kind) == (repr.origin, repr.id, repr.kind)
    }

    fn is_complete(&self) -> bool {
        self.there.count_ones() as usize == self.data.len().div_ceil(PIECE_MAX)
    }
}

/// What a piece has led to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// More pieces are needed.
    Pending,
    /// The frame is complete.
    Complete(Vec<u8>),
    /// The piece was there already.
    Duplicate,
    /// The piece is not of the frame that it says it is, or the frame's sum is wrong.
    Damaged,
}

/// Frames under way, a bounded number of them.
#[derive(Debug)]
pub(crate) struct Reassembly {
    partials: Vec<Partial>,
    limit: usize,
    /// Frames that were given up.
    pub(crate) abandoned: u64,
}

impl Reassembly {
    pub(crate) fn new(limit: usize) -> Self {
        Self { partials: Vec::new(), limit: limit.max(1), abandoned: 0 }
    }

    /// Takes a piece, `body` having the length that `repr` says.
    pub(crate) fn insert(&mut self, repr: &Repr, body: &[u8], now_ns: u64) -> Outcome {
        let before = self.partials.len();
        self.partials.retain(|partial| now_ns.saturating_sub(partial.since_ns) < LIFETIME_NS);
        self.abandoned += (before - self.partials.len()) as u64;
        let known = self.partials.iter().position(|partial| partial.belongs(repr));
        let index = known.unwrap_or_else(|| self.begin(repr, now_ns));
        let partial = &mut self.partials[index];
        if partial.data.len() != usize::from(repr.total) || partial.sum != repr.sum {
            return Outcome::Damaged;
        }
        let at = usize::from(repr.offset);
        let bit = 1 << (at / PIECE_MAX);
        if partial.there & bit != 0 {
            return Outcome::Duplicate;
        }
        let end = at + body.len();
        let Some(place) = partial.data.get_mut(at..end) else {
            return Outcome::Damaged;
        };
        place.copy_from_slice(body);
        partial.there |= bit;
        if !partial.is_complete() {
            return Outcome::Pending;
        }
        let done = self.partials.swap_remove(index);
        if wire::sum(&done.data) == done.sum {
            Outcome::Complete(done.data)
        } else {
            Outcome::Damaged
        }
    }

    /// Begins a frame, in the place of an older one if there are too many.
    fn begin(&mut self, repr: &Repr, now_ns: u64) -> usize {
        let of_origin =
            self.partials.iter().filter(|partial| partial.origin == repr.origin).count();
        let crowded = of_origin >= PER_ORIGIN;
        if crowded || self.partials.len() >= self.limit {
            let candidates = self.partials.iter().enumerate();
            let oldest = candidates
                .filter(|(_, partial)| !crowded || partial.origin == repr.origin)
                .min_by_key(|(_, partial)| partial.since_ns)
                .map(|(index, _)| index);
            if let Some(oldest) = oldest {
                self.partials.swap_remove(oldest);
                self.abandoned += 1;
            }
        }
        self.partials.push(Partial {
            origin: repr.origin,
            id: repr.id,
            sum: repr.sum,
            kind: repr.kind,
            since_ns: now_ns,
            there: 0,
            data: vec![0; repr.total.into()],
        });
        self.partials.len() - 1
    }
}
