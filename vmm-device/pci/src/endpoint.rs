//! A type 0 function with its capabilities.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use tofu_sync::lock;

use crate::config::{CONFIG_SPACE_SIZE, ConfigSpace, regs};
use crate::function::{BAR_COUNT, BarRange};
use crate::msix::{MAX_VECTORS, MsixTable};

// Where the capabilities lie (ours): in the order of the list.
const PM: u16 = 0x40;
const PCIE: u16 = 0x50;
const MSIX: u16 = 0x90;
const VENDOR: u16 = 0x9c;

/// Power Management control/status, relative to the capability.
const PM_CONTROL: u16 = 0x04;
/// Device control, relative to the PCI Express capability.
const DEVICE_CONTROL: u16 = 0x08;
/// Device control: initiate function level reset; reads as zero.
const INITIATE_FLR: u16 = 1 << 15;

/// The identification registers of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// Revision ID.
    pub revision: u8,
    /// Class code, 24 bits: base class, sub-class, programming interface.
    pub class: u32,
    /// Subsystem vendor ID.
    pub subsystem_vendor: u16,
    /// Subsystem ID.
    pub subsystem: u16,
}

/// Address width of a memory BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarKind {
    /// 32-bit: 16 bytes to 2 GiB.
    Memory32,
    /// 64-bit, in two registers: 16 bytes to 2^63.
    Memory64,
}

/// A memory BAR to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Width of the address.
    pub kind: BarKind,
    /// Size in bytes, a power of two, at least 16.
    pub size: u64,
    /// Reads have no side effects and writes may be merged.
    pub prefetchable: bool,
}

impl Bar {
    /// A 32-bit, not prefetchable BAR of `size` bytes.
    pub const fn memory32(size: u64) -> Self {
        Self { kind: BarKind::Memory32, size, prefetchable: false }
    }

    /// A 64-bit, not prefetchable BAR of `size` bytes.
    pub const fn memory64(size: u64) -> Self {
        Self { kind: BarKind::Memory64, size, prefetchable: false }
    }

    /// The same BAR, prefetchable.
    #[must_use]
    pub const fn prefetchable(self) -> Self {
        Self { prefetchable: true, ..self }
    }

    fn mask(&self) -> u64 {
        !(self.size - 1)
    }
}

/// Speed of the link that the PCI Express capability advertises.
///
/// Faster ones are left out: from 16 GT/s on, the specification also requires physical-layer
/// extended capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkSpeed {
    /// 2.5 GT/s.
    Gen1 = 1,
    /// 5 GT/s.
    Gen2 = 2,
    /// 8 GT/s.
    Gen3 = 3,
}

/// The reason why an endpoint cannot be built as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No such BAR, or a 64-bit one has no register left for its upper half.
    #[error("BAR {0} does not exist or has no upper half")]
    NoSuchBar(u8),
    /// The register is taken by another BAR.
    #[error("BAR {0} overlaps another one")]
    BarTaken(u8),
    /// The size is no power of two from 16 to what the kind can hold.
    #[error("BAR {bar}: {size:#x} bytes is no power of two in range")]
    BarSize {
        /// Index of the BAR.
        bar: u8,
        /// The requested size, in bytes.
        size: u64,
    },
    /// The vector count is not in 1..=2048.
    #[error("{0} MSI-X vectors; 1 to 2048 are possible")]
    VectorCount(u16),
    /// MSI-X was requested twice.
    #[error("a function has one MSI-X capability")]
    SecondMsix,
    /// The capabilities do not fit below offset 0x100.
    #[error("no room for a vendor-specific capability of {0} bytes")]
    CapabilitySpace(usize),
}

/// Effects of a configuration write that a device may have to act on. The [`Endpoint`] can also be
/// queried for its state at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Changes {
    /// [`Endpoint::bus_master`] has another value.
    pub bus_master: bool,
    /// [`Endpoint::bars`] has another value.
    pub bars: bool,
    /// MSI-X enable or the function mask changed.
    pub msix: bool,
    /// Function level reset: the endpoint has reset itself, the device must too.
    pub function_reset: bool,
}

