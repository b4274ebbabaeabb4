//! Epochs: a change of a resource waits for the uses that began before it, as a cache flush waits
//! for the uses of translation tables.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;
#[cfg(not(loom))]
use std::{thread, time::Duration};

use crate::{AtomicU32, AtomicU64, Mutex, MutexGuard};

/// Counts the uses of a resource that is replaced from time to time.
#[derive(Debug)]
pub struct Epochs {
    generation: AtomicU64,
    /// Number of current uses, by the lowest bit of their generation.
    pins: [AtomicU32; 2],
    flush: Mutex<Flush>,
}

/// Progress of a flush.
#[derive(Debug, Default)]
struct Flush {
    /// The generation whose uses are still awaited.
    draining: Option<u64>,
    /// True if another flush was requested during this one.
    again: bool,
}

impl Default for Epochs {
    fn default() -> Self {
        Self::new()
    }
}

impl Epochs {
    /// Creates epochs without current uses.
    pub fn new() -> Self {
        Self {
            generation: AtomicU64::new(0),
            pins: [AtomicU32::new(0), AtomicU32::new(0)],
            flush: Mutex::new(Flush::default()),
        }
    }

    /// Begins a use, which [`Epochs::leave`] ends, and returns its generation.
    #[inline]
    pub fn enter(&self) -> u64 {
        loop {
            let generation = self.generation.load(SeqCst);
            let pins = &self.pins[(generation & 1) as usize];
            pins.fetch_add(1, SeqCst);
            // SeqCst here and in `flush` and `advance`: if an entry and a flush race, at least one
            // must see the other.
            if self.generation.load(SeqCst) == generation {
                return generation;
            }
            pins.fetch_sub(1, SeqCst);
        }
    }

    /// Ends a use.
    pub fn leave(&self, generation: u64) {
        self.pins[(generation & 1) as usize].fetch_sub(1, SeqCst);
    }

    /// Begins a flush: uses that begin later have a newer generation than those before it.
    pub fn flush(&self) {
        let mut flush = self.lock();
        self.advance(&mut flush);
        if flush.draining.is_some() {
            flush.again = true;
        } else {
            flush.draining = Some(self.generation.fetch_add(1, SeqCst));
        }
    }

    /// Returns true if a use from before the last flush has not ended.
    pub fn busy(&self) -> bool {
        let mut flush = self.lock();
        self.advance(&mut flush);
        flush.draining.is_some()
    }

    /// Flushes, and waits for the earlier uses. They must be short, and must not wait for the
    /// caller.
    #[cfg(not(loom))]
    pub fn drain(&self) {
        self.flush();
        let mut looks = 0u32;
        while self.busy() {
            looks += 1;
            if looks < 64 {
                thread::yield_now();
            } else {
                thread::sleep(Duration::from_micros(50));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Flush> {
        self.flush.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn advance(&self, flush: &mut Flush) {
        while let Some(generation) = flush.draining {
            if self.pins[(generation & 1) as usize].load(SeqCst) != 0 {
                return;
            }
            // Only now may the next generation begin: it shares the counter of the one
            // that was just drained.
            flush.draining =
                std::mem::take(&mut flush.again).then(|| self.generation.fetch_add(1, SeqCst));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn flush_waits_for_older_uses_only() {
        let epochs = Epochs::new();
        let old = epochs.enter();
        epochs.flush();
        assert!(epochs.busy());
        let young = epochs.enter();
        assert!(epochs.busy());
        epochs.leave(old);
        assert!(!epochs.busy());
        epochs.flush();
        assert!(epochs.busy());
        epochs.leave(young);
        assert!(!epochs.busy());
    }

    #[test]
    fn flush_during_a_flush_is_not_lost() {
        let epochs = Epochs::new();
        let first = epochs.enter();
        epochs.flush();
        let second = epochs.enter();
        epochs.flush();
        epochs.leave(first);
        // The second flush has to wait for uses that began after the first.
        assert!(epochs.busy());
        epochs.leave(second);
        assert!(!epochs.busy());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64 as Plain, Ordering::Relaxed};
    use loom::thread;

    /// A page, and tables that name it before this many flushes.
    struct Model {
        epochs: Epochs,
        flushes: u64,
        taken_away: Plain,
    }

    /// A burst that uses the page if the cached tables name it.
    fn burst(model: &Model) {
        let generation = model.epochs.enter();
        if generation < model.flushes {
            assert_eq!(model.taken_away.load(Relaxed), 0, "the page was in use");
        }
        model.epochs.leave(generation);
    }

    fn model(flushes: u64, bursts: usize) {
        loom::model(move || {
            let taken_away = Plain::new(0);
            let model = Arc::new(Model { epochs: Epochs::new(), flushes, taken_away });
            let other = Arc::clone(&model);
            let thread = thread::spawn(move || {
                for _ in 0..bursts {
                    burst(&other);
                }
            });
            for _ in 0..flushes {
                model.epochs.flush();
            }
            if !model.epochs.busy() {
                model.taken_away.store(1, Relaxed);
            }
            thread.join().unwrap();
            assert!(!model.epochs.busy(), "a flush has not ended though nothing is in flight");
        });
    }

    #[test]
    fn loom_flush_waits_for_older_uses() {
        model(1, 1);
    }

    #[test]
    fn loom_nor_is_one_during_another() {
        model(2, 2);
    }
}
