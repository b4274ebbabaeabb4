//! Messages that arrive in slots.

use super::completion::{Completion, Finished};
use super::endpoint::Endpoint;
use super::failure::Failure;
use super::fetch::Target;
use super::header::{HEADER, Header, Kind};
use super::matching::{Body, Envelope, Matching, Message, Place, Receive};
use super::outgoing::PART;
use super::peers::Number;
use super::transport::{self, Address, Memory, Spot, Transport};

impl<T: Transport> Endpoint<T> {
    /// A slot was filled: empties those that are next.
    pub(super) fn filled(&mut self, place: transport::Place) {
        let number = place.ring;
        match self.peers.get_mut(number) {
            Some(peer) => peer.arrive(place.slot),
            None => return,
        }
        while let Some(slot) = self.peers.get(number).and_then(|peer| peer.next_arrived()) {
            self.empty(number, transport::Place { ring: number, slot });
        }
        self.flush(number);
    }

    /// Empties a slot.
    fn empty(&mut self, number: Number, place: transport::Place) {
        let mut slot = std::mem::take(&mut self.scratch);
        self.transport.read(place, &mut slot[..HEADER]);
        let header = slot.first_chunk().and_then(Header::decode);
        let length = header.map_or(0, |header| (header.length as usize).min(PART));
        if length > 0 {
            self.transport.read(place, &mut slot[..HEADER + length]);
        }
        let Some(peer) = self.peers.get_mut(number) else { return };
        peer.empty();
        let source = peer.address;
        if let Some(header) = header {
            peer.free(header.emptied);
            let part = &slot[HEADER..HEADER + length];
            match header.kind {
                Kind::Part => self.part(number, source, &header, part),
                Kind::Request => self.request(source, &header, part),
                Kind::Done => self.answered(number, header.id, None),
                Kind::Failed => self.answered(number, header.id, Some(Failure::NoRoom)),
                Kind::Refused => self.answered(number, header.id, Some(Failure::Refused)),
                Kind::Write => self.written(source, &header, part),
                Kind::WriteRequest => self.write_requested(source, &header, part),
                Kind::Read => self.read(number, source, &header),
                Kind::Data => self.data(number, &header, part),
                Kind::DataRequest => self.data_requested(number, source, &header, part),
                Kind::Atomic => self.changed(number, source, &header, part),
            }
        }
        self.scratch = slot;
    }

    /// A peer has answered.
    fn answered(&mut self, number: Number, id: u64, failure: Option<Failure>) {
        if self.own(number, id).is_some() {
            self.finish_send(id, failure);
        }
    }

    fn envelope(source: Address, header: &Header) -> Envelope {
        let &Header { tagged, tag, data, total, .. } = header;
        let total = usize::try_from(total).unwrap_or(usize::MAX);
        Envelope { source, tagged, tag, data, total }
    }

    /// A part of a message has come.
    fn part(&mut self, number: Number, source: Address, header: &Header, part: &[u8]) {
        if header.answer && header.at.saturating_add(part.len() as u64) >= header.total {
            self.answer(source, Kind::Done, header.id);
        }
        let message = match self.peers.get_mut(number).and_then(|peer| peer.current.take()) {
            Some(message) if header.at > 0 => message,
            _ => match self.begin(source, header, part) {
                Some(message) => message,
                None => return,
            },
        };
        let is_complete = match self.matching.messages.get_mut(&message) {
            Some(found) => {
                if header.at > 0 {
                    add(found, part);
                }
                found.got >= found.envelope.total || part.is_empty()
            }
            None => return,
        };
        if is_complete {
            self.complete(message);
        } else if let Some(peer) = self.peers.get_mut(number) {
            peer.current = Some(message);
        }
    }

    /// The first part of a message has come. Returns its number, unless it has ended.
    pub(super) fn begin(&mut self, source: Address, header: &Header, part: &[u8]) -> Option<u64> {
        let envelope = Self::envelope(source, header);
        let Some(mut place) = self.matching.take_receive(&envelope, &mut self.completions) else {
            return Some(self.matching.add(envelope, Body::Heap(part.to_vec()), part.len()));
        };
        place.memory.write(0, part);
        if part.len() >= envelope.total {
            self.received(&envelope, place);
            return None;
        }
        Some(self.matching.add(envelope, Body::Placed(place), part.len()))
    }

    /// A message is complete. If no receive wants it yet, it is kept.
    fn complete(&mut self, number: u64) {
        let Some(message) = self.matching.messages.get_mut(&number) else { return };
        let wanted = message.receiver.is_some() || message.discarded;
        if !wanted && matches!(message.body, Body::Heap(_)) {
            return;
        }
        let Some(message) = self.matching.messages.remove(&number) else { return };
        match (message.body, message.receiver) {
            (Body::Placed(place), _) => self.received(&message.envelope, place),
            (Body::Heap(data), Some(mut place)) => {
                place.memory.write(0, &data);
                self.received(&message.envelope, place);
            }
            _ => {}
        }
    }

    /// A message is in the memory of its receive.
    pub(super) fn received(&mut self, envelope: &Envelope, place: Place<T::Memory>) {
        let room = place.memory.len();
        let over = envelope.total.saturating_sub(room);
        let failure = (over > 0).then_some(Failure::Truncated(over));
        self.end_receive(envelope, &place, failure);
    }

