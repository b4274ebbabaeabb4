//! Receives and messages that wait for each other.

use std::collections::{HashMap, VecDeque};

use super::completion::{Completion, Finished};
use super::transport::{Address, Memory, Spot};

/// A receive.
#[derive(Debug)]
pub struct Receive<M> {
    /// Its completion names this.
    pub context: usize,
    /// The memory for the message.
    pub memory: M,
    /// The sender, if it must be this one.
    pub source: Option<Address>,
    /// True for messages with tags.
    pub tagged: bool,
    /// The tag, except for the bits of `ignore`.
    pub tag: u64,
    /// Bits of the tag that may differ.
    pub ignore: u64,
    /// The memory is for several messages, until less than this is left of it.
    pub several: Option<usize>,
    /// False if the program wants to know only if it fails.
    pub wanted: bool,
}

/// The fate of the message that a look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Others may receive it.
    Leave,
    /// It is for the receive of this context.
    Take,
    /// It is forgotten.
    Discard,
}

/// The properties of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Envelope {
    pub(super) source: Address,
    pub(super) tagged: bool,
    pub(super) tag: u64,
    pub(super) data: Option<u64>,
    pub(super) total: usize,
}

/// The place of a message's data.
#[derive(Debug)]
pub(super) enum Body<M> {
    /// Here, as far as it has come.
    Heap(Vec<u8>),
    /// In the memory of a receive, as far as it has come.
    Placed(Place<M>),
    /// With its sender, which knows it by a number: where the device finds it, by rail.
    Remote { at: Vec<Spot>, id: u64 },
}

/// A message.
#[derive(Debug)]
pub(super) struct Message<M> {
    pub(super) envelope: Envelope,
    pub(super) body: Body<M>,
    /// The receive for a message that is still coming.
    pub(super) receiver: Option<Place<M>>,
    /// Bytes that have come.
    pub(super) got: usize,
    /// It is dropped when it is complete.
    pub(super) discarded: bool,
}

/// Memory for one message.
#[derive(Debug)]
pub(super) struct Place<M> {
    pub(super) context: usize,
    pub(super) memory: M,
    pub(super) wanted: bool,
    /// The number of the receive, if that is for several messages.
    several: Option<u64>,
}

/// A receive for several messages.
#[derive(Debug, Default)]
struct Several {
    /// Messages that are coming.
    users: usize,
    /// It takes no more.
    full: bool,
}

#[derive(Debug)]
struct Posted<M> {
    receive: Receive<M>,
    number: Option<u64>,
    used: bool,
}

/// Receives and messages that wait for each other, in order.
#[derive(Debug)]
pub(super) struct Matching<M> {
    posted: [VecDeque<Posted<M>>; 2],
    unexpected: [VecDeque<u64>; 2],
    pub(super) messages: HashMap<u64, Message<M>>,
    claimed: HashMap<usize, u64>,
    several: HashMap<u64, Several>,
    next: u64,
}

impl<M> Default for Matching<M> {
    fn default() -> Self {
        Self {
            posted: Default::default(),
            unexpected: Default::default(),
            messages: HashMap::new(),
            claimed: HashMap::new(),
            several: HashMap::new(),
            next: 0,
        }
    }
}

impl<M> Receive<M> {
    fn accepts(&self, envelope: &Envelope) -> bool {
        accepts(self.source, self.tag, self.ignore, envelope)
    }
}

fn accepts(source: Option<Address>, tag: u64, ignore: u64, envelope: &Envelope) -> bool {
    source.is_none_or(|source| source == envelope.source)
        && (!envelope.tagged || (envelope.tag ^ tag) & !ignore == 0)
}

impl<M: Memory> Matching<M> {
    /// Adds a receive that no message waits for.
    pub(super) fn post(&mut self, receive: Receive<M>) {
        let number = receive.several.map(|_| {
            self.next += 1;
            self.several.insert(self.next, Several::default());
            self.next
        });
        let queue = &mut self.posted[usize::from(receive.tagged)];
        queue.push_back(Posted { receive, number, used: false });
    }

