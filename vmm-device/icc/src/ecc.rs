//! Errors in the device's own memory, which its error-correcting codes detect.
//!
//! All SRAM of the controller and all its data paths are protected by such codes (*Tofu:
//! Interconnect for the K computer*, Fujitsu). These facts are public: the interrupt request
//! TOQ_MARKED_UE of a queue whose descriptor is damaged, the counters of packets that were marked
//! as bad in transit, and those of errors that a port's memory has corrected. *Ours*: where errors
//! occur, which can be injected, and how others are counted.

use std::sync::Arc;

use tofu_fabric::{EccErrors, MemoryErrors};
use tofu_inspect::inspect;

/// The memory in which bits are wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EccPlace {
    /// Entries of steering and block tables, and the state of queues.
    Tables,
    /// Descriptors that were fetched.
    Buffers,
    /// Packets in the router: those of other nodes that pass, and those from and to this one.
    Router,
}

/// The errors that have occurred, and those still to be injected.
#[derive(Debug, Default)]
pub(crate) struct Ecc {
    tables: MemoryErrors,
    buffers: MemoryErrors,
    /// The network meets these, too.
    router: Arc<MemoryErrors>,
}

inspect!(Ecc { tables, buffers, router });

impl Ecc {
    fn of(&self, place: EccPlace) -> &MemoryErrors {
        match place {
            EccPlace::Tables => &self.tables,
            EccPlace::Buffers => &self.buffers,
            EccPlace::Router => &self.router,
        }
    }

    /// Makes errors occur. Tables are lost immediately.
    pub(crate) fn inject(&self, place: EccPlace, errors: EccErrors) {
        match (place, errors) {
            (EccPlace::Tables, EccErrors::Fatal) => self.tables.lose(),
            _ => self.of(place).inject(errors),
        }
    }

    /// Returns true if no use of any memory finds an error at present.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        !(self.tables.waits() || self.buffers.waits() || self.router.waits())
    }

    /// The memory is used. Returns true if its content is lost.
    #[inline]
    pub(crate) fn is_lost(&self, place: EccPlace) -> bool {
        self.of(place).is_lost()
    }

    /// The errors of the router.
    pub(crate) const fn router(&self) -> &Arc<MemoryErrors> {
        &self.router
    }

    /// A reset rewrites the memory.
    pub(crate) fn reset(&self) {
        for errors in [&self.tables, &self.buffers, &*self.router] {
            errors.reset();
        }
    }

    /// Counts by name: errors that were corrected, and contents that were lost.
    pub(crate) fn counts(&self) -> [(&'static str, u64); 6] {
        let [tables, buffers, router] =
            [&self.tables, &self.buffers, &*self.router].map(MemoryErrors::counts);
        [
            ("ECC_TABLES_CORRECTED", tables[0]),
            ("ECC_TABLES_LOST", tables[1]),
            ("ECC_BUFFERS_CORRECTED", buffers[0]),
            ("ECC_BUFFERS_LOST", buffers[1]),
            ("ECC_ROUTER_CORRECTED", router[0]),
            ("ECC_ROUTER_LOST", router[1]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_occur_where_memory_is_used() {
        let ecc = Ecc::default();
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
