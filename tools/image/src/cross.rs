//! Everything to compile, link and run programs for arm64 nodes: libraries and headers from
//! Debian's packages for arm64, and compilers that run on this host.

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

/// The libraries with which programs in C, C++ and Fortran are linked and run, about 12 MB to
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
/// The folders with the libraries. Those that programs are run with come first.
const FOLDERS: [&str; 2] = ["usr/lib/aarch64-linux-gnu", "usr/lib/gcc/aarch64-linux-gnu/14"];

/// The part of the cache with compilers, their packages, and their names.
const PART: &str = "gcc-arm64";
const PACKAGES: [&str; 3] =
    ["g++-aarch64-linux-gnu", "gfortran-aarch64-linux-gnu", "libc6-dev-arm64-cross"];
const COMPILER: &str = "aarch64-linux-gnu-gcc";
const COMPILERS: [&str; 3] = [COMPILER, "aarch64-linux-gnu-g++", "aarch64-linux-gnu-gfortran"];
/// A folder in the part with scripts: compilers, and the linker that they call.
const SCRIPTS: &str = "tofu";
/// The script that runs a compiler, and the programs that the compiler starts itself, with their
/// own loader and libraries.
const RUN_COMPILER: &str = include_str!("../init/cross-compiler");
/// The script that runs the linker, which the compiler's helper starts by itself.
const RUN_LINKER: &str = include_str!("../init/cross-linker");
/// The name under which the helper looks for it first.
const LINKER: &str = "real-ld";

/// The part of the cache with a rustc, and its packages: the host's rustc, and Rust's libraries for
/// arm64. Debian 13's own version is too old for this project.
const RUST_PART: &str = "rust-arm64";
const RUSTC: &str = "rustc";
const RUST_LIBRARIES: &str = "libstd-rust-dev";
/// The script that runs this rustc.
const RUN_RUSTC: &str = include_str!("../init/cross-rustc");

/// A folder with the C library and the compilers' own libraries for one architecture, laid out as a
/// root file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sysroot {
    /// The folder.
    pub root: PathBuf,
}

impl Sysroot {
    /// The folders with libraries, relative to the root. Those that programs are run with come
    /// first.
    pub const FOLDERS: [&str; 2] = FOLDERS;
}

impl Cache {
    /// Returns the sysroot for arm64, and fetches it if it is missing.
    ///
    /// # Errors
    /// Everything that can go wrong with fetching.
    pub fn arm64_sysroot(&self, progress: &dyn Progress) -> Result<Sysroot> {
        let root = self.packages_for(Arch::Arm64, &SYSROOT, false, progress)?;
        Ok(Sysroot { root })
    }

    /// Returns the sysroot for arm64 if it is in the cache.
    pub fn present_arm64_sysroot(&self) -> Option<Sysroot> {
        Some(Sysroot { root: self.present_packages(Arch::Arm64, &SYSROOT)? })
    }

    /// Returns a folder with GCC for arm64, and fetches it if it is missing. It has the programs
    /// `aarch64-linux-gnu-gcc`, `-g++` and `-gfortran`, which run independently of the host's
    /// libraries.
    ///
    /// # Errors
    /// Everything that can go wrong with fetching.
    pub fn arm64_compilers(&self, progress: &dyn Progress) -> Result<PathBuf> {
        let scripts = self.root_of(PART).join(SCRIPTS);
        let has = |name: &&str| scripts.join(name).exists();
        // One that an earlier version made has fewer compilers, which are better than none.
        let refresh = !COMPILERS.iter().all(has);
        let from = apt::From::Release;
        let made = self.fetch_program(PART, &PACKAGES, from, refresh, progress, |root| {
            write_scripts(root)?;
            let mut command = run::command(&root.join(SCRIPTS).join(COMPILER));
            command.arg("-dumpfullversion");
            let said = run::must(command, "asking GCC for its version", root, progress)?;
            Ok(said.trim().to_owned())
        });
        made.map(|_| ()).or_else(|error| if has(&COMPILER) { Ok(()) } else { Err(error) })?;
        Ok(scripts)
    }

    /// Returns a rustc with Rust's libraries for the target `aarch64-unknown-linux-gnu`, and
    /// fetches it if it is missing. It runs independently of the host's libraries.
    ///
    /// # Errors
    /// Everything that can go wrong with fetching.
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

    /// Returns the version of that rustc, if it is in the cache.
    pub fn present_arm64_rustc(&self) -> Option<String> {
        Some(self.part(RUST_PART).ok()??.kernel)
    }

    /// Returns the version of those compilers, if they are in the cache.
    pub fn present_arm64_compilers(&self) -> Option<String> {
        Some(self.part(PART).ok()??.kernel)
    }
}

/// Returns whether the host has compilers of C and C++ for arm64 itself.
pub fn has_arm64_gcc() -> bool {
    COMPILERS[..2].iter().all(|name| run::find(name).is_some())
}

/// Writes the scripts into `root`. They find it relative to their own location, because it is moved
/// once it is complete.
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
