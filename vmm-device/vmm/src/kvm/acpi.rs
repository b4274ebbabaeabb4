//! ACPI tables for Linux, which describe the machine of [`layout`]. Sources are the ACPI
//! specification 6.5 and the PCI Firmware specification 3.3.
//!
//! # The tables
//!
//! The formats are public (ACPI 6.5, PCI Firmware 3.3). The contents are ours.
//!
//! - RSDP, XSDT: at `0xe_0000`; no RSDT
//! - FADT: not hardware-reduced: PM1a blocks, PM timer, SCI 9, reset register `0xcf9` with value 6;
//!   ACPI mode is on from the start (SMI_CMD 0); no VGA, no keyboard controller, no ASPM; no power
//!   or sleep button
//! - FACS: empty
//! - MADT: local APICs, I/O APIC with inputs 0 to 23, SCI level and high, LINT1 = NMI. Interrupt 0
//!   is input 0
//! - MCFG: ECAM, segment 0, buses 0 to 255
//! - VIOT: if the machine has a virtio-iommu (`LinuxBoot::viot`): the IOMMU's function, and the
//!   functions whose accesses it translates, with their bus, device and function numbers as
//!   endpoint IDs
//! - DSDT: `PCI0` (PNP0A08: bus range, both windows, an `_OSC` that grants everything), `MBRD`
//!   (PNP0C02: reserves ECAM and `0x600`), `COM1` (PNP0501), `RTC` (PNP0B00), a processor
//!   (ACPI0007) for each vCPU, `_S5`
//!
//! These are absent: HPET; hotplug; sleep states other than S5; and MP tables, so a kernel without
//! ACPI uses one CPU.

use std::ops::Range;

use acpi_tables::aml::{
    AddressSpace, AddressSpaceCacheable, Arg, CreateDWordField, Device, EISAName, IO, If,
    Interrupt, Memory32Fixed, Method, Name, NotEqual, Or, Package, ResourceTemplate, Return, Uuid,
    ZERO,
};
use acpi_tables::facs::FACS;
use acpi_tables::fadt::{FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace as Space, GAS};
use acpi_tables::madt::{EnabledStatus, IoApic, ProcessorLocalApic};
use acpi_tables::mcfg::MCFG;
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::viot::{PciDevice, PciRange, VIOT, VirtIoPciIommu};
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, AmlSink, aml};

use crate::{Slot, Viot, layout};

const OEM: [u8; 6] = *b"TOFU  ";
const OEM_TABLE: [u8; 8] = *b"TOFUVMM ";
const OEM_REVISION: u32 = 1;

/// Sleep type that the DSDT's `_S5` names for power-off.
pub(crate) const SLEEP_TYPE_OFF: u8 = 5;
/// Value to be written to [`layout::PORT_RESET`].
pub(crate) const RESET_VALUE: u8 = 6;
/// CMOS register of the century.
pub(crate) const CMOS_CENTURY: u8 = 0x32;

/// Makes the tables of a machine with `vcpus` CPUs, whose window for 64-bit BARs is `mmio64`, and
/// with an IOMMU if there is a `viot`. They are one block to be placed at [`layout::ACPI_START`],
/// which begins with the RSDP.
pub(crate) fn tables(vcpus: u8, mmio64: Range<u64>, viot: Option<Viot<'_>>) -> Vec<u8> {
    // The RSDP comes first but points to what follows.
    let mut block = Block { bytes: vec![0; Rsdp::len()] };
    let facs = block.add(&FACS::new());
    let dsdt = block.add(&dsdt(vcpus, mmio64));
    let mut entries =
        vec![block.add(&fadt(facs, dsdt)), block.add(&madt(vcpus)), block.add(&mcfg())];
    entries.extend(viot.map(|table| block.add(&io_translation(table))));
    let mut xsdt = XSDT::new(OEM, OEM_TABLE, OEM_REVISION);
    for entry in entries {
        xsdt.add_entry(entry);
    }
    let xsdt = block.add(&xsdt);
    let mut rsdp = Vec::new();
    Rsdp::new(OEM, xsdt).to_aml_bytes(&mut rsdp);
    block.bytes[..rsdp.len()].copy_from_slice(&rsdp);
    block.bytes
}

struct Block {
    bytes: Vec<u8>,
}

impl Block {
    /// Appends a table; returns its address. The FACS must lie at a multiple of 64
    /// bytes, the others do not mind.
    fn add(&mut self, table: &dyn Aml) -> u64 {
        self.bytes.resize(self.bytes.len().next_multiple_of(64), 0);
        let address = layout::ACPI_START + self.bytes.len() as u64;
        table.to_aml_bytes(&mut self.bytes);
        address
    }
}

