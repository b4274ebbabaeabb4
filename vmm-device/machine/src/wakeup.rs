//! The ways in which work reaches an engine that sleeps, or a queue that is already enqueued.

use std::sync::atomic::Ordering::{AcqRel, Acquire, SeqCst};

use tofu_sync::{AtomicBool, AtomicU64};

/// An engine's sleep.
///
/// The engine announces its sleep, looks for work once more, and sleeps if there is none. A thread
/// that brings work stores it first and then calls [`Sleep::end`].
#[derive(Debug)]
pub(crate) struct Sleep(AtomicBool);

impl Sleep {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Announces that the engine is about to sleep. It must look for work after this.
    pub(crate) fn announce(&self) {
        // SeqCst, because the search for work that follows must not come before the store.
        self.0.store(true, SeqCst);
    }

    /// Ends the sleep. Returns whether the engine sleeps or is about to, and must be signalled.
    /// Only the first caller has to signal it.
    pub(crate) fn end(&self) -> bool {
        self.0.swap(false, SeqCst)
    }

    /// Notes that the engine is awake.
    pub(crate) fn over(&self) {
        self.0.store(false, SeqCst);
    }
}

/// Makes the guest of a shared window notify the engine from now on, unless the window already has
/// something new. Returns whether it has.
///
/// The guest stores a mark first, and then checks whether it must notify. A barrier follows
/// `set_bell`. So either the guest sees the bell, or this function sees the mark.
pub(crate) fn doze(set_bell: impl Fn(bool), rings: impl Fn() -> bool) -> bool {
    set_bell(true);
    let news = rings();
    if news {
        set_bell(false);
    }
    news
}

/// A change of a queue with a shared page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watching {
    /// It was enabled.
    Start,
    /// Its page is not write-protected any more, as the guest is about to write to it.
    Lifted,
    /// It was disabled.
    Stop,
}

/// True if a queue is enqueued at its engine, so that it is never enqueued twice, and for which of
/// its lives: a queue that is enabled again does not serve earlier doorbells.
#[derive(Debug)]
pub(crate) struct Queued(AtomicU64);

/// Enqueued because of a doorbell of this life or of an earlier one.
const WAITS: u64 = 1;
/// Enqueued for an earlier life only.
const STALE: u64 = 2;
const ONE_LIFE: u64 = 4;

const fn life(state: u64) -> u64 {
    state & !(WAITS | STALE)
}

impl Queued {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Begins a new life and returns it.
    pub(crate) fn renew(&self) -> u64 {
        let before = self.change(|state| {
            let stale = if state & WAITS == 0 { 0 } else { STALE };
            Some((state | stale).wrapping_add(ONE_LIFE))
        });
        // The closure always returns `Some`, so the update cannot fail.
        let (Ok(before) | Err(before)) = before;
        life(before).wrapping_add(ONE_LIFE)
    }

    /// Notes that a doorbell rang, in the given life or, if none is given, in the current one.
    /// Returns whether the queue must be enqueued. It need not if it already is, or if the life is
    /// over.
    pub(crate) fn enter(&self, of: Option<u64>) -> bool {
        let before = self.change(|state| {
            let now = life(state);
            of.is_none_or(|of| of == now).then_some(now | WAITS)
        });
        before.is_ok_and(|state| state & WAITS == 0)
    }

    /// Begins the queue's turn. A later doorbell enqueues the queue again. The turn sees everything
    /// that was written before earlier doorbells. Returns whether any of them rang in this life.
    pub(crate) fn leave(&self) -> bool {
        // A read-modify-write, because a store would not read the value of the last `enter`.
        self.0.fetch_and(!(WAITS | STALE), AcqRel) & STALE == 0
    }

    /// Changes the state by a write even if its value stays the same, so that the next
    /// [`leave`](Self::leave) reads it.
    fn change(&self, f: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        self.0.fetch_update(AcqRel, Acquire, f)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::Release, fence};
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    struct Engine {
        sleep: Sleep,
        pending: Mutex<u32>,
        deadline: AtomicU64,
        signals: AtomicU32,
    }

    impl Engine {
        fn wake(&self) {
            if self.sleep.end() {
                self.signals.fetch_add(1, Relaxed);
            }
        }

        /// One attempt to sleep. Returns whether the engine now waits for a signal.
        fn try_to_sleep(&self) -> bool {
            self.sleep.announce();
            let deadline = self.deadline.load(SeqCst);
            let idle = *self.pending.lock().unwrap() == 0 && deadline == u64::MAX;
            if !idle {
                self.sleep.over();
            }
            idle
        }
    }

