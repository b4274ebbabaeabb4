//! Barrier gates of a device that processes share. Locks record which gates are in use.

use std::io;
use std::sync::Mutex;

use tofu_abi::{BgId, Generation, TniId};
use tofu_process::lock;
use tofu_utofu::{Error, GatePool, gates_in};

/// Locks gates.
pub(super) trait LockGate {
    /// Takes a gate's lock. Returns `false` if another process holds it.
    fn lock(&self, tni: TniId, bg: BgId) -> io::Result<bool>;

    /// Releases a gate's lock.
    fn unlock(&self, tni: TniId, bg: BgId);
}

/// The gates that this process does not hold.
#[derive(Debug)]
pub(super) struct LockedGates(Mutex<GatePool>);

impl LockedGates {
    /// Creates the pool of all gates of a device.
    pub(super) fn new(generation: Generation) -> Self {
        Self(Mutex::new(GatePool::new(generation)))
    }

    /// See [`tofu_utofu::Provider::take_gates`]. `no_locks` makes the error for when locks do not
    /// work.
    pub(super) fn take(
        &self,
        locks: &impl LockGate,
        (tni, relays): (TniId, usize),
        no_locks: impl Fn(&io::Error) -> Error,
    ) -> Result<Option<u64>, Error> {
        let mut pool = lock(&self.0);
        let mut foreign = 0;
        // The loop ends, because each round finds a gate of another process.
        let taken = loop {
            let Some(gates) = pool.take(tni, relays) else { break Ok(None) };
            let mut locked = 0;
            let mut refused = None;
            for bg in gates_in(gates) {
                match locks.lock(tni, bg) {
                    Ok(true) => locked |= 1 << bg.get(),
                    Ok(false) => foreign |= 1 << bg.get(),
                    Err(error) => refused = Some(no_locks(&error)),
                }
            }
            if locked == gates {
                break Ok(Some(gates));
            }
            gates_in(locked).for_each(|bg| locks.unlock(tni, bg));
            pool.give(tni, gates & !foreign);
            if let Some(error) = refused {
                break Err(error);
            }
        };
        // The others' gates may be free the next time.
        pool.give(tni, foreign);
        taken
    }

    /// Releases gates.
    pub(super) fn give(&self, locks: &impl LockGate, tni: TniId, gates: u64) {
        gates_in(gates).for_each(|bg| locks.unlock(tni, bg));
        lock(&self.0).give(tni, gates);
    }
}
