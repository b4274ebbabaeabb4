//! Registers of 64 bits, and accesses to a whole register or to one half.

use std::collections::HashMap;
use std::sync::Mutex;

use tofu_sync::lock;

/// The offset of the register that an access of `len` bytes at `offset` refers to, and the first
/// accessed bit; `None` if registers do not support such an access.
pub const fn aligned(offset: u64, len: usize) -> Option<(u64, u32)> {
    match (len, offset % 8) {
        (8 | 4, 0) => Some((offset, 0)),
        (4, 4) => Some((offset - 4, 32)),
        _ => None,
    }
}

/// A write to a register or to half of one.
#[derive(Clone, Copy, Debug)]
pub struct RegisterWrite {
    mask: u64,
    bits: u64,
}

impl RegisterWrite {
    /// The offset of the register that `data` is written to, and the write. `None` as for
    /// [`aligned`].
    pub fn at(offset: u64, data: &[u8]) -> Option<(u64, Self)> {
        let (at, shift) = aligned(offset, data.len())?;
        if let Ok(bytes) = data.try_into() {
            return Some((at, Self { mask: u64::MAX, bits: u64::from_le_bytes(bytes) }));
        }
        let bits = u64::from(u32::from_le_bytes(data.try_into().ok()?)) << shift;
        Some((at, Self { mask: 0xffff_ffff << shift, bits }))
    }

    /// The written bits; the others are 0. A register that sets or clears bits of another one uses
    /// this value.
    pub const fn bits(self) -> u64 {
        self.bits
    }

    /// The new value of a register whose value was `old`.
    pub const fn merge(self, old: u64) -> u64 {
        old & !self.mask | self.bits
    }

    /// Bit 0, if the write includes it.
    pub fn switch(self) -> Option<bool> {
        (self.mask & 1 != 0).then_some(self.bits & 1 != 0)
    }

    /// The halves of the register that are written: bit 0 for the low one, bit 1 for the high one.
    pub const fn halves(self) -> u16 {
        (self.mask & 1) as u16 | (self.mask >> 63 << 1) as u16
    }
}

/// Registers that only hold what was written to them. Most nodes never write any, so they are kept
/// in a map by offset. There are only as many as the register map has, so a guest cannot make this
/// grow without bound.
#[derive(Debug, Default)]
pub struct Plain(Mutex<HashMap<u64, u64>>);

impl Plain {
    /// The value of the register at `offset`: 0 until it is written.
    pub fn read(&self, offset: u64) -> u64 {
        lock(&self.0).get(&offset).copied().unwrap_or(0)
    }

    /// Writes the register at `offset`.
    pub fn write(&self, offset: u64, write: RegisterWrite) {
        let mut values = lock(&self.0);
        let value = values.entry(offset).or_default();
        *value = write.merge(*value);
    }

    /// Sets all registers to 0.
    pub fn reset(&self) {
        lock(&self.0).clear();
    }
}
