//! Departing packets: frames are cut into them, or offered to be fetched. Packets are routed around
//! dead links, known in advance or found on the way. Broadcasts are relayed along a tree and
//! acknowledged hop by hop.

mod frames;
mod queue;
mod relay;
mod ways;

use core::fmt;

use tofu_abi::{Coords, PacketTarget, Rcode, TniId};

use crate::counters::Counters;
use crate::health::{Health, Reporter};
use crate::neighbor::LocalNode;
use crate::ports::Ports;
use crate::storage::Storage;
use crate::tree;
use crate::wire::{
    Capabilities, ETHERNET_HEADER, Fragment, FragmentKey, HEADER_SIZE, PACKET_MAX, Repr,
};

pub use frames::{Offer, Unsent};
pub use queue::{Ended, Outgoing, PacketQueue, Purpose, Tag};
use relay::Relay;
use ways::Ways;

/// The settings for sending.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    /// The node.
    pub node: LocalNode,
    /// The TNI that it sends by, and those of the other nodes that receive it.
    pub tni: TniId,
    /// The abilities that it announces.
    pub says: Capabilities,
    /// Size of the longest frame without offload metadata, in bytes.
    pub max_frame: usize,
    /// True if its broadcasts are acknowledged hop by hop.
    pub acknowledge: bool,
    /// True if it reports its dead ports to other nodes.
    pub reports: bool,
    /// The times at which it tests its ports, see [`Ports::new`].
    pub quiet_beats: u32,
    /// True if it tests its ports at first.
    pub suspect: bool,
}

/// The sending side of a node.
pub struct Outbound<S: Storage> {
    sending: Sending,
    /// The number of the next frame.
    next_id: u32,
    ways: Ways<S>,
    relay: Relay<S>,
    /// Buffer for a packet that is routed around a node, or a fragment of a broadcast.
    spare: S::Places<u8>,
    ports: Ports,
    reporter: Option<Reporter>,
    /// Result code of the last packet that was lost.
    last_loss: Option<Rcode>,
}

impl<S: Storage> fmt::Debug for Outbound<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbound").field("sending", &self.sending).finish_non_exhaustive()
    }
}

