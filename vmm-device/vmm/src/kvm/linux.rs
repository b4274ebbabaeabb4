//! Loading Linux: what kind of image it is, whether it fits, and the data that its boot protocol
//! needs. This module does not use KVM.
//!
//! Sources: the Linux/x86 boot protocol (Documentation/x86/boot.rst in Linux),
//! the ELF-64 object file format, and Xen's description of the PVH entry
//! (docs/misc/pvh.pandoc and include/public/arch-x86/hvm/start_info.h).
//!
//! # Boot protocols
//!
//! `Vm::boot_linux` chooses the protocol by the kind of image; `LinuxBoot::entry` overrides it.
//!
//! - A bzImage is loaded at 1 MiB and entered 512 bytes after its start, in 64-bit mode with paging
//!   on and RSI = zero page.
//! - An ELF file with a PVH note is entered at the address in the note, in 32-bit mode without
//!   paging and with EBX = start information, version 1.
//! - An ELF file without such a note is entered at its own entry point, in the state of a bzImage.
//!
//! Public are the Linux/x86 boot protocol (2.12 or later, that is Linux 3.8, with `XLF_KERNEL_64`),
//! Xen's PVH description, and ELF-64. Ours: an ELF file is entered by its note if it has one,
//! because that entry is specified and an ELF file's 64-bit entry is not. The initrd lies as high
//! as the kernel allows below 3 GiB. The loader type is 0xff. An unsuitable image is refused before
//! the guest starts (`KernelError`).

use std::io::Cursor;
use std::ops::Range;

use linux_loader::configurator::linux::LinuxBootConfigurator;
use linux_loader::configurator::pvh::PvhBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::loader::bootparam::{boot_params, setup_header};
use linux_loader::loader::bzimage::BzImage;
use linux_loader::loader::elf::start_info::{
    XEN_HVM_START_MAGIC_VALUE, hvm_memmap_table_entry, hvm_modlist_entry, hvm_start_info,
};
use linux_loader::loader::elf::{Elf, PvhBootCapability};
use linux_loader::loader::{KernelLoader, KernelLoaderResult};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryRegion};

use super::boot::{
    BOOT_FLAG, E820_RESERVED, Entry, HEADER_MAGIC, KERNEL_ALIGNMENT, LOADER_UNDEFINED,
    write_command_line, write_gdt, write_page_tables,
};
use super::{acpi, boot};
use crate::error::{Error, KernelError};
use crate::{GuestMemory, KernelEntry, LinuxBoot, layout};

/// Boot protocol versions and flags, and offsets in a bzImage.
mod header {
    pub(super) const MAGIC_AT: usize = 0x202;
    /// The last field known here ends there.
    pub(super) const END: usize = 0x26c;
    pub(super) const VERSION_WITH_XLOADFLAGS: u16 = 0x020c;
    pub(super) const LOADED_HIGH: u8 = 1 << 0;
    pub(super) const KERNEL_64: u16 = 1 << 0;
    /// Distance of the 64-bit entry from the start of the protected-mode part.
    pub(super) const ENTRY_64: u64 = 0x200;
    pub(super) const SECTOR: usize = 512;
}

/// A kernel in guest memory.
struct Loaded {
    /// Its entry point in 64-bit mode or by PVH.
    entry: EntryPoint,
    /// The end of the kernel's part of guest memory, which begins at [`layout::IMAGE_START`].
    end: u64,
    /// The header of a bzImage.
    header: Option<setup_header>,
    /// Last address that an initrd may have.
    initrd_max: u64,
    command_line_max: usize,
}

enum EntryPoint {
    Long(u64),
    Pvh(u64),
}