    /// Ends a receive.
    pub(super) fn end_receive(
        &mut self,
        envelope: &Envelope,
        place: &Place<T::Memory>,
        failure: Option<Failure>,
    ) {
        let released = self.matching.end(place);
        let completion = Completion::new(Finished::Receive, envelope.tagged, place.context);
        self.completions.push_back(Completion {
            length: envelope.total.min(place.memory.len()),
            buffer: place.memory.address(),
            tag: envelope.tag,
            data: envelope.data,
            source: Some(envelope.source),
            released,
            wanted: place.wanted || released,
            failure,
            ..completion
        });
    }

    /// The sender of a message that was coming has failed.
    pub(super) fn abandon(&mut self, number: u64, failure: Failure) {
        let Some(message) = self.matching.messages.remove(&number) else { return };
        let place = match message.body {
            Body::Placed(place) => Some(place),
            _ => message.receiver,
        };
        if let Some(place) = place {
            self.end_receive(&message.envelope, &place, Some(failure));
        }
    }

    /// Handles a message that must be read from its sender.
    fn request(&mut self, source: Address, header: &Header, places: &[u8]) {
        let envelope = Self::envelope(source, header);
        let (at, id) = (Spot::decode(places), header.id);
        match self.matching.take_receive(&envelope, &mut self.completions) {
            Some(place) => self.fetch_message(envelope, place, at, id),
            None => drop(self.matching.add(envelope, Body::Remote { at, id }, 0)),
        }
    }

    /// Begins to read a message.
    fn fetch_message(
        &mut self,
        envelope: Envelope,
        place: Place<T::Memory>,
        at: Vec<Spot>,
        id: u64,
    ) {
        let (source, length) = (envelope.source, envelope.total);
        self.fetch(source, Target::Receive(envelope, place), length, (at, id));
    }

    /// Receives a message.
    pub fn receive(&mut self, receive: Receive<T::Memory>) {
        let Receive { source, tagged, tag, ignore, .. } = receive;
        if receive.several.is_some() {
            return self.receive_several(receive);
        }
        if let Some((at, number)) = self.matching.find(tagged, source, tag, ignore) {
            self.matching.take(tagged, at);
            return self.deliver(number, Matching::place(receive));
        }
        let failed = |source| {
            let number = self.peers.find(source)?;
            self.peers.get(number).filter(|peer| peer.failed).map(|_| source)
        };
        if let Some(source) = source.and_then(failed) {
            let completion = Completion::new(Finished::Receive, tagged, receive.context);
            let completion = Completion { source: Some(source), ..completion };
            self.completions.push_back(completion.failed(Failure::Unreachable));
            return;
        }
        self.matching.post(receive);
    }

    /// Receives messages into the same memory: first those that wait.
    fn receive_several(&mut self, receive: Receive<T::Memory>) {
        let Receive { source, tagged, tag, ignore, context, .. } = receive;
        self.matching.post(receive);
        while let Some((at, number)) = self.matching.find(tagged, source, tag, ignore) {
            let Some(message) = self.matching.messages.get(&number) else { return };
            let envelope = message.envelope;
            // An older receive would have taken the message.
            let Some(place) = self.matching.take_receive(&envelope, &mut self.completions) else {
                return;
            };
            let is_own = place.context == context;
            self.matching.take(tagged, at);
            self.deliver(number, place);
            if !is_own {
                return;
            }
        }
    }

    /// Receives the message that a look has taken for this context. Returns false if there is none.
    pub(crate) fn receive_claimed(&mut self, receive: Receive<T::Memory>) -> bool {
        let Some(number) = self.matching.claimed(receive.context) else { return false };
        self.deliver(number, Matching::place(receive));
        true
    }

    /// Forgets the message that a look has taken for this context, which is the end of the receive.
    /// Returns false if there is none.
    pub(crate) fn discard_claimed(&mut self, context: usize, wanted: bool) -> bool {
        let Some(number) = self.matching.claimed(context) else { return false };
        if let Some(message) = self.matching.messages.get(&number) {
            let Envelope { source, tagged, tag, data, .. } = message.envelope;
            let completion = Completion::new(Finished::Receive, tagged, context);
            let source = Some(source);
            self.completions.push_back(Completion { tag, data, source, wanted, ..completion });
        }
        self.discard(number);
        true
    }

    /// Gives a message that waits to a receive.
    fn deliver(&mut self, number: u64, mut place: Place<T::Memory>) {
        let Some(mut message) = self.matching.messages.remove(&number) else { return };
        match message.body {
            Body::Heap(data) if message.got >= message.envelope.total => {
                place.memory.write(0, &data);
                self.received(&message.envelope, place);
            }
            Body::Heap(data) => {
                message.body = Body::Heap(data);
                message.receiver = Some(place);
                self.matching.messages.insert(number, message);
            }
            Body::Remote { at, id } => self.fetch_message(message.envelope, place, at, id),
            Body::Placed(_) => {}
        }
    }

    /// Forgets a message.
    pub(super) fn discard(&mut self, number: u64) {
        let Some(message) = self.matching.messages.get_mut(&number) else { return };
        message.discarded = true;
        let is_complete = message.got >= message.envelope.total;
        match message.body {
            Body::Heap(_) if is_complete => drop(self.matching.messages.remove(&number)),
            Body::Remote { id, .. } => {
                let source = message.envelope.source;
                self.matching.messages.remove(&number);
                self.answer(source, Kind::Done, id);
            }
            _ => {}
        }
    }
}

/// Adds a part to a message.
fn add<M: Memory>(message: &mut Message<M>, part: &[u8]) {
    match &mut message.body {
        Body::Heap(data) => data.extend_from_slice(part),
        Body::Placed(place) => place.memory.write(message.got, part),
        Body::Remote { .. } => {}
    }
    message.got += part.len();
}
