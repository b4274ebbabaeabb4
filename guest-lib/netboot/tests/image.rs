//! Placing images, with files made here.

use proptest::prelude::*;
use tofu_netboot::image::{Handed, ImageError, ZERO_PAGE_SIZE, places, plan};
use tofu_netboot::wire::ImageKind;

const ROOM: std::ops::Range<u64> = 0x20_0000..0x100_0000;

fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

/// An ELF file with these segments: address, bytes in the file, bytes of memory.
fn elf(entry: u64, segments: &[(u64, u64, u64)]) -> Vec<u8> {
    let mut image = vec![0; 64 + 56 * segments.len()];
    put(&mut image, 0, b"\x7fELF\x02\x01\x01");
    put(&mut image, 16, &2u16.to_le_bytes());
    put(&mut image, 18, &62u16.to_le_bytes());
    put(&mut image, 24, &entry.to_le_bytes());
    put(&mut image, 32, &64u64.to_le_bytes());
    put(&mut image, 54, &56u16.to_le_bytes());
    put(&mut image, 56, &(segments.len() as u16).to_le_bytes());
    for (index, (address, file, memory)) in segments.iter().enumerate() {
        let (at, offset) = (64 + 56 * index, image.len() as u64);
        put(&mut image, at, &1u32.to_le_bytes());
        for (field, value) in [(8, offset), (16, !0), (24, *address), (32, *file), (40, *memory)] {
            put(&mut image, at + field, &value.to_le_bytes());
        }
        image.resize(image.len() + *file as usize, index as u8 + 1);
    }
    image
}

/// A bzImage of one setup sector with this much code.
fn bzimage(code: usize, init_size: u32) -> Vec<u8> {
    let mut image = vec![0; 1024 + code];
    image[0x1f1] = 1;
    put(&mut image, 0x1f4, &(code.div_ceil(16) as u32).to_le_bytes());
    put(&mut image, 0x202, b"HdrS");
    put(&mut image, 0x206, &0x20fu16.to_le_bytes());
    image[0x211] = 1;
    put(&mut image, 0x236, &1u16.to_le_bytes());
    put(&mut image, 0x238, &100u32.to_le_bytes());
    put(&mut image, 0x258, &0x40_0000u64.to_le_bytes());
    put(&mut image, 0x260, &init_size.to_le_bytes());
    image
}

#[test]
fn elf_file_loads_at_its_addresses() {
    let image = elf(0x40_0010, &[(0x40_0000, 32, 32), (0x50_0000, 8, 4096)]);
    let layout = plan(ImageKind::Guest, &image, &ROOM).unwrap();
    assert_eq!(layout.entry, 0x40_0010);
    let places: Vec<_> = layout.segments.iter().map(|segment| segment.memory.clone()).collect();
    assert_eq!(places, [0x40_0000..0x40_0020, 0x50_0000..0x50_1000]);
    assert_eq!(image[layout.segments[1].file.clone()], [2; 8]);
}

#[test]
fn foreign_images_are_refused() {
    let good = || elf(0x40_0000, &[(0x40_0000, 32, 32)]);
    let change = |at: usize, value: u8| {
        let mut image = good();
        image[at] = value;
        plan(ImageKind::Guest, &image, &ROOM).unwrap_err()
    };
    let unknown = ImageError::Unknown(ImageKind::Guest);
    assert_eq!(change(0, 0), unknown);
    assert_eq!(change(4, 1), unknown, "32 bits");
    assert_eq!(change(16, 3), unknown, "a shared object");
    assert_eq!(change(18, 40), unknown, "ARM");
    assert_eq!(change(33, 0xff), ImageError::Truncated);
    assert!(matches!(change(54, 40), ImageError::Broken(_)));
    assert_eq!(plan(ImageKind::Guest, &good()[..100], &ROOM).unwrap_err(), ImageError::Truncated);
    assert_eq!(plan(ImageKind::Guest, &good()[..130], &ROOM).unwrap_err(), ImageError::Truncated);
    assert_eq!(plan(ImageKind::Guest, b"", &ROOM).unwrap_err(), unknown);
    let refused = |image: &[u8]| plan(ImageKind::Guest, image, &ROOM).unwrap_err();
    let low = elf(0x10_0000, &[(0x10_0000, 32, 32)]);
    assert!(matches!(refused(&low), ImageError::NoRoom { start: 0x10_0000, .. }));
    let high = elf(0x40_0000, &[(0x40_0000, 32, u64::MAX)]);
    assert!(matches!(refused(&high), ImageError::NoRoom { end: u64::MAX, .. }));
    let twice = elf(0x40_0000, &[(0x40_0000, 32, 32), (0x40_001f, 1, 1)]);
    assert_eq!(refused(&twice), ImageError::Broken("segments overlap"));
    let more = elf(0x40_0000, &[(0x40_0000, 32, 31)]);
    assert!(matches!(refused(&more), ImageError::Broken(_)));
    let nowhere = elf(0x40_0020, &[(0x40_0000, 32, 32)]);
    assert!(matches!(refused(&nowhere), ImageError::Broken(_)));
    assert!(matches!(refused(&elf(0, &[])), ImageError::Broken(_)));
}