/// Loads the kernel and its files, and writes the structures of the boot protocol.
pub(crate) fn load(
    memory: &GuestMemory,
    boot: &LinuxBoot<'_>,
    command_line: &str,
    vcpus: u8,
    mmio64: Range<u64>,
) -> Result<Entry, Error> {
    let loaded = load_kernel(memory, boot)?;
    let (len, max) = (command_line.len(), loaded.command_line_max);
    if len > max || command_line.contains('\0') {
        return Err(KernelError::CommandLine { len, max }.into());
    }
    let initrd = load_initrd(memory, boot.initrd.unwrap_or_default(), &loaded)?;
    let rsdp = if boot.acpi { layout::ACPI_START } else { 0 };
    let written = write_command_line(memory, command_line)
        .and_then(|()| write_page_tables(memory))
        .and_then(|()| write_gdt(memory))
        .and_then(|()| match boot.acpi {
            true => {
                let tables = acpi::tables(vcpus, mmio64, boot.viot);
                memory.write_slice(&tables, GuestAddress(layout::ACPI_START))
            }
            false => Ok(()),
        });
    // All of these lie below IMAGE_START, within the smallest memory size.
    written.map_err(|error| Error::Image(format!("writing boot data: {error}")))?;
    let (params, entry) = match loaded.entry {
        EntryPoint::Long(address) => {
            let page = zero_page(memory, &loaded, &initrd, rsdp);
            let params = BootParams::new(&page, GuestAddress(layout::ZERO_PAGE));
            (
                LinuxBootConfigurator::write_bootparams(&params, memory),
                Entry::long(address, layout::ZERO_PAGE),
            )
        }
        EntryPoint::Pvh(address) => {
            let params = start_info(memory, &initrd, rsdp);
            (
                PvhBootConfigurator::write_bootparams(&params, memory),
                Entry::pvh(address, layout::PVH_START_INFO),
            )
        }
    };
    params.map_err(|error| Error::Image(format!("writing boot parameters: {error}")))?;
    Ok(entry)
}

fn load_kernel(memory: &GuestMemory, boot: &LinuxBoot<'_>) -> Result<Loaded, Error> {
    let image = boot.kernel;
    if image.starts_with(b"\x7fELF") {
        load_elf(memory, image, boot.entry)
    } else if u32_at(image, header::MAGIC_AT) == Some(HEADER_MAGIC) {
        if boot.entry == KernelEntry::Pvh {
            return Err(KernelError::NoPvhEntry.into());
        }
        load_bzimage(memory, image)
    } else {
        Err(KernelError::UnknownFormat.into())
    }
}

fn load_bzimage(memory: &GuestMemory, image: &[u8]) -> Result<Loaded, Error> {
    let truncated = |part| KernelError::Truncated { size: image.len(), part };
    if image.len() < header::END {
        return Err(truncated("setup header").into());
    }
    // The loader reads the header too, and checks less.
    let version = u16_at(image, 0x206).unwrap_or(0);
    if version < header::VERSION_WITH_XLOADFLAGS {
        return Err(KernelError::TooOld { version }.into());
    }
    if u16_at(image, 0x236).unwrap_or(0) & header::KERNEL_64 == 0
        || image[0x211] & header::LOADED_HIGH == 0
    {
        return Err(KernelError::Only32Bit.into());
    }
    // 0 means 4, says the protocol.
    let sectors = if image[0x1f1] == 0 { 4 } else { usize::from(image[0x1f1]) };
    let setup = (sectors + 1) * header::SECTOR;
    // The protected-mode part in units of 16 bytes; the last one may be partial.
    let units = u32_at(image, 0x1f4).unwrap_or(0) as usize;
    if units == 0 || image.len() <= setup || image.len() - setup <= (units - 1) * 16 {
        return Err(truncated("protected-mode part").into());
    }

    let (start, size) = (layout::IMAGE_START, (image.len() - setup) as u64);
    let (preferred, needed) =
        (u64_at(image, 0x258).unwrap_or(0), u64::from(u32_at(image, 0x260).unwrap_or(0)));
    // It unpacks itself to where it prefers to be, or where it is if that is higher.
    let Some(end) = preferred.max(start).checked_add(needed.max(size)) else {
        return Err(KernelError::NoRoom { start: preferred, end: u64::MAX }.into());
    };
    if !is_ram(memory, start, end) {
        return Err(KernelError::NoRoom { start, end }.into());
    }
    let KernelLoaderResult { kernel_load, setup_header, .. } =
        BzImage::load(memory, Some(GuestAddress(start)), &mut Cursor::new(image), None)
            .map_err(|error| Error::Image(error.to_string()))?;
    let header = setup_header.unwrap_or_default();
    Ok(Loaded {
        entry: EntryPoint::Long(kernel_load.raw_value() + header::ENTRY_64),
        end,
        header: Some(header),
        initrd_max: header.initrd_addr_max.into(),
        command_line_max: layout::COMMAND_LINE_MAX.min(header.cmdline_size as usize),
    })
}

