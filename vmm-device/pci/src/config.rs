//! Configuration space as bytes with per-bit write behaviour.

/// Size of a PCI Express function's configuration space in bytes.
pub const CONFIG_SPACE_SIZE: usize = 4096;

/// Offsets and bits of the type 0 header and the capabilities in use, named as in
/// the PCI Express Base Specification.
pub mod regs {
    /// Vendor ID, 16 bits.
    pub const VENDOR_ID: u16 = 0x00;
    /// Device ID, 16 bits.
    pub const DEVICE_ID: u16 = 0x02;
    /// Command register, 16 bits.
    pub const COMMAND: u16 = 0x04;
    /// Status register, 16 bits.
    pub const STATUS: u16 = 0x06;
    /// Revision ID, 8 bits; the 24-bit class code follows it.
    pub const REVISION_ID: u16 = 0x08;
    /// Cache line size, 8 bits; has no effect on PCI Express.
    pub(crate) const CACHE_LINE_SIZE: u16 = 0x0c;
    /// First of six 32-bit base address registers.
    pub const BAR0: u16 = 0x10;
    /// Subsystem vendor ID, 16 bits.
    pub(crate) const SUBSYSTEM_VENDOR_ID: u16 = 0x2c;
    /// Subsystem ID, 16 bits.
    pub(crate) const SUBSYSTEM_ID: u16 = 0x2e;
    /// Offset of the first capability, 8 bits.
    pub const CAPABILITIES: u16 = 0x34;
    /// Interrupt line, 8 bits of scratch for software.
    pub(crate) const INTERRUPT_LINE: u16 = 0x3c;
    /// First extended capability.
    pub(crate) const EXTENDED_CAPABILITIES: u16 = 0x100;

    /// Command: respond to memory accesses.
    pub const COMMAND_MEMORY: u16 = 1 << 1;
    /// Command: may issue memory requests and MSIs.
    pub const COMMAND_BUS_MASTER: u16 = 1 << 2;
    /// Command: parity error response.
    pub(crate) const COMMAND_PARITY: u16 = 1 << 6;
    /// Command: SERR# enable.
    pub(crate) const COMMAND_SERR: u16 = 1 << 8;
    /// Command: INTx disable.
    pub(crate) const COMMAND_INTX_DISABLE: u16 = 1 << 10;
    /// Status: the function has a capability list.
    pub const STATUS_CAPABILITIES: u16 = 1 << 4;
    /// Status: the error bits, each cleared by writing one.
    pub(crate) const STATUS_ERRORS: u16 = 0xf900;

    /// Capability ID of Power Management.
    pub(crate) const CAP_POWER_MANAGEMENT: u8 = 0x01;
    /// Capability ID of a vendor-specific capability; a function may have several.
    pub const CAP_VENDOR: u8 = 0x09;
    /// Capability ID of PCI Express.
    pub const CAP_PCI_EXPRESS: u8 = 0x10;
    /// Capability ID of MSI-X.
    pub const CAP_MSIX: u8 = 0x11;

    /// MSI-X message control, relative to the capability, 16 bits.
    pub const MSIX_CONTROL: u16 = 0x02;
    /// MSI-X table BAR and offset, relative to the capability, 32 bits.
    pub(crate) const MSIX_TABLE: u16 = 0x04;
    /// MSI-X pending bit array BAR and offset, relative to the capability, 32 bits.
    pub(crate) const MSIX_PBA: u16 = 0x08;
    /// MSI-X message control: MSI-X enable.
    pub const MSIX_ENABLE: u16 = 1 << 15;
    /// MSI-X message control: function mask.
    pub const MSIX_FUNCTION_MASK: u16 = 1 << 14;
}

/// 4096 bytes of registers, each bit read-only, read-write, or cleared by
/// writing one (RW1C).
///
/// Bits start read-only and zero. Accesses may have any length and alignment;
/// bytes past the end read as ones and ignore writes.
#[derive(Clone)]
pub struct ConfigSpace {
    value: Box<[u8]>,
    writable: Box<[u8]>,
    write_one_clears: Box<[u8]>,
}

