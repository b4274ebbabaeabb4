use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;
const MMIO64: Range<u64> = 0x10_0000_0000..0x20_0000_0000;

fn memory(size: u64) -> GuestMemory {
    let low = size.min(layout::LOW_RAM_END);
    let mut ranges = vec![(GuestAddress(0), low as usize)];
    if size > low {
        ranges.push((GuestAddress(layout::HIGH_RAM_START), (size - low) as usize));
    }
    GuestMemory::from_ranges(&ranges).unwrap()
}

fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

/// A segment of an ELF file: physical address, contents, size in memory.
type Segment<'a> = (u64, &'a [u8], u64);

/// An ELF file of these segments, with a PVH note if there is an address for it.
fn elf(entry: u64, segments: &[Segment<'_>], pvh: Option<u32>) -> Vec<u8> {
    let count = segments.len() + usize::from(pvh.is_some());
    let mut image = vec![0; 64 + 56 * count];
    put(&mut image, 0, b"\x7fELF\x02\x01\x01");
    put(&mut image, 16, &2u16.to_le_bytes());
    put(&mut image, 18, &62u16.to_le_bytes());
    put(&mut image, 24, &entry.to_le_bytes());
    put(&mut image, 32, &64u64.to_le_bytes());
    put(&mut image, 54, &56u16.to_le_bytes());
    put(&mut image, 56, &(count as u16).to_le_bytes());
    let mut program = |index: usize, kind: u32, address: u64, contents: &[u8], size: u64| {
        let (at, offset) = (64 + 56 * index, image.len() as u64);
        put(&mut image, at, &kind.to_le_bytes());
        put(&mut image, at + 8, &offset.to_le_bytes());
        put(&mut image, at + 24, &address.to_le_bytes());
        put(&mut image, at + 32, &(contents.len() as u64).to_le_bytes());
        put(&mut image, at + 40, &size.to_le_bytes());
        image.extend_from_slice(contents);
    };
    for (index, (address, contents, size)) in segments.iter().enumerate() {
        program(index, 1, *address, contents, *size);
    }
    if let Some(address) = pvh {
        let mut note = Vec::new();
        for word in [4, 4, 18] {
            note.extend_from_slice(&u32::to_le_bytes(word));
        }
        note.extend_from_slice(b"Xen\0");
        note.extend_from_slice(&address.to_le_bytes());
        program(segments.len(), 4, 0, &note, note.len() as u64);
    }
    image
}

/// A bzImage of boot protocol 2.15 with one setup sector, whose protected-mode
/// part is `kernel`.
fn bzimage(kernel: &[u8]) -> Vec<u8> {
    let mut image = vec![0; 1024];
    image[0x1f1] = 1;
    put(&mut image, 0x1f4, &(kernel.len().div_ceil(16) as u32).to_le_bytes());
    put(&mut image, 0x202, b"HdrS\x0f\x02");
    image[0x211] = 1;
    put(&mut image, 0x214, &0x10_0000u32.to_le_bytes());
    put(&mut image, 0x22c, &0x7fff_ffffu32.to_le_bytes());
    put(&mut image, 0x236, &0x3u16.to_le_bytes());
    put(&mut image, 0x238, &255u32.to_le_bytes());
    put(&mut image, 0x258, &(16 * MIB).to_le_bytes());
    put(&mut image, 0x260, &(4 * MIB as u32).to_le_bytes());
    image.extend_from_slice(kernel);
    image
}

fn boot_with(memory: &GuestMemory, boot: &LinuxBoot<'_>) -> Result<Entry, Error> {
    load(memory, boot, boot.command_line, 2, MMIO64)
}

fn refused(memory: &GuestMemory, boot: &LinuxBoot<'_>) -> KernelError {
    match boot_with(memory, boot) {
        Err(Error::Kernel(error)) => {
            assert!(!error.to_string().contains('\n'), "one line: {error}");
            error
        }
        other => panic!("{other:?}"),
    }
}

fn read<const N: usize>(memory: &GuestMemory, address: u64) -> [u8; N] {
    let mut bytes = [0; N];
    memory.read_slice(&mut bytes, GuestAddress(address)).unwrap();
    bytes
}

fn word(memory: &GuestMemory, address: u64) -> u64 {
    u32::from_le_bytes(read(memory, address)).into()
}

fn quad(memory: &GuestMemory, address: u64) -> u64 {
    u64::from_le_bytes(read(memory, address))
}

/// The memory map in the zero page: start, size, type.
fn e820(memory: &GuestMemory) -> Vec<(u64, u64, u64)> {
    let count = read::<1>(memory, layout::ZERO_PAGE + 0x1e8)[0];
    let entry = |index: u64| {
        let at = layout::ZERO_PAGE + 0x2d0 + 20 * index;
        (quad(memory, at), quad(memory, at + 8), word(memory, at + 16))
    };
    (0..count.into()).map(entry).collect()
}

#[test]
fn elf_kernel_enters_64_bit_mode() {
    let memory = memory(64 * MIB);
    let kernel = elf(0x100_0010, &[(0x100_0000, &[0xaa; 100], 2 * MIB)], None);
    let boot = LinuxBoot {
        kernel: &kernel,
        initrd: Some(b"initrd"),
        command_line: "console=ttyS0",
        acpi: true,
        ..Default::default()
    };
    let entry = boot_with(&memory, &boot).unwrap().registers();
    assert_eq!((entry.rip, entry.rsi), (0x100_0010, layout::ZERO_PAGE));
    assert_eq!(read::<100>(&memory, 0x100_0000), [0xaa; 100]);
    let line = word(&memory, layout::ZERO_PAGE + 0x228);
    assert_eq!(&read::<14>(&memory, line), b"console=ttyS0\0");
    // The RSDP is where both the zero page and the BIOS area have it.
    let rsdp = quad(&memory, layout::ZERO_PAGE + 0x70);
    assert_eq!((rsdp, &read::<8>(&memory, rsdp)), (layout::ACPI_START, b"RSD PTR "));
    let (start, size) =
        (word(&memory, layout::ZERO_PAGE + 0x218), word(&memory, layout::ZERO_PAGE + 0x21c));
    assert_eq!((&read::<6>(&memory, start), size), (b"initrd", 6));
    assert_eq!(start, 64 * MIB - 4096, "as high as possible, at a page");
}

#[test]
fn pvh_note_leads_to_the_pvh_entry() {
    let memory = memory(4096 * MIB);
    let kernel = elf(0x100_0000, &[(0x100_0000, &[0xaa; 64], 4096)], Some(0x100_0020));
    let boot = LinuxBoot {
        kernel: &kernel,
        initrd: Some(&[7; 5000]),
        command_line: "quiet",
        acpi: true,
        ..Default::default()
    };
    let entry = boot_with(&memory, &boot).unwrap().registers();
    assert_eq!((entry.rip, entry.rbx), (0x100_0020, layout::PVH_START_INFO));
    let info = layout::PVH_START_INFO;
    assert_eq!((word(&memory, info), word(&memory, info + 4)), (0x336e_c578, 1));
    assert_eq!(word(&memory, info + 12), 1, "one module");
    let module = quad(&memory, info + 16);
    assert_eq!(quad(&memory, module + 8), 5000);
    assert_eq!(read::<8>(&memory, quad(&memory, module)), [7; 8]);
    assert_eq!(&read::<6>(&memory, quad(&memory, info + 24)), b"quiet\0");
    assert_eq!(quad(&memory, info + 32), layout::ACPI_START);
    let (map, count) = (quad(&memory, info + 40), word(&memory, info + 48));
    let entries: Vec<_> = (0..count)
        .map(|index| {
            let at = map + 24 * index;
            (quad(&memory, at), quad(&memory, at + 8), word(&memory, at + 16))
        })
        .collect();
    let ram: u64 = entries.iter().filter(|e| e.2 == 1 && e.0 >= MIB).map(|e| e.1).sum();
    assert_eq!(ram, 4095 * MIB);
    // It ends before the next thing in low memory.
    assert!(map + 24 * count <= layout::ZERO_PAGE);

    let registers =
        |entry| boot_with(&memory, &LinuxBoot { entry, ..boot }).map(|entry| entry.registers().rip);
    assert_eq!(registers(KernelEntry::Bits64).unwrap(), 0x100_0000);
    assert_eq!(registers(KernelEntry::Pvh).unwrap(), 0x100_0020);
}

#[test]
fn bzimage_is_entered_behind_its_start() {
    let memory = memory(64 * MIB);
    let kernel = bzimage(&[0x55; 8000]);
    let boot =
        LinuxBoot { kernel: &kernel, initrd: Some(b"x"), command_line: "a", ..Default::default() };
    let entry = boot_with(&memory, &boot).unwrap().registers();
    assert_eq!((entry.rip, entry.rsi), (0x10_0200, layout::ZERO_PAGE));
    assert_eq!(read::<8000>(&memory, 0x10_0000), [0x55; 8000]);
    let header = layout::ZERO_PAGE;
    assert_eq!(&read::<6>(&memory, header + 0x202), b"HdrS\x0f\x02");
    assert_eq!(read::<1>(&memory, header + 0x210), [0xff], "a loader without a number");
    assert_eq!(word(&memory, header + 0x228), layout::COMMAND_LINE);
    assert_eq!(quad(&memory, header + 0x70), 0, "no ACPI asked for");
    assert_eq!(read::<8>(&memory, layout::ACPI_START), [0; 8]);
}

#[test]
fn memory_map_covers_exactly_all_memory() {
    let kernel = elf(0x10_0000, &[(0x10_0000, &[0; 64], 64)], None);
    for size in [2 * MIB, 192 * MIB, 3072 * MIB, 3072 * MIB + 4096, 8192 * MIB] {
        let memory = memory(size);
        boot_with(&memory, &LinuxBoot { kernel: &kernel, ..Default::default() }).unwrap();
        let map = e820(&memory);
        for pair in map.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "sorted, without overlap: {map:x?}");
        }
        let ram: Vec<_> = map.iter().filter(|entry| entry.2 == 1).collect();
        let total: u64 = ram.iter().map(|entry| entry.1).sum();
        assert_eq!(total, size - (MIB - layout::LOW_MEMORY_END), "{size:#x}");
        for &&(start, len, _) in &ram {
            assert!(is_ram(&memory, start, start + len));
        }
        let reserved = |start| map.iter().any(|entry| entry.0 == start && entry.2 == 2);
        assert!(reserved(layout::ACPI_START) && reserved(layout::ECAM_START));
    }
}

