//! Reads, writes and atomic operations on regions of peers, and serving those of peers.

use std::sync::PoisonError;

use super::atomics::Atomic;
use super::completion::{Completion, Finished};
use super::endpoint::{Endpoint, Sending};
use super::failure::Failure;
use super::fetch::Target;
use super::header::{Header, Kind};
use super::outgoing::Outgoing;
use super::peers::Number;
use super::regions::{Access, Lease};
use super::transport::{Address, Busy, Memory, Spot, Transport};

const READS: Access = Access { read: true, write: false };
const WRITES: Access = Access { read: false, write: true };

/// An operation on a peer's region.
#[derive(Debug)]
pub struct Remote<M> {
    /// The peer.
    pub to: Address,
    /// The key of the region.
    pub key: u64,
    /// The first byte, by the address that the peer's region has given to it.
    pub place: u64,
    /// The operation.
    pub action: Action<M>,
    /// The context for the completion. Without a context there is no completion, and the program
    /// may reuse the memory immediately.
    pub context: Option<usize>,
    /// False if the program wants to know only if it fails.
    pub wanted: bool,
}

/// The use that is made of a region.
#[derive(Debug)]
pub enum Action<M> {
    /// It is read into this memory.
    Read(M),
    /// It is written from this memory. The peer gets a completion if there is data for it.
    Write(M, Option<u64>),
    /// Its numbers are changed by these operands, and behind them those to compare with. The old
    /// numbers are wanted in this memory.
    Atomic(Atomic, Vec<u8>, Option<M>),
}

impl<M> Action<M> {
    const fn finished(&self) -> Finished {
        match self {
            Self::Read(_) => Finished::Read,
            Self::Write(..) => Finished::Write,
            Self::Atomic(_, _, None) => Finished::Atomic,
            Self::Atomic(_, _, Some(_)) => Finished::FetchAtomic,
        }
    }
}

impl<T: Transport> Endpoint<T> {
    /// Begins an operation on a peer's region.
    ///
    /// # Errors
    ///
    /// If too many wait for the peer already. The program tries again after [`Self::progress`].
    pub fn remote(&mut self, remote: Remote<T::Memory>) -> Result<(), Busy> {
        let Remote { to, key, place, action, context, wanted } = remote;
        let finished = action.finished();
        if to == self.transport.address() {
            let failure = self.on_own_region(key, place, action).is_none();
            let failure = failure.then_some(Failure::Refused);
            self.end_operation(finished, false, context, wanted, failure);
            return Ok(());
        }
        let number = match self.admit(to)? {
            Ok(number) => number,
            Err(failure) => {
                self.end_operation(finished, false, context, wanted, Some(failure));
                return Ok(());
            }
        };
        self.next += 1;
        let id = self.next;
        let sending = Sending { waits: true, ..Sending::new(number, finished, context, wanted) };
        self.sends.insert(id, sending);
        let header = Header { key, place, id, ..Header::of(Kind::Read) };
        match action {
            Action::Read(memory) => {
                let header = Header { total: memory.len() as u64, ..header };
                self.keep(id, memory);
                self.say(number, header, Vec::new());
            }
            Action::Write(memory, data) => {
                let header = Header { kind: Kind::Write, data, ..header };
                self.offer(number, header, memory, Kind::WriteRequest);
            }
            Action::Atomic(atomic, operands, result) => {
                let (total, at) = (operands.len() as u64, atomic.encode());
                let header = Header { kind: Kind::Atomic, total, at, ..header };
                if let Some(memory) = result {
                    self.keep(id, memory);
                }
                self.say(number, header, operands);
            }
        }
        Ok(())
    }

    /// Keeps the memory that the answer to an operation is for.
    fn keep(&mut self, id: u64, memory: T::Memory) {
        if let Some(sending) = self.sends.get_mut(&id) {
            sending.memory = Some(memory);
        }
    }

    /// Sends what fits into a slot.
    fn say(&mut self, number: Number, header: Header, data: Vec<u8>) {
        self.enqueue(number, Outgoing::new(header, data, None));
    }

    /// Looks for a part of a region here.
    fn region(
        &self,
        key: u64,
        place: u64,
        length: usize,
        access: Access,
    ) -> Option<(T::Memory, Lease)> {
        let regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        regions.find(key, place, length, access)
    }

    /// Does an operation on a region of this endpoint. Returns `None` if there is no such region.
    fn on_own_region(&mut self, key: u64, place: u64, action: Action<T::Memory>) -> Option<()> {
        let source = self.transport.address();
        match action {
            Action::Read(mut memory) => {
                let (region, _lease) = self.region(key, place, memory.len(), READS)?;
                copy(&region, &mut memory);
                self.served(source, key, false, memory.len(), None);
            }
            Action::Write(memory, data) => {
                let (mut region, _lease) = self.region(key, place, memory.len(), WRITES)?;
                copy(&memory, &mut region);
                self.served(source, key, true, memory.len(), data);
            }
            Action::Atomic(atomic, operands, result) => {
                let old = self.change(key, place, atomic, &operands)?;
                self.served(source, key, atomic.access().write, old.len(), None);
                if let Some(mut memory) = result {
                    memory.write(0, &old);
                }
            }
        }
        Some(())
    }

