//! Counts of the rules behind exceptions, and the counts of all rules.

use tofu_abi::TniId;
use tofu_abi::irq::{BgsIrqs, CqsIrqs, TniIrqs};
use tofu_abi::queue::{MRQ_ENTRY_SIZE, PRQ_ENTRY_SIZE, TCQ_ENTRY_SIZE};
use tofu_abi::regs::{CqsReg, Register, TniReg};
use tofu_rules::{Report, Rule};
use tofu_sync::lock;

use crate::cq::Cq;
use crate::device::Icc;
use crate::irq::IrqUnit;
use crate::observe::blank::first_valid;
use crate::observe::rules::{OF_GATE, OF_INTERFACE, OF_QUEUE};
use crate::observe::violations::RegisterName;

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

    /// The counts of all rules. Pointers that are ahead are found now, and entries of tables that
    /// have changed while the device still uses what it had read of them.
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
            let stale = enabled.map(|queue| queue.tables.stale(self.memory())).sum();
            report.add(Rule::Flush, 0, stale);
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