#[test]
fn bad_images_are_named() {
    let memory = memory(32 * MIB);
    let no = |kernel: &[u8]| refused(&memory, &LinuxBoot { kernel, ..Default::default() });
    let good = elf(0x100_0000, &[(0x100_0000, &[0; 100], 200)], None);

    assert_eq!(no(b""), KernelError::UnknownFormat);
    assert_eq!(no(b"\x1f\x8b\x08 a compressed file"), KernelError::UnknownFormat);
    assert_eq!(no(&good[..40]), KernelError::Truncated { size: 40, part: "ELF header" });
    assert_eq!(no(&good[..100]), KernelError::Truncated { size: 100, part: "program headers" });
    let size = good.len() - 1;
    assert_eq!(no(&good[..size]), KernelError::Truncated { size, part: "segments" });
    let mut other = good.clone();
    other[18] = 183;
    assert_eq!(no(&other), KernelError::OtherMachine { class: 2, machine: 183 });
    other = good.clone();
    other[4] = 1;
    assert_eq!(no(&other), KernelError::OtherMachine { class: 1, machine: 62 });
    assert!(matches!(no(&elf(0x100_0000, &[], None)), KernelError::Elf(_)));
    let outside = elf(0x200_0000, &[(0x100_0000, &[0; 8], 8)], None);
    assert!(matches!(no(&outside), KernelError::Elf(_)), "entry");
    let low = elf(0x7000, &[(0x7000, &[0; 8], 8)], None);
    assert!(matches!(no(&low), KernelError::Elf(_)), "over the boot data");
    let twice = elf(0x100_0000, &[(0x100_0000, &[0; 9], 9), (0x100_0008, &[0; 8], 8)], None);
    assert!(matches!(no(&twice), KernelError::Elf(_)), "overlap");
    let large = elf(0x100_0000, &[(0x100_0000, &[0; 8], 17 * MIB)], None);
    assert_eq!(no(&large), KernelError::NoRoom { start: 0x100_0000, end: 33 * MIB });
    let wraps = elf(0x100_0000, &[(u64::MAX - 3, &[0; 8], 8)], None);
    assert!(matches!(no(&wraps), KernelError::NoRoom { .. }));
    let pvh = LinuxBoot { kernel: &good, entry: KernelEntry::Pvh, ..Default::default() };
    assert_eq!(refused(&memory, &pvh), KernelError::NoPvhEntry);
}

