// SPDX-License-Identifier: GPL-2.0

//! The receiving side.
//!
//! A long frame, but for its head, goes to pages that go up the stack as they are, from a pool for
//! each queue of a 64th of the node's memory, 6 to 32 MiB, whose pages stay mapped. If
//! programs leave more unread, or device addresses are memory addresses, it is copied to other
//! pages. Before the stack gets pages they leave the device's tables, up to four frames at a time.

use kernel::prelude::*;
use kernel::sync::SpinLock;

use tofu_abi::{Coords, TniId};
use tofu_ipotofu::addr;
use tofu_ipotofu::neighbor::LocalNode;
use tofu_ipotofu::offload::{Metadata, HEAD};
use tofu_ipotofu::rendezvous::{self, Fetches, Message, Request, SLOTS};
use tofu_ipotofu::wire::{Fragment, HEADER_SIZE};
use tofu_ipotofu::{Arrival, Counters, Event, FrameBuffer, Inbound, Limits};

use super::tx::Tx;
use crate::engine::{now_ns, Health, KernelMemory, Peers};
use crate::packets::Receiver;
use crate::rendezvous::{Chunks, RendezvousMemory};
use crate::shim;
use crate::skb::Skb;
use crate::tx_queue::TxQueue;

/// The receiving side.
pub(super) struct Rx {
    pub(super) receiver: Option<Receiver>,
    pub(super) state: RxState,
}

/// The state that the receiving side shares with other modules.
pub(super) struct Sides<'a> {
    pub(super) tni: TniId,
    pub(super) tx: &'a SpinLock<Tx>,
    pub(super) peers: &'a Peers,
    /// The link state for reports, if this is the queue that handles them.
    pub(super) health: Option<&'a Health>,
}

/// The result of looking for received packets.
pub(super) enum Step {
    /// There is nothing.
    Idle,
    /// The next packet must wait for this number of nanoseconds, unless a fetch ends before.
    Wait(u64),
    /// Something was done.
    Done,
    /// A frame has arrived, with its offload metadata.
    Frame(Skb, Metadata),
}

pub(super) struct RxState {
    pub(super) inbound: Inbound<KernelMemory, Skb>,
    pub(super) fetches: Fetches<KernelMemory, Option<Skb>>,
    /// Fetched frames, in memory that no other node can write.
    private: KVVec<Fetched>,
}

impl Rx {
    /// The receiving side of the `number`th queue of an interface.
    pub(super) fn new(node: &LocalNode, number: u8) -> Result<Self> {
        let limits = Limits {
            frame: u16::MAX.into(),
            offload: true,
            broadcasts: number == 0,
            reassemblies: Limits::REASSEMBLIES,
        };
        Ok(Self {
            receiver: None,
            state: RxState {
                inbound: Inbound::new(node.shape, node.me, limits)?,
                fetches: Fetches::new()?,
                private: KVVec::with_capacity(SLOTS, GFP_KERNEL)?,
            },
        })
    }

    /// Takes the next fetched frame, or the next packet.
    pub(super) fn step(&mut self, sides: &Sides<'_>, queue: TxQueue<'_>, now: u64) -> Step {
        if let Some(step) = self.state.take_fetched(sides, queue, now) {
            return step;
        }
        let (Some(receiver), state) = (self.receiver.as_mut(), &mut self.state) else {
            return Step::Idle;
        };
        let next = || receiver.peek(|from, payload| (from, rendezvous::is_from_origin(payload)));
        if let Some(left) = state.fetches.hold(next, now_ns) {
            return Step::Wait(left);
        }
        let taken = receiver.take(|from, payload| state.receive(sides, queue, from, payload, now));
        match taken {
            None => Step::Idle,
            Some(None) => Step::Done,
            Some(Some((frame, metadata))) => Step::Frame(frame, metadata),
        }
    }
}

impl RxState {
    /// Drops incomplete frames.
    pub(super) fn clear(&mut self) {
        self.inbound.clear();
        self.fetches.clear();
        self.private.clear();
    }

