//! Errors in the device's own memory, which its error-correcting codes detect.
//!
//! All SRAM of the controller and all its data paths are protected by such codes (*Tofu:
//! Interconnect for the K computer*, Fujitsu). Two facts are public: the interrupt request
//! TOQ_MARKED_UE of a queue whose descriptor is damaged, and the counter NUM_RECEIVE_NULLIFIED_TLP
//! of packets that were marked as bad in transit. *Ours*: where errors occur, which can be
//! injected, and how they are counted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use tofu_inspect::inspect;

/// The memory in which bits are wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EccPlace {
    /// Entries of steering and block tables, and the state of queues.
    Tables,
    /// Descriptors that were fetched.
    Buffers,
    /// Packets that the router hands to the interfaces.
    Router,
}

/// Errors to be injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EccErrors {
    /// Each of this number of uses of the memory finds one wrong bit, which is corrected.
    Correctable(u64),
    /// More wrong bits than can be corrected. In tables the content is lost immediately, and the
    /// node fails. Elsewhere the next use detects them.
    Fatal,
}

/// The errors of one place.
#[derive(Debug, Default)]
pub(crate) struct Errors {
    correctable: AtomicU64,
    fatal: AtomicU64,
    corrected: AtomicU64,
    lost: AtomicU64,
}

inspect!(Errors { correctable, fatal, corrected, lost });

/// The errors that have occurred, and those still to be injected.
#[derive(Debug, Default)]
pub(crate) struct Ecc {
    /// True if any is still to be injected.
    waits: AtomicBool,
    tables: Errors,
    buffers: Errors,
    router: Errors,
}

inspect!(Ecc { waits, tables, buffers, router });

/// Takes one off a counter, unless it is 0.
fn take(counter: &AtomicU64) -> bool {
    counter.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok()
}

impl Ecc {
    fn of(&self, place: EccPlace) -> &Errors {
        match place {
            EccPlace::Tables => &self.tables,
            EccPlace::Buffers => &self.buffers,
            EccPlace::Router => &self.router,
        }
    }

    /// Makes errors occur.
    pub(crate) fn inject(&self, place: EccPlace, errors: EccErrors) {
        let of = self.of(place);
        match errors {
            EccErrors::Correctable(count) => {
                of.correctable.fetch_add(count, Relaxed);
            }
            EccErrors::Fatal if place == EccPlace::Tables => {
                of.lost.fetch_add(1, Relaxed);
                return;
            }
            EccErrors::Fatal => {
                of.fatal.fetch_add(1, Relaxed);
            }
        }
        self.waits.store(true, Relaxed);
    }

    /// The memory is used. Returns true if its content is lost.
    #[inline]
    pub(crate) fn is_lost(&self, place: EccPlace) -> bool {
        self.waits.load(Relaxed) && self.meet(place)
    }

    #[cold]
    fn meet(&self, place: EccPlace) -> bool {
        let of = self.of(place);
        let lost = take(&of.fatal);
        if lost {
            of.lost.fetch_add(1, Relaxed);
        } else if take(&of.correctable) {
            of.corrected.fetch_add(1, Relaxed);
        }
        lost
    }

    /// A reset rewrites the memory.
    pub(crate) fn reset(&self) {
        self.waits.store(false, Relaxed);
        for of in [&self.tables, &self.buffers, &self.router] {
            of.correctable.store(0, Relaxed);
            of.fatal.store(0, Relaxed);
        }
    }

    /// Counts by name: errors that were corrected, and contents that were lost.
    pub(crate) fn counts(&self) -> [(&'static str, u64); 6] {
        [
            ("ECC_TABLES_CORRECTED", &self.tables.corrected),
            ("ECC_TABLES_LOST", &self.tables.lost),
            ("ECC_BUFFERS_CORRECTED", &self.buffers.corrected),
            ("ECC_BUFFERS_LOST", &self.buffers.lost),
            ("ECC_ROUTER_CORRECTED", &self.router.corrected),
            ("ECC_ROUTER_LOST", &self.router.lost),
        ]
        .map(|(name, count)| (name, count.load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_occur_where_memory_is_used() {
        let ecc = Ecc::default();
        assert!(!ecc.is_lost(EccPlace::Router));
        ecc.inject(EccPlace::Router, EccErrors::Correctable(2));
        ecc.inject(EccPlace::Buffers, EccErrors::Fatal);
        let uses = [(); 3].map(|()| ecc.is_lost(EccPlace::Router));
        assert_eq!(uses, [false; 3]);
        assert!(!ecc.is_lost(EccPlace::Tables));
        assert_eq!([(); 2].map(|()| ecc.is_lost(EccPlace::Buffers)), [true, false]);
        let counts = ecc.counts().map(|(_, count)| count);
        assert_eq!(counts, [0, 0, 0, 1, 2, 0]);
        ecc.inject(EccPlace::Tables, EccErrors::Fatal);
        ecc.inject(EccPlace::Router, EccErrors::Fatal);
        ecc.reset();
        assert!(!ecc.is_lost(EccPlace::Router), "a reset ends what was to come");
        assert_eq!(ecc.counts()[1], ("ECC_TABLES_LOST", 1));
    }
}
