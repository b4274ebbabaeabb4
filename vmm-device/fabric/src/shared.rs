//! A modelled network that one thread drives and others look into.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard};
use std::thread;

use tofu_sync::lock;

use crate::network::Network;

/// A network that one thread drives, turn by turn, and others look into between two turns.
#[derive(Debug)]
pub(crate) struct SharedNetwork {
    network: Mutex<Network>,
    /// Visitors that wait. Without it, a driver that unlocks and locks again at once would win
    /// every time.
    visitors: AtomicU32,
}

impl SharedNetwork {
    pub(crate) const fn new(network: Network) -> Self {
        Self { network: Mutex::new(network), visitors: AtomicU32::new(0) }
    }

    /// Locks the network for the thread that drives it, once no visitor waits.
    pub(crate) fn drive(&self) -> MutexGuard<'_, Network> {
        while self.visitors.load(SeqCst) > 0 {
            thread::yield_now();
        }
        lock(&self.network)
    }

    /// Locks the network for any other thread.
    pub(crate) fn visit(&self) -> MutexGuard<'_, Network> {
        self.visitors.fetch_add(1, SeqCst);
        let network = lock(&self.network);
        self.visitors.fetch_sub(1, SeqCst);
        network
    }
}
