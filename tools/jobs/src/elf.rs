//! Properties of a program that are read from its file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, bail};
use object::Endianness;
use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, FileHeader64};
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _};
use tofu_image::Arch;

use crate::libraries;

/// An MPI library and those with the same ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Mpich,
    OpenMpi { version: u32 },
}

impl Family {
    /// Returns the family of the library with this soname, which Open MPI's latest versions share.
    pub(crate) fn of(name: &str) -> Option<Self> {
        match name {
            // The last two are of the ABI that MPI 5 has for all libraries.
            "libmpi.so.12" | "libmpi_abi.so.0" | "libmpi_abi.so.1" => Some(Self::Mpich),
            "libmpi.so.40" => Some(Self::OpenMpi { version: 5 }),
            _ => name.starts_with("libmpich").then_some(Self::Mpich),
        }
    }

    /// Returns the family of a library by what it tells of its version.
    pub(crate) fn of_version(text: &str) -> Option<Self> {
        if let Some((_, rest)) = text.split_once("Open MPI v") {
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
            return Some(Self::OpenMpi { version: digits.parse().ok()? });
        }
        let like = ["MPICH", "MVAPICH", "Intel(R) MPI"];
        like.iter().any(|name| text.contains(name)).then_some(Self::Mpich)
    }

    /// Returns the names under which nodes may have the library, and the package that has it.
    pub(crate) fn library(self) -> (&'static [&'static str], &'static str) {
        match self {
            Self::Mpich => (&["libmpich.so.12", "libmpi.so.12"], "mpich"),
            Self::OpenMpi { .. } => (&["libmpi.so.40"], "openmpi-bin"),
        }
    }

    /// Returns the arguments of `tofu` that make the image with it.
    pub(crate) fn make_image(self, arch: Arch) -> String {
        let of = match arch {
            Arch::X86_64 => String::new(),
            Arch::Arm64 => format!(" --arch {arch}"),
        };
        match self {
            Self::Mpich => format!("sdk{of} --mpi DIR"),
            Self::OpenMpi { .. } => {
                format!("image build{of} --name {} --with openmpi-bin", self.image(arch))
            }
        }
    }

    /// Returns the name of the image that has it by default.
    pub(crate) fn image(self, arch: Arch) -> &'static str {
        match (self, arch) {
            (Self::Mpich, _) => libraries::mpi_image(arch),
            (Self::OpenMpi { .. }, Arch::X86_64) => "openmpi",
            (Self::OpenMpi { .. }, Arch::Arm64) => "openmpi-arm64",
        }
    }

    /// Returns the same with what the other libraries of its program tell: the run-time system is a
    /// library of Open MPI up to version 4 only, and the portability layer one of all versions.
    pub(crate) fn with(self, files: &BTreeMap<String, PathBuf>) -> Self {
        let old = files.keys().any(|name| name.starts_with("libopen-rte.so"));
        let open = files.keys().any(|name| name.starts_with("libopen-pal.so"));
        match self {
            Self::Mpich if open => Self::OpenMpi { version: 5 },
            Self::OpenMpi { .. } if old => Self::OpenMpi { version: 4 },
            family => family,
        }
    }
}

/// Returns the loader of a program, if it is linked dynamically.
///
/// # Errors
///
/// If it is not a program that nodes can run.
pub(crate) fn loader(bytes: &[u8]) -> anyhow::Result<Option<PathBuf>> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    if Arch::of_elf(bytes).is_none() {
        bail!("it is for another processor than x86-64 or arm64");
    }
    if !matches!(header.e_type(endian), object::elf::ET_EXEC | object::elf::ET_DYN) {
        bail!("it is no program but an object file or the like");
    }
    for segment in header.program_headers(endian, bytes)? {
        if let Some(name) = segment.interpreter(endian, bytes)? {
            let name = std::str::from_utf8(name).context("its loader has no proper name")?;
            return Ok(Some(name.into()));
        }
    }
    Ok(None)
}

/// The libraries that a program or library is linked with.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Links {
    /// Their names.
    pub(crate) needed: Vec<String>,
    /// Folders to search for them, from DT_RUNPATH, or from DT_RPATH if there is none.
    pub(crate) folders: Vec<String>,
}

/// Returns the libraries that an ELF file is linked with; none if it is static.
pub(crate) fn links(bytes: &[u8]) -> object::Result<Links> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let Some((entries, link)) = sections.dynamic(endian, bytes)? else {
        return Ok(Links::default());
    };
    let strings = sections.strings(endian, bytes, link)?;
    let all = |tag| -> object::Result<Vec<String>> {
        let entries = entries.iter().filter(|entry| entry.tag(endian) == tag);
        let texts = entries.map(|entry| entry.string(endian, strings));
        texts.map(|text| Ok(String::from_utf8_lossy(text?).into_owned())).collect()
    };
    let mut folders = all(DT_RUNPATH)?;
    if folders.is_empty() {
        folders = all(DT_RPATH)?;
    }
    let folders = folders.iter().flat_map(|text| text.split(':')).map(str::to_owned).collect();
    Ok(Links { needed: all(DT_NEEDED)?, folders })
}

