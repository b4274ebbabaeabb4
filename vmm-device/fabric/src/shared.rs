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
    /// Others who wait. Without it, a driver who lets go and takes the lock again at once would
    /// have it every time.
    visitors: AtomicU32,
}

impl SharedNetwork {
    pub(crate) const fn new(network: Network) -> Self {
        Self { network: Mutex::new(network), visitors: AtomicU32::new(0) }
    }

    /// For the thread that drives it: locks it when others have had their look.
    pub(crate) fn drive(&self) -> MutexGuard<'_, Network> {
        while self.visitors.load(SeqCst) > 0 {
            thread::yield_now();
        }
        lock(&self.network)
    }

    /// For all others.
    pub(crate) fn visit(&self) -> MutexGuard<'_, Network> {
        self.visitors.fetch_add(1, SeqCst);
        let network = lock(&self.network);
        self.visitors.fetch_sub(1, SeqCst);
        network
    }
}
