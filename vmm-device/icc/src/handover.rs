//! Work that one thread does at a time, and that any thread can request.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use tofu_sync::{AtomicU32, Mutex, MutexGuard};

const IDLE: u32 = 0;
const RUNNING: u32 = 1;
/// Another turn was requested since the running one began.
const ASKED: u32 = 2;

/// State that threads process in turns. The thread that asks first takes the turn.
///
/// If a thread asks while another one works, it returns immediately, and the other one takes a
/// further turn. That turn sees everything that the first thread did before it asked.
#[derive(Debug)]
pub(crate) struct Handover<T> {
    /// A single word, so that no request can come between reading and changing it.
    stage: AtomicU32,
    state: Mutex<T>,
}

impl<T> Handover<T> {
    pub(crate) fn new(state: T) -> Self {
        Self { stage: AtomicU32::new(IDLE), state: Mutex::new(state) }
    }

    /// Keeps turns away from the state for a short time.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for the work to be done.
    ///
    /// If no thread is doing it yet, calls `turn` until no further request has come during a turn.
    /// A turn returns true if it has more to do. Then this returns true as well, and the caller
    /// must ask again later.
    #[inline]
    pub(crate) fn run(&self, mut turn: impl FnMut(&mut T) -> bool) -> bool {
        // A first thread asks and begins at once.
        if self.stage.compare_exchange(IDLE, RUNNING, AcqRel, Acquire).is_err() {
            if self.stage.swap(ASKED, AcqRel) != IDLE {
                return false;
            }
            self.stage.swap(RUNNING, AcqRel);
        }
        loop {
            if turn(&mut self.lock()) {
                self.stage.swap(IDLE, AcqRel);
                return true;
            }
            if self.stage.compare_exchange(RUNNING, IDLE, AcqRel, Acquire).is_ok() {
                return false;
            }
            // Synchronises with the last thread to ask, and so sees what it did before.
            self.stage.swap(RUNNING, AcqRel);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn request_within_a_turn_brings_another() {
        let work = Handover::new(0);
        let more = work.run(|turns| {
            *turns += 1;
            if *turns < 3 {
                assert!(!work.run(|_| unreachable!("another thread is at work")));
            }
            false
        });
        assert!(!more);
        assert_eq!(*work.lock(), 3);
    }

    #[test]
    fn turn_with_more_to_do_yields() {
        let work = Handover::new(());
        assert!(work.run(|()| true));
        assert!(!work.run(|()| false));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32 as Plain, Ordering::Relaxed};
    use loom::thread;

    /// Descriptors that guests write, and how many of each were taken.
    struct Model {
        entries: [Plain; 2],
        taken: Handover<[u32; 2]>,
    }

    impl Model {
        /// Takes what is there; `limit` entries make a turn.
        fn run(&self, limit: usize) -> bool {
            self.taken.run(|taken| {
                let mut n = 0;
                for (entry, count) in self.entries.iter().zip(taken) {
                    if n < limit && entry.load(Relaxed) > *count {
                        *count += 1;
                        n += 1;
                    }
                }
                n == limit
            })
        }

        fn ring(&self, entry: usize, limit: usize) {
            self.entries[entry].store(1, Relaxed);
            while self.run(limit) {}
        }
    }

    fn doorbells_are_not_lost(limit: usize) {
        loom::model(move || {
            let model = Arc::new(Model {
                entries: [Plain::new(0), Plain::new(0)],
                taken: Handover::new([0, 0]),
            });
            let other = Arc::clone(&model);
            let thread = thread::spawn(move || other.ring(1, limit));
            model.ring(0, limit);
            thread.join().unwrap();
            assert_eq!(*model.taken.lock(), [1, 1]);
        });
    }

    #[test]
    fn loom_doorbells_during_a_turn_are_kept() {
        doorbells_are_not_lost(3);
    }

    #[test]
    fn loom_doorbells_of_short_turns_are_kept() {
        doorbells_are_not_lost(1);
    }

    #[test]
    fn loom_doorbell_under_the_lock_is_kept() {
        loom::model(|| {
            let model = Arc::new(Model {
                entries: [Plain::new(0), Plain::new(0)],
                taken: Handover::new([0, 0]),
            });
            let other = Arc::clone(&model);
            let thread = thread::spawn(move || other.ring(1, 3));
            drop(model.taken.lock());
            thread.join().unwrap();
            assert_eq!(*model.taken.lock(), [0, 1]);
        });
    }
}
