//! Limits how much of a stream may be in flight.

use std::sync::{Condvar, Mutex, PoisonError};

use tofu_sync::lock;

/// Bytes that may be sent before the receiver grants more.
#[derive(Debug)]
pub struct Credit {
    left: Mutex<u64>,
    more: Condvar,
}

impl Credit {
    /// Starts with credit for `bytes` bytes.
    pub const fn new(bytes: u32) -> Self {
        Self { left: Mutex::new(bytes as u64), more: Condvar::new() }
    }

    /// Waits for credit and takes at most `most` bytes of it. Credit for bytes that are not sent
    /// must be granted again.
    pub fn take(&self, most: usize) -> usize {
        let mut left = self
            .more
            .wait_while(lock(&self.left), |left| *left == 0)
            .unwrap_or_else(PoisonError::into_inner);
        let taken = usize::try_from(*left).unwrap_or(most).min(most);
        *left -= taken as u64;
        taken
    }

    /// This many more bytes may be sent.
    pub fn grant(&self, bytes: u32) {
        let mut left = lock(&self.left);
        *left = left.saturating_add(bytes.into());
        self.more.notify_all();
    }
}
