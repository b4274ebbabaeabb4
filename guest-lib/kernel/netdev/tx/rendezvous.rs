// SPDX-License-Identifier: GPL-2.0

//! Long frames, which nodes fetch from each other.

use tofu_abi::Coords;
use tofu_ipotofu::offload::{Metadata, HEAD};
use tofu_ipotofu::rendezvous::{Message, Rendezvous, Request, Room, HEAD_MAX, MIN_FRAME, SLOTS};
use tofu_ipotofu::Offer;

use super::skb::{Fate, Skb};
use super::Tx;
use crate::engine::Peers;
use crate::netdev::frame::{read, read_and_sum};
use crate::packets::Sender;
use crate::rendezvous::{Chunks, MappedSkb, RendezvousMemory, Shared};
use crate::shim::{self, SkBuff};

/// How many frames wait at most to be taken back together, and for how long at least, in
/// nanoseconds. As many others can be under way.
const MAX_ENDED: usize = SLOTS / 2;
const ENDED_NS: u64 = 5_000_000;

/// Has a frame be fetched from where it is, if that is possible, but for so many bytes of its head.
fn map(memory: &mut RendezvousMemory, frame: &Skb) -> Option<(usize, MappedSkb)> {
    // SAFETY: the frame is ours.
    let head = unsafe { shim::tofu_shim_skb_head(frame.raw) } as usize;
    let fits = (1..=HEAD_MAX.min(frame.len - 1)).contains(&head);
    let mapped = fits.then(|| memory.map(frame.raw.cast_mut(), head))??;
    Some((head, mapped))
}

/// Copies the bytes of a frame from `at` on. With metadata it also sums these and the copy up.
fn copy(frame: &Skb, at: usize, to: &mut Chunks, summed: Option<&Metadata>) -> Option<u32> {
    let Some(metadata) = summed else {
        let mut parts = to.parts();
        let copied =
            parts.all(|(n, len, chunk)| read(frame.raw, at + n, &mut chunk.bytes()[..len]));
        return copied.then_some(0);
    };
    let mut sum = Request::summed(&metadata.emit());
    let mut parts = to.parts();
    let copied = parts.all(|(n, len, chunk)| {
        read_and_sum(frame.raw, at + n, &mut chunk.bytes()[..len], &mut sum)
    });
    copied.then(|| sum.finish())
}

/// The sending side, as a rendezvous uses it.
pub(in crate::netdev) struct RendezvousQueue<'a> {
    tx: &'a mut Tx,
    now: u64,
}

impl Rendezvous for RendezvousQueue<'_> {
    fn fetch(&mut self, slot: usize, request: &Request) -> bool {
        let len = request.len as usize;
        let sender = self.tx.sender.as_mut();
        let path = self.tx.outbound.health().path(request.origin, self.now);
        let way = (request.origin, path);
        let posted = sender.is_some_and(|sender| sender.fetch(way, request.place, slot, len));
        if posted {
            self.tx.gets.note_posted();
        }
        posted
    }

    fn tell(&mut self, to: Coords, message: &Message) {
        if let Some(sender) = self.tx.sender.as_mut() {
            self.tx.outbound.tell(sender, to, message, &[], self.now);
        }
    }
}

