//! An endpoint: what the program calls.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::commands::Commands;
use super::completion::{Completion, Finished};
use super::failure::Failure;
use super::fetch::Fetch;
use super::header::{Header, Kind};
use super::matching::{Claim, Matching};
use super::outgoing::Outgoing;
use super::peers::{Number, Peers};
use super::regions::{Lease, Regions};
use super::transport::{Address, Busy, Memory, Signal, Spot, Transport};
use super::{DIVIDED, EAGER, SLOT};

/// Messages that may wait for a peer.
const MOST_WAITING: usize = 4096;
/// The time after which a peer that has not answered is sent a signal, which fails if it is dead.
const PROBE_AFTER: Duration = Duration::from_secs(1);
/// Events that one call handles, so that it ends.
const EVENTS_AT_ONCE: usize = 64;

/// A message to send.
#[derive(Debug)]
pub struct Send<M> {
    /// The receiver.
    pub to: Address,
    /// The message.
    pub memory: M,
    /// True for messages with tags.
    pub tagged: bool,
    /// The tag.
    pub tag: u64,
    /// Data for the receiver's completion.
    pub data: Option<u64>,
    /// The context for the completion. Without a context there is no completion, and the program
    /// may reuse the memory immediately.
    pub context: Option<usize>,
    /// False if the program wants to know only if it fails.
    pub wanted: bool,
    /// It ends when the receiver's endpoint has taken it, not when it is in the receiver's memory.
    pub delivered: bool,
}

/// A send, or an operation on a peer's region, that has not ended.
#[derive(Debug)]
pub(super) struct Sending<M> {
    pub(super) finished: Finished,
    pub(super) context: Option<usize>,
    pub(super) tagged: bool,
    pub(super) wanted: bool,
    pub(super) peer: Number,
    /// It ends with an answer of the peer, not when all has been sent.
    pub(super) waits: bool,
    /// The places of the message for the device, if the receiver reads it.
    pub(super) spots: Vec<Spot>,
    /// The memory that is kept until then, or that the answer is for.
    pub(super) memory: Option<M>,
    /// The memory is of a region.
    pub(super) lease: Option<Lease>,
}

impl<M> Sending<M> {
    /// One that ends when all has been sent.
    pub(super) const fn new(
        peer: Number,
        finished: Finished,
        context: Option<usize>,
        wanted: bool,
    ) -> Self {
        Self {
            finished,
            context,
            tagged: false,
            wanted,
            peer,
            waits: false,
            spots: Vec::new(),
            memory: None,
            lease: None,
        }
    }
}

/// An endpoint.
#[derive(Debug)]
pub struct Endpoint<T: Transport> {
    pub(super) transport: T,
    pub(super) peers: Peers,
    pub(super) matching: Matching<T::Memory>,
    pub(super) sends: HashMap<u64, Sending<T::Memory>>,
    pub(super) fetches: HashMap<u64, Fetch<T::Memory>>,
    /// Peers and fetches that wait for room at the device.
    pub(super) listed: VecDeque<Number>,
    pub(super) asking: VecDeque<u64>,
    /// Peers for which there is no ring, and which have not been notified yet.
    pub(super) turned_away: VecDeque<Address>,
    pub(super) commands: Commands,
    pub(super) completions: VecDeque<Completion>,
    /// Memory that peers may use.
    pub(super) regions: Arc<Mutex<Regions<T::Memory>>>,
    /// The time when peers that have not answered were sent a signal.
    probed: Instant,
    pub(super) next: u64,
    pub(super) scratch: Vec<u8>,
}

impl<T: Transport> Endpoint<T> {
    /// Creates an endpoint, whose peers may use these regions.
    pub fn new(transport: T, regions: Arc<Mutex<Regions<T::Memory>>>) -> Self {
        Self {
            transport,
            peers: Peers::default(),
            matching: Matching::default(),
            sends: HashMap::new(),
            fetches: HashMap::new(),
            listed: VecDeque::new(),
            asking: VecDeque::new(),
            turned_away: VecDeque::new(),
            commands: Commands::default(),
            completions: VecDeque::new(),
            regions,
            probed: Instant::now(),
            next: 0,
            scratch: vec![0; SLOT],
        }
    }

