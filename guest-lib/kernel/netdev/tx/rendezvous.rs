// SPDX-License-Identifier: GPL-2.0

//! Long frames, which nodes fetch from each other.
//!
//! They are fetched from the socket's own pages. With an IOMMU an area of 2 MiB is mapped for the
//! device, for reading only, when a page in it is sent first, until the interface goes down. Pages
//! that do not follow each other for the device, such as those of short writes, are copied, and
//! with `copy=1` everything. If there is no memory for the tables when the interface comes up, the
//! log says so, and frames go in fragments.

use tofu_abi::Coords;
use tofu_ipotofu::offload::{Metadata, HEAD};
use tofu_ipotofu::rendezvous::{Message, Rendezvous, Request, Room, HEAD_MAX, MIN_FRAME, SLOTS};
use tofu_ipotofu::Offer;

use super::{destination, Tx};
use crate::engine::Peers;
use crate::packets::Sender;
use crate::rendezvous::{Chunks, MappedSkb, RendezvousMemory, Shared};
use crate::skb::{SentSkb, Skb};

/// Fetched frames are taken back together: when there are this many, or after this time in
/// nanoseconds. As many others can be in flight.
const MAX_ENDED: usize = SLOTS / 2;
const ENDED_NS: u64 = 5_000_000;

/// The part of a frame that is sent to a node, and the pages that the node may fetch.
struct Lent {
    /// Bytes at the front that are sent to it.
    head: usize,
    /// The checksum of the fetched part, if the node is to check it.
    sum: u32,
    shared: Shared,
    /// The frame, if the node fetches a copy.
    copied: Option<SentSkb>,
}

impl Lent {
    /// Shares a frame in place, or else a copy of it. Splits it if the node accepts split frames.
    fn new(
        memory: &mut RendezvousMemory,
        mut skb: Skb,
        metadata: &Metadata,
        split: bool,
    ) -> Result<Self, Skb> {
        let (mut head, mut summed) = (0, Some(metadata));
        if split {
            (head, summed) = (HEAD, None);
            skb = match map(memory, skb) {
                Ok((head, mapped)) => {
                    return Ok(Self {
                        head,
                        sum: 0,
                        shared: Shared::Skb(mapped),
                        copied: None,
                    })
                }
                Err(skb) => skb,
            };
        }
        let copied = memory.chunks(skb.len() - head).and_then(|mut chunks| {
            let sum = copy(&skb, head, &mut chunks, summed)?;
            Some((sum, Shared::Copy(chunks)))
        });
        let Some((sum, shared)) = copied else {
            return Err(skb);
        };
        Ok(Self {
            head,
            sum,
            shared,
            copied: Some(SentSkb::new(skb)),
        })
    }
}

/// Maps a frame to be fetched in place, if possible. Returns the size of its head, which is not
/// mapped.
fn map(memory: &mut RendezvousMemory, skb: Skb) -> Result<(usize, MappedSkb), Skb> {
    let head = skb.head_len();
    if !(1..=HEAD_MAX.min(skb.len() - 1)).contains(&head) {
        return Err(skb);
    }
    Ok((head, memory.map(skb, head)?))
}

