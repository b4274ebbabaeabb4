//! Injected faults of a node's device, to test drivers. The device loses, doubles or delays
//! interrupts; its accesses to memory fail; it is gone, does not stop, or does not come back from a
//! reset.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use tofu_abi::regs::{CqsReg, Register};
use tofu_dma::{Access, DmaError, DmaMemory, DmaResult, Visit as Slices};
use tofu_fabric::{Ppm, chance};
use tofu_inspect::{Inspect, Visit};
use tofu_sync::lock;
use vm_memory::VolatileSlice;

use crate::Icc;

/// Most faults of single messages and accesses.
pub const MOST_PLANNED: usize = 16;
/// The most messages that are delayed at a time; others are sent immediately.
const MOST_DELAYED: usize = 1024;

/// The faults of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceFaults {
    /// Share of MSI-X messages that are lost.
    pub msix_lost: Ppm,
    /// Share of those that are sent twice.
    pub msix_doubled: Ppm,
    /// Share of those that are sent late.
    pub msix_delayed: Ppm,
    /// Time for which a message is delayed, in nanoseconds.
    pub delay_ns: u64,
    /// Share of the reads of memory that fail.
    pub read_abort: Ppm,
    /// Share of the writes to memory that fail.
    pub write_abort: Ppm,
    /// Share of the reads of registers that give other values.
    pub register_lies: Ppm,
    /// Share of the writes to memory in which a byte is wrong.
    pub write_lies: Ppm,
    /// Faults of single messages and accesses.
    pub planned: [Option<Planned>; MOST_PLANNED],
    /// Reads of registers and configuration give all ones, and writes have no effect.
    pub gone: bool,
    /// A write of 0 to ENABLE of a control queue has no effect.
    pub stuck: bool,
    /// From the next function level reset on, the device is gone.
    pub endless_reset: bool,
    /// Shortest time for which entries of the TCQ are held back, in nanoseconds.
    pub late_tcq_ns: u64,
    /// The same for the MRQ.
    pub late_mrq_ns: u64,
    /// The seed of the random numbers.
    pub seed: u64,
}

/// The fate of an MSI-X message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is sent.
    Sent,
    /// It is lost.
    Lost,
    /// It is sent twice.
    Doubled,
    /// It is sent later.
    Delayed,
}

/// A fault of one message or access, counted from 1 since the faults were set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planned {
    /// A message of a vector.
    Message {
        /// The vector.
        vector: u16,
        /// Its number.
        nth: u64,
        /// The fate.
        fate: Fate,
    },
    /// A read that fails.
    Read(u64),
    /// A write that fails.
    Write(u64),
}

/// The faults that a device has now, and how often each has occurred.
#[derive(Debug, Default)]
pub struct Injector {
    /// True if there are any.
    on: AtomicBool,
    /// The device is gone, from the start or since a reset.
    gone: AtomicBool,
    /// The faults, and the next random number's place.
    state: Mutex<(DeviceFaults, u64)>,
    /// Messages by vector since the faults were set, as far as faults are planned.
    messages: Mutex<HashMap<u16, u64>>,
    reads: AtomicU64,
    writes: AtomicU64,
    /// When messages are due, in nanoseconds, and their vectors.
    waiting: Mutex<VecDeque<(u64, u16)>>,
    lost: AtomicU64,
    doubled: AtomicU64,
    delayed: AtomicU64,
    aborted: AtomicU64,
    lies: AtomicU64,
    ones: AtomicU64,
    ignored: AtomicU64,
}

impl Injector {
    /// Has accesses of a device to its memory fail as the injector says.
    pub fn refuse_accesses(self: &Arc<Self>, icc: &Icc, memory: Arc<dyn DmaMemory>) {
        icc.set_refusing_memory(Arc::new(Refusing { memory, faults: Arc::clone(self) }));
    }

    /// Replaces the faults of the device that has this injector. Messages that are delayed should
    /// be sent now if there are none any more.
    pub fn set_of(&self, icc: &Icc, faults: DeviceFaults) {
        icc.hold_entries(faults.late_tcq_ns, faults.late_mrq_ns);
        self.set(faults);
        icc.refuse_accesses(faults.concern_memory());
    }

