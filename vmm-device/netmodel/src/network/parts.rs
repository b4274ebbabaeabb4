//! A network in parts, each of which a process runs.
//!
//! All of these processes do the same: they inject the same messages and run the network to the
//! same times. Each has only the nodes of its own part. At the end of each stretch of time they
//! exchange what goes to nodes of other parts, what has become of messages, and when the next event
//! is due, so that each knows of messages what a single process would know. What happens in a
//! window is invisible to other nodes until its end, so the result is the same to the last bit.

use std::{fmt, io};

use tofu_abi::TniId;
use tofu_abi::topology::{NodeId, Port};
use tofu_fabric::{Ps, TNIS};
use tofu_links::{Dllp, Seq, VCS};

use super::agenda::NEVER;
use super::broken::Which;
use super::frame::{Far, Frame, PORTS, SLOTS};
use super::mail::{Credit, Mail, Notice, Said, Told};
use super::steps::Steps;

/// Exchanges messages between the parts of a network.
pub trait Exchange: fmt::Debug + Send {
    /// Sends each message to the part of its index, and replaces it with that part's message to
    /// this one. The message at this part's own index stays as it is.
    ///
    /// # Errors
    /// If one of the other parts is gone. No further round is possible then.
    fn round(&mut self, messages: &mut [Vec<u8>]) -> io::Result<()>;
}

/// The part of a network that this process runs.
#[derive(Debug)]
pub struct Share {
    /// Its number, from 0.
    pub own: u32,
    /// How many parts there are.
    pub of: u32,
    /// How to reach the others.
    pub exchange: Box<dyn Exchange>,
}

/// What a network has counted on all of its links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// How many times a frame was sent over a link.
    pub hops: u64,
    /// Bytes of routing headers and TLPs that the busiest direction of a link has carried.
    pub busiest_bytes: u64,
    /// Frames with a wrong link CRC.
    pub lcrc_errors: u64,
    /// How often a sender repeated frames for lack of an acknowledgement.
    pub ack_timeouts: u64,
}

impl Totals {
    /// Combines the totals of two sets of links.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            hops: self.hops + other.hops,
            busiest_bytes: self.busiest_bytes.max(other.busiest_bytes),
            lcrc_errors: self.lcrc_errors + other.lcrc_errors,
            ack_timeouts: self.ack_timeouts + other.ack_timeouts,
        }
    }

    fn words(self) -> [u64; 4] {
        [self.hops, self.busiest_bytes, self.lcrc_errors, self.ack_timeouts]
    }

    fn of_words([hops, busiest_bytes, lcrc_errors, ack_timeouts]: [u64; 4]) -> Self {
        Self { hops, busiest_bytes, lcrc_errors, ack_timeouts }
    }
}

/// When the next events of some slabs are due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Next {
    /// Other than notices and credits.
    pub(super) next_at: Ps,
    pub(super) credits_at: Ps,
    pub(super) notices_at: Ps,
}

impl Next {
    pub(super) const NEVER: Self = Self { next_at: NEVER, credits_at: NEVER, notices_at: NEVER };

    fn or(self, other: Self) -> Self {
        Self {
            next_at: self.next_at.min(other.next_at),
            credits_at: self.credits_at.min(other.credits_at),
            notices_at: self.notices_at.min(other.notices_at),
        }
    }
}

/// How nodes are divided among parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Nodes of the machine, nodes of an engine, and engines of a part.
    pub(super) total: u32,
    pub(super) nodes: u32,
    pub(super) engines: u32,
}

impl Layout {
    fn part_of(&self, engine: u32) -> u32 {
        engine / self.engines
    }

    /// Whether a node of this engine has such a slot, and the slot is a port's.
    fn has_port(&self, engine: u32, slot: u16) -> bool {
        let (node, n) = (u64::from(slot) / SLOTS as u64, usize::from(slot) % SLOTS);
        let first = u64::from(engine) * u64::from(self.nodes);
        n < PORTS && node < u64::from(self.nodes) && first + node < u64::from(self.total)
    }
}

/// The other parts.
#[derive(Debug)]
pub(super) struct Others {
    own: usize,
    exchange: Box<dyn Exchange>,
    /// What to send to each part, and then what it has sent.
    messages: Vec<Vec<u8>>,
    layout: Layout,
    /// How many messages other than responses wait at TNIs of other parts.
    backlogs: Vec<[u32; TNIS]>,
    /// What has happened to messages in other parts and is still to be reported.
    pub(super) told: Vec<Told>,
    /// Empty mail, kept for its memory.
    pub(super) spare: Vec<Mail>,
    /// When the next event is due in any part.
    pub(super) next: Next,
    /// Whether the network has stopped, and why, until somebody asks.
    failed: bool,
    failure: Option<io::Error>,
}

