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

/// Write headers, libraries, pkg-config files and examples for C programs to a folder
///
/// The folder gets include, lib, lib/pkgconfig, and examples with a Makefile, those for TNW in a
/// folder of their own. Programs that are compiled with them run by `tofu run`, which brings its
/// own copy of the libraries.
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
const MPI_LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// A library for programs, and what it is called where programs are run.
struct MpiLibrary {
    name: &'static str,
    file: &'static str,
}

/// The second has the bindings of C++.
const MPI_FILES: [MpiLibrary; 2] = [
    MpiLibrary { name: "libmpich.so", file: "libmpich.so.12" },
    MpiLibrary { name: "libmpichcxx.so", file: "libmpichcxx.so.12" },
];

/// Compiles MPI programs for nodes.
const MPICC: &str = include_str!("sdk/mpicc.sh");

/// What a script does that compiles MPI programs.
struct Compiler {
    name: &'static str,
    /// Names another compiler. Not CC and CXX: these name this very script where MPI programs are
    /// built by make.
    variable: &'static str,
    default: &'static str,
    libraries: &'static str,
}

const COMPILERS: [Compiler; 3] = [
    Compiler { name: "mpicc", variable: "MPICH_CC", default: "cc", libraries: "-lmpich" },
    Compiler {
        name: "mpicxx",
        variable: "MPICH_CXX",
        default: "c++",
        libraries: "-lmpichcxx -lmpich",
    },
    Compiler {
        name: "mpic++",
        variable: "MPICH_CXX",
        default: "c++",
        libraries: "-lmpichcxx -lmpich",
    },
];

const EXAMPLES: &str = "\
Examples:
  tofu sdk sdk
  make -C sdk/examples ring && tofu run --local -n 4 sdk/examples/ring
  gcc -Isdk/include ring.c -Lsdk/lib -ltofucom -ltofutop -o ring
  PKG_CONFIG_PATH=sdk/lib/pkgconfig pkg-config --cflags --libs utofu jtofu
  make -C sdk/examples/tnw
  tofu run --local --generation tnw -n 4 sdk/examples/tnw/shift
  tofu sdk --mpi sdk
  sdk/bin/mpicc hello.c -o hello";

/// Headers, and templates for pkg-config.
const HEADERS: [(&str, &str, &str); 3] = [
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
    (
        "tnw",
        include_str!("../../../../guest-lib/tnw/c/include/tnw.h"),
        include_str!("../../../../guest-lib/tnw/c/tnw.pc.in"),
    ),
];

