//! Locks that a panic of their holder leaves open: `tofu_sync::lock`, but for the crates behind it,
//! which guests without an operating system would have in their lock file.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
