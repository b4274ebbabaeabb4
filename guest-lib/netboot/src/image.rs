//! Where an image goes in memory, and the parameters that it gets: small guests (ELF) and Linux
//! kernels (ELF, bzImage), entered by the 64-bit Linux/x86 boot protocol.
//!
//! Sources: the Linux/x86 boot protocol (Documentation/arch/x86/boot.rst in Linux) and the ELF-64
//! object file format.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use thiserror::Error;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::ImageKind;

/// Bytes of the boot parameters, the "zero page".
pub const ZERO_PAGE_SIZE: usize = 4096;
/// Entries that the memory map of the boot parameters has room for.
pub const MEMORY_MAP_MAX: usize = 128;

/// Initrds end below this, which every kernel takes.
const INITRD_MAX: u64 = 0x7fff_ffff;
const PAGE: u64 = 4096;
/// Segments of an ELF file at most.
const SEGMENTS_MAX: usize = 64;

#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ElfHeader {
    magic: [u8; 4],
    class: u8,
    data: u8,
    ident: [u8; 10],
    kind: U16,
    machine: U16,
    version: U32,
    entry: U64,
    programs: U64,
    sections: U64,
    flags: U32,
    header_size: U16,
    program_size: U16,
    program_count: U16,
}

#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ProgramHeader {
    kind: U32,
    flags: U32,
    offset: U64,
    virtual_address: U64,
    physical_address: U64,
    file_size: U64,
    memory_size: U64,
    align: U64,
}

const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const EXECUTABLE: u16 = 2;
const X86_64: u16 = 62;
const LOAD: u32 = 1;

/// The setup header, which is part of a bzImage and of the boot parameters.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SetupHeader {
    setup_sectors: u8,
    root_flags: U16,
    size_in_16: U32,
    ram_size: U16,
    vid_mode: U16,
    root_dev: U16,
    boot_flag: U16,
    jump: [u8; 2],
    magic: [u8; 4],
    version: U16,
    realmode_switch: U32,
    start_sys: U16,
    kernel_version: U16,
    loader: u8,
    load_flags: u8,
    setup_move_size: U16,
    code32_start: U32,
    initrd: U32,
    initrd_size: U32,
    bootsect: U32,
    heap_end: U16,
    loader_version: u8,
    loader_type: u8,
    command_line: U32,
    initrd_max: U32,
    alignment: U32,
    relocatable: u8,
    min_alignment: u8,
    xload_flags: U16,
    command_line_size: U32,
    subarch: U32,
    subarch_data: U64,
    payload_offset: U32,
    payload_length: U32,
    setup_data: U64,
    preferred: U64,
    init_size: U32,
    handover: U32,
}

const SETUP_AT: usize = 0x1f1;
const SETUP_MAGIC: [u8; 4] = *b"HdrS";
const SECTOR: usize = 512;
/// Version 2.12, the first one with a 64-bit entry.
const VERSION_LEAST: u16 = 0x20c;
const LOADED_HIGH: u8 = 1;
const KERNEL_64: u16 = 1;
const ENTRY_64: u64 = 0x200;
const BOOT_FLAG: u16 = 0xaa55;
const LOADER_UNDEFINED: u8 = 0xff;
const ALIGNMENT: u32 = 0x20_0000;
const COMMAND_LINE_MAX: usize = 2047;

// Offsets in the boot parameters.
const RSDP_AT: usize = 0x70;
const E820_ENTRIES_AT: usize = 0x1e8;
const E820_AT: usize = 0x2d0;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct E820Entry {
    start: U64,
    size: U64,
    kind: U32,
}

/// The reason why an image cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ImageError {
    /// Not an image of the kind that the manifest says.
    #[error("{}", match .0 {
        ImageKind::Guest => "the image is not a static x86-64 ELF program",
        ImageKind::Linux => "the kernel is neither a 64-bit bzImage of Linux 3.8 or later nor an \
                             x86-64 ELF file",
    })]
    Unknown(ImageKind),
    /// It ends too early.
    #[error("the image is cut off")]
    Truncated,
    /// Contents that make no sense: what.
    #[error("a broken image: {0}")]
    Broken(&'static str),
    /// It wants memory that is not there, or that the loader needs: from, to.
    #[error(
        "the image wants memory from {start:#x} to {end:#x}, and there is {:#x} to {:#x}: give \
         the node more memory, or link the image elsewhere", room.0, room.1
    )]
    NoRoom {
        /// First address.
        start: u64,
        /// Address behind the last one.
        end: u64,
        /// The space that the loader needs.
        room: (u64, u64),
    },
    /// Less memory than the files need, in bytes.
    #[error(
        "the files have {} KiB, and the node has room for {} KiB: give it more memory",
        needed >> 10, room >> 10
    )]
    TooLittleMemory {
        /// Bytes of the files.
        needed: u64,
        /// Bytes that there are.
        room: u64,
    },
    /// The kernel takes shorter command lines only.
    #[error("a command line of {len} bytes, and the kernel takes {max}")]
    CommandLine {
        /// Bytes of the line.
        len: usize,
        /// Bytes that it takes.
        max: usize,
    },
}

