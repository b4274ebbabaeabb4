//! Kernel files: their kinds, and the ELF kernel in a bzImage.
//!
//! A bzImage is a boot loader's format: set-up code, and a compressed ELF kernel with code to
//! unpack it (Documentation/arch/x86/boot.rst of the Linux source). That code takes seconds under
//! an emulator, so the kernel is unpacked here, once. A kernel built with CONFIG_PVH is started
//! through a note in the ELF file.

use std::io::Read;
use std::path::Path;

use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, elf};

use crate::error::{Error, Result};

/// The largest unpacked kernel that is accepted, in bytes.
const LIMIT: u64 = 1 << 30;
/// The note of the PVH entry, with the owner "Xen" (xen/include/public/elfnote.h).
const XEN_ELFNOTE_PHYS32_ENTRY: elf::NoteType = elf::NoteType(18);

/// The position of the magic number in an Image's header.
const ARM64_MAGIC: std::ops::Range<usize> = 0x38..0x3c;

/// The kind of a kernel file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelKind {
    /// The boot loader's format, compressed.
    BzImage,
    /// An ELF file that can be started by the PVH protocol.
    Pvh,
    /// An ELF file without the PVH note: for 64-bit entry only.
    Elf,
}

/// Returns the kind of the kernel `bytes`, which is the content of `path`.
///
/// # Errors
/// [`Error::Kernel`] if it is not an x86-64 kernel, with what it appears to be instead.
pub fn inspect(path: &Path, bytes: &[u8]) -> Result<KernelKind> {
    let bad = |reason: &str| Error::Kernel { path: path.into(), reason: reason.into() };
    if bytes.starts_with(&elf::ELFMAG) {
        return inspect_elf(bytes).map_err(|reason| bad(&reason));
    }
    if bytes.get(0x202..0x206) == Some(b"HdrS") {
        payload(bytes).map_err(|reason| bad(&reason))?;
        return Ok(KernelKind::BzImage);
    }
    Err(bad(match bytes {
        [] => "it is empty",
        [b'0', b'7', b'0', b'7', b'0', ..] => {
            "it is a cpio archive (an initramfs?), not a bzImage or ELF file"
        }
        [0x1f, 0x8b, ..] => {
            "it is gzip-compressed data, not a bzImage or ELF file: unpack it first"
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0xfd, b'7', b'z', b'X', b'Z', ..] => {
            "it is compressed data, not a bzImage or ELF file: unpack it first"
        }
        _ => "it is neither a bzImage nor an ELF file",
    }))
}

/// Checks that `bytes`, the content of `path`, is an uncompressed kernel Image for arm64
/// (Documentation/arch/arm64/booting.rst of the Linux source).
///
/// # Errors
/// [`Error::Kernel`] if it is not.
pub fn inspect_arm64(path: &Path, bytes: &[u8]) -> Result<()> {
    if bytes.get(ARM64_MAGIC) == Some(b"ARM\x64") {
        return Ok(());
    }
    let reason = match inspect(path, bytes) {
        Ok(_) => "it is for x86-64, not arm64".to_owned(),
        Err(_) => "it is no kernel for arm64: that begins with an Image's header".to_owned(),
    };
    Err(Error::Kernel { path: path.into(), reason })
}

/// The memory that an ELF file takes once it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadedSize {
    /// The sum of its segments, in bytes.
    pub bytes: u64,
    /// The physical address after the last segment.
    pub end: u64,
}

/// Returns the memory that the ELF file `bytes` takes, or `None` if it is damaged or not an ELF
/// file.
pub fn loaded_size(bytes: &[u8]) -> Option<LoadedSize> {
    let file = ElfFile64::<Endianness>::parse(bytes).ok()?;
    let endian = file.endian();
    let mut size = LoadedSize { bytes: 0, end: 0 };
    for segment in file.elf_program_headers() {
        if segment.p_type(endian) == elf::PT_LOAD {
            let length = segment.p_memsz(endian);
            size.bytes = size.bytes.saturating_add(length);
            size.end = size.end.max(segment.p_paddr(endian).saturating_add(length));
        }
    }
    Some(size)
}