    /// Returns its address.
    pub fn address(&self) -> Address {
        self.transport.address()
    }

    /// Returns the device.
    pub const fn transport(&self) -> &T {
        &self.transport
    }

    /// Returns whether there is nothing to do until the device has an event.
    pub fn is_quiet(&mut self) -> bool {
        let works =
            !self.listed.is_empty() || !self.asking.is_empty() || !self.turned_away.is_empty();
        !works && self.completions.is_empty() && !self.transport.wait(Duration::ZERO)
    }

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// If too many wait for the receiver already. The program tries again after [`Self::progress`].
    pub fn send(&mut self, send: Send<T::Memory>) -> Result<(), Busy> {
        let Send { to, memory, tagged, tag, data, context, wanted, delivered } = send;
        let total = memory.len() as u64;
        let header =
            Header { tagged, tag, data, total, answer: delivered, ..Header::of(Kind::Part) };
        if to == self.transport.address() {
            self.send_to_self(&header, &memory);
            self.end_operation(Finished::Send, tagged, context, wanted, None);
            return Ok(());
        }
        let number = match self.admit(to)? {
            Ok(number) => number,
            Err(failure) => {
                self.end_operation(Finished::Send, tagged, context, wanted, Some(failure));
                return Ok(());
            }
        };
        self.next += 1;
        let id = self.next;
        let sending = Sending::new(number, Finished::Send, context, wanted);
        self.sends.insert(id, Sending { tagged, waits: delivered, ..sending });
        self.offer(number, Header { id, ..header }, memory, Kind::Request);
        Ok(())
    }

    /// Returns the number of the peer for another operation, or the reason why there can be none.
    ///
    /// # Errors
    ///
    /// If too many wait already.
    pub(super) fn admit(&mut self, to: Address) -> Result<Result<Number, Failure>, Busy> {
        let number = match self.peers.find(to).map_or_else(|| self.peers.add(to), Ok) {
            Ok(number) => number,
            Err(failure) => return Ok(Err(failure)),
        };
        match self.peers.get(number) {
            Some(peer) if peer.queue.len() >= MOST_WAITING => Err(Busy),
            Some(peer) if !peer.failed => Ok(Ok(number)),
            _ => Ok(Err(Failure::Unreachable)),
        }
    }

    /// Sends a message through slots; or, for a header of this kind, makes the receiver read it.
    pub(super) fn offer(
        &mut self,
        number: Number,
        header: Header,
        memory: T::Memory,
        request: Kind,
    ) {
        let (id, total) = (header.id, memory.len());
        let Some(peer) = self.peers.get(number).map(|peer| peer.address) else { return };
        let rails = if total < DIVIDED { 1 } else { self.transport.rails(peer) };
        let header = Header { total: total as u64, ..header };
        let send = Some(id);
        if total > EAGER
            && let Some(sending) = self.sends.get_mut(&id)
            && (sending.context.is_some() || sending.lease.is_some())
            && let Ok(spots) = self.transport.register(&memory, true, peer, rails)
        {
            sending.waits = true;
            let places = Spot::encode(&spots);
            sending.spots = spots;
            sending.memory = Some(memory);
            let header = Header { kind: request, ..header };
            return self.enqueue(number, Outgoing::new(header, places, send));
        }
        let mut data = vec![0; total];
        memory.read(0, &mut data);
        let outgoing = Outgoing::new(header, data, send);
        self.enqueue(number, outgoing.divided(rails));
    }

    /// Reports the end of an operation, if the program can know of it.
    pub(super) fn end_operation(
        &mut self,
        finished: Finished,
        tagged: bool,
        context: Option<usize>,
        wanted: bool,
        failure: Option<Failure>,
    ) {
        let Some(context) = context else { return };
        let completion = Completion::new(finished, tagged, context);
        self.completions.push_back(Completion { wanted, failure, ..completion });
    }

