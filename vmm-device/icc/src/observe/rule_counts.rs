//! Counts of the rules behind exceptions, and the counts of all rules.

use tofu_abi::TniId;
use tofu_abi::desc::DESC_SIZE;
use tofu_abi::irq::{BgsIrqs, CqsIrqs, TniIrqs};
use tofu_abi::queue::{MRQ_ENTRY_SIZE, PRQ_ENTRY_SIZE, TCQ_ENTRY_SIZE, queue_entries};
use tofu_abi::regs::{CACHE_INJECTION, CqsReg, Register, TniReg};
use tofu_rules::{Report, Rule};
use tofu_sync::lock;

use crate::cq::Cq;
use crate::device::Icc;
use crate::irq::IrqUnit;
use crate::memory::{Access, DmaMemory};
use crate::observe::blank::first_valid;
use crate::observe::rules::{OF_GATE, OF_INTERFACE, OF_QUEUE, of_interface, of_queue};
use crate::observe::violations::RegisterName;
use crate::tni::Tni;

/// The rings of a control queue: address, size, bytes of an entry, what the device does with it,
/// and the exception if it cannot.
const RINGS: [(CqsReg, CqsReg, usize, Access, CqsIrqs); 3] = [
    (CqsReg::ToqIpa, CqsReg::ToqSize, DESC_SIZE, Access::Read, CqsIrqs::TOQ_READ_EXCEPTION),
    (CqsReg::TcqIpa, CqsReg::ToqSize, TCQ_ENTRY_SIZE, Access::Write, CqsIrqs::TCQ_WRITE_EXCEPTION),
    (CqsReg::MrqIpa, CqsReg::MrqSize, MRQ_ENTRY_SIZE, Access::Write, CqsIrqs::MRQ_WRITE_EXCEPTION),
];
/// Memory is freed before the device has forgotten it.
const FORGOTTEN: Rule = Rule::Flush;

/// The rings of a queue whose first or last entry is no memory that the device reaches. A queue
/// need not have all of them: those at address 0 are left out.
fn unreachable_rings<'a>(
    queue: &'a Cq,
    memory: &'a dyn DmaMemory,
) -> impl Iterator<Item = (CqsReg, Rule)> + 'a {
    RINGS.into_iter().filter_map(move |(at, size, entry, access, exception)| {
        let first = queue.read(at) & !CACHE_INJECTION;
        let last = u64::from(queue_entries(queue.read(size))?.saturating_sub(1)) * entry as u64;
        let reaches = |at: u64| memory.contains(at, size_of::<u64>(), access);
        let whole = first == 0 || reaches(first) && first.checked_add(last).is_some_and(reaches);
        if whole { None } else { Some((at, of_queue(exception)?)) }
    })
}

/// The same for the packet queues of an interface.
fn unreachable_packets(tni: &Tni, memory: &dyn DmaMemory) -> Option<Rule> {
    let is_lost = |reg, access| {
        let at = tni.read(reg);
        at != 0 && !memory.contains(at, size_of::<u64>(), access)
    };
    let queues = [
        (TniReg::PrqPa, Access::Write, TniIrqs::PRQ_WRITE_EXCEPTION),
        (TniReg::PbqPa, Access::Read, TniIrqs::PBQ_READ_EXCEPTION),
    ];
    let mut lost = queues.into_iter().filter(|(reg, access, _)| is_lost(*reg, *access));
    lost.find_map(|(.., exception)| of_interface(exception))
}

impl Icc {
    /// Counts the rules behind these exceptions of a queue.
    #[inline]
    pub(crate) fn count_queue_exceptions(&self, requests: CqsIrqs) {
        if requests.intersects(CqsIrqs::EXCEPTIONS) {
            let broken = OF_QUEUE.iter().filter(|(bits, _)| requests.intersects(*bits));
            broken.for_each(|(_, rule)| self.rules.broke(*rule));
        }
    }

    /// The same for exceptions of an interface.
    #[inline]
    pub(crate) fn count_interface_exceptions(&self, requests: TniIrqs) {
        if !requests.without(TniIrqs::PRQ_WRITE_ACKNOWLEDGE).is_empty() {
            let broken = OF_INTERFACE.iter().filter(|(bits, _)| requests.intersects(*bits));
            broken.for_each(|(_, rule)| self.rules.broke(*rule));
        }
    }

    /// The same for exceptions of a gate.
    pub(crate) fn count_gate_exceptions(&self, requests: BgsIrqs) {
        let broken = OF_GATE.iter().filter(|(bits, _)| requests.intersects(*bits));
        broken.for_each(|(_, rule)| self.rules.broke(*rule));
    }

    /// Counts that a queue was disabled, and that the driver has not looked whether it has stopped
    /// before it does the next thing.
    pub(crate) fn note_unseen_stop(&self, queue: &Cq, register: &str) {
        if queue.set_unseen_stop(false) {
            let name = queue.name();
            let what =
                format_args!("write to {register}: {name} was disabled, and STATUS not read");
            self.breach(Rule::QueueStops, what);
        }
    }

