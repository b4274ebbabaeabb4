//! The packet buffer queue and the packet receive queue (PBQ, PRQ) of a network interface.

use tofu_abi::irq::TniIrqs;
use tofu_abi::queue::{
    PBQ_ENTRY_SIZE, PRQ_ENTRY_SIZE, PbqEntry, PrqEntry, PrqRcode, RingIndex, queue_entries,
};
use tofu_abi::regs::CACHE_INJECTION;
use tofu_inspect::inspect;

use crate::coalesce::{Held, HeldInterrupt};
use crate::irq::Arm;
use crate::memory::DmaMemory;
use crate::observe::format::Ring as At;

/// A queue of the packet interface: its address, and the position of its next entry.
#[derive(Clone, Copy, Debug)]
struct Ring {
    base: u64,
    index: RingIndex,
}

inspect!(Ring { base as hex, index as At });

impl Ring {
    /// The queue at `base`. There is none for address 0, for an address that is not a multiple of
    /// 8, or for a size code that does not exist.
    fn new(base: u64, size: u64) -> Option<Self> {
        let base = base & !CACHE_INJECTION;
        let entries = queue_entries(size)?;
        (base != 0 && base.is_multiple_of(8))
            .then_some(Self { base, index: RingIndex::new(entries) })
    }

    fn at(&self, entry_size: usize) -> u64 {
        self.base.wrapping_add(u64::from(self.index.slot()) * entry_size as u64)
    }
}

/// The packet queues as set in the interface's registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketPolicy {
    /// Entries that the driver has consumed.
    pub(crate) consumed: u64,
    pub(crate) entry_hold_ns: u64,
    pub(crate) interrupt_hold_ns: u64,
    pub(crate) interrupt_count: u64,
    pub(crate) arm: Arm,
}

/// The destination of entries, and their results.
pub(crate) struct PacketWriter<'a> {
    pub(crate) memory: &'a dyn DmaMemory,
    pub(crate) policy: PacketPolicy,
    pub(crate) now_ns: u64,
    /// Interrupt requests to raise once the queues are unlocked.
    pub(crate) requests: TniIrqs,
    /// Those that the driver has enabled in memory, to be announced then.
    pub(crate) asked: TniIrqs,
}

impl PacketWriter<'_> {
    /// Acknowledges entries that were written.
    fn acknowledge(&mut self) {
        let acknowledge = TniIrqs::PRQ_WRITE_ACKNOWLEDGE;
        if !self.policy.arm.is_used() {
            self.requests |= acknowledge;
            return;
        }
        match self.policy.arm.take(self.memory) {
            Ok(true) => self.asked |= acknowledge,
            Ok(false) => {}
            Err(_) => self.requests |= TniIrqs::PRQ_WRITE_EXCEPTION,
        }
    }
}

/// The packet queues of a TNI.
#[derive(Clone, Debug)]
pub(crate) struct PacketQueues {
    buffers: Option<Ring>,
    receive: Option<Ring>,
    held: Held<PrqEntry>,
    interrupt: HeldInterrupt,
    /// FULL_POINTER was ahead when it was looked at.
    is_ahead: bool,
}

inspect!(PacketQueues { buffers, receive, held, interrupt, is_ahead });

impl Default for PacketQueues {
    fn default() -> Self {
        Self {
            buffers: None,
            receive: None,
            held: Held::new(PRQ_ENTRY_SIZE),
            interrupt: HeldInterrupt::NONE,
            is_ahead: false,
        }
    }
}

impl PacketQueues {
    /// Returns true if FULL_POINTER is ahead of what was written, unless it was ahead at the call
    /// before.
    pub(crate) fn has_run_ahead(&mut self, consumed: u64) -> bool {
        let Some(Ring { index, .. }) = self.receive else { return false };
        let is_ahead = index.unconsumed(consumed) > u64::from(index.entries());
        !std::mem::replace(&mut self.is_ahead, is_ahead) && is_ahead
    }

