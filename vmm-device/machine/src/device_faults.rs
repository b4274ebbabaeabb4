//! Faults of a node's device, for drivers to be tried with: a device that loses or doubles
//! interrupts, is gone, does not stop, or does not come back from a reset.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use tofu_fabric::{Ppm, chance};
use tofu_inspect::{Inspect, Visit};
use tofu_sync::lock;

/// The faults of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceFaults {
    /// Share of MSI-X messages that are lost.
    pub msix_lost: Ppm,
    /// Share of those that are sent twice.
    pub msix_doubled: Ppm,
    /// Reads of registers and configuration give all ones, and writes have no effect.
    pub gone: bool,
    /// A write of 0 to ENABLE of a control queue has no effect.
    pub stuck: bool,
    /// From the next function level reset on, the device is gone.
    pub endless_reset: bool,
    /// Shortest time for which entries of TCQ and MRQ are held back, in nanoseconds.
    pub late_ns: u64,
    /// Where the random numbers begin.
    pub seed: u64,
}

/// The fate of an MSI-X message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Sent,
    Lost,
    Doubled,
}

/// The faults that a device has now, and how often each has occurred.
#[derive(Debug, Default)]
pub(crate) struct Injector {
    /// True if there are any.
    on: AtomicBool,
    /// The device is gone, from the start or since a reset.
    gone: AtomicBool,
    state: Mutex<(DeviceFaults, u64)>,
    lost: AtomicU64,
    doubled: AtomicU64,
    ones: AtomicU64,
    ignored: AtomicU64,
}

impl Injector {
    /// Replaces the faults.
    pub(crate) fn set(&self, faults: DeviceFaults) {
        *lock(&self.state) = (faults, faults.seed);
        self.gone.store(faults.gone, Relaxed);
        self.on.store(faults != DeviceFaults::default(), Relaxed);
    }

    /// Returns true if there are faults.
    #[inline]
    pub(crate) fn are_set(&self) -> bool {
        self.on.load(Relaxed)
    }

    fn faults(&self) -> DeviceFaults {
        lock(&self.state).0
    }

    /// The next random number.
    fn random(&self) -> u64 {
        let mut state = lock(&self.state);
        let random = chance::mix(state.1);
        state.1 = state.1.wrapping_add(chance::STEP);
        random
    }

    /// Decides about a message.
    #[inline]
    pub(crate) fn message(&self) -> Fate {
        if self.are_set() { self.fate() } else { Fate::Sent }
    }

    #[cold]
    fn fate(&self) -> Fate {
        if self.gone.load(Relaxed) {
            self.lost.fetch_add(1, Relaxed);
            return Fate::Lost;
        }
        let DeviceFaults { msix_lost, msix_doubled, .. } = self.faults();
        if msix_lost.hits(self.random()) {
            self.lost.fetch_add(1, Relaxed);
            Fate::Lost
        } else if msix_doubled.hits(self.random()) {
            self.doubled.fetch_add(1, Relaxed);
            Fate::Doubled
        } else {
            Fate::Sent
        }
    }

    /// Returns true if an access finds no device.
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        let gone = self.gone.load(Relaxed);
        if gone {
            self.ones.fetch_add(1, Relaxed);
        }
        gone
    }

    /// Returns true if a queue that is disabled stays enabled.
    pub(crate) fn keeps_queues(&self) -> bool {
        let keeps = self.faults().stuck;
        if keeps {
            self.ignored.fetch_add(1, Relaxed);
        }
        keeps
    }

    /// The function is reset.
    pub(crate) fn reset(&self) {
        if self.faults().endless_reset {
            self.gone.store(true, Relaxed);
        }
    }
}

impl Inspect for Injector {
    fn inspect(&self, visit: Visit<'_>) {
        let DeviceFaults { msix_lost, msix_doubled, stuck, endless_reset, late_ns, seed, .. } =
            self.faults();
        visit.tree(|tree| {
            tree.add("gone", &self.gone.load(Relaxed));
            tree.add("stuck", &stuck);
            tree.add("endless_reset", &endless_reset);
            tree.add("msix_lost_ppm", &msix_lost.parts());
            tree.add("msix_doubled_ppm", &msix_doubled.parts());
            tree.add("late_ns", &late_ns);
            tree.add("seed", &seed);
            for (name, count) in [
                ("messages_lost", &self.lost),
                ("messages_doubled", &self.doubled),
                ("accesses_of_none", &self.ones),
                ("disables_ignored", &self.ignored),
            ] {
                tree.add(name, &count.load(Relaxed));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fates(faults: DeviceFaults) -> Vec<Fate> {
        let injector = Injector::default();
        injector.set(faults);
        (0..1000).map(|_| injector.message()).collect()
    }

    #[test]
    fn fates_follow_shares_and_seed() {
        let half = Ppm::new(500_000).unwrap();
        let faults = DeviceFaults { msix_lost: half, seed: 3, ..DeviceFaults::default() };
        let lost = fates(faults);
        assert_eq!(lost, fates(faults));
        assert_ne!(lost, fates(DeviceFaults { seed: 4, ..faults }));
        let count = lost.iter().filter(|fate| **fate == Fate::Lost).count();
        assert!((400..600).contains(&count), "{count}");
        let all = DeviceFaults { msix_doubled: Ppm::ALWAYS, ..DeviceFaults::default() };
        assert_eq!(fates(all), [Fate::Doubled; 1000]);
        assert_eq!(fates(DeviceFaults::default()), [Fate::Sent; 1000]);
    }

    #[test]
    fn reset_that_never_ends_leaves_no_device() {
        let injector = Injector::default();
        injector.reset();
        assert!(!injector.is_gone());
        injector.set(DeviceFaults { endless_reset: true, ..DeviceFaults::default() });
        assert!(!injector.is_gone());
        injector.reset();
        assert!(injector.is_gone());
        injector.set(DeviceFaults::default());
        assert!(!injector.is_gone());
    }
}