/// Returns the bytes of memory that a kernel takes before it does anything, according to its file.
pub fn kernel_size(bytes: &[u8]) -> Option<u64> {
    /// `init_size` of the boot protocol: the memory that the kernel needs to unpack itself.
    const INIT_SIZE: std::ops::Range<usize> = 0x260..0x264;
    if bytes.get(0x202..0x206) == Some(b"HdrS") {
        let field = bytes.get(INIT_SIZE)?.try_into().ok()?;
        return Some(u32::from_le_bytes(field).into());
    }
    if bytes.get(ARM64_MAGIC) == Some(b"ARM\x64") {
        // `image_size`, which includes memory that is not in the file.
        return Some(u64::from_le_bytes(bytes.get(0x10..0x18)?.try_into().ok()?));
    }
    loaded_size(bytes).map(|size| size.bytes)
}

fn inspect_elf(bytes: &[u8]) -> std::result::Result<KernelKind, String> {
    let file = ElfFile64::<Endianness>::parse(bytes)
        .map_err(|error| format!("its ELF headers are damaged ({error})"))?;
    let header = file.elf_header();
    let endian = file.endian();
    let machine = header.e_machine(endian);
    if machine != elf::EM_X86_64 {
        return Err(format!("it is for another machine (ELF machine {machine}), not x86-64"));
    }
    if header.e_type(endian) != elf::ET_EXEC {
        return Err("it is an ELF file, but no executable at fixed addresses".into());
    }
    let mut loads = 0;
    let mut pvh = false;
    for segment in file.elf_program_headers() {
        match segment.p_type(endian) {
            elf::PT_LOAD => {
                segment.data(endian, bytes).map_err(|()| "it is cut short".to_owned())?;
                // User programs are not linked at a kernel's addresses.
                let address = segment.p_paddr(endian);
                if !(0x10_0000..1 << 32).contains(&address) {
                    return Err("its addresses are not a kernel's (1 MiB to 4 GiB)".into());
                }
                loads += 1;
            }
            elf::PT_NOTE => {
                if let Ok(Some(mut notes)) = segment.notes(endian, bytes) {
                    while let Ok(Some(note)) = notes.next() {
                        pvh |= note.name() == b"Xen"
                            && note.n_type(endian) == XEN_ELFNOTE_PHYS32_ENTRY;
                    }
                }
            }
            _ => {}
        }
    }
    match (loads, pvh) {
        (0, _) => Err("it has nothing to load".into()),
        (_, true) => Ok(KernelKind::Pvh),
        (_, false) => Ok(KernelKind::Elf),
    }
}

/// Returns the compressed kernel in a bzImage.
fn payload(bytes: &[u8]) -> std::result::Result<&[u8], String> {
    let short = || "it is a bzImage that is cut short".to_owned();
    let byte = |at: usize| bytes.get(at).copied().ok_or_else(short);
    let word = |at: usize| -> std::result::Result<usize, String> {
        let field = bytes.get(at..at + 4).and_then(|field| field.try_into().ok());
        Ok(u32::from_le_bytes(field.ok_or_else(short)?) as usize)
    };
    let version = u16::from_le_bytes([byte(0x206)?, byte(0x207)?]);
    if version < 0x20c {
        return Err(format!("its boot protocol {version:#x} is older than Linux 3.8"));
    }
    let flags = u16::from_le_bytes([byte(0x236)?, byte(0x237)?]);
    if flags & 1 == 0 {
        return Err("it is a bzImage for 32-bit machines".into());
    }
    let sectors = match byte(0x1f1)? {
        0 => 4,
        count => usize::from(count),
    };
    let start = (sectors + 1) * 512 + word(0x248)?;
    let length = word(0x24c)?;
    bytes.get(start..).and_then(|rest| rest.get(..length)).ok_or_else(short)
}