struct Registers {
    space: ConfigSpace,
    bars: [Option<BarRange>; BAR_COUNT],
}

struct Msix {
    bar: u8,
    pba_offset: u64,
    table: MsixTable,
}

/// Configuration space, BARs, Power Management, PCI Express, MSI-X and
/// vendor-specific capabilities of one endpoint function.
///
/// Built with [`Endpoint::new`], [`Endpoint::with_bar`],
/// [`Endpoint::with_msix`], [`Endpoint::with_vendor_capability`] and
/// [`Endpoint::with_serial_number`], then shared.
/// There is an extended capability only if a serial number was given.
pub struct Endpoint {
    layout: [Option<Bar>; BAR_COUNT],
    reset_space: ConfigSpace,
    registers: Mutex<Registers>,
    bus_master: AtomicBool,
    msix: Option<Msix>,
    /// The last capability of the list, and where the next vendor-specific one goes.
    last_capability: u16,
    free: u16,
}

impl Endpoint {
    /// An endpoint without BARs and interrupts, with a link of `speed` and 16
    /// lanes and a maximum payload of 512 bytes (ours).
    pub fn new(identity: Identity, speed: LinkSpeed) -> Self {
        let mut space = ConfigSpace::new();
        header(&mut space, &identity);
        power_management(&mut space);
        pci_express(&mut space, speed);
        let registers = Registers { space: space.clone(), bars: [None; BAR_COUNT] };
        Self {
            layout: [None; BAR_COUNT],
            reset_space: space,
            registers: Mutex::new(registers),
            bus_master: AtomicBool::new(false),
            msix: None,
            last_capability: PCIE,
            free: VENDOR,
        }
    }

    /// Adds a BAR. Its address is 0 until software programs it.
    pub fn with_bar(mut self, index: u8, bar: Bar) -> Result<Self, Error> {
        let width = match bar.kind {
            BarKind::Memory32 => 1,
            BarKind::Memory64 => 2,
        };
        let at = usize::from(index);
        if at + width > BAR_COUNT {
            return Err(Error::NoSuchBar(index));
        }
        let limit = if bar.kind == BarKind::Memory32 { 1 << 31 } else { 1 << 63 };
        if !bar.size.is_power_of_two() || bar.size < 16 || bar.size > limit {
            return Err(Error::BarSize { bar: index, size: bar.size });
        }
        let below_is_wide = at
            .checked_sub(1)
            .and_then(|below| self.layout[below])
            .is_some_and(|below| below.kind == BarKind::Memory64);
        if below_is_wide || self.layout[at..at + width].iter().any(Option::is_some) {
            return Err(Error::BarTaken(index));
        }
        self.layout[at] = Some(bar);

        let register = bar_register(index);
        let kind = if bar.kind == BarKind::Memory64 { 0b100 } else { 0 }
            | if bar.prefetchable { 0b1000 } else { 0 };
        self.reset_space.set(register, &[kind]);
        self.reset_space.set_writable(register, &bar.mask().to_le_bytes()[..4 * width]);
        self.reset();
        Ok(self)
    }

    /// Adds MSI-X with `vectors` vectors in a separate 32-bit BAR: the table at offset 0, the
    /// pending bits on the next 4 KiB boundary behind it, so that a VMM may map or trap them page
    /// by page.
    pub fn with_msix(mut self, bar: u8, vectors: u16) -> Result<Self, Error> {
        if vectors == 0 || vectors > MAX_VECTORS {
            return Err(Error::VectorCount(vectors));
        }
        if self.msix.is_some() {
            return Err(Error::SecondMsix);
        }
        let table = MsixTable::new(vectors);
        let pba_offset = table.table_size().next_multiple_of(4096);
        let size = (pba_offset + table.pba_size()).next_power_of_two();
        self = self.with_bar(bar, Bar::memory32(size))?;

        self.append_capability(MSIX, regs::CAP_MSIX);
        let space = &mut self.reset_space;
        let bir = u32::from(bar);
        let (offset_in_table, offset_in_pba) = (bir, pba_offset as u32 | bir);
        space.set(MSIX + regs::MSIX_CONTROL, &(vectors - 1).to_le_bytes());
        let control = regs::MSIX_ENABLE | regs::MSIX_FUNCTION_MASK;
        space.set_writable(MSIX + regs::MSIX_CONTROL, &control.to_le_bytes());
        space.set(MSIX + regs::MSIX_TABLE, &offset_in_table.to_le_bytes());
        space.set(MSIX + regs::MSIX_PBA, &offset_in_pba.to_le_bytes());
        self.msix = Some(Msix { bar, pba_offset, table });
        self.reset();
        Ok(self)
    }

