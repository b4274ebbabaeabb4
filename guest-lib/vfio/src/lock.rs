//! Locks that are not poisoned by a panic of their holder. This is `tofu_sync::lock` again, because
//! the crates behind that one would be in the lock file of guests without an operating system.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