    fn set(&self, faults: DeviceFaults) {
        *lock(&self.state) = (faults, faults.seed);
        lock(&self.messages).clear();
        self.reads.store(0, Relaxed);
        self.writes.store(0, Relaxed);
        self.gone.store(faults.gone, Relaxed);
        self.on.store(faults != DeviceFaults::default(), Relaxed);
    }

    /// Returns true if there are faults.
    #[inline]
    fn are_set(&self) -> bool {
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
    pub fn message(&self, vector: u16) -> Fate {
        if self.are_set() { self.counted_fate(vector) } else { Fate::Sent }
    }

    #[cold]
    fn counted_fate(&self, vector: u16) -> Fate {
        let fate = if self.gone.load(Relaxed) { Fate::Lost } else { self.fate(vector) };
        let count = match fate {
            Fate::Sent => return fate,
            Fate::Lost => &self.lost,
            Fate::Doubled => &self.doubled,
            Fate::Delayed => &self.delayed,
        };
        count.fetch_add(1, Relaxed);
        fate
    }

    fn fate(&self, of: u16) -> Fate {
        let faults = self.faults();
        let mut planned = faults.planned.iter().flatten().filter_map(|planned| match *planned {
            Planned::Message { vector, nth, fate } if vector == of => Some((nth, fate)),
            _ => None,
        });
        if planned.clone().next().is_some() {
            let mut messages = lock(&self.messages);
            let number = messages.entry(of).or_default();
            *number += 1;
            if let Some((_, fate)) = planned.find(|(nth, _)| nth == number) {
                return fate;
            }
        }
        // Without delays, a seed has the same effect as before delays were introduced.
        let shares = [
            (faults.msix_lost, Fate::Lost),
            (faults.msix_doubled, Fate::Doubled),
            (faults.msix_delayed, Fate::Delayed),
        ];
        let count = if faults.msix_delayed == Ppm::NEVER { 2 } else { 3 };
        let hit = shares.into_iter().take(count).find(|(share, _)| share.hits(self.random()));
        hit.map_or(Fate::Sent, |(_, fate)| fate)
    }

    /// Keeps a message until it is due. Returns that time, in nanoseconds, or `None` if there is no
    /// room and the message must be sent now.
    pub fn delay(&self, vector: u16, now_ns: u64) -> Option<u64> {
        let due_ns = now_ns.saturating_add(self.faults().delay_ns);
        let mut waiting = lock(&self.waiting);
        (waiting.len() < MOST_DELAYED).then(|| waiting.push_back((due_ns, vector)))?;
        Some(due_ns)
    }

    /// Sends delayed messages that are due. Returns when the next one is, in nanoseconds.
    pub fn send_due(&self, now_ns: u64, mut send: impl FnMut(u16)) -> u64 {
        loop {
            let vector = {
                let mut waiting = lock(&self.waiting);
                match waiting.front() {
                    None => return u64::MAX,
                    Some(&(due_ns, _)) if due_ns > now_ns => return due_ns,
                    Some(&(_, vector)) => {
                        waiting.pop_front();
                        vector
                    }
                }
            };
            send(vector);
        }
    }

    /// Replaces the value of a register by another one, with the configured probability.
    #[inline]
    pub fn read(&self, data: &mut [u8]) {
        if self.are_set() {
            self.maybe_lie(data);
        }
    }

    #[cold]
    fn maybe_lie(&self, data: &mut [u8]) {
        let register_lies = self.faults().register_lies;
        if register_lies == Ppm::NEVER || !register_lies.hits(self.random()) {
            return;
        }
        self.lies.fetch_add(1, Relaxed);
        let other = self.random().to_le_bytes();
        data.iter_mut().zip(other).for_each(|(byte, other)| *byte = other);
    }

    /// Returns true if a byte of a write to memory is wrong.
    fn lies(&self) -> bool {
        let write_lies = self.faults().write_lies;
        let lies = write_lies != Ppm::NEVER && write_lies.hits(self.random());
        if lies {
            self.lies.fetch_add(1, Relaxed);
        }
        lies
    }

    /// Changes a byte of memory that was written.
    fn damage(&self, slice: &VolatileSlice<'_>) {
        let random = self.random();
        let at = (random >> 8) as usize % slice.len().max(1);
        let mut byte = [0];
        if let Ok(place) = slice.subslice(at, 1) {
            place.copy_to(&mut byte);
            place.copy_from(&[byte[0] ^ (random as u8 | 1)]);
        }
    }

    /// Returns true if an access to memory fails.
    fn aborts(&self, access: Access) -> bool {
        let faults = self.faults();
        let planned = |wanted: Planned| faults.planned.contains(&Some(wanted));
        let mut aborts = false;
        if access.reads() {
            let number = self.reads.fetch_add(1, Relaxed) + 1;
            aborts |= planned(Planned::Read(number)) || faults.read_abort.hits(self.random());
        }
        if access.writes() {
            let number = self.writes.fetch_add(1, Relaxed) + 1;
            aborts |= planned(Planned::Write(number)) || faults.write_abort.hits(self.random());
        }
        if aborts {
            self.aborted.fetch_add(1, Relaxed);
        }
        aborts
    }

    /// Returns true if an access finds no device.
    #[inline]
    pub fn is_gone(&self) -> bool {
        let gone = self.gone.load(Relaxed);
        if gone {
            self.ones.fetch_add(1, Relaxed);
        }
        gone
    }

    /// Returns true if a write to BAR0 disables a queue, which stays enabled.
    #[inline]
    pub fn keeps_queue(&self, offset: u64, data: &[u8]) -> bool {
        self.are_set() && self.is_stuck(offset, data)
    }

    #[cold]
    fn is_stuck(&self, offset: u64, data: &[u8]) -> bool {
        let keeps = disables(offset, data) && self.faults().stuck;
        if keeps {
            self.ignored.fetch_add(1, Relaxed);
        }
        keeps
    }

    /// The function is reset.
    pub fn reset(&self) {
        if self.faults().endless_reset {
            self.gone.store(true, Relaxed);
        }
    }
}

impl Inspect for Injector {
    fn inspect(&self, visit: Visit<'_>) {
        let DeviceFaults {
            msix_lost,
            msix_doubled,
            msix_delayed,
            delay_ns,
            read_abort,
            write_abort,
            register_lies,
            write_lies,
            planned,
            gone: _,
            stuck,
            endless_reset,
            late_tcq_ns,
            late_mrq_ns,
            seed,
        } = self.faults();
        visit.tree(|tree| {
            tree.add("gone", &self.gone.load(Relaxed));
            tree.add("stuck", &stuck);
            tree.add("endless_reset", &endless_reset);
            tree.add("msix_lost_ppm", &msix_lost.parts());
            tree.add("msix_doubled_ppm", &msix_doubled.parts());
            tree.add("msix_delayed_ppm", &msix_delayed.parts());
            tree.add("delay_ns", &delay_ns);
            tree.add("read_abort_ppm", &read_abort.parts());
            tree.add("write_abort_ppm", &write_abort.parts());
            tree.add("register_lies_ppm", &register_lies.parts());
            tree.add("write_lies_ppm", &write_lies.parts());
            tree.add("planned", &planned.iter().flatten().count());
            tree.add("late_tcq_ns", &late_tcq_ns);
            tree.add("late_mrq_ns", &late_mrq_ns);
            tree.add("seed", &seed);
            for (name, count) in [
                ("messages_lost", &self.lost),
                ("messages_doubled", &self.doubled),
                ("messages_delayed", &self.delayed),
                ("accesses_aborted", &self.aborted),
                ("lies", &self.lies),
                ("accesses_of_none", &self.ones),
                ("disables_ignored", &self.ignored),
            ] {
                tree.add(name, &count.load(Relaxed));
            }
        });
    }
}

impl DeviceFaults {
    /// Returns true if accesses to memory can fail or be wrong.
    fn concern_memory(&self) -> bool {
        let planned = |planned: &Planned| matches!(planned, Planned::Read(_) | Planned::Write(_));
        self.read_abort != Ppm::NEVER
            || self.write_abort != Ppm::NEVER
            || self.write_lies != Ppm::NEVER
            || self.planned.iter().flatten().any(planned)
    }
}

/// Memory in which some accesses fail, as if the platform or an IOMMU had refused them.
struct Refusing {
    memory: Arc<dyn DmaMemory>,
    faults: Arc<Injector>,
}

impl DmaMemory for Refusing {
    fn contains(&self, addr: u64, len: usize, access: Access) -> bool {
        self.memory.contains(addr, len, access)
    }

