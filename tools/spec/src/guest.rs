//! Guest programs: shipped ones, and files.
//!
//! There are two lists of shipped programs: [`BARE`] for nodes without an operating system, and
//! [`LINUX`] with the same programs and tools for Linux nodes.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use tofu_arch::Arch;
use tofu_programs::{BARE, LINUX, for_bare, for_linux};

/// Reads a program. Returns its name, for people, and the contents of its file. Refuses a file of
/// more than `most` bytes, or one that is not regular, before reading it.
fn read_program(path: &Path, most: u64) -> Result<(String, Vec<u8>), GuestError> {
    let read_error = |source| GuestError::Read { path: path.to_owned(), source };
    let image = tofu_input::read(path, most).map_err(read_error)?;
    let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy();
    Ok((name.into_owned(), image))
}

/// Which guest program to run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GuestName {
    /// A shipped one.
    Shipped(String),
    /// An ELF file.
    File(PathBuf),
}

impl GuestName {
    /// Returns the program that `text` names: a shipped guest, or a path, which contains a `/` or
    /// ends in `.elf`.
    fn find(text: &str) -> Option<Self> {
        if BARE.iter().chain(LINUX).any(|shipped| shipped.name == text) {
            return Some(Self::Shipped(text.to_owned()));
        }
        let is_path = text.contains('/') || text.ends_with(".elf");
        is_path.then(|| Self::File(text.into()))
    }

    /// Finds a program that the user names on a command line.
    ///
    /// # Errors
    ///
    /// If no shipped guest has that name, with the most similar one.
    pub fn named(text: &str) -> Result<Self, GuestError> {
        Self::find(text).ok_or_else(|| GuestError::Unknown { name: text.to_owned() })
    }

    /// Makes a relative path start at `folder`.
    pub(crate) fn start_at(&mut self, folder: &Path) {
        if let Self::File(path) = self {
            *path = folder.join(&*path);
        }
    }
}

impl FromStr for GuestName {
    /// The allowed values.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::find(text).ok_or_else(|| {
            let names: Vec<_> = BARE.iter().map(|shipped| shipped.name).collect();
            format!(
                "one of {} or the path of an ELF file (with a / or ending in .elf)",
                names.join(", ")
            )
        })
    }
}

impl fmt::Display for GuestName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shipped(name) => f.write_str(name),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// The reason why a guest program cannot be run.
#[expect(missing_docs, reason = "the message says what fields are")]
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// No shipped guest has that name.
    #[error("guest {name}: there is no such guest{}; `tofu guest ls` lists them", meant(name))]
    Unknown { name: String },
    /// The program is for Linux only.
    #[error("guest {0}: this program is for Linux nodes only")]
    LinuxOnly(String),
    /// The file cannot be read.
    #[error("guest {}: cannot read it", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// The file is for another architecture than the node's.
    #[error(
        "guest {}: it is for {other}, and its node is {arch}; see --arch",
        path.display()
    )]
    Arch { path: PathBuf, other: Arch, arch: Arch },
    /// The file is not a program that our monitor can boot.
    #[error(
        "guest {}: {problem}; build a static x86-64 ELF file as `tofu guest new` sets up",
        path.display()
    )]
    NotBootable { path: PathBuf, problem: &'static str },
}

/// Suggests a shipped guest with a similar name, as words of an error.
fn meant(name: &str) -> String {
    let names = BARE.iter().chain(LINUX).map(|shipped| shipped.name);
    tofu_ui::did_you_mean(name, names).trim_end_matches('?').to_owned()
}

/// A guest program in memory.
#[derive(Clone)]
pub struct Guest {
    /// Name for people.
    pub name: String,
    /// The file. Shared by all nodes that run it.
    pub image: Arc<Cow<'static, [u8]>>,
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guest({}, {} bytes)", self.name, self.image.len())
    }
}

/// The largest guest file that is read; a larger one cannot be a small guest or a kernel.
const MAX_IMAGE: u64 = 1 << 30;
/// The largest program that is copied to Linux nodes, in bytes.
const MAX_LINUX_IMAGE: u64 = 1 << 28;

impl Guest {
    /// Finds or reads a program for nodes without an operating system, and checks that it can be
    /// booted.
    ///
    /// # Errors
    ///
    /// If there is no guest of that name, or the file cannot be read or booted.
    pub fn load_bare(name: &GuestName) -> Result<Self, GuestError> {
        match name {
            GuestName::Shipped(wanted) => {
                let shipped = for_bare(wanted);
                let shipped = shipped.ok_or_else(|| match for_linux(wanted) {
                    Some(_) => GuestError::LinuxOnly(wanted.clone()),
                    None => GuestError::Unknown { name: wanted.clone() },
                })?;
                let image = Arc::new(Cow::Borrowed(shipped.image));
                Ok(Self { name: shipped.name.to_owned(), image })
            }
            GuestName::File(path) => {
                let (name, image) = read_program(path, MAX_IMAGE)?;
                check_elf(&image)
                    .map_err(|problem| GuestError::NotBootable { path: path.clone(), problem })?;
                Ok(Self { name, image: Arc::new(Cow::Owned(image)) })
            }
        }
    }

    /// Returns the memory that the loaded program takes, in bytes, or 0 if that is not known.
    pub(crate) fn size(&self) -> u64 {
        tofu_image::loaded_size(&self.image).map_or(0, |size| size.bytes)
    }

    /// Returns the end of the loaded program in memory, in bytes, or 0 if that is not known.
    pub(crate) fn end(&self) -> u64 {
        tofu_image::loaded_size(&self.image).map_or(0, |size| size.end)
    }