#[test]
fn bzimage_loads_at_its_preferred_address() {
    let image = bzimage(1000, 0x1_0000);
    let layout = plan(ImageKind::Linux, &image, &ROOM).unwrap();
    assert_eq!(layout.entry, 0x40_0200);
    assert_eq!(layout.segments[0].file, 1024..2024);
    assert_eq!(layout.segments[0].memory, 0x40_0000..0x40_0000 + 1000);
    // It needs more to unpack itself.
    let large = bzimage(1000, 0x100_0000);
    assert!(matches!(plan(ImageKind::Linux, &large, &ROOM), Err(ImageError::NoRoom { .. })));
    let unknown = ImageError::Unknown(ImageKind::Linux);
    for (at, value) in [(0x202, 0), (0x207, 1), (0x211, 0), (0x236, 0)] {
        let mut image = bzimage(1000, 0);
        image[at] = value;
        assert_eq!(plan(ImageKind::Linux, &image, &ROOM).unwrap_err(), unknown, "{at:#x}");
    }
    let short = &bzimage(1000, 0)[..1024 + 900];
    assert_eq!(plan(ImageKind::Linux, short, &ROOM).unwrap_err(), ImageError::Truncated);
    assert_eq!(
        plan(ImageKind::Guest, &image, &ROOM).unwrap_err(),
        ImageError::Unknown(ImageKind::Guest)
    );
}

#[test]
fn files_are_placed_apart_at_memory_end() {
    let found = places(&ROOM, 0x1001, 0x2000).unwrap();
    assert_eq!(found.initrd, 0xff_e000..0x100_0000);
    assert_eq!(found.kernel, 0xff_c000..0xff_d001);
    assert!(places(&ROOM, 1, 0).unwrap().initrd.is_empty());
    let room = ROOM.end - ROOM.start;
    assert!(places(&ROOM, room, 0).is_ok());
    for (kernel, initrd) in [(room, 1), (room + 1, 0), (u64::MAX, u64::MAX)] {
        let error = places(&ROOM, kernel, initrd).unwrap_err();
        assert!(matches!(error, ImageError::TooLittleMemory { .. }));
        assert!(error.to_string().contains("give it more memory"), "{error}");
    }
    // No kernel looks for it beyond 2 GiB.
    let large = places(&(0x20_0000..0xc000_0000), 1, 0x1000).unwrap();
    assert_eq!(large.initrd.end, 0x8000_0000);
}

fn u32_at(page: &[u8; ZERO_PAGE_SIZE], at: usize) -> u32 {
    u32::from_le_bytes(page[at..at + 4].try_into().unwrap())
}

#[test]
fn boot_parameters_give_all_places() {
    let map = [(0, 0x9_fc00, 1), (0x10_0000, 0xf0_0000, 1), (0xe000_0000, 0x1000_0000, 2)];
    let handed = Handed {
        memory_map: &map,
        command_line: 0x2_0000,
        command_line_len: 90,
        initrd: 0xff_e000..0x100_0000,
        rsdp: 0xf_5a00,
    };
    let elf = elf(0x40_0000, &[(0x40_0000, 32, 32)]);
    for (kind, image, size) in [
        (ImageKind::Guest, elf.clone(), 90),
        (ImageKind::Linux, elf, 2047),
        (ImageKind::Linux, bzimage(100, 0), 100),
    ] {
        let layout = plan(kind, &image, &ROOM).unwrap();
        let page = layout.zero_page(&handed).unwrap();
        assert_eq!(page[0x1e8], 3);
        assert_eq!(&page[0x202..0x206], b"HdrS");
        assert_eq!(page[0x210], 0xff);
        assert_eq!(u32_at(&page, 0x218), 0xff_e000);
        assert_eq!(u32_at(&page, 0x21c), 0x2000);
        assert_eq!(u32_at(&page, 0x228), 0x2_0000);
        assert_eq!(u32_at(&page, 0x238), size);
        assert_eq!(u32_at(&page, 0x70), 0xf_5a00);
        assert_eq!(u32_at(&page, 0x2d0 + 20), 0x10_0000);
        assert_eq!(u32_at(&page, 0x2d0 + 2 * 20 + 16), 2);
    }
    let layout = plan(ImageKind::Linux, &bzimage(100, 0), &ROOM).unwrap();
    let long = Handed { command_line_len: 101, ..handed.clone() };
    let error = layout.zero_page(&long).unwrap_err();
    assert_eq!(error, ImageError::CommandLine { len: 101, max: 100 });
    let many = vec![(0, 1, 1); 1000];
    let page = layout.zero_page(&Handed { memory_map: &many, ..handed }).unwrap();
    assert_eq!(page[0x1e8], 128);
}

proptest! {
    /// For any file, everything that would be written lies within the room, comes from the file,
    /// and is written once.
    #[test]
    fn segments_lie_within_memory(
        changes in proptest::collection::vec((0usize..300, any::<u8>()), 0..12),
        bz: bool,
    ) {
        let mut image = match bz {
            true => bzimage(1000, 0x1000),
            false => elf(0x40_0000, &[(0x40_0000, 32, 64), (0x41_0000, 0, 100), (0x42_0000, 9, 9)]),
        };
        for (at, value) in changes {
            let at = if bz { 0x1f0 + at % 0x80 } else { at % image.len() };
            image[at] = value;
        }
        for kind in [ImageKind::Guest, ImageKind::Linux] {
            let Ok(layout) = plan(kind, &image, &ROOM) else { continue };
            for (n, segment) in layout.segments.iter().enumerate() {
                prop_assert!(segment.file.end <= image.len());
                let memory = &segment.memory;
                prop_assert!(ROOM.start <= memory.start && memory.end <= ROOM.end);
                prop_assert!(segment.file.len() as u64 <= memory.end - memory.start);
                for other in &layout.segments[..n] {
                    prop_assert!(
                        other.memory.end <= memory.start || memory.end <= other.memory.start
                    );
                }
            }
            prop_assert!(ROOM.contains(&layout.entry));
        }
    }
}
