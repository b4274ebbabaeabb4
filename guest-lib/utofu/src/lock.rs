//! A lock for short calls: waiting for it never sleeps in the kernel, and unlocking is one store.
//! Commands are posted and polled under it, so its cost is part of the cost of each command.

use spin::mutex::{SpinMutex, SpinMutexGuard};

/// The action of a thread while it waits for the lock.
#[derive(Debug)]
pub(crate) struct Patience;

#[cfg(not(feature = "std"))]
impl spin::RelaxStrategy for Patience {
    fn relax() {
        core::hint::spin_loop();
    }
}

#[cfg(feature = "std")]
impl spin::RelaxStrategy for Patience {
    /// Usually retries immediately, because calls take less than a microsecond. But the holder of
    /// the lock may need this processor, may be registering much memory, or may have a lower
    /// priority.
    fn relax() {
        std::thread_local! {
            static LOOKS: core::cell::Cell<u8> = const { core::cell::Cell::new(0) };
        }
        let looks = LOOKS.get().wrapping_add(1);
        LOOKS.set(looks);
        match looks {
            0 => std::thread::sleep(core::time::Duration::from_micros(50)),
            1..192 => core::hint::spin_loop(),
            192.. => std::thread::yield_now(),
        }
    }
}

pub(crate) type Guard<'a, T> = SpinMutexGuard<'a, T, Patience>;

/// A lock that is not poisoned if its holder panics. Its data is inconsistent only during calls
/// that cannot panic.
#[derive(Debug, Default)]
pub(crate) struct Lock<T>(SpinMutex<T, Patience>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(SpinMutex::new(value))
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.0.lock()
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn lock_has_one_holder_at_a_time() {
        const THREADS: usize = 4;
        const TURNS: usize = 20_000;
        // The counts are not atomic: simultaneous turns would lose some.
        let lock = Lock::new((0usize, [0usize; THREADS]));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let lock = &lock;
                scope.spawn(move || {
                    for turn in 0..TURNS {
                        let mut state = lock.lock();
                        let all = state.0;
                        if turn % 5000 == 0 {
                            // Longer than a thread tries before it yields the processor.
                            std::thread::sleep(core::time::Duration::from_millis(1));
                        }
                        state.1[thread] += 1;
                        state.0 = all + 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), (THREADS * TURNS, [TURNS; THREADS]));
    }
}