    fn model(bring: fn(&Engine)) {
        loom::model(move || {
            let engine = Arc::new(Engine {
                sleep: Sleep::new(),
                pending: Mutex::new(0),
                deadline: AtomicU64::new(u64::MAX),
                signals: AtomicU32::new(0),
            });
            let other = Arc::clone(&engine);
            let bringer = thread::spawn(move || bring(&other));
            // Twice, because a flag may be left over from the attempt before.
            let sleeps = engine.try_to_sleep() || engine.try_to_sleep();
            bringer.join().unwrap();
            let work = *engine.pending.lock().unwrap() > 0 || engine.deadline.load(SeqCst) == 0;
            assert!(work);
            assert!(!sleeps || engine.signals.load(Relaxed) > 0, "the engine sleeps over work");
        });
    }

    #[test]
    fn loom_a_queued_one_wakes_the_engine() {
        model(|engine| {
            *engine.pending.lock().unwrap() += 1;
            engine.wake();
        });
    }

    #[test]
    fn loom_a_deadline_wakes_the_engine() {
        model(|engine| {
            engine.deadline.fetch_min(0, SeqCst);
            engine.wake();
        });
    }

    /// A guest stores a mark and notifies if it must, and an engine stops polling.
    #[test]
    fn loom_a_mark_is_seen_or_told_of() {
        loom::model(|| {
            let words = Arc::new((AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0)));
            let other = Arc::clone(&words);
            let guest = thread::spawn(move || {
                let (data, mark, bell) = &*other;
                data.store(7, Relaxed);
                mark.store(1, Release);
                fence(SeqCst);
                bell.load(Relaxed) != 0
            });
            let (data, mark, bell) = &*words;
            let set_bell = |on: bool| {
                bell.store(on.into(), Relaxed);
                fence(SeqCst);
            };
            let news = doze(set_bell, || mark.load(Acquire) != 0);
            assert!(!news || data.load(Relaxed) == 7, "a mark without its data");
            let told = guest.join().unwrap();
            assert!(news || told, "an unknown mark");
        });
    }

    /// A doorbell of a life that ends, a doorbell of the next life, and an engine between them.
    #[test]
    fn loom_doorbell_is_served_in_its_life_only() {
        struct Queue {
            queued: Queued,
            line: Mutex<u32>,
            /// Descriptors of the current life that are still to be sent.
            entries: AtomicU32,
        }
        fn ring(queue: &Queue, life: u64) {
            if queue.queued.enter(Some(life)) {
                *queue.line.lock().unwrap() += 1;
            }
        }
        /// Takes a turn of the engine. Returns whether the queue was run.
        fn turn(queue: &Queue) -> bool {
            let mut line = queue.line.lock().unwrap();
            if *line == 0 {
                return false;
            }
            assert_eq!(*line, 1, "the queue is queued twice");
            *line = 0;
            drop(line);
            queue.queued.leave() && queue.entries.load(Relaxed) == 2
        }
        loom::model(|| {
            let queue = Arc::new(Queue {
                queued: Queued::new(),
                line: Mutex::new(0),
                entries: AtomicU32::new(1),
            });
            let first = queue.queued.renew();
            let other = Arc::clone(&queue);
            let former = thread::spawn(move || ring(&other, first));
            let other = Arc::clone(&queue);
            let engine = thread::spawn(move || drop(turn(&other)));
            let second = queue.queued.renew();
            assert_ne!(first, second);
            queue.entries.store(2, Relaxed);
            engine.join().unwrap();
            former.join().unwrap();
            assert!(!turn(&queue), "a doorbell of the former life is served");
            ring(&queue, second);
            assert!(turn(&queue), "a doorbell was lost");
        });
    }

    /// Two doorbells and an engine that takes the queue's turns.
    #[test]
    fn loom_doorbells_queue_once_and_are_served() {
        struct Queue {
            queued: Queued,
            line: Mutex<u32>,
            entries: [AtomicU32; 2],
        }
        fn ring(queue: &Queue, entry: usize) {
            queue.entries[entry].store(1, Relaxed);
            if queue.queued.enter(None) {
                *queue.line.lock().unwrap() += 1;
            }
        }
        fn turn(queue: &Queue) -> [u32; 2] {
            let mut line = queue.line.lock().unwrap();
            if *line == 0 {
                return [0, 0];
            }
            assert_eq!(*line, 1, "the queue is queued twice");
            *line = 0;
            drop(line);
            assert!(queue.queued.leave());
            [queue.entries[0].load(Relaxed), queue.entries[1].load(Relaxed)]
        }
        loom::model(|| {
            let queue = Arc::new(Queue {
                queued: Queued::new(),
                line: Mutex::new(0),
                entries: [AtomicU32::new(0), AtomicU32::new(0)],
            });
            let other = Arc::clone(&queue);
            let vcpu = thread::spawn(move || ring(&other, 1));
            ring(&queue, 0);
            let early = turn(&queue);
            vcpu.join().unwrap();
            let late = turn(&queue);
            assert_eq!([early[0] | late[0], early[1] | late[1]], [1, 1], "a doorbell was lost");
        });
    }
}
