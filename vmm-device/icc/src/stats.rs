//! TNI registers that count, the crossbar's statistics queue, and what is counted for people
//! rather than for drivers.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use tofu_abi::barrier::{BgAddress, InactiveBg};
use tofu_abi::irq::{tni, vector};
use tofu_abi::queue::STQ_ENTRY_SIZE;
use tofu_abi::regs::{CqReg, NUM_CQ, TniReg, TniState};
use tofu_abi::{BgId, TniId};
use tofu_fabric::{XbCounters, XbCycles};

use crate::Icc;
use crate::cq::lock;
use crate::irq::IrqUnit;
use crate::packet::PacketQueues;

/// Registers of a TNI that only hold a value, by offset / 8.
const REGISTERS: usize = 0x1d0 / 8;

/// Shortest time between two dumps of statistics, in nanoseconds, whatever the guest asks
/// for (ours): seldom enough that those of all nodes of a machine leave engines time for others.
const MIN_INTERVAL_NS: u64 = 100_000;

/// A network interface as a whole.
#[derive(Debug)]
pub(crate) struct TniUnit {
    enabled: AtomicBool,
    pub(crate) irq: IrqUnit,
    registers: [AtomicU64; REGISTERS],
    /// Nothing is written to packet buffers and queues without this lock.
    pub(crate) packets: Mutex<PacketQueues>,
}

impl TniUnit {
    pub(crate) fn new(id: TniId) -> Self {
        Self {
            enabled: AtomicBool::new(false),
            irq: IrqUnit::new(vector::tni(id.get()), tni::ALL),
            registers: [const { AtomicU64::new(0) }; REGISTERS],
            packets: Mutex::default(),
        }
    }

    pub(crate) fn enabled(&self) -> bool {
        self.enabled.load(SeqCst)
    }

    pub(crate) fn reset(&self) {
        self.enabled.store(false, SeqCst);
        *lock(&self.packets) = PacketQueues::default();
        self.irq.reset();
        for register in &self.registers {
            register.store(0, SeqCst);
        }
    }

    fn register(&self, reg: TniReg) -> &AtomicU64 {
        &self.registers[reg.offset() as usize / 8]
    }

    pub(crate) fn add(&self, reg: TniReg, n: u64) {
        self.register(reg).fetch_add(n, Relaxed);
    }

    pub(crate) fn count_sent(&self, tlps: u32, bytes: u64) {
        self.add(TniReg::NumSendTlp, tlps.into());
        self.add(TniReg::ByteSendTlp, bytes);
    }

    pub(crate) fn count_received(&self, tlps: u32, bytes: u64) {
        self.add(TniReg::NumReceiveTlp, tlps.into());
        self.add(TniReg::ByteReceiveTlp, bytes);
    }

    /// Notes the last signal to a gate that is not enabled.
    pub(crate) fn set_inactive_gate(&self, gate: BgId, source: BgAddress) {
        let info = InactiveBg(0).with_dest(gate.get()).with_source(source.0 as u32);
        self.register(TniReg::ExceptionInfoInactiveBg).store(info.0, Relaxed);
    }

    pub(crate) fn read(&self, reg: TniReg) -> u64 {
        match reg {
            TniReg::Irr => self.irq.pending(),
            TniReg::Imr | TniReg::Imc => self.irq.mask(),
            TniReg::Irc => 0,
            TniReg::Icl => self.irq.level(),
            TniReg::State if self.enabled() => TniState::Normal as u64,
            TniReg::State => TniState::Disable as u64,
            TniReg::Enable => self.enabled().into(),
            TniReg::CqPresent => (1 << NUM_CQ) - 1,
            // Bytes are counted in units of 16.
            TniReg::ByteSendTlp | TniReg::ByteReceiveTlp => self.register(reg).load(Relaxed) / 16,
            // One cycle of the 128-bit data path moves as much.
            TniReg::SendCount => self.register(TniReg::ByteSendTlp).load(Relaxed) / 16,
            TniReg::ReceiveCount => self.register(TniReg::ByteReceiveTlp).load(Relaxed) / 16,
            _ => self.register(reg).load(Relaxed),
        }
    }

    /// Writes a register other than the interrupt registers. Counters are read-only.
    ///
    /// Returns true if the interface was enabled by this.
    pub(crate) fn write(&self, reg: TniReg, value: u64) -> bool {
        match reg {
            TniReg::Enable => {
                let on = value & 1 != 0;
                let was = self.enabled.swap(on, SeqCst);
                // When this returns, nothing more is written to packet buffers.
                drop(lock(&self.packets));
                return !was && on;
            }
            TniReg::PbqPa => {
                let mut packets = lock(&self.packets);
                self.register(reg).store(value, SeqCst);
                packets.set_buffers(value, self.register(TniReg::PbqSize).load(SeqCst));
            }
            TniReg::PrqPa => {
                let mut packets = lock(&self.packets);
                self.register(reg).store(value, SeqCst);
                self.register(TniReg::PrqFullPointer).store(0, SeqCst);
                packets.set_receive(value, self.register(TniReg::PrqSize).load(SeqCst));
            }
            TniReg::PrqFullPointer
            | TniReg::PbqSize
            | TniReg::PrqSize
            | TniReg::PrqMask
            | TniReg::PrqEntryCoalescingTimer
            | TniReg::PrqInterruptCoalescingTimer
            | TniReg::PrqInterruptCoalescingCount => {
                self.register(reg).store(value, SeqCst);
            }
            _ => {}
        }
        false
    }
}

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

