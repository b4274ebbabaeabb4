//! Faults injected on links, and bit errors of links that do not correct them.
//!
//! The fate of a packet on a link follows from the seed, the link, the direction and the number
//! of packets before it. A run whose packets come in the same order therefore has the same faults.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tofu_abi::Coords;
use tofu_links::ErrorRate;

use crate::chance::mix;
use crate::{Class, Hop, NoSuchLink, NodeId, Packet, Port, Shape};

/// A chance, in parts per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ppm(u32);

impl Ppm {
    /// Never.
    pub const NEVER: Self = Self(0);
    /// Always.
    pub const ALWAYS: Self = Self(1_000_000);

    /// That many in a million; `None` if more than a million.
    pub const fn new(parts: u32) -> Option<Self> {
        if parts <= Self::ALWAYS.0 { Some(Self(parts)) } else { None }
    }

    /// Parts in a million.
    pub const fn parts(self) -> u32 {
        self.0
    }

    /// Returns true if it happens, given a random number.
    pub const fn hits(self, random: u64) -> bool {
        (((random >> 32) * 1_000_000) >> 32) < self.0 as u64
    }
}

/// The probability of each fault of a packet on a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// It is lost without a report.
    pub loss: Ppm,
    /// It arrives twice. A packet is duplicated at most once on its way.
    pub duplicate: Ppm,
    /// It is held back at its target until up to [`REORDER_DEPTH`] others have overtaken it, or
    /// until [`Wires::release`](crate::Wires::release).
    pub reorder: Ppm,
    /// Some of its bits change, and most likely its check sequence no longer fits.
    pub corrupt: Ppm,
    /// At most 8 neighbouring bits of its payload change. Its CRC is recomputed, so that no device
    /// detects the damage.
    pub undetected: Ppm,
}

/// The number of packets that can overtake one that is held back.
pub const REORDER_DEPTH: u32 = 8;

impl Rates {
    /// No faults.
    pub const NONE: Self = Self {
        loss: Ppm::NEVER,
        duplicate: Ppm::NEVER,
        reorder: Ppm::NEVER,
        corrupt: Ppm::NEVER,
        undetected: Ppm::NEVER,
    };
}

/// The faults of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Faults with equal seeds are equal.
    pub seed: u64,
    /// Faults on every link.
    pub everywhere: Rates,
    /// Faults on single links instead, in both directions. The last entry for a link counts.
    pub links: Vec<(Coords, Port, Rates)>,
    /// Also loses requests and responses, and duplicates those that [`Disturb::duplicate`] can
    /// copy. Real links never do that, as they repeat a frame until it is right and drop it when it
    /// comes again. Initiators of commands then end with a timeout.
    pub commands: bool,
}

/// The number of times faults happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Packets lost.
    pub lost: u64,
    /// Packets duplicated.
    pub duplicated: u64,
    /// Packets held back.
    pub reordered: u64,
    /// Packets damaged so that their target detects it.
    pub corrupted: u64,
    /// Packets damaged with a new check sequence.
    pub undetected: u64,
}

/// Faults in the contents of packets.
pub trait Disturb: Sized {
    /// Returns a copy, as if it had been sent twice; `None` if it cannot be copied.
    fn duplicate(&self) -> Option<Self>;

    /// Changes some bits, chosen by a random number. If `undetected`, the check sequence fits
    /// afterwards, and at most 8 neighbouring bits of the payload may change. Returns whether
    /// anything has changed.
    fn damage(&mut self, random: u64, undetected: bool) -> bool;

    /// Inverts these bits of the packet as it is on a link, counted from 0, at least one. The check
    /// sequence stays. Returns false if nothing that a receiver could take is left.
    fn invert(&mut self, bits: &[u32]) -> bool {
        let first = bits.first().copied().unwrap_or_default();
        self.damage(first.into(), false);
        true
    }
}

