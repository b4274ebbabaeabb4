//! Ways that packets took, remembered by the thread that carries them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tofu_abi::{Coords, Path};

use crate::routing::{Hop, Route};
use crate::{Class, NodeId, Packet, Shape, Way};

/// Most hops of a way that is remembered.
const HOPS: usize = 6;
/// Ways that are remembered at a time, a power of two.
const PLACES: usize = 64;
const NO_HOP: Hop = Hop { from: NodeId(0), port: crate::Port::A, to: NodeId(0), vc: 0 };

/// Identifies the machine whose ways are remembered. Ways depend only on the shape of the machine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MachineId(u64);

impl MachineId {
    /// An id that no other machine of this process has.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Relaxed))
    }
}

/// A cache of the shortest ways of earlier packets, so that later ones need not be routed. Each
/// thread has its own, so that no lock is needed.
///
/// A way is the list of its links. Each packet checks the state of a link when it reaches it.
#[derive(Debug, Default)]
pub struct Ways {
    /// The machine that they are of; 0 for none.
    machine: u64,
    /// Empty until there is a way to remember.
    places: Vec<Known>,
    /// Ways with the way back. Empty until there is one to remember.
    trips: Vec<KnownTrip>,
}

/// The way of a request and that of its answer, by the key of the first.
#[derive(Clone, Debug)]
struct KnownTrip {
    key: Key,
    /// When all links of them were open: see [`Fabric::epoch`](crate::Fabric).
    open_at: u64,
    /// None if one of them is too long to be remembered, or there is none.
    ways: Option<[Known; 2]>,
}

/// A way.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    key: Key,
    from: NodeId,
    count: u8,
    hops: [Hop; HOPS],
}

impl Known {
    /// The node that it begins at.
    pub(crate) const fn from(&self) -> NodeId {
        self.from
    }

    pub(crate) fn hops(&self) -> &[Hop] {
        self.hops.get(..usize::from(self.count)).unwrap_or_default()
    }
}

/// All that a shortest way depends on: source, target, path and class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key([u64; 2]);

impl Key {
    /// No packet has a class with this number.
    const NONE: Self = Self([u64::MAX; 2]);

    #[inline]
    const fn of<B>(packet: &Packet<B>) -> Self {
        let (from, to, path) = (packet.src, packet.dst, packet.path);
        Self([
            u64::from_le_bytes([from.x, from.y, from.z, from.a, from.b, from.c, path.a, path.b]),
            u64::from_le_bytes([to.x, to.y, to.z, to.a, to.b, to.c, path.c, packet.class as u8]),
        ])
    }

    #[inline]
    const fn place(self) -> usize {
        // Odd numbers without a pattern: the highest bits of the product depend on all bytes.
        let Self([from, to]) = self;
        let mixed = from.rotate_left(29).wrapping_add(to).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (u64::BITS - PLACES.trailing_zeros())) as usize
    }
}

impl Ways {
    /// The way of a packet through a machine of this shape. `None` if it is not remembered: if it
    /// is long, not the shortest, or if there is none.
    #[inline]
    pub(crate) fn of<B>(
        &mut self,
        machine: &MachineId,
        shape: &Shape,
        packet: &Packet<B>,
    ) -> Option<&Known> {
        if !matches!(packet.way, Way::Shortest) {
            return None;
        }
        let key = Key::of(packet);
        let place = key.place();
        let known = self.machine == machine.0
            && self.places.get(place).is_some_and(|known| known.key == key);
        if !known {
            self.learn(machine, shape, packet)?;
        }
        self.places.get(place)
    }

    /// The shortest way of a request and that of its answer, and when all their links were open.
    /// `None` if one of them would not be remembered. `key` stands for the ends and the path.
    #[inline]
    pub(crate) fn there_and_back(
        &mut self,
        machine: &MachineId,
        shape: &Shape,
        key: [u64; 2],
        ends: impl FnOnce() -> (Coords, Coords, Path),
    ) -> Option<(&[Known; 2], &mut u64)> {
        let key = Key(key);
        let place = key.place();
        let known =
            self.machine == machine.0 && self.trips.get(place).is_some_and(|trip| trip.key == key);
        if !known {
            self.learn_trip(machine, shape, key, ends())?;
        }
        let trip = self.trips.get_mut(place)?;
        Some((trip.ways.as_ref()?, &mut trip.open_at))
    }