/// Unpacks the ELF kernel in the bzImage `bytes`, which is the content of `path`.
///
/// # Errors
/// [`Error::Kernel`] if it is damaged, or uses a compression that Debian does not.
pub(crate) fn unpack(path: &Path, bytes: &[u8]) -> Result<Vec<u8>> {
    let bad = |reason: String| Error::Kernel { path: path.into(), reason };
    let payload = payload(bytes).map_err(bad)?;
    let mut kernel = Vec::new();
    let count = match payload {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => ruzstd::decoding::StreamingDecoder::new(payload)
            .map_err(|error| bad(format!("its zstd data is damaged ({error})")))?
            .take(LIMIT)
            .read_to_end(&mut kernel),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => {
            lzma_rust2::XzReader::new(payload, false).take(LIMIT).read_to_end(&mut kernel)
        }
        [a, b, ..] => {
            return Err(bad(format!(
                "it is compressed in another way than zstd or xz (it begins with {a:02x} {b:02x}): \
                 give its vmlinux file instead"
            )));
        }
        _ => return Err(bad("it is a bzImage without a kernel".into())),
    };
    count.map_err(|error| bad(format!("its compressed data is damaged ({error})")))?;
    match inspect_elf(&kernel) {
        Ok(_) => Ok(kernel),
        Err(reason) => Err(bad(format!("what is packed in it cannot be used: {reason}"))),
    }
}