/// Returns the names of the libraries that a program is linked with.
fn needed(bytes: &[u8]) -> object::Result<Vec<String>> {
    Ok(links(bytes)?.needed)
}

/// Returns the MPI library among those that a program is linked with.
fn mpi_library(needed: &[String]) -> Option<&String> {
    needed.iter().find(|name| is_mpi(name))
}

/// Returns whether a library of this name is an MPI library.
pub(crate) fn is_mpi(name: &str) -> bool {
    name.starts_with("libmpi")
}

/// Returns whether a program is linked with an MPI library.
pub(crate) fn uses_mpi(bytes: &[u8]) -> bool {
    needed(bytes).is_ok_and(|needed| mpi_library(&needed).is_some())
}

/// Says why an MPI program needs `--mpi`. Returns `None` for other programs.
pub(crate) fn without_mpi(name: &str, bytes: &[u8]) -> Option<String> {
    let needed = needed(bytes).unwrap_or_default();
    let library = mpi_library(&needed)?;
    Some(format!("{name} is linked with {library}, and there is no --mpi"))
}

/// Returns the family of the MPI library among those that a program is linked with. A program in
/// Fortran may only be linked with others of the same MPI.
pub(crate) fn family(needed: &[String]) -> Option<Family> {
    let of = |name: &str| {
        let fortran = name.starts_with("libmpi_") && name.ends_with(".so.40");
        Family::of(name).or(fortran.then_some(Family::OpenMpi { version: 5 }))
    };
    needed.iter().find_map(|name| of(name))
}

/// Returns a message for the user if the program needs `--mpi` and does not have it, or has it and
/// cannot use it.
pub(crate) fn about_mpi(name: &str, bytes: &[u8], mpi: bool) -> Option<String> {
    if !mpi {
        let why = without_mpi(name, bytes)?;
        return Some(format!("{why}: each rank takes itself for the only one"));
    }
    let needed = needed(bytes).unwrap_or_default();
    let library = mpi_library(&needed)?;
    family(&needed).is_none().then(|| {
        format!(
            "{name} is linked with {library}, which is neither mpich's nor Open MPI's: if it does \
             not speak PMI-1, each rank takes itself for the only one"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linked_libraries_are_listed() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert!(needed(&own).unwrap().contains(&"libc.so.6".to_owned()));
        assert_eq!(about_mpi("own", &own, false), None);
        assert_eq!(about_mpi("script", b"#!/bin/sh", false), None);
        assert_eq!(about_mpi("cut", &own[..4096], false), None);
        // Replaces a library's name by one of the same length.
        let with = |name: &str| {
            let mut bytes = own.clone();
            let old = b"\0libgcc_s.so.1\0";
            let at = bytes.windows(old.len()).position(|window| window == old).unwrap() + 1;
            bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
            bytes[at + name.len()] = 0;
            bytes
        };
        let mpich = with("libmpi.so.12");
        assert!(uses_mpi(&mpich) && !uses_mpi(&own) && !uses_mpi(b"#!/bin/sh"));
        assert_eq!(about_mpi("a", &mpich, true), None);
        let said = about_mpi("a", &mpich, false).unwrap();
        assert!(said.contains("a is linked with libmpi.so.12, and there is no --mpi"), "{said}");
        let open = Family::of("libmpi.so.40").unwrap();
        let files = |name: &str| BTreeMap::from([(name.to_owned(), PathBuf::new())]);
        assert_eq!(open.with(&files("libopen-rte.so.40")), Family::OpenMpi { version: 4 });
        assert_eq!(open.with(&files("libopen-pal.so.80")), Family::OpenMpi { version: 5 });
        assert_eq!(Family::of("libmpich.so.12"), Some(Family::Mpich));
        assert_eq!(Family::of("libmpifort.so.12"), None);
        for (text, family) in [
            ("Open MPI v5.0.7, package: Debian OpenMPI, ident: 5.0.7", Some(open)),
            ("Open MPI v4.1.4", Some(Family::OpenMpi { version: 4 })),
            ("MPICH Version:      4.2.1\nMPICH Release date:", Some(Family::Mpich)),
            ("Intel(R) MPI Library 2021.16 for Linux* OS", Some(Family::Mpich)),
            ("Open MPI v", None),
            ("another", None),
        ] {
            assert_eq!(Family::of_version(text), family, "{text}");
        }
        let abi = Family::of("libmpi_abi.so.1").unwrap();
        assert_eq!(abi.with(&files("libucp.so.0")), Family::Mpich);
        assert_eq!(abi.with(&files("libopen-pal.so.80")), Family::OpenMpi { version: 5 });
        let said = about_mpi("a", &with("libmpi.so.20"), true).unwrap();
        assert!(said.contains("libmpi.so.20, which is neither mpich's"), "{said}");
        let of = |bytes: &[u8]| family(&links(bytes).unwrap().needed);
        assert_eq!((of(&mpich), of(&own)), (Some(Family::Mpich), None));
        assert_eq!(of(&with("libmpi.so.40")), Some(open));
        assert_eq!(about_mpi("a", &with("libmpi.so.40"), true), None);
        let fortran = ["libc.so.6", "libmpi_mpifh.so.40"].map(str::to_owned);
        assert_eq!(family(&fortran), Some(open));
    }
}
