//! The guest's accesses to the register space through BAR0.

use std::sync::atomic::Ordering::SeqCst;

use tofu_abi::irq::{CqsIrqs, TniIrqs};
use tofu_abi::regs::{CqReg, CqsReg, NodeAddress, PortReg, Register, TniReg, TofuReg, XbReg};
use tofu_abi::{CqId, TniId};
use tofu_fabric::{Port, PortCounters};
use tofu_sync::lock;

use crate::cq::Cq;
use crate::device::Icc;
use crate::observe::violations::{QueueName, RegisterName, is_read_only};
use crate::packets::queues::PacketQueues;
use crate::page::DIRECT;
use tofu_dma::{RegisterWrite, aligned};
use tofu_rules::{Point, Rule};

/// The value that rings a doorbell.
const DOORBELL: [u8; 8] = 1u64.to_le_bytes();

impl Icc {
    /// A read of `data.len()` bytes at `offset` of BAR0.
    ///
    /// Reads of 8 bytes aligned to 8 and of 4 bytes aligned to 4 are defined. Others are counted
    /// and read 0, as does an offset without a register.
    pub fn bar_read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        let Some((at, shift)) = aligned(offset, data.len()) else {
            self.malformed("read", offset, data.len());
            return;
        };
        let value = match self.decode(at) {
            Some(register) => {
                self.rules.kept(Point::Read);
                self.read_register(register)
            }
            None => {
                self.unclaimed("read", offset);
                0
            }
        };
        data.copy_from_slice(&(value >> shift).to_le_bytes()[..data.len()]);
    }

    /// A write of `data.len()` bytes at `offset` of BAR0.
    ///
    /// As for reads, 4 and 8 bytes are defined. The direct descriptor register also takes 16, 32
    /// and 64 bytes at a multiple of 8.
    pub fn bar_write(&self, offset: u64, data: &[u8]) {
        if let Some((tni, cq)) = Register::doorbell(offset)
            && data == DOORBELL
            && self.description().has_tni(tni)
            && self.description().has_cq(cq)
            && self.queue(tni, cq).enabled()
        {
            self.rules.lane(tni.index()).kept(Point::Doorbell);
            self.host().doorbell(tni, cq.into());
            return;
        }
        self.write_any(offset, data);
    }

    /// [`Icc::bar_write`] of any register.
    fn write_any(&self, offset: u64, data: &[u8]) {
        if matches!(data.len(), 16 | 32 | 64) && offset.is_multiple_of(8) {
            let end = offset.saturating_add(data.len() as u64 - 8);
            let direct = |at| match self.decode(at) {
                Some(Register::Cq { reg, .. }) => DIRECT.contains(&reg),
                _ => false,
            };
            if direct(offset) && direct(end) {
                for (i, word) in data.chunks_exact(8).enumerate() {
                    self.write_any(offset + 8 * i as u64, word);
                }
                return;
            }
        }
        let Some((at, write)) = RegisterWrite::at(offset, data) else {
            self.malformed("write", offset, data.len());
            return;
        };
        match self.decode(at) {
            Some(register) => self.write_register(register, write),
            None => self.unclaimed("write", offset),
        }
    }

    /// The register at `offset` of BAR0, if a device of this generation has it.
    #[inline]
    fn decode(&self, offset: u64) -> Option<Register> {
        Register::decode(offset).filter(|register| self.description().has_register(*register))
    }

    fn malformed(&self, what: &str, offset: u64, len: usize) {
        self.faults.count_malformed();
        self.breach(Rule::AccessSize, format_args!(
            "{what} of {len} bytes at BAR0 offset {offset:#x}: registers take 4 or 8 bytes at a \
             multiple of as many"
        ));
    }

    fn unclaimed(&self, what: &str, offset: u64) {
        self.faults.count_unclaimed();
        let what = format_args!("{what} at BAR0 offset {offset:#x}: there is no register");
        self.breach(Rule::AccessPlace, what);
    }

    fn read_register(&self, register: Register) -> u64 {
        match register {
            Register::Cq { tni, cq, reg } => self.queue(tni, cq).read_page(reg),
            Register::Cqs { tni, cq, reg } => {
                let queue = self.queue(tni, cq);
                if reg == CqsReg::Status && queue.set_unseen_stop(false) {
                    self.rules.lane(tni.index()).kept(Point::QueueStopped);
                }
                queue.read(reg)
            }
            Register::Tni { reg: TniReg::CqPresent, .. } => (1 << self.description().cqs) - 1,
            Register::Tni { tni, reg } => self.tni(tni).read(reg),
            Register::Port { port, reg } => self.read_port(port, reg),
            Register::Xb(reg) => self.read_xb(reg),
            Register::Tofu(reg) => self.read_tofu(register, reg),
            Register::Bgs { tni, bg, reg } => self.read_bgs(tni, bg, reg),
            Register::BgsData { tni, bg, buffer, qword } => {
                self.read_bgs_data(tni, bg, buffer, qword)
            }
            Register::Bch { tni, bch, reg } => self.read_bch(tni, bch, reg),
        }
    }

    fn write_register(&self, register: Register, write: RegisterWrite) {
        if is_read_only(register) {
            self.breach(
                Rule::ReadOnly,
                format_args!(
                    "write of {:#x} to {}: read-only",
                    write.bits(),
                    RegisterName(register)
                ),
            );
            return;
        }
        if !matches!(register, Register::Cq { .. }) {
            self.rules.kept(Point::Write);
        }
        match register {
            Register::Cq { tni, cq, reg } => self.write_cq(tni, cq, reg, write),
            Register::Cqs { tni, cq, reg } => self.write_cqs(tni, cq, reg, write),
            Register::Tni { tni, reg } => self.write_tni(tni, reg, write),
            Register::Xb(reg) => self.write_xb(reg, write),
            Register::Tofu(reg) => self.write_tofu(register, reg, write),
            // Counters.
            Register::Port { .. } => {}
            Register::Bgs { tni, bg, reg } => self.write_bgs(tni, bg, reg, write),
            Register::Bch { tni, bch, reg } => self.write_bch(tni, bch, reg, write),
            // Only the gates write these.
            Register::BgsData { .. } => {}
        }
    }

    fn write_cq(&self, tni: TniId, cq: CqId, reg: CqReg, write: RegisterWrite) {
        let queue = self.queue(tni, cq);
        if reg != CqReg::FetchStart
            && let Some(word) = DIRECT.iter().position(|direct| *direct == reg)
        {
            if !queue.enabled() {
                self.not_enabled(tni, cq, reg);
                return;
            }
            match queue.write_direct(word, write) {
                Ok(true) => {
                    self.rules.lane(tni.index()).kept(Point::Doorbell);
                    self.host().doorbell(tni, cq.into());
                }
                Ok(false) => {}
                Err(()) => {
                    self.breach(
                        Rule::DirectWaits,
                        format_args!(
                            "{}: a direct descriptor while the one before waits: the queue stops",
                            QueueName(tni, cq)
                        ),
                    );
                    queue.stop();
                    queue.irq.request(self.host(), CqsIrqs::TOQ_DIRECT_DESCRIPTOR_EXCEPTION);
                }
            }
            return;
        }
        match reg {
            CqReg::FetchStart if queue.enabled() => {
                self.note_doorbell(queue, write);
                self.host().doorbell(tni, cq.into());
            }
            CqReg::FetchStart => self.not_enabled(tni, cq, reg),
            CqReg::MrqFullPointer
            | CqReg::PiggybackBuffer0
            | CqReg::PiggybackBuffer1
            | CqReg::PiggybackBuffer2 => {
                queue.page.store(reg, write.merge(queue.page.load(reg)));
                if reg == CqReg::MrqFullPointer {
                    self.note_full_pointer(queue);
                }
            }
            // Counters.
            _ => {}
        }
    }

    fn not_enabled(&self, tni: TniId, cq: CqId, reg: CqReg) {
        let register = RegisterName(Register::Cq { tni, cq, reg });
        let what = format_args!("write to {register}: the queue is not enabled");
        self.breach(Rule::DoorbellEnabled, what);
    }

    /// Counts a doorbell. Other values than 1 ring as well, but not in a shared page.
    fn note_doorbell(&self, queue: &Cq, write: RegisterWrite) {
        if write.bits() == 1 {
            self.rules.lane(queue.tni.index()).kept(Point::Doorbell);
            return;
        }
        let (name, bits) = (queue.name(), write.bits());
        let what = format_args!("write of {bits:#x} to {name} TOQ_FETCH_START: write 1");
        self.breach(Rule::DoorbellValue, what);
    }

    /// Counts a write to a register that is read when the queue is enabled.
    fn note_set_up(&self, queue: &Cq, reg: CqsReg) {
        if !queue.enabled() {
            self.rules.lane(queue.tni.index()).kept(Point::QueueSetUp);
            return;
        }
        let register = RegisterName(Register::Cqs { tni: queue.tni, cq: queue.id, reg });
        let what =
            format_args!("write to {register}: the queue is enabled, which does not read it");
        self.breach(Rule::QueueRegisters, what);
    }

    fn write_cqs(&self, tni: TniId, cq: CqId, reg: CqsReg, write: RegisterWrite) {
        let queue = self.queue(tni, cq);
        // Half writes of set and clear registers act by themselves; those of other registers merge.
        let bits = write.bits();
        let merged = write.merge(queue.read(reg));
        match reg {
            CqsReg::Status => {}
            CqsReg::Enable => {
                if let Some(on) = write.switch() {
                    self.enable_queue(queue, on);
                }
            }
            CqsReg::CacheFlush => queue.tables.flush(),
            CqsReg::FetchStop => {
                if let Some(stop) = write.switch() {
                    queue.set_fetch_stop(stop);
                    if !stop && queue.enabled() {
                        self.host().doorbell(tni, cq.into());
                    }
                }
            }
            CqsReg::MemoryBlockTableEnable
            | CqsReg::MemoryBlockTableIpa
            | CqsReg::MemoryBlockTableSize
            | CqsReg::SteeringTableEnable
            | CqsReg::SteeringTableIpa
            | CqsReg::SteeringTableSize => {
                self.note_lost_entries(queue);
                queue.tables.write(reg, merged);
            }
            CqsReg::Irr => {}
            CqsReg::Imr => queue.irq.set_mask(bits),
            CqsReg::Irc => queue.irq.clear_pending(bits),
            CqsReg::Imc => queue.irq.clear_mask(self.host(), bits),
            CqsReg::Icl => queue.irq.set_level(merged),
            // Counters.
            CqsReg::ToqDirectSourceCount | CqsReg::ToqDirectDescriptorCount => {}
            CqsReg::ToqIpa
            | CqsReg::ToqSize
            | CqsReg::TcqIpa
            | CqsReg::MrqIpa
            | CqsReg::MrqSize => {
                self.note_set_up(queue, reg);
                queue.write_plain(reg, merged);
            }
            _ => {
                queue.write_plain(reg, merged);
                queue.renew_policy();
            }
        }
    }

    fn enable_queue(&self, queue: &Cq, on: bool) {
        let _life = lock(&queue.life);
        if on {
            if queue.enabled() {
                return;
            }
            self.note_unseen_stop(queue, "ENABLE");
            self.note_valid_entries(queue);
            self.note_unreachable_rings(queue);
            match queue.enable(self.description()) {
                // Descriptors already in the queue are fetched at the next doorbell.
                Ok(()) => {
                    self.host().queue_enabled(queue.tni, queue.id.into(), true);
                    if self.dma_enabled() {
                        self.rules.lane(queue.tni.index()).kept(Point::QueueEnabled);
                    } else {
                        let name = queue.name();
                        let what = format_args!("{name} ENABLE: Bus Master Enable is 0");
                        self.breach(Rule::EnableMastering, what);
                    }
                }
                Err((broken, reg, value, rule)) => {
                    let register =
                        RegisterName(Register::Cqs { tni: queue.tni, cq: queue.id, reg });
                    let what = format_args!("ENABLE, with {value:#x} in {register}: {rule}");
                    self.breach(broken, what);
                    queue.irq.request(self.host(), CqsIrqs::TOQ_READ_EXCEPTION);
                }
            }
        } else {
            self.note_full_pointer(queue);
            self.note_lost_entries(queue);
            if queue.disable() {
                queue.set_unseen_stop(true);
                self.host().queue_enabled(queue.tni, queue.id.into(), false);
            }
        }
    }

    fn write_tni(&self, tni: TniId, reg: TniReg, write: RegisterWrite) {
        let unit = self.tni(tni);
        let bits = write.bits();
        let merged = write.merge(unit.read(reg));
        match reg {
            TniReg::Imr => unit.irq.set_mask(bits & TniIrqs::ALL.raw()),
            TniReg::Irc => unit.irq.clear_pending(bits),
            TniReg::Imc => unit.irq.clear_mask(self.host(), bits),
            TniReg::Icl => unit.irq.set_level(merged),
            _ => {
                if reg == TniReg::PrqPa {
                    self.note_packet_entries(tni, merged);
                }
                if unit.write(reg, merged) {
                    self.ring_all();
                }
                self.note_packet_queue(tni, reg, merged);
            }
        }
    }

    /// Counts whether a packet queue is valid after its address was written; 0 turns it off.
    fn note_packet_queue(&self, tni: TniId, reg: TniReg, address: u64) {
        let there = match reg {
            TniReg::PbqPa => PacketQueues::has_buffers,
            TniReg::PrqPa => PacketQueues::receives,
            _ => return,
        };
        if address == 0 {
            return;
        }
        if there(&lock(&self.tni(tni).packets)) {
            self.rules.lane(tni.index()).kept(Point::PacketQueue);
            return;
        }
        let register = RegisterName(Register::Tni { tni, reg });
        let what =
            format_args!("write of {address:#x} to {register}: its alignment or size is wrong");
        self.breach(Rule::PacketQueues, what);
    }

    fn read_port(&self, port: Port, reg: PortReg) -> u64 {
        if reg == PortReg::FreeRunCount {
            // Cycles of the logic.
            let clock_khz = u128::from(self.description().clock_khz);
            return (u128::from(self.host().now_ns()) * clock_khz / 1_000_000) as u64;
        }
        port_counter(&self.host().port_counters(port), reg)
    }

    fn read_xb(&self, reg: XbReg) -> u64 {
        let s = &self.statistics;
        match reg {
            XbReg::StqEnable => s.enable.load(SeqCst).into(),
            XbReg::StqUpdateInterval => s.interval.load(SeqCst),
            XbReg::StqPa => s.address.load(SeqCst),
            XbReg::StqSize => s.entries.load(SeqCst),
            XbReg::StqNextOffset => s.next_offset.load(SeqCst),
        }
    }

    fn write_xb(&self, reg: XbReg, write: RegisterWrite) {
        let merged = write.merge(self.read_xb(reg));
        let s = &self.statistics;
        match reg {
            XbReg::StqEnable => {
                // A write of the other half leaves dumps as they are.
                if let Some(on) = write.switch()
                    && let Some(due) = s.switch(on, self.host().now_ns())
                {
                    self.want_expire(due);
                }
            }
            XbReg::StqUpdateInterval => s.interval.store(merged, SeqCst),
            XbReg::StqPa => s.address.store(merged, SeqCst),
            XbReg::StqSize => s.entries.store(merged, SeqCst),
            XbReg::StqNextOffset => {}
        }
    }

    fn read_tofu(&self, register: Register, reg: TofuReg) -> u64 {
        match reg {
            TofuReg::NodeAddress => NodeAddress::from_coords(self.coords()).0,
            TofuReg::Generation => self.generation().register(),
            TofuReg::TnrIrr => self.tnr.pending(),
            TofuReg::TnrImr | TofuReg::TnrImc => self.tnr.mask(),
            TofuReg::TnrIrc => 0,
            TofuReg::TnrIcl => self.tnr.level(),
            _ => self.plain.read(register.offset()),
        }
    }

    fn write_tofu(&self, register: Register, reg: TofuReg, write: RegisterWrite) {
        let bits = write.bits();
        match reg {
            TofuReg::NodeAddress | TofuReg::TnrIrr | TofuReg::Generation => {}
            TofuReg::TnrImr => self.tnr.set_mask(bits),
            TofuReg::TnrIrc => self.tnr.clear_pending(bits),
            TofuReg::TnrImc => self.tnr.clear_mask(self.host(), bits),
            TofuReg::TnrIcl => self.tnr.set_level(write.merge(self.tnr.level())),
            _ => self.plain.write(register.offset(), write),
        }
    }
}