/// Finished AML.
struct Raw(Vec<u8>);

impl Aml for Raw {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        sink.vec(&self.0);
    }
}

fn resources(descriptors: Vec<&dyn Aml>) -> Raw {
    let mut bytes = Vec::new();
    ResourceTemplate::new(descriptors).to_aml_bytes(&mut bytes);
    Raw(bytes)
}

fn io_register(port: u16, bits: u8, access: AccessSize) -> GAS {
    GAS::new(Space::SystemIo, bits, 0, access, port.into())
}

fn fadt(facs: u64, dsdt: u64) -> impl Aml {
    /// There are devices that only firmware can announce: the serial port.
    const LEGACY_DEVICES: u16 = 1 << 0;
    const NO_VGA: u16 = 1 << 2;
    const NO_ASPM: u16 = 1 << 4;
    // The addresses lie below 1 MiB. Both of the fields for one table may be set,
    // and consumers differ in which one they read.
    let mut fadt = FADTBuilder::new(OEM, OEM_TABLE, OEM_REVISION)
        .dsdt_64(dsdt)
        .firmware_ctrl_32(facs as u32)
        .flag(Flags::Wbinvd)
        .flag(Flags::ProcC1)
        // There are no buttons, and the clock is no wakeup source.
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton)
        .flag(Flags::FixRtc)
        .flag(Flags::ResetRegSup);
    fadt.dsdt = (dsdt as u32).into();
    fadt.sci_int = (layout::SCI_IRQ as u16).into();
    fadt.pm1a_evt_blk = u32::from(layout::PORT_PM1_EVENT).into();
    fadt.x_pm1a_evt_blk = io_register(layout::PORT_PM1_EVENT, 32, AccessSize::WordAccess);
    fadt.pm1_evt_len = 4;
    fadt.pm1a_cnt_blk = u32::from(layout::PORT_PM1_CONTROL).into();
    fadt.x_pm1a_cnt_blk = io_register(layout::PORT_PM1_CONTROL, 16, AccessSize::WordAccess);
    fadt.pm1_cnt_len = 2;
    fadt.pm_tmr_blk = u32::from(layout::PORT_PM_TIMER).into();
    fadt.x_pm_tmr_blk = io_register(layout::PORT_PM_TIMER, 32, AccessSize::DwordAccess);
    fadt.pm_tmr_len = 4;
    // No C2 and C3: latencies beyond these limits say so.
    fadt.p_lvl2_lat = 101.into();
    fadt.p_lvl3_lat = 1001.into();
    fadt.century = CMOS_CENTURY;
    fadt.iapc_boot_arch = (LEGACY_DEVICES | NO_VGA | NO_ASPM).into();
    fadt.reset_reg = io_register(layout::PORT_RESET, 8, AccessSize::ByteAccess);
    fadt.reset_value = RESET_VALUE;
    fadt.finalize()
}

/// Interrupt controllers. Interrupt 0, the timer's, is input 0 of the I/O APIC, as
/// KVM has it, so only the SCI needs its own word.
fn madt(vcpus: u8) -> Sdt {
    const FIXED_PART: u32 = 44;
    const LAPIC_AT: usize = 36;
    const FLAGS_AT: usize = 40;
    const PC_WITH_8259: u32 = 1;
    const OVERRIDE: u8 = 2;
    const LEVEL_HIGH: u8 = 0b1101;
    const LOCAL_NMI: u8 = 4;
    const ALL_CPUS: u8 = 0xff;
    const LINT1: u8 = 1;
    let mut madt = Sdt::new(*b"APIC", FIXED_PART, 5, OEM, OEM_TABLE, OEM_REVISION);
    madt.write_u32(LAPIC_AT, layout::LAPIC_START);
    madt.write_u32(FLAGS_AT, PC_WITH_8259);
    let mut structures = Vec::new();
    for id in 0..vcpus {
        ProcessorLocalApic::new(id, id, EnabledStatus::Enabled).to_aml_bytes(&mut structures);
    }
    IoApic::new(0, layout::IOAPIC_START, 0).to_aml_bytes(&mut structures);
    let sci = layout::SCI_IRQ as u8;
    structures.extend([OVERRIDE, 10, 0, sci, sci, 0, 0, 0, LEVEL_HIGH, 0]);
    structures.extend([LOCAL_NMI, 6, ALL_CPUS, 0, 0, LINT1]);
    madt.append_slice(&structures);
    madt
}

