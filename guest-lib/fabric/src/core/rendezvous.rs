//! Messages that their receivers read.

use super::PIECE;
use super::commands::Command;
use super::endpoint::Endpoint;
use super::failure::Failure;
use super::fetch::Fetch;
use super::header::{Header, Kind};
use super::matching::{Envelope, Place};
use super::outgoing::Outgoing;
use super::transport::{Address, Memory, Transport};

impl<T: Transport> Endpoint<T> {
    /// Begins to read a message.
    pub(super) fn fetch(
        &mut self,
        envelope: Envelope,
        place: Place<T::Memory>,
        remote: u64,
        id: u64,
    ) {
        let length = envelope.total.min(place.memory.len());
        if length == 0 {
            self.received(&envelope, place);
            return self.answer(envelope.source, Kind::Done, id);
        }
        let mut staged = None;
        let local = self.transport.register(&place.memory, false).or_else(|_| {
            let memory = staged.insert(T::Memory::owned(length));
            self.transport.register(memory, false)
        });
        let Ok(local) = local else {
            self.end_receive(&envelope, &place, Some(Failure::NoRoom));
            return self.answer(envelope.source, Kind::Failed, id);
        };
        self.next += 1;
        let fetch = self.next;
        let (asked, pending, failed) = (0, 0, false);
        let new =
            Fetch { envelope, place, staged, remote, id, local, length, asked, pending, failed };
        self.fetches.insert(fetch, new);
        self.ask(fetch);
    }

    /// Asks for the next pieces of a message, as far as the device has room.
    pub(super) fn ask(&mut self, number: u64) {
        let Some(fetch) = self.fetches.get_mut(&number) else { return };
        while fetch.asked < fetch.length && !fetch.failed {
            let length = (fetch.length - fetch.asked).min(PIECE);
            let token = self.commands.add(Command::Get { fetch: number });
            let (remote, local) =
                (fetch.remote + fetch.asked as u64, fetch.local + fetch.asked as u64);
            let source = fetch.envelope.source;
            if self.transport.get(source, remote, local, length, token).is_err() {
                self.commands.take(token);
                self.asking.push_back(number);
                return;
            }
            fetch.asked += length;
            fetch.pending += 1;
        }
    }

    /// A Get has ended.
    pub(super) fn fetched(&mut self, number: u64, good: bool) {
        let Some(fetch) = self.fetches.get_mut(&number) else { return };
        fetch.pending = fetch.pending.saturating_sub(1);
        fetch.failed |= !good;
        let is_whole = fetch.asked >= fetch.length || fetch.failed;
        if fetch.pending > 0 || !is_whole {
            return;
        }
        let Some(mut fetch) = self.fetches.remove(&number) else { return };
        self.transport.release(fetch.local);
        let source = fetch.envelope.source;
        if fetch.failed {
            self.end_receive(&fetch.envelope, &fetch.place, Some(Failure::Unreachable));
            return self.answer(source, Kind::Failed, fetch.id);
        }
        if let Some(staged) = fetch.staged {
            let mut data = vec![0; fetch.length];
            staged.read(0, &mut data);
            fetch.place.memory.write(0, &data);
        }
        self.answer(source, Kind::Done, fetch.id);
        self.received(&fetch.envelope, fetch.place);
    }

    /// Tells a sender how a message that it has offered has ended.
    pub(super) fn answer(&mut self, to: Address, kind: Kind, id: u64) {
        let Some(number) = self.peers.find(to) else { return };
        let header = Header::answer(kind, id);
        self.enqueue(number, Outgoing { header, data: Vec::new(), sent: 0, send: None });
    }
}