/// Copies the bytes of a frame from `at` on. With metadata, also computes the checksum of these and
/// the copy.
fn copy(skb: &Skb, at: usize, to: &mut Chunks, summed: Option<&Metadata>) -> Option<u32> {
    let mut sum = summed.map(|metadata| Request::summed(&metadata.emit()));
    let copied = to.parts().all(|(n, len, chunk)| {
        let place = chunk.bytes().get_mut(..len);
        place.is_some_and(|place| match &mut sum {
            Some(sum) => skb.read_and_sum(at + n, place, sum),
            None => skb.read(at + n, place),
        })
    });
    copied.then(|| sum.map_or(0, |sum| sum.finish()))
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

    /// Returns a slot for a frame that a node fetches.
    fn room_at(&mut self, peers: &Peers, to: Coords, now: u64) -> Room {
        let room = self.requests.room(to, peers, now, self.outbound.count());
        match self.outbound.says().rendezvous {
            true => room,
            false => Room::None,
        }
    }

    /// Returns true if a frame must wait until an earlier one to the same node has been fetched.
    pub(super) fn must_wait(&mut self, peers: &Peers, skb: &Skb, now: u64) -> bool {
        let to = match skb.len() {
            MIN_FRAME.. => destination(skb, self.outbound.node()).node(),
            _ => None,
        };
        self.blocked = to.filter(|to| self.room_at(peers, *to, now) == Room::Busy);
        self.blocked.is_some()
    }

    /// Returns true if the queue must still wait for a slot.
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

    /// Returns a slot through which a node may fetch a frame; `None` if the frame must be sent.
    fn slot_for(
        &mut self,
        peers: &Peers,
        to: Coords,
        len: usize,
        metadata: &Metadata,
        now: u64,
    ) -> Option<(usize, bool)> {
        if len < MIN_FRAME {
            return None;
        }
        let Room::Slot(slot) = self.room_at(peers, to, now) else {
            return None;
        };
        let split = peers.get(to, now).split;
        let may = self.outbound.may_be_fetched(metadata, len, split) && self.room() > 0;
        if may && !self.rendezvous()?.is_free(slot) {
            self.unshare();
        }
        may.then_some((slot, split))
    }

    /// Requests a node to fetch a frame. Returns the frame if a copy of it is fetched.
    ///
    /// # Errors
    ///
    /// The frame, if it must be sent.
    pub(super) fn request(
        &mut self,
        peers: &Peers,
        to: Coords,
        skb: Skb,
        metadata: &Metadata,
        now: u64,
    ) -> Result<Option<SentSkb>, Skb> {
        let len = skb.len();
        let Some((slot, split)) = self.slot_for(peers, to, len, metadata, now) else {
            return Err(skb);
        };
        // The head is read before the frame is mapped: after that, no step may fail.
        let mut bytes = [0; HEAD_MAX];
        let most = if split { HEAD_MAX.min(len) } else { 0 };
        if !skb.read(0, bytes.get_mut(..most).unwrap_or_default()) {
            return Err(skb);
        }
        let generation = self.requests.generation(slot);
        let Some(memory) = self.rendezvous().filter(|memory| memory.is_free(slot)) else {
            return Err(skb);
        };
        let lent = Lent::new(memory, skb, metadata, split)?;
        let offer = Offer {
            metadata,
            // The head of a mapped frame, or of a copy, is not longer.
            head: bytes.get(..lent.head).unwrap_or_default(),
            len: len - lent.head,
            sum: lent.sum,
            slot,
            place: memory.share(slot, generation, lent.shared),
        };
        if let Some(sender) = self.sender.as_mut() {
            let requests = &mut self.requests;
            self.outbound.request(sender, requests, to, &offer, now);
        }
        let same = self.untold == 0 || self.untold_to == Some(to);
        self.untold_to = same.then_some(to);
        self.untold += 1;
        Ok(lent.copied)
    }

    /// The memory for rendezvous, if there is any.
    pub(in crate::netdev) fn rendezvous(&mut self) -> Option<&mut RendezvousMemory> {
        self.sender.as_mut()?.rendezvous()
    }

    /// Returns true if the stack may have the fetched pages, instead of a copy.
    pub(in crate::netdev) fn may_pass_on(&mut self, chunks: &Chunks) -> bool {
        let may = self.rendezvous().is_some_and(|m| m.may_pass_on(chunks));
        self.counters.copied += u64::from(!may);
        may
    }

    /// Flushes memory that was removed from the tables out of the device. Returns false if that
    /// fails.
    pub(in crate::netdev) fn forget(&mut self) -> bool {
        let forgot = self.sender.as_mut().is_none_or(Sender::forget);
        if !forgot {
            self.outbound.end_rendezvous();
        }
        forgot
    }

    /// Handles the frames of completed requests. Several are taken back at a time, because that
    /// needs a register access.
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

    /// Takes back the frames of completed requests.
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
