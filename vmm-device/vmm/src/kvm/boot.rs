//! Loading a guest and the state its first instruction finds: the 64-bit entry
//! of the Linux/x86 boot protocol, for ELF images entered at their ELF entry
//! point.

use std::io::Cursor;

use kvm_bindings::{kvm_regs, kvm_segment, kvm_sregs};
use linux_loader::configurator::linux::LinuxBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::loader::bootparam::{boot_e820_entry, boot_params};
use linux_loader::loader::elf::Elf;
use linux_loader::loader::{KernelLoader, KernelLoaderResult};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryRegion};

use crate::{Error, GuestMemory, layout};

/// Selectors that the Linux boot protocol prescribes.
const PVH_CS: u16 = 0x08;
const BOOT_CS: u16 = 0x10;
const BOOT_DS: u16 = 0x18;
const GDT_CODE32: u64 = 0x00cf_9b00_0000_ffff;
const GDT_CODE64: u64 = 0x00af_9b00_0000_ffff;
const GDT_DATA: u64 = 0x00cf_9300_0000_ffff;

const CR0_PE: u64 = 1 << 0;
const CR0_ET: u64 = 1 << 4;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;
const RFLAGS_RESERVED: u64 = 1 << 1;

const PAGE_TABLE: u64 = 0b11;
const LARGE_PAGE: u64 = 0b1000_0011;

pub(crate) const E820_RAM: u32 = 1;
pub(crate) const E820_RESERVED: u32 = 2;
pub(crate) const LOADER_UNDEFINED: u8 = 0xff;
pub(crate) const BOOT_FLAG: u16 = 0xaa55;
/// "HdrS"
pub(crate) const HEADER_MAGIC: u32 = 0x5372_6448;
pub(crate) const KERNEL_ALIGNMENT: u32 = 0x20_0000;

/// The place at which the guest begins, and its mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    address: u64,
    mode: Mode,
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    /// 64-bit mode; RSI points to the boot parameters.
    Long { rsi: u64 },
    /// 32-bit mode without paging; EBX points to the start information.
    Pvh { rbx: u64 },
}

/// Loads `image`, writes command line, boot parameters, page tables and GDT.
pub(crate) fn load(memory: &GuestMemory, image: &[u8], command_line: &str) -> Result<Entry, Error> {
    if command_line.len() > layout::COMMAND_LINE_MAX || command_line.contains('\0') {
        return Err(Error::CommandLine(command_line.len()));
    }
    let KernelLoaderResult { kernel_load, .. } =
        Elf::load(memory, None, &mut Cursor::new(image), Some(GuestAddress(layout::IMAGE_START)))
            .map_err(|error| Error::Image(format!("{error}")))?;
    if !memory.address_in_range(kernel_load) {
        return Err(Error::Image(format!(
            "entry point {:#x} is outside of the guest's memory",
            kernel_load.raw_value()
        )));
    }
    // All of these lie below IMAGE_START, within the smallest memory size.
    let written = write_command_line(memory, command_line)
        .and_then(|()| write_page_tables(memory))
        .and_then(|()| write_gdt(memory));
    written.map_err(|error| Error::Image(format!("writing boot data: {error}")))?;
    let params = BootParams::new(&zero_page(memory, command_line), GuestAddress(layout::ZERO_PAGE));
    LinuxBootConfigurator::write_bootparams(&params, memory)
        .map_err(|error| Error::Image(format!("writing boot parameters: {error}")))?;
    Ok(Entry::long(kernel_load.raw_value(), layout::ZERO_PAGE))
}

pub(crate) fn write_command_line(
    memory: &GuestMemory,
    line: &str,
) -> Result<(), vm_memory::GuestMemoryError> {
    memory.write_slice(line.as_bytes(), GuestAddress(layout::COMMAND_LINE))?;
    memory.write_obj(0u8, GuestAddress(layout::COMMAND_LINE + line.len() as u64))
}

/// Identity-maps the first 4 GiB with 2 MiB pages.
pub(crate) fn write_page_tables(memory: &GuestMemory) -> Result<(), vm_memory::GuestMemoryError> {
    const TABLE: u64 = 0x1000;
    let pml4 = layout::BOOT_PAGE_TABLES;
    let (pdpt, directories) = (pml4 + TABLE, pml4 + 2 * TABLE);
    memory.write_obj(pdpt | PAGE_TABLE, GuestAddress(pml4))?;
    for gib in 0..4 {
        let directory = directories + gib * TABLE;
        memory.write_obj(directory | PAGE_TABLE, GuestAddress(pdpt + gib * 8))?;
    }
    let entries: Vec<u8> =
        (0..4 * 512u64).flat_map(|page| (page << 21 | LARGE_PAGE).to_le_bytes()).collect();
    memory.write_slice(&entries, GuestAddress(directories))
}

