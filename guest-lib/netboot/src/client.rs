//! The node's end: questions that it repeats until there is an answer, and files.

use alloc::collections::VecDeque;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use sha2::{Digest, Sha256};

use crate::wire::{BLOCK, Envelope, FileRole, Manifest, Message, Range, parse};
use thiserror::Error;

/// The most answers that may be in flight to a node: with 9 packets each, they fit the packet
/// buffers that a node should have.
const WINDOW_MAX: usize = 16;
const WINDOW_START: usize = 4;
/// One alone would make each loss a wait.
const WINDOW_MIN: usize = 2;
/// The progress of a file is tracked in units of this many bytes. With the headers in front, a unit
/// fits one packet.
const UNIT: usize = 1 << 10;
/// Units of the longest answer.
const LENGTH_MAX: u32 = (BLOCK / UNIT) as u32;
/// A question counts as lost when this many later ones have been answered.
const REORDERED: u32 = 8;
/// After this many timeouts in a row the server may be gone.
const SILENCE: u32 = 4;
/// The least, greatest and initial retransmission timeout of a question, in nanoseconds.
const RTO_MIN_NS: u64 = 20_000_000;
const RTO_MAX_NS: u64 = 500_000_000;
const RTO_START_NS: u64 = 200_000_000;

/// The settings of a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// A number that this boot has and others, of this node too, most likely do not.
    pub session: u32,
    /// The longest silence of a server, in nanoseconds.
    pub patience_ns: u64,
}

/// The reason why nothing is booted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// The server has not answered for so long, in nanoseconds.
    #[error(
        "the boot server has not answered for {}.{} s", .0 / 1_000_000_000, .0 / 100_000_000 % 10
    )]
    Silent(u64),
    /// The server refuses, in its own words.
    #[error("the boot server refuses: {0}")]
    Refused(String),
    /// The fetched bytes differ from the manifest.
    #[error("the {0} has another SHA-256 than the boot server announced, and is not started")]
    WrongHash(FileRole),
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Poll {
    /// Send this to the server, and call again.
    Send(Vec<u8>),
    /// Wait for a message, until this time at most.
    Wait(u64),
    /// The answer, or the whole file, has arrived.
    Ready,
    /// It is over.
    Failed(Failure),
}

/// Something that a node does with a server.
pub trait Task {
    /// The next step now.
    fn poll(&mut self, now_ns: u64) -> Poll;

    /// Takes a message. Anything that is not an answer to an open question is ignored.
    fn receive(&mut self, bytes: &[u8], now_ns: u64);

    /// Returns true if the answer, or the whole file, has arrived.
    fn is_done(&self) -> bool;
}

/// A question that is repeated until there is an answer: less and less often, and not for ever.
#[derive(Clone, Debug)]
pub struct Ask {
    bytes: Vec<u8>,
    envelope: Envelope,
    start_ns: u64,
    patience_ns: u64,
    next_ns: u64,
    pause_ns: u64,
    answer: Option<Result<Option<Manifest>, Failure>>,
}

impl Ask {
    /// Asks for the manifest to boot.
    pub fn manifest(settings: Settings, now_ns: u64) -> Self {
        Self::new(settings, 0, &Message::Discover, now_ns)
    }

    /// Sends a report, which the server acknowledges.
    pub fn report(settings: Settings, message: &Message<'_>, now_ns: u64) -> Self {
        Self::new(settings, u32::MAX, message, now_ns)
    }

    fn new(settings: Settings, tag: u32, message: &Message<'_>, now_ns: u64) -> Self {
        let envelope = Envelope { session: settings.session, tag };
        Self {
            bytes: message.emit(envelope),
            envelope,
            start_ns: now_ns,
            patience_ns: settings.patience_ns,
            next_ns: now_ns,
            pause_ns: RTO_START_NS / 4,
            answer: None,
        }
    }

    /// The manifest that came.
    pub fn into_manifest(self) -> Option<Manifest> {
        self.answer?.ok()?
    }
}

impl Task for Ask {
    fn poll(&mut self, now_ns: u64) -> Poll {
        match &self.answer {
            Some(Ok(_)) => return Poll::Ready,
            Some(Err(failure)) => return Poll::Failed(failure.clone()),
            None => {}
        }
        let waited = now_ns.saturating_sub(self.start_ns);
        if waited >= self.patience_ns {
            return Poll::Failed(Failure::Silent(waited));
        }
        if now_ns < self.next_ns {
            return Poll::Wait(self.next_ns.min(self.start_ns.saturating_add(self.patience_ns)));
        }
        self.next_ns = now_ns.saturating_add(self.pause_ns);
        self.pause_ns = (2 * self.pause_ns).min(RTO_MAX_NS);
        Poll::Send(self.bytes.clone())
    }

    fn receive(&mut self, bytes: &[u8], _: u64) {
        let Ok((envelope, message)) = parse(bytes) else { return };
        if envelope != self.envelope || self.answer.is_some() {
            return;
        }
        self.answer = match message {
            Message::Offer(manifest) => Some(Ok(Some(manifest))),
            Message::Ack => Some(Ok(None)),
            Message::Refused(_, why) => Some(Err(Failure::Refused(why.to_string()))),
            _ => None,
        };
    }

