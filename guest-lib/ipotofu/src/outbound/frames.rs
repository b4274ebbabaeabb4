//! Frames: where they go, how they are cut into packets, and how they are offered to be fetched.

use tofu_abi::{Coords, StagOffset};

use super::Outbound;
use super::queue::{Outgoing, PacketQueue, Purpose, Tag};
use crate::addr::Mac;
use crate::neighbor::{Answer, Destination, Reply};
use crate::offload::{HEAD, MAX_OFFLOADED, Metadata};
use crate::rendezvous::{MIN_FRAME, Message, REST_MAX, Request, Requests};
use crate::storage::Storage;
use crate::tree;
use crate::wire::{HEADER_SIZE, MAX_FRAGMENTS, PacketKind, Repr, Sum};

/// The reason why a frame is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsent {
    /// It has no Ethernet header.
    Runt,
    /// It is longer than [`Sending::max_frame`](super::Sending::max_frame).
    TooLong,
    /// No node of the machine has this destination address.
    NoSuchNode(Mac),
    /// There are not enough free buffers for its packets.
    Full,
    /// It could not be read, or no route leads to its destination. It counts as lost.
    Lost,
}

/// A frame that a node may fetch.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// Its offload metadata.
    pub metadata: &'a Metadata,
    /// Its first bytes, which travel in the request; none if all of it is to be fetched.
    pub head: &'a [u8],
    /// Number of bytes to fetch.
    pub len: usize,
    /// The checksum of metadata and frame, see [`Request::summed`]; 0 if there is a head.
    pub sum: u32,
    /// The slot that it occupies.
    pub slot: usize,
    /// Its place.
    pub place: StagOffset,
}

impl<S: Storage> Outbound<S> {
    /// Sends a frame to its destination, without offload metadata. A query for the address of a
    /// node is answered and not sent: this returns the answer.
    ///
    /// # Errors
    ///
    /// See [`Unsent`].
    pub fn send<Q: PacketQueue>(
        &mut self,
        queue: &mut Q,
        to: Destination,
        frame: &impl Outgoing<Q>,
        now_ns: u64,
    ) -> Result<Option<Reply>, Unsent> {
        if frame.size() > self.sending.max_frame {
            self.count().oversized += 1;
            return Err(Unsent::TooLong);
        }
        match to {
            Destination::Runt => return Err(Unsent::Runt),
            Destination::Unknown(mac) => {
                self.count().no_such_node += 1;
                return Err(Unsent::NoSuchNode(mac));
            }
            Destination::Node(to) => self.unicast(queue, to, frame, None, now_ns)?,
            Destination::Group => {
                let mut head = [0; HEAD];
                let head = &mut head[..frame.size().min(HEAD)];
                if !frame.read(0, head) {
                    return Err(self.lose());
                }
                match self.sending.node.answer(head) {
                    Answer::Reply(reply) => {
                        self.count().answered += 1;
                        return Ok(Some(reply));
                    }
                    Answer::Silence => {}
                    Answer::None => self.broadcast(queue, frame, now_ns)?,
                }
            }
        }
        Ok(None)
    }

    /// Sends a frame to a node. An offloaded frame has its metadata in front of it, and up to
    /// [`MAX_OFFLOADED`] bytes.
    ///
    /// # Errors
    ///
    /// [`Unsent::Full`], [`Unsent::Lost`].
    pub fn unicast<Q: PacketQueue>(
        &mut self,
        queue: &mut Q,
        to: Coords,
        frame: &impl Outgoing<Q>,
        metadata: Option<&Metadata>,
        now_ns: u64,
    ) -> Result<(), Unsent> {
        let emitted = metadata.map(Metadata::emit);
        let prefix: &[u8] = emitted.as_ref().map_or(&[], |metadata| &metadata[..]);
        let kind = match metadata {
            Some(_) => PacketKind::Offloaded,
            None => PacketKind::Unicast,
        };
        let whole = self.header(kind, prefix.len() + frame.size());
        match whole.count() {
            count if count > queue.room() => Err(Unsent::Full),
            // Most frames have one fragment.
            0..=1 => self.cut(queue, to, whole, (prefix, frame), &mut [None], now_ns),
            _ => {
                let buffers = &mut [const { None }; MAX_FRAGMENTS];
                self.cut(queue, to, whole, (prefix, frame), buffers, now_ns)
            }
        }
    }

