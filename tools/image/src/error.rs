//! Errors, each as one line for the user.

use std::io;
use std::path::{Path, PathBuf};

/// The reason why an image, a kernel or QEMU is not available.
///
/// The text of each is one line: what failed, with which value, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Neither `TOFU_CACHE`, `XDG_CACHE_HOME` nor `HOME` says where the cache is.
    #[error("no cache folder: none of TOFU_CACHE, XDG_CACHE_HOME and HOME is set")]
    NoCache,
    /// A file operation failed.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The operation, as a verb.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// The reason why it failed.
        source: io::Error,
    },
    /// The file system of the cache is full.
    #[error(
        "disk full while writing {}: make room there, or set TOFU_CACHE to a folder with more",
        path.display()
    )]
    DiskFull {
        /// The file being written.
        path: PathBuf,
    },
    /// A program of the host is missing.
    #[error("{tool} is not installed, but needed to {purpose}: {remedy}")]
    NoTool {
        /// The program.
        tool: String,
        /// Its purpose.
        purpose: &'static str,
        /// The action.
        remedy: &'static str,
    },
    /// No Debian mirror is known.
    #[error(
        "no Debian mirror in the host's apt configuration: name one with --mirror URL \
         (or in TOFU_MIRROR)"
    )]
    NoMirror,
    /// The host has no keys to check Debian's signatures with.
    #[error(
        "no keys of the Debian archive on this host to check packages with: install the package \
         debian-archive-keyring, or name a key ring in TOFU_KEYRING"
    )]
    NoKeyring,
    /// The mirror cannot be reached, or lacks something.
    #[error(
        "cannot fetch from the Debian mirror {mirror}: {reason}; check network and proxy, or name \
         another mirror with --mirror URL"
    )]
    Mirror {
        /// Its address.
        mirror: String,
        /// apt's own words.
        reason: String,
    },
    /// The mirror's lists are not signed by a key that the host has.
    #[error(
        "{mirror} is no Debian mirror, or the host's keys of the Debian archive are too old to \
         check its signatures: update the package debian-archive-keyring, or name another mirror \
         with --mirror URL"
    )]
    Signature {
        /// Its address.
        mirror: String,
    },
    /// Debian does not have a package.
    #[error("Debian {release} has no package {name:?}")]
    NoPackage {
        /// The package.
        name: String,
        /// The requested release.
        release: &'static str,
    },
    /// A child process failed.
    #[error("{program} failed while {purpose}: {reason}")]
    Child {
        /// The program.
        program: String,
        /// Its purpose.
        purpose: &'static str,
        /// Its last output.
        reason: String,
    },
    /// A kernel cannot be used.
    #[error("{} is no kernel to boot: {reason}", path.display())]
    Kernel {
        /// The file.
        path: PathBuf,
        /// The problem, in words.
        reason: String,
    },
    /// A kernel package lacks a module.
    #[error("kernel {release} has no module {name:?}; with --kernel generic there are more")]
    NoModule {
        /// The module.
        name: String,
        /// The kernel.
        release: String,
    },
    /// Debian's packages of a kernel do not match each other, or the driver.
    #[error("cannot build tofu.ko for Debian's kernel {release}: {reason}")]
    Stock {
        /// The kernel.
        release: String,
        /// The mismatch, and what to do.
        reason: String,
    },
    /// A module file cannot be read.
    #[error("kernel module {}: {reason}", path.display())]
    Module {
        /// The file.
        path: PathBuf,
        /// The problem, in words.
        reason: String,
    },
    /// A name or value is not allowed.
    #[error("{what} {value:?}: {allowed}")]
    Invalid {
        /// The purpose of the value.
        what: &'static str,
        /// The value.
        value: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// A manifest cannot be understood.
    #[error(
        "{} is damaged ({reason}): remove the image with `tofu image rm` and build it again",
        path.display()
    )]
    Manifest {
        /// The file.
        path: PathBuf,
        /// The problem, in words.
        reason: String,
    },
    /// There is no image of that name.
    #[error("no image named {0:?}: `tofu image ls` shows what there is")]
    NoImage(String),
    /// A root file system lacks a file.
    #[error("{path} is not in the root file system {}", image.display())]
    NotInImage {
        /// The root file system.
        image: PathBuf,
        /// The item that was looked for.
        path: String,
    },
    /// The QEMU that the user named cannot be used.
    #[error("{} cannot be used: {reason}", program.display())]
    Qemu {
        /// The program.
        program: PathBuf,
        /// The problem, in words.
        reason: String,
    },
    /// The caller requested a stop.
    #[error("interrupted")]
    Interrupted,
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Names the file in an I/O error.
pub(crate) trait IoContext<T> {
    /// `what` is a verb, as in "cannot write FILE".
    fn on(self, what: &'static str, path: &Path) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn on(self, what: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Error::DiskFull { path: path.into() }
            }
            _ => Error::Io { what, path: path.into(), source },
        })
    }
}
