//! `tofu sdk`: what C programs are compiled with, and where our libraries are.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use tofu_image::{Cache, Spec};
use tofu_jobs::libraries;
use tofu_jobs::libraries::MPI_IMAGE;
use tofu_linux_nodes::kit::tools;
use tofu_supervisor::units::ImageName;
use tofu_ui::{ImageProgress, Style, exit, is_interrupted, signals};

/// Write headers, libraries and pkg-config files for C programs to a folder
///
/// The folder gets include, lib and lib/pkgconfig. Programs that are compiled with them run by
/// `tofu run`, which brings its own copy of the libraries.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SdkArgs {
    /// The folder; made if it is not there
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,

    /// Also what MPI programs are compiled with, from an image; the image mpich is made if need be
    #[arg(long)]
    pub(crate) mpi: bool,

    /// Image to take MPI from [default: mpich]
    #[arg(long, value_name = "NAME", requires = "mpi")]
    pub(crate) image: Option<ImageName>,
}

/// Debian's packages in it.
const MPI_PACKAGES: [&str; 2] = ["libmpich-dev", "mpich"];
/// Where these have headers and libraries.
const MPI_HEADERS: &str = "/usr/lib/x86_64-linux-gnu/mpich/include";
const MPI_LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libmpich.so.12";

/// Compiles MPI programs for nodes. The library's own libraries are on the nodes only.
const MPICC: &str = r#"#!/bin/sh
# Compiles and links MPI programs for the nodes of tofu.
here=$(cd "$(dirname "$0")/.." && pwd)
exec "${@compiler@:-@default@}" -DMPICH_SKIP_MPICXX -I"$here/include/mpich" -I"$here/include" "$@" \
    -L"$here/lib" -Wl,--allow-shlib-undefined -lmpich
"#;
/// Its names, the variables that choose another compiler, and the compilers.
const COMPILERS: [(&str, &str, &str); 2] = [("mpicc", "CC", "cc"), ("mpicxx", "CXX", "c++")];

const EXAMPLES: &str = "\
Examples:
  tofu sdk sdk
  gcc -Isdk/include ring.c -Lsdk/lib -ltofucom -ltofutop -o ring
  PKG_CONFIG_PATH=sdk/lib/pkgconfig pkg-config --cflags --libs utofu jtofu
  tofu sdk --mpi sdk
  sdk/bin/mpicc hello.c -o hello";

/// Headers, and templates for pkg-config.
const HEADERS: [(&str, &str, &str); 2] = [
    (
        "utofu",
        include_str!("../../../../guest-lib/utofu/c/include/utofu.h"),
        include_str!("../../../../guest-lib/utofu/c/utofu.pc.in"),
    ),
    (
        "jtofu",
        include_str!("../../../../guest-lib/jtofu/c/include/jtofu.h"),
        include_str!("../../../../guest-lib/jtofu/c/jtofu.pc.in"),
    ),
];

/// A header of a library that has one already.
const COLLECTIVE: &str = include_str!("../../../../guest-lib/utofu/c/include/tofu_collective.h");

/// Runs `tofu sdk` and returns the exit code.
pub(crate) fn run(args: &SdkArgs) -> anyhow::Result<u8> {
    let libraries = libraries::find()?;
    let dir = std::path::absolute(&args.dir)?;
    let cannot = || format!("cannot write to {}", dir.display());
    let prefix = dir.to_str().with_context(|| format!("{}: not text", dir.display()))?;
    if prefix.contains(char::is_whitespace) {
        bail!("{prefix}: pkg-config files cannot name folders with blanks; choose another folder");
    }
    let (include, lib) = (dir.join("include"), dir.join("lib"));
    let pkgconfig = lib.join("pkgconfig");
    for folder in [&include, &pkgconfig] {
        fs::create_dir_all(folder).with_context(cannot)?;
    }
    for (name, header, template) in HEADERS {
        fs::write(include.join(format!("{name}.h")), header).with_context(cannot)?;
        let text =
            template.replace("@prefix@", prefix).replace("@version@", env!("CARGO_PKG_VERSION"));
        fs::write(pkgconfig.join(format!("{name}.pc")), text).with_context(cannot)?;
    }
    fs::write(include.join("tofu_collective.h"), COLLECTIVE).with_context(cannot)?;
    for library in &libraries {
        // A program may have the old one open: it keeps that.
        let target = lib.join(libraries::name(library)?);
        let new = target.with_extension("new");
        fs::copy(library, &new).and_then(|_| fs::rename(&new, &target)).with_context(cannot)?;
    }
    if args.mpi && !mpi(args, &dir).with_context(cannot)? {
        return Ok(exit::INTERRUPTED);
    }
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "gcc -I{0}/include program.c -L{0}/lib -ltofucom -ltofutop -o program",
        args.dir.display()
    )?;
    if args.mpi {
        writeln!(out, "{}/bin/mpicc program.c -o program", args.dir.display())?;
    }
    Ok(0)
}

/// Writes what MPI programs are compiled with; false if the user has stopped it.
fn mpi(args: &SdkArgs, dir: &Path) -> anyhow::Result<bool> {
    let (cancelled, _signals) = signals::flag()?;
    let progress = ImageProgress::new(cancelled, Style::detect(false).progress);
    match copy_mpi(args, dir, &progress) {
        Ok(()) => Ok(true),
        Err(error) if is_interrupted(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn copy_mpi(args: &SdkArgs, dir: &Path, progress: &ImageProgress) -> anyhow::Result<()> {
    let cache = Cache::from_env()?;
    let name = args.image.as_ref().map_or(MPI_IMAGE, |image| image.as_str());
    let image = match cache.find(name)? {
        Some(image) => image,
        None if name == MPI_IMAGE => {
            let packages = MPI_PACKAGES.map(str::to_owned);
            let spec = Spec::new(name)?.programs(tools()?).with(packages)?;
            cache.build(&spec, progress)?
        }
        None => bail!("image {name}: there is none; `tofu image ls` lists those there are"),
    };
    // In a place of its own first: what is there is replaced as a whole.
    let place = dir.join(".mpi");
    remove(&place)?;
    fs::create_dir_all(&place)?;
    let out = |from: &str| {
        cache.copy_out(&image, from, &place, progress).with_context(|| {
            format!(
                "image {name} has no MPI to compile with; make one with `tofu image build --name \
                 {name} --with {}`",
                MPI_PACKAGES.join(",")
            )
        })
    };
    out(MPI_HEADERS)?;
    out(MPI_LIBRARY)?;
    // The name that programs ask for is a link to one with the version in it.
    let link = place.join(Path::new(MPI_LIBRARY).file_name().unwrap_or_default());
    let target = fs::read_link(&link)?;
    let library = Path::new(MPI_LIBRARY).with_file_name(&target);
    out(library.to_str().context("the library has no proper name")?)?;
    let headers = dir.join("include/mpich");
    remove(&headers)?;
    fs::rename(place.join("include"), &headers)?;
    fs::rename(place.join(&target), dir.join("lib/libmpich.so"))?;
    remove(&place)?;
    let bin = dir.join("bin");
    fs::create_dir_all(&bin)?;
    for (name, variable, default) in COMPILERS {
        let script = MPICC.replace("@compiler@", variable).replace("@default@", default);
        let path = bin.join(name);
        fs::write(&path, script)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    progress.clear();
    Ok(())
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
