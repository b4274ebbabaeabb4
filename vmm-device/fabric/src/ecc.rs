//! Wrong bits that error-correcting codes find: in a device's memory, and in packets that go
//! through a router.
//!
//! All SRAM of the controller and all its data paths are protected by such codes (*Tofu:
//! Interconnect for the K computer*, Fujitsu). A router sends a packet on before it is complete,
//! and marks it as bad if it finds an error too late (IEEE Micro 2012). The register map has
//! counters of corrected errors and of packets that are marked as bad. *Ours*: which packet is hit,
//! and that a packet with an error that cannot be corrected stays marked up to its target.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use tofu_inspect::inspect;
use tofu_sync::lock;

use crate::counters::PortCounters;
use crate::{Hop, NodeId, Packet, Port, Route, Shape, Way};

/// Errors to be injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EccErrors {
    /// Each of this number of uses of the memory finds one wrong bit, which is corrected.
    Correctable(u64),
    /// The next use finds more wrong bits than can be corrected.
    Fatal,
}

/// The outcome of a use of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// No bit was wrong.
    Right,
    /// One was, and was corrected.
    Corrected,
    /// More were.
    Lost,
}

/// The errors of one memory that are still to come, and the number of those that were found.
#[derive(Debug, Default)]
pub struct MemoryErrors {
    /// True if any is still to come.
    waits: AtomicBool,
    correctable: AtomicU64,
    fatal: AtomicU64,
    corrected: AtomicU64,
    lost: AtomicU64,
}

inspect!(MemoryErrors { waits, correctable, fatal, corrected, lost });

/// Takes one off a counter, unless it is 0.
fn take(counter: &AtomicU64) -> bool {
    counter.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok()
}

impl MemoryErrors {
    /// Makes errors occur.
    pub fn inject(&self, errors: EccErrors) {
        match errors {
            EccErrors::Correctable(count) => self.correctable.fetch_add(count, Relaxed),
            EccErrors::Fatal => self.fatal.fetch_add(1, Relaxed),
        };
        self.waits.store(true, Relaxed);
    }

    /// Counts content that is lost immediately.
    pub fn lose(&self) {
        self.lost.fetch_add(1, Relaxed);
    }

    /// Returns true if an error may still come.
    #[inline]
    pub fn waits(&self) -> bool {
        self.waits.load(Relaxed)
    }

    /// The memory is used. Returns true if its content is lost.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.waits() && self.meet() == Content::Lost
    }

    /// The memory is used.
    #[cold]
    pub fn meet(&self) -> Content {
        if take(&self.fatal) {
            self.lost.fetch_add(1, Relaxed);
            return Content::Lost;
        }
        if take(&self.correctable) {
            self.corrected.fetch_add(1, Relaxed);
            return Content::Corrected;
        }
        self.waits.store(false, Relaxed);
        Content::Right
    }

    /// The memory is written anew: no error is to come any more.
    pub fn reset(&self) {
        self.waits.store(false, Relaxed);
        self.correctable.store(0, Relaxed);
        self.fatal.store(0, Relaxed);
    }

    /// The number of errors that were corrected, and of contents that were lost.
    pub fn counts(&self) -> [u64; 2] {
        [self.corrected.load(Relaxed), self.lost.load(Relaxed)]
    }
}

/// The errors that routers find in packets that they send on.
#[derive(Debug)]
pub(crate) struct RouterErrors {
    shape: Shape,
    /// True if errors may still come, or ever could.
    due: AtomicBool,
    any: AtomicBool,
    found: Mutex<Found>,
}

#[derive(Debug, Default)]
struct Found {
    due: BTreeMap<NodeId, Arc<MemoryErrors>>,
    ports: BTreeMap<(NodeId, Port), AtPort>,
}

/// The number of TLPs at a port that sends them.
#[derive(Clone, Copy, Debug, Default)]
struct AtPort {
    corrected: u64,
    /// Those that this port was the first to mark.
    marked: u64,
    /// Those that were sent with the mark.
    sent: u64,
}