fn mcfg() -> MCFG {
    let mut mcfg = MCFG::new(OEM, OEM_TABLE, OEM_REVISION);
    mcfg.add_ecam(layout::ECAM_START, 0, 0, 0xff);
    mcfg
}

/// Which functions the IOMMU translates for. Their endpoint numbers are their bus, device and
/// function numbers, as in an address of configuration space.
fn io_translation(table: Viot<'_>) -> VIOT {
    // Slots are below 32, the only requirement for a device number.
    let function = |slot: Slot| PciDevice::new(0, 0, slot.device(), 0);
    let mut viot = VIOT::new(OEM, OEM_TABLE, OEM_REVISION);
    let iommu = viot.add_virtio_pci_iommu(VirtIoPciIommu::new(function(table.iommu)));
    for &slot in table.behind.iter().filter(|&&slot| slot != table.iommu) {
        viot.add_pci_range(PciRange::new(function(slot), function(slot), &iommu));
    }
    viot
}

/// Devices that cannot be enumerated, and the windows of the PCI host bridge.
/// There is no interrupt routing (`_PRT`): functions interrupt by messages only.
fn dsdt(vcpus: u8, mmio64: Range<u64>) -> Sdt {
    const HEADER: u32 = 36;
    let mut dsdt = Sdt::new(*b"DSDT", HEADER, 2, OEM, OEM_TABLE, OEM_REVISION);
    let mut code = Vec::new();
    sleep_states(&mut code);
    host_bridge(&mut code, mmio64);
    motherboard(&mut code);
    serial_port(&mut code);
    real_time_clock(&mut code);
    for id in 0..vcpus {
        processor(&mut code, id);
    }
    dsdt.append_slice(&code);
    dsdt
}

fn sleep_states(code: &mut Vec<u8>) {
    let package = Package::new(vec![&SLEEP_TYPE_OFF, &SLEEP_TYPE_OFF, &ZERO, &ZERO]);
    Name::new("_S5_".into(), &package).to_aml_bytes(code);
}

fn host_bridge(code: &mut Vec<u8>, mmio64: Range<u64>) {
    let crs = resources(vec![
        &AddressSpace::new_bus_number(0u16, 0xff),
        &IO::new(layout::PORT_PCI_ADDRESS, layout::PORT_PCI_ADDRESS, 1, 8),
        &AddressSpace::new_memory(
            AddressSpaceCacheable::NotCacheable,
            true,
            layout::MMIO32_START as u32,
            layout::MMIO32_END as u32 - 1,
            None,
        ),
        &AddressSpace::new_memory(
            AddressSpaceCacheable::PreFetchable,
            true,
            mmio64.start,
            mmio64.end - 1,
            None,
        ),
    ]);
    // _OSC: a host bridge interface of PCI Firmware 3.3, section 4.5. It grants every control that
    // the system requests, because no firmware keeps any. Requests with another UUID get
    // "unrecognised UUID" in the first word.
    let host_bridge_uuid = Uuid::new("33DB4D5B-1FF7-401C-9657-7441C03DD766");
    let (argument, status) = (Arg(3), aml::Path::new("CDW1"));
    let unknown_uuid = Or::new(&status, &status, &4u8);
    let other_uuid = NotEqual::new(&Arg(0), &host_bridge_uuid);
    let osc = [
        &CreateDWordField::new(&status, &argument, &ZERO) as &dyn Aml,
        &If::new(&other_uuid, vec![&unknown_uuid]),
        &Return::new(&argument),
    ];
    Device::new(
        "_SB_.PCI0".into(),
        vec![
            &Name::new("_HID".into(), &EISAName::new("PNP0A08")),
            &Name::new("_CID".into(), &EISAName::new("PNP0A03")),
            &Name::new("_UID".into(), &ZERO),
            &Name::new("_SEG".into(), &ZERO),
            &Name::new("_BBN".into(), &ZERO),
            &Name::new("_CRS".into(), &crs),
            &Method::new("_OSC".into(), 4, true, osc.to_vec()),
        ],
    )
    .to_aml_bytes(code);
}

