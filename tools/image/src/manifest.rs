//! `manifest.toml`, which describes a folder of the cache.
//!
//! It is written last, so a folder with a manifest is complete.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::arch::Arch;
use crate::error::{Error, IoContext, Result};
use crate::hash::sha256_file;
use crate::spec::{Kernel, Spec};

/// Version of the format. It changes when folders made by an older version of this crate cannot be
/// used any more.
pub(crate) const FORMAT: u32 = 1;

/// A Debian package that went into an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Package {
    /// Its version.
    pub version: String,
    /// SHA-256 of the package file, in hexadecimal digits.
    pub sha256: String,
}

/// A file of an image or a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInfo {
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 of its content, in hexadecimal digits; empty for the files of a template.
    pub sha256: String,
}

/// The description of an image and of what it was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this format.
    pub(crate) format: u32,
    /// The image's name.
    pub name: String,
    /// A hash of everything that was requested: see [`Spec`](crate::Spec).
    pub fingerprint: String,
    /// When it was made, in seconds since 1970 UTC.
    pub built: u64,
    /// The kernel's release as `uname -r` prints it; empty if it is not known.
    #[serde(default)]
    pub kernel: String,
    /// The architecture of its guests.
    #[serde(default)]
    pub arch: Arch,
    /// The requested packages, without their dependencies.
    #[serde(default)]
    pub with: Vec<String>,
    /// The requested kernel, in the notation of [`Kernel`](crate::Kernel).
    #[serde(default)]
    pub asked_kernel: String,
    /// The requested modules, in addition to those of every image.
    #[serde(default)]
    pub modules: Vec<String>,
    /// The parts of the cache that it shares with other images.
    #[serde(default)]
    pub(crate) parts: Vec<String>,
    /// Problems that came up while it was made, one per line.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Its files by name.
    #[serde(default)]
    pub files: BTreeMap<String, FileInfo>,
    /// The packages that it was made from, by name.
    #[serde(default)]
    pub packages: BTreeMap<String, Package>,
}

impl Manifest {
    /// The file's name.
    pub const FILE: &'static str = "manifest.toml";

    pub(crate) fn new(name: &str, fingerprint: &str) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self {
            format: FORMAT,
            name: name.into(),
            fingerprint: fingerprint.into(),
            built: now,
            kernel: String::new(),
            arch: Arch::default(),
            with: Vec::new(),
            asked_kernel: String::new(),
            modules: Vec::new(),
            parts: Vec::new(),
            notes: Vec::new(),
            files: BTreeMap::new(),
            packages: BTreeMap::new(),
        }
    }

    /// Records a file in `folder`.
    pub(crate) fn add_file(&mut self, folder: &Path, name: &str) -> Result<()> {
        let path = folder.join(name);
        let size = fs::metadata(&path).on("look at", &path)?.len();
        let sha256 = sha256_file(&path)?;
        self.files.insert(name.into(), FileInfo { size, sha256 });
        Ok(())
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(Self::FILE);
        let text = toml::to_string(self)
            .map_err(|error| Error::Manifest { path: path.clone(), reason: error.to_string() })?;
        fs::write(&path, text).on("write", &path)
    }

    /// Reads a folder's manifest. Returns `None` if there is none, or if it has another format.
    pub(crate) fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(Self::FILE);
        let text = match tofu_input::read_text(&path, tofu_input::DESCRIPTION) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).on("read", &path),
        };
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let damaged = |error: toml::de::Error| Error::Manifest {
            path: path.clone(),
            reason: error.message().replace('\n', " "),
        };
        let format: Format = toml::from_str(&text).map_err(damaged)?;
        if format.format != FORMAT {
            return Ok(None);
        }
        toml::from_str(&text).map(Some).map_err(damaged)
    }

    /// Returns whether all files are in `folder` and have the right length.
    pub(crate) fn files_are_whole(&self, folder: &Path) -> bool {
        self.files.iter().all(|(name, info)| {
            fs::metadata(folder.join(name)).is_ok_and(|data| data.len() == info.size)
        })
    }

    /// Returns the specification from which the image was built, without its programs. Passed to
    /// `Cache::build` with the current programs, it updates an image that an older version made,
    /// without fetching anything.
    ///
    /// # Errors
    /// If the manifest was edited to something that is not allowed.
    pub fn spec(&self) -> Result<Spec> {
        let kernel = match self.asked_kernel.as_str() {
            "" => Kernel::Auto,
            text => text.parse()?,
        };
        let spec = Spec::new(&self.name)?.arch(self.arch).kernel(kernel);
        spec.with(&self.with)?.modules(&self.modules)
    }

    /// Returns the total size of all files, in bytes.
    pub fn size(&self) -> u64 {
        self.files.values().map(|file| file.size).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_round_trips() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("initrd"), b"abc").unwrap();
        let mut manifest = Manifest::new("default", "f00");
        manifest.kernel = "6.12".into();
        manifest.with = vec!["mpich".into()];
        manifest.packages.insert(
            "libstdc++6".into(),
            Package { version: "1:2~bpo".into(), sha256: "00".into() },
        );
        manifest.add_file(folder.path(), "initrd").unwrap();
        manifest.write(folder.path()).unwrap();
        let read = Manifest::read(folder.path()).unwrap().unwrap();
        assert_eq!(read, manifest);
        assert_eq!(read.size(), 3);
        assert_eq!(
            read.files["initrd"].sha256,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert!(read.files_are_whole(folder.path()));
        fs::write(folder.path().join("initrd"), b"ab").unwrap();
        assert!(!read.files_are_whole(folder.path()));
    }

    #[test]
    fn manifest_keeps_the_request() {
        let mut manifest = Manifest::new("bench", "");
        assert_eq!(manifest.spec().unwrap(), Spec::new("bench").unwrap());
        manifest.asked_kernel = "generic".into();
        manifest.with = vec!["mpich".into()];
        manifest.modules = vec!["rdma_rxe".into()];
        let spec = Spec::new("bench").unwrap().kernel(Kernel::Generic);
        let spec = spec.with(["mpich"]).unwrap().modules(["rdma_rxe"]).unwrap();
        assert_eq!(manifest.spec().unwrap(), spec);
        manifest.asked_kernel = "x".into();
        assert!(manifest.spec().is_err());
    }

    #[test]
    fn missing_old_and_damaged_ones_differ() {
        let folder = tempfile::tempdir().unwrap();
        let write = |text: &str| fs::write(folder.path().join(Manifest::FILE), text).unwrap();
        assert!(Manifest::read(folder.path()).unwrap().is_none());
        write("format = 99\nother = true\n");
        assert!(Manifest::read(folder.path()).unwrap().is_none());
        for damaged in ["format = 1\n", "form", "format = \"x\"\n", "\0"] {
            write(damaged);
            let error = Manifest::read(folder.path()).unwrap_err().to_string();
            assert!(error.contains("tofu image rm"), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