/// The value of a port register.
fn port_counter(c: &PortCounters, reg: PortReg) -> u64 {
    match reg {
        PortReg::TxVc0ZeroCreditCount => c.zero_credit[0],
        PortReg::TxVc1ZeroCreditCount => c.zero_credit[1],
        PortReg::TxVc2ZeroCreditCount => c.zero_credit[2],
        PortReg::TxVc3ZeroCreditCount => c.zero_credit[3],
        PortReg::FreeRunCount => 0,
        PortReg::NumSendDllp => c.send_dllp,
        PortReg::NumSendTlp => c.send_tlp,
        PortReg::ByteSendTlp => c.send_bytes / 16,
        PortReg::NumSendSystemTlp => c.send_system,
        PortReg::NumSendNullifiedTlp => c.send_nullified,
        PortReg::NumTxDiscardSystemTlp => c.tx_discard_system,
        PortReg::NumTxDiscardNormalTlp => c.tx_discard_normal,
        PortReg::NumTxFilteredNormalTlp => c.tx_filtered,
        PortReg::NumVirtualCutThroughTlp => c.cut_through,
        PortReg::NumGenerateNullifiedTlp => c.generate_nullified,
        PortReg::NumReceiveDllp => c.recv_dllp,
        PortReg::NumReceiveTlp => c.recv_tlp,
        PortReg::ByteReceiveTlp => c.recv_bytes / 16,
        PortReg::NumReceiveSystemTlp => c.recv_system,
        PortReg::NumReceiveNullifiedTlp => c.recv_nullified,
        PortReg::NumRxDiscardSystemTlp => c.rx_discard_system,
        PortReg::NumRxDiscardNormalTlp => c.rx_discard_normal,
        PortReg::NumRxFilteredNormalTlp => c.rx_filtered,
        PortReg::NumRxDiscardNullifiedTlp => c.rx_discard_nullified,
        PortReg::FrameLcrcErrorCount => c.lcrc_errors,
        PortReg::TxRetryBufferCeCount => c.retry_buffer_ce,
        PortReg::RxVcBufferCeCount => c.receive_buffer_ce,
        PortReg::XbCeCount => c.xb_ce,
        PortReg::AckNackTimeOutCount => c.ack_timeouts,
        PortReg::Slice0FcsErrorCount => c.slice_fcs_errors[0],
        PortReg::Slice1FcsErrorCount => c.slice_fcs_errors[1],
    }
}
