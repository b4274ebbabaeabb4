//! The Tofu barrier: gates and channels of every interface, between registers, memory and network.
//!
//! Gates work by themselves: an arriving signal is combined, passed on or turned into a notice
//! within [`Icc::arrive`], without the node's processors. The lock of an interface's gates is held
//! while the gates are processed and a notice is written. Interrupts are requested and signals are
//! sent after it is released, so no two such locks are ever held together.

pub(crate) mod gates;
mod page;
mod schedule;
pub(crate) mod unit;

use std::sync::MutexGuard;

use tofu_abi::barrier::{BCH_MASK, BchReady, BgAddress, Notice, NoticeStatus, OpType};
use tofu_abi::irq::{BgsIrqs, TniIrqs};
use tofu_abi::reduce::{Op, VALUE_QWORDS};
use tofu_abi::regs::{BchReg, BgsReg, NUM_CQ, Register, TniReg};
use tofu_abi::{BchId, BgId, Rcode, TniId};
use tofu_fabric::{Class, Packet, Way};
use tofu_sync::lock;

use crate::barrier::gates::{BarrierTime, Content, Effects, Ended, Gates, SentSignal};
use crate::barrier::page::ChannelPage;
use crate::barrier::unit::{BarrierUnit, channels};
use crate::device::Icc;
use crate::host::Net;
use crate::irq::IrqUnit;
use crate::memory::{DmaError, DmaMemory};
use crate::notice::Peer;
use crate::observe::violations::RegisterName;
use crate::tlp::{Body, Signal, wire_bytes};
use tofu_dma::RegisterWrite;
use tofu_rules::{Point, Rule};

impl Icc {
    /// The gates of an interface that has any, whose registers are about to be written.
    fn barrier_unit(&self, tni: TniId) -> Option<&BarrierUnit> {
        self.barrier.get_or_make(self.coords(), tni, self.profile(), self.pages())
    }

    /// Modelled time of the rounds of a barrier channel.
    pub fn barrier_time(&self, tni: TniId, bch: BchId) -> BarrierTime {
        let time = |unit: &BarrierUnit| lock(&unit.gates).time(bch);
        self.barrier.get(tni).map_or_else(BarrierTime::default, time)
    }

    /// Waits until nothing is written to notice areas any more. Bus mastering must be off.
    pub(crate) fn quiesce_barrier(&self) {
        for (_, unit) in self.barrier.units() {
            drop(lock(&unit.gates));
        }
    }

    /// Puts all gates and channels back to their reset state.
    pub(crate) fn reset_barrier(&self) {
        for (tni, unit) in self.barrier.units() {
            let _life = lock(&unit.life);
            let mut gates = lock(&unit.gates);
            let fresh = Gates::new(self.coords(), tni, self.profile());
            let old = std::mem::replace(&mut *gates, fresh);
            unit.irqs.iter().for_each(IrqUnit::reset);
            unit.clear_pages();
            drop(gates);
            for bch in channels(self.profile()).filter(|bch| !old.masked(*bch)) {
                self.host().queue_enabled(tni, bch.into(), false);
            }
        }
    }

    /// Returns true if a barrier channel is in use: not masked.
    pub(crate) fn channel_in_use(&self, tni: TniId, bch: BchId) -> bool {
        self.barrier.get(tni).is_some_and(|unit| !lock(&unit.gates).masked(bch))
    }

    pub(crate) fn read_bgs(&self, tni: TniId, bg: BgId, reg: BgsReg) -> u64 {
        let profile = self.profile();
        if !profile.has_gate(tni, bg) {
            return 0;
        }
        let Some(unit) = self.barrier.get(tni) else {
            return match reg {
                BgsReg::Imr | BgsReg::Imc => u64::MAX,
                BgsReg::BchMask if profile.has_start_gate(tni, bg) => BCH_MASK,
                _ => 0,
            };
        };
        let Some(irq) = unit.irq(bg) else {
            return 0;
        };
        match reg {
            BgsReg::Irr => irq.pending(),
            BgsReg::Imr | BgsReg::Imc => irq.mask(),
            BgsReg::Icl => irq.level(),
            BgsReg::DataA0 | BgsReg::DataAe | BgsReg::DataB0 | BgsReg::DataBe => 0,
            // IRC and BCH_MASK_STATUS are among the registers that gates do not know: 0.
            _ => lock(&unit.gates).read(bg, reg),
        }
    }