#[test]
fn bad_bzimages_are_named() {
    let memory = memory(32 * MIB);
    let no = |kernel: &[u8]| refused(&memory, &LinuxBoot { kernel, ..Default::default() });
    let good = bzimage(&[0; 4096]);
    assert_eq!(no(&good[..0x210]), KernelError::Truncated { size: 0x210, part: "setup header" });
    let part = "protected-mode part";
    assert_eq!(no(&good[..2000]), KernelError::Truncated { size: 2000, part });
    assert_eq!(no(&good[..1024]), KernelError::Truncated { size: 1024, part });
    let mut image = good.clone();
    put(&mut image, 0x236, &0u16.to_le_bytes());
    assert_eq!(no(&image), KernelError::Only32Bit);
    image = good.clone();
    put(&mut image, 0x206, &0x020bu16.to_le_bytes());
    assert_eq!(no(&image), KernelError::TooOld { version: 0x020b });
    image = good.clone();
    put(&mut image, 0x260, &(17 * MIB as u32).to_le_bytes());
    assert_eq!(no(&image), KernelError::NoRoom { start: MIB, end: 33 * MIB });
    put(&mut image, 0x258, &u64::MAX.to_le_bytes());
    assert!(matches!(no(&image), KernelError::NoRoom { .. }));
    let pvh = LinuxBoot { kernel: &good, entry: KernelEntry::Pvh, ..Default::default() };
    assert_eq!(refused(&memory, &pvh), KernelError::NoPvhEntry);
}