    /// Appends a vendor-specific capability. `body` is what follows ID, next pointer and
    /// length; software may write the bits set in `writable`, which is as long. Returns where
    /// the capability lies too.
    ///
    /// # Errors
    /// [`Error::CapabilitySpace`] when the capabilities would reach offset 0x100.
    pub fn with_vendor_capability(
        mut self,
        body: &[u8],
        writable: &[u8],
    ) -> Result<(Self, u16), Error> {
        const HEADER: u16 = 3;
        let (at, len) = (self.free, usize::from(HEADER) + body.len());
        let end = usize::from(at) + len;
        if end > usize::from(regs::EXTENDED_CAPABILITIES) {
            return Err(Error::CapabilitySpace(len));
        }
        self.append_capability(at, regs::CAP_VENDOR);
        self.reset_space.set(at + 2, &[len as u8]);
        self.reset_space.set(at + HEADER, body);
        let writable = &writable[..writable.len().min(body.len())];
        self.reset_space.set_writable(at + HEADER, writable);
        self.free = (end as u16).next_multiple_of(4);
        self.reset();
        Ok((self, at))
    }

    /// Puts a capability at the end of the list.
    fn append_capability(&mut self, at: u16, id: u8) {
        capability(&mut self.reset_space, at, id, 0);
        self.reset_space.set(self.last_capability + 1, &[at as u8]);
        self.last_capability = at;
    }

    /// Adds the Device Serial Number extended capability.
    #[must_use]
    pub fn with_serial_number(mut self, serial: u64) -> Self {
        // ID 0x0003, version 1, no next capability.
        self.reset_space.set(regs::EXTENDED_CAPABILITIES, &0x0001_0003u32.to_le_bytes());
        self.reset_space.set(regs::EXTENDED_CAPABILITIES + 4, &serial.to_le_bytes());
        self.reset();
        self
    }

    /// Reads configuration space at any offset and length; ones past the end.
    pub fn config_read(&self, offset: u16, data: &mut [u8]) {
        lock(&self.registers).space.read(offset, data);
    }

    /// A copy of configuration space.
    pub(crate) fn config_space(&self) -> ConfigSpace {
        lock(&self.registers).space.clone()
    }

    /// Writes configuration space at any offset and length, and returns the effects.
    pub fn config_write(&self, offset: u16, data: &[u8]) -> Changes {
        let mut registers = lock(&self.registers);
        let power = power_state(&registers.space);
        let control = self.msix_control(&registers.space);
        registers.space.write(offset, data);
        // States 1 and 2 are not supported; writing one leaves the state alone.
        if !matches!(power_state(&registers.space), 0 | 3) {
            registers.space.set(PM + PM_CONTROL, &[power]);
        }
        // The bit is writable so that the write shows up here.
        let function_reset = registers.space.u16(PCIE + DEVICE_CONTROL) & INITIATE_FLR != 0;
        if function_reset {
            self.reset_registers(&mut registers);
        }
        let msix = self.msix_control(&registers.space) != control;
        let mut changes = self.refresh(&mut registers);
        changes.msix = msix;
        changes.function_reset = function_reset;
        changes
    }

    /// True if the function may write memory and send interrupts: bus master
    /// enable is set and the function is in power state D0.
    pub fn bus_master(&self) -> bool {
        self.bus_master.load(Ordering::Acquire)
    }

