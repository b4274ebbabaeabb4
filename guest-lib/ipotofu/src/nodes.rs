//! Temporary knowledge about other nodes, in tables of a fixed size.
//!
//! A table is set-associative: a node's set of a few entries follows from its coordinates. In a
//! full set a new node replaces the oldest one.

use core::sync::atomic::{AtomicU64, Ordering};

use tofu_abi::Coords;

use crate::addr;
use crate::storage::Storage;
use crate::wire::Capabilities;

/// Number of entries in a table, and in a set of it.
pub(crate) const NODES: usize = 1024;
pub(crate) const SET: usize = 4;
/// A key that belongs to no node.
const NONE: u32 = u32::MAX;

/// The key of a node, and the index at which its set begins.
pub(crate) fn set_of(node: Coords) -> (u32, usize) {
    let key = addr::pack(node);
    // The high bits of a product with 2^32 divided by the golden ratio are spread evenly.
    let hash = key.wrapping_mul(0x9e37_79b1) >> 16;
    (key, hash as usize % (NODES / SET) * SET)
}

/// An entry about one node.
#[derive(Clone, Copy, Debug)]
struct Known<V> {
    key: u32,
    since_ns: u64,
    value: V,
}

/// A value for each of some nodes, and the time of the entry.
#[derive(Debug)]
pub(crate) struct NodeTable<S: Storage, V: Copy + Default + core::fmt::Debug> {
    places: S::Places<Known<V>>,
}

impl<S: Storage, V: Copy + Default + core::fmt::Debug> NodeTable<S, V> {
    pub(crate) fn new() -> Result<Self, S::Error> {
        let nothing = Known { key: NONE, since_ns: 0, value: V::default() };
        Ok(Self { places: S::places(NODES, || nothing)? })
    }

    /// The value of a node, if it is not older than `lifetime_ns`.
    pub(crate) fn get(&self, node: Coords, now_ns: u64, lifetime_ns: u64) -> Option<V> {
        self.get_for(node, now_ns, |_| lifetime_ns)
    }

    /// Like `get`, with a lifetime that depends on the value.
    pub(crate) fn get_for(
        &self,
        node: Coords,
        now_ns: u64,
        lifetime_ns: impl FnOnce(&V) -> u64,
    ) -> Option<V> {
        let (key, at) = set_of(node);
        let known = self.places[at..at + SET].iter().find(|known| known.key == key)?;
        let age_ns = now_ns.saturating_sub(known.since_ns);
        (age_ns < lifetime_ns(&known.value)).then_some(known.value)
    }

    pub(crate) fn set(&mut self, node: Coords, now_ns: u64, value: V) {
        let (key, at) = set_of(node);
        let set = &mut self.places[at..at + SET];
        let age = |known: &Known<V>| match known.key {
            known if known == key => (0, 0),
            NONE => (1, 0),
            _ => (2, known.since_ns),
        };
        if let Some(place) = set.iter_mut().min_by_key(|known| age(known)) {
            *place = Known { key, since_ns: now_ns, value };
        }
    }

    pub(crate) fn forget(&mut self, node: Coords) {
        let (key, at) = set_of(node);
        if let Some(known) = self.places[at..at + SET].iter_mut().find(|known| known.key == key) {
            known.key = NONE;
        }
    }
}

/// The time for which a node's announced capabilities are believed, in nanoseconds. The software
/// there may be replaced.
pub const CAPABILITIES_NS: u64 = 2_000_000_000;

/// A node and its capabilities: the key plus one, above 8 bits of capabilities.
#[derive(Debug)]
struct Peer {
    said: AtomicU64,
    since_ns: AtomicU64,
}

impl Peer {
    fn key(&self) -> u64 {
        self.said.load(Ordering::Relaxed) >> 8
    }
}

/// The capabilities of other nodes. Any thread may read and write it. A thread that reads while
/// another one writes may see an older or newer time of an entry, which is harmless.
#[derive(Debug)]
pub struct Peers<S: Storage>(S::Places<Peer>);