impl<S: Storage> Outbound<S> {
    /// Creates the sending side of a node, with the known dead links. Frames and reports are
    /// numbered from the time on: a node that was restarted must not repeat its earlier numbers,
    /// because fragments of old frames could be taken for new ones.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    pub fn new(
        sending: Sending,
        health: S::Shared<Health<S>>,
        now_ns: u64,
    ) -> Result<Self, S::Error> {
        let Sending { node, tni, reports, .. } = sending;
        Ok(Self {
            sending,
            next_id: now_ns as u32,
            ways: Ways::new(&node, tni, health)?,
            relay: Relay::new()?,
            spare: S::places(PACKET_MAX, || 0)?,
            ports: sending.ports(),
            reporter: reports.then(|| Reporter::new(node.me, now_ns as u32)),
            last_loss: None,
        })
    }

    /// Starts again with a queue that has no packets, on which other nodes may fetch frames or not.
    pub fn restart(&mut self, rendezvous: bool, now_ns: u64) {
        self.sending.says.rendezvous = rendezvous;
        self.next_id = now_ns as u32;
        self.relay.clear();
        self.ports = self.sending.ports();
    }

    /// Ends rendezvous: from now on this node neither fetches frames nor lets others fetch any.
    pub fn end_rendezvous(&mut self) {
        self.sending.says.rendezvous = false;
    }

    /// Sets the number of further TNIs on which this node listens. Its packets announce it to other
    /// nodes.
    pub fn set_more_queues(&mut self, count: u8) {
        self.sending.says.more_queues = count;
    }

    /// The node.
    pub fn node(&self) -> &LocalNode {
        &self.sending.node
    }

    /// The abilities that this node announces.
    pub fn says(&self) -> Capabilities {
        self.sending.says
    }

    /// The counters so far.
    pub fn counters(&self) -> Counters {
        self.ways.counters
    }

    /// The counters, for events that are counted elsewhere.
    pub fn count(&mut self) -> &mut Counters {
        &mut self.ways.counters
    }

    /// The known dead links.
    pub fn health(&self) -> &S::Shared<Health<S>> {
        &self.ways.health
    }

    /// The node's ports.
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    /// The node's ports.
    pub fn ports_mut(&mut self) -> &mut Ports {
        &mut self.ports
    }

    /// The result code of the last lost packet.
    pub fn last_loss(&self) -> Option<Rcode> {
        self.last_loss
    }

    /// Notes a loss that is counted elsewhere.
    pub fn note_loss(&mut self, rcode: Rcode) {
        self.last_loss = Some(rcode);
    }

    /// Returns true if nothing needs [`Outbound::expire`] and [`Outbound::report`] soon.
    pub fn is_settled(&self) -> bool {
        self.relay.is_settled() && self.reporter.as_ref().is_none_or(Reporter::is_settled)
    }

    /// Sends a packet to one node.
    pub fn post(&mut self, queue: &mut impl PacketQueue, to: Coords, parts: &[&[u8]], now_ns: u64) {
        self.ways.post(queue, to, false, parts, now_ns);
    }

    /// Sends a fragment of a broadcast, or the acknowledgement of one. If a child is known to be
    /// unresponsive, the fragment also goes to the nodes that the child would have relayed it to.
    pub fn post_fragment(
        &mut self,
        queue: &mut impl PacketQueue,
        fragment: &Fragment<'_>,
        now_ns: u64,
    ) {
        let Fragment { to, broadcast, header, body } = fragment;
        if *broadcast {
            self.relay.send(&mut self.ways, queue, *to, (header, body), now_ns);
        } else {
            self.post(queue, *to, &[header, body], now_ns);
        }
    }

    /// Handles a node's acknowledgement of a fragment of a broadcast.
    pub fn acknowledged(&mut self, from: Coords, key: FragmentKey) {
        self.relay.acknowledged(from, key);
    }

    /// Routes broadcasts around nodes whose acknowledgements have timed out. Must be called
    /// periodically.
    pub fn expire(&mut self, queue: &mut impl PacketQueue, now_ns: u64) {
        while !self.relay.is_settled() {
            let Some((to, len)) = self.relay.expired(&mut self.spare, now_ns) else { return };
            self.relay_beyond(queue, to, len, now_ns);
        }
    }

    /// Tests the node's ports if that is due, see [`Ports::look`]. Must be called every second. The
    /// node's own frames have priority: tests and reports leave half of the buffers to them.
    /// Returns true if results will come.
    pub fn look_at_ports(&mut self, queue: &mut impl PacketQueue) -> bool {
        let Sending { node, tni, .. } = &self.sending;
        self.ports.look(node, *tni, |port, target, header| {
            has_half(queue) && queue.post(target, Purpose::Port(port), &[header])
        })
    }

    /// Reports dead ports to other nodes, if a report is due. To be called periodically. Returns
    /// whether there is more to be reported soon.
    pub fn report(&mut self, queue: &mut impl PacketQueue, now_ns: u64) -> bool {
        let Self { ways, reporter, .. } = self;
        let Some(reporter) = reporter else { return false };
        if ways.health.own() == 0 && reporter.is_silent() {
            return false;
        }
        let health = ways.health.clone();
        reporter.step(&health, now_ns, |to, header| {
            let tag = Tag { to, report: true, ..Tag::default() };
            let way = has_half(queue).then(|| ways.first(tag, now_ns)).flatten();
            way.is_some_and(|(target, tag)| queue.post(&target, Purpose::Packet(tag), &[header]))
        });
        !reporter.is_settled()
    }

    /// Handles a transmit completion. A lost packet is sent again by another route. If
    /// there is none, a broadcast goes to the nodes that the target would have relayed it to.
    pub fn ended<Q: PacketQueue>(&mut self, queue: &mut Q, ended: Ended<Q::Buffer>, now_ns: u64) {
        let Ended { purpose, rcode, buffer, len } = ended;
        let tag = match purpose {
            Purpose::Port(port) => {
                if let Some(dead) = self.ports.answered(port, rcode) {
                    self.ways.health.set_own(dead);
                }
                return queue.give_up(buffer);
            }
            Purpose::Packet(_) if rcode.is_success() => return queue.give_up(buffer),
            Purpose::Packet(tag) => tag,
        };
        if rcode == Rcode::LINK_DOWN {
            self.ports.suspect();
        }
        if let Some((target, tag)) = self.lost(tag, rcode, now_ns) {
            if !queue.post_buffer(buffer, len, &target, Purpose::Packet(tag)) {
                self.count().lost += 1;
            }
            return;
        }
        if !tag.report {
            self.last_loss = Some(rcode);
        }
        let len = usize::from(len).min(PACKET_MAX);
        let read = tag.broadcast && queue.read(&buffer, &mut self.spare[..len]);
        queue.give_up(buffer);
        if read {
            let (header, body) = self.spare[..len].split_at(HEADER_SIZE.min(len));
            if let Some(repr) = Repr::of(header, body) {
                self.relay.close(tag.to, repr.key());
                self.relay_beyond(queue, tag.to, len, now_ns);
            }
        }
    }

    /// Handles a packet that was lost with this result code. Returns the target for sending it
    /// again, if there is another route.
    pub fn lost(&mut self, tag: Tag, rcode: Rcode, now_ns: u64) -> Option<(PacketTarget, Tag)> {
        let way = self.ways.next(tag).filter(|_| rcode == Rcode::LINK_DOWN);
        let count = u64::from(!tag.report);
        if let Some((_, tag)) = way {
            self.ways.detours.set(tag.to, now_ns, tag.attempt);
            self.ways.counters.rerouted += count;
            return way;
        }
        self.ways.detours.forget(tag.to);
        self.ways.counters.lost += count;
        None
    }

    fn relay_beyond(&mut self, queue: &mut impl PacketQueue, to: Coords, len: usize, now_ns: u64) {
        let packet = self.spare[..len].split_at(HEADER_SIZE.min(len));
        let Some(repr) = Repr::of(packet.0, packet.1) else { return };
        for child in tree::children(&self.ways.shape, repr.origin, to) {
            self.relay.send(&mut self.ways, queue, child, packet, now_ns);
        }
    }
}

impl Sending {
    /// A node that announces no capabilities, with an MTU of 1500. It requests no acknowledgements,
    /// and neither reports nor tests its ports unless a packet has met a dead link.
    pub const fn new(node: LocalNode, tni: TniId) -> Self {
        Self {
            node,
            tni,
            says: Capabilities::NONE,
            max_frame: 1500 + ETHERNET_HEADER,
            acknowledge: false,
            reports: false,
            quiet_beats: u32::MAX,
            suspect: false,
        }
    }

    /// The node's ports before any test.
    fn ports(&self) -> Ports {
        Ports::new(&self.node, self.quiet_beats, self.suspect)
    }
}

/// Returns true if at least half of a queue's buffers are free.
fn has_half(queue: &impl PacketQueue) -> bool {
    queue.room() > queue.size() / 2
}
