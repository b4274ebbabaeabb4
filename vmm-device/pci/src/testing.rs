//! Laws that every [`PciFunction`] obeys, and an [`MsiSink`] that records.
//!
//! A device crate instantiates all laws on a constructor of its function with
//! [`law_tests!`](crate::testing::law_tests). Each law panics with a message when
//! it does not hold.

use std::sync::Mutex;

use tofu_sync::lock;

use crate::config::{CONFIG_SPACE_SIZE, regs};
use crate::function::{BAR_COUNT, PciFunction, size_bars};
use crate::msix::MsiSink;

#[doc(inline)]
pub use crate::pci_law_tests as law_tests;

/// One call of an [`MsiSink`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MsiEvent {
    /// [`MsiSink::notify`].
    Notify {
        /// Vector.
        vector: u16,
        /// Message address.
        address: u64,
        /// Message data.
        data: u32,
    },
    /// [`MsiSink::update`].
    Update {
        /// Vector.
        vector: u16,
        /// Message address.
        address: u64,
        /// Message data.
        data: u32,
        /// Effective mask.
        masked: bool,
    },
}

/// Keeps every call in order.
#[derive(Debug, Default)]
pub struct RecordingSink(Mutex<Vec<MsiEvent>>);

impl RecordingSink {
    /// The calls since the last `take`.
    pub fn take(&self) -> Vec<MsiEvent> {
        std::mem::take(&mut lock(&self.0))
    }

    /// The vectors notified since the last `take`, in order.
    pub fn notified(&self) -> Vec<u16> {
        let vector = |event: &MsiEvent| match *event {
            MsiEvent::Notify { vector, .. } => Some(vector),
            MsiEvent::Update { .. } => None,
        };
        lock(&self.0).iter().filter_map(vector).collect()
    }
}

impl MsiSink for RecordingSink {
    fn notify(&self, vector: u16, address: u64, data: u32) {
        lock(&self.0).push(MsiEvent::Notify { vector, address, data });
    }

    fn update(&self, vector: u16, address: u64, data: u32, masked: bool) {
        lock(&self.0).push(MsiEvent::Update { vector, address, data, masked });
    }
}

fn read_config<const N: usize>(function: &dyn PciFunction, offset: u16) -> [u8; N] {
    let mut data = [0; N];
    function.config_read(offset, &mut data);
    data
}

fn config_u16(function: &dyn PciFunction, offset: u16) -> u16 {
    u16::from_le_bytes(read_config(function, offset))
}

fn config_u32(function: &dyn PciFunction, offset: u16) -> u32 {
    u32::from_le_bytes(read_config(function, offset))
}

/// Offsets and IDs of the capabilities in list order.
///
/// Panics if the list leaves 0x40..0x100, is misaligned or loops.
pub fn capabilities(function: &dyn PciFunction) -> Vec<(u16, u8)> {
    let mut found = Vec::new();
    if config_u16(function, regs::STATUS) & regs::STATUS_CAPABILITIES == 0 {
        return found;
    }
    let [mut at] = read_config(function, regs::CAPABILITIES);
    while at != 0 {
        assert!(at >= 0x40 && at.is_multiple_of(4), "capability at {at:#x}");
        assert!(found.len() < 48, "the capability list loops");
        let [id, next] = read_config(function, u16::from(at));
        found.push((u16::from(at), id));
        at = next;
    }
    found
}

/// The capability list and the extended capability list end, and no capability
/// but the vendor-specific one comes twice.
pub fn capability_list_terminates(function: &dyn PciFunction) {
    let ids = capabilities(function).into_iter().map(|(_, id)| id);
    let mut ids: Vec<u8> = ids.filter(|id| *id != regs::CAP_VENDOR).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "a capability is listed twice");

    let mut at = regs::EXTENDED_CAPABILITIES;
    for _ in 0..=CONFIG_SPACE_SIZE / 8 {
        let header = config_u32(function, at);
        let next = (header >> 20) as u16;
        if next == 0 {
            return;
        }
        assert!(next >= regs::EXTENDED_CAPABILITIES && next.is_multiple_of(4), "next is {next:#x}");
        at = next;
    }
    panic!("the extended capability list loops");
}

/// Sizing finds powers of two, leaves addresses alone, and an assigned address
/// reads back and decodes.
pub fn bars_size_and_assign(function: &dyn PciFunction) {
    let before: [u8; 24] = read_config(function, regs::BAR0);
    let bars = size_bars(function);
    assert_eq!(read_config(function, regs::BAR0), before, "sizing changed the BARs");
    for bar in &bars {
        assert!(bar.size.is_power_of_two() && bar.size >= 16, "{bar:?}");
        let address = if bar.is_64bit && bar.size < 1 << 40 { 1 << 40 } else { bar.size & !15 };
        bar.assign(function, address | (bar.size - 1));
    }
    assert_eq!(function.bars(), [None; BAR_COUNT], "BARs decode with memory enable off");
    function.config_write(regs::COMMAND, &regs::COMMAND_MEMORY.to_le_bytes());
    let decoded: Vec<_> = function.bars().into_iter().flatten().collect();
    assert_eq!(decoded.len(), bars.len());
    for (range, bar) in decoded.iter().zip(&bars) {
        let address = if bar.is_64bit && bar.size < 1 << 40 { 1 << 40 } else { bar.size & !15 };
        assert_eq!((range.index, range.address, range.size), (bar.index, address, bar.size));
    }
    function.reset();
    assert_eq!(read_config(function, regs::BAR0), before, "reset did not restore the BARs");
}