    /// Sends the fragments of a frame. `buffers` has a place for the buffer of each.
    fn cut<Q: PacketQueue>(
        &mut self,
        queue: &mut Q,
        to: Coords,
        mut whole: Repr,
        (prefix, frame): (&[u8], &impl Outgoing<Q>),
        buffers: &mut [Option<Q::Buffer>],
        now_ns: u64,
    ) -> Result<(), Unsent> {
        let way = self.ways.first(Tag { to, ..Tag::default() }, now_ns);
        let Some((target, tag)) = way else { return Err(self.lose()) };
        let mut sum = Repr::is_summed(whole.kind, whole.total.into()).then(Sum::default);
        // The sum is in every header, so the headers are written when all else has been copied.
        for (place, repr) in buffers.iter_mut().zip(whole.fragments()) {
            let Some(buffer) = queue.take() else { break };
            let (at, len) = (usize::from(repr.offset), usize::from(repr.length));
            let front = prefix.get(at..).unwrap_or_default();
            if let Some(sum) = sum.as_mut() {
                sum.add(front);
            }
            let start = (at + front.len()) - prefix.len();
            let part = start..start + (len - front.len());
            let to = (&buffer, HEADER_SIZE + front.len());
            let copied = queue.write(&buffer, HEADER_SIZE, front)
                && frame.copy(part, queue, to, sum.as_mut());
            *place = Some(buffer);
            if !copied {
                let taken = buffers.iter_mut().filter_map(Option::take);
                taken.for_each(|buffer| queue.give_up(buffer));
                return Err(self.lose());
            }
        }
        whole.id = self.new_id();
        whole.sum = sum.map_or(0, |sum| sum.finish());
        for (repr, place) in whole.fragments().zip(buffers) {
            let Some(buffer) = place.take() else { break };
            queue.write(&buffer, 0, &repr.emit_with(self.sending.says));
            let len = HEADER_SIZE as u16 + repr.length;
            if !queue.post_buffer(buffer, len, &target, Purpose::Packet(tag)) {
                self.count().lost += 1;
            }
        }
        self.count().sent += 1;
        Ok(())
    }

    /// Sends a frame to all nodes.
    fn broadcast<Q: PacketQueue>(
        &mut self,
        queue: &mut Q,
        frame: &impl Outgoing<Q>,
        now_ns: u64,
    ) -> Result<(), Unsent> {
        let node = self.sending.node;
        let mut whole = self.header(PacketKind::Broadcast, frame.size());
        let children = tree::children(&node.shape, node.me, node.me);
        if whole.count() * children.clone().count() > queue.room() {
            return Err(Unsent::Full);
        }
        if Repr::is_summed(whole.kind, frame.size()) {
            let mut sum = Sum::default();
            for repr in whole.fragments() {
                let body = &mut self.spare[..repr.length.into()];
                if !frame.read(repr.offset.into(), body) {
                    return Err(self.lose());
                }
                sum.add(body);
            }
            whole.sum = sum.finish();
        }
        whole.id = self.new_id();
        for repr in whole.fragments() {
            let body = &mut self.spare[..repr.length.into()];
            if !frame.read(repr.offset.into(), body) {
                return Err(self.lose());
            }
            let header = repr.emit();
            for to in children.clone() {
                self.relay.send(&mut self.ways, queue, to, (&header, body), now_ns);
            }
        }
        self.count().sent += 1;
        Ok(())
    }

    /// Returns true if a frame of `len` bytes can be offered to a node that fetches frames: all of
    /// it, or all but a head, which travels in the request.
    pub fn may_be_fetched(&self, metadata: &Metadata, len: usize, split: bool) -> bool {
        let fits = match split {
            true => len.saturating_sub(HEAD) <= REST_MAX,
            false => len <= MAX_OFFLOADED,
        };
        let sendable = !metadata.is_empty() || len <= self.sending.max_frame;
        self.sending.says.rendezvous && len >= MIN_FRAME && fits && sendable
    }

    /// Requests a node to fetch a frame.
    pub fn request(
        &mut self,
        queue: &mut impl PacketQueue,
        requests: &mut Requests<S>,
        to: Coords,
        offer: &Offer<'_>,
        now_ns: u64,
    ) {
        let Offer { metadata, head, len, sum, slot, place } = *offer;
        let request = Request {
            origin: self.sending.node.me,
            id: self.new_id(),
            head: head.len() as u16,
            len: len as u32,
            sum,
            metadata: metadata.emit(),
            place,
        };
        requests.sent(slot, to, request.id, now_ns);
        self.tell(queue, to, &Message::Request(request), head, now_ns);
        self.count().rendezvous_sent += 1;
        self.count().sent += 1;
    }

    /// Sends a message about frames that are fetched. The head of such a frame follows it.
    pub fn tell(
        &mut self,
        queue: &mut impl PacketQueue,
        to: Coords,
        message: &Message,
        head: &[u8],
        now_ns: u64,
    ) {
        let (header, body) = message.emit(self.sending.node.me, self.sending.says);
        self.post(queue, to, &[&header, &body, head], now_ns);
    }

    /// The header of a frame of this node, still without number and sum.
    fn header(&self, kind: PacketKind, total: usize) -> Repr {
        Repr {
            kind,
            takes_offloaded: self.sending.says.offload,
            acknowledge: kind == PacketKind::Broadcast && self.sending.acknowledge,
            total: total as u16,
            offset: 0,
            length: 0,
            id: 0,
            sum: 0,
            origin: self.sending.node.me,
        }
    }

    fn new_id(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        id
    }

    /// Counts a frame as lost.
    fn lose(&mut self) -> Unsent {
        self.count().lost += 1;
        Unsent::Lost
    }
}