/// A part of an image, and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The bytes in the file.
    pub file: Range<usize>,
    /// The memory; what is beyond the bytes of the file is zero.
    pub memory: Range<u64>,
}

/// The way an image is started.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The places of the parts: no two of them overlap.
    pub segments: Vec<Segment>,
    /// Its entry point.
    pub entry: u64,
    kind: ImageKind,
    header: Option<SetupHeader>,
}

/// The places of files while they are fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The kernel or guest, as a file.
    pub kernel: Range<u64>,
    /// The initrd, where it stays; empty if there is none.
    pub initrd: Range<u64>,
}

/// Finds places for files of these sizes in bytes at the end of `room`, the memory that the loader
/// does not use. The initrd is below the limit that every kernel accepts.
///
/// # Errors
///
/// [`ImageError::TooLittleMemory`].
pub fn places(room: &Range<u64>, kernel: u64, initrd: u64) -> Result<Places, ImageError> {
    let too_little = ImageError::TooLittleMemory {
        needed: kernel.saturating_add(initrd),
        room: room.end.saturating_sub(room.start),
    };
    let below = |end: u64, size: u64| {
        let start = end.checked_sub(size)? & !(PAGE - 1);
        (start >= room.start).then_some(start)
    };
    let initrd_start = below(room.end.min(INITRD_MAX + 1), initrd).ok_or(too_little)?;
    let kernel_start = below(initrd_start, kernel).ok_or(too_little)?;
    Ok(Places {
        kernel: kernel_start..kernel_start + kernel,
        initrd: initrd_start..initrd_start + initrd,
    })
}

/// Checks an image and says where its parts go, all of them within `room`.
///
/// # Errors
///
/// See [`ImageError`].
pub fn plan(kind: ImageKind, image: &[u8], room: &Range<u64>) -> Result<Layout, ImageError> {
    if image.starts_with(&ELF_MAGIC) {
        return plan_elf(kind, image, room);
    }
    match kind {
        ImageKind::Guest => Err(ImageError::Unknown(kind)),
        ImageKind::Linux => plan_bzimage(image, room),
    }
}

fn check_room(memory: &Range<u64>, room: &Range<u64>) -> Result<(), ImageError> {
    let Range { start, end } = *memory;
    if room.start <= start && start <= end && end <= room.end {
        return Ok(());
    }
    Err(ImageError::NoRoom { start, end, room: (room.start, room.end) })
}

fn plan_elf(kind: ImageKind, image: &[u8], room: &Range<u64>) -> Result<Layout, ImageError> {
    let (header, _) = ElfHeader::ref_from_prefix(image).map_err(|_| ImageError::Truncated)?;
    if (header.class, header.data, header.machine.get()) != (CLASS_64, LITTLE_ENDIAN, X86_64)
        || header.kind.get() != EXECUTABLE
    {
        return Err(ImageError::Unknown(kind));
    }
    if usize::from(header.program_size.get()) != size_of::<ProgramHeader>() {
        return Err(ImageError::Broken("program headers of another size"));
    }
    let programs = usize::try_from(header.programs.get()).map_err(|_| ImageError::Truncated)?;
    let table = image.get(programs..).ok_or(ImageError::Truncated)?;
    let count = usize::from(header.program_count.get());
    let (table, _) = <[ProgramHeader]>::ref_from_prefix_with_elems(table, count)
        .map_err(|_| ImageError::Truncated)?;
    let mut segments: Vec<Segment> = Vec::new();
    for program in table {
        let size = program.memory_size.get();
        if program.kind.get() != LOAD || size == 0 {
            continue;
        }
        if segments.len() >= SEGMENTS_MAX {
            return Err(ImageError::Broken("too many segments"));
        }
        let bytes = program.offset.get()
            ..program
                .offset
                .get()
                .checked_add(program.file_size.get())
                .ok_or(ImageError::Truncated)?;
        if bytes.end > image.len() as u64 {
            return Err(ImageError::Truncated);
        }
        if program.file_size.get() > size {
            return Err(ImageError::Broken("a segment with less memory than bytes"));
        }
        let start = program.physical_address.get();
        let memory = start..start.saturating_add(size);
        check_room(&memory, room)?;
        let overlap =
            |other: &Segment| memory.start < other.memory.end && other.memory.start < memory.end;
        if segments.iter().any(overlap) {
            return Err(ImageError::Broken("segments overlap"));
        }
        segments.push(Segment { file: bytes.start as usize..bytes.end as usize, memory });
    }
    let entry = header.entry.get();
    if !segments.iter().any(|segment| segment.memory.contains(&entry)) {
        return Err(ImageError::Broken("its entry point is in none of its segments"));
    }
    Ok(Layout { segments, entry, kind, header: None })
}

