//! Counts of the rules behind exceptions, and the counts of all rules.

use tofu_abi::irq::{BgsIrqs, CqsIrqs, TniIrqs};
use tofu_rules::{Report, Rule};

use crate::device::Icc;
use crate::irq::IrqUnit;
use crate::observe::rules::{OF_GATE, OF_INTERFACE, OF_QUEUE};

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

    /// The counts of all rules. Also checks for entries of tables that have changed while the
    /// device still uses its cached copies.
    pub fn rules(&self) -> Report {
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