    /// A qword of a gate's data buffers.
    pub(crate) fn read_bgs_data(&self, tni: TniId, bg: BgId, buffer: u8, qword: u8) -> u64 {
        self.barrier.get(tni).map_or(0, |unit| lock(&unit.gates).data(bg, buffer, qword))
    }

    /// Writes a gate's register.
    pub(crate) fn write_bgs(&self, tni: TniId, bg: BgId, reg: BgsReg, write: RegisterWrite) {
        let Some(unit) = self.barrier_unit(tni) else {
            return;
        };
        let Some(irq) = unit.irq(bg) else {
            return;
        };
        match reg {
            BgsReg::Imr => irq.set_mask(write.bits()),
            BgsReg::Irc => irq.clear_pending(write.bits()),
            BgsReg::Imc => irq.clear_mask(self.host(), write.bits()),
            BgsReg::Icl => irq.set_level(write.merge(irq.level())),
            BgsReg::Enable => {
                let mut gates = lock(&unit.gates);
                let on = write.merge(gates.read(bg, BgsReg::Enable)) & 1 != 0;
                let result = if on {
                    gates.enable(bg)
                } else {
                    gates.disable(bg);
                    Ok(())
                };
                if let Some(bch) = bg.channel() {
                    unit.publish(&gates, bch);
                }
                drop(gates);
                if let Err(requests) = result {
                    let register = RegisterName(Register::Bgs { tni, bg, reg });
                    let what = format_args!("{register}: its links are refused: {requests:?}");
                    self.breach(Rule::GateLinks, what);
                    irq.request(self.host(), requests);
                } else if on {
                    self.rules.lane(tni.index()).kept(Point::GateEnabled);
                }
            }
            BgsReg::BchMask => {
                let Some(bch) = bg.channel() else { return };
                let _life = lock(&unit.life);
                let mut gates = lock(&unit.gates);
                let was = gates.masked(bch);
                let value = write.merge(gates.read(bg, reg));
                gates.write(bg, reg, value);
                unit.publish(&gates, bch);
                let is = gates.masked(bch);
                drop(gates);
                if was != is {
                    self.host().queue_enabled(tni, bch.into(), !is);
                }
            }
            _ => {
                let mut gates = lock(&unit.gates);
                let fixed = gates.read(bg, BgsReg::Enable) & 1 != 0 && reg != BgsReg::BchNoticeIpa;
                let value = write.merge(gates.read(bg, reg));
                gates.write(bg, reg, value);
                drop(gates);
                self.note_gate_set_up(Register::Bgs { tni, bg, reg }, tni, fixed);
            }
        }
    }

    /// Counts a write to a register of a gate, which is `fixed` while the gate is enabled.
    fn note_gate_set_up(&self, register: Register, tni: TniId, fixed: bool) {
        if !fixed {
            self.rules.lane(tni.index()).kept(Point::GateSetUp);
            return;
        }
        let register = RegisterName(register);
        self.breach(Rule::GateRegisters, format_args!("write to {register}: the gate is enabled"));
    }

    pub(crate) fn read_bch(&self, tni: TniId, bch: BchId, reg: BchReg) -> u64 {
        let unit = self.barrier.get(tni);
        unit.and_then(|unit| unit.page(bch)).map_or(0, |page| page.read(reg))
    }

    /// Writes a register of a channel's page.
    pub(crate) fn write_bch(&self, tni: TniId, bch: BchId, reg: BchReg, write: RegisterWrite) {
        let unit = self.barrier_unit(tni);
        let Some(page) = unit.and_then(|unit| unit.page(bch)) else {
            return;
        };
        if page.write(reg, write) {
            self.host().doorbell(tni, bch.into());
        }
    }

    /// Returns true if a channel's shared page asks for a round to be started.
    pub(crate) fn poll_channel(&self, tni: TniId, bch: BchId) -> bool {
        let unit = self.barrier.get(tni);
        unit.and_then(|unit| unit.page(bch)).is_some_and(ChannelPage::poll)
    }