fn plan_bzimage(image: &[u8], room: &Range<u64>) -> Result<Layout, ImageError> {
    let unknown = ImageError::Unknown(ImageKind::Linux);
    let head = image.get(SETUP_AT..).ok_or(unknown)?;
    let (header, _) = SetupHeader::ref_from_prefix(head).map_err(|_| unknown)?;
    if header.magic != SETUP_MAGIC
        || header.version.get() < VERSION_LEAST
        || header.load_flags & LOADED_HIGH == 0
        || header.xload_flags.get() & KERNEL_64 == 0
    {
        return Err(unknown);
    }
    // 0 means 4, says the protocol.
    let sectors = if header.setup_sectors == 0 { 4 } else { usize::from(header.setup_sectors) };
    let setup = (sectors + 1) * SECTOR;
    // In units of 16 bytes; the last one may be partial.
    let units = header.size_in_16.get() as usize;
    if units == 0 || image.len() <= setup || image.len() - setup <= (units - 1) * 16 {
        return Err(ImageError::Truncated);
    }
    // Where it prefers to be, so that it does not move before it unpacks itself.
    let start = header.preferred.get();
    let size = (image.len() - setup) as u64;
    let needed = u64::from(header.init_size.get()).max(size);
    check_room(&(start..start.saturating_add(needed)), room)?;
    let segments = vec![Segment { file: setup..image.len(), memory: start..start + size }];
    Ok(Layout { segments, entry: start + ENTRY_64, kind: ImageKind::Linux, header: Some(*header) })
}

/// The data that an image gets besides its place.
#[derive(Clone, Debug)]
pub struct Handed<'a> {
    /// Start, size and type (of the E820 BIOS call) of all memory; what is beyond
    /// [`MEMORY_MAP_MAX`] entries is left out.
    pub memory_map: &'a [(u64, u64, u32)],
    /// Address of the command line.
    pub command_line: u32,
    /// Its bytes, without the NUL.
    pub command_line_len: usize,
    /// The initrd, perhaps empty.
    pub initrd: Range<u64>,
    /// Address of the ACPI root pointer; 0 for none.
    pub rsdp: u64,
}

impl Layout {
    /// The boot parameters ("zero page") for the image.
    ///
    /// # Errors
    ///
    /// [`ImageError::CommandLine`].
    pub fn zero_page(&self, handed: &Handed<'_>) -> Result<Box<[u8; ZERO_PAGE_SIZE]>, ImageError> {
        let max = self.header.map_or(COMMAND_LINE_MAX, |header| {
            COMMAND_LINE_MAX.min(header.command_line_size.get() as usize)
        });
        let len = handed.command_line_len;
        if len > max {
            return Err(ImageError::CommandLine { len, max });
        }
        let mut header = self.header.unwrap_or(SetupHeader {
            boot_flag: BOOT_FLAG.into(),
            magic: SETUP_MAGIC,
            alignment: ALIGNMENT.into(),
            // A small guest gets the length, a kernel the space that it may use.
            command_line_size: match self.kind {
                ImageKind::Guest => len as u32,
                ImageKind::Linux => COMMAND_LINE_MAX as u32,
            }
            .into(),
            ..SetupHeader::new_zeroed()
        });
        header.loader = LOADER_UNDEFINED;
        header.command_line = handed.command_line.into();
        header.initrd = (handed.initrd.start as u32).into();
        header.initrd_size = ((handed.initrd.end - handed.initrd.start) as u32).into();
        if handed.initrd.is_empty() {
            header.initrd = 0.into();
        }
        let mut page = Box::new([0; ZERO_PAGE_SIZE]);
        let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
        put(SETUP_AT, header.as_bytes());
        put(RSDP_AT, &handed.rsdp.to_le_bytes());
        let map = &handed.memory_map[..handed.memory_map.len().min(MEMORY_MAP_MAX)];
        put(E820_ENTRIES_AT, &[map.len() as u8]);
        for (at, &(start, size, kind)) in map.iter().enumerate() {
            let entry = E820Entry { start: start.into(), size: size.into(), kind: kind.into() };
            put(E820_AT + at * size_of::<E820Entry>(), entry.as_bytes());
        }
        Ok(page)
    }
}
