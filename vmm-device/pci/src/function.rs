//! A bus's view of a function.

use crate::config::regs;

/// Base address registers of a type 0 header.
pub const BAR_COUNT: usize = 6;

/// A BAR that decodes memory accesses at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarRange {
    /// Index of the BAR, 0 to 5; of its low half for a 64-bit one.
    pub index: u8,
    /// Guest-physical address, a multiple of `size`.
    pub address: u64,
    /// Size in bytes, a power of two.
    pub size: u64,
}

impl BarRange {
    /// The offset of `address` in this BAR, if it lies inside.
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        let offset = address.wrapping_sub(self.address);
        (offset < self.size).then_some(offset)
    }
}

/// One PCI function as its bus sees it.
///
/// Shared by vCPU threads and engine threads, so all methods take `&self`.
/// Implementations do not panic for any arguments: offsets and lengths come
/// from guests.
pub trait PciFunction: Send + Sync {
    /// Reads configuration space. `data` has 1, 2, 4 or 8 bytes; bytes beyond
    /// offset 4095 read as ones.
    fn config_read(&self, offset: u16, data: &mut [u8]);

    /// Writes configuration space. The bus must call [`PciFunction::bars`]
    /// again afterwards: any configuration write may move, add or remove ranges
    /// (BARs, memory enable, power state, function level reset).
    fn config_write(&self, offset: u16, data: &[u8]);

    /// The BARs that decode accesses now, by index. A guest can place them
    /// anywhere: over RAM, over each other, or at the very top of the address
    /// space. The bus decides which one takes precedence.
    fn bars(&self) -> [Option<BarRange>; BAR_COUNT];

    /// Reads `data.len()` bytes at `offset` in BAR `bar`. Anything that is not
    /// there reads as the device says, all ones if the BAR does not exist.
    fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]);

    /// Writes `data` at `offset` in BAR `bar`; ignored if the BAR does not exist.
    fn bar_write(&self, bar: u8, offset: u64, data: &[u8]);

    /// Conventional reset (power-on or machine reset): configuration space and
    /// device return to their reset state.
    fn reset(&self);
}

/// A BAR as firmware finds it by sizing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarInfo {
    /// Index of the BAR, 0 to 5; of its low half for a 64-bit one.
    pub index: u8,
    /// Size in bytes, a power of two.
    pub size: u64,
    /// Two registers wide; may live above 4 GiB.
    pub is_64bit: bool,
    /// Reads have no side effects and writes may be merged.
    pub prefetchable: bool,
}

impl BarInfo {
    /// Configuration offset of the (low) register.
    pub fn register(&self) -> u16 {
        regs::BAR0 + 4 * u16::from(self.index)
    }

    /// Programs the BAR's address as firmware does. The low bits that the size
    /// implies are dropped by the function, and the upper half of `address` if
    /// the BAR is 32 bits wide.
    pub fn assign(&self, function: &dyn PciFunction, address: u64) {
        let bytes = address.to_le_bytes();
        function.config_write(self.register(), &bytes[..4]);
        if self.is_64bit {
            function.config_write(self.register() + 4, &bytes[4..]);
        }
    }
}

/// Finds a function's memory BARs the way firmware does: write all ones, read
/// back the size, restore. Memory decoding is off meanwhile. Entries are in
/// order of index.
pub fn size_bars(function: &dyn PciFunction) -> Vec<BarInfo> {
    let read = |offset| {
        let mut data = [0; 4];
        function.config_read(offset, &mut data);
        u32::from_le_bytes(data)
    };
    let write = |offset, value: u32| function.config_write(offset, &value.to_le_bytes());

    let mut command = [0; 2];
    function.config_read(regs::COMMAND, &mut command);
    let quiet = u16::from_le_bytes(command) & !regs::COMMAND_MEMORY;
    function.config_write(regs::COMMAND, &quiet.to_le_bytes());

    let mut found = Vec::new();
    let mut index = 0;
    while index < BAR_COUNT as u8 {
        let register = regs::BAR0 + 4 * u16::from(index);
        let old_low = read(register);
        write(register, u32::MAX);
        let low = read(register);
        write(register, old_low);
        let is_io = low & 1 != 0;
        let is_64bit = !is_io && low & 0b110 == 0b100 && usize::from(index) + 1 < BAR_COUNT;
        let high = if is_64bit {
            let old_high = read(register + 4);
            write(register + 4, u32::MAX);
            let high = read(register + 4);
            write(register + 4, old_high);
            high
        } else {
            u32::MAX
        };
        let mask = (u64::from(high) << 32) | u64::from(low & !0xf);
        let exists = low & !0xf != 0 || (is_64bit && high != 0);
        if exists && !is_io {
            let size = mask.wrapping_neg();
            let prefetchable = low & 0b1000 != 0;
            found.push(BarInfo { index, size, is_64bit, prefetchable });
        }
        index += if is_64bit { 2 } else { 1 };
    }
    function.config_write(regs::COMMAND, &command);
    found
}
