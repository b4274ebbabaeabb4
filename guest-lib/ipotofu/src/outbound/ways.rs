//! The routes of packets to other nodes.

use tofu_abi::topology::Shape;
use tofu_abi::{Coords, PacketTarget, TniId};

use super::queue::{PacketQueue, Purpose, Tag};
use crate::counters::Counters;
use crate::health::Health;
use crate::neighbor::LocalNode;
use crate::nodes::NodeTable;
use crate::routes::route;
use crate::storage::Storage;

/// The time for which a detour is used before the first route is tried again, in nanoseconds.
const DETOUR_NS: u64 = 1_000_000_000;

/// The routes to other nodes.
#[derive(Debug)]
pub(super) struct Ways<S: Storage> {
    pub(super) shape: Shape,
    pub(super) me: Coords,
    tni: TniId,
    /// The last route, with its node and number: most packets use it again.
    last: Option<(Coords, u8, PacketTarget)>,
    /// The number of the current route to a node.
    pub(super) detours: NodeTable<S, u8>,
    pub(super) health: S::Shared<Health<S>>,
    pub(super) counters: Counters,
}

impl<S: Storage> Ways<S> {
    pub(super) fn new(
        node: &LocalNode,
        tni: TniId,
        health: S::Shared<Health<S>>,
    ) -> Result<Self, S::Error> {
        let LocalNode { shape, me, .. } = *node;
        let (detours, counters) = (NodeTable::new()?, Counters::default());
        Ok(Self { shape, me, tni, last: None, detours, health, counters })
    }

    pub(super) fn way(&mut self, tag: Tag) -> Option<(PacketTarget, Tag)> {
        let last = self.last.filter(|(to, attempt, _)| (*to, *attempt) == (tag.to, tag.attempt));
        if let Some((.., target)) = last {
            return Some((target, tag));
        }
        let target = route(&self.shape, self.me, tag.to, self.tni, tag.attempt)?;
        self.last = Some((tag.to, tag.attempt, target));
        Some((target, tag))
    }

    /// The first route to try: one that was found lately, or else the first one without links known
    /// to be dead. If there is none, the very first one.
    pub(super) fn first(&mut self, mut tag: Tag, now_ns: u64) -> Option<(PacketTarget, Tag)> {
        if let Some(attempt) = self.detours.get(tag.to, now_ns, DETOUR_NS) {
            (tag.attempt, tag.wraps) = (attempt, attempt != 0);
        } else if !self.health.is_quiet(now_ns) {
            let way = |attempt| route(&self.shape, self.me, tag.to, self.tni, attempt);
            let mut ways = (0..=u8::MAX).map_while(way);
            let clear = ways.position(|target| self.health.is_clear(&target, now_ns));
            let attempt = clear.unwrap_or(0) as u8;
            if attempt != 0 {
                self.counters.avoided += 1;
            }
            self.detours.set(tag.to, now_ns, attempt);
            (tag.attempt, tag.wraps) = (attempt, attempt != 0);
        }
        self.way(tag)
    }

    /// The next route for a packet.
    pub(super) fn next(&mut self, tag: Tag) -> Option<(PacketTarget, Tag)> {
        let next = self.way(Tag { attempt: tag.attempt.saturating_add(1), ..tag });
        match tag.wraps {
            true => next.or_else(|| self.way(Tag { attempt: 0, wraps: false, ..tag })),
            false => next,
        }
    }

    pub(super) fn post(
        &mut self,
        queue: &mut impl PacketQueue,
        to: Coords,
        broadcast: bool,
        parts: &[&[u8]],
        now_ns: u64,
    ) {
        let way = self.first(Tag { to, broadcast, ..Tag::default() }, now_ns);
        if !way.is_some_and(|(target, tag)| queue.post(&target, Purpose::Packet(tag), parts)) {
            self.counters.lost += 1;
        }
    }
}
