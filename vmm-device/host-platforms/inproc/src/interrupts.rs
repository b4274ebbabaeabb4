//! MSI-X vectors of one device, as flags that threads can wait for.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tofu_abi::irq::vector;
use tofu_sync::wait_timeout;

/// Which vectors have fired and were not waited for yet, one bit each.
const WORDS: usize = (vector::COUNT as usize).div_ceil(64);

/// The vectors of one device.
#[derive(Debug, Default)]
pub struct Interrupts {
    fired: Mutex<[u64; WORDS]>,
    changed: Condvar,
}

fn place(vector: u16) -> Option<(usize, u64)> {
    (vector < vector::COUNT).then(|| (usize::from(vector) / 64, 1 << (vector % 64)))
}

impl Interrupts {
    fn lock(&self) -> MutexGuard<'_, [u64; WORDS]> {
        tofu_sync::lock(&self.fired)
    }

    /// Notes an interrupt. A vector that the device does not have is ignored.
    pub fn fire(&self, vector: u16) {
        if let Some((word, bit)) = place(vector) {
            self.lock()[word] |= bit;
            self.changed.notify_all();
        }
    }

    /// Waits until `vector` has fired, for at most `timeout`. Returns whether it has, and clears
    /// it.
    pub fn wait(&self, vector: u16, timeout: Duration) -> bool {
        let Some((word, bit)) = place(vector) else {
            return false;
        };
        let start = Instant::now();
        let mut fired = self.lock();
        while fired[word] & bit == 0 {
            let Some(left) = timeout.checked_sub(start.elapsed()).filter(|t| !t.is_zero()) else {
                return false;
            };
            fired = wait_timeout(&self.changed, fired, left);
        }
        fired[word] &= !bit;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_interrupt_is_remembered_once() {
        let interrupts = Interrupts::default();
        interrupts.fire(70);
        interrupts.fire(70);
        assert!(!interrupts.wait(6, Duration::ZERO), "another vector of the same bit");
        assert!(interrupts.wait(70, Duration::ZERO));
        assert!(!interrupts.wait(70, Duration::ZERO));
        interrupts.fire(vector::COUNT);
        assert!(!interrupts.wait(vector::COUNT, Duration::ZERO));
    }

    #[test]
    fn waiter_is_woken() {
        let interrupts = Interrupts::default();
        std::thread::scope(|s| {
            let waiter = s.spawn(|| interrupts.wait(3, Duration::from_secs(60)));
            interrupts.fire(2);
            interrupts.fire(3);
            assert!(waiter.join().unwrap());
        });
    }
}
