//! Messages that their receivers read.

use super::PIECE;
use super::commands::Command;
use super::endpoint::Endpoint;
use super::failure::Failure;
use super::fetch::{Fetch, Target};
use super::header::{Header, Kind};
use super::outgoing::Outgoing;
use super::transport::{Address, Memory, Transport};

impl<T: Transport> Endpoint<T> {
    /// Begins to read what a peer has at an address, and knows by a number.
    pub(super) fn fetch(
        &mut self,
        source: Address,
        target: Target<T::Memory>,
        length: usize,
        (remote, id): (u64, u64),
    ) {
        let length = length.min(target.memory().len());
        if length == 0 {
            return self.end_fetch(source, target, id, None);
        }
        let mut staged = None;
        let local = self.transport.register(target.memory(), false).or_else(|_| {
            let memory = staged.insert(T::Memory::owned(length));
            self.transport.register(memory, false)
        });
        let Ok(local) = local else {
            return self.end_fetch(source, target, id, Some(Failure::NoRoom));
        };
        self.next += 1;
        let fetch = self.next;
        let (asked, pending, failed) = (0, 0, false);
        let new =
            Fetch { source, target, staged, remote, id, local, length, asked, pending, failed };
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
            if self.transport.get(fetch.source, remote, local, length, token).is_err() {
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
        let failure = fetch.failed.then_some(Failure::Unreachable);
        if let Some(staged) = fetch.staged.filter(|_| !fetch.failed) {
            let mut data = vec![0; fetch.length];
            staged.read(0, &mut data);
            fetch.target.memory_mut().write(0, &data);
        }
        self.end_fetch(fetch.source, fetch.target, fetch.id, failure);
    }

    /// Ends a fetch, and tells the sender.
    fn end_fetch(
        &mut self,
        source: Address,
        target: Target<T::Memory>,
        id: u64,
        failure: Option<Failure>,
    ) {
        let kind = if failure.is_some() { Kind::Failed } else { Kind::Done };
        self.answer(source, kind, id);
        match target {
            Target::Receive(envelope, place) => match failure {
                None => self.received(&envelope, place),
                Some(_) => self.end_receive(&envelope, &place, failure),
            },
            Target::Region { memory, data, .. } if failure.is_none() => {
                self.served(source, true, memory.len(), data);
            }
            Target::Region { .. } => {}
            Target::Read(_, operation) => self.finish_send(operation, failure),
        }
    }

    /// Tells a sender how a message that it has offered, or something that it has asked for, has
    /// ended.
    pub(super) fn answer(&mut self, to: Address, kind: Kind, id: u64) {
        let Some(number) = self.peers.find(to) else { return };
        let header = Header { id, ..Header::of(kind) };
        self.enqueue(number, Outgoing { header, data: Vec::new(), sent: 0, send: None });
    }
}
