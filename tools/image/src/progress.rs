//! Lets a caller follow a build, and cancel it.

use std::fmt;

/// The phase of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Waiting for another process that builds.
    Waiting,
    /// Fetching the lists of packages.
    Lists,
    /// Fetching packages; progress is in bytes.
    Download,
    /// Unpacking packages; progress is in packages.
    Unpack,
    /// Extracting the kernel's files.
    Kernel,
    /// Compiling a kernel with our driver; progress is roughly in files.
    Compile,
    /// Compiling our programs for guests of another architecture than the host's.
    Programs,
    /// Compiling the libraries that users' programs for such guests are linked with.
    Libraries,
    /// Compiling a user's module.
    Module,
    /// Making the initial RAM file system.
    Initramfs,
    /// Running the packages' own set-up scripts; progress is in packages.
    Configure,
    /// Writing the root file system's image.
    Root,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Waiting => "waiting for another build",
            Phase::Lists => "package lists",
            Phase::Download => "download",
            Phase::Unpack => "unpack",
            Phase::Kernel => "kernel",
            Phase::Compile => "compile the kernel and its driver",
            Phase::Programs => "compile the programs for arm64",
            Phase::Libraries => "compile the libraries for arm64",
            Phase::Module => "compile the module",
            Phase::Initramfs => "initramfs",
            Phase::Configure => "configure packages",
            Phase::Root => "root file system",
        })
    }
}

/// Receives a build's progress. Called often, from the thread that builds; must not block.
pub trait Progress {
    /// Reports that `done` of `total` of a phase is complete, in bytes for downloads and in steps
    /// otherwise. `total` is 0 if it is not known.
    fn update(&self, phase: Phase, done: u64, total: u64);

    /// Reports something that the user may want to know, in one line. The build continues.
    fn note(&self, text: &str) {
        log::info!("{text}");
    }

    /// Returns whether to stop. Called about ten times a second. If so, child processes are ended,
    /// and the build returns [`Error::Interrupted`](crate::Error::Interrupted). Programs implement
    /// this for Ctrl-C.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Progress that is not shown.
#[derive(Debug, Default, Clone, Copy)]
pub struct Silent;

impl Progress for Silent {
    fn update(&self, _: Phase, _: u64, _: u64) {}
}
