//! Rings that have to be blank when the device begins to use them: an entry that a driver would
//! take for one of the device must not be there before.

use tofu_abi::regs::CACHE_INJECTION;

use crate::memory::DmaMemory;

/// Entries that are looked at: all of the smallest ring, and as many of larger ones.
const ENTRIES: usize = 2048;
/// Bytes that are read at a time.
const CHUNK: usize = 4096;
/// The flip bit of an entry, in its first byte. On the first lap a valid entry has it.
const FLIP: u8 = 1 << 7;

/// Returns the first entry of a ring that is valid on the first lap. Memory that cannot be read is
/// the subject of other rules.
pub(crate) fn first_valid(memory: &dyn DmaMemory, ring: u64, entry_size: usize) -> Option<usize> {
    let ring = ring & !CACHE_INJECTION;
    let mut chunk = [0; CHUNK];
    for first in (0..ENTRIES).step_by(CHUNK / entry_size) {
        memory.read(ring.checked_add((first * entry_size) as u64)?, &mut chunk).ok()?;
        let flips = chunk.iter().step_by(entry_size);
        if let Some(valid) = flips.into_iter().position(|byte| byte & FLIP != 0) {
            return Some(first + valid);
        }
    }
    None
}
