//! What a program's file says of it.

use std::path::PathBuf;

use anyhow::{Context, bail};
use object::Endianness;
use object::elf::{DT_NEEDED, FileHeader64};
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _};
use tofu_image::Arch;

/// The soname of mpich and what has its interface to programs. Open MPI's is `libmpi.so.40`.
const MPICH: [&str; 2] = ["libmpich", "libmpi.so.12"];

/// The loader of a program, if it is linked dynamically.
///
/// # Errors
///
/// If it is no program that nodes can run.
pub(crate) fn loader(bytes: &[u8]) -> anyhow::Result<Option<PathBuf>> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let Some(arch) = Arch::of_elf(bytes) else {
        bail!("it is for another processor than x86-64 or arm64");
    };
    if !matches!(header.e_type(endian), object::elf::ET_EXEC | object::elf::ET_DYN) {
        bail!("it is no program but an object file or the like");
    }
    for segment in header.program_headers(endian, bytes)? {
        if let Some(name) = segment.interpreter(endian, bytes)? {
            if arch != Arch::X86_64 {
                bail!(
                    "it is for {arch} and linked dynamically, and such nodes have no C library: \
                     link it statically (-static)"
                );
            }
            let name = std::str::from_utf8(name).context("its loader has no proper name")?;
            return Ok(Some(name.into()));
        }
    }
    Ok(None)
}

/// The libraries that a program is linked with; none of what is no ELF file.
fn needed(bytes: &[u8]) -> object::Result<Vec<String>> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let Some((entries, link)) = sections.dynamic(endian, bytes)? else { return Ok(Vec::new()) };
    let strings = sections.strings(endian, bytes, link)?;
    let entries = entries.iter().filter(|entry| entry.tag(endian) == DT_NEEDED);
    let names = entries.map(|entry| entry.string(endian, strings));
    names.map(|name| Ok(String::from_utf8_lossy(name?).into_owned())).collect()
}

/// What the user must know of a program of these bytes and MPI: that it wants `--mpi` and does not
/// have it, or cannot use it.
pub(crate) fn about_mpi(name: &str, bytes: &[u8], mpi: bool) -> Option<String> {
    let needed = needed(bytes).unwrap_or_default();
    let library = needed.iter().find(|name| name.starts_with("libmpi"))?;
    let is_mpich = needed.iter().any(|name| MPICH.iter().any(|mpich| name.starts_with(mpich)));
    match (mpi, is_mpich) {
        (true, true) => None,
        (true, false) => Some(format!(
            "{name} is linked with {library}, which is not mpich's: if it does not speak PMI-1, \
             each rank takes itself for the only one"
        )),
        (false, _) => Some(format!(
            "{name} is linked with {library}, and there is no --mpi: each rank takes itself for \
             the only one"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert!(needed(&own).unwrap().contains(&"libc.so.6".to_owned()));
        assert_eq!(about_mpi("own", &own, false), None);
        assert_eq!(about_mpi("script", b"#!/bin/sh", false), None);
        assert_eq!(about_mpi("cut", &own[..4096], false), None);
        // The name of a library as long as one of MPI's.
        let with = |name: &str| {
            let mut bytes = own.clone();
            let old = b"\0libgcc_s.so.1\0";
            let at = bytes.windows(old.len()).position(|window| window == old).unwrap() + 1;
            bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
            bytes[at + name.len()] = 0;
            bytes
        };
        let mpich = with("libmpi.so.12");
        assert_eq!(about_mpi("a", &mpich, true), None);
        let said = about_mpi("a", &mpich, false).unwrap();
        assert!(said.contains("a is linked with libmpi.so.12, and there is no --mpi"), "{said}");
        let said = about_mpi("a", &with("libmpi.so.40"), true).unwrap();
        assert!(said.contains("libmpi.so.40, which is not mpich's"), "{said}");
    }
}