    /// Takes memory of the first receive that accepts a message. `ended` gets the ends of receives
    /// for several messages that had too little room.
    pub(super) fn take_receive(
        &mut self,
        envelope: &Envelope,
        ended: &mut VecDeque<Completion>,
    ) -> Option<Place<M>> {
        let tagged = usize::from(envelope.tagged);
        loop {
            let queue = &mut self.posted[tagged];
            let at = queue.iter().position(|posted| posted.receive.accepts(envelope))?;
            let posted = queue.get_mut(at)?;
            let Some(least) = posted.receive.several else {
                let receive = queue.remove(at)?.receive;
                let Receive { context, memory, wanted, .. } = receive;
                return Some(Place { context, memory, wanted, several: None });
            };
            let room = posted.receive.memory.len();
            if envelope.total > room && posted.used {
                // The next one may have more room.
                let posted = queue.remove(at)?;
                self.fill(&posted, ended);
                continue;
            }
            posted.used = true;
            let memory = posted.receive.memory.split(envelope.total.min(room));
            let (context, wanted) = (posted.receive.context, posted.receive.wanted);
            let several = posted.number;
            let is_full = posted.receive.memory.len() < least;
            if let Some(several) = several.and_then(|number| self.several.get_mut(&number)) {
                several.users += 1;
                several.full = is_full;
            }
            if is_full {
                self.posted[tagged].remove(at);
            }
            return Some(Place { context, memory, wanted, several });
        }
    }

    /// A receive for several messages takes no more.
    fn fill(&mut self, posted: &Posted<M>, ended: &mut VecDeque<Completion>) {
        let Some(number) = posted.number else { return };
        let Some(several) = self.several.get_mut(&number) else { return };
        several.full = true;
        if several.users == 0 {
            self.several.remove(&number);
            let Receive { tagged, context, .. } = posted.receive;
            let released = Completion::new(Finished::Receive, tagged, context);
            ended.push_back(Completion { released: true, ..released });
        }
    }

    /// Ends the use of memory for a message. Returns whether the program gets the memory of its
    /// receive back.
    pub(super) fn end(&mut self, place: &Place<M>) -> bool {
        let Some(number) = place.several else { return false };
        let Some(several) = self.several.get_mut(&number) else { return false };
        several.users = several.users.saturating_sub(1);
        let released = several.full && several.users == 0;
        if released {
            self.several.remove(&number);
        }
        released
    }

    /// Returns memory for one message that is of a receive for one message.
    pub(super) fn place(receive: Receive<M>) -> Place<M> {
        let Receive { context, memory, wanted, .. } = receive;
        Place { context, memory, wanted, several: None }
    }

    /// Adds a message. Returns its number.
    pub(super) fn add(&mut self, envelope: Envelope, body: Body<M>, got: usize) -> u64 {
        self.next += 1;
        let number = self.next;
        if !matches!(body, Body::Placed(_)) {
            self.unexpected[usize::from(envelope.tagged)].push_back(number);
        }
        let message = Message { envelope, body, receiver: None, got, discarded: false };
        self.messages.insert(number, message);
        number
    }

    /// Finds the first waiting message that matches this receive.
    pub(super) fn find(
        &self,
        tagged: bool,
        source: Option<Address>,
        tag: u64,
        ignore: u64,
    ) -> Option<(usize, u64)> {
        let queue = &self.unexpected[usize::from(tagged)];
        let fits = |number: &u64| {
            let message = self.messages.get(number);
            message.is_some_and(|message| accepts(source, tag, ignore, &message.envelope))
        };
        let at = queue.iter().position(fits)?;
        Some((at, *queue.get(at)?))
    }

    /// Takes a message from those that wait; it is still known.
    pub(super) fn take(&mut self, tagged: bool, at: usize) {
        self.unexpected[usize::from(tagged)].remove(at);
    }

    /// Keeps a message for the receive with this context.
    pub(super) fn claim(&mut self, context: usize, number: u64) {
        self.claimed.insert(context, number);
    }

    /// Returns the message that is kept for a context.
    pub(super) fn claimed(&mut self, context: usize) -> Option<u64> {
        self.claimed.remove(&context)
    }

    /// Removes a receive. Returns whether it was there.
    pub(super) fn cancel(&mut self, context: usize) -> Option<Receive<M>> {
        for queue in &mut self.posted {
            let at = queue.iter().position(|posted| posted.receive.context == context);
            if let Some(posted) = at.and_then(|at| queue.remove(at)) {
                if let Some(number) = posted.number {
                    self.several.remove(&number);
                }
                return Some(posted.receive);
            }
        }
        None
    }

    /// Takes a receive that only this peer could end.
    pub(super) fn take_directed(&mut self, source: Address) -> Option<Receive<M>> {
        for queue in &mut self.posted {
            let at = queue.iter().position(|posted| posted.receive.source == Some(source));
            if let Some(posted) = at.and_then(|at| queue.remove(at)) {
                return Some(posted.receive);
            }
        }
        None
    }
}
