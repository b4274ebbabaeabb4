//! A network interface (TNI) as a whole: its registers, counters and packet queues.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use tofu_abi::barrier::{BgAddress, InactiveBg};
use tofu_abi::irq::{TniIrqs, vector};
use tofu_abi::regs::{TniReg, TniState};
use tofu_abi::{BgId, TniId};
use tofu_sync::lock;

use crate::irq::{Arm, IrqUnit};
use crate::memory::DmaMemory;
use crate::packets::queues::{PacketPolicy, PacketQueues, PacketWriter};
use crate::waiting::Waiting;

/// Registers of a TNI that only hold a value, by offset / 8.
const REGISTERS: usize = 0x1d0 / 8;

/// A network interface as a whole.
#[derive(Debug)]
pub(crate) struct Tni {
    id: TniId,
    enabled: AtomicBool,
    pub(crate) irq: IrqUnit<TniIrqs>,
    registers: [AtomicU64; REGISTERS],
    /// Nothing is written to packet buffers and queues without this lock.
    pub(crate) packets: Mutex<PacketQueues>,
    /// Queues that stopped for lack of room in the network.
    pub(crate) waiting: Waiting,
}

impl Tni {
    pub(crate) fn new(id: TniId) -> Self {
        Self {
            id,
            enabled: AtomicBool::new(false),
            irq: IrqUnit::new(vector::tni(id)),
            registers: [const { AtomicU64::new(0) }; REGISTERS],
            packets: Mutex::default(),
            waiting: Waiting::new(),
        }
    }

    /// Its number.
    pub(crate) fn index(&self) -> usize {
        self.id.index()
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
            // Bytes are counted in units of 16.
            TniReg::ByteSendTlp | TniReg::ByteReceiveTlp => self.register(reg).load(Relaxed) / 16,
            // One cycle of the 128-bit data path moves 16 bytes.
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
                self.quiesce_packets();
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
            TniReg::PrqInterruptArmPa => {
                let _packets = lock(&self.packets);
                self.register(reg).store(value, SeqCst);
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

    /// A writer to the packet queues with their present settings. They must be locked.
    pub(crate) fn packet_writer<'a>(
        &self,
        memory: &'a dyn DmaMemory,
        now_ns: u64,
    ) -> PacketWriter<'a> {
        let policy = PacketPolicy {
            consumed: self.read(TniReg::PrqFullPointer),
            entry_hold_ns: self.read(TniReg::PrqEntryCoalescingTimer),
            interrupt_hold_ns: self.read(TniReg::PrqInterruptCoalescingTimer),
            interrupt_count: self.read(TniReg::PrqInterruptCoalescingCount),
            arm: Arm(self.read(TniReg::PrqInterruptArmPa)),
        };
        PacketWriter { memory, policy, now_ns, requests: TniIrqs::NONE, asked: TniIrqs::NONE }
    }

    /// Waits for the end of writes to packet buffers and queues that are in progress. The caller
    /// must have prevented further ones from beginning.
    pub(crate) fn quiesce_packets(&self) {
        drop(lock(&self.packets));
    }
}
