//! `tofu sdk`: what C programs are compiled with, and where our libraries are.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;

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
}

const EXAMPLES: &str = "\
Examples:
  tofu sdk sdk
  gcc -Isdk/include ring.c -Lsdk/lib -ltofucom -o ring
  PKG_CONFIG_PATH=sdk/lib/pkgconfig pkg-config --cflags --libs utofu jtofu";

/// Our libraries for programs.
const LIBRARIES: [&str; 2] = ["libtofucom.so", "libtofutop.so"];
/// Names a folder with them.
const FOLDER: &str = "TOFU_LIBRARIES";

/// Headers, and templates for pkg-config.
const HEADERS: [(&str, &str, &str); 2] = [
    (
        "utofu",
        include_str!("../../../guest-lib/utofu/header/utofu.h"),
        include_str!("../../../guest-lib/utofu/header/utofu.pc.in"),
    ),
    (
        "jtofu",
        include_str!("../../../guest-lib/jtofu/capi/include/jtofu.h"),
        include_str!("../../../guest-lib/jtofu/capi/jtofu.pc.in"),
    ),
];

/// The last part of a path.
pub(crate) fn name(path: &Path) -> anyhow::Result<&str> {
    let name = path.file_name().and_then(|name| name.to_str());
    name.with_context(|| format!("{}: not a file's name that nodes can have", path.display()))
}

/// Our libraries: beside this program, as cargo leaves them, or in `../lib` of it, as after an
/// installation, unless the environment says otherwise.
///
/// # Errors
///
/// If they are not there.
pub(crate) fn libraries() -> anyhow::Result<Vec<PathBuf>> {
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    let folders = match std::env::var_os(FOLDER).filter(|value| !value.is_empty()) {
        Some(folder) => vec![PathBuf::from(folder)],
        None => {
            let beside = own.parent().unwrap_or(Path::new("/"));
            vec![beside.to_owned(), beside.join("../lib")]
        }
    };
    let all = |folder: &PathBuf| LIBRARIES.map(|name| folder.join(name));
    let found = folders.iter().map(all).find(|paths| paths.iter().all(|path| path.is_file()));
    match (found, folders.first()) {
        (Some(found), _) => Ok(found.into()),
        (None, folder) => bail!(
            "{} are not in {}: `cargo build --release -p tofu-utofu-c -p tofu-jtofu-c` makes them, \
             {FOLDER} names another folder",
            LIBRARIES.join(" and "),
            folder.map_or(Path::new("."), PathBuf::as_path).display()
        ),
    }
}

/// Runs `tofu sdk` and returns the exit code.
pub(crate) fn run(args: &SdkArgs) -> anyhow::Result<u8> {
    let libraries = libraries()?;
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
    for library in &libraries {
        // A program may have the old one open: it keeps that.
        let target = lib.join(name(library)?);
        let new = target.with_extension("new");
        fs::copy(library, &new).and_then(|_| fs::rename(&new, &target)).with_context(cannot)?;
    }
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "gcc -I{0}/include program.c -L{0}/lib -ltofucom -o program",
        args.dir.display()
    )?;
    Ok(0)
}
