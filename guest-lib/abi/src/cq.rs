//! The set-up of a control queue by a driver: the registers that describe its rings and tables to
//! the device.

use crate::regs::{CACHE_INJECTION, CqsReg};

/// The rings of a control queue.
#[derive(Clone, Copy, Debug)]
pub struct CqRings {
    /// Device address of the transmit order queue.
    pub toq: u64,
    /// Its size code, see [`queue_entries`](crate::queue::queue_entries). The transmit complete
    /// queue has as many entries.
    pub toq_size: u8,
    /// Device address of the transmit complete queue. Its entries go into the cache of the
    /// processor that polls them, where the generation has cache injection.
    pub tcq: u64,
    /// The same of the message receive queue.
    pub mrq: u64,
    /// Its size code.
    pub mrq_size: u8,
    /// MRQ_MASK: if bit n is set, notices with the code n are not written.
    pub mrq_mask: u64,
    /// The time for which the device may collect entries of the transmit complete queue before it
    /// writes them, in nanoseconds.
    pub tcq_coalescing_ns: u64,
    /// The same for the message receive queue.
    pub mrq_coalescing_ns: u64,
}

impl CqRings {
    /// The values to write to the registers of the queue, which is off.
    pub const fn registers(&self) -> [(CqsReg, u64); 9] {
        [
            (CqsReg::ToqIpa, self.toq),
            (CqsReg::ToqSize, self.toq_size as u64),
            (CqsReg::TcqIpa, self.tcq | CACHE_INJECTION),
            (CqsReg::MrqIpa, self.mrq | CACHE_INJECTION),
            (CqsReg::MrqSize, self.mrq_size as u64),
            (CqsReg::MrqMask, self.mrq_mask),
            (CqsReg::FetchStop, 0),
            (CqsReg::TcqDescriptorCoalescingTimer, self.tcq_coalescing_ns),
            (CqsReg::MrqDescriptorCoalescingTimer, self.mrq_coalescing_ns),
        ]
    }
}

/// The tables with which the device translates addresses of a control queue.
#[derive(Clone, Copy, Debug)]
pub struct StagTables {
    /// Device address of the memory block table.
    pub blocks: u64,
    /// Number of its entries.
    pub block_count: u32,
    /// Device address of the steering table.
    pub steering: u64,
    /// Number of its entries, which are STags.
    pub stags: u32,
}

impl StagTables {
    /// The values to write to the registers of the queue, in this order.
    pub const fn registers(&self) -> [(CqsReg, u64); 6] {
        [
            (CqsReg::MemoryBlockTableIpa, self.blocks),
            (CqsReg::MemoryBlockTableSize, self.block_count as u64),
            (CqsReg::MemoryBlockTableEnable, 1),
            (CqsReg::SteeringTableIpa, self.steering),
            (CqsReg::SteeringTableSize, self.stags as u64),
            (CqsReg::SteeringTableEnable, 1),
        ]
    }
}