impl<S: Storage> Peers<S> {
    /// Creates an empty table.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    pub fn new() -> Result<Self, S::Error> {
        let absent = || Peer { said: AtomicU64::new(0), since_ns: AtomicU64::new(0) };
        Ok(Self(S::places(NODES, absent)?))
    }

    fn set(&self, node: Coords) -> (u64, &[Peer]) {
        let (key, at) = set_of(node);
        (u64::from(key) + 1, &self.0[at..at + SET])
    }

    /// The capabilities that a node has announced within [`CAPABILITIES_NS`].
    pub fn get(&self, node: Coords, now_ns: u64) -> Capabilities {
        let (key, set) = self.set(node);
        let said = set.iter().map(|peer| (peer, peer.said.load(Ordering::Relaxed)));
        let known = said.into_iter().find(|(_, said)| said >> 8 == key);
        let Some((peer, said)) = known else { return Capabilities::default() };
        let since_ns = peer.since_ns.load(Ordering::Relaxed);
        if now_ns.saturating_sub(since_ns) > CAPABILITIES_NS {
            return Capabilities::default();
        }
        Capabilities::from_flags(said as u8)
    }

    /// Stores the capabilities of a node.
    pub fn learn(&self, node: Coords, says: Capabilities, now_ns: u64) {
        let (key, set) = self.set(node);
        let nothing = says == Capabilities::default();
        let age = |peer: &&Peer| match peer.key() {
            0 => (0, 0),
            _ => (1, peer.since_ns.load(Ordering::Relaxed)),
        };
        let known = set.iter().find(|peer| peer.key() == key);
        // A node without an entry counts as having no capabilities, so none need not be stored.
        let place = known.or_else(|| set.iter().min_by_key(age).filter(|_| !nothing));
        if let Some(peer) = place {
            peer.said.store(key << 8 | u64::from(says.flags()), Ordering::Relaxed);
            peer.since_ns.store(now_ns, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Heap;

    fn nodes() -> impl Iterator<Item = Coords> {
        (0..1u32 << 19).filter_map(addr::unpack)
    }

    #[test]
    fn entries_expire_and_latest_of_a_set_stay() {
        let Ok(mut table) = NodeTable::<Heap, u8>::new();
        for (n, node) in nodes().enumerate() {
            table.set(node, n as u64, n as u8);
            assert_eq!(table.get(node, n as u64, 1), Some(n as u8));
            assert_eq!(table.get(node, n as u64 + 1, 1), None);
        }
        let count = nodes().count() as u64;
        let known = nodes().filter(|node| table.get(*node, count, count).is_some()).count();
        assert_eq!(known, NODES, "all places are in use");
        let last = nodes().last().unwrap();
        table.set(last, count, 7);
        table.forget(last);
        assert_eq!(table.get(last, count, count), None);
        assert_eq!(nodes().filter(|node| table.get(*node, count, count).is_some()).count(), 1023);
    }

    #[test]
    fn nodes_are_believed_for_two_seconds() {
        let Ok(peers) = Peers::<Heap>::new();
        let says = Capabilities { offload: true, rendezvous: false, split: true, more_queues: 2 };
        let node = Coords::new(1, 2, 3, 1, 2, 1);
        assert_eq!(peers.get(node, 0), Capabilities::default());
        peers.learn(node, Capabilities::default(), 0);
        peers.learn(node, says, 5);
        assert_eq!(peers.get(node, 5 + CAPABILITIES_NS), says);
        assert_eq!(peers.get(node, 6 + CAPABILITIES_NS), Capabilities::default());
        peers.learn(node, Capabilities::default(), 6);
        assert_eq!(peers.get(node, 6), Capabilities::default());
        nodes().for_each(|node| peers.learn(node, says, 7));
        assert_eq!(nodes().filter(|node| peers.get(*node, 7) == says).count(), NODES);
    }
}
