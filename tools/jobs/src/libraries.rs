//! The libraries that a job's programs are linked with.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The name of the provider, under which libfabric loads it.
pub const PROVIDER: &str = "libtofu-fi.so";

use anyhow::{Context, bail};
use tofu_image::{Arch, Progress, Sysroot};
use tofu_linux_nodes::boot_files;

/// Returns the default image for MPI programs of an architecture.
pub fn mpi_image(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "mpich",
        Arch::Arm64 => "mpich-arm64",
    }
}

/// Our libraries that programs are linked with.
const LIBRARIES: [&str; 4] = ["libtofucom.so", "libtofutop.so", "libtnw.so", "libFJhwb.so"];
/// The devices of a host, which our libraries load there: no part of what nodes get.
const LOCAL: &str = "libtofulocal.so";
/// The variable that names a folder with them.
const FOLDER: &str = "TOFU_LIBRARIES";

/// A program's libraries on this host.
#[derive(Debug)]
pub(crate) struct Closure {
    /// File name of the loader, which is one of the files.
    pub(crate) loader: String,
    /// The files, by the names under which they are requested.
    pub(crate) files: BTreeMap<String, PathBuf>,
}

/// Returns the last part of a path.
pub fn name(path: &Path) -> anyhow::Result<&str> {
    let name = path.file_name().and_then(|name| name.to_str());
    name.with_context(|| format!("{}: not a file's name that nodes can have", path.display()))
}

/// Finds our libraries that programs are linked with: beside this program, as cargo leaves them, or
/// in `../lib` relative to it, as after an installation. The environment can name another folder.
///
/// # Errors
///
/// If they do not exist.
pub fn find() -> anyhow::Result<Vec<PathBuf>> {
    find_all(&LIBRARIES)
}

/// Finds, in the same places, the library that the others load on this host.
///
/// # Errors
///
/// If it does not exist.
pub fn find_local() -> anyhow::Result<Vec<PathBuf>> {
    find_all(&[LOCAL])
}

/// Finds the provider of libfabric, under its name or that of cargo.
///
/// # Errors
///
/// If it does not exist.
pub fn find_provider() -> anyhow::Result<PathBuf> {
    /// Cargo cannot make a library of the name.
    const BUILT: &str = "libtofu_fi.so";
    let found = find_all(&[PROVIDER]).or_else(|error| find_all(&[BUILT]).map_err(|_| error));
    Ok(found?.remove(0))
}

/// Finds the library that puts collectives of MPI programs on barrier gates.
///
/// # Errors
///
/// If it does not exist.
pub fn find_mpi_gates() -> anyhow::Result<PathBuf> {
    Ok(find_all(&["libtofu_mpi_gates.so"])?.remove(0))
}

fn find_all(names: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    let folders = match std::env::var_os(FOLDER).filter(|value| !value.is_empty()) {
        Some(folder) => vec![PathBuf::from(folder)],
        None => {
            let beside = own.parent().unwrap_or(Path::new("/"));
            vec![beside.to_owned(), beside.join("../lib")]
        }
    };
    let all = |folder: &PathBuf| names.iter().map(|name| folder.join(name)).collect::<Vec<_>>();
    let found = folders.iter().map(all).find(|paths| paths.iter().all(|path| path.is_file()));
    found.with_context(|| {
        format!(
            "{} not in {}: `cargo build --release -p tofu-utofu-c -p tofu-jtofu-c -p tofu-tnw-c \
             -p tofu-hwb -p tofu-local -p tofu-fi -p tofu-mpi-gates` makes all libraries, {FOLDER} \
             names another folder",
            match names {
                [name] => format!("{name} is"),
                names => format!("{} are", names.join(", ")),
            },
            folders.first().map_or(Path::new("."), PathBuf::as_path).display()
        )
    })
}

/// Finds our libraries for arm64 nodes, and the other libraries of their programs. They are built
/// and fetched if necessary.
///
/// # Errors
///
/// If there are none, or they are for another architecture.
pub fn find_arm64(progress: &dyn Progress) -> anyhow::Result<(Vec<PathBuf>, Sysroot)> {
    let (folder, sysroot) = boot_files::arm64_libraries(progress)?;
    let found = LIBRARIES.map(|name| folder.join(name));
    for library in &found {
        let shown = || format!("library for arm64 {}", library.display());
        let bytes = tofu_input::read(library, tofu_input::PROGRAM)
            .with_context(|| format!("{}: cannot read it", shown()))?;
        if Arch::of_elf(&bytes) != Some(Arch::Arm64) {
            bail!("{}: it is for another processor", shown());
        }
    }
    Ok((found.into(), sysroot))
}