impl ConfigSpace {
    /// An all-zero, read-only configuration space.
    pub fn new() -> Self {
        let zeroes = || vec![0; CONFIG_SPACE_SIZE].into_boxed_slice();
        Self { value: zeroes(), writable: zeroes(), write_one_clears: zeroes() }
    }

    /// Reads `data.len()` bytes at `offset`.
    pub fn read(&self, offset: u16, data: &mut [u8]) {
        for (at, byte) in (usize::from(offset)..).zip(data) {
            *byte = self.value.get(at).copied().unwrap_or(0xff);
        }
    }

    /// Writes as software does, honouring each bit's kind.
    pub fn write(&mut self, offset: u16, data: &[u8]) {
        for (at, &new) in (usize::from(offset)..).zip(data) {
            let Some(value) = self.value.get_mut(at) else { return };
            let writable = self.writable[at];
            *value = (*value & !writable) | (new & writable);
            *value &= !(new & self.write_one_clears[at]);
        }
    }

    /// The 16-bit register at `offset`; all ones past the end.
    pub fn u16(&self, offset: u16) -> u16 {
        let mut bytes = [0; 2];
        self.read(offset, &mut bytes);
        u16::from_le_bytes(bytes)
    }

    /// The 32-bit register at `offset`; all ones past the end.
    pub fn u32(&self, offset: u16) -> u32 {
        let mut bytes = [0; 4];
        self.read(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Sets bytes of any kind from the device's side. Bytes past the end are dropped.
    pub fn set(&mut self, offset: u16, data: &[u8]) {
        fill(&mut self.value, offset, data);
    }

    /// Marks the bits set in `mask` read-write and all others of those bytes not.
    pub(crate) fn set_writable(&mut self, offset: u16, mask: &[u8]) {
        fill(&mut self.writable, offset, mask);
    }

    /// Marks the bits set in `mask` RW1C and all others of those bytes not.
    pub(crate) fn set_write_one_clears(&mut self, offset: u16, mask: &[u8]) {
        fill(&mut self.write_one_clears, offset, mask);
    }
}

impl Default for ConfigSpace {
    fn default() -> Self {
        Self::new()
    }
}

fn fill(bytes: &mut [u8], offset: u16, data: &[u8]) {
    for (at, &new) in (usize::from(offset)..).zip(data) {
        if let Some(byte) = bytes.get_mut(at) {
            *byte = new;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_bit_kind_behaves() {
        let mut space = ConfigSpace::new();
        space.set(0x40, &[0b1111_0000]);
        space.set_writable(0x40, &[0b0000_0011]);
        space.set_write_one_clears(0x40, &[0b0011_0000]);
        space.write(0x40, &[0b0101_1101]);
        // 7:6 read-only, 5 kept (wrote 0), 4 cleared (wrote 1), 3:2 read-only, 1:0 written.
        let mut byte = [0];
        space.read(0x40, &mut byte);
        assert_eq!(byte, [0b1110_0001]);
    }

    #[test]
    fn past_the_end_reads_ones() {
        let mut space = ConfigSpace::new();
        let mut data = [0; 8];
        space.write(0xffc, &[0xaa; 8]);
        space.read(0xffc, &mut data);
        assert_eq!(data, [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        space.read(u16::MAX, &mut data);
        assert_eq!(data, [0xff; 8]);
    }

    proptest! {
        /// One wide write equals the same bytes written one at a time.
        #[test]
        fn partial_writes_merge(
            offset in 0u16..4100,
            initial in any::<[u8; 8]>(), writable in any::<[u8; 8]>(),
            clears in any::<[u8; 8]>(), data in any::<[u8; 8]>(),
        ) {
            let mut wide = ConfigSpace::new();
            wide.set(offset, &initial);
            wide.set_writable(offset, &writable);
            wide.set_write_one_clears(offset, &clears);
            let mut narrow = wide.clone();
            wide.write(offset, &data);
            for (at, byte) in (offset..).zip(data) {
                narrow.write(at, &[byte]);
            }
            let (mut a, mut b) = ([0; 8], [0; 8]);
            wide.read(offset, &mut a);
            narrow.read(offset, &mut b);
            prop_assert_eq!(a, b);
        }
    }
}