    fn is_done(&self) -> bool {
        matches!(self.answer, Some(Ok(_)))
    }
}

/// Units that follow one another.
#[derive(Clone, Copy, Debug)]
struct Units {
    first: u32,
    count: u32,
}

/// A question that has no answer yet.
#[derive(Clone, Copy, Debug)]
struct Flight {
    tag: u32,
    units: Units,
    sent_ns: u64,
    /// It is a retransmission, so its answer gives no sample of the round-trip time.
    again: bool,
}

/// A file on its way.
#[derive(Debug)]
pub struct Fetch<'a> {
    settings: Settings,
    manifest: u32,
    file: u16,
    role: FileRole,
    expected: [u8; 32],
    buf: &'a mut [u8],
    /// Units that are there, one bit each.
    have: Vec<u64>,
    units: u32,
    done: u32,
    /// Units from the start that were hashed.
    hashed: u32,
    sha: Sha256,
    next: u32,
    lost: VecDeque<Units>,
    /// The most units that a question requests. All packets of an answer must arrive, so over a
    /// link that loses many packets only short answers arrive.
    length: u32,
    /// In the order of their tags.
    flights: VecDeque<Flight>,
    tag: u32,
    window: usize,
    /// Answers since the window last grew.
    credit: usize,
    /// The window shrinks once for everything in flight at a time.
    shrunk_at: u32,
    rtt_ns: Option<(u64, u64)>,
    backoff: u32,
    progress_ns: u64,
    repeated: u64,
    failure: Option<Failure>,
}

impl<'a> Fetch<'a> {
    /// Begins to fetch the file of this role into `buf`. `None` if the manifest has no such file,
    /// or `buf` is not of its size.
    pub fn new(
        settings: Settings,
        manifest: &Manifest,
        role: FileRole,
        buf: &'a mut [u8],
        now_ns: u64,
    ) -> Option<Self> {
        let (file, info) = manifest.file(role)?;
        if info.size != buf.len() as u64 || !manifest.is_valid() {
            return None;
        }
        let units = buf.len().div_ceil(UNIT) as u32;
        Some(Self {
            settings,
            manifest: manifest.id,
            file,
            role,
            expected: info.sha256,
            buf,
            have: vec![0; (units as usize).div_ceil(64)],
            units,
            done: 0,
            hashed: 0,
            sha: Sha256::new(),
            next: 0,
            lost: VecDeque::new(),
            length: LENGTH_MAX,
            flights: VecDeque::new(),
            tag: u32::from(file) << 24,
            window: WINDOW_START,
            credit: 0,
            shrunk_at: 0,
            rtt_ns: None,
            backoff: 0,
            progress_ns: now_ns,
            repeated: 0,
            failure: None,
        })
    }

    /// The fetched part, in percent.
    pub fn percent(&self) -> u8 {
        (u64::from(self.done) * 100 / u64::from(self.units.max(1))) as u8
    }

    /// Questions that were retransmitted.
    pub fn repeated(&self) -> u64 {
        self.repeated
    }

    fn has(&self, unit: u32) -> bool {
        self.have[unit as usize / 64] >> (unit % 64) & 1 != 0
    }

    fn bytes_of(&self, units: Units) -> core::ops::Range<usize> {
        let start = units.first as usize * UNIT;
        start..(start + units.count as usize * UNIT).min(self.buf.len())
    }

    /// The time limit for an answer.
    fn timeout_ns(&self) -> u64 {
        let base = self.rtt_ns.map_or(RTO_START_NS, |(mean, spread)| mean + 4 * spread);
        (base.max(RTO_MIN_NS) << self.backoff.min(8)).min(RTO_MAX_NS)
    }

    fn shrink(&mut self) {
        self.length = (self.length / 2).max(1);
        // Short answers cost little, and some arrive only if there are many of them. A server that
        // seems to be gone gets few questions.
        let least = match self.backoff {
            ..=SILENCE => WINDOW_MIN.max(WINDOW_MAX / self.length as usize),
            _ => WINDOW_MIN,
        };
        self.window = (self.window / 2).max(least);
        self.credit = 0;
        self.shrunk_at = self.tag;
    }

    /// Returns the next range to request, and whether it was requested before.
    fn choose(&mut self) -> Option<(Units, bool)> {
        while let Some(Units { first, count }) = self.lost.pop_front() {
            let end = first + count;
            let Some(first) = (first..end).find(|&unit| !self.has(unit)) else { continue };
            let count = self.length.min(end - first);
            if first + count < end {
                self.lost.push_front(Units { first: first + count, count: end - first - count });
            }
            return Some((Units { first, count }, true));
        }
        let first = self.next;
        let count = self.length.min(self.units - first);
        self.next += count;
        (count > 0).then_some((Units { first, count }, false))
    }