/// Reserves what no device may be placed over: ECAM and the ports of ACPI.
fn motherboard(code: &mut Vec<u8>) {
    let crs = resources(vec![
        &Memory32Fixed::new(true, layout::ECAM_START as u32, layout::ECAM_SIZE as u32),
        &IO::new(layout::PORT_PM1_EVENT, layout::PORT_PM1_EVENT, 1, 0x10),
    ]);
    Device::new(
        "_SB_.MBRD".into(),
        vec![
            &Name::new("_HID".into(), &EISAName::new("PNP0C02")),
            &Name::new("_UID".into(), &ZERO),
            &Name::new("_CRS".into(), &crs),
        ],
    )
    .to_aml_bytes(code);
}

fn serial_port(code: &mut Vec<u8>) {
    let crs = resources(vec![
        &IO::new(layout::PORT_SERIAL, layout::PORT_SERIAL, 1, 8),
        &Interrupt::new(true, true, false, false, layout::SERIAL_IRQ),
    ]);
    Device::new(
        "_SB_.COM1".into(),
        vec![
            &Name::new("_HID".into(), &EISAName::new("PNP0501")),
            &Name::new("_UID".into(), &ZERO),
            &Name::new("_CRS".into(), &crs),
        ],
    )
    .to_aml_bytes(code);
}

fn real_time_clock(code: &mut Vec<u8>) {
    let crs = resources(vec![&IO::new(layout::PORT_CMOS, layout::PORT_CMOS, 1, 2)]);
    Device::new(
        "_SB_.RTC_".into(),
        vec![&Name::new("_HID".into(), &EISAName::new("PNP0B00")), &Name::new("_CRS".into(), &crs)],
    )
    .to_aml_bytes(code);
}

