//! Traces: the steps of all commands of a machine, with their times.
//!
//! Each thread that drives devices writes into a ring of its own, without a lock. A reader that is
//! too slow loses records: overwritten records are counted as lost. Nothing is written while there
//! is no reader.

mod ring;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use tofu_abi::Coords;
use tofu_fabric::NodeId;
use tofu_icc::{Event, Subject};
use tofu_sync::{Ticks, lock};

use ring::{Ring, WORDS, Words};

/// Number of records in the ring of one of the first [`BIG_RINGS`] threads, and of another thread.
const BIG: usize = 32768;
const SMALL: usize = 1024;
/// Number of threads with a big ring: engines, and vCPUs of small machines.
const BIG_RINGS: usize = 16;
/// Number of threads with a ring. Records of further threads are not kept.
const MAX_RINGS: usize = 4096;
/// Number of reasons that are kept.
const REASONS: usize = 1024;
/// Age at which a record is read, in nanoseconds. By then, earlier records of other threads are in
/// their rings, too.
const SETTLED_NS: f64 = 10e6;

/// An event at a node.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Time of the host's clock, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The node.
    pub node: NodeId,
    /// The thread, by the number of its ring.
    pub thread: u32,
    /// The event.
    pub what: What,
}

/// The kinds of events at a node.
#[derive(Clone, Copy, Debug)]
pub enum What {
    /// A step of a command. The time in [`Event::Served`] is like [`Record::time_ns`].
    Command(Event),
    /// The device has sent the message of this vector, or has requested it.
    Interrupt(u16),
    /// The guest has accessed a register of BAR0 in a way that the device notices.
    Access {
        /// Offset in BAR0, in bytes.
        offset: u64,
        /// True if it was a write.
        write: bool,
    },
}

/// The reason why a command has failed.
#[derive(Clone, Debug)]
pub struct Reason {
    /// The command.
    pub subject: Subject,
    /// The node that reports the failure.
    pub by: Coords,
    /// The reason in words.
    pub why: String,
}

thread_local! {
    /// The number of the recorder that this thread writes for, and the index of the thread's ring.
    /// Not part of [`OWN`], because a thread-local without a destructor needs fewer instructions.
    static HERE: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
    /// The ring of this thread, until it ends or writes for another recorder.
    static OWN: RefCell<Option<Own>> = const { RefCell::new(None) };
}

struct Own(Arc<Ring>);

impl Drop for Own {
    fn drop(&mut self) {
        HERE.set((0, 0));
        self.0.leave();
    }
}

/// Stores the events that nodes report.
pub struct Recorder {
    /// Tells the recorder from others in this process; not 0.
    id: u64,
    on: AtomicBool,
    ticks: Ticks,
    /// When `ticks` began, in nanoseconds since 1970.
    epoch_ns: u64,
    /// A place for each possible ring. Allocated at the first record.
    rings: OnceLock<Box<[OnceLock<Arc<Ring>>]>>,
    /// Number of rings.
    count: Mutex<usize>,
    /// The number of the next reason, and the last reasons.
    reasons: Mutex<(u64, VecDeque<Reason>)>,
    readers: Mutex<u32>,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let ticks = Ticks::new();
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            id: NEXT.fetch_add(1, Relaxed),
            on: AtomicBool::new(false),
            ticks,
            epoch_ns: epoch.as_nanos() as u64,
            rings: OnceLock::new(),
            count: Mutex::new(0),
            reasons: Mutex::default(),
            readers: Mutex::new(0),
        }
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    #[inline]
    pub(crate) fn stamp(&self) -> u64 {
        self.ticks.now()
    }

    /// Converts ticks to nanoseconds since 1970; `rate` is in nanoseconds per tick.
    fn time_ns(&self, ticks: u64, rate: f64) -> u64 {
        let since = ticks.saturating_sub(self.ticks.first());
        self.epoch_ns + (since as f64 * rate) as u64
    }

    /// Records an event at a node.
    pub(crate) fn note(&self, node: NodeId, what: &What) {
        if let Some(ring) = self.ring() {
            let now = self.ticks.now();
            ring.push(|place| ring::pack(place, now, node, what));
        }
    }

    /// Records a step of a command, without copying it.
    #[inline]
    pub(crate) fn note_step(&self, node: NodeId, step: &Event) {
        if let Some(ring) = self.ring() {
            let now = self.ticks.now();
            ring.push(|place| ring::pack_event(place, now, node, step));
        }
    }

    /// The ring of this thread. `None` if there are too many threads.
    #[inline]
    fn ring(&self) -> Option<&Ring> {
        let (recorder, index) = HERE.get();
        if recorder != self.id {
            return self.enter();
        }
        self.rings.get()?.get(index)?.get().map(|ring| &**ring)
    }

    /// Gives this thread a ring: one that another thread has left, or a new one.
    #[cold]
    #[inline(never)]
    fn enter(&self) -> Option<&Ring> {
        let places = || (0..MAX_RINGS).map(|_| OnceLock::new()).collect();
        let rings = self.rings.get_or_init(places);
        let mut count = lock(&self.count);
        let left = self.rings().position(|ring| ring.enter());
        let index = left.unwrap_or_else(|| {
            let next = *count;
            *count = (next + 1).min(MAX_RINGS);
            next
        });
        let size = if index < BIG_RINGS { BIG } else { SMALL };
        let ring = rings.get(index).map(|place| place.get_or_init(|| Arc::new(Ring::new(size))));
        drop(count);
        // A thread that is ending has no thread-locals any more, and records nothing else.
        let Ok(()) = OWN.try_with(|own| {
            let ring = ring.map(|ring| Own(Arc::clone(ring)));
            drop(own.replace(ring));
        }) else {
            ring.inspect(|ring| ring.leave());
            return None;
        };
        HERE.set((self.id, index));
        ring.map(|ring| &**ring)
    }

    /// All rings.
    fn rings(&self) -> impl Iterator<Item = &Arc<Ring>> {
        self.rings.get().into_iter().flatten().map_while(OnceLock::get)
    }

    pub(crate) fn explain(&self, by: Coords, subject: &Subject, why: &str) {
        let mut reasons = lock(&self.reasons);
        let (next, last) = &mut *reasons;
        if last.len() >= REASONS {
            last.pop_front();
        }
        last.push_back(Reason { subject: *subject, by, why: why.to_owned() });
        *next += 1;
    }

    /// Adds a reader. `switch` is called if it is the first one.
    pub(crate) fn begin(self: &Arc<Self>, switch: Switch) -> Trace {
        let mut readers = lock(&self.readers);
        *readers += 1;
        if *readers == 1 {
            self.on.store(true, Relaxed);
            switch(true);
        }
        drop(readers);
        let cursors = self.rings().map(|ring| ring.head()).collect();
        let reason = lock(&self.reasons).0;
        let recorder = Arc::clone(self);
        Trace { recorder, switch, cursors, reason, early: Vec::new(), lost: 0, rate: None }
    }
}