/// Bit errors on links that do not correct them.
#[derive(Debug)]
pub(crate) struct BitErrors<B> {
    /// By node and port, in both directions.
    rates: BTreeMap<usize, ErrorRate>,
    /// Packets that have passed such links.
    passed: Arc<AtomicU64>,
    invert: fn(&mut B, &[u32]) -> bool,
}

impl<B: Disturb> BitErrors<B> {
    /// Those that there were, if any.
    pub(crate) fn after(former: Option<&Self>) -> Self {
        let former = former.map(|former| (former.rates.clone(), Arc::clone(&former.passed)));
        let (rates, passed) = former.unwrap_or_default();
        Self { rates, passed, invert: B::invert }
    }
}

impl<B> BitErrors<B> {
    /// Sets the probability that a bit on a link is wrong. Returns true if any link has one.
    pub(crate) fn set(&mut self, ends: [usize; 2], rate: ErrorRate) -> bool {
        for end in ends {
            if rate == ErrorRate::NEVER {
                self.rates.remove(&end);
            } else {
                self.rates.insert(end, rate);
            }
        }
        !self.rates.is_empty()
    }

    /// Inverts bits of a packet that crosses a link. Returns false if nothing of it can be
    /// received.
    pub(crate) fn apply(&self, hop: Hop, packet: &mut Packet<B>) -> bool {
        let index = link_index(hop.from, hop.port);
        let Some(rate) = self.rates.get(&index) else { return true };
        let number = self.passed.fetch_add(1, Relaxed);
        let base = mix((index as u64) << 40 ^ number);
        // A byte has one wrong bit at most, which is nearly always so on a link that is of use.
        let bytes = u32::try_from(packet.bytes).unwrap_or(u32::MAX).min(MOST_BYTES);
        let wrong = |byte: &u32| rate.spoils(8, mix(base ^ u64::from(*byte)));
        let bit = |byte: u32| byte * 8 + (mix(base ^ !u64::from(byte)) % 8) as u32;
        let bits: Vec<u32> = (0..bytes).filter(wrong).map(bit).collect();
        bits.is_empty() || (self.invert)(&mut packet.body, &bits)
    }
}

/// Bytes of a packet in which bits may be wrong, which is more than a frame has.
const MOST_BYTES: u32 = 4096;

/// The two directions of a link, as [`BitErrors::set`] has them.
pub(crate) fn both_ends(shape: &Shape, node: Coords, port: Port) -> Result<[usize; 2], NoSuchLink> {
    let far = shape.neighbor(node, port).ok_or(NoSuchLink { node, port })?;
    let index = |at: Coords, port: Port| Some(link_index(shape.node_id(at)?, port));
    let ends = index(node, port).zip(index(far, port.opposite()));
    ends.map(|(near, far)| [near, far]).ok_or(NoSuchLink { node, port })
}

/// Faults at work.
#[derive(Debug)]
pub(crate) struct Faults<B> {
    plan: FaultPlan,
    /// By node and port, where they differ from the plan's `everywhere`.
    rates: Vec<(usize, Rates)>,
    /// Packets that have passed, by node and port.
    passed: Box<[AtomicU64]>,
    counters: Counters,
    duplicate: fn(&B) -> Option<B>,
    damage: fn(&mut B, u64, bool) -> bool,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    lost: AtomicU64,
    duplicated: AtomicU64,
    reordered: AtomicU64,
    corrupted: AtomicU64,
    undetected: AtomicU64,
}

/// The fate of a packet on a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// It is gone.
    pub lost: bool,
    /// It is to be sent twice.
    pub duplicated: bool,
    /// The number of others that are to overtake it.
    pub held: Option<u32>,
}

/// The direction of a link out of a port of a node.
fn link_index(from: NodeId, port: Port) -> usize {
    from.index() * Port::COUNT + port.index()
}

