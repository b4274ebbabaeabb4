//! Interrupts.
//!
//! A handler in ring 0 counts each interrupt of a vector and acknowledges it to the local APIC;
//! nothing else interrupts the program's own flow. MSI-X messages for a vector go to
//! [`MSI_ADDRESS`] with the vector as data.

use core::sync::atomic::{AtomicU8, Ordering};

use crate::{mmio, service, time};

/// The address to which a message-signalled interrupt for this (the only) CPU is written.
pub const MSI_ADDRESS: u64 = 0xfee0_0000;

/// Vector of the local APIC timer; free ones follow.
pub(crate) const TIMER: u8 = 0x2f;
const LAST: u8 = 0xef;

const LAPIC_LVT_TIMER: usize = 0xfee0_0320;
const LAPIC_TIMER_DIVIDE: usize = 0xfee0_03e0;
const LAPIC_TIMER_COUNT: usize = 0xfee0_0380;
const LAPIC_SPURIOUS: usize = 0xfee0_00f0;
const DIVIDE_BY_1: u32 = 0b1011;
const LVT_MASKED: u32 = 1 << 16;

unsafe extern "C" {
    static irq_counts: [u64; 256];
}

static NEXT: AtomicU8 = AtomicU8::new(TIMER + 1);

/// An interrupt vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vector(u8);

impl Vector {
    /// Its number, the data of its MSI-X message.
    pub fn number(self) -> u8 {
        self.0
    }
}

/// Takes a free vector; there are 192.
pub fn alloc_vector() -> Option<Vector> {
    let number = NEXT.load(Ordering::Relaxed);
    if number > LAST {
        return None;
    }
    NEXT.store(number + 1, Ordering::Relaxed);
    Some(Vector(number))
}

/// The number of interrupts of `vector` that have come so far.
pub fn count(vector: Vector) -> u64 {
    // SAFETY: in bounds by type; changed by interrupts, so read as volatile.
    unsafe { (&raw const irq_counts[usize::from(vector.0)]).read_volatile() }
}

/// True if an interrupt of `vector` has come since its count was `seen`.
pub fn pending(vector: Vector, seen: u64) -> bool {
    count(vector) != seen
}

/// Sleeps until an interrupt of `vector` has come since its count was `seen`, or `timeout_ns`
/// nanoseconds have passed; without a timeout for `None`. Returns the count.
///
/// To miss no interrupt, take `seen` first, then check for the event that the interrupt announces,
/// and wait only if there is none.
pub fn wait(vector: Vector, seen: u64, timeout_ns: Option<u64>) -> u64 {
    let deadline = timeout_ns.map(|ns| time::now_ns().saturating_add(ns));
    loop {
        let now = count(vector);
        if now != seen {
            return now;
        }
        let ticks = match deadline.map(|deadline| deadline.saturating_sub(time::now_ns())) {
            None => 0,
            Some(0) => return now,
            // KVM's local APIC timers tick in nanoseconds. Elsewhere the wait is
            // cut in pieces of another length, with the same end.
            Some(left) => u32::try_from(left).unwrap_or(u32::MAX),
        };
        // SAFETY: in bounds by type.
        unsafe { service::wait(&raw const irq_counts[usize::from(vector.0)], seen, ticks) };
    }
}

/// Leaves the local APIC as it is after a reset: off, its timer masked.
pub(crate) fn reset() {
    // SAFETY: registers of the local APIC, which does no DMA.
    unsafe {
        mmio::write32(LAPIC_TIMER_COUNT, 0);
        mmio::write32(LAPIC_LVT_TIMER, LVT_MASKED);
        mmio::write32(LAPIC_TIMER_DIVIDE, 0);
        mmio::write32(LAPIC_SPURIOUS, 0xff);
    }
}

/// Prepares the local APIC timer: one-shot, a tick of its clock each.
pub(crate) fn init() {
    // SAFETY: registers of the local APIC, which does no DMA.
    unsafe {
        mmio::write32(LAPIC_TIMER_DIVIDE, DIVIDE_BY_1);
        mmio::write32(LAPIC_LVT_TIMER, u32::from(TIMER));
    }
}
