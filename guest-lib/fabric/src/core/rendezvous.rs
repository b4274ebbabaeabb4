//! Messages that their receivers read.

use super::PIECE;
use super::commands::Command;
use super::endpoint::Endpoint;
use super::failure::Failure;
use super::fetch::{Fetch, Target};
use super::header::{Header, Kind};
use super::outgoing::Outgoing;
use super::transport::{Address, Memory, Spot, Transport, Way};

/// Parts of a message that are read begin at a multiple of this, as caches have lines of so many
/// bytes.
const LINE: usize = 256;

impl<T: Transport> Endpoint<T> {
    /// Begins to read what a peer has at an address, and knows by a number.
    pub(super) fn fetch(
        &mut self,
        source: Address,
        target: Target<T::Memory>,
        length: usize,
        (remote, id): (Vec<Spot>, u64),
    ) {
        let length = length.min(target.memory().len());
        if length == 0 {
            return self.end_fetch(source, target, id, None);
        }
        let rails = remote.len();
        if rails == 0 {
            // No sender says this.
            return self.end_fetch(source, target, id, Some(Failure::NoRoom));
        }
        let mut staged = None;
        let local = self.transport.register(target.memory(), false, source, rails).or_else(|_| {
            let memory = staged.insert(T::Memory::owned(length));
            self.transport.register(memory, false, source, rails)
        });
        let Ok(local) = local else {
            return self.end_fetch(source, target, id, Some(Failure::NoRoom));
        };
        // As many for each rail.
        let pieces = rails * length.div_ceil(rails * PIECE);
        let piece = length.div_ceil(pieces).next_multiple_of(LINE);
        self.next += 1;
        let fetch = self.next;
        let (asked, pending, failed) = (0, 0, false);
        let new = Fetch {
            source,
            target,
            staged,
            remote,
            id,
            local,
            length,
            piece,
            asked,
            pending,
            failed,
        };
        self.fetches.insert(fetch, new);
        self.ask(fetch);
    }

    /// Asks for the next pieces of a message, as far as the device has room.
    pub(super) fn ask(&mut self, number: u64) {
        let Some(fetch) = self.fetches.get_mut(&number) else { return };
        while fetch.asked < fetch.length && !fetch.failed {
            let length = (fetch.length - fetch.asked).min(fetch.piece);
            let turn = fetch.asked / fetch.piece;
            let place = |spots: &[Spot]| spots.get(turn % spots.len().max(1)).copied();
            let (Some(remote), Some(local)) = (place(&fetch.remote), place(&fetch.local)) else {
                return;
            };
            let places = [remote, local].map(|spot| spot.plus(fetch.asked));
            let way = Way { peer: fetch.source, rail: turn % fetch.remote.len() };
            let token = self.commands.add(Command::Get { fetch: number });
            if self.transport.get(way, places, length, token).is_err() {
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
        self.transport.release(&fetch.local);
        let failure = fetch.failed.then_some(Failure::Unreachable);
        if let Some(staged) = fetch.staged.filter(|_| !fetch.failed) {
            let mut data = vec![0; fetch.length];
            staged.read(0, &mut data);
            fetch.target.memory_mut().write(0, &data);
        }
        self.end_fetch(fetch.source, fetch.target, fetch.id, failure);
    }

    /// Ends a fetch, and notifies the sender.
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
            Target::Region { memory, key, data, .. } if failure.is_none() => {
                self.served(source, key, true, memory.len(), data);
            }
            Target::Region { .. } => {}
            Target::Read(_, operation) => self.finish_send(operation, failure),
        }
    }

    /// Reports the result of an offered message or of a request to its sender.
    pub(super) fn answer(&mut self, to: Address, kind: Kind, id: u64) {
        let Some(number) = self.peers.find(to) else { return };
        let header = Header { id, ..Header::of(kind) };
        self.enqueue(number, Outgoing::new(header, Vec::new(), None));
    }
}