    /// The BARs that decode accesses now, by index.
    pub fn bars(&self) -> [Option<BarRange>; BAR_COUNT] {
        lock(&self.registers).bars
    }

    /// The BARs of the function, by index of their low register.
    pub fn layout(&self) -> &[Option<Bar>; BAR_COUNT] {
        &self.layout
    }

    /// The MSI-X table, if the function has one. Devices raise interrupts through
    /// [`Endpoint::trigger`] instead, which honours bus master enable.
    pub fn msix(&self) -> Option<&MsixTable> {
        self.msix.as_ref().map(|msix| &msix.table)
    }

    /// Raises an interrupt. Nothing happens without bus master enable: a message
    /// is a memory write, which such a function may not issue.
    pub fn trigger(&self, vector: u16) {
        if let Some(msix) = &self.msix
            && self.bus_master()
        {
            msix.table.trigger(vector);
        }
    }

    /// Serves a read of the MSI-X BAR; false if `bar` is not that one.
    pub fn msix_bar_read(&self, bar: u8, offset: u64, data: &mut [u8]) -> bool {
        let Some(msix) = self.msix.as_ref().filter(|msix| msix.bar == bar) else { return false };
        match offset.checked_sub(msix.pba_offset) {
            Some(offset) => msix.table.pba_read(offset, data),
            None => msix.table.table_read(offset, data),
        }
        true
    }

    /// Serves a write of the MSI-X BAR; false if `bar` is not that one.
    pub fn msix_bar_write(&self, bar: u8, offset: u64, data: &[u8]) -> bool {
        let Some(msix) = self.msix.as_ref().filter(|msix| msix.bar == bar) else { return false };
        if offset < msix.pba_offset {
            msix.table.table_write(offset, data);
        }
        true
    }

    /// Returns all registers and the MSI-X table to their reset state.
    pub fn reset(&self) {
        let mut registers = lock(&self.registers);
        self.reset_registers(&mut registers);
        self.refresh(&mut registers);
    }

    fn reset_registers(&self, registers: &mut Registers) {
        registers.space = self.reset_space.clone();
        if let Some(msix) = &self.msix {
            msix.table.reset();
        }
    }

    /// Brings everything that derives from the registers up to date.
    fn refresh(&self, registers: &mut Registers) -> Changes {
        let space = &registers.space;
        let awake = power_state(space) == 0;
        let command = if awake { space.u16(regs::COMMAND) } else { 0 };
        let bus_master = command & regs::COMMAND_BUS_MASTER != 0;
        let mut bars = [None; BAR_COUNT];
        if command & regs::COMMAND_MEMORY != 0 {
            for (index, bar) in (0..).zip(&self.layout) {
                bars[usize::from(index)] = bar.map(|bar| bar_range(space, index, &bar));
            }
        }
        if let Some(msix) = &self.msix {
            let control = self.msix_control(space);
            msix.table.set_control(
                control & regs::MSIX_ENABLE != 0,
                control & regs::MSIX_FUNCTION_MASK != 0,
            );
        }
        let changes = Changes {
            bus_master: self.bus_master.swap(bus_master, Ordering::AcqRel) != bus_master,
            bars: bars != registers.bars,
            ..Changes::default()
        };
        registers.bars = bars;
        changes
    }

    fn msix_control(&self, space: &ConfigSpace) -> u16 {
        if self.msix.is_some() { space.u16(MSIX + regs::MSIX_CONTROL) } else { 0 }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let registers = lock(&self.registers);
        f.debug_struct("Endpoint")
            .field("vendor", &registers.space.u16(regs::VENDOR_ID))
            .field("device", &registers.space.u16(regs::DEVICE_ID))
            .field("bars", &registers.bars)
            .field("bus_master", &self.bus_master())
            .finish_non_exhaustive()
    }
}

fn bar_register(index: u8) -> u16 {
    regs::BAR0 + 4 * u16::from(index)
}

fn bar_range(space: &ConfigSpace, index: u8, bar: &Bar) -> BarRange {
    let low = u64::from(space.u32(bar_register(index)));
    let high = match bar.kind {
        BarKind::Memory32 => 0,
        BarKind::Memory64 => u64::from(space.u32(bar_register(index) + 4)),
    };
    BarRange { index, address: (high << 32 | low) & bar.mask(), size: bar.size }
}