    fn take(&mut self, tag: u32, range: Range, data: &[u8], now_ns: u64) {
        if range.manifest != self.manifest || range.file != self.file {
            return;
        }
        // Only whole units are requested.
        let Ok(start) = usize::try_from(range.offset) else { return };
        let Some(end) = start.checked_add(data.len()).filter(|&end| end <= self.buf.len()) else {
            return;
        };
        if !start.is_multiple_of(UNIT) || !(end.is_multiple_of(UNIT) || end == self.buf.len()) {
            return;
        }
        let at = self.flights.iter().position(|flight| flight.tag == tag);
        if let Some(flight) = at.and_then(|at| self.flights.remove(at)) {
            // An answer may contain less than was requested, or other units.
            self.lost.push_back(flight.units);
            if !flight.again {
                self.measure(now_ns.saturating_sub(flight.sent_ns));
            }
            while let Some(first) = self.flights.front()
                && tag.wrapping_sub(first.tag) as i32 > REORDERED as i32
            {
                let lost = *first;
                self.flights.pop_front();
                self.lost.push_back(lost.units);
                if lost.tag.wrapping_sub(self.shrunk_at) as i32 >= 0 {
                    self.shrink();
                }
            }
        }
        let before = self.done;
        for unit in (start / UNIT) as u32..end.div_ceil(UNIT) as u32 {
            if self.has(unit) {
                continue;
            }
            let place = self.bytes_of(Units { first: unit, count: 1 });
            self.buf[place.clone()].copy_from_slice(&data[place.start - start..place.end - start]);
            self.have[unit as usize / 64] |= 1 << (unit % 64);
            self.done += 1;
        }
        if self.done == before {
            return;
        }
        (self.backoff, self.progress_ns) = (0, now_ns);
        self.credit += 1;
        if self.credit >= self.window {
            self.window = (self.window + 1).min(WINDOW_MAX);
            self.length = (2 * self.length).min(LENGTH_MAX);
            self.credit = 0;
        }
        // As it comes, so that there is nothing left to wait for at the end.
        while self.hashed < self.units && self.has(self.hashed) {
            let bytes = self.bytes_of(Units { first: self.hashed, count: 1 });
            self.sha.update(&self.buf[bytes]);
            self.hashed += 1;
        }
    }

    /// Smoothed time and its spread, as in RFC 6298.
    fn measure(&mut self, ns: u64) {
        self.rtt_ns = Some(match self.rtt_ns {
            None => (ns, ns / 2),
            Some((mean, spread)) => ((7 * mean + ns) / 8, (3 * spread + mean.abs_diff(ns)) / 4),
        });
    }

    /// Compares what was fetched with the manifest.
    ///
    /// # Errors
    ///
    /// [`Failure::WrongHash`], also if a part is missing.
    pub fn finish(self) -> Result<(), Failure> {
        let hash: [u8; 32] = self.sha.finalize().into();
        if self.hashed == self.units && hash == self.expected {
            Ok(())
        } else {
            Err(Failure::WrongHash(self.role))
        }
    }
}

impl Task for Fetch<'_> {
    fn poll(&mut self, now_ns: u64) -> Poll {
        if let Some(failure) = &self.failure {
            return Poll::Failed(failure.clone());
        }
        if self.done == self.units {
            return Poll::Ready;
        }
        let silent = now_ns.saturating_sub(self.progress_ns);
        if silent >= self.settings.patience_ns {
            return Poll::Failed(Failure::Silent(silent));
        }
        let timeout = self.timeout_ns();
        let mut late = false;
        while let Some(first) = self.flights.front()
            && now_ns.saturating_sub(first.sent_ns) >= timeout
        {
            self.lost.push_back(first.units);
            self.flights.pop_front();
            late = true;
        }
        if late {
            self.backoff += 1;
            self.shrink();
        }
        if self.flights.len() < self.window
            && let Some((units, again)) = self.choose()
        {
            let bytes = self.bytes_of(units);
            let (tag, file, manifest) = (self.tag, self.file, self.manifest);
            self.tag = tag.wrapping_add(1);
            self.repeated += u64::from(again);
            self.flights.push_back(Flight { tag, units, sent_ns: now_ns, again });
            let range =
                Range { manifest, file, length: bytes.len() as u16, offset: bytes.start as u64 };
            let envelope = Envelope { session: self.settings.session, tag };
            return Poll::Send(Message::Read(range).emit(envelope));
        }
        let late = self.flights.front().map_or(now_ns, |first| first.sent_ns + timeout);
        Poll::Wait(late.min(self.progress_ns.saturating_add(self.settings.patience_ns)))
    }

    fn receive(&mut self, bytes: &[u8], now_ns: u64) {
        let Ok((envelope, message)) = parse(bytes) else { return };
        if envelope.session != self.settings.session || self.failure.is_some() {
            return;
        }
        match message {
            Message::Data(range, data) => self.take(envelope.tag, range, data, now_ns),
            Message::Refused(_, why)
                if self.flights.iter().any(|flight| flight.tag == envelope.tag) =>
            {
                self.failure = Some(Failure::Refused(why.to_string()));
            }
            _ => {}
        }
    }
    fn is_done(&self) -> bool {
        self.done == self.units
    }
}
