//! How work reaches an engine that sleeps, and a queue that is in line already.

use std::sync::atomic::Ordering::{AcqRel, SeqCst};

use tofu_sync::AtomicBool;

/// An engine's sleep.
///
/// The engine announces it, looks for work once more, and sleeps if there is none. Whoever
/// brings work stores it first and calls [`Sleep::end`] then.
#[derive(Debug)]
pub(crate) struct Sleep(AtomicBool);

impl Sleep {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// The engine is about to sleep and must look for work after this.
    pub(crate) fn announce(&self) {
        // SeqCst, as the look for work that follows must not come before it.
        self.0.store(true, SeqCst);
    }

    /// Ends the sleep. Returns whether the engine sleeps or is about to, and must be signalled;
    /// only the first one to come has to.
    pub(crate) fn end(&self) -> bool {
        self.0.swap(false, SeqCst)
    }

    /// The engine is awake.
    pub(crate) fn over(&self) {
        self.0.store(false, SeqCst);
    }
}

/// Whether a queue is in line at its engine, so that it never is twice.
#[derive(Debug)]
pub(crate) struct InLine(AtomicBool);

impl InLine {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// A doorbell rang. Returns whether the queue is to be put in line; if not it is there
    /// already.
    pub(crate) fn enter(&self) -> bool {
        !self.0.swap(true, AcqRel)
    }

    /// The queue's turn has come. A doorbell that rings later puts it in line again; what was
    /// written before earlier ones is seen by the turn.
    pub(crate) fn leave(&self) {
        // Reads what the last `enter` has written, unlike a store.
        self.0.swap(false, AcqRel);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use loom::sync::{Arc, Mutex};
    use loom::thread;
    use tofu_sync::AtomicU64;

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
            // Twice, as a flag may be left over from the attempt before.
            let sleeps = engine.try_to_sleep() || engine.try_to_sleep();
            bringer.join().unwrap();
            let work = *engine.pending.lock().unwrap() > 0 || engine.deadline.load(SeqCst) == 0;
            assert!(work);
            assert!(!sleeps || engine.signals.load(Relaxed) > 0, "the engine sleeps over work");
        });
    }

    #[test]
    fn loom_a_queue_in_line_wakes_the_engine() {
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

    /// Two doorbells and an engine that takes the queue's turns.
    #[test]
    fn loom_doorbells_put_a_queue_in_line_once_and_are_served() {
        struct Queue {
            in_line: InLine,
            line: Mutex<u32>,
            entries: [AtomicU32; 2],
        }
        fn ring(queue: &Queue, entry: usize) {
            queue.entries[entry].store(1, Relaxed);
            if queue.in_line.enter() {
                *queue.line.lock().unwrap() += 1;
            }
        }
        fn turn(queue: &Queue) -> [u32; 2] {
            let mut line = queue.line.lock().unwrap();
            if *line == 0 {
                return [0, 0];
            }
            assert_eq!(*line, 1, "the queue is in line twice");
            *line = 0;
            drop(line);
            queue.in_line.leave();
            [queue.entries[0].load(Relaxed), queue.entries[1].load(Relaxed)]
        }
        loom::model(|| {
            let queue = Arc::new(Queue {
                in_line: InLine::new(),
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