fn power_state(space: &ConfigSpace) -> u8 {
    (space.u16(PM + PM_CONTROL) & 0b11) as u8
}

fn capability(space: &mut ConfigSpace, at: u16, id: u8, next: u16) {
    debug_assert!(usize::from(next) < CONFIG_SPACE_SIZE && next.is_multiple_of(4));
    space.set(at, &[id, next as u8]);
}

fn header(space: &mut ConfigSpace, identity: &Identity) {
    space.set(regs::VENDOR_ID, &identity.vendor.to_le_bytes());
    space.set(regs::DEVICE_ID, &identity.device.to_le_bytes());
    let command = regs::COMMAND_MEMORY
        | regs::COMMAND_BUS_MASTER
        | regs::COMMAND_PARITY
        | regs::COMMAND_SERR
        | regs::COMMAND_INTX_DISABLE;
    space.set_writable(regs::COMMAND, &command.to_le_bytes());
    space.set(regs::STATUS, &regs::STATUS_CAPABILITIES.to_le_bytes());
    space.set_write_one_clears(regs::STATUS, &regs::STATUS_ERRORS.to_le_bytes());
    let class = (identity.class << 8) | u32::from(identity.revision);
    space.set(regs::REVISION_ID, &class.to_le_bytes());
    space.set_writable(regs::CACHE_LINE_SIZE, &[0xff]);
    space.set(regs::SUBSYSTEM_VENDOR_ID, &identity.subsystem_vendor.to_le_bytes());
    space.set(regs::SUBSYSTEM_ID, &identity.subsystem.to_le_bytes());
    space.set(regs::CAPABILITIES, &[PM as u8]);
    space.set_writable(regs::INTERRUPT_LINE, &[0xff]);
}

/// D0 and D3hot, no PME, registers kept across D3hot (No_Soft_Reset).
fn power_management(space: &mut ConfigSpace) {
    capability(space, PM, regs::CAP_POWER_MANAGEMENT, PCIE);
    // Capabilities: version 3.
    space.set(PM + 0x02, &3u16.to_le_bytes());
    space.set(PM + PM_CONTROL, &(1u16 << 3).to_le_bytes());
    space.set_writable(PM + PM_CONTROL, &[0b11]);
}