impl<B: Disturb> Faults<B> {
    /// # Errors
    /// If the plan names a link that does not exist.
    pub(crate) fn new(shape: &Shape, plan: FaultPlan) -> Result<Self, NoSuchLink> {
        let mut rates = BTreeMap::new();
        for &(node, port, own) in &plan.links {
            for index in both_ends(shape, node, port)? {
                rates.insert(index, own);
            }
        }
        let links = shape.nodes() as usize * Port::COUNT;
        Ok(Self {
            plan,
            rates: rates.into_iter().collect(),
            passed: (0..links).map(|_| AtomicU64::new(0)).collect(),
            counters: Counters::default(),
            duplicate: B::duplicate,
            damage: B::damage,
        })
    }
}

impl<B> Faults<B> {
    pub(crate) const fn plan(&self) -> &FaultPlan {
        &self.plan
    }

    pub(crate) fn counters(&self) -> FaultCounters {
        let Counters { lost, duplicated, reordered, corrupted, undetected } = &self.counters;
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        FaultCounters {
            lost: read(lost),
            duplicated: read(duplicated),
            reordered: read(reordered),
            corrupted: read(corrupted),
            undetected: read(undetected),
        }
    }

    fn rates(&self, index: usize) -> &Rates {
        match self.rates.binary_search_by_key(&index, |(known, _)| *known) {
            Ok(place) => &self.rates[place].1,
            Err(_) => &self.plan.everywhere,
        }
    }

    /// Decides the fate of a packet that crosses a link. Damages it if that is due.
    pub(crate) fn apply(&self, hop: Hop, packet: &mut Packet<B>) -> Fate {
        let system = packet.class == Class::System;
        if !system && !self.plan.commands {
            return Fate::default();
        }
        let index = link_index(hop.from, hop.port);
        let rates = self.rates(index);
        let Some(passed) = self.passed.get(index) else { return Fate::default() };
        let number = passed.fetch_add(1, Relaxed);
        let base = mix(self.plan.seed ^ mix((index as u64) << 40 ^ number));
        let random = |kind: u64| mix(base.wrapping_add(kind));
        let count = |counter: &AtomicU64| {
            counter.fetch_add(1, Relaxed);
        };
        let mut fate = Fate { lost: rates.loss.hits(random(1)), ..Fate::default() };
        if fate.lost {
            count(&self.counters.lost);
        }
        if fate.lost {
            return fate;
        }
        fate.duplicated = rates.duplicate.hits(random(6));
        if !system {
            return fate;
        }
        if rates.corrupt.hits(random(2)) && (self.damage)(&mut packet.body, random(3), false) {
            count(&self.counters.corrupted);
        }
        if rates.undetected.hits(random(4)) && (self.damage)(&mut packet.body, random(5), true) {
            count(&self.counters.undetected);
        }
        if rates.reorder.hits(random(7)) {
            fate.held = Some(1 + (random(8) % u64::from(REORDER_DEPTH)) as u32);
        }
        fate
    }

    /// Duplicates a packet, if its body can be copied.
    pub(crate) fn duplicate(&self, packet: &Packet<B>) -> Option<Packet<B>> {
        let body = (self.duplicate)(&packet.body)?;
        self.counters.duplicated.fetch_add(1, Relaxed);
        Some(Packet { body, ..*packet })
    }

    pub(crate) fn count_held(&self) {
        self.counters.reordered.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_are_as_said() {
        for parts in [0, 1_000, 10_000, 50_000, 500_000, 1_000_000] {
            let chance = Ppm::new(parts).unwrap();
            let hits = (0..100_000).filter(|n| chance.hits(mix(*n))).count() as i64;
            let expected = i64::from(parts) / 10;
            // Four times the standard deviation.
            let p = f64::from(parts) / 1e6;
            let margin = (4.0 * (100_000.0 * p * (1.0 - p)).sqrt()) as i64;
            assert!((hits - expected).abs() <= margin, "{parts} ppm: {hits} of 100000");
        }
        assert_eq!(Ppm::new(1_000_001), None);
    }
}