/// Accesses that no register claims and accesses of a wrong size.
#[derive(Debug, Default)]
pub struct Faults {
    unclaimed: AtomicU64,
    malformed: AtomicU64,
}

impl Faults {
    /// Accesses where no register is; reads give 0 and writes are ignored.
    pub fn unclaimed(&self) -> u64 {
        self.unclaimed.load(Relaxed)
    }

    /// Accesses of a size or alignment that registers do not have; they have no effect.
    pub fn malformed(&self) -> u64 {
        self.malformed.load(Relaxed)
    }

    pub(crate) fn count_unclaimed(&self, offset: u64) {
        count(&self.unclaimed, "no register", offset, 0);
    }

    pub(crate) fn count_malformed(&self, offset: u64, len: usize) {
        count(&self.malformed, "access of a wrong size", offset, len);
    }
}

/// Counts, and logs the first few and then ever fewer: a guest must not fill the log.
fn count(counter: &AtomicU64, what: &str, offset: u64, len: usize) {
    let n = counter.fetch_add(1, Relaxed) + 1;
    if n <= 8 || n.is_power_of_two() {
        log::debug!("{what} at BAR0 offset {offset:#x}, length {len}, {n} times so far");
    }
}

/// Counters that are not registers of their own, and the statistics queue.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    model: [(AtomicU64, AtomicU64, AtomicU64); tofu_abi::regs::NUM_TNI],
    pub(crate) enable: AtomicBool,
    pub(crate) interval: AtomicU64,
    pub(crate) address: AtomicU64,
    pub(crate) entries: AtomicU64,
    pub(crate) next_offset: AtomicU64,
    due: AtomicU64,
    /// Held while a dump is written, so that others can wait for its end.
    dumping: Mutex<()>,
}

impl Statistics {
    pub(crate) fn reset(&self) {
        self.enable.store(false, SeqCst);
        for register in [&self.interval, &self.address, &self.entries, &self.next_offset] {
            register.store(0, SeqCst);
        }
        self.due.store(0, SeqCst);
        self.quiesce();
    }

    /// Waits for a dump under way. Something must keep another one from beginning.
    pub(crate) fn quiesce(&self) {
        drop(lock(&self.dumping));
    }
}

impl Icc {
    /// Accesses that hit no register or had a wrong size.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Modelled time of the commands of a TNI.
    pub fn model_time(&self, tni: TniId) -> ModelTime {
        let (answers, last, total) = &self.statistics.model[tni.index()];
        ModelTime {
            answers: answers.load(Relaxed),
            last_request_ps: last.load(Relaxed),
            total_ps: total.load(Relaxed),
        }
    }

    pub(crate) fn count_model_time(&self, tni: TniId, request_ps: u64, answer_ps: u64) {
        let (answers, last, total) = &self.statistics.model[tni.index()];
        answers.fetch_add(1, Relaxed);
        last.store(request_ps, Relaxed);
        total.fetch_add(answer_ps, Relaxed);
    }

    /// Payload bytes that all control queues together have sent and received.
    pub fn payload_bytes(&self) -> (u64, u64) {
        self.queues.iter().fold((0, 0), |(sent, received), queue| {
            // A guest can write anything to the counters in a shared page.
            (
                sent.wrapping_add(queue.page.load(CqReg::TxPayloadByte)),
                received.wrapping_add(queue.page.load(CqReg::RxPayloadByte)),
            )
        })
    }

    /// Starts or stops the periodic dump of crossbar counters.
    pub(crate) fn enable_statistics(&self, on: bool) {
        let s = &self.statistics;
        s.enable.store(on, SeqCst);
        s.quiesce();
        if on {
            s.next_offset.store(0, SeqCst);
            let due = self.host.now_ns().saturating_add(self.statistics_interval());
            s.due.store(due, SeqCst);
            self.want_expire(due);
        }
    }

    fn statistics_interval(&self) -> u64 {
        self.statistics.interval.load(SeqCst).max(MIN_INTERVAL_NS)
    }

    pub(crate) fn dump_statistics(&self, now_ns: u64) {
        let s = &self.statistics;
        if !s.enable.load(SeqCst) {
            return;
        }
        if s.due.load(SeqCst) <= now_ns {
            self.write_statistics();
            s.due.store(now_ns.saturating_add(self.statistics_interval()), SeqCst);
        }
        self.want_expire(s.due.load(SeqCst));
    }

    fn write_statistics(&self) {
        let s = &self.statistics;
        let _dumping = lock(&s.dumping);
        let entries = s.entries.load(SeqCst);
        if entries == 0 || !s.enable.load(SeqCst) || !self.dma_enabled() {
            return;
        }
        let offset = s.next_offset.load(SeqCst);
        let data = statistics_entry(&self.host.xb_counters());
        if self.memory.write(s.address.load(SeqCst).wrapping_add(offset), &data).is_err() {
            // There is no exception for it; the dump just ends.
            s.enable.store(false, SeqCst);
            return;
        }
        let next = offset + STQ_ENTRY_SIZE as u64;
        let size = entries.saturating_mul(STQ_ENTRY_SIZE as u64);
        s.next_offset.store(if next >= size { 0 } else { next }, SeqCst);
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
