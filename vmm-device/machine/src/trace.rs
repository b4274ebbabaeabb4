//! Traces: the steps of all commands of a machine, with their times.
//!
//! Each thread that drives devices writes into its own ring, without a lock. A reader that is too
//! slow loses records: overwritten records are counted as lost. Nothing is written while there is
//! no reader.

mod ring;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use tofu_abi::Coords;
use tofu_fabric::{NodeId, Ps};
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
    /// Time of the host's clock, or of the guests' in modelled time, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The node.
    pub node: NodeId,
    /// The thread, by the number of its ring; 0 in modelled time.
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
    clock: Clock,
    /// When the clock began, in nanoseconds since 1970.
    epoch_ns: u64,
    /// A place for each possible ring. Allocated at the first record.
    rings: OnceLock<Box<[OnceLock<Arc<Ring>>]>>,
    /// Number of rings.
    count: Mutex<usize>,
    /// The number of the next reason, and the last reasons.
    reasons: Mutex<(u64, VecDeque<Reason>)>,
    readers: Mutex<u32>,
}

/// The clock of a recorder.
enum Clock {
    Host(Ticks),
    /// Picoseconds of a machine in modelled time. Events of the same time follow each other by a
    /// tick, as they may be in the rings of several threads.
    Modelled {
        now: Box<dyn Fn() -> Ps + Send + Sync>,
        /// The last tick.
        last: AtomicU64,
    },
}

impl Clock {
    /// The time of an event, in ticks.
    #[inline]
    fn tick(&self) -> u64 {
        match self {
            Self::Host(ticks) => ticks.now(),
            Self::Modelled { now, last } => {
                let now = now();
                let later = |last: u64| now.max(last.saturating_add(1));
                // The closure always has a value.
                last.fetch_update(Relaxed, Relaxed, |last| Some(later(last))).map_or(now, later)
            }
        }
    }

    /// The time before which all events are in the rings, in ticks; `rate` is in nanoseconds per
    /// tick. In modelled time, one thread at a time has events.
    fn settled(&self, rate: f64) -> u64 {
        match self {
            Self::Host(ticks) => ticks.now().saturating_sub((SETTLED_NS / rate) as u64),
            Self::Modelled { now, .. } => now(),
        }
    }

    /// The time, in ticks.
    fn now(&self) -> u64 {
        match self {
            Self::Host(ticks) => ticks.now(),
            Self::Modelled { now, .. } => now(),
        }
    }

    /// Nanoseconds per tick.
    fn rate(&self) -> f64 {
        match self {
            Self::Host(ticks) => ticks.rate(),
            Self::Modelled { .. } => 0.001,
        }
    }

    /// The number of a thread that had an event, by that of its ring. In modelled time all are one,
    /// as it depends on the host which one has an event.
    const fn thread(&self, ring: u32) -> u32 {
        match self {
            Self::Host(_) => ring,
            Self::Modelled { .. } => 0,
        }
    }

    /// The time at which it began, in ticks.
    const fn first(&self) -> u64 {
        match self {
            Self::Host(ticks) => ticks.first(),
            Self::Modelled { .. } => 0,
        }
    }
}

impl Recorder {
    pub(crate) fn new() -> Self {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::with(Clock::Host(Ticks::new()), epoch.as_nanos() as u64)
    }

    /// A recorder of events in modelled time, which began at this time in nanoseconds since 1970.
    /// One thread at a time may have events.
    pub fn modelled(epoch_ns: u64, now: impl Fn() -> Ps + Send + Sync + 'static) -> Arc<Self> {
        let clock = Clock::Modelled { now: Box::new(now), last: AtomicU64::new(0) };
        Arc::new(Self::with(clock, epoch_ns))
    }

    fn with(clock: Clock, epoch_ns: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT.fetch_add(1, Relaxed),
            on: AtomicBool::new(false),
            clock,
            epoch_ns,
            rings: OnceLock::new(),
            count: Mutex::new(0),
            reasons: Mutex::default(),
            readers: Mutex::new(0),
        }
    }

    /// True while there is a trace.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// The time of an event, for [`tofu_icc::Host::stamp`].
    #[inline]
    pub fn stamp(&self) -> u64 {
        self.clock.tick()
    }

    /// Converts ticks to nanoseconds since 1970; `rate` is in nanoseconds per tick.
    fn time_ns(&self, ticks: u64, rate: f64) -> u64 {
        let since = ticks.saturating_sub(self.clock.first());
        self.epoch_ns + (since as f64 * rate) as u64
    }

    /// Records an event at a node.
    pub fn note(&self, node: NodeId, what: &What) {
        if let Some(ring) = self.ring() {
            let now = self.clock.tick();
            ring.push(|place| ring::pack(place, now, node, what));
        }
    }

    /// Records a step of a command, without copying it.
    #[inline]
    pub fn note_step(&self, node: NodeId, step: &Event) {
        if let Some(ring) = self.ring() {
            let now = self.clock.tick();
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

    /// Keeps the reason why a command has failed.
    pub fn explain(&self, by: Coords, subject: &Subject, why: &str) {
        let mut reasons = lock(&self.reasons);
        let (next, last) = &mut *reasons;
        if last.len() >= REASONS {
            last.pop_front();
        }
        last.push_back(Reason { subject: *subject, by, why: why.to_owned() });
        *next += 1;
    }

    /// Adds a reader. `switch` is called if it is the first one.
    pub fn begin(self: &Arc<Self>, switch: Switch) -> Trace {
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
pub type Switch = Box<dyn Fn(bool) + Send>;

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
    /// Returns the events since the last call, in order, up to some milliseconds ago; with `all`,
    /// up to now.
    pub fn read(&mut self, all: bool) -> Vec<Record> {
        let rate = self.rate();
        let until = self.recorder.clock.settled(rate);
        for (thread, ring) in self.recorder.rings().enumerate() {
            if self.cursors.len() <= thread {
                self.cursors.push(0);
            }
            let cursor = &mut self.cursors[thread];
            let thread = self.recorder.clock.thread(thread as u32);
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

    /// The time stamp of a record made now, like [`Record::time_ns`].
    pub fn now_ns(&mut self) -> u64 {
        let rate = self.rate();
        self.recorder.time_ns(self.recorder.clock.now(), rate)
    }

    fn rate(&mut self) -> f64 {
        *self.rate.get_or_insert_with(|| self.recorder.clock.rate())
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

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn events_of_one_modelled_time_keep_their_order() {
        const THREADS: u16 = 5;
        let time = Arc::new(AtomicU64::new(7_000_000));
        let clock = Arc::clone(&time);
        let recorder = Recorder::modelled(1000, move || clock.load(Relaxed));
        let mut trace = recorder.begin(Box::new(|_| {}));
        for vector in 0..THREADS {
            // Each has its own ring.
            thread::scope(|s| {
                s.spawn(|| recorder.note(NodeId(3), &What::Interrupt(vector)));
            });
        }
        // There may be more at the present time.
        assert!(trace.read(false).is_empty());
        time.store(8_000_000, Relaxed);
        let seen = trace.read(false);
        let vector = |record: &Record| match record.what {
            What::Interrupt(vector) => vector,
            _ => panic!("{record:?}"),
        };
        assert!(seen.iter().map(vector).eq(0..THREADS), "{seen:?}");
        assert!(seen.iter().all(|r| (r.time_ns, r.thread) == (1000 + 7000, 0)), "{seen:?}");
        assert_eq!(trace.now_ns(), 1000 + 8000);
    }
}
