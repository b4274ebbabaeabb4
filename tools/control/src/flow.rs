//! How much of a stream may be under way.

use std::sync::{Condvar, Mutex, PoisonError};

/// Bytes that may be sent before the receiver grants more.
pub(crate) struct Credit {
    left: Mutex<u64>,
    more: Condvar,
}

impl Credit {
    /// Credit for so many bytes to begin with.
    pub(crate) fn new(bytes: u32) -> Self {
        Self { left: Mutex::new(bytes.into()), more: Condvar::new() }
    }

    /// Waits until something may be sent; returns how much, at most `most`.
    pub(crate) fn wait(&self, most: usize) -> usize {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let left =
            self.more.wait_while(left, |left| *left == 0).unwrap_or_else(PoisonError::into_inner);
        usize::try_from(*left).unwrap_or(most).min(most)
    }

    /// So much was sent.
    pub(crate) fn spend(&self, bytes: usize) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        *left = left.saturating_sub(bytes as u64);
    }

    /// So much more may be sent.
    pub(crate) fn grant(&self, bytes: u32) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        *left = left.saturating_add(bytes.into());
        self.more.notify_all();
    }
}