impl Others {
    pub(super) fn new(share: Share, layout: Layout) -> Self {
        Self {
            own: share.own as usize,
            exchange: share.exchange,
            messages: (0..share.of).map(|_| Vec::new()).collect(),
            layout,
            backlogs: vec![[0; TNIS]; layout.total as usize],
            told: Vec::new(),
            spare: Vec::new(),
            next: Next::NEVER,
            failed: false,
            failure: None,
        }
    }

    pub(super) const fn layout(&self) -> Layout {
        self.layout
    }

    pub(super) const fn has_failed(&self) -> bool {
        self.failed
    }

    pub(super) const fn take_failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }

    /// The memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.messages.iter().map(Vec::capacity).sum::<usize>() + size_of_val(&*self.backlogs)
    }

    pub(super) fn backlog(&mut self, node: NodeId, tni: TniId) -> Option<&mut u32> {
        self.backlogs.get_mut(node.index())?.get_mut(tni.index())
    }

    pub(super) fn backlog_of(&self, node: NodeId, tni: TniId) -> Option<u32> {
        self.backlogs.get(node.index())?.get(tni.index()).copied()
    }

    /// Exchanges the messages. Returns false if the network has stopped.
    fn round(&mut self) -> bool {
        if !self.failed
            && let Err(error) = self.exchange.round(&mut self.messages)
        {
            self.fail(error);
        }
        !self.failed
    }

    fn fail(&mut self, error: io::Error) {
        self.failed = true;
        self.failure.get_or_insert(error);
    }

    /// Stops the network because a part's message makes no sense.
    fn give_up(&mut self, part: usize) {
        let why = format!("part {part} says of the network what cannot be");
        self.fail(io::Error::new(io::ErrorKind::InvalidData, why));
    }

    fn clear(&mut self) {
        self.messages.iter_mut().for_each(Vec::clear);
    }

    /// The least value of all parts.
    pub(super) fn least(&mut self, own: Ps) -> Ps {
        let words = self.words(Some([own])).into_iter().map(|[ps]| ps);
        words.fold(own, Ps::min)
    }

    /// The totals of all parts together.
    pub(super) fn totals(&mut self, own: Totals) -> Totals {
        let words = self.words(Some(own.words())).into_iter().map(Totals::of_words);
        words.fold(own, Totals::and)
    }

    /// Shares with all parts what only one of them knows.
    pub(super) fn known<const N: usize>(&mut self, own: Option<[u64; N]>) -> Option<[u64; N]> {
        let theirs = self.words(own);
        own.or_else(|| theirs.last().copied())
    }

    /// Sets the bits that any part has set.
    pub(super) fn any(&mut self, own: &mut [u64]) {
        for own in own {
            *own = self.words(Some([*own])).into_iter().fold(*own, |all, [bits]| all | bits);
        }
    }

    /// What each other part says, leaving out those that say nothing.
    fn words<const N: usize>(&mut self, own: Option<[u64; N]>) -> Vec<[u64; N]> {
        self.clear();
        for message in &mut self.messages {
            own.iter().flatten().for_each(|word| message.extend(word.to_le_bytes()));
        }
        if !self.round() {
            return Vec::new();
        }
        let mut all = Vec::new();
        for part in (0..self.messages.len()).filter(|part| *part != self.own) {
            let mut from = Reader(&self.messages[part]);
            if from.0.is_empty() {
                continue;
            }
            let mut words = [0; N];
            let read = words.iter_mut().try_for_each(|word| {
                *word = from.u64()?;
                Some(())
            });
            match read.filter(|()| from.0.is_empty()) {
                Some(()) => all.push(words),
                None => {
                    self.give_up(part);
                    return Vec::new();
                }
            }
        }
        all
    }

    /// Begins the message to all others: what has happened here, and when the next event is due.
    pub(super) fn begin(&mut self, next: Next, told: &[&[Told]]) {
        self.clear();
        self.next = next;
        let mut all = Vec::new();
        for word in [next.next_at, next.credits_at, next.notices_at] {
            all.extend(word.to_le_bytes());
        }
        let at = all.len();
        all.extend([0; 4]);
        let mut count = 0u32;
        for told in told.iter().copied().flatten() {
            count += u32::from(put_told(&mut all, told));
        }
        all[at..at + 4].copy_from_slice(&count.to_le_bytes());
        for (part, message) in self.messages.iter_mut().enumerate() {
            if part != self.own {
                message.extend_from_slice(&all);
            }
        }
    }

    /// Adds mail for an engine of another part to its message, and empties the mail.
    pub(super) fn post(&mut self, engine: u32, mail: &mut Mail) {
        let part = self.layout.part_of(engine) as usize;
        if let Some(message) = self.messages.get_mut(part) {
            put_mail(message, engine, mail);
        }
        mail.frames.clear();
        mail.credits.clear();
        mail.dllps.clear();
        (mail.soonest, mail.credits_at) = (NEVER, NEVER);
    }

    /// Exchanges the messages. `take` receives the mail for engines of this part. The window ends
    /// at `end`.
    pub(super) fn end(&mut self, end: Ps, mut take: impl FnMut(u32, Mail)) {
        let mut next = std::mem::replace(&mut self.next, Next::NEVER);
        if !self.round() {
            return;
        }
        let rules = Rules { layout: self.layout, own: self.own as u32, end };
        for part in (0..self.messages.len()).filter(|part| *part != self.own) {
            let message = std::mem::take(&mut self.messages[part]);
            let Self { told, spare, .. } = self;
            let its = rules.read(part as u32, &message, told, |engine, read| {
                let mut mail = spare.pop().unwrap_or_else(Mail::new);
                let whole = read(&mut mail);
                take(engine, mail);
                whole
            });
            self.messages[part] = message;
            match its {
                Some(its) => next = next.or(its),
                None => {
                    self.give_up(part);
                    return;
                }
            }
        }
        self.next = next;
    }
}

