//! An endpoint: what the program calls.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::commands::Commands;
use super::completion::{Completion, Finished};
use super::failure::Failure;
use super::fetch::Fetch;
use super::header::{Header, Kind};
use super::matching::{Claim, Matching};
use super::outgoing::Outgoing;
use super::peers::{Number, Peers};
use super::transport::{Address, Busy, Memory, Signal, Transport};
use super::{EAGER, SLOT};

/// Messages that may wait for a peer.
const MOST_WAITING: usize = 4096;
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
    /// The context for the completion. Without it there is none, and the memory is the program's
    /// again at once.
    pub context: Option<usize>,
    /// False if the program wants to know only if it fails.
    pub wanted: bool,
}

/// A send that has not ended.
#[derive(Debug)]
pub(super) struct Sending<M> {
    pub(super) context: Option<usize>,
    pub(super) tagged: bool,
    pub(super) wanted: bool,
    pub(super) peer: Number,
    /// The device's address of the message, if the receiver reads it.
    pub(super) stadd: Option<u64>,
    /// It is kept until then.
    _memory: Option<M>,
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
    /// Peers for which there is no ring, and who do not know it yet.
    pub(super) turned_away: VecDeque<Address>,
    pub(super) commands: Commands,
    pub(super) completions: VecDeque<Completion>,
    pub(super) next: u64,
    pub(super) scratch: Vec<u8>,
}

impl<T: Transport> Endpoint<T> {
    /// Creates an endpoint.
    pub fn new(transport: T) -> Self {
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
            next: 0,
            scratch: vec![0; SLOT],
        }
    }

    /// Returns its address.
    pub fn address(&self) -> Address {
        self.transport.address()
    }

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// If too many wait for the receiver already. The program tries again after [`Self::progress`].
    pub fn send(&mut self, send: Send<T::Memory>) -> Result<(), Busy> {
        let Send { to, memory, tagged, tag, data, context, wanted } = send;
        let total = memory.len();
        let (id, at) = (0, 0);
        let header = Header {
            kind: Kind::Part,
            tagged,
            data,
            emptied: 0,
            length: 0,
            tag,
            total: total as u64,
            id,
            at,
        };
        if to == self.transport.address() {
            self.send_to_self(&header, &memory);
            let done = Completion::new(Finished::Send, tagged, context.unwrap_or(0));
            self.completions.extend(context.map(|_| Completion { wanted, ..done }));
            return Ok(());
        }
        let number = match self.peers.find(to).map_or_else(|| self.peers.add(to), Ok) {
            Ok(number) => number,
            Err(failure) => {
                self.refuse(tagged, context, failure);
                return Ok(());
            }
        };
        let Some(peer) = self.peers.get(number) else { return Ok(()) };
        if peer.failed {
            self.refuse(tagged, context, Failure::Unreachable);
            return Ok(());
        }
        if peer.queue.len() >= MOST_WAITING {
            return Err(Busy);
        }
        self.next += 1;
        let id = self.next;
        let sending = Sending { context, tagged, wanted, peer: number, stadd: None, _memory: None };
        self.sends.insert(id, sending);
        self.offer(number, Header { id, ..header }, memory);
        Ok(())
    }

    /// Sends a message through slots, or has the receiver read it.
    fn offer(&mut self, number: Number, header: Header, memory: T::Memory) {
        let (id, total) = (header.id, memory.len());
        let send = Some(id);
        if total > EAGER
            && let Some(sending) = self.sends.get_mut(&id)
            && sending.context.is_some()
            && let Ok(stadd) = self.transport.register(&memory, true)
        {
            sending.stadd = Some(stadd);
            sending._memory = Some(memory);
            let header = Header { kind: Kind::Request, at: stadd, ..header };
            return self.enqueue(number, Outgoing { header, data: Vec::new(), sent: 0, send });
        }
        let mut data = vec![0; total];
        memory.read(0, &mut data);
        self.enqueue(number, Outgoing { header, data, sent: 0, send });
    }

    /// Ends a send that cannot begin.
    fn refuse(&mut self, tagged: bool, context: Option<usize>, failure: Failure) {
        let Some(context) = context else { return };
        let completion = Completion::new(Finished::Send, tagged, context);
        self.completions.push_back(completion.failed(failure));
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
        for _ in 0..EVENTS_AT_ONCE {
            // A poll that finds nothing may rest, which is no use if there are completions.
            let Some(event) = self.transport.poll() else { break };
            self.handle(event);
        }
    }

    /// Takes the next completion.
    pub fn completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Makes progress until all that was sent has arrived, or the time has passed. Returns whether
    /// it has arrived.
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