impl RouterErrors {
    pub(crate) fn new(shape: Shape) -> Self {
        let (due, any) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { shape, due, any, found: Mutex::default() }
    }

    /// Packets that leave the router of a node meet these errors from now on.
    pub(crate) fn set(&self, node: NodeId, errors: Arc<MemoryErrors>) {
        lock(&self.found).due.insert(node, errors);
        self.due.store(true, Relaxed);
        self.any.store(true, Relaxed);
    }

    /// Returns true if errors may still come.
    pub(crate) fn is_due(&self) -> bool {
        self.due.load(Relaxed)
    }

    /// Returns true if errors may have come.
    pub(crate) fn has_any(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Forgets nodes whose errors have all come.
    pub(crate) fn prune(&self) {
        let mut found = lock(&self.found);
        found.due.retain(|_, errors| errors.waits());
        self.due.store(!found.due.is_empty(), Relaxed);
    }

    /// A packet, or one of its frames, leaves a router over a link.
    pub(crate) fn cross<B>(&self, hop: Hop, packet: &mut Packet<B>) {
        if self.is_due() || packet.bad.is_some() {
            self.meet(hop, packet);
        }
    }

    #[cold]
    fn meet<B>(&self, hop: Hop, packet: &mut Packet<B>) {
        let mut found = lock(&self.found);
        let Found { due, ports } = &mut *found;
        let errors = due.get(&hop.from).filter(|_| packet.bad.is_none());
        let content = errors.map_or(Content::Right, |errors| errors.meet());
        if content == Content::Right && packet.bad.is_none() {
            return;
        }
        let port = ports.entry((hop.from, hop.port)).or_default();
        let tlps = u64::from(packet.tlps);
        match content {
            Content::Right => {}
            Content::Corrected => port.corrected += 1,
            Content::Lost => {
                packet.bad = Some(hop.from);
                port.marked += tlps;
            }
        }
        if packet.bad.is_some_and(|by| self.is_behind(hop, packet, by)) {
            port.sent += tlps;
        }
    }

    /// Returns true if a packet crosses a link after its first one out of the node `by`, or that
    /// one: frames of a packet on modelled links may follow its first one at a distance.
    fn is_behind<B>(&self, hop: Hop, packet: &Packet<B>, by: NodeId) -> bool {
        if matches!(packet.way, Way::Hop { .. }) {
            return true;
        }
        let Ok((_, mut rest)) = Route::of(&self.shape, packet) else { return true };
        let is_it = |other: Hop| (other.from, other.port) == (hop.from, hop.port);
        rest.find(|first| first.from == by).is_none_or(is_it) || rest.any(is_it)
    }

    /// Adds the number of those found at a port of a node, and at the other end of its link.
    pub(crate) fn add_to(&self, counters: &mut PortCounters, node: NodeId, port: Port) {
        let found = lock(&self.found);
        if found.ports.is_empty() {
            return;
        }
        let at = |node, port| found.ports.get(&(node, port)).copied().unwrap_or_default();
        let AtPort { corrected, marked, sent } = at(node, port);
        counters.xb_ce += corrected;
        counters.generate_nullified += marked;
        counters.send_nullified += sent;
        let far = self.shape.coords(node).and_then(|node| self.shape.neighbor(node, port));
        if let Some(far) = far.and_then(|far| self.shape.node_id(far)) {
            counters.recv_nullified += at(far, port.opposite()).sent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_come_one_for_each_use() {
        let errors = MemoryErrors::default();
        assert!(!errors.is_lost() && !errors.waits());
        errors.inject(EccErrors::Correctable(2));
        assert_eq!([(); 2].map(|()| errors.meet()), [Content::Corrected; 2]);
        errors.inject(EccErrors::Fatal);
        assert_eq!([(); 2].map(|()| errors.is_lost()), [true, false]);
        assert!(!errors.waits(), "all have come");
        assert_eq!(errors.counts(), [2, 1]);
        errors.inject(EccErrors::Fatal);
        errors.reset();
        assert!(!errors.is_lost(), "a reset ends what was to come");
        errors.lose();
        assert_eq!(errors.counts(), [2, 2]);
    }
}