    /// Performs an atomic operation on a region of this process. Returns the old values. The lock
    /// keeps other endpoints of the domain from changing them at the same time.
    fn change(&self, key: u64, place: u64, atomic: Atomic, operands: &[u8]) -> Option<Vec<u8>> {
        let length = atomic.length(operands.len())?;
        let regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut region, _lease) = regions.find(key, place, length, atomic.access())?;
        let mut old = vec![0; length];
        region.read(0, &mut old);
        if atomic.access().write {
            let mut new = old.clone();
            atomic.apply(&mut new, operands);
            region.write(0, &new);
        }
        Some(old)
    }

    /// A region was used by a peer.
    pub(super) fn served(
        &mut self,
        by: Address,
        key: u64,
        wrote: bool,
        length: usize,
        data: Option<u64>,
    ) {
        let finished = if wrote { Finished::PeerWrite } else { Finished::PeerRead };
        self.completions.push_back(Completion {
            length,
            data,
            key: Some(key),
            source: Some(by),
            wanted: data.is_some(),
            ..Completion::new(finished, false, 0)
        });
    }

    /// A part of what a peer writes has come.
    pub(super) fn written(&mut self, source: Address, header: &Header, part: &[u8]) {
        let total = usize::try_from(header.total).unwrap_or(usize::MAX);
        let found = self.region(header.key, header.place, total, WRITES);
        let at = usize::try_from(header.at).unwrap_or(usize::MAX);
        let is_last = at.saturating_add(part.len()) >= total;
        match found {
            Some((mut region, _lease)) if at <= total => {
                region.write(at, part);
                if is_last {
                    self.answer(source, Kind::Done, header.id);
                    self.served(source, header.key, true, total, header.data);
                }
            }
            _ if is_last => self.answer(source, Kind::Refused, header.id),
            _ => {}
        }
    }

    /// A peer wants this endpoint to read what it writes.
    pub(super) fn write_requested(&mut self, source: Address, header: &Header, places: &[u8]) {
        let total = usize::try_from(header.total).unwrap_or(usize::MAX);
        match self.region(header.key, header.place, total, WRITES) {
            Some((memory, _lease)) => {
                let target = Target::Region { memory, key: header.key, data: header.data, _lease };
                self.fetch(source, target, total, (Spot::decode(places), header.id));
            }
            None => self.answer(source, Kind::Refused, header.id),
        }
    }

    /// A peer reads.
    pub(super) fn read(&mut self, number: Number, source: Address, header: &Header) {
        let total = usize::try_from(header.total).unwrap_or(usize::MAX);
        let Some((memory, lease)) = self.region(header.key, header.place, total, READS) else {
            return self.answer(source, Kind::Refused, header.id);
        };
        self.served(source, header.key, false, total, None);
        self.next += 1;
        let id = self.next;
        let sending = Sending::new(number, Finished::Send, None, false);
        self.sends.insert(id, Sending { lease: Some(lease), ..sending });
        let header = Header { id, tag: header.id, ..Header::of(Kind::Data) };
        self.offer(number, header, memory, Kind::DataRequest);
    }

    /// A part of what was read from a region, or old numbers, have come.
    pub(super) fn data(&mut self, number: Number, header: &Header, part: &[u8]) {
        let Some(sending) = self.own(number, header.tag) else { return };
        let at = usize::try_from(header.at).unwrap_or(usize::MAX);
        if let Some(memory) = sending.memory.as_mut().filter(|memory| at <= memory.len()) {
            memory.write(at, part);
        }
        if header.at.saturating_add(part.len() as u64) >= header.total {
            self.finish_send(header.tag, None);
        }
    }

    /// Handles an answer to a read whose bytes must be fetched from the peer.
    pub(super) fn data_requested(
        &mut self,
        number: Number,
        source: Address,
        header: &Header,
        places: &[u8],
    ) {
        let memory = self.own(number, header.tag).and_then(|sending| sending.memory.take());
        let Some(memory) = memory else {
            return self.answer(source, Kind::Failed, header.id);
        };
        let length = memory.len();
        let target = Target::Read(memory, header.tag);
        self.fetch(source, target, length, (Spot::decode(places), header.id));
    }

    /// A peer changes numbers.
    pub(super) fn changed(
        &mut self,
        number: Number,
        source: Address,
        header: &Header,
        operands: &[u8],
    ) {
        let atomic = Atomic::decode(header.at).filter(|_| operands.len() as u64 == header.total);
        let old = atomic.and_then(|atomic| {
            Some((atomic, self.change(header.key, header.place, atomic, operands)?))
        });
        let Some((atomic, old)) = old else {
            return self.answer(source, Kind::Refused, header.id);
        };
        self.served(source, header.key, atomic.access().write, old.len(), None);
        if !atomic.fetches {
            return self.answer(source, Kind::Done, header.id);
        }
        let header = Header { tag: header.id, total: old.len() as u64, ..Header::of(Kind::Data) };
        self.say(number, header, old);
    }

    /// Returns an operation that was sent to this peer.
    pub(super) fn own(&mut self, peer: Number, id: u64) -> Option<&mut Sending<T::Memory>> {
        self.sends.get_mut(&id).filter(|sending| sending.peer == peer)
    }
}

fn copy<M: Memory>(from: &M, to: &mut M) {
    let mut data = vec![0; from.len()];
    from.read(0, &mut data);
    to.write(0, &data);
}