fn load_elf(memory: &GuestMemory, image: &[u8], entry: KernelEntry) -> Result<Loaded, Error> {
    let segments = check_elf(memory, image)?;
    let KernelLoaderResult { kernel_load, pvh_boot_cap, .. } =
        Elf::load(memory, None, &mut Cursor::new(image), None)
            .map_err(|error| KernelError::Elf(error.to_string()))?;
    let inside = |address| segments.iter().any(|segment| segment.contains(&address));
    let long = kernel_load.raw_value();
    let start = match (entry, pvh_boot_cap) {
        (KernelEntry::Auto | KernelEntry::Pvh, PvhBootCapability::PvhEntryPresent(address)) => {
            EntryPoint::Pvh(address.raw_value())
        }
        (KernelEntry::Pvh, _) => return Err(KernelError::NoPvhEntry.into()),
        _ => EntryPoint::Long(long),
    };
    let (EntryPoint::Long(address) | EntryPoint::Pvh(address)) = start;
    if !inside(address) {
        let what = format!("its entry point {address:#x} is in none of its segments");
        return Err(KernelError::Elf(what).into());
    }
    Ok(Loaded {
        entry: start,
        end: segments.iter().map(|segment| segment.end).max().unwrap_or(layout::IMAGE_START),
        header: None,
        initrd_max: layout::LOW_RAM_END - 1,
        command_line_max: layout::COMMAND_LINE_MAX,
    })
}

/// Checks everything that the loader relies on. Returns the guest-physical addresses of the
/// segments.
fn check_elf(memory: &GuestMemory, image: &[u8]) -> Result<Vec<Range<u64>>, KernelError> {
    const HEADER: usize = 64;
    const PROGRAM_HEADER: usize = 56;
    const LOAD: u32 = 1;
    const CLASS_64: u8 = 2;
    const LITTLE_ENDIAN: u8 = 1;
    const X86_64: u16 = 62;
    let truncated = |part| KernelError::Truncated { size: image.len(), part };
    if image.len() < HEADER {
        return Err(truncated("ELF header"));
    }
    let (class, machine) = (image[4], u16_at(image, 18).unwrap_or(0));
    if class != CLASS_64 || image[5] != LITTLE_ENDIAN || machine != X86_64 {
        return Err(KernelError::OtherMachine { class, machine });
    }
    let table = u64_at(image, 32).unwrap_or(0);
    let (size, count) = (u16_at(image, 54).unwrap_or(0), u16_at(image, 56).unwrap_or(0));
    if usize::from(size) != PROGRAM_HEADER {
        return Err(KernelError::Elf(format!("program headers of {size} bytes, not 56")));
    }
    let table = usize::try_from(table)
        .ok()
        .and_then(|start| image.get(start..)?.get(..usize::from(count) * PROGRAM_HEADER))
        .ok_or(truncated("program headers"))?;
    let mut segments: Vec<Range<u64>> = Vec::new();
    for program in table.chunks_exact(PROGRAM_HEADER) {
        let quad = |at| u64_at(program, at).unwrap_or(0);
        let (offset, start, in_file, in_memory) = (quad(8), quad(24), quad(32), quad(40));
        if offset.checked_add(in_file).is_none_or(|end| end > image.len() as u64) {
            return Err(truncated("segments"));
        }
        if u32_at(program, 0) != Some(LOAD) || in_memory.max(in_file) == 0 {
            continue;
        }
        let room = KernelError::NoRoom { start, end: start.saturating_add(in_memory) };
        let end = start.checked_add(in_memory.max(in_file)).ok_or(room.clone())?;
        if start < layout::IMAGE_START {
            let what = format!("a segment at {start:#x}, below {:#x}", layout::IMAGE_START);
            return Err(KernelError::Elf(what));
        }
        if !is_ram(memory, start, end) {
            return Err(room);
        }
        // Nothing needs that, and it would make the result depend on their order.
        if segments.iter().any(|other| start < other.end && other.start < end) {
            return Err(KernelError::Elf(format!("segments overlap at {start:#x}")));
        }
        segments.push(start..end);
    }
    if segments.is_empty() {
        return Err(KernelError::Elf("no segments to load".to_owned()));
    }
    Ok(segments)
}

