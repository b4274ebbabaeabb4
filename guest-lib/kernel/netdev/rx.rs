// SPDX-License-Identifier: GPL-2.0

//! The receiving side.

use kernel::prelude::*;
use kernel::sync::SpinLock;

use tofu_abi::{Coords, TniId};
use tofu_ipotofu::addr;
use tofu_ipotofu::neighbor::LocalNode;
use tofu_ipotofu::offload::{Metadata, METADATA_SIZE};
use tofu_ipotofu::rendezvous::{self, Fetches, Message, Request, OVERTAKE_NS};
use tofu_ipotofu::wire::{Capabilities, Fragment, Sum, HEADER_SIZE};
use tofu_ipotofu::{Event, FrameBuffer, Inbound, Limits};

use super::engine::{now_ns, KernelMemory, Peers};
use super::frame::Frame;
use super::tx::Tx;
use crate::packets::Receiver;
use crate::shim::{self, NetQueue};

/// Frames in several fragments that may be under way to this node at a time.
const REASSEMBLIES: usize = 32;

/// The receiving side.
pub(super) struct Rx {
    pub(super) receiver: Option<Receiver>,
    pub(super) state: RxState,
}

/// What the receiving side needs besides itself.
pub(super) struct Sides<'a> {
    pub(super) tni: TniId,
    pub(super) tx: &'a SpinLock<Tx>,
    pub(super) peers: &'a Peers,
}

/// What became of a look for something to receive.
pub(super) enum Step {
    /// There is nothing.
    Idle,
    /// The next packet is to wait for so many nanoseconds, unless something is fetched before.
    Wait(u64),
    /// Something was done.
    Done,
    /// A frame has come, and what is left to do with it.
    Frame(Frame, Metadata),
}

pub(super) struct RxState {
    pub(super) inbound: Inbound<KernelMemory, Frame>,
    pub(super) fetches: Fetches<KernelMemory>,
    /// When the next packet began to wait for frames that are fetched.
    late: Option<u64>,
}

impl Rx {
    /// The receiving side of the `number`th queue of an interface.
    pub(super) fn new(node: &LocalNode, number: u8) -> Result<Self> {
        let limits = Limits {
            frame: u16::MAX.into(),
            offload: true,
            broadcasts: number == 0,
            reassemblies: REASSEMBLIES,
        };
        Ok(Self {
            receiver: None,
            state: RxState {
                inbound: Inbound::new(node.shape, node.me, limits)?,
                fetches: Fetches::new()?,
                late: None,
            },
        })
    }