/// The other end of a link, as words.
pub(super) fn far_words(far: Far) -> [u64; 2] {
    [far.engine.into(), far.slot.into()]
}

/// Inverse of [`far_words`]. `None` if there is no such place.
pub(super) fn far_of([engine, slot]: [u64; 2], layout: Option<Layout>) -> Option<Far> {
    let far = Far { engine: engine.try_into().ok()?, slot: slot.try_into().ok()? };
    layout.is_none_or(|layout| layout.has_port(far.engine, far.slot)).then_some(far)
}

/// The state of a receiver, as words.
pub(super) fn receiver_words(expected: Seq, freed: [u16; VCS]) -> [u64; 1 + VCS] {
    let mut words = [expected.get().into(); 1 + VCS];
    words[1..].iter_mut().zip(freed).for_each(|(word, rows)| *word = rows.into());
    words
}

/// Inverse of [`receiver_words`].
pub(super) fn receiver_of(words: [u64; 1 + VCS]) -> (Seq, [u16; VCS]) {
    (Seq::new(words[0] as u16), std::array::from_fn(|vc| words[1 + vc] as u16))
}

/// Writes a notice if others need it. Returns whether they do.
fn put_told(to: &mut Vec<u8>, told: &Told) -> bool {
    let (kind, a, b, token) = match told.notice {
        Notice::Delivered { tni, token } => (0, tni.get(), 0, token),
        Notice::Left { tni, token, request } => (1, tni.get(), u8::from(request), token),
        Notice::Discarded { port, token, which } => {
            (2, port.map_or(u8::MAX, |port| port.index() as u8), which as u8, token)
        }
        Notice::Failed { port } => (3, port.index() as u8, 0, 0),
        // Observers see only those of their own part.
        Notice::Hop { .. } | Notice::Again { .. } | Notice::Said { .. } => return false,
    };
    to.extend(told.at.to_le_bytes());
    to.extend(told.what.to_le_bytes());
    to.extend([kind, a, b]);
    to.extend(token.to_le_bytes());
    true
}

fn put_mail(to: &mut Vec<u8>, engine: u32, mail: &Mail) {
    to.extend(engine.to_le_bytes());
    for count in [mail.frames.len(), mail.credits.len(), mail.dllps.len()] {
        to.extend((count as u32).to_le_bytes());
    }
    for (slot, frame) in &mail.frames {
        to.extend(slot.to_le_bytes());
        let Frame { token, arrived, next, wire, bytes, number, steps, rows, flags, vc, dst_tni } =
            *frame;
        to.extend(token.to_le_bytes());
        to.extend(arrived.to_le_bytes());
        for word in [next, wire, number] {
            to.extend(word.to_le_bytes());
        }
        to.extend(bytes.to_le_bytes());
        to.extend(steps.to_bytes());
        to.extend([rows, flags, vc, dst_tni.get()]);
    }
    for Credit { at, slot, vc, rows } in &mail.credits {
        to.extend(at.to_le_bytes());
        to.extend(slot.to_le_bytes());
        to.extend([*vc, *rows]);
    }
    for (at, slot, Said { dllp, counted }) in &mail.dllps {
        to.extend(at.to_le_bytes());
        to.extend(slot.to_le_bytes());
        to.extend(dllp.to_bytes());
        to.push((*counted).into());
    }
}