fn processor(code: &mut Vec<u8>, id: u8) {
    let name = format!("_SB_.C{id:03}");
    Device::new(
        name.as_str().into(),
        vec![&Name::new("_HID".into(), &"ACPI0007"), &Name::new("_UID".into(), &id)],
    )
    .to_aml_bytes(code);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MMIO64: Range<u64> = 0x10_0000_0000..0x4000_0000_0000;

    fn word(bytes: &[u8], at: usize) -> u64 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()).into()
    }

    fn quad(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
    }

    /// The table at a guest-physical address: its signature says how long it is.
    fn table(tables: &[u8], address: u64) -> &[u8] {
        let rest = &tables[(address - layout::ACPI_START) as usize..];
        &rest[..word(rest, 4) as usize]
    }

    /// Follows the pointers as an operating system does, checks all sums, returns
    /// the table with that signature.
    fn find<'a>(tables: &'a [u8], signature: &[u8; 4]) -> &'a [u8] {
        let rsdp = &tables[..36];
        assert_eq!((&rsdp[..8], rsdp[15]), (b"RSD PTR ".as_slice(), 2));
        assert_eq!((sum(&rsdp[..20]), sum(rsdp)), (0, 0));
        let xsdt = table(tables, quad(rsdp, 24));
        assert_eq!((&xsdt[..4], sum(xsdt)), (b"XSDT".as_slice(), 0));
        let mut found: Vec<_> =
            xsdt[36..].chunks(8).map(|entry| table(tables, quad(entry, 0))).collect();
        let fadt = *found.iter().find(|table| table.starts_with(b"FACP")).unwrap();
        found.push(table(tables, quad(fadt, 140)));
        for table in &found {
            assert_eq!(sum(table), 0, "{:?}", &table[..4]);
        }
        found.into_iter().find(|table| table.starts_with(signature)).unwrap()
    }

    #[test]
    fn tables_fit_with_most_vcpus_and_functions() {
        let slots: Vec<_> = (1..32).map(Slot).collect();
        let all = Viot { iommu: slots[0], behind: &slots };
        let size = tables(layout::VCPUS_MAX, MMIO64, Some(all)).len() as u64;
        assert!(size < layout::ACPI_END - layout::ACPI_START, "{size}");
    }

    #[test]
    fn fadt_names_the_machines_ports() {
        let tables = tables(1, MMIO64, None);
        let fadt = find(&tables, b"FACP");
        assert_eq!(word(fadt, 40), quad(fadt, 140), "both pointers name the DSDT");
        assert_eq!(u16::from_le_bytes([fadt[46], fadt[47]]), layout::SCI_IRQ as u16);
        assert_eq!(word(fadt, 56), u64::from(layout::PORT_PM1_EVENT));
        assert_eq!(word(fadt, 64), u64::from(layout::PORT_PM1_CONTROL));
        assert_eq!(word(fadt, 76), u64::from(layout::PORT_PM_TIMER));
        // The reset register: an 8-bit I/O port, and the value.
        assert_eq!((&fadt[116..119], quad(fadt, 120)), ([1, 8, 0].as_slice(), 0xcf9));
        assert_eq!(fadt[128], RESET_VALUE);
        // SMI_CMD 0: ACPI mode is on from the start.
        assert_eq!(word(fadt, 48), 0);
        let facs = table(&tables, word(fadt, 36));
        assert_eq!((&facs[..4], word(fadt, 36) % 64), (b"FACS".as_slice(), 0));
    }

    #[test]
    fn madt_names_each_vcpu_once() {
        for vcpus in [1, 2, 16] {
            let tables = tables(vcpus, MMIO64, None);
            let madt = find(&tables, b"APIC");
            assert_eq!(word(madt, 36), u64::from(layout::LAPIC_START));
            let (mut at, mut cpus, mut ioapics) = (44, Vec::new(), Vec::new());
            while at < madt.len() {
                let entry = &madt[at..at + usize::from(madt[at + 1])];
                match entry[0] {
                    0 => {
                        assert_eq!((entry[2], word(entry, 4)), (entry[3], 1), "enabled");
                        cpus.push(entry[3]);
                    }
                    1 => ioapics.push((word(entry, 4), word(entry, 8))),
                    2 => assert_eq!(entry[3], layout::SCI_IRQ as u8),
                    4 => assert_eq!((entry[2], entry[5]), (0xff, 1)),
                    other => panic!("structure {other}"),
                }
                at += entry.len();
            }
            assert_eq!(cpus, (0..vcpus).collect::<Vec<_>>());
            assert_eq!(ioapics, [(u64::from(layout::IOAPIC_START), 0)]);
        }
    }

    #[test]
    fn mcfg_names_the_ecam_window() {
        let tables = tables(1, MMIO64, None);
        let mcfg = find(&tables, b"MCFG");
        assert_eq!(mcfg.len(), 44 + 16);
        assert_eq!(quad(mcfg, 44), layout::ECAM_START);
        assert_eq!(&mcfg[52..56], [0, 0, 0, 0xff]);
    }

    #[test]
    fn viot_names_the_iommu_and_its_devices() {
        let slots = [4, 1, 9].map(Slot);
        // It cannot be behind itself.
        let tables = tables(1, MMIO64, Some(Viot { iommu: slots[1], behind: &slots }));
        let viot = find(&tables, b"VIOT");
        let half = |at: usize| u16::from_le_bytes([viot[at], viot[at + 1]]);
        let (count, mut at) = (half(36), usize::from(half(38)));
        let (mut iommus, mut ranges) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let function = |at: usize| (half(at) >> 3, half(at) & 7);
            match viot[at] {
                3 => {
                    assert_eq!((half(at + 2), half(at + 4)), (16, 0));
                    iommus.push((at, function(at + 6)));
                }
                1 => {
                    assert_eq!((half(at + 2), half(at + 8), half(at + 10)), (24, 0, 0));
                    assert_eq!(half(at + 12), half(at + 14), "one function");
                    assert_eq!(word(viot, at + 4), u64::from(half(at + 12)), "endpoint");
                    ranges.push((usize::from(half(at + 16)), function(at + 12)));
                }
                other => panic!("node {other}"),
            }
            at += usize::from(half(at + 2));
        }
        assert_eq!(at, viot.len());
        let node = iommus[0].0;
        assert_eq!(iommus, [(node, (1, 0))]);
        assert_eq!(ranges, [(node, (4, 0)), (node, (9, 0))]);
    }

    #[test]
    fn dsdt_describes_the_bridge_windows() {
        let tables = tables(3, MMIO64, None);
        let dsdt = find(&tables, b"DSDT");
        let position = |bytes: &[u8]| dsdt.windows(bytes.len()).position(|at| at == bytes);
        // A QWord address space descriptor of 46 bytes: type memory.
        let at = position(&[0x8a, 0x2b, 0, 0]).unwrap();
        assert_eq!(quad(dsdt, at + 14), MMIO64.start);
        assert_eq!(quad(dsdt, at + 22), MMIO64.end - 1);
        assert_eq!(quad(dsdt, at + 38), MMIO64.end - MMIO64.start);
        let at = position(&[0x87, 0x17, 0, 0]).unwrap();
        assert_eq!(word(dsdt, at + 10), layout::MMIO32_START);
        assert_eq!(word(dsdt, at + 14), layout::MMIO32_END - 1);
        for name in [b"PCI0", b"COM1", b"MBRD", b"C002", b"_S5_", b"_OSC"] {
            assert!(position(name).is_some(), "{name:?}");
        }
        assert!(position(b"C003").is_none());
    }
}