    /// Takes the next frame that was fetched, or the next packet.
    pub(super) fn step(&mut self, sides: &Sides<'_>, queue: *mut NetQueue, now: u64) -> Step {
        if let Some(step) = self.state.take_fetched(sides, queue, now) {
            return step;
        }
        let (Some(receiver), state) = (self.receiver.as_mut(), &mut self.state) else {
            return Step::Idle;
        };
        if let Some(left) = state.must_wait(receiver) {
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
    /// Gives up frames that are not complete.
    pub(super) fn clear(&mut self) {
        self.inbound.clear();
        self.fetches.clear();
        self.late = None;
    }

    /// Whether the next packet waits for a frame.
    pub(super) fn is_waiting(&self) -> bool {
        self.late.is_some()
    }

    /// How much longer the next packet must wait for frames of its origin that are fetched.
    fn must_wait(&mut self, receiver: &Receiver) -> Option<u64> {
        let follows = receiver.peek(|from, payload| {
            rendezvous::is_from_origin(payload) && self.fetches.are_under_way_from(from)
        });
        if follows != Some(true) {
            self.late = None;
            return None;
        }
        let now = now_ns();
        let waited = now.saturating_sub(*self.late.get_or_insert(now));
        let left = OVERTAKE_NS.checked_sub(waited).filter(|left| *left > 0);
        if left.is_none() {
            self.late = None;
        }
        left
    }

    /// Takes a packet. Returns a frame that it completes, with what is left to do with it.
    fn receive(
        &mut self,
        sides: &Sides<'_>,
        queue: *mut NetQueue,
        from: Coords,
        payload: &[u8],
        now: u64,
    ) -> Option<(Frame, Metadata)> {
        let (header, body) = payload.split_at(HEADER_SIZE.min(payload.len()));
        if rendezvous::is_message(header) {
            self.take_message(sides, from, header, body, now);
            return None;
        }
        let packet = self.inbound.parse(header, body)?;
        let repr = &packet.repr;
        // SAFETY: no requirements.
        unsafe {
            shim::tofu_shim_trace_packet(
                sides.tni.get(),
                addr::pack(repr.origin),
                repr.id,
                repr.offset,
                repr.length,
                repr.kind as u8,
            )
        };
        let make = |len| Frame::new(queue, len);
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
                let Some(mut frame) = Frame::new(queue, whole.len()) else {
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

    /// Takes a message about frames that are fetched.
    fn take_message(
        &mut self,
        sides: &Sides<'_>,
        from: Coords,
        header: &[u8],
        body: &[u8],
        now: u64,
    ) {
        let mut tx = sides.tx.lock();
        let able = tx.sender.as_ref().is_some_and(|s| s.has_rendezvous());
        let message = Message::parse(from, header, body).filter(|_| able);
        let says = Capabilities {
            rendezvous: message.is_some(),
            ..Capabilities::of(header)
        };
        sides.peers.learn(from, says, now);
        let Some(message) = message else {
            self.inbound.count().malformed += 1;
            return;
        };
        let (id, len, kind) = match &message {
            Message::Request(request) => (request.id, request.total, 4),
            Message::Done { id, .. } => (*id, 0, 5),
        };
        // SAFETY: no requirements.
        unsafe {
            shim::tofu_shim_trace_packet(sides.tni.get(), addr::pack(from), id, 0, len, kind)
        };
        match message {
            Message::Request(request) => {
                let queue = &mut tx.queue(now);
                self.fetches.request(request, queue, self.inbound.count());
                tx.flush();
            }
            Message::Done { id, refused } => tx.requests.done(from, id, refused, now),
        }
    }

    /// Takes the next frame that was fetched, if one was.
    fn take_fetched(&mut self, sides: &Sides<'_>, queue: *mut NetQueue, now: u64) -> Option<Step> {
        let Self {
            inbound, fetches, ..
        } = self;
        let mut tx = sides.tx.lock();
        let (slot, rcode) = tx.fetched.remove(0).ok()?;
        let slot = usize::from(slot);
        let by = &mut tx.queue(now);
        let request = fetches.ended(slot, rcode.is_success(), by, inbound.count());
        let frame = request.and_then(|request| {
            let frame = copy(&tx, inbound, queue, slot, &request);
            fetches.go_on(&mut tx.queue(now), inbound.count());
            frame.map(|frame| (frame, request))
        });
        tx.flush();
        drop(tx);
        let Some((frame, request)) = frame else {
            return Some(Step::Done);
        };
        let (origin, len) = (request.origin, frame.len());
        let accepted =
            frame.look(|head| inbound.accept_fetched(origin, &request.metadata, head, len));
        Some(match accepted {
            Some(metadata) => Step::Frame(frame, metadata),
            None => Step::Done,
        })
    }
}

/// A frame as it was fetched, if it is the one that was meant. Others could write to where it is,
/// so the checksum must be that of a copy.
fn copy(
    tx: &Tx,
    inbound: &mut Inbound<KernelMemory, Frame>,
    queue: *mut NetQueue,
    slot: usize,
    request: &Request,
) -> Option<Frame> {
    let sender = tx.sender.as_ref()?;
    let len = usize::from(request.total).saturating_sub(METADATA_SIZE);
    let Some(mut frame) = Frame::new(queue, len) else {
        inbound.count().no_memory += 1;
        return None;
    };
    let mut sum = Sum::default();
    sum.add(&request.metadata);
    let mut at = 0;
    while at < len {
        let part = frame.part(at);
        if part.is_empty() || !sender.fetched(slot, at, part, &mut sum) {
            break;
        }
        at += part.len();
    }
    if at != len || sum.finish() != request.sum {
        inbound.count().damaged += 1;
        return None;
    }
    Some(frame)
}