    /// Takes a packet. Returns the frame that it completes, with the metadata of the frame.
    fn receive(
        &mut self,
        sides: &Sides<'_>,
        queue: TxQueue<'_>,
        from: Coords,
        payload: &[u8],
        now: u64,
    ) -> Option<(Skb, Metadata)> {
        let (header, body) = payload.split_at(HEADER_SIZE.min(payload.len()));
        let packet = match self.inbound.sort(from, header, body, sides.health, now)? {
            Arrival::Message => {
                self.take_message(sides, queue, (from, header, body), now);
                return None;
            }
            Arrival::Frame(packet) => packet,
        };
        let repr = &packet.repr;
        shim::tofu_shim_trace_packet(
            sides.tni,
            addr::pack(repr.origin),
            repr.id,
            repr.offset,
            repr.length,
            repr.kind as u8,
        );
        let make = |len| Skb::new(queue, len);
        let mut tx = None;
        let send = &mut |fragment: &Fragment<'_>| {
            let tx = tx.get_or_insert_with(|| sides.tx.lock());
            tx.post_fragment(fragment, now);
        };
        let event = self
            .inbound
            .receive(from, &packet, sides.peers, now, make, send);
        drop(tx);
        match event {
            Event::Whole(metadata, part) => {
                let whole = packet.body.get(part)?;
                let Some(mut frame) = Skb::new(queue, whole.len()) else {
                    self.inbound.count().no_memory += 1;
                    return None;
                };
                frame.write(0, whole).then_some((frame, metadata))
            }
            Event::Assembled(metadata, frame) => Some((frame, metadata)),
            Event::Acknowledged(key) => {
                sides.tx.lock().outbound.acknowledged(from, key);
                None
            }
            Event::Nothing => None,
        }
    }

    /// Handles a message about frames to fetch.
    fn take_message(
        &mut self,
        sides: &Sides<'_>,
        queue: TxQueue<'_>,
        (from, header, body): (Coords, &[u8], &[u8]),
        now: u64,
    ) {
        let mut tx = sides.tx.lock();
        let (says, packet) = (tx.outbound.says(), (header, body));
        let message = self.inbound.message(from, packet, says, sides.peers, now);
        let Some(message) = message else {
            return;
        };
        let (id, len, kind) = match &message {
            Message::Request(request) if request.is_split() => (request.id, request.head, 6),
            Message::Request(request) => (request.id, request.len as u16, 4),
            Message::Done { id, .. } => (*id, 0, 5),
        };
        shim::tofu_shim_trace_packet(sides.tni, addr::pack(from), id, 0, len, kind);
        match message {
            Message::Request(request) => {
                let head = request.head_in(body);
                // If there is no memory for it, the frame is lost after it was fetched.
                let head = Skb::new(queue, head.len())
                    .and_then(|mut frame| frame.write(0, head).then_some(frame))
                    .filter(|_| request.is_split());
                let queue = &mut tx.queue(now);
                let counters = self.inbound.count();
                self.fetches.request(request, head, queue, counters);
            }
            Message::Done { id, refused } => tx.requests.done(from, id, refused, now),
        }
    }

    /// Takes the next fetched frame, if there is one.
    fn take_fetched(&mut self, sides: &Sides<'_>, queue: TxQueue<'_>, now: u64) -> Option<Step> {
        if self.private.is_empty() {
            if !self.fetches.are_under_way() {
                return None;
            }
            let mut tx = sides.tx.lock();
            if !tx.gets.are_due(now) {
                return None;
            }
            self.take_all(&mut tx, now);
        }
        let Fetched {
            request,
            head,
            mut chunks,
        } = self.private.remove(0).ok()?;
        let copy = !sides.tx.lock().may_pass_on(&chunks);
        let counters = self.inbound.count();
        let frame = assemble(&request, head, (&mut chunks, copy), queue, counters);
        if let Some(memory) = sides.tx.lock().rendezvous() {
            memory.give(chunks);
        }
        let Some(frame) = frame else {
            return Some(Step::Done);
        };
        let (origin, len) = (request.origin, frame.len());
        let inbound = &mut self.inbound;
        let accepted =
            frame.look(|head| inbound.accept_fetched(origin, &request.metadata, head, len));
        Some(match accepted {
            Some(metadata) => Step::Frame(frame, metadata),
            None => Step::Done,
        })
    }

    /// Takes all fetched frames, and removes their memory from the device's tables, so that no
    /// other node can write there any more.
    fn take_all(&mut self, tx: &mut Tx, now: u64) {
        let Self {
            inbound,
            fetches,
            private,
            ..
        } = self;
        while let Some((slot, rcode)) = tx.gets.take_ended() {
            let chunks = tx.rendezvous().and_then(|memory| memory.take(slot));
            let by = &mut tx.queue(now);
            let request = fetches.ended(slot, rcode.is_success(), by, inbound.count());
            if let (Some((request, head)), Some(chunks)) = (request, chunks) {
                let fetched = Fetched {
                    request,
                    head,
                    chunks,
                };
                // There is room, because there is one place for each slot.
                let _ = private.push_within_capacity(fetched);
            }
        }
        if private.is_empty() {
            return;
        }
        if !tx.forget() {
            while let Some(fetched) = private.pop() {
                core::mem::forget(fetched.chunks);
            }
        }
        fetches.go_on(&mut tx.queue(now), inbound.count());
        for fetched in private.iter_mut() {
            RendezvousMemory::fetched(&mut fetched.chunks);
        }
    }
}

/// A fetched frame, or the rest of one.
struct Fetched {
    request: Request,
    /// The head of the frame, if that is not where the rest is.
    head: Option<Skb>,
    chunks: Chunks,
}

/// Assembles a frame from its parts, or from copies of them, if its checksum is correct.
fn assemble(
    request: &Request,
    head: Option<Skb>,
    (chunks, copy): (&mut Chunks, bool),
    queue: TxQueue<'_>,
    counters: &mut Counters,
) -> Option<Skb> {
    let len = request.len as usize;
    let (head, skip) = if request.is_split() {
        (head, 0)
    } else {
        let mut sum = Request::summed(&request.metadata);
        for (at, len, chunk) in chunks.parts() {
            sum.add_at(at, chunk.bytes().get(..len).unwrap_or_default());
        }
        if !request.is_intact(sum, counters) {
            return None;
        }
        // The stack needs the headers in the linear part.
        let skip = HEAD.min(len);
        let first = chunks.parts().next();
        let head = Skb::new(queue, skip).filter(|_| first.is_some());
        let head = head.and_then(|mut head| {
            let (_, _, chunk) = first?;
            let written = head.write(0, chunk.bytes().get(..skip)?);
            written.then_some(head)
        });
        (head, skip)
    };
    let Some(mut frame) = head else {
        counters.no_memory += 1;
        return None;
    };
    for (at, len, chunk) in chunks.parts() {
        let from = skip.saturating_sub(at).min(len);
        if from < len && !chunk.add_to(&mut frame, from, len - from, copy) {
            counters.no_memory += 1;
            return None;
        }
    }
    Some(frame)
}