    /// Finds or reads a program for Linux nodes of this architecture: an ELF program, or a script.
    ///
    /// # Errors
    ///
    /// If there is no guest of that name, or the file cannot be read or is for another
    /// architecture.
    pub fn load_linux(name: &GuestName, arch: Arch) -> Result<Self, GuestError> {
        match name {
            GuestName::Shipped(wanted) => {
                let shipped = for_linux(wanted);
                let shipped =
                    shipped.ok_or_else(|| GuestError::Unknown { name: wanted.clone() })?;
                let image = match arch {
                    Arch::X86_64 => Cow::Borrowed(shipped.image),
                    // Images for other architectures contain the programs already.
                    Arch::Arm64 => {
                        Cow::Owned(format!("#!/bin/sh\nexec {wanted} \"$@\"\n").into_bytes())
                    }
                };
                Ok(Self { name: wanted.clone(), image: Arc::new(image) })
            }
            GuestName::File(path) => {
                let (name, image) = read_program(path, MAX_LINUX_IMAGE)?;
                match Arch::of_elf(&image) {
                    Some(other) if other != arch => {
                        return Err(GuestError::Arch { path: path.clone(), other, arch });
                    }
                    _ => {}
                }
                Ok(Self { name, image: Arc::new(Cow::Owned(image)) })
            }
        }
    }
}

/// Checks the identification of an ELF header. The loader checks the rest.
fn check_elf(image: &[u8]) -> Result<(), &'static str> {
    const X86_64: u16 = 62;
    const EXECUTABLE: u16 = 2;
    let half = |at: usize| Some(u16::from_le_bytes(image.get(at..at + 2)?.try_into().ok()?));
    if image.get(..4) != Some(b"\x7fELF") {
        return Err("not an ELF file");
    }
    // Class 64-bit, little-endian.
    if image.get(4..6) != Some(&[2, 1]) || half(18) != Some(X86_64) {
        return Err("an ELF file, but not for x86-64");
    }
    if half(16) != Some(EXECUTABLE) {
        return Err("an ELF file, but not a static executable with fixed addresses");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_are_told_apart() {
        let find = |text: &str| {
            let mut guest: GuestName = text.parse().ok()?;
            guest.start_at(Path::new("here"));
            Some(guest)
        };
        assert_eq!(find("hello"), Some(GuestName::Shipped("hello".into())));
        assert_eq!(find("./hello"), Some(GuestName::File("here/./hello".into())));
        assert_eq!(find("my.elf"), Some(GuestName::File("here/my.elf".into())));
        assert_eq!(find("/a/b"), Some(GuestName::File("/a/b".into())));
        assert_eq!(find("helo"), None);
    }

    #[test]
    fn shipped_guests_boot() {
        assert!(!BARE.is_empty());
        for shipped in BARE {
            assert_eq!(check_elf(shipped.image), Ok(()), "{}", shipped.name);
            assert!(!shipped.summary.is_empty(), "{} has no description", shipped.name);
        }
    }

    /// Returns whether an ELF file has a program header that names a dynamic linker.
    fn wants_dynamic_linker(image: &[u8]) -> Option<bool> {
        const INTERPRETER: u32 = 3;
        let half = |at: usize| Some(u16::from_le_bytes(image.get(at..at + 2)?.try_into().ok()?));
        let word = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?));
        (image.get(..4)? == b"\x7fELF").then_some(())?;
        let (first, size, count) = (word(32)? as usize, half(54)?, half(56)?);
        let kinds: Option<Vec<u32>> =
            (0..usize::from(count)).map(|index| word(first + index * usize::from(size))).collect();
        Some(kinds?.contains(&INTERPRETER))
    }

    #[test]
    fn linux_programs_are_static_tools_included() {
        for program in LINUX {
            assert_eq!(wants_dynamic_linker(program.image), Some(false), "{}", program.name);
            assert!(!program.summary.is_empty(), "{} has no description", program.name);
        }
        for name in ["hello", "allpairs", "tofu-guest", "tofu-agent"] {
            assert!(for_linux(name).is_some(), "{name} is missing");
        }
        assert!(for_linux("baseline").is_none());
        let error =
            Guest::load_bare(&GuestName::Shipped("tofu-guest".into())).unwrap_err().to_string();
        assert_eq!(error, "guest tofu-guest: this program is for Linux nodes only");
    }

    #[test]
    fn unbootable_file_is_named_in_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let load = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            Guest::load_bare(&GuestName::File(path)).unwrap_err().to_string()
        };
        let mut elf = vec![0; 64];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[16] = 3;
        elf[18] = 62;
        assert!(load("pie.elf", &elf).contains("not a static executable"));
        elf[18] = 183;
        assert!(load("arm.elf", &elf).contains("not for x86-64"));
        assert!(load("short.elf", b"\x7fELF").contains("not for x86-64"));
        assert!(load("empty.elf", b"").contains("not an ELF file"));
        let message = load("text.elf", b"#!/bin/sh\n");
        assert!(message.contains("text.elf: not an ELF file; build"), "{message}");
        assert!(!message.contains('\n'));
        let folder_error =
            Guest::load_bare(&GuestName::File(folder.path().to_owned())).unwrap_err();
        let folder_error = format!("{:#}", anyhow::Error::from(folder_error));
        assert!(folder_error.contains("it is a folder; give a regular file"), "{folder_error}");
        let missing = Guest::load_bare(&GuestName::File("no/such.elf".into())).unwrap_err();
        let missing = format!("{:#}", anyhow::Error::from(missing));
        assert!(
            missing.starts_with("guest no/such.elf: cannot read it: No such file"),
            "{missing}"
        );
    }
}
