//! The crossbar's statistics queue, and counters for users rather than for drivers.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use tofu_abi::TniId;
use tofu_abi::queue::STQ_ENTRY_SIZE;
use tofu_abi::regs::NUM_TNI;
use tofu_fabric::{XbCounters, XbCycles};
use tofu_inspect::inspect;
use tofu_rules::{Point, Rule, Rules};
use tofu_sync::lock;

use crate::completions::Failures;
use crate::host::Host;
use crate::memory::DmaMemory;

/// Shortest time between two dumps of statistics, in nanoseconds, even if the guest asks for less
/// (ours). The dumps of all nodes of a machine then leave the engines time for other work.
const MIN_INTERVAL_NS: u64 = 100_000;

/// Modelled time of the commands of one TNI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelTime {
    /// Answers received.
    pub answers: u64,
    /// One-way time of the last request that was answered, in picoseconds.
    pub last_request_ps: u64,
    /// Sum over all answers of the time from command to answer, in picoseconds.
    pub total_ps: u64,
}

inspect!(ModelTime { answers, last_request_ps, total_ps });

/// Commands that were sent and failed elsewhere. Their TCQ entries say success; the notice of each
/// reports its failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailedCommands {
    /// Those that the target has refused.
    pub refused: u64,
    /// Those that have not reached a target, or whose answer timed out.
    pub lost: u64,
}

inspect!(FailedCommands { refused, lost });

/// Accesses that no register claims and accesses of a wrong size.
#[derive(Debug, Default)]
pub struct Faults {
    unclaimed: AtomicU64,
    malformed: AtomicU64,
}

inspect!(Faults { unclaimed, malformed });

impl Faults {
    /// Accesses where no register is; reads give 0 and writes are ignored.
    pub fn unclaimed(&self) -> u64 {
        self.unclaimed.load(Relaxed)
    }

    /// Accesses of a size or alignment that registers do not have; they have no effect.
    pub fn malformed(&self) -> u64 {
        self.malformed.load(Relaxed)
    }

    pub(crate) fn count_unclaimed(&self) {
        self.unclaimed.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_malformed(&self) {
        self.malformed.fetch_add(1, Relaxed);
    }
}

/// Counters without registers, and the statistics queue.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    model: [(AtomicU64, AtomicU64, AtomicU64); NUM_TNI],
    /// For each TNI, the commands that were refused and those that were lost.
    failed: [(AtomicU64, AtomicU64); NUM_TNI],
    pub(crate) enable: AtomicBool,
    pub(crate) interval: AtomicU64,
    pub(crate) address: AtomicU64,
    pub(crate) entries: AtomicU64,
    pub(crate) next_offset: AtomicU64,
    due: AtomicU64,
    /// Held while a dump is written, so that others can wait for its end.
    dumping: Mutex<()>,
}

inspect!(Statistics {
    model as skip,
    failed as skip,
    enable,
    interval,
    address,
    entries,
    next_offset,
    due,
    dumping as skip,
});

impl Statistics {
    pub(crate) fn reset(&self) {
        self.enable.store(false, SeqCst);
        for register in [&self.interval, &self.address, &self.entries, &self.next_offset] {
            register.store(0, SeqCst);
        }
        self.due.store(0, SeqCst);
        for (refused, lost) in &self.failed {
            refused.store(0, Relaxed);
            lost.store(0, Relaxed);
        }
        self.quiesce();
    }

    /// Waits for a dump in progress. The caller must prevent another one.
    pub(crate) fn quiesce(&self) {
        drop(lock(&self.dumping));
    }

    pub(crate) fn model_time(&self, tni: TniId) -> ModelTime {
        let (answers, last, total) = &self.model[tni.index()];
        ModelTime {
            answers: answers.load(Relaxed),
            last_request_ps: last.load(Relaxed),
            total_ps: total.load(Relaxed),
        }
    }

    pub(crate) fn count_model_time(&self, tni: TniId, request_ps: u64, answer_ps: u64) {
        let (answers, last, total) = &self.model[tni.index()];
        answers.fetch_add(1, Relaxed);
        last.store(request_ps, Relaxed);
        total.fetch_add(answer_ps, Relaxed);
    }

    pub(crate) fn failed_commands(&self, tni: TniId) -> FailedCommands {
        let (refused, lost) = &self.failed[tni.index()];
        FailedCommands { refused: refused.load(Relaxed), lost: lost.load(Relaxed) }
    }

    pub(crate) fn count_failures(&self, tni: TniId, failures: &Failures) {
        let (refused, lost) = &self.failed[tni.index()];
        refused.fetch_add(failures.refused, Relaxed);
        lost.fetch_add(failures.lost, Relaxed);
    }

    /// Starts or stops the periodic dump of crossbar counters. Returns when the first one is due.
    pub(crate) fn switch(&self, on: bool, now_ns: u64) -> Option<u64> {
        self.enable.store(on, SeqCst);
        self.quiesce();
        if !on {
            return None;
        }
        self.next_offset.store(0, SeqCst);
        Some(self.set_due(now_ns))
    }

    fn set_due(&self, now_ns: u64) -> u64 {
        let due = now_ns.saturating_add(self.interval.load(SeqCst).max(MIN_INTERVAL_NS));
        self.due.store(due, SeqCst);
        due
    }

    /// Writes a dump if it is due by now. Returns when the next one is.
    pub(crate) fn expire(
        &self,
        host: &dyn Host,
        memory: &dyn DmaMemory,
        dma: &AtomicBool,
        now_ns: u64,
        rules: &Rules,
    ) -> Option<u64> {
        if !self.enable.load(SeqCst) {
            return None;
        }
        let due = self.due.load(SeqCst);
        if due > now_ns {
            return Some(due);
        }
        self.dump(host, memory, dma, rules);
        Some(self.set_due(now_ns))
    }

    fn dump(&self, host: &dyn Host, memory: &dyn DmaMemory, dma: &AtomicBool, rules: &Rules) {
        let _dumping = lock(&self.dumping);
        let entries = self.entries.load(SeqCst);
        if entries == 0 || !self.enable.load(SeqCst) || !dma.load(SeqCst) {
            return;
        }
        let offset = self.next_offset.load(SeqCst);
        let data = statistics_entry(&host.xb_counters());
        if memory.write(self.address.load(SeqCst).wrapping_add(offset), &data).is_err() {
            // There is no exception for this; the dumps just end.
            self.enable.store(false, SeqCst);
            rules.broke(Rule::StatisticsQueue);
            return;
        }
        rules.kept(Point::Dump);
        let next = offset + STQ_ENTRY_SIZE as u64;
        let size = entries.saturating_mul(STQ_ENTRY_SIZE as u64);
        self.next_offset.store(if next >= size { 0 } else { next }, SeqCst);
    }
}

/// One dump: data and wait cycles of TNI t at 0x10 t, of port p at 0x60 + 0x10 p.
fn statistics_entry(xb: &XbCounters) -> [u8; STQ_ENTRY_SIZE] {
    let mut entry = [0; STQ_ENTRY_SIZE];
    let cycles: [&[XbCycles]; 2] = [&xb.tni, &xb.port];
    for (chunk, c) in entry.chunks_exact_mut(16).zip(cycles.into_iter().flatten()) {
        chunk[..8].copy_from_slice(&c.data.to_le_bytes());
        chunk[8..].copy_from_slice(&c.wait.to_le_bytes());
    }
    entry
}