    /// Counts entries that are valid in the rings of a queue that is going to be enabled.
    pub(crate) fn note_valid_entries(&self, queue: &Cq) {
        for (reg, size, rule) in [
            (CqsReg::TcqIpa, TCQ_ENTRY_SIZE, Rule::TcqBlank),
            (CqsReg::MrqIpa, MRQ_ENTRY_SIZE, Rule::MrqBlank),
        ] {
            let register = Register::Cqs { tni: queue.tni, cq: queue.id, reg };
            self.note_valid_entry((register, queue.read(reg)), size, rule);
        }
    }

    /// Counts rings of a queue that is going to be enabled that the device does not reach.
    pub(crate) fn note_unreachable_rings(&self, queue: &Cq) {
        if !self.dma_enabled() {
            return;
        }
        for (reg, rule) in unreachable_rings(queue, self.faultless_memory()) {
            let register = Register::Cqs { tni: queue.tni, cq: queue.id, reg };
            let what = format_args!(
                "ENABLE: not all of the ring at {}, {:#x}, is memory",
                RegisterName(register),
                queue.read(reg)
            );
            self.breach(rule, what);
        }
    }

    /// Counts entries of tables that the device still uses although the memory that they lead to
    /// has gone. The queue is about to forget them.
    pub(crate) fn note_lost_entries(&self, queue: &Cq) {
        if queue.enabled() && self.dma_enabled() {
            let lost = queue.tables.lost(self.faultless_memory());
            if lost > 0 {
                let name = queue.name();
                let what = format_args!("{name}: {lost} STags whose memory has gone, not flushed");
                self.breach(FORGOTTEN, what);
            }
        }
    }

    /// Counts queues that are enabled while Bus Master Enable is cleared.
    pub(crate) fn note_early_mastering(&self, queue: &Cq) {
        if queue.enabled() {
            let name = queue.name();
            self.breach(
                Rule::MasteringLast,
                format_args!("Bus Master Enable is cleared while {name} is enabled"),
            );
        }
    }

    /// The same for a packet receive queue, whose address is going to be set.
    pub(crate) fn note_packet_entries(&self, tni: TniId, address: u64) {
        if address != 0 {
            let register = Register::Tni { tni, reg: TniReg::PrqPa };
            self.note_valid_entry((register, address), PRQ_ENTRY_SIZE, Rule::PrqBlank);
        }
    }

    fn note_valid_entry(&self, (register, ring): (Register, u64), size: usize, rule: Rule) {
        if self.dma_enabled()
            && let Some(entry) = first_valid(self.faultless_memory(), ring, size)
        {
            let register = RegisterName(register);
            let what = format_args!("entry {entry} at {register}, {ring:#x}, is valid already");
            self.breach(rule, what);
        }
    }

    /// Counts that MRQ_FULL_POINTER is ahead, once until it is not.
    pub(crate) fn note_full_pointer(&self, queue: &Cq) {
        let mut completions = queue.lock_completions();
        let broken = completions.as_mut().and_then(|c| c.has_run_ahead(&queue.page));
        drop(completions);
        if let Some(rule) = broken {
            let name = queue.name();
            self.breach(rule, format_args!("{name} MRQ_FULL_POINTER is ahead of the notices"));
        }
    }

    /// Calls `watcher` for each broken rule that is found when it is broken, as
    /// [`Rules::watch`](tofu_rules::Rules::watch) does.
    pub fn watch_rules(&self, watcher: impl Fn(Rule) + Send + Sync + 'static) {
        self.rules.watch(watcher);
    }

    /// The counts of all rules. Pointers that are ahead are found now, entries of tables that have
    /// changed while the device still uses what it had read of them, and queues whose memory has
    /// gone.
    pub fn rules(&self) -> Report {
        self.queues()
            .iter()
            .filter(|queue| queue.enabled())
            .for_each(|q| self.note_full_pointer(q));
        for tni in self.tnis() {
            let mut packets = lock(&tni.packets);
            if packets.has_run_ahead(tni.read(TniReg::PrqFullPointer)) {
                self.rules.broke(Rule::PrqWritten);
            }
        }
        let mut report = self.rules.report();
        if self.dma_enabled() {
            let enabled = self.queues().iter().filter(|queue| queue.enabled());
            let stale = enabled.clone().map(|queue| queue.tables.stale(self.memory())).sum();
            report.add(FORGOTTEN, 0, stale);
            let memory = self.faultless_memory();
            let rings = enabled.flat_map(|q| unreachable_rings(q, memory)).map(|(_, rule)| rule);
            let tnis = self.tnis().iter().filter(|tni| tni.enabled());
            let packets = tnis.filter_map(|tni| unreachable_packets(tni, memory));
            rings.chain(packets).for_each(|rule| report.add(rule, 0, 1));
        }
        let queues = self.queues().iter().map(|queue| queue.irq.messages());
        let tnis = self.tnis().iter().map(|tni| tni.irq.messages());
        let gates = self.barrier.units().flat_map(|(_, unit)| &unit.irqs).map(IrqUnit::messages);
        let all = queues.chain(tnis).chain(gates).chain([self.tnr.messages()]);
        let (sent, lost) = all.fold((0, 0), |(sent, lost), (s, l)| (sent + s, lost + l));
        report.add(Rule::MsixEnabled, sent, lost);
        report
    }
}