    /// Starts the round that a channel's page asks for, if it does.
    pub(crate) fn run_channel(&self, tni: TniId, bch: BchId, net: &mut dyn Net) {
        let Some(unit) = self.barrier.get(tni) else {
            return;
        };
        let Some(page) = unit.page(bch) else {
            return;
        };
        let ready = {
            let mut processing = self.processing(tni, unit, net);
            let (gates, effects) = processing.parts();
            let Some(word) = page.take_start() else {
                return;
            };
            let ready = self.tni(tni).enabled() && gates.ready(bch).state();
            if !self.tni(tni).enabled() {
                gates.ignore_start(bch);
            } else if gates.start(bch, BchReady(word), page.input(), effects)
                && let Some(irq) = unit.irq(bch.gate())
            {
                // Callers that start a round need not do it: the page of a channel has no IRC.
                irq.clear_pending(BgsIrqs::ACKNOWLEDGES.raw());
            }
            unit.publish(gates, bch);
            ready
        };
        if ready {
            self.rules.lane(tni.index()).kept(Point::Round);
        } else {
            let what = format_args!("TNI {tni} BCH {bch}: a round is started, and READY is 0");
            self.breach(Rule::RoundReady, what);
        }
        net.progress();
    }

    /// Handles a signal that arrived for a gate of this node.
    pub(crate) fn take_signal(
        &self,
        tni: TniId,
        from: Peer,
        signal: &Signal,
        at_ps: u64,
        net: &mut dyn Net,
    ) {
        if !signal.is_legal() {
            self.tni(tni).add(TniReg::RxNumUnknownTlp, 1);
            return;
        }
        let source = BgAddress::new(from.node, from.tni, signal.source);
        let Some(unit) = self.barrier.get(tni).filter(|_| self.tni(tni).enabled()) else {
            self.inactive_gate(tni, signal.target, source.place());
            return;
        };
        let content = Content {
            bseq: signal.bseq,
            gpid: signal.gpid,
            op: signal.op,
            value: signal.value.as_deref().copied().unwrap_or([0; VALUE_QWORDS]),
        };
        let mut processing = self.processing(tni, unit, net);
        let (gates, effects) = processing.parts();
        gates.arrive(signal.target, source, &content, at_ps, effects);
        if effects.requests.is_empty() && effects.inactive.is_none() {
            self.rules.lane(tni.index()).kept(Point::Signal);
        }
        if let Some(bch) = signal.target.channel()
            && let Some(page) = unit.page(bch)
        {
            page.show_ignored(gates.ignored(bch));
        }
    }

    /// Locks the gates of an interface, to process signals.
    fn processing<'a>(
        &'a self,
        tni: TniId,
        unit: &'a BarrierUnit,
        net: &'a mut dyn Net,
    ) -> Processing<'a> {
        let effects = Effects::default();
        let consequences = Consequences { icc: self, tni, unit, effects, net };
        Processing { gates: lock(&unit.gates), consequences }
    }

    /// Handles the loss of a gate's signal. If its target does not exist, that is an exception of
    /// the gate. If a link is down, that is an exception of the port, and the gates that wait keep
    /// waiting.
    pub(crate) fn signal_lost(&self, tni: TniId, signal: &Signal, code: Rcode) {
        if !matches!(code, Rcode::NO_SUCH_NODE | Rcode::NO_SUCH_PATH) {
            return;
        }
        let irq = self.barrier.get(tni).and_then(|u| u.irq(signal.source));
        if let Some(irq) = irq {
            let request = BgsIrqs::BG_SEND_ADDRESS_EXCEPTION;
            self.count_gate_exceptions(request);
            irq.request(self.host(), request);
        }
    }

    fn write_notice(&self, ended: &Ended) -> Result<(), DmaError> {
        let Content { bseq, op, value, .. } = &ended.content;
        let at = ended.notice.wrapping_add(Notice::offset(*bseq) as u64);
        let status_at = ended.notice.wrapping_add(Notice::status_offset(*bseq) as u64);
        if !self.dma_enabled() {
            return Err(DmaError { addr: at, len: tofu_abi::barrier::NOTICE_SIZE / 2 });
        }
        if op.op().is_some_and(|op| op != Op::Barrier) {
            let mut bytes = [0; VALUE_QWORDS * 8];
            for (chunk, word) in bytes.chunks_exact_mut(8).zip(value) {
                chunk.copy_from_slice(&word.to_le_bytes());
            }
            self.memory().write(at, &bytes)?;
        }
        let status = NoticeStatus(0).with_bseq(*bseq).with_op(op.code()).with_valid(true);
        self.memory().store(status_at, status.0)
    }

    /// Notes a signal to a gate that is not enabled.
    fn inactive_gate(&self, tni: TniId, target: BgId, source: BgAddress) {
        let unit = self.tni(tni);
        unit.set_inactive_gate(target, source);
        self.count_interface_exceptions(TniIrqs::INACTIVE_BG);
        unit.irq.request(self.host(), TniIrqs::INACTIVE_BG);
    }

    fn signal_packet(&self, tni: TniId, sent: &SentSignal) -> Packet<Body> {
        let SentSignal { from, to, content, at_ps } = sent;
        let carries = content.op.op().is_some_and(|op| op != Op::Barrier);
        let signal = Signal {
            source: *from,
            target: BgId::from_field(to.bg()),
            gpid: content.gpid,
            bseq: content.bseq,
            op: content.op,
            value: carries.then(|| Box::new(content.value)),
        };
        let bytes = wire_bytes(signal.payload_bytes());
        Packet {
            src: self.coords(),
            src_tni: tni,
            dst: to.coords(),
            dst_tni: to.tni(),
            path: to.path(),
            way: Way::Shortest,
            // Its receiver always accepts it, but this way answers never wait behind signals.
            class: Class::Request,
            system: false,
            tlps: 1,
            bytes,
            tlp_bytes: bytes as u32,
            gap: 0,
            sender: NUM_CQ as u8,
            before: 0,
            bad: None,
            model_ps: *at_ps,
            body: Body::Signal(signal),
        }
    }
}