/// Programs that start from here, with what they include and how they are compiled.
const PROGRAMS: [(&str, &str); 10] = [
    ("Makefile", include_str!("sdk/Makefile")),
    ("check.h", include_str!("../../../../guest-lib/utofu/examples/run/check.h")),
    ("job.h", include_str!("../../../../guest-lib/utofu/examples/run/job.h")),
    ("ring.c", include_str!("../../../../guest-lib/utofu/examples/run/ring.c")),
    ("mpi_put.c", include_str!("../../../../guest-lib/utofu/examples/run/mpi_put.c")),
    ("ring.py", include_str!("../../../../guest-lib/utofu/examples/python/ring.py")),
    ("tnw/Makefile", include_str!("sdk/tnw.mk")),
    ("tnw/check.h", include_str!("../../../../guest-lib/tnw/examples/c/check.h")),
    ("tnw/shift.c", include_str!("../../../../guest-lib/tnw/examples/c/shift.c")),
    ("tnw/stream.c", include_str!("../../../../guest-lib/tnw/examples/c/stream.c")),
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
    let examples = dir.join("examples");
    fs::create_dir_all(examples.join("tnw")).with_context(cannot)?;
    for (name, text) in PROGRAMS {
        fs::write(examples.join(name), text).with_context(cannot)?;
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
    let headers = dir.join("include/mpich");
    remove(&headers)?;
    fs::rename(place.join("include"), &headers)?;
    for library in &MPI_FILES {
        // The name that programs ask for is a link to one with the version in it.
        let path = Path::new(MPI_LIBRARIES).join(library.file);
        out(path.to_str().context("the library has no proper name")?)?;
        let target = fs::read_link(place.join(library.file))?;
        let path = Path::new(MPI_LIBRARIES).join(&target);
        out(path.to_str().context("the library has no proper name")?)?;
        fs::rename(place.join(&target), dir.join("lib").join(library.name))?;
    }
    remove(&place)?;
    write_compilers(dir)?;
    progress.clear();
    Ok(())
}

/// Writes the scripts that compile MPI programs.
fn write_compilers(dir: &Path) -> io::Result<()> {
    let bin = dir.join("bin");
    fs::create_dir_all(&bin)?;
    for compiler in &COMPILERS {
        let script = MPICC
            .replace("@name@", compiler.name)
            .replace("@variable@", compiler.variable)
            .replace("@default@", compiler.default)
            .replace("@libraries@", compiler.libraries);
        let path = bin.join(compiler.name);
        fs::write(&path, script)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// What scripts say, where CC and CXX name them, as where make has been told so.
    #[test]
    fn compilers_tell_what_they_would_do() {
        let folder = tempfile::tempdir().unwrap();
        let here = fs::canonicalize(folder.path()).unwrap();
        write_compilers(&here).unwrap();
        let bin = here.join("bin");
        let say = |name: &str, args: &[&str]| {
            let mut command = Command::new(bin.join(name));
            command.args(args).env("CC", bin.join("mpicc")).env("CXX", bin.join("mpicxx"));
            let output = command.output().unwrap();
            assert!(output.status.success(), "{name} {args:?}: {output:?}");
            String::from_utf8(output.stdout).unwrap().replace(here.to_str().unwrap(), "SDK")
        };
        let includes = "-ISDK/include/mpich -ISDK/include";
        let link = "-LSDK/lib -Wl,--allow-shlib-undefined -lmpich\n";
        let link_cxx = "-LSDK/lib -Wl,--allow-shlib-undefined -lmpichcxx -lmpich\n";
        for asked in ["-show", "-showme"] {
            assert_eq!(say("mpicc", &[asked]), format!("cc {includes} {link}"));
            let with = say("mpicxx", &["a.cc", asked, "-o", "a"]);
            assert_eq!(with, format!("c++ {includes} a.cc -o a {link_cxx}"));
        }
        assert_eq!(say("mpicc", &["-show", "-c", "a.c"]), format!("cc {includes} -c a.c\n"));
        assert_eq!(say("mpicc", &["-cc=x -y", "-show"]), format!("x -y {includes} {link}"));
        for asked in ["-showme:compile", "-compile-info", "-compile_info"] {
            assert_eq!(say("mpicxx", &[asked]), format!("{includes}\n"));
        }
        for asked in ["-showme:link", "-link-info", "-link_info"] {
            assert_eq!(say("mpic++", &[asked]), link_cxx);
            assert_eq!(say("mpicc", &[asked]), link);
        }
        assert_eq!(say("mpicc", &["-showme:incdirs"]), "SDK/include/mpich SDK/include\n");
        assert_eq!(say("mpicc", &["-showme:libdirs"]), "SDK/lib\n");
        assert_eq!(say("mpicxx", &["-showme:libs"]), "mpichcxx mpich\n");
        assert_eq!(say("mpicxx", &["-showme:command"]), "c++\n");
        let mut unknown = Command::new(bin.join("mpicc"));
        assert_eq!(unknown.arg("-showme:version").output().unwrap().status.code(), Some(1));
        let mut other = Command::new(bin.join("mpicc"));
        let output = other.args(["a b", "-c"]).env("MPICH_CC", "printf [%s]").output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.ends_with("[a b][-c]"), "{said}");
    }
}
