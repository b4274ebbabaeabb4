//! Steering entries with their memory blocks, as a queue remembers them.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, OnceLock};

use tofu_inspect::inspect;
use tofu_sync::{AtomicU64, fence, lock};

/// Places in a queue's translation cache.
const PLACES: usize = 32;
/// Words of a mapping.
const WORDS: usize = 6;
/// In the first word, behind the STag.
const READONLY: u64 = 1 << 32;
const PAGE_BITS: u32 = 40;
/// Each word of a place without a mapping. No page is that large, and no generation that late.
const NONE: u64 = u64::MAX;

/// A steering entry and its memory block, checked and ready for use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) stag: u32,
    /// Generation of the tables that the mapping was read in.
    pub(crate) generation: u64,
    pub(crate) readonly: bool,
    pub(crate) mbva: u64,
    pub(crate) length: u64,
    pub(crate) page_bits: u32,
    pub(crate) pages: u64,
    pub(crate) table: u64,
}

inspect!(Mapping {
    stag as hex,
    generation,
    readonly,
    mbva as hex,
    length as hex,
    page_bits,
    pages,
    table as hex,
});

impl Mapping {
    /// The bits of an address within a page.
    pub(crate) const fn mask(&self) -> u64 {
        (1 << self.page_bits) - 1
    }

    const fn words(&self) -> [u64; WORDS] {
        let readonly = if self.readonly { READONLY } else { 0 };
        let first = self.stag as u64 | readonly | (self.page_bits as u64) << PAGE_BITS;
        [first, self.generation, self.mbva, self.length, self.pages, self.table]
    }

    #[inline(always)]
    const fn of([first, generation, mbva, length, pages, table]: [u64; WORDS]) -> Self {
        Self {
            stag: first as u32,
            generation,
            readonly: first & READONLY != 0,
            mbva,
            length,
            page_bits: (first >> PAGE_BITS) as u32,
            pages,
            table,
        }
    }
}

/// The cache. Its place for an STag is read without a lock.
#[derive(Debug)]
pub(crate) struct Mappings {
    /// There is none until something is remembered.
    places: OnceLock<Box<[Place; PLACES]>>,
    /// Held while a place is written.
    writer: Mutex<()>,
}

/// A mapping that one thread writes while others read it: they find it whole or not at all.
#[derive(Debug)]
struct Place {
    /// Odd while the words change.
    version: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Place {
    fn new() -> Self {
        Self { version: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(NONE)) }
    }

    #[inline(always)]
    fn get(&self) -> Option<[u64; WORDS]> {
        let version = self.version.load(Acquire);
        let [a, b, c, d, e, f] = &self.words;
        let words = [
            a.load(Relaxed),
            b.load(Relaxed),
            c.load(Relaxed),
            d.load(Relaxed),
            e.load(Relaxed),
            f.load(Relaxed),
        ];
        // The words were read before the version is read again.
        fence(Acquire);
        (version & 1 == 0 && self.version.load(Relaxed) == version).then_some(words)
    }

    /// Only one thread at a time may call it.
    fn set(&self, words: [u64; WORDS]) {
        let version = self.version.load(Relaxed);
        self.version.store(version.wrapping_add(1), Relaxed);
        // A thread that reads one of these words also reads that they change.
        fence(Release);
        for (word, value) in self.words.iter().zip(words) {
            word.store(value, Relaxed);
        }
        self.version.store(version.wrapping_add(2), Release);
    }
}

impl Mappings {
    pub(crate) fn new() -> Self {
        Self { places: OnceLock::new(), writer: Mutex::new(()) }
    }

    /// The mapping of an STag of this generation, if it is remembered and no thread is changing its
    /// place.
    #[inline]
    pub(crate) fn get(&self, stag: u32, generation: u64) -> Option<Mapping> {
        let mapping = Mapping::of(self.places.get()?[stag as usize % PLACES].get()?);
        (mapping.stag == stag && mapping.generation == generation).then_some(mapping)
    }

    /// Remembers a mapping instead of another one.
    pub(crate) fn remember(&self, mapping: &Mapping) {
        let places = self.places.get_or_init(|| Box::new(std::array::from_fn(|_| Place::new())));
        let _writer = lock(&self.writer);
        places[mapping.stag as usize % PLACES].set(mapping.words());
    }

    /// The mapping in each place.
    pub(crate) fn all(&self) -> Vec<Option<Mapping>> {
        let Some(places) = self.places.get() else { return Vec::new() };
        let _writer = lock(&self.writer);
        let there = |place: &Place| place.get().filter(|words| words[0] != NONE).map(Mapping::of);
        places.iter().map(there).collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn mapping_is_found_as_it_was_remembered() {
        let mappings = Mappings::new();
        let mapping = |stag, generation| Mapping {
            stag,
            generation,
            readonly: stag % 2 == 1,
            mbva: 0xff_ffff_f000,
            length: 0xff_ffff_ffff,
            page_bits: 12 + stag,
            pages: 7,
            table: u64::MAX - 7,
        };
        assert_eq!((mappings.get(0, 0), mappings.all().len()), (None, 0));
        for stag in [0, 1, 30, 33] {
            mappings.remember(&mapping(stag, 5));
            assert_eq!(mappings.get(stag, 5), Some(mapping(stag, 5)));
            assert_eq!(mappings.get(stag, 4), None);
        }
        // 33 has taken the place of 1.
        let there: Vec<_> = mappings.all().into_iter().flatten().map(|m| m.stag).collect();
        assert_eq!((mappings.get(1, 5), there), (None, vec![0, 33, 30]));
        assert_eq!(mappings.get(u32::MAX, 0), None, "a place without a mapping");
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    #[test]
    fn loom_place_is_read_whole_or_not_at_all() {
        loom::model(|| {
            let place = Arc::new(Place::new());
            place.set([1; WORDS]);
            let other = Arc::clone(&place);
            let writer = thread::spawn(move || other.set([2; WORDS]));
            if let Some(words) = place.get() {
                assert!(words == [1; WORDS] || words == [2; WORDS], "{words:?}");
            }
            writer.join().unwrap();
            assert_eq!(place.get(), Some([2; WORDS]));
        });
    }
}
