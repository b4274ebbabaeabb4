//! Atomics and mutexes for state that threads share without a common lock.
//!
//! These are the standard library's types, or loom's with `--cfg loom`: tests in that configuration
//! try every order in which threads can run. Only modules that loom checks must take their atomics
//! from here. The crate also has bounded queues, and a clock that is cheaper to read than a lock is
//! to take.
//!
//! # Types with models, and their promises
//!
//! - `IrqUnit` of `icc`: a request that comes while it is unmasked is announced; a thread that
//!   waits for the end of a barrier's round wakes up.
//! - `Away` of `icc`: a notice that a command has caused does not overtake its completion.
//! - `Handover` of `icc`: a doorbell during another thread's turn, or while the queue is being
//!   enabled, is not lost.
//! - `Waiting` of `icc`: a queue that finds no room in the network sees it later or is rung for it.
//! - `Mappings` of `icc`: a mapping that another thread replaces is read whole or not at all.
//! - `Epochs` of `sync`: a cache flush is not reported done while an older use of the tables lives.
//! - `Sleep` of `machine`: an engine does not sleep over a queued doorbell or a deadline.
//! - `Queued` of `machine`: a doorbell is queued once, and a turn sees what was written before it.
//! - `load_words`, `store_words` of `dma`, against `Rings` of the driver: a command of two
//!   descriptors, a completion or a notice is seen whole or not at all, and after its data.
#![deny(unsafe_code)]

mod clock;
mod epoch;
#[cfg(not(loom))]
pub mod queue;
mod ticks;

pub use crate::clock::Monotonic;
pub use crate::epoch::Epochs;
pub use crate::ticks::Ticks;
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};
#[cfg(not(loom))]
pub use std::sync::{Mutex, MutexGuard};

pub use tofu_process::{lock, read, wait, wait_timeout, write};

#[cfg(loom)]
pub use loom::sync::atomic::fence;

#[cfg(loom)]
pub use checked::{AtomicBool, AtomicU32, AtomicU64};
#[cfg(loom)]
pub use loom::sync::{Mutex, MutexGuard};

/// loom's atomics, with the part of [`SeqCst`](std::sync::atomic::Ordering::SeqCst) that loom
/// omits.
///
/// loom treats sequentially consistent accesses as acquire and release ones, and so allows
/// reorderings of flags that cannot happen. It does model sequentially consistent fences, so here a
/// thread has one between any two consecutive accesses of this kind.
#[cfg(loom)]
mod checked {
    use std::cell::Cell;
    use std::sync::atomic::Ordering::{self, SeqCst};

    use loom::sync::atomic::fence;

    loom::thread_local! {
        /// True if the thread has made a sequentially consistent access before.
        static FOLLOWS: Cell<bool> = Cell::new(false);
    }

    fn fenced<R>(order: Ordering, access: impl FnOnce() -> R) -> R {
        if order == SeqCst && FOLLOWS.with(|follows| follows.replace(true)) {
            fence(SeqCst);
        }
        access()
    }

    macro_rules! atomic {
        ($name:ident, $value:ty, $($method:ident),*) => {
            /// Like the standard library's type of this name.
            #[derive(Debug, Default)]
            pub struct $name(loom::sync::atomic::$name);

            impl $name {
                /// An atomic with this value.
                pub fn new(value: $value) -> Self {
                    Self(loom::sync::atomic::$name::new(value))
                }

                /// Loads the value.
                pub fn load(&self, order: Ordering) -> $value {
                    fenced(order, || self.0.load(order))
                }

                /// Stores a value.
                pub fn store(&self, value: $value, order: Ordering) {
                    fenced(order, || self.0.store(value, order));
                }

                /// Stores `new` if the current value is `current`.
                ///
                /// # Errors
                ///
                /// The current value, if it is a different one.
                pub fn compare_exchange(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    fenced(success, || self.0.compare_exchange(current, new, success, failure))
                }

                /// Replaces the value by what `f` returns for it, and returns the previous one.
                ///
                /// # Errors
                ///
                /// The current value, if `f` returns `None` for it.
                pub fn fetch_update(
                    &self,
                    set: Ordering,
                    fetch: Ordering,
                    f: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    fenced(set, || self.0.fetch_update(set, fetch, f))
                }

                $(
                    /// Changes the value and returns the previous one.
                    pub fn $method(&self, value: $value, order: Ordering) -> $value {
                        fenced(order, || self.0.$method(value, order))
                    }
                )*
            }
        };
    }

    atomic!(AtomicBool, bool, swap, fetch_or, fetch_and);
    atomic!(AtomicU32, u32, swap, fetch_add, fetch_sub, fetch_or, fetch_and, fetch_min);
    atomic!(AtomicU64, u64, swap, fetch_add, fetch_sub, fetch_or, fetch_and, fetch_min);
}