    fn access(&self, addr: u64, len: usize, access: Access, f: &mut Slices<'_>) -> DmaResult {
        if self.faults.aborts(access) {
            return Err(DmaError { addr, len });
        }
        if !access.writes() || !self.faults.lies() {
            return self.memory.access(addr, len, access, f);
        }
        self.memory.access(addr, len, access, &mut |slice| {
            f(slice);
            self.faults.damage(&slice);
        })
    }
}

/// Returns true if a write is one of 0 to ENABLE of a control queue.
fn disables(offset: u64, data: &[u8]) -> bool {
    let register = Register::decode(offset);
    let enable = matches!(register, Some(Register::Cqs { reg: CqsReg::Enable, .. }));
    enable && data.first().is_some_and(|byte| byte & 1 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fates(faults: DeviceFaults) -> Vec<Fate> {
        let injector = Injector::default();
        injector.set(faults);
        (0..1000).map(|_| injector.message(0)).collect()
    }

    #[test]
    fn planned_message_meets_its_fate_alone() {
        let injector = Injector::default();
        let planned = Planned::Message { vector: 9, nth: 3, fate: Fate::Lost };
        let mut faults = DeviceFaults::default();
        faults.planned[1] = Some(planned);
        injector.set(faults);
        let fates: Vec<_> = (0..4).map(|_| (injector.message(9), injector.message(8))).collect();
        for (n, fates) in fates.into_iter().enumerate() {
            let expected = if n == 2 { Fate::Lost } else { Fate::Sent };
            assert_eq!(fates, (expected, Fate::Sent), "{n}");
        }
    }

    #[test]
    fn delayed_messages_are_sent_when_due() {
        let injector = Injector::default();
        injector.set(DeviceFaults {
            msix_delayed: Ppm::ALWAYS,
            delay_ns: 10,
            ..DeviceFaults::default()
        });
        assert_eq!(injector.message(4), Fate::Delayed);
        assert_eq!(injector.delay(4, 100), Some(110));
        assert_eq!(injector.delay(5, 105), Some(115));
        let mut sent = Vec::new();
        assert_eq!(injector.send_due(109, |vector| sent.push(vector)), 110);
        assert_eq!(injector.send_due(110, |vector| sent.push(vector)), 115);
        assert_eq!(injector.send_due(200, |vector| sent.push(vector)), u64::MAX);
        assert_eq!(sent, [4, 5]);
        for _ in 0..MOST_DELAYED {
            assert!(injector.delay(4, 0).is_some());
        }
        assert_eq!(injector.delay(4, 0), None);
    }

    #[test]
    fn planned_accesses_fail_alone() {
        let injector = Injector::default();
        let mut faults = DeviceFaults::default();
        faults.planned[0] = Some(Planned::Write(2));
        injector.set(faults);
        assert!(faults.concern_memory());
        let aborts = [Access::Write, Access::Read, Access::Write, Access::Write]
            .map(|access| injector.aborts(access));
        assert_eq!(aborts, [false, false, true, false]);
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
    fn lies_follow_their_share() {
        let injector = Injector::default();
        let read = |injector: &Injector| {
            let mut data = [0x5a; 8];
            injector.read(&mut data);
            data
        };
        assert_eq!(read(&injector), [0x5a; 8]);
        let faults = DeviceFaults { register_lies: Ppm::ALWAYS, ..DeviceFaults::default() };
        injector.set(faults);
        let lie = read(&injector);
        assert_ne!(lie, [0x5a; 8]);
        injector.set(faults);
        assert_eq!(read(&injector), lie, "the seed decides");
        assert!(!faults.concern_memory() && !injector.lies());

        injector.set(DeviceFaults { write_lies: Ppm::ALWAYS, ..DeviceFaults::default() });
        assert!(injector.lies());
        let mut memory = [7; 16];
        injector.damage(&VolatileSlice::from(&mut memory[..]));
        assert_eq!(memory.iter().filter(|byte| **byte != 7).count(), 1);
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
