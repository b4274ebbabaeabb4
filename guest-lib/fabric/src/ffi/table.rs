//! A domain and the table of its regions.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use super::abi::{Fid, OpsDomain, OpsMr};
use super::counter::Counts;
use super::object::lock;
use super::progress::Bound;
use crate::core::Regions;
use crate::memory::ProgramMemory;

/// A domain as the program's object, and its regions.
#[repr(C)]
pub(super) struct Domain {
    pub(super) fid: Fid,
    pub(super) ops: *const OpsDomain,
    pub(super) memory: *const OpsMr,
    pub(super) table: Arc<Table>,
}

/// The regions of a domain.
pub(super) struct Table {
    pub(super) regions: Arc<Mutex<Regions<ProgramMemory>>>,
    /// The counters of single regions, by key.
    pub(super) counts: Mutex<HashMap<u64, Arc<Counts>>>,
    /// The endpoints that peers use them by.
    pub(super) endpoints: Arc<Bound>,
    /// Peers name bytes by their addresses, and keys are chosen here: the mode of old programs.
    pub(super) is_basic: bool,
    pub(super) next: AtomicU64,
}

impl Table {
    pub(super) fn new(is_basic: bool) -> Self {
        let (regions, counts) = (Arc::default(), Mutex::default());
        let (endpoints, next) = (Arc::default(), AtomicU64::new(1));
        Self { regions, counts, endpoints, is_basic, next }
    }

    /// Returns the counters of a region that has some.
    pub(super) fn counts(&self, key: u64) -> Option<Arc<Counts>> {
        lock(&self.counts).get(&key).cloned()
    }
}
