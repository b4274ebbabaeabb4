//! A domain and the table of its regions.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use super::abi::{Fid, OpsDomain, OpsMr};
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
    /// The endpoints that peers use them by.
    pub(super) endpoints: Bound,
    /// Peers name bytes by their addresses, and keys are chosen here: the mode of old programs.
    pub(super) is_basic: bool,
    pub(super) next: AtomicU64,
}

impl Table {
    pub(super) fn new(is_basic: bool) -> Self {
        let (regions, endpoints, next) = (Arc::default(), Bound::default(), AtomicU64::new(1));
        Self { regions, endpoints, is_basic, next }
    }
}