pub(crate) fn write_gdt(memory: &GuestMemory) -> Result<(), vm_memory::GuestMemoryError> {
    for (at, entry) in [0, GDT_CODE32, GDT_CODE64, GDT_DATA].into_iter().enumerate() {
        memory.write_obj(entry, GuestAddress(layout::BOOT_GDT + at as u64 * 8))?;
    }
    memory.write_obj(0u64, GuestAddress(layout::BOOT_IDT))
}

fn zero_page(memory: &GuestMemory, command_line: &str) -> boot_params {
    let mut params = boot_params::default();
    params.hdr.type_of_loader = LOADER_UNDEFINED;
    params.hdr.boot_flag = BOOT_FLAG;
    params.hdr.header = HEADER_MAGIC;
    params.hdr.kernel_alignment = KERNEL_ALIGNMENT;
    params.hdr.cmd_line_ptr = layout::COMMAND_LINE as u32;
    params.hdr.cmdline_size = command_line.len() as u32;
    set_memory_map(&mut params, memory_map(memory));
    params
}

/// Start, size and type (of the E820 BIOS call) of memory, and of ranges that
/// must not be used as free memory.
pub(crate) fn memory_map(memory: &GuestMemory) -> Vec<(u64, u64, u32)> {
    let mut map = vec![(0, layout::LOW_MEMORY_END, E820_RAM)];
    for region in memory.iter() {
        let start = region.start_addr().raw_value().max(layout::IMAGE_START);
        let end = region.start_addr().raw_value() + region.len();
        map.push((start, end - start, E820_RAM));
    }
    map.push((layout::ECAM_START, layout::ECAM_SIZE, E820_RESERVED));
    map
}

/// Tells the guest of a memory map.
pub(crate) fn set_memory_map(params: &mut boot_params, map: Vec<(u64, u64, u32)>) {
    params.e820_entries = map.len() as u8;
    for (entry, (addr, size, kind)) in params.e820_table.iter_mut().zip(map) {
        *entry = boot_e820_entry { addr, size, r#type: kind };
    }
}

impl Entry {
    /// In 64-bit mode with the first 4 GiB mapped one to one.
    pub(crate) fn long(address: u64, rsi: u64) -> Self {
        Self { address, mode: Mode::Long { rsi } }
    }

    /// In 32-bit mode without paging.
    pub(crate) fn pvh(address: u64, rbx: u64) -> Self {
        Self { address, mode: Mode::Pvh { rbx } }
    }

    /// General registers at entry.
    pub(crate) fn registers(self) -> kvm_regs {
        let registers =
            kvm_regs { rip: self.address, rflags: RFLAGS_RESERVED, ..Default::default() };
        match self.mode {
            Mode::Long { rsi } => kvm_regs { rsi, rsp: layout::BOOT_STACK_TOP, ..registers },
            Mode::Pvh { rbx } => kvm_regs { rbx, ..registers },
        }
    }

    /// Brings system registers from their reset state into the mode.
    pub(crate) fn enter_mode(self, sregs: &mut kvm_sregs) {
        let flat = kvm_segment {
            base: 0,
            limit: 0xffff_ffff,
            present: 1,
            s: 1,
            g: 1,
            ..Default::default()
        };
        let data = kvm_segment { selector: BOOT_DS, type_: 0b0011, db: 1, ..flat };
        (sregs.ds, sregs.es, sregs.ss) = (data, data, data);
        (sregs.fs, sregs.gs) = (data, data);
        sregs.tr = kvm_segment { type_: 0b1011, present: 1, limit: 0xffff, ..Default::default() };
        sregs.gdt.base = layout::BOOT_GDT;
        sregs.gdt.limit = 4 * 8 - 1;
        sregs.idt.base = layout::BOOT_IDT;
        sregs.idt.limit = 7;
        match self.mode {
            Mode::Long { .. } => {
                sregs.cs = kvm_segment { selector: BOOT_CS, type_: 0b1011, l: 1, ..flat };
                sregs.cr3 = layout::BOOT_PAGE_TABLES;
                sregs.cr4 = CR4_PAE;
                sregs.cr0 = CR0_PE | CR0_ET | CR0_PG;
                sregs.efer = EFER_LME | EFER_LMA;
            }
            Mode::Pvh { .. } => {
                sregs.cs = kvm_segment { selector: PVH_CS, type_: 0b1011, db: 1, ..flat };
                sregs.cr4 = 0;
                sregs.cr0 = CR0_PE | CR0_ET;
                sregs.efer = 0;
            }
        }
    }
}