/// Places the initrd as high as the kernel allows; returns where it is.
fn load_initrd(
    memory: &GuestMemory,
    initrd: &[u8],
    kernel: &Loaded,
) -> Result<Range<u64>, KernelError> {
    const PAGE: u64 = 4096;
    if initrd.is_empty() {
        return Ok(0..0);
    }
    let low_ram = memory.iter().next().map_or(0, GuestMemoryRegion::len);
    let end = low_ram.min(kernel.initrd_max.saturating_add(1));
    let first = kernel.end.next_multiple_of(PAGE);
    let size = initrd.len() as u64;
    let too_large =
        KernelError::InitrdTooLarge { size: initrd.len(), room: end.saturating_sub(first) };
    let start = end.checked_sub(size).map(|start| start & !(PAGE - 1));
    match start {
        Some(start) if start >= first => {
            memory.write_slice(initrd, GuestAddress(start)).map_err(|_| too_large)?;
            Ok(start..start + size)
        }
        _ => Err(too_large),
    }
}

/// As for other guests, with the ACPI tables, and in order.
fn memory_map(memory: &GuestMemory) -> Vec<(u64, u64, u32)> {
    let mut map = boot::memory_map(memory);
    map.push((layout::ACPI_START, layout::ACPI_END - layout::ACPI_START, E820_RESERVED));
    map.sort_unstable();
    map
}

fn zero_page(memory: &GuestMemory, kernel: &Loaded, initrd: &Range<u64>, rsdp: u64) -> boot_params {
    let hdr = kernel.header.unwrap_or(setup_header {
        boot_flag: BOOT_FLAG,
        header: HEADER_MAGIC,
        kernel_alignment: KERNEL_ALIGNMENT,
        cmdline_size: layout::COMMAND_LINE_MAX as u32,
        ..Default::default()
    });
    let mut params = boot_params { hdr, acpi_rsdp_addr: rsdp, ..Default::default() };
    params.hdr.type_of_loader = LOADER_UNDEFINED;
    params.hdr.cmd_line_ptr = layout::COMMAND_LINE as u32;
    // Below 4 GiB, both.
    params.hdr.ramdisk_image = initrd.start as u32;
    params.hdr.ramdisk_size = (initrd.end - initrd.start) as u32;
    boot::set_memory_map(&mut params, memory_map(memory));
    params
}

fn start_info(memory: &GuestMemory, initrd: &Range<u64>, rsdp: u64) -> BootParams {
    const MODULES: u64 = layout::PVH_START_INFO + size_of::<hvm_start_info>() as u64;
    const MAP: u64 = MODULES + size_of::<hvm_modlist_entry>() as u64;
    // Its types are those of E820.
    let map: Vec<_> = memory_map(memory)
        .into_iter()
        .map(|(addr, size, type_)| hvm_memmap_table_entry { addr, size, type_, reserved: 0 })
        .collect();
    let modules = u32::from(!initrd.is_empty());
    let info = hvm_start_info {
        magic: XEN_HVM_START_MAGIC_VALUE,
        version: 1,
        nr_modules: modules,
        modlist_paddr: if modules > 0 { MODULES } else { 0 },
        cmdline_paddr: layout::COMMAND_LINE,
        rsdp_paddr: rsdp,
        memmap_paddr: MAP,
        memmap_entries: map.len() as u32,
        ..Default::default()
    };
    let mut params = BootParams::new(&info, GuestAddress(layout::PVH_START_INFO));
    params.set_sections(&map, GuestAddress(MAP));
    if modules > 0 {
        let module = hvm_modlist_entry {
            paddr: initrd.start,
            size: initrd.end - initrd.start,
            ..Default::default()
        };
        params.set_modules(&[module], GuestAddress(MODULES));
    }
    params
}

/// Returns true if all of `start..end` is RAM in one piece.
fn is_ram(memory: &GuestMemory, start: u64, end: u64) -> bool {
    memory.iter().any(|region| {
        let first = region.start_addr().raw_value();
        first <= start && start <= end && end <= first + region.len()
    })
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes_at(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes_at(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes_at(bytes, at).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests;