fn pci_express(space: &mut ConfigSpace, speed: LinkSpeed) {
    const WIDTH: u16 = 16;
    let speed = speed as u16;
    capability(space, PCIE, regs::CAP_PCI_EXPRESS, 0);
    // Capabilities: version 2, endpoint.
    space.set(PCIE + 0x02, &2u16.to_le_bytes());
    // Device capabilities: 512-byte payload, extended tags, role-based error
    // reporting, function level reset.
    let device: u32 = 2 | 1 << 5 | 1 << 15 | 1 << 28;
    space.set(PCIE + 0x04, &device.to_le_bytes());
    // Device control: relaxed ordering and no snoop allowed, 512-byte reads.
    let control: u16 = 1 << 4 | 1 << 11 | 2 << 12;
    space.set(PCIE + DEVICE_CONTROL, &control.to_le_bytes());
    // All but phantom functions and auxiliary power, which do not exist here.
    space.set_writable(PCIE + DEVICE_CONTROL, &(!(1u16 << 9 | 1 << 10)).to_le_bytes());
    // Device status: the four error-detected bits.
    space.set_write_one_clears(PCIE + 0x0a, &[0x0f]);
    // Link capabilities: no ASPM, ASPM optionality compliance.
    let link = u32::from(speed) | u32::from(WIDTH) << 4 | 1 << 22;
    space.set(PCIE + 0x0c, &link.to_le_bytes());
    // Link control: read completion boundary, common clock, extended synch.
    space.set_writable(PCIE + 0x10, &(1u16 << 3 | 1 << 6 | 1 << 7).to_le_bytes());
    // Link status: trained at full speed and width, slot clock.
    space.set(PCIE + 0x12, &(speed | WIDTH << 4 | 1 << 12).to_le_bytes());
    // Link capabilities 2: all speeds up to ours.
    let speeds: u32 = ((1 << speed) - 1) << 1;
    space.set(PCIE + 0x2c, &speeds.to_le_bytes());
    // Link control 2: target link speed.
    space.set(PCIE + 0x30, &speed.to_le_bytes());
    space.set_writable(PCIE + 0x30, &[0x0f]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::EndpointDevice;
    use crate::function::{PciFunction, size_bars};
    use crate::testing::{self, RecordingSink};
    use proptest::prelude::*;
    use std::sync::Arc;

    const IDENTITY: Identity = Identity {
        vendor: 0x10cf,
        device: 0x1ccd,
        revision: 1,
        class: 0x028000,
        subsystem_vendor: 0x10cf,
        subsystem: 1,
    };

    struct Plain(Endpoint);

    impl EndpointDevice for Plain {
        fn endpoint(&self) -> &Endpoint {
            &self.0
        }
        fn read(&self, _: u8, _: u64, data: &mut [u8]) {
            data.fill(0xff);
        }
        fn write(&self, _: u8, _: u64, _: &[u8]) {}
    }

    fn tofud() -> Plain {
        Plain(
            Endpoint::new(IDENTITY, LinkSpeed::Gen3)
                .with_bar(0, Bar::memory64(256 << 20).prefetchable())
                .and_then(|endpoint| endpoint.with_msix(2, 97))
                .unwrap()
                .with_serial_number(0x0102_0304_0506_0708),
        )
    }

    testing::law_tests!(tofud);

    mod widest {
        use super::*;
        fn endpoint() -> Plain {
            let endpoint = Endpoint::new(IDENTITY, LinkSpeed::Gen1)
                .with_bar(1, Bar::memory64(1 << 63))
                .and_then(|endpoint| endpoint.with_bar(3, Bar::memory32(1 << 31)))
                .and_then(|endpoint| endpoint.with_bar(4, Bar::memory32(16).prefetchable()))
                .and_then(|endpoint| endpoint.with_msix(5, MAX_VECTORS));
            Plain(endpoint.unwrap())
        }
        testing::law_tests!(endpoint);
    }

    mod no_interrupts {
        use super::*;
        fn endpoint() -> Plain {
            Plain(Endpoint::new(IDENTITY, LinkSpeed::Gen2))
        }
        testing::law_tests!(endpoint);
    }

    fn word(function: &dyn PciFunction, offset: u16) -> u16 {
        let mut data = [0; 2];
        function.config_read(offset, &mut data);
        u16::from_le_bytes(data)
    }

    fn command(function: &Plain, value: u16) -> Changes {
        function.0.config_write(regs::COMMAND, &value.to_le_bytes())
    }

    #[test]
    fn firmware_finds_the_bars() {
        let bars = size_bars(&tofud());
        let found: Vec<_> =
            bars.iter().map(|bar| (bar.index, bar.size, bar.is_64bit, bar.prefetchable)).collect();
        assert_eq!(found, [(0, 256 << 20, true, true), (2, 8192, false, false)]);
    }

    #[test]
    fn bars_decode_only_while_enabled() {
        let function = tofud();
        for (bar, address) in size_bars(&function).iter().zip([0x10_0000_0000, 0xc000_0000]) {
            bar.assign(&function, address);
        }
        assert_eq!(function.bars(), [None; BAR_COUNT]);
        assert!(command(&function, regs::COMMAND_MEMORY).bars);
        let bars = function.bars();
        let expected = BarRange { index: 0, address: 0x10_0000_0000, size: 256 << 20 };
        assert_eq!(bars[0], Some(expected));
        assert_eq!(expected.offset_of(0x10_0000_1000), Some(0x1000));
        assert_eq!(expected.offset_of(0x0f_ffff_ffff), None);
        assert_eq!(expected.offset_of(0x10_1000_0000), None);
        assert_eq!(bars[2].map(|bar| bar.address), Some(0xc000_0000));
        assert!(!command(&function, regs::COMMAND_MEMORY | regs::COMMAND_BUS_MASTER).bars);
        assert!(command(&function, 0).bars);
    }

    #[test]
    fn bar_at_the_top_does_not_wrap() {
        let function = tofud();
        command(&function, regs::COMMAND_MEMORY);
        function.config_write(regs::BAR0, &[0xff; 8]);
        let bar = function.bars()[0].unwrap();
        assert_eq!(bar.address, 0xffff_ffff_f000_0000);
        assert_eq!(bar.offset_of(u64::MAX), Some((256 << 20) - 1));
        assert_eq!(bar.offset_of(0), None);
    }

    #[test]
    fn interrupts_need_bus_master_and_enable() {
        let function = tofud();
        let sink = Arc::new(RecordingSink::default());
        let table = function.0.msix().unwrap();
        table.connect(sink.clone());
        function.bar_write(2, 16, &0xfee0_0000u64.to_le_bytes());
        function.bar_write(2, 24, &0x31u64.to_le_bytes());
        let control = MSIX + regs::MSIX_CONTROL;
        function.0.trigger(1);
        assert!(command(&function, regs::COMMAND_BUS_MASTER).bus_master);
        function.0.trigger(1);
        assert_eq!(sink.notified(), []);
        assert!(function.0.config_write(control, &regs::MSIX_ENABLE.to_le_bytes()).msix);
        function.0.trigger(1);
        assert_eq!(sink.notified(), [1]);
        let masked = regs::MSIX_ENABLE | regs::MSIX_FUNCTION_MASK;
        assert!(function.0.config_write(control, &masked.to_le_bytes()).msix);
        function.0.trigger(1);
        let mut pba = [0; 4];
        function.bar_read(2, 0x1000, &mut pba);
        assert_eq!(pba, [0b10, 0, 0, 0]);
        function.0.config_write(control, &regs::MSIX_ENABLE.to_le_bytes());
        assert_eq!(sink.notified(), [1, 1]);
    }

    #[test]
    fn function_level_reset_restores_everything() {
        let function = tofud();
        command(&function, regs::COMMAND_MEMORY | regs::COMMAND_BUS_MASTER);
        function.config_write(regs::BAR0, &0x10_0000_0000u64.to_le_bytes());
        function.config_write(MSIX + regs::MSIX_CONTROL, &regs::MSIX_ENABLE.to_le_bytes());
        function.bar_write(2, 12, &0u32.to_le_bytes());
        let control = word(&function, PCIE + DEVICE_CONTROL) | INITIATE_FLR;
        let changes = function.0.config_write(PCIE + DEVICE_CONTROL, &control.to_le_bytes());
        let all = Changes { bus_master: true, bars: true, msix: true, function_reset: true };
        assert_eq!(changes, all);
        let (fresh, mut a, mut b) = (tofud(), [0; CONFIG_SPACE_SIZE], [0; CONFIG_SPACE_SIZE]);
        fresh.config_read(0, &mut a);
        function.config_read(0, &mut b);
        assert_eq!(a, b);
        let mut mask = [0; 4];
        function.bar_read(2, 12, &mut mask);
        assert_eq!(mask, [1, 0, 0, 0]);
    }

    #[test]
    fn d3hot_stops_decoding_and_keeps_registers() {
        let function = tofud();
        let on = regs::COMMAND_MEMORY | regs::COMMAND_BUS_MASTER;
        command(&function, on);
        function.config_write(PM + PM_CONTROL, &[2]);
        assert!(function.0.bus_master(), "D2 is not supported and leaves D0");
        let changes = function.0.config_write(PM + PM_CONTROL, &[3]);
        assert!(changes.bus_master && changes.bars && !changes.function_reset);
        assert!(!function.0.bus_master());
        assert_eq!(function.bars(), [None; BAR_COUNT]);
        function.config_write(PM + PM_CONTROL, &[0]);
        assert!(function.0.bus_master());
        assert_eq!(word(&function, regs::COMMAND), on);
    }

    #[test]
    fn impossible_endpoints_are_refused() {
        let new = || Endpoint::new(IDENTITY, LinkSpeed::Gen3);
        let bar = |endpoint: Endpoint, index, bar| endpoint.with_bar(index, bar).err();
        assert_eq!(bar(new(), 5, Bar::memory64(4096)), Some(Error::NoSuchBar(5)));
        assert_eq!(bar(new(), 6, Bar::memory32(4096)), Some(Error::NoSuchBar(6)));
        for size in [0, 8, 4097, 1 << 32] {
            assert_eq!(bar(new(), 0, Bar::memory32(size)), Some(Error::BarSize { bar: 0, size }));
        }
        let wide = || new().with_bar(0, Bar::memory64(4096)).unwrap();
        assert_eq!(bar(wide(), 1, Bar::memory32(4096)), Some(Error::BarTaken(1)));
        assert_eq!(bar(wide(), 0, Bar::memory32(4096)), Some(Error::BarTaken(0)));
        let second = new().with_bar(1, Bar::memory32(4096)).unwrap();
        assert_eq!(bar(second, 0, Bar::memory64(4096)), Some(Error::BarTaken(0)));
        assert_eq!(new().with_msix(0, 0).err(), Some(Error::VectorCount(0)));
        assert_eq!(new().with_msix(0, 2049).err(), Some(Error::VectorCount(2049)));
        let once = new().with_msix(0, 1).unwrap();
        assert_eq!(once.with_msix(1, 1).err(), Some(Error::SecondMsix));
        let (full, _) = new().with_vendor_capability(&[0; 97], &[]).unwrap();
        let error = full.with_vendor_capability(&[0], &[]).err();
        assert_eq!(error, Some(Error::CapabilitySpace(4)));
    }

    fn with_vendor_capabilities() -> Plain {
        // One before and one behind MSI-X, of lengths that need padding.
        let (endpoint, first) = Endpoint::new(IDENTITY, LinkSpeed::Gen1)
            .with_vendor_capability(&[1, 2], &[0, 0xf0])
            .unwrap();
        let endpoint = endpoint.with_msix(2, 3).unwrap();
        let (endpoint, second) = endpoint.with_vendor_capability(&[3; 13], &[]).unwrap();
        assert_eq!((first, second), (VENDOR, VENDOR + 8));
        Plain(endpoint)
    }

    mod vendor_specific {
        testing::law_tests!(super::with_vendor_capabilities);
        use super::*;
    }

    #[test]
    fn vendor_capabilities_are_partly_writable() {
        let function = with_vendor_capabilities();
        let listed = testing::capabilities(&function);
        assert_eq!(
            listed[2..],
            [(VENDOR, regs::CAP_VENDOR), (MSIX, regs::CAP_MSIX), (VENDOR + 8, regs::CAP_VENDOR)]
        );
        function.config_write(VENDOR, &[0xff; 8]);
        let mut bytes = [0; 6];
        function.config_read(VENDOR, &mut bytes);
        assert_eq!(bytes, [0x09, MSIX as u8, 5, 1, 0xf2, 0]);
    }

    proptest! {
        /// After any write by a guest, identity and capabilities are unchanged, and ranges stay
        /// aligned and of their size.
        #[test]
        fn garbage_cannot_break_the_layout(
            writes in proptest::collection::vec((any::<u16>(), any::<u64>(), 0usize..4), 0..200)
        ) {
            let function = tofud();
            for (offset, value, width) in writes {
                // Most of a uniform choice would miss the registers.
                let offset = if offset % 8 == 0 { offset } else { offset % 0x110 };
                function.config_write(offset, &value.to_le_bytes()[..1 << width]);
            }
            prop_assert_eq!(word(&function, regs::DEVICE_ID), 0x1ccd);
            testing::capability_list_terminates(&function);
            for (bar, size) in function.bars().iter().flatten().zip([256 << 20, 8192]) {
                prop_assert_eq!(bar.size, size);
                prop_assert_eq!(bar.address % size, 0);
            }
        }
    }
}