    /// Sends a message to the own endpoint.
    fn send_to_self(&mut self, header: &Header, memory: &T::Memory) {
        let mut data = vec![0; memory.len()];
        memory.read(0, &mut data);
        // If it has not ended, it waits for a receive.
        self.begin(self.transport.address(), header, &data);
    }

    /// Looks for a message. The completion says whether there is one.
    pub fn look(
        &mut self,
        tagged: bool,
        source: Option<Address>,
        [tag, ignore]: [u64; 2],
        context: usize,
        claim: Claim,
    ) {
        let completion = Completion::new(Finished::Receive, tagged, context);
        let found = self.matching.find(tagged, source, tag, ignore);
        let message = found.and_then(|(_, number)| self.matching.messages.get(&number));
        let (Some((at, number)), Some(message)) = (found, message) else {
            let completion = Completion { tag, source, ..completion };
            self.completions.push_back(completion.failed(Failure::NoMessage));
            return;
        };
        let envelope = message.envelope;
        self.completions.push_back(Completion {
            length: envelope.total,
            tag: envelope.tag,
            data: envelope.data,
            source: Some(envelope.source),
            ..completion
        });
        match claim {
            Claim::Leave => {}
            Claim::Take => {
                self.matching.take(tagged, at);
                self.matching.claim(context, number);
            }
            Claim::Discard => {
                self.matching.take(tagged, at);
                self.discard(number);
            }
        }
    }

    /// Cancels a receive. Returns whether it was waiting.
    pub fn cancel(&mut self, context: usize) -> bool {
        let Some(receive) = self.matching.cancel(context) else { return false };
        let completion = Completion::new(Finished::Receive, receive.tagged, context);
        self.completions.push_back(completion.failed(Failure::Canceled));
        true
    }

    /// Does what can be done, without waiting for long.
    pub fn progress(&mut self) {
        for _ in 0..self.listed.len() {
            let Some(number) = self.listed.pop_front() else { break };
            if let Some(peer) = self.peers.get_mut(number) {
                peer.listed = false;
            }
            self.flush(number);
        }
        for _ in 0..self.asking.len() {
            let Some(fetch) = self.asking.pop_front() else { break };
            self.ask(fetch);
        }
        while let Some(peer) = self.turned_away.front()
            && self.transport.signal(*peer, Signal::Full).is_ok()
        {
            self.turned_away.pop_front();
        }
        if !self.sends.is_empty() && self.probed.elapsed() >= PROBE_AFTER {
            self.probed = Instant::now();
            self.probe();
        }
        for _ in 0..EVENTS_AT_ONCE {
            // A poll that finds nothing may rest, which is no use if there are completions.
            let Some(event) = self.transport.poll() else { break };
            self.handle(event);
        }
    }

    /// Sends a signal to all peers that have not answered. Such a peer may have died after the
    /// device has delivered everything to it.
    pub(super) fn probe(&mut self) {
        let waiting = self.sends.values().filter(|sending| sending.waits);
        let mut numbers: Vec<Number> = waiting.map(|sending| sending.peer).collect();
        numbers.sort_unstable();
        numbers.dedup();
        for number in numbers {
            let Some(peer) = self.peers.get(number).filter(|peer| !peer.failed) else { continue };
            // If the device has no room, the completion of its work triggers another attempt.
            let _ = self.transport.signal(peer.address, Signal::Credit(peer.emptied()));
        }
    }

    /// Takes the next completion.
    pub fn completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Makes progress until all sent messages have arrived or the timeout has passed. Returns true
    /// if they have arrived.
    pub fn drain(&mut self, timeout: Duration) -> bool {
        let start = Instant::now();
        loop {
            self.progress();
            let mut numbers = self.peers.numbers();
            let waits = numbers.any(|number| {
                self.peers.get(number).is_some_and(|peer| !peer.failed && !peer.queue.is_empty())
            });
            if !waits && self.commands.is_empty() {
                return true;
            }
            if start.elapsed() >= timeout {
                return false;
            }
            self.transport.wait(Duration::from_millis(1));
        }
    }
}