/// Turns the recording of the nodes on and off.
pub(crate) type Switch = Box<dyn Fn(bool) + Send>;

/// A trace of the commands of a machine, from its creation until it is dropped.
pub struct Trace {
    recorder: Arc<Recorder>,
    switch: Switch,
    /// Number of records read from each ring.
    cursors: Vec<u64>,
    /// Number of reasons read.
    reason: u64,
    /// Records that were read but are too new to be returned in order.
    early: Vec<(u32, Words)>,
    lost: u64,
    /// Nanoseconds per tick, once it has been measured.
    rate: Option<f64>,
}

impl Trace {
    /// The events since the last call, in order, up to some milliseconds ago; with `all`, up to
    /// now.
    pub fn read(&mut self, all: bool) -> Vec<Record> {
        let ticks = self.recorder.ticks;
        let rate = self.rate();
        let settled = if all { 0 } else { (SETTLED_NS / rate) as u64 };
        let until = ticks.now().saturating_sub(settled);
        for (thread, ring) in self.recorder.rings().enumerate() {
            if self.cursors.len() <= thread {
                self.cursors.push(0);
            }
            let (cursor, thread) = (&mut self.cursors[thread], thread as u32);
            self.lost += ring.read(cursor, |words| self.early.push((thread, words)));
        }
        self.early.sort_by_key(|(_, words)| words[0]);
        let due = if all {
            self.early.len()
        } else {
            self.early.partition_point(|(_, words)| words[0] < until)
        };
        let recorder = &self.recorder;
        let time = |ticks| recorder.time_ns(ticks, rate);
        let due = self.early.drain(..due);
        due.filter_map(|(thread, words)| ring::unpack(thread, &words, time)).collect()
    }

    /// The time stamp of a record made now, in nanoseconds since 1970.
    pub fn now_ns(&mut self) -> u64 {
        let rate = self.rate();
        self.recorder.time_ns(self.recorder.ticks.now(), rate)
    }

    fn rate(&mut self) -> f64 {
        *self.rate.get_or_insert_with(|| self.recorder.ticks.rate())
    }

    /// Reasons recorded since the last call.
    pub fn reasons(&mut self) -> Vec<Reason> {
        let (next, last) = &*lock(&self.recorder.reasons);
        let new = next.saturating_sub(self.reason) as usize;
        self.reason = *next;
        last.iter().skip(last.len().saturating_sub(new)).cloned().collect()
    }

    /// Number of records that were overwritten before they were read.
    pub const fn lost(&self) -> u64 {
        self.lost
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let mut readers = lock(&self.recorder.readers);
        *readers -= 1;
        if *readers == 0 {
            self.recorder.on.store(false, Relaxed);
            (self.switch)(false);
        }
    }
}

// A record is one cache line, so that a step writes only one.
const _: () = assert!(WORDS * 8 == 64);