impl Tx {
    pub(in crate::netdev) fn queue(&mut self, now: u64) -> RendezvousQueue<'_> {
        RendezvousQueue { tx: self, now }
    }

    /// Where to put a frame for a node to fetch.
    fn room_at(&mut self, peers: &Peers, to: Coords, now: u64) -> Room {
        let room = self.requests.room(to, peers, now, self.outbound.count());
        match self.outbound.says().rendezvous {
            true => room,
            false => Room::None,
        }
    }

    /// Whether a frame has to wait until an earlier one to the same node was fetched.
    pub(super) fn must_wait(&mut self, peers: &Peers, skb: *const SkBuff, now: u64) -> bool {
        let frame = Skb::new(skb);
        let to = match frame.len {
            MIN_FRAME.. => frame.destination(self.outbound.node()).node(),
            _ => None,
        };
        self.blocked = to.filter(|to| self.room_at(peers, *to, now) == Room::Busy);
        self.blocked.is_some()
    }

    /// Whether the stack still has to wait for a slot.
    pub(super) fn is_blocked(&mut self, peers: &Peers, now: u64) -> bool {
        let Some(to) = self.blocked else {
            return false;
        };
        let blocked = self.room_at(peers, to, now) == Room::Busy;
        if !blocked {
            self.blocked = None;
        }
        blocked
    }

    /// Requests a node to fetch a frame. `None` if it is to be sent.
    pub(super) fn request(
        &mut self,
        peers: &Peers,
        to: Coords,
        frame: Skb,
        metadata: &Metadata,
        now: u64,
    ) -> Option<Fate> {
        if frame.len < MIN_FRAME {
            return None;
        }
        let Room::Slot(slot) = self.room_at(peers, to, now) else {
            return None;
        };
        let split = peers.get(to, now).split;
        let (head, summed) = match split {
            true => (HEAD, None),
            false => (0, Some(metadata)),
        };
        if !self.outbound.may_be_fetched(metadata, frame.len, split) || self.room() == 0 {
            return None;
        }
        if self
            .rendezvous()
            .is_some_and(|memory| !memory.is_free(slot))
        {
            self.unshare();
        }
        // Before the frame is mapped: then it is the device's, and all has to succeed.
        let mut bytes = [0; HEAD_MAX];
        let most = if split { HEAD_MAX.min(frame.len) } else { 0 };
        if !read(frame.raw, 0, bytes.get_mut(..most)?) {
            return None;
        }
        let generation = self.requests.generation(slot);
        let memory = self.rendezvous().filter(|memory| memory.is_free(slot))?;
        let mapped = match split {
            true => map(memory, &frame),
            false => None,
        };
        let (head, sum, shared, fate) = match mapped {
            Some((head, mapped)) => (head, 0, Shared::Skb(mapped), Fate::Kept),
            None => {
                let mut chunks = memory.chunks(frame.len - head)?;
                let sum = copy(&frame, head, &mut chunks, summed)?;
                (head, sum, Shared::Copy(chunks), Fate::Sent)
            }
        };
        let place = memory.share(slot, generation, shared);
        let offer = Offer {
            metadata,
            // Neither a mapped frame's head nor that of a copy is longer.
            head: bytes.get(..head).unwrap_or_default(),
            len: frame.len - head,
            sum,
            slot,
            place,
        };
        if let Some(sender) = self.sender.as_mut() {
            let requests = &mut self.requests;
            self.outbound.request(sender, requests, to, &offer, now);
        }
        let same = self.untold == 0 || self.untold_to == Some(to);
        self.untold_to = same.then_some(to);
        self.untold += 1;
        Some(fate)
    }

    /// The memory for rendezvous, if there is some.
    pub(in crate::netdev) fn rendezvous(&mut self) -> Option<&mut RendezvousMemory> {
        self.sender.as_mut()?.rendezvous()
    }

    /// Whether the stack may have what was fetched, instead of a copy.
    pub(in crate::netdev) fn may_pass_on(&mut self, chunks: &Chunks) -> bool {
        let may = self.rendezvous().is_some_and(|m| m.may_pass_on(chunks));
        self.counters.copied += u64::from(!may);
        may
    }

    /// Has the device forget memory that was taken from it. False if it does not.
    pub(in crate::netdev) fn forget(&mut self) -> bool {
        let forgot = self.sender.as_mut().is_none_or(Sender::forget);
        if !forgot {
            self.outbound.end_rendezvous();
        }
        forgot
    }

    /// Looks after the frames of requests that have ended. They are taken back several at a time,
    /// since that means to ask the device.
    pub(in crate::netdev) fn settle(&mut self, now: u64) {
        let Self {
            sender, requests, ..
        } = self;
        let memory = sender.as_mut().and_then(Sender::rendezvous);
        let Some(memory) = memory.filter(|memory| !memory.shares_nothing()) else {
            self.ended = None;
            return;
        };
        let ended =
            (0..SLOTS).filter(|slot| !memory.is_free(*slot) && !requests.is_under_way(*slot));
        let count = ended.inspect(|slot| memory.orphan(*slot)).count();
        if count == 0 {
            self.ended = None;
            return;
        }
        let since = *self.ended.get_or_insert(now);
        if count >= MAX_ENDED || now.saturating_sub(since) >= ENDED_NS {
            self.unshare();
            self.ended = None;
        }
    }

    /// Takes back the frames of requests that have ended.
    fn unshare(&mut self) {
        let requests = &self.requests;
        if let Some(sender) = self.sender.as_mut() {
            sender.unshare(|slot| requests.is_under_way(slot));
            if !sender.has_rendezvous() {
                self.outbound.end_rendezvous();
            }
        }
    }
}