#[test]
fn initrds_and_command_lines_have_limits() {
    let memory = memory(32 * MIB);
    let kernel = bzimage(&[0; 4096]);
    let boot = LinuxBoot { kernel: &kernel, ..Default::default() };
    // Between the unpacked kernel, which ends at 20 MiB, and the end of memory.
    let room = 12 * MIB;
    let initrd = vec![1; room as usize + 1];
    let fits = |initrd| boot_with(&memory, &LinuxBoot { initrd: Some(initrd), ..boot });
    assert!(fits(&initrd[1..]).is_ok());
    let error = fits(&initrd).unwrap_err();
    let expected = KernelError::InitrdTooLarge { size: initrd.len(), room };
    assert!(matches!(error, Error::Kernel(error) if error == expected));

    let long = "x".repeat(256);
    let line = |command_line| boot_with(&memory, &LinuxBoot { command_line, ..boot });
    assert!(line(&long[1..]).is_ok(), "this kernel's limit is 255");
    let error = line(&long).unwrap_err();
    let expected = KernelError::CommandLine { len: 256, max: 255 };
    assert!(matches!(error, Error::Kernel(error) if error == expected));
    let error = line("a\0b").unwrap_err();
    assert!(matches!(error, Error::Kernel(KernelError::CommandLine { len: 3, .. })));
    let elf = elf(0x100_0000, &[(0x100_0000, &[0; 8], 8)], None);
    let long = "x".repeat(layout::COMMAND_LINE_MAX + 1);
    let boot = LinuxBoot { kernel: &elf, command_line: &long, ..Default::default() };
    let (len, max) = (long.len(), layout::COMMAND_LINE_MAX);
    assert_eq!(refused(&memory, &boot), KernelError::CommandLine { len, max });
}

/// Properties of every image that is accepted.
fn check(memory: &GuestMemory, boot: &LinuxBoot<'_>) {
    if let Ok(entry) = boot_with(memory, boot) {
        let address = entry.registers().rip;
        assert!(address >= layout::IMAGE_START && is_ram(memory, address, address + 1));
        // The boot data is whole: nothing of the image went over it.
        assert_eq!(quad(memory, layout::BOOT_PAGE_TABLES), layout::BOOT_PAGE_TABLES + 0x1003);
        assert_eq!(&read::<8>(memory, layout::ACPI_START), b"RSD PTR ");
    }
}

proptest! {
    #[test]
    fn no_image_breaks_loader_or_boot_data(
        kind in 0..3usize,
        changes in prop::collection::vec((0..1200usize, any::<u8>()), 0..12),
        wide in prop::option::of((0..600usize, any::<u64>())),
        cut in prop::option::of(0..1400usize),
        initrd in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let memory = memory(24 * MIB);
        let mut image = match kind {
            0 => elf(0x100_0000, &[(0x100_0000, &[0x90; 600], 4096), (0x110_0000, &[1; 64], 64)],
                Some(0x100_0008)),
            1 => bzimage(&[0x90; 300]),
            _ => b"\x7fELF\x02\x01".iter().copied().chain(std::iter::repeat_n(0, 500)).collect(),
        };
        for (at, byte) in changes {
            if let Some(place) = image.get_mut(at) {
                *place = byte;
            }
        }
        if let Some((at, value)) = wide && at + 8 <= image.len() {
            put(&mut image, at, &value.to_le_bytes());
        }
        image.truncate(cut.unwrap_or(usize::MAX));
        let boot = LinuxBoot {
            kernel: &image,
            initrd: Some(&initrd),
            command_line: "test",
            acpi: true,
            entry: KernelEntry::Auto,
            viot: None,
        };
        check(&memory, &boot);
        check(&memory, &LinuxBoot { entry: KernelEntry::Bits64, ..boot });
    }
}