    /// Restarts the packet buffer queue.
    pub(crate) fn set_buffers(&mut self, base: u64, size: u64) {
        self.buffers = Ring::new(base, size);
    }

    /// Restarts the packet receive queue.
    pub(crate) fn set_receive(&mut self, base: u64, size: u64) {
        *self = Self { buffers: self.buffers, receive: Ring::new(base, size), ..Self::default() };
    }

    /// Returns true if the buffer queue is set up.
    pub(crate) const fn has_buffers(&self) -> bool {
        self.buffers.is_some()
    }

    /// Returns true if the receive queue is set up.
    pub(crate) const fn receives(&self) -> bool {
        self.receive.is_some()
    }

    /// Puts `bytes` into a buffer and notes an entry about it, with the W flag if the device wrote
    /// them itself. Returns whether the bytes are in the buffer.
    pub(crate) fn take(
        &mut self,
        code: PrqRcode,
        own: bool,
        bytes: &[u8],
        w: &mut PacketWriter<'_>,
    ) -> bool {
        let (Some(receive), Some(buffers)) = (self.receive, &mut self.buffers) else {
            return false;
        };
        // Those that are held back take their place, too.
        let consumed = w.policy.consumed.wrapping_sub(self.held.len() as u64);
        if receive.index.unconsumed(consumed) >= u64::from(receive.index.entries()) {
            w.requests |= TniIrqs::PRQ_OVERFLOW;
            return false;
        }
        let Ok(entry) = w.memory.load(buffers.at(PBQ_ENTRY_SIZE)) else {
            w.requests |= TniIrqs::PBQ_READ_EXCEPTION;
            return false;
        };
        let entry = PbqEntry(entry);
        if entry.f() != buffers.index.flip() {
            w.requests |= TniIrqs::PBQ_UNDERFLOW;
            return false;
        }
        buffers.index.advance();
        let stored = w.memory.write(entry.addr(), bytes).is_ok();
        if !stored {
            w.requests |= TniIrqs::PRQ_WRITE_EXCEPTION;
        }
        let entry = PrqEntry(0)
            .with_rcode(code as u8)
            .with_pa_units(entry.pa_units())
            .with_w(own && stored)
            .with_l(true)
            .with_e(!stored);
        if self.held.push(entry, w.policy.entry_hold_ns, w.now_ns) {
            self.flush(w);
        }
        stored
    }

    /// Writes the entries that were held back.
    pub(crate) fn flush(&mut self, w: &mut PacketWriter<'_>) {
        let held = self.held.release();
        let Some(ring) = &mut self.receive else {
            held.clear();
            return;
        };
        let mut written = 0;
        for entry in held.drain(..) {
            let entry = entry.with_f(ring.index.flip());
            if w.memory.store(ring.at(PRQ_ENTRY_SIZE), entry.0).is_err() {
                w.requests |= TniIrqs::PRQ_WRITE_EXCEPTION;
                continue;
            }
            ring.index.advance();
            written += 1;
        }
        let PacketPolicy { interrupt_count, interrupt_hold_ns, .. } = w.policy;
        if written > 0 && self.interrupt.add(written, interrupt_count, interrupt_hold_ns, w.now_ns)
        {
            w.acknowledge();
        }
    }

    /// Returns true if entries that were held back must be written by now.
    pub(crate) const fn is_due(&self, now_ns: u64) -> bool {
        self.held.until() <= now_ns
    }

    /// Requests the interrupt if that is due by now.
    pub(crate) fn expire_interrupt(&mut self, w: &mut PacketWriter<'_>) {
        if self.interrupt.expire(w.now_ns) {
            w.acknowledge();
        }
    }

    /// When something held back is due, in nanoseconds.
    pub(crate) fn next_deadline(&self) -> u64 {
        self.held.until().min(self.interrupt.until())
    }
}