/// Identity, class, header type and interrupt pin cannot be written.
pub fn read_only_fields_stay(function: &dyn PciFunction) {
    for (offset, len) in [(0x00, 4), (0x08, 4), (0x0e, 1), (0x2c, 4), (0x34, 1), (0x3d, 3)] {
        for at in offset..offset + len {
            let [old] = read_config(function, at);
            for garbage in [0x00, 0xff, !old] {
                function.config_write(at, &[garbage]);
                assert_eq!(read_config(function, at), [old], "byte {at:#x} is not read-only");
            }
        }
    }
}

/// The MSI-X table and pending bits, if any, lie inside an existing BAR and do
/// not overlap.
pub fn msix_lies_in_its_bar(function: &dyn PciFunction) {
    let Some((at, _)) = capabilities(function).into_iter().find(|(_, id)| *id == regs::CAP_MSIX)
    else {
        return;
    };
    let vectors = u64::from(config_u16(function, at + regs::MSIX_CONTROL) & 0x7ff) + 1;
    let place = |register, size: u64| {
        let value = config_u32(function, at + register);
        let (bir, offset) = ((value & 7) as u8, u64::from(value & !7));
        let bars = size_bars(function);
        let bar = bars.iter().find(|bar| bar.index == bir).expect("the BAR exists");
        assert!(offset + size <= bar.size, "{offset:#x} + {size:#x} is outside of {bar:?}");
        (bir, offset, offset + size)
    };
    let table = place(regs::MSIX_TABLE, vectors * 16);
    let pba = place(regs::MSIX_PBA, vectors.div_ceil(64) * 8);
    let apart = table.0 != pba.0 || table.2 <= pba.1 || pba.2 <= table.1;
    assert!(apart, "table {table:x?} and pending bits {pba:x?} overlap");
}

/// Reads of every width agree with each other, and writes byte by byte with
/// wide ones.
pub fn partial_accesses_merge(function: &dyn PciFunction) {
    for at in 0..CONFIG_SPACE_SIZE as u16 {
        let bytes: [u8; 8] = std::array::from_fn(|i| read_config::<1>(function, at + i as u16)[0]);
        assert_eq!(read_config(function, at), bytes, "8 bytes at {at:#x}");
        assert_eq!(read_config::<4>(function, at), bytes[..4], "4 bytes at {at:#x}");
        assert_eq!(read_config::<2>(function, at), bytes[..2], "2 bytes at {at:#x}");
    }
    let target = regs::BAR0;
    for value in [0xfedc_ba98_u32, 0x0123_4567] {
        function.config_write(target, &value.to_le_bytes());
        let wide: [u8; 4] = read_config(function, target);
        function.config_write(target, &[0; 4]);
        for (at, byte) in (target..).zip(value.to_le_bytes()) {
            function.config_write(at, &[byte]);
        }
        assert_eq!(read_config(function, target), wide);
    }
    function.reset();
}

/// Accesses outside of configuration space, in BARs that do not exist and at
/// the ends of those that do, are harmless; the first two read as ones.
pub fn stray_accesses_are_harmless(function: &dyn PciFunction) {
    for offset in [CONFIG_SPACE_SIZE as u16, u16::MAX] {
        function.config_write(offset, &[0; 8]);
        assert_eq!(read_config(function, offset), [0xff; 8]);
    }
    let sizes = size_bars(function);
    for bar in 0..=255u8 {
        let known = sizes.iter().find(|info| info.index == bar);
        let end = known.map_or(4096, |info| info.size);
        for offset in [0, end.wrapping_sub(4), end.wrapping_sub(8), end, end + 1, u64::MAX] {
            for len in [0, 1, 2, 3, 4, 8, 16, 64] {
                let mut data = vec![0; len];
                function.bar_write(bar, offset, &data);
                function.bar_read(bar, offset, &mut data);
                assert!(known.is_some() || data.iter().all(|byte| *byte == 0xff));
            }
        }
    }
    function.reset();
}

/// Instantiates every law of [`crate::testing`] as a `#[test]` on the function
/// that the given constructor path (`fn() -> impl PciFunction`) returns.
#[macro_export]
macro_rules! pci_law_tests {
    ($new:path) => {
        $crate::pci_law_tests!(@ $new:
            capability_list_terminates,
            bars_size_and_assign,
            read_only_fields_stay,
            msix_lies_in_its_bar,
            partial_accesses_merge,
            stray_accesses_are_harmless,
        );
    };
    (@ $new:path: $($law:ident),* $(,)?) => {
        $(
            #[test]
            fn $law() {
                $crate::testing::$law(&$new());
            }
        )*
    };
}