/// Reads numbers off a message.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn u8(&mut self) -> Option<u8> {
        self.bytes().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn flag(&mut self) -> Option<bool> {
        self.u8().filter(|byte| *byte < 2).map(|byte| byte == 1)
    }
}

/// What messages from other parts are checked against.
struct Rules {
    layout: Layout,
    own: u32,
    /// The end of the window: nothing sent in it reaches another node before that.
    end: Ps,
}

impl Rules {
    /// Reads a part's message. Returns `None` if it is invalid.
    fn read(
        &self,
        part: u32,
        message: &[u8],
        told: &mut Vec<Told>,
        mut take: impl FnMut(u32, &mut dyn FnMut(&mut Mail) -> Option<()>) -> Option<()>,
    ) -> Option<Next> {
        let mut from = Reader(message);
        let (next_at, credits_at, notices_at) = (from.u64()?, from.u64()?, from.u64()?);
        for _ in 0..from.u32()? {
            told.push(self.told(part, &mut from)?);
        }
        while !from.0.is_empty() {
            let engine = from.u32()?;
            (self.layout.part_of(engine) == self.own).then_some(())?;
            take(engine, &mut |mail| self.mail(engine, &mut from, mail))?;
        }
        Some(Next { next_at, credits_at, notices_at })
    }

    fn told(&self, part: u32, from: &mut Reader<'_>) -> Option<Told> {
        let (at, what, [kind, a, b]) = (from.u64()?, from.u32()?, from.bytes()?);
        let token = from.u64()?;
        let tni = TniId::new(a);
        let port = Port::ALL.get(usize::from(a)).copied();
        let flag = b == 1;
        let notice = match kind {
            0 => Notice::Delivered { tni: tni?, token },
            1 => Notice::Left { tni: tni?, token, request: flag },
            2 => {
                let which = [Which::Earlier, Which::Last, Which::Only].get(usize::from(b));
                Notice::Discarded { port, token, which: *which? }
            }
            3 => Notice::Failed { port: port? },
            _ => return None,
        };
        let told = Told { at, what, notice };
        let node = told.node().0;
        let its = node < self.layout.total && self.layout.part_of(node / self.layout.nodes) == part;
        its.then_some(told)
    }

    fn mail(&self, engine: u32, from: &mut Reader<'_>, mail: &mut Mail) -> Option<()> {
        let [frames, credits, dllps] = [from.u32()?, from.u32()?, from.u32()?];
        let slot =
            |from: &mut Reader<'_>| from.u16().filter(|slot| self.layout.has_port(engine, *slot));
        let after = |at: &Ps| *at >= self.end && *at != NEVER;
        for _ in 0..frames {
            let at = slot(from)?;
            let (token, arrived) = (from.u64()?, from.u64()?);
            let [next, wire, number] = [from.u32()?, from.u32()?, from.u32()?];
            let bytes = from.u16()?;
            let steps = Steps::from_bytes(from.bytes()?)?;
            let [rows, flags, vc, dst_tni] = from.bytes()?;
            let dst_tni = TniId::new(dst_tni)?;
            (usize::from(vc) < VCS && after(&arrived)).then_some(())?;
            mail.soonest = mail.soonest.min(arrived);
            let frame = Frame {
                token,
                arrived,
                next,
                wire,
                bytes,
                number,
                steps,
                rows,
                flags,
                vc,
                dst_tni,
            };
            mail.frames.push((at, frame));
        }
        for _ in 0..credits {
            let at = from.u64().filter(after)?;
            let slot = slot(from)?;
            let [vc, rows] = from.bytes()?;
            (usize::from(vc) < VCS).then_some(())?;
            mail.credits_at = mail.credits_at.min(at);
            mail.credits.push(Credit { at, slot, vc, rows });
        }
        for _ in 0..dllps {
            let at = from.u64().filter(after)?;
            let slot = slot(from)?;
            let dllp = Dllp::from_bytes(&from.bytes()?)?;
            let counted = from.flag()?;
            mail.soonest = mail.soonest.min(at);
            mail.dllps.push((at, slot, Said { dllp, counted }));
        }
        Some(())
    }
}