/// The gates of an interface, locked. When this is dropped the notices of ended rounds are written
/// first; then the gates are unlocked, and the pending [`Consequences`] are carried out.
struct Processing<'a> {
    // Fields are dropped in this order.
    gates: MutexGuard<'a, Gates>,
    consequences: Consequences<'a>,
}

impl Processing<'_> {
    /// The gates, and where the results of their calls are collected.
    fn parts(&mut self) -> (&mut Gates, &mut Effects) {
        (&mut self.gates, &mut self.consequences.effects)
    }
}

impl Drop for Processing<'_> {
    fn drop(&mut self) {
        let Consequences { icc, tni, unit, effects, .. } = &mut self.consequences;
        // READY is written before the notices. Software that sees the notice may start the next
        // round by a write to READY, which must not be overwritten.
        for ended in &effects.ended {
            unit.publish(&self.gates, ended.bch);
        }
        for ended in &effects.ended {
            let request = match icc.write_notice(ended) {
                Err(_) => BgsIrqs::DMA_COMPLETION_EXCEPTION,
                Ok(()) if ended.content.op == OpType::ERROR => {
                    BgsIrqs::ERROR_SYNCHRONIZATION_ACKNOWLEDGE
                }
                Ok(()) => BgsIrqs::SYNCHRONIZATION_ACKNOWLEDGE,
            };
            if request.intersects(BgsIrqs::ACKNOWLEDGES) {
                icc.rules.lane(tni.index()).kept(Point::RoundNotice);
            }
            effects.requests.push((ended.bch.gate(), request));
        }
    }
}

/// When this is dropped, interrupts are requested and signals are sent.
struct Consequences<'a> {
    icc: &'a Icc,
    tni: TniId,
    unit: &'a BarrierUnit,
    effects: Effects,
    net: &'a mut dyn Net,
}

impl Drop for Consequences<'_> {
    fn drop(&mut self) {
        let Self { icc, tni, unit, effects, net } = self;
        for &(bg, bits) in &effects.requests {
            if let Some(irq) = unit.irq(bg) {
                icc.count_gate_exceptions(bits);
                irq.request(icc.host(), bits);
            }
        }
        if let Some((target, source)) = effects.inactive {
            icc.inactive_gate(*tni, target, source);
        }
        for sent in &effects.sent {
            let packet = icc.signal_packet(*tni, sent);
            icc.tni(*tni).count_sent(packet.tlps, packet.bytes);
            net.inject(packet);
        }
    }
}