/// Returns the release in a bzImage, as `uname -r` prints it, if there is one.
pub(crate) fn release(bytes: &[u8]) -> Option<String> {
    let offset = u16::from_le_bytes(bytes.get(0x20e..0x210)?.try_into().ok()?);
    let text = bytes.get(usize::from(offset).checked_add(0x200)?..)?;
    let text = &text[..text.len().min(200)];
    let end = text.iter().position(|byte| matches!(byte, b' ' | 0))?;
    let text = std::str::from_utf8(&text[..end]).ok()?;
    (!text.is_empty() && text.is_ascii()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATH: &str = "/k";

    /// Makes a small ELF executable with one segment, and with a PVH note if requested.
    pub(crate) fn tiny_elf(pvh: bool) -> Vec<u8> {
        let mut file = Vec::new();
        file.extend_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        for field in [2u16, 62] {
            file.extend_from_slice(&field.to_le_bytes());
        }
        file.extend_from_slice(&1u32.to_le_bytes());
        for field in [0x100_0000u64, 64, 0] {
            file.extend_from_slice(&field.to_le_bytes());
        }
        file.extend_from_slice(&0u32.to_le_bytes());
        for field in [64u16, 56, if pvh { 2 } else { 1 }, 64, 0, 0] {
            file.extend_from_slice(&field.to_le_bytes());
        }
        let mut segment = |kind: u32, offset: u64, address: u64, size: u64| {
            file.extend_from_slice(&kind.to_le_bytes());
            file.extend_from_slice(&5u32.to_le_bytes());
            for field in [offset, address, address, size, size, 4] {
                file.extend_from_slice(&field.to_le_bytes());
            }
        };
        segment(1, 0, 0x100_0000, 64);
        if pvh {
            segment(4, 176, 0x100_00b0, 20);
            for field in [4u32, 4, 18] {
                file.extend_from_slice(&field.to_le_bytes());
            }
            file.extend_from_slice(b"Xen\0");
            file.extend_from_slice(&0x100_0000u32.to_le_bytes());
        }
        file
    }

    /// Makes a bzImage around `payload`.
    fn bz_image(payload: &[u8]) -> Vec<u8> {
        let mut file = vec![0; 1024];
        file[0x1f1] = 1;
        file[0x202..0x206].copy_from_slice(b"HdrS");
        file[0x206..0x208].copy_from_slice(&0x20fu16.to_le_bytes());
        file[0x236] = 1;
        file[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
        file[0x300..0x30b].copy_from_slice(b"6.1.0-x (a)");
        file[0x248..0x24c].copy_from_slice(&0u32.to_le_bytes());
        file[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        file.extend_from_slice(payload);
        file
    }

    fn reason(bytes: &[u8]) -> String {
        let text = match inspect(Path::new(PATH), bytes) {
            Ok(_) => unpack(Path::new(PATH), bytes).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        assert!(text.starts_with("/k is no kernel to boot: "), "{text}");
        text
    }

    #[test]
    fn kinds_are_told_apart() {
        let kind = |bytes: &[u8]| inspect(Path::new(PATH), bytes).unwrap();
        assert_eq!(kind(&tiny_elf(true)), KernelKind::Pvh);
        assert_eq!(kind(&tiny_elf(false)), KernelKind::Elf);
        assert_eq!(kind(&bz_image(b"x")), KernelKind::BzImage);
        assert_eq!(release(&bz_image(b"x")).unwrap(), "6.1.0-x");
    }

    #[test]
    fn sizes_in_memory() {
        let size = loaded_size(&tiny_elf(true)).unwrap();
        assert!(size.bytes > 0 && size.end > size.bytes, "{size:?}");
        assert_eq!(kernel_size(&tiny_elf(true)), Some(size.bytes));
        let mut packed = bz_image(&[0; 64]);
        packed[0x260..0x264].copy_from_slice(&0x30_0000u32.to_le_bytes());
        assert_eq!(kernel_size(&packed), Some(3 << 20));
        assert_eq!((kernel_size(b"#!/bin/sh"), loaded_size(b"")), (None, None));
    }

    #[test]
    fn zstd_kernel_is_unpacked() {
        let elf = tiny_elf(true);
        let mut packed = ruzstd::encoding::compress_to_vec(
            elf.as_slice(),
            ruzstd::encoding::CompressionLevel::Fastest,
        );
        // The build of Linux appends the unpacked size.
        packed.extend_from_slice(&(elf.len() as u32).to_le_bytes());
        assert_eq!(unpack(Path::new(PATH), &bz_image(&packed)).unwrap(), elf);
    }

    #[test]
    fn wrong_files_are_named() {
        let mut arm = tiny_elf(true);
        arm[18] = 183;
        let mut shared = tiny_elf(true);
        shared[16] = 3;
        let mut user = tiny_elf(false);
        user[64 + 24..64 + 32].copy_from_slice(&0x1000u64.to_le_bytes());
        let mut old = bz_image(b"x");
        old[0x207] = 1;
        let mut narrow = bz_image(b"x");
        narrow[0x236] = 0;
        for (bytes, part) in [
            (vec![], "empty"),
            (b"#!/bin/sh\n".to_vec(), "neither"),
            (b"070701000".to_vec(), "initramfs"),
            (vec![0x1f, 0x8b, 8], "unpack it first"),
            (arm, "ELF machine 183"),
            (shared, "no executable"),
            (user, "addresses"),
            (tiny_elf(true)[..70].to_vec(), "damaged"),
            (old, "boot protocol"),
            (narrow, "32-bit"),
            (bz_image(b"x")[..1024].to_vec(), "cut short"),
            (bz_image(b"\x1f\x8b1234"), "vmlinux"),
            (bz_image(&[0x28, 0xb5, 0x2f, 0xfd, 9, 9]), "damaged"),
            (bz_image(b""), "without a kernel"),
        ] {
            let text = reason(&bytes);
            assert!(text.contains(part), "{text:?} does not say {part:?}");
        }
    }

    proptest! {
        #[test]
        fn any_change_of_a_kernel_is_survived(
            at in 0usize..1200, value: u8, pvh: bool, cut in 0usize..1200
        ) {
            for mut bytes in [tiny_elf(pvh), bz_image(&tiny_elf(pvh))] {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
                bytes.truncate(cut.max(1));
                let _ = inspect(Path::new(PATH), &bytes);
                let _ = unpack(Path::new(PATH), &bytes);
                let _ = release(&bytes);
            }
        }
    }
}
