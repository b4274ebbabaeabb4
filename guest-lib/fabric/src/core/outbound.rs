//! Messages that wait for slots of a peer, and the events of the device.

use super::commands::Command;
use super::completion::{Completion, Finished};
use super::endpoint::{Endpoint, Sending};
use super::failure::Failure;
use super::outgoing::Outgoing;
use super::peers::Number;
use super::transport::{Event, Signal, Transport, Way};

impl<T: Transport> Endpoint<T> {
    /// Queues something for a peer, and sends it if there is room.
    pub(super) fn enqueue(&mut self, number: Number, outgoing: Outgoing) {
        if let Some(peer) = self.peers.get_mut(number) {
            peer.queue.push_back(outgoing);
        }
        self.flush(number);
    }

    /// Sends what waits for a peer, as far as there is room.
    pub(super) fn flush(&mut self, number: Number) {
        if self.try_flush(number).is_none() {
            let Some(peer) = self.peers.get_mut(number) else { return };
            if !std::mem::replace(&mut peer.listed, true) {
                self.listed.push_back(number);
            }
        }
    }

    /// Returns `None` if the device has no room, so that this must be retried. Messages that wait
    /// for the peer are retried when a message of the peer arrives.
    fn try_flush(&mut self, number: Number) -> Option<()> {
        self.greet(number)?;
        loop {
            let peer = self.peers.get_mut(number)?;
            if peer.failed {
                return Some(());
            }
            let Some(front) = peer.queue.front() else { break };
            let Some(place) = peer.free_slot() else { break };
            let left = front.data.len() - front.sent;
            let length = left.min(front.part);
            let is_last = length == left;
            let mut header = front.header;
            header.emptied = peer.emptied();
            header.length = length as u32;
            if header.kind.is_part() {
                header.at = front.sent as u64;
            }
            let send = front.send.filter(|_| is_last);
            let token = self.commands.add(Command::Fill { peer: number, send });
            let part = &front.data[front.sent..front.sent + length];
            let way = Way { peer: peer.address, rail: front.sent / front.part };
            if self.transport.fill(way, place, [&header.encode(), part], token).is_err() {
                self.commands.take(token);
                return None;
            }
            peer.fill();
            if is_last {
                peer.queue.pop_front();
            } else if let Some(front) = peer.queue.front_mut() {
                front.sent += length;
            }
        }
        self.tell(number)
    }

    /// Gives a peer its ring, once.
    fn greet(&mut self, number: Number) -> Option<()> {
        let peer = self.peers.get_mut(number)?;
        if peer.greeted || peer.failed {
            return Some(());
        }
        let address = peer.address;
        if self.transport.provide(number / super::RINGS_PER_CHUNK).is_err() {
            self.fail(number, Failure::NoRoom);
            return Some(());
        }
        self.transport.signal(address, Signal::Hello(number)).ok()?;
        self.peers.get_mut(number)?.greeted = true;
        Some(())
    }

    /// Tells a peer how many slots were emptied, if it is time to.
    fn tell(&mut self, number: Number) -> Option<()> {
        let peer = self.peers.get_mut(number)?;
        if let Some(emptied) = peer.to_tell().filter(|_| !peer.failed) {
            self.transport.signal(peer.address, Signal::Credit(emptied)).ok()?;
            peer.tell();
        }
        Some(())
    }

    /// Handles the end of a command.
    pub(super) fn ended(&mut self, token: u32, good: bool) {
        match self.commands.take(token) {
            Some(Command::Fill { peer, send }) if good => {
                if let Some(send) = send
                    && self.sends.get(&send).is_none_or(|sending| !sending.waits)
                {
                    self.finish_send(send, None);
                }
                self.flush(peer);
            }
            Some(Command::Fill { peer, send }) => {
                if let Some(send) = send {
                    self.finish_send(send, Some(Failure::Unreachable));
                }
                self.fail(peer, Failure::Unreachable);
            }
            Some(Command::Get { fetch }) => self.fetched(fetch, good),
            None => {}
        }
    }

    /// Ends a send.
    pub(super) fn finish_send(&mut self, send: u64, failure: Option<Failure>) {
        let Some(sending) = self.sends.remove(&send) else { return };
        let Sending { finished, context, tagged, wanted, spots, .. } = sending;
        self.transport.release(&spots);
        self.end_operation(finished, tagged, context, wanted, failure);
    }

    /// Fails all operations with this peer.
    pub(super) fn fail(&mut self, number: Number, failure: Failure) {
        let Some(peer) = self.peers.get(number).filter(|peer| !peer.failed) else { return };
        let address = peer.address;
        self.end_peer(number, failure);
        while let Some(receive) = self.matching.take_directed(address) {
            let completion = Completion::new(Finished::Receive, receive.tagged, receive.context);
            let completion = Completion { source: Some(address), ..completion };
            self.completions.push_back(completion.failed(failure));
        }
    }

    /// Fails all messages to and from a peer.
    fn end_peer(&mut self, number: Number, failure: Failure) {
        let Some(peer) = self.peers.get_mut(number) else { return };
        if std::mem::replace(&mut peer.failed, true) {
            return;
        }
        peer.queue.clear();
        let current = peer.current.take();
        let mut sends: Vec<u64> =
            self.sends.iter().filter(|(_, s)| s.peer == number).map(|(id, _)| *id).collect();
        sends.sort_unstable();
        for send in sends {
            self.finish_send(send, Some(failure));
        }
        if let Some(message) = current {
            self.abandon(message, failure);
        }
    }

    /// Handles an event.
    pub(super) fn handle(&mut self, event: Event) {
        match event {
            Event::Signal(from, Signal::Hello(ring)) => self.hello(from, ring),
            Event::Signal(from, Signal::Credit(emptied)) => {
                let Some(number) = self.peers.find(from) else { return };
                if let Some(peer) = self.peers.get_mut(number) {
                    peer.free(emptied);
                }
                self.flush(number);
            }
            Event::Signal(from, Signal::Full) => {
                if let Some(number) = self.peers.find(from) {
                    self.fail(number, Failure::NoRoom);
                }
            }
            Event::Filled(place) => self.filled(place),
            Event::Ended(token, good) => self.ended(token, good),
            Event::Lost(peer) => {
                if let Some(number) = self.peers.find(peer) {
                    self.fail(number, Failure::Unreachable);
                }
            }
        }
    }

    fn hello(&mut self, from: super::Address, ring: u16) {
        let known = self.peers.find(from);
        // Each endpoint says hello once, so this one has the queue of another that has ended.
        // Receives that were posted for the address are for it.
        let is_new = known
            .and_then(|number| self.peers.get(number))
            .is_none_or(|peer| peer.failed || peer.ring.is_some());
        if let Some(number) = known.filter(|_| is_new) {
            self.end_peer(number, Failure::Unreachable);
        }
        let number = match known.filter(|_| !is_new) {
            Some(number) => number,
            None => match self.peers.add(from) {
                Ok(number) => number,
                Err(_) => {
                    self.turned_away.push_back(from);
                    return;
                }
            },
        };
        if let Some(peer) = self.peers.get_mut(number) {
            peer.ring = Some(ring);
        }
        self.flush(number);
    }
}