    #[cold]
    fn learn_trip(
        &mut self,
        machine: &MachineId,
        shape: &Shape,
        key: Key,
        (from, to, path): (Coords, Coords, Path),
    ) -> Option<()> {
        let request = Packet { path, ..Packet::shortest(Class::Request, from, to, ()) };
        let answer = Packet { path, ..Packet::shortest(Class::Response, to, from, ()) };
        let there = self.of(machine, shape, &request).cloned();
        let back = self.of(machine, shape, &answer).cloned();
        if self.machine != machine.0 {
            // Neither of them was remembered.
            return None;
        }
        if self.trips.is_empty() {
            self.trips.resize(PLACES, KnownTrip { key: Key::NONE, open_at: 0, ways: None });
        }
        let ways = there.zip(back).map(|(there, back)| [there, back]);
        *self.trips.get_mut(key.place())? = KnownTrip { key, open_at: 0, ways };
        Some(())
    }

    #[cold]
    fn learn<B>(&mut self, machine: &MachineId, shape: &Shape, packet: &Packet<B>) -> Option<()> {
        let mut route =
            Route::new(shape, packet.src, packet.dst, packet.path, packet.class).ok()?;
        if self.machine != machine.0 {
            self.places.clear();
            self.trips.clear();
            self.machine = machine.0;
        }
        if self.places.is_empty() {
            let none = Known { key: Key::NONE, from: NodeId(0), count: 0, hops: [NO_HOP; HOPS] };
            self.places.resize(PLACES, none);
        }
        let key = Key::of(packet);
        let known = self.places.get_mut(key.place())?;
        known.key = Key::NONE;
        known.from = route.node();
        known.count = 0;
        for (place, hop) in known.hops.iter_mut().zip(&mut route) {
            *place = hop;
            known.count += 1;
        }
        if route.next().is_some() {
            return None;
        }
        known.key = key;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One memory for two machines, each pair of nodes by each class and twice in a row.
    #[test]
    fn way_is_the_route_or_not_remembered() {
        let machines = ["2x3x1x2x3x2", "9x1x1x1x1x1"]
            .map(|shape| (MachineId::new(), shape.parse::<Shape>().expect("a shape")));
        let mut ways = Ways::default();
        let (mut short, mut long) = (0, 0);
        for (from, to, class) in machines[0].1.iter().flat_map(|from| {
            let ends = machines[0].1.iter().step_by(5).map(move |to| (from, to));
            ends.flat_map(|(from, to)| Class::ALL.map(|class| (from, to, class)))
        }) {
            for (id, shape) in machines.iter().chain(&machines) {
                let to = Coords { x: to.x + from.a, ..to };
                let packet = Packet::shortest(class, from, to, ());
                let route = Route::new(shape, from, to, packet.path, class).ok();
                let hops = route.map(|route| (route.node(), route.collect::<Vec<_>>()));
                let known = ways.of(id, shape, &packet);
                let known = known.map(|known| (known.from(), known.hops().to_vec()));
                match hops {
                    Some((_, hops)) if hops.len() > HOPS => {
                        long += 1;
                        assert_eq!(known, None);
                    }
                    hops => {
                        short += usize::from(hops.is_some());
                        assert_eq!(known, hops, "{from} to {to}");
                    }
                }
                let key = Key::of(&Packet { class: Class::Request, ..packet.clone() });
                let ends = || (from, to, packet.path);
                let both =
                    ways.there_and_back(id, shape, key.0, ends).map(|(ways, _)| ways.clone());
                let answer = Packet { path: packet.path, ..Packet::shortest(class, to, from, ()) };
                let each = [(Class::Request, &packet), (Class::Response, &answer)];
                let each = each.map(|(class, packet)| {
                    let packet = Packet { class, ..packet.clone() };
                    ways.of(id, shape, &packet).map(|way| (way.from(), way.hops().to_vec()))
                });
                let both = both.map(|both| both.map(|way| (way.from(), way.hops().to_vec())));
                let [there, back] = each;
                assert_eq!(both, there.zip(back).map(|(there, back)| [there, back]));
            }
        }
        assert!(short > 1000, "{short} and {long}");
        let elsewhere = Way::Distances([1, 0, 0]);
        let packet = Packet::shortest(Class::System, Coords::default(), Coords::default(), ());
        let packet = Packet { way: elsewhere, ..packet };
        assert!(ways.of(&machines[0].0, &machines[0].1, &packet).is_none());
    }
}
