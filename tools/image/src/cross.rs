//! Everything to compile, link and run programs for nodes with Arm's processors: libraries and
//! headers from Debian's packages for these, and compilers that run on this host.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::apt;
use crate::arch::Arch;
use crate::cache::Cache;
use crate::error::{IoContext, Result};
use crate::fetched::{LIBRARIES, LOADER};
use crate::progress::Progress;
use crate::run;

/// The libraries with which programs in C, C++ and Fortran are linked and run: about 12 MB to
/// fetch.
const SYSROOT: [&str; 11] = [
    "libatomic1",
    "libc6",
    "libc6-dev",
    "libgcc-14-dev",
    "libgcc-s1",
    "libgfortran5",
    "libgomp1",
    "libnuma1",
    "libstdc++-14-dev",
    "libstdc++6",
    "linux-libc-dev",
];
/// The folders with their libraries, first those that programs are run with.
const FOLDERS: [&str; 2] = ["usr/lib/aarch64-linux-gnu", "usr/lib/gcc/aarch64-linux-gnu/14"];

/// The part of the cache with compilers, their packages (68 MB), and their names.
const PART: &str = "gcc-arm64";
const PACKAGES: [&str; 2] = ["g++-aarch64-linux-gnu", "libc6-dev-arm64-cross"];
const COMPILER: &str = "aarch64-linux-gnu-gcc";
const COMPILERS: [&str; 2] = [COMPILER, "aarch64-linux-gnu-g++"];
/// A folder of the part with scripts: compilers, and the linker that these call.
const SCRIPTS: &str = "tofu";
/// Runs one of the compilers with its own loader and libraries, and also the programs that it runs
/// itself.
const RUN_COMPILER: &str = include_str!("../init/cross-compiler");
/// The linker, which the compiler's helper runs by itself.
const RUN_LINKER: &str = include_str!("../init/cross-linker");
/// The name by which the helper looks for it first.
const LINKER: &str = "real-ld";

/// The part of the cache with a rustc, and its packages: that of the host, and Rust's libraries for
/// nodes with Arm's processors. Those of Debian 13 itself are too old for this project.
const RUST_PART: &str = "rust-arm64";
const RUSTC: &str = "rustc";
const RUST_LIBRARIES: &str = "libstd-rust-dev";
/// Runs that rustc.
const RUN_RUSTC: &str = include_str!("../init/cross-rustc");

/// A folder with the C library and the compilers' own for some processors, laid out as a root file
/// system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sysroot {
    /// The folder.
    pub root: PathBuf,
}

impl Sysroot {
    /// The folders with libraries, relative to the root, first those that programs are run with.
    pub const FOLDERS: [&str; 2] = FOLDERS;
}

impl Cache {
    /// The sysroot for nodes with Arm's processors; fetched if it is missing.
    ///
    /// # Errors
    /// All that can go wrong with fetching.
    pub fn arm64_sysroot(&self, progress: &dyn Progress) -> Result<Sysroot> {
        let root = self.packages_for(Arch::Arm64, &SYSROOT, false, progress)?;
        Ok(Sysroot { root })
    }

    /// The same if it is there.
    pub fn present_arm64_sysroot(&self) -> Option<Sysroot> {
        Some(Sysroot { root: self.present_packages(Arch::Arm64, &SYSROOT)? })
    }

    /// A folder with GCC for nodes with Arm's processors: the programs `aarch64-linux-gnu-gcc` and
    /// `-g++`, which run whatever libraries the host has; fetched if they are missing.
    ///
    /// # Errors
    /// All that can go wrong with fetching.
    pub fn arm64_compilers(&self, progress: &dyn Progress) -> Result<PathBuf> {
        self.fetch_program(PART, &PACKAGES, apt::From::Release, false, progress, |root| {
            write_scripts(root)?;
            let mut command = run::command(&root.join(SCRIPTS).join(COMPILER));
            command.arg("-dumpfullversion");
            let said = run::must(command, "asking GCC for its version", root, progress)?;
            Ok(said.trim().to_owned())
        })?;
        Ok(self.root_of(PART).join(SCRIPTS))
    }

    /// A rustc with Rust's libraries for nodes with Arm's processors, for the target
    /// `aarch64-unknown-linux-gnu`, which runs whatever libraries the host has; fetched if it is
    /// not there.
    ///
    /// # Errors
    /// All that can go wrong with fetching.
    pub fn arm64_rustc(&self, progress: &dyn Progress) -> Result<PathBuf> {
        let from = apt::From::Backports;
        self.fetch_program(RUST_PART, &[RUSTC], from, false, progress, |root| {
            let apt = self.apt_for(Arch::Arm64, progress)?;
            let files = apt.fetch(&apt.alone(&[RUST_LIBRARIES], from)?, from)?;
            apt.unpack(&files, root)?;
            apt::discard(&files);
            write_script(root, RUSTC, RUN_RUSTC)?;
            let mut command = run::command(&root.join(SCRIPTS).join(RUSTC));
            command.arg("--version");
            let said = run::must(command, "asking rustc for its version", root, progress)?;
            Ok(said.trim().trim_start_matches("rustc ").to_owned())
        })?;
        Ok(self.root_of(RUST_PART).join(SCRIPTS).join(RUSTC))
    }

    /// The version of that rustc, if it is there.
    pub fn present_arm64_rustc(&self) -> Option<String> {
        Some(self.part(RUST_PART).ok()??.kernel)
    }

    /// The version of those compilers, if they are there.
    pub fn present_arm64_compilers(&self) -> Option<String> {
        Some(self.part(PART).ok()??.kernel)
    }
}

/// Whether the host has those compilers itself.
pub fn has_arm64_gcc() -> bool {
    COMPILERS.iter().all(|name| run::find(name).is_some())
}

/// Writes the scripts into `root`. They find it relative to their own place, because it is moved
/// when it is complete.
fn write_scripts(root: &Path) -> Result<()> {
    let compilers = COMPILERS.map(|name| (name, RUN_COMPILER));
    let mut scripts = compilers.into_iter().chain([(LINKER, RUN_LINKER)]);
    scripts.try_for_each(|(name, text)| write_script(root, name, text))
}

fn write_script(root: &Path, name: &str, text: &str) -> Result<()> {
    let folder = root.join(SCRIPTS);
    fs::create_dir_all(&folder).on("create", &folder)?;
    let path = folder.join(name);
    let text = text.replace("@libraries@", LIBRARIES).replace("@loader@", LOADER);
    fs::write(&path, text).on("write", &path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).on("write", &path)
}
