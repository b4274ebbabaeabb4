//! `tofu sdk`: the files for compiling C programs, and the place of our libraries.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use tofu_image::{Arch, Cache, Image, Spec, has_arm64_gcc};
use tofu_jobs::libraries;
use tofu_jobs::libraries::mpi_image;
use tofu_linux_nodes::boot_files::tools_for;
use tofu_linux_nodes::progress::{ImageProgress, is_interrupted};
use tofu_spec::units::ImageName;
use tofu_ui::{Style, exit, signals};

/// Write headers, libraries, pkg-config files and examples for C programs to a folder
///
/// The folder gets include, lib, lib/pkgconfig, and examples with a Makefile; the examples for TNW
/// are in their own folder. Run the compiled programs with `tofu run`, which brings its own
/// copy of the libraries.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SdkArgs {
    /// The folder, which is created if it does not exist
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,

    /// Architecture that programs are compiled for: x86-64 or arm64 (default: the host's)
    ///
    /// The folder also gets bin/fccpx, bin/FCCpx, bin/frtpx and others, which compile with GCC and
    /// accept options of Fujitsu's compilers. If the host has no aarch64-linux-gnu-gcc, it is
    /// downloaded into the cache for arm64.
    #[arg(long, value_name = "ARCH", default_value_t = Arch::host(), hide_default_value = true)]
    pub(crate) arch: Arch,

    /// Do not download a compiler for arm64
    #[arg(long)]
    pub(crate) no_compiler: bool,

    /// Also write compiler wrappers, headers and libraries for MPI, from an image; the image mpich
    /// or mpich-arm64 is made if it does not exist
    #[arg(long)]
    pub(crate) mpi: bool,

    /// Image to take MPI from [default: mpich, or mpich-arm64]
    #[arg(long, value_name = "NAME", requires = "mpi")]
    pub(crate) image: Option<ImageName>,
}

/// Debian's packages in it.
const MPI_PACKAGES: [&str; 2] = ["libmpich-dev", "mpich"];
/// The place of MPI's headers, below the folder with libraries.
const MPI_HEADERS: &str = "mpich/include";

/// A library for programs, and its name where programs are run.
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

/// The properties of a script that compiles MPI programs.
struct Compiler {
    /// Its name.
    names: &'static [&'static str],
    /// Its further names, which are those of Fujitsu's compilers.
    fujitsu: &'static [&'static str],
    /// The variable that names another compiler. It is not CC or CXX, which name this script itself
    /// where MPI programs are built by make.
    variable: &'static str,
    default: &'static str,
    /// The compiler with options of Fujitsu's, beside the script.
    cross: &'static str,
    libraries: &'static str,
}

const COMPILERS: [Compiler; 2] = [
    Compiler {
        names: &["mpicc"],
        fujitsu: &["mpifccpx", "mpifcc", "mpiclang"],
        variable: "MPICH_CC",
        default: "cc",
        cross: "$here/bin/fccpx",
        libraries: "-lmpich",
    },
    Compiler {
        names: &["mpicxx", "mpic++"],
        fujitsu: &["mpiFCCpx", "mpiFCC", "mpiclang++"],
        variable: "MPICH_CXX",
        default: "c++",
        cross: "$here/bin/FCCpx",
        libraries: "-lmpichcxx -lmpich",
    },
];

/// Debian's folder of libraries for these processors.
const fn debian_libraries(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "/usr/lib/x86_64-linux-gnu",
        Arch::Arm64 => "/usr/lib/aarch64-linux-gnu",
    }
}

const EXAMPLES: &str = "\
Examples:
  tofu sdk sdk
  make -C sdk/examples ring && tofu run --local -n 4 sdk/examples/ring
  gcc -Isdk/include ring.c -Lsdk/lib -ltofucom -ltofutop -o ring
  PKG_CONFIG_PATH=sdk/lib/pkgconfig pkg-config --cflags --libs utofu jtofu
  make -C sdk/examples/tnw
  tofu run --local --generation tnw -n 4 sdk/examples/tnw/shift
  tofu sdk --arch arm64 arm
  make -C arm/examples && tofu run -n 2 arm/examples/sve
  arm/bin/fccpx -Nclang -Kfast,openmp program.c -ltofucom -o program
  tofu sdk --mpi sdk
  sdk/bin/mpicc hello.c -o hello
  tofu sdk --arch arm64 --mpi arm
  arm/bin/mpifccpx -Kfast hello.c -o hello && tofu run --mpi -n 2 ./hello";

/// Headers, and templates for pkg-config.
const HEADERS: [(&str, &str, &str); 4] = [
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
    (
        "fujitsu_hwb",
        include_str!("../../../../guest-lib/hwb/include/fujitsu_hwb.h"),
        include_str!("../../../../guest-lib/hwb/fujitsu_hwb.pc.in"),
    ),
];

/// Programs to start from, with the files that they include and how they are compiled.
const PROGRAMS: [(&str, &str); 13] = [
    ("Makefile", include_str!("sdk/Makefile")),
    ("check.h", include_str!("../../../../guest-lib/utofu/examples/run/check.h")),
    ("job.h", include_str!("../../../../guest-lib/utofu/examples/run/job.h")),
    ("peers.h", include_str!("../../../../guest-lib/utofu/examples/run/peers.h")),
    ("ring.c", include_str!("../../../../guest-lib/utofu/examples/run/ring.c")),
    ("times.c", include_str!("../../../../guest-lib/utofu/examples/run/times.c")),
    ("gather.c", include_str!("../../../../guest-lib/utofu/examples/run/gather.c")),
    ("mpi_put.c", include_str!("../../../../guest-lib/utofu/examples/run/mpi_put.c")),
    ("ring.py", include_str!("../../../../guest-lib/utofu/examples/python/ring.py")),
    ("tnw/Makefile", include_str!("sdk/tnw.mk")),
    ("tnw/check.h", include_str!("../../../../guest-lib/tnw/examples/c/check.h")),
    ("tnw/shift.c", include_str!("../../../../guest-lib/tnw/examples/c/shift.c")),
    ("tnw/stream.c", include_str!("../../../../guest-lib/tnw/examples/c/stream.c")),
];

/// Further files for nodes with Arm's processors: path and text.
const ARM64_FILES: [(&str, &str); 3] = [
    ("arch.mk", include_str!("sdk/arch.mk")),
    ("arm64.cmake", include_str!("sdk/arm64.cmake")),
    ("examples/sve.c", include_str!("../../../../guest-lib/utofu/examples/run/sve.c")),
];
/// For CMake, on any processors.
const CMAKE: &str = include_str!("sdk/tofu-config.cmake");

/// Compiles programs for such nodes.
const FCCPX: &str = include_str!("sdk/fccpx.sh");
/// The names of Fujitsu's compilers on hosts of other kinds and on nodes, for C, C++ and Fortran;
/// GCC's names; and the variable that names another compiler.
const FUJITSU: [(&str, &str, &str); 6] = [
    ("fccpx", "aarch64-linux-gnu-gcc", "TOFU_ARM64_CC"),
    ("fcc", "aarch64-linux-gnu-gcc", "TOFU_ARM64_CC"),
    ("FCCpx", "aarch64-linux-gnu-g++", "TOFU_ARM64_CXX"),
    ("FCC", "aarch64-linux-gnu-g++", "TOFU_ARM64_CXX"),
    ("frtpx", "aarch64-linux-gnu-gfortran", "TOFU_ARM64_FC"),
    ("frt", "aarch64-linux-gnu-gfortran", "TOFU_ARM64_FC"),
];
/// The same for programs that run on hosts like this.
const FUJITSU_HERE: [(&str, &str, &str); 6] = [
    ("fccpx", "gcc", "TOFU_CC"),
    ("fcc", "gcc", "TOFU_CC"),
    ("FCCpx", "g++", "TOFU_CXX"),
    ("FCC", "g++", "TOFU_CXX"),
    ("frtpx", "gfortran", "TOFU_FC"),
    ("frt", "gfortran", "TOFU_FC"),
];
/// Warnings that newer compilers make errors of.
const PERMITTED: [&str; 4] = [
    "-Wno-error=implicit-function-declaration",
    "-Wno-error=implicit-int",
    "-Wno-error=int-conversion",
    "-Wno-error=incompatible-pointer-types",
];
/// The same in Fortran, and lines as long as theirs may be.
const PERMITTED_IN_FORTRAN: [&str; 3] =
    ["-fallow-argument-mismatch", "-fallow-invalid-boz", "-ffree-line-length-none"];
/// Compiles MPI programs with the host's MPI.
const MPIFCC: &str = include_str!("sdk/mpifcc.sh");

/// Further headers of a library.
const MORE_HEADERS: [(&str, &str); 7] = [
    ("mpi-ext.h", include_str!("../../../../guest-lib/jtofu/c/include/mpi-ext.h")),
    ("tofu_collective.h", include_str!("../../../../guest-lib/utofu/c/include/tofu_collective.h")),
    ("tofu_wait.h", include_str!("../../../../guest-lib/utofu/c/include/tofu_wait.h")),
    // Of profilers, whose functions do nothing here.
    ("fj_tool/fapp.h", include_str!("sdk/fj_tool/fapp.h")),
    ("fj_tool/fipp.h", include_str!("sdk/fj_tool/fipp.h")),
    ("fj_tool/fjcoll.h", include_str!("sdk/fjcoll.h")),
    ("fjcoll.h", include_str!("sdk/fjcoll.h")),
];

/// Runs `tofu sdk` and returns the exit code.
pub(crate) fn run(args: &SdkArgs) -> anyhow::Result<u8> {
    let (cancelled, _signals) = signals::flag(signals::CLEANING)?;
    let progress = ImageProgress::new(cancelled, Style::detect(false).progress);
    match write(args, &progress) {
        Ok(()) => {}
        Err(error) if is_interrupted(&error) => return Ok(exit::INTERRUPTED),
        Err(error) => return Err(error),
    }
    progress.clear();
    let (dir, mut out) = (args.dir.display(), io::stdout().lock());
    match args.arch {
        Arch::X86_64 => writeln!(
            out,
            "gcc -I{dir}/include program.c -L{dir}/lib -ltofucom -ltofutop -o program"
        )?,
        Arch::Arm64 => {
            writeln!(out, "{dir}/bin/fccpx program.c -ltofucom -ltofutop -o program")?;
        }
    }
    if args.mpi {
        writeln!(out, "{dir}/bin/mpicc program.c -o program")?;
    }
    Ok(0)
}

fn write(args: &SdkArgs, progress: &ImageProgress) -> anyhow::Result<()> {
    let dir = std::path::absolute(&args.dir)?;
    let cannot = || format!("cannot write to {}", dir.display());
    let prefix = dir.to_str().with_context(|| format!("{}: not text", dir.display()))?;
    if prefix.contains(char::is_whitespace) {
        bail!("{prefix}: pkg-config files cannot name folders with blanks; choose another folder");
    }
    let mpi = args.mpi.then(|| mpi_source(args, progress)).transpose()?;
    let (libraries, sysroot) = match args.arch {
        here if here == Arch::host() => {
            ([libraries::find()?, libraries::find_local()?].concat(), None)
        }
        Arch::X86_64 => bail!("there are no libraries for x86-64 on this host"),
        Arch::Arm64 => {
            let (found, sysroot) = libraries::find_arm64(progress)?;
            (found, Some(sysroot))
        }
    };
    let (include, lib) = (dir.join("include"), dir.join("lib"));
    let (pkgconfig, cmake) = (lib.join("pkgconfig"), lib.join("cmake/tofu"));
    for folder in [&include.join("fj_tool"), &pkgconfig, &cmake] {
        fs::create_dir_all(folder).with_context(cannot)?;
    }
    for (name, header, template) in HEADERS {
        fs::write(include.join(format!("{name}.h")), header).with_context(cannot)?;
        let text =
            template.replace("@prefix@", prefix).replace("@version@", env!("CARGO_PKG_VERSION"));
        fs::write(pkgconfig.join(format!("{name}.pc")), text).with_context(cannot)?;
    }
    for (name, header) in MORE_HEADERS {
        fs::write(include.join(name), header).with_context(cannot)?;
    }
    fs::write(cmake.join("tofu-config.cmake"), CMAKE).with_context(cannot)?;
    for library in &libraries {
        copy_library(library, &lib.join(libraries::name(library)?)).with_context(cannot)?;
    }
    if args.arch == Arch::host() {
        copy_for_mpi(&lib).with_context(cannot)?;
    }
    let examples = dir.join("examples");
    fs::create_dir_all(examples.join("tnw")).with_context(cannot)?;
    for (name, text) in PROGRAMS {
        fs::write(examples.join(name), text).with_context(cannot)?;
    }
    if let Some(sysroot) = sysroot {
        for (name, text) in ARM64_FILES {
            fs::write(dir.join(name), text).with_context(cannot)?;
        }
        let compilers = compilers(args.no_compiler, progress)?;
        write_fujitsu(&dir, Target::Arm64, &compilers, &sysroot.root).with_context(cannot)?;
    } else {
        let none = Path::new("/nonexistent");
        write_fujitsu(&dir, Target::Host, none, none).with_context(cannot)?;
        write_mpi_here(&dir).with_context(cannot)?;
    }
    if let Some(mpi) = &mpi {
        copy_mpi(args, mpi, &dir, progress).with_context(cannot)?;
    }
    Ok(())
}

/// Copies what MPI libraries and programs load, if it is there.
fn copy_for_mpi(lib: &Path) -> anyhow::Result<()> {
    // An MPI library with libfabric loads it from a folder that FI_PROVIDER_PATH names.
    if let Ok(provider) = libraries::find_provider() {
        copy_library(&provider, &lib.join(libraries::PROVIDER))?;
    }
    // A program, by LD_PRELOAD.
    if let Ok(gates) = libraries::find_mpi_gates() {
        copy_library(&gates, &lib.join(libraries::name(&gates)?))?;
    }
    Ok(())
}

/// Copies a library. A program that has the old one open keeps that.
fn copy_library(from: &Path, to: &Path) -> std::io::Result<()> {
    let new = to.with_extension("new");
    fs::copy(from, &new).and_then(|_| fs::rename(&new, to))
}

/// The folder with compilers for arm64, fetched if the host has none; if they must not be fetched,
/// a folder without them.
fn compilers(none: bool, progress: &ImageProgress) -> anyhow::Result<PathBuf> {
    if none || has_arm64_gcc() {
        return Ok(PathBuf::from("/nonexistent"));
    }
    Ok(Cache::from_env()?.arm64_compilers(progress)?)
}

/// The processors that the scripts compile for.
#[derive(Clone, Copy)]
enum Target {
    /// Fugaku's, on a host with other ones.
    Arm64,
    /// The host's own.
    Host,
}

/// Writes the scripts that compile with options of Fujitsu's, with the folder of the compilers that
/// were fetched, and the one with the C library.
fn write_fujitsu(dir: &Path, target: Target, compilers: &Path, sysroot: &Path) -> io::Result<()> {
    // Between single quotes.
    let quoted = |path: &Path| path.display().to_string().replace('\'', r"'\''");
    let (scripts, target, processor) = match target {
        Target::Arm64 => (FUJITSU, "arm64", "-mcpu=a64fx"),
        Target::Host => (FUJITSU_HERE, "host", ""),
    };
    for (name, compiler, variable) in scripts {
        let (language, permitted) = match &name[..2] {
            "fr" => ("f", PERMITTED_IN_FORTRAN.join(" ")),
            "fc" => ("c", PERMITTED.join(" ")),
            _ => ("c", String::new()),
        };
        let script = FCCPX
            .replace("@target@", target)
            .replace("@processor@", processor)
            .replace("@permit@", &permitted)
            .replace("@language@", language)
            .replace("@name@", name)
            .replace("@compiler@", compiler)
            .replace("@variable@", variable)
            .replace("@fetched@", &quoted(compilers))
            .replace("@sysroot@", &quoted(sysroot));
        write_script(dir, name, &script)?;
    }
    Ok(())
}

/// Writes the scripts that compile MPI programs with the host's MPI.
fn write_mpi_here(dir: &Path) -> io::Result<()> {
    let [c, cxx] = COMPILERS.each_ref().map(|one| one.fujitsu);
    let languages: [(&[&str], &str, &str, &str, &str); 3] = [
        (c, "mpicc.mpich mpicc", "fcc", "MPICH_CC", "CC"),
        (cxx, "mpicxx.mpich mpicxx", "FCC", "MPICH_CXX", "CXX"),
        (&["mpifrtpx", "mpifrt"], "mpifort.mpich mpifort", "frt", "MPICH_FC", "FC"),
    ];
    let scripts = languages.iter().flat_map(|one| one.0.iter().map(move |name| (name, one)));
    for (name, (_, programs, compiler, variable, letters)) in scripts {
        let script = MPIFCC
            .replace("@name@", name)
            .replace("@programs@", programs)
            .replace("@compiler@", compiler)
            .replace("@variable@", variable)
            .replace("@language@", letters);
        write_script(dir, name, &script)?;
    }
    Ok(())
}

fn write_script(dir: &Path, name: &str, text: &str) -> io::Result<()> {
    let bin = dir.join("bin");
    fs::create_dir_all(&bin)?;
    let path = bin.join(name);
    fs::write(&path, text)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
}

/// The image that MPI comes from, made if necessary.
fn mpi_source(args: &SdkArgs, progress: &ImageProgress) -> anyhow::Result<(Cache, Image)> {
    let cache = Cache::from_env()?;
    let default = mpi_image(args.arch);
    let name = args.image.as_ref().map_or(default, |image| image.as_str());
    let image = match cache.find(name)? {
        Some(image) if image.manifest.arch != args.arch => bail!(
            "image {name} is for {}, but the programs must be for {}",
            image.manifest.arch,
            args.arch
        ),
        Some(image) => image,
        None if name == default => {
            let programs = tools_for(args.arch, progress)?;
            let spec = Spec::new(name)?.arch(args.arch).programs(programs).with(MPI_PACKAGES)?;
            cache.build(&spec, progress)?
        }
        None => bail!("image {name}: there is none; `tofu image ls` lists those there are"),
    };
    Ok((cache, image))
}

/// Copies the files with which MPI programs are compiled.
fn copy_mpi(
    args: &SdkArgs,
    (cache, image): &(Cache, Image),
    dir: &Path,
    progress: &ImageProgress,
) -> anyhow::Result<()> {
    // First to a separate place, because existing files are replaced together.
    let place = dir.join(".mpi");
    remove(&place)?;
    fs::create_dir_all(&place)?;
    let out = |from: &str| {
        cache.copy_out(image, from, &place, progress).with_context(|| {
            let name = &image.name;
            format!(
                "image {name} has no MPI to compile with; make one with `tofu image build --name \
                 {name} --arch {} --with {}`",
                args.arch,
                MPI_PACKAGES.join(",")
            )
        })
    };
    let place_there = Path::new(debian_libraries(args.arch));
    let out_below = |name: &Path| {
        let path = place_there.join(name);
        out(path.to_str().context("the library has no proper name")?)
    };
    out_below(Path::new(MPI_HEADERS))?;
    let headers = dir.join("include/mpich");
    remove(&headers)?;
    fs::rename(place.join("include"), &headers)?;
    for library in &MPI_FILES {
        // The name in programs is a link to the name with the version.
        out_below(Path::new(library.file))?;
        let target = fs::read_link(place.join(library.file))?;
        out_below(&target)?;
        fs::rename(place.join(&target), dir.join("lib").join(library.name))?;
    }
    remove(&place)?;
    write_compilers(args.arch, dir)?;
    progress.clear();
    Ok(())
}

/// Writes the scripts that compile MPI programs.
fn write_compilers(arch: Arch, dir: &Path) -> io::Result<()> {
    for compiler in &COMPILERS {
        let default = match arch {
            Arch::X86_64 => compiler.default,
            Arch::Arm64 => compiler.cross,
        };
        let usual = compiler.names.iter().map(|name| (name, default));
        let fujitsu = compiler.fujitsu.iter().map(|name| (name, compiler.cross));
        for (name, default) in usual.chain(fujitsu) {
            let script = MPICC
                .replace("@name@", name)
                .replace("@variable@", compiler.variable)
                .replace("@default@", default)
                .replace("@libraries@", compiler.libraries);
            write_script(dir, name, &script)?;
        }
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

    fn run(here: &Path, name: &str, args: &[&str], compiler: &str) -> std::process::Output {
        let mut command = Command::new(here.join("bin").join(name));
        command.args(args).env("TOFU_ARM64_CC", compiler).env("TOFU_ARM64_CXX", "echo c++");
        command.env("PATH", "/usr/bin:/bin").output().unwrap()
    }

    /// A compiler that says what it was given.
    const CC: &str = "#!/bin/sh\n\
                      case ${1#-print-file-name=lib} in\n\
                      none) ;;\n\
                      gfortran.so) echo /lib/libgfortran.so; exit ;;\n\
                      --version) echo version 1; exit ;;\n\
                      esac\n\
                      echo \"$@\"\n";
    /// Options, what GCC gets for them, and what is said to be ignored.
    const PUBLIC: &[(&str, &str, &str)] = &[
        (
            "-Xg -Kfast,-restp=all,optmsg=2,ocl,preex,unroll=100 -Nline,lst=t",
            "-O3 -ffast-math -fno-finite-math-only -funroll-loops",
            "-Xg -K-restp=all -Koptmsg=2 -Kpreex -Nline,lst=t",
        ),
        (
            "-Kfast,noeval,nofp_contract,nofp_relaxed -Kcmodel=large",
            "-O3 -ffast-math -fno-finite-math-only -fno-associative-math -ffp-contract=off \
             -fno-reciprocal-math -mcmodel=large",
            "",
        ),
        (
            "-Kfast,fp_precision -mt",
            "-O3 -ffast-math -fno-finite-math-only -fno-fast-math \
          -ffp-contract=off -pthread",
            "",
        ),
        ("-Nsrc -x0 -x- -Qt -W0,-zie=Xdiv-fx100", "", "-Nsrc -x0 -x- -Qt -W0,-zie=Xdiv-fx100"),
        ("-x c++ -std=gnu++11", "-x c++ -std=gnu++11", ""),
        (
            "--display_error_number --diag_suppress 161 --no_exceptions --linkfortran",
            "-fno-exceptions",
            "--display_error_number --diag_suppress 161",
        ),
        (
            "-Nclang -fvectorize -stdlib=libc++ -mllvm -polly -ffp-contract=fast",
            "-ffp-contract=fast",
            "-fvectorize -stdlib=libc++ -mllvm -polly",
        ),
        ("-lfjprofmpi -lmpg -SSL2BLAMP", "", "-lfjprofmpi -lmpg"),
        (
            "-Nclang -Ofast -mcpu=a64fx+sve -fopenmp -ffj-ocl",
            "-Ofast -fopenmp",
            "-mcpu=a64fx+sve -ffj-ocl",
        ),
    ];

    /// The translation of options of Fujitsu's compilers.
    #[test]
    fn options_of_fujitsus_compilers_are_known() {
        let folder = tempfile::tempdir().unwrap();
        let here = fs::canonicalize(folder.path()).unwrap();
        let (fetched, sysroot) = (Path::new("/no/compilers"), Path::new("/a/it's here"));
        write_fujitsu(&here, Target::Arm64, fetched, sysroot).unwrap();
        let run = |name: &str, args: &[&str], compiler: &str| run(&here, name, args, compiler);
        let say_by = |compiler: &str, name: &str, args: &[&str]| {
            let output = run(name, args, compiler);
            assert!(output.status.success(), "{name} {args:?}: {output:?}");
            String::from_utf8(output.stdout).unwrap().replace(here.to_str().unwrap(), "SDK")
        };
        let say = |name: &str, args: &[&str]| say_by("echo cc", name, args);
        let permit = PERMITTED.join(" ");
        let begin = format!("-mcpu=a64fx {permit} -ISDK/include");
        let first = "-Wl,--no-as-needed";
        let link = "-LSDK/lib -Wl,--allow-shlib-undefined -lm -Wl,--as-needed -ltofutop\n";
        let args = ["-Nclang", "-Kfast,openmp,ocl", "a.c", "-ltofucom", "-o", "a"];
        let optimised = "-O3 -ffast-math -fno-finite-math-only -fopenmp a.c -ltofucom -o a";
        assert_eq!(say("fccpx", &args), format!("cc {begin} {first} {optimised} {link}"));
        let begin_cxx = "-mcpu=a64fx -ISDK/include";
        assert_eq!(say("FCC", &args), format!("c++ {begin_cxx} {first} {optimised} {link}"));
        assert_eq!(say("fcc", &["-KPIC", "-c", "a.c"]), format!("cc {begin} -fPIC -c a.c\n"));
        assert_eq!(
            say("fcc", &["-mcpu=a64fx+sve", "-S", "a.c"]),
            format!("cc {permit} -ISDK/include -mcpu=a64fx -S a.c\n")
        );
        assert_eq!(
            say("fcc", &["-KNOSVE", "-E", "a.c"]),
            format!("cc -march=armv8.2-a+nosve {permit} -ISDK/include -E a.c\n")
        );
        assert_eq!(say("fcc", &["-V"]), format!("cc {begin} --version\n"));
        // Options of Fujitsu's compilers only.
        let args =
            ["-Nlst=t", "-Nrt_tune", "-Xg", "-ffj-ocl", "-Koptmsg=2,openmp_simd", "-c", "a.c"];
        assert_eq!(say("fcc", &args), format!("cc {begin} -fopenmp-simd -c a.c\n"));
        let said = String::from_utf8(run("fcc", &args, "echo cc").stderr).unwrap();
        assert_eq!(said, "fcc: ignored: -Nlst=t -Nrt_tune -Xg -ffj-ocl -Koptmsg=2\n");
        assert!(run("fcc", &["-Nclang", "-KSVE,fast", "a.c"], "echo cc").stderr.is_empty());
        // Arm's processors have their own code model, and this host's is not theirs.
        let args = ["-Kcmodel=large", "-march=native", "-c", "a.c"];
        assert_eq!(say("fcc", &args), format!("cc {begin} -c a.c\n"));
        // Clang's target and its linker, unless the user says how it is called.
        let clang = here.join("clang-19");
        write_script(&here, "../clang-19", "#!/bin/sh\nprintf '<%s>' \"$@\"\n").unwrap();
        let said = say_by(clang.to_str().unwrap(), "fccpx", &["-Kopenmp", "a.c"]);
        let permitted = format!("<{}>", PERMITTED.join("><"));
        let expected = format!(
            "<-mcpu=a64fx>{permitted}<-ISDK/include><-Wl,--no-as-needed>\
             <--target=aarch64-linux-gnu><--sysroot=/a/it's here><-fopenmp><a.c><-LSDK/lib>\
             <-Wl,--allow-shlib-undefined><-lm><-Wl,--as-needed><-ltofutop><-fuse-ld=lld>"
        );
        assert_eq!(said, expected);
        assert!(!say_by(clang.to_str().unwrap(), "fccpx", &["-c", "a.c"]).contains("lld"));
        let said = say_by(&format!("{} --target=x", clang.display()), "fccpx", &["-c", "a.c"]);
        assert_eq!(said, format!("<--target=x><-mcpu=a64fx>{permitted}<-ISDK/include><-c><a.c>"));
        if Command::new("aarch64-linux-gnu-gcc").arg("-v").output().is_err() {
            let none = run("fcc", &["a.c"], "");
            let said = String::from_utf8(none.stderr).unwrap();
            let why = "fcc: there is no aarch64-linux-gnu-gcc; install it";
            assert!(said.starts_with(why) && none.status.code() == Some(1), "{said}");
        }
    }

    /// Options as public build files have them, and what is made of them.
    #[test]
    fn options_of_public_build_files_are_known() {
        let folder = tempfile::tempdir().unwrap();
        let here = fs::canonicalize(folder.path()).unwrap();
        let none = Path::new("/nonexistent");
        write_fujitsu(&here, Target::Host, none, none).unwrap();
        write_script(&here, "../cc", CC).unwrap();
        for (options, expected, ignored) in PUBLIC {
            let mut command = Command::new(here.join("bin/FCCpx"));
            command.args(options.split(' ')).args(["-c", "a.cc"]);
            command.env("TOFU_CXX", here.join("cc"));
            let output = command.output().unwrap();
            let [out, err] = [output.stdout, output.stderr].map(|t| String::from_utf8(t).unwrap());
            let include = format!("-I{}/include ", here.display());
            let given = out.trim().replace(&include, "").replace(" -c a.cc", "");
            assert_eq!(given.trim_end_matches("-c a.cc"), *expected, "{options}");
            let said = err.trim().trim_start_matches("FCCpx: ignored: ");
            assert_eq!(said, *ignored, "{options}");
        }
        let link = |compiler: &str, options: &[&str]| {
            let mut command = Command::new(here.join("bin/fcc"));
            command.args(options).env("TOFU_CC", here.join(compiler));
            let output = command.output().unwrap();
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap())
        };
        // SSL II stands for libraries that the compiler finds.
        let [_, err] = link("cc", &["-SSL2BLAMP", "a.o", "-lfjlapackex"]);
        let missing = "libraries are not here; linked instead: nothing, as there is no \
                       libopenblas.so and no liblapack.so\n";
        let expected = format!("fcc: -SSL2BLAMP -lfjlapackex: Fujitsu's mathematical {missing}");
        assert_eq!(err, expected);
        let finds = CC.replace("none)", "lapack.so | blas.so) echo \"/lib/$1\"; exit");
        write_script(&here, "../finds", &finds).unwrap();
        let [out, err] = link("finds", &["-SSL2", "-Nclang", "a.o"]);
        assert!(out.contains("a.o -llapack -lblas -L"), "{out}");
        assert!(err.ends_with("linked instead: -llapack -lblas\n"), "{err}");
        // The version is said beside what is compiled.
        let [out, err] = link("cc", &["-V", "-Kfast", "a.c"]);
        assert!(out.contains("a.c") && !out.contains("--version"), "{out}");
        assert_eq!(err, "version 1\n");
    }

    /// Options that only Fortran has, and those that are others in C.
    const FORTRAN: &[(&str, &str, &str)] = &[
        (
            "-Kfast,parallel,openmp -Free -Cpp -DA -M obj -Iobj",
            "-O3 -ffast-math -fno-finite-math-only -fopenmp -ffree-form -cpp -DA -J obj -Iobj",
            "-Kparallel",
        ),
        ("-Fixed -Fwide -Mobj", "-ffixed-form -ffixed-line-length-none -Jobj", ""),
        (
            "-CcdRR8 -CcdII8 -fw -fmsg_num=5001 -f2004 -w",
            "-fdefault-real-8 -fdefault-double-8 -fdefault-integer-8 -w",
            "",
        ),
        ("-Haesux -Am -AU -X08 -Eg -CcR8R16", "-fcheck=all", "-Am -AU -X08 -Eg -CcR8R16"),
        ("-mlcmain=main -Nalloc_assign -fPIC", "-fPIC", "-mlcmain=main -Nalloc_assign"),
    ];

    #[test]
    fn options_of_fortran_are_known() {
        let folder = tempfile::tempdir().unwrap();
        let here = fs::canonicalize(folder.path()).unwrap();
        let none = Path::new("/nonexistent");
        write_fujitsu(&here, Target::Host, none, none).unwrap();
        write_script(&here, "../cc", CC).unwrap();
        let begin = format!("{} -I{}/include ", PERMITTED_IN_FORTRAN.join(" "), here.display());
        for (options, expected, ignored) in FORTRAN {
            let mut command = Command::new(here.join("bin/frtpx"));
            command.args(options.split(' ')).args(["-c", "a.f90"]);
            let output = command.env("TOFU_FC", here.join("cc")).output().unwrap();
            let [out, err] = [output.stdout, output.stderr].map(|t| String::from_utf8(t).unwrap());
            assert_eq!(out, format!("{begin}{expected} -c a.f90\n"));
            assert_eq!(err.trim().trim_start_matches("frtpx: ignored: "), *ignored, "{options}");
        }
        // A program in C++ with parts in Fortran.
        let mut command = Command::new(here.join("bin/FCC"));
        command.args(["--linkfortran", "a.o"]).env("TOFU_CXX", here.join("cc"));
        let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert!(said.contains("a.o -lgfortran -L"), "{said}");
        // One without, where the compiler has no library for them.
        write_script(&here, "../none", "#!/bin/sh\necho \"$@\"\n").unwrap();
        let output = command.env("TOFU_CXX", here.join("none")).output().unwrap();
        let [out, err] = [output.stdout, output.stderr].map(|t| String::from_utf8(t).unwrap());
        assert!(out.contains("a.o -L") && err.contains("no libgfortran.so"), "{out}{err}");
    }

    #[test]
    fn mpifrt_gives_no_preprocessor_option_to_the_wrapper() {
        let folder = tempfile::tempdir().unwrap();
        let here = fs::canonicalize(folder.path()).unwrap();
        write_mpi_here(&here).unwrap();
        write_script(&here.join("others"), "mpifort.mpich", "#!/bin/sh\necho $*\n").unwrap();
        let path = format!("{}/others/bin:/usr/bin:/bin", here.display());
        for compiler in ["mpifrtpx", "mpifrt"] {
            let mut command = Command::new(here.join("bin").join(compiler));
            let said = command.args(["-M", "mods", "a.f90"]).env("PATH", &path).output().unwrap();
            assert_eq!(String::from_utf8(said.stdout).unwrap().trim_end(), "-J mods a.f90");
        }
    }

    /// Programs as older compilers and Fujitsu's linker took them.
    #[test]
    fn programs_compile_here_as_on_fugaku() {
        if !["gcc", "g++"].iter().all(|name| Command::new(name).arg("-v").output().is_ok()) {
            eprintln!("SKIP programs_compile_here_as_on_fugaku: no gcc");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let here = fs::canonicalize(folder.path()).unwrap();
        let none = Path::new("/nonexistent");
        write_fujitsu(&here, Target::Host, none, none).unwrap();
        write_mpi_here(&here).unwrap();
        // In place of ours, which programs that need none are not linked with.
        fs::create_dir(here.join("lib")).unwrap();
        fs::write(here.join("empty.c"), "").unwrap();
        let mut gcc = Command::new("gcc");
        gcc.args(["-shared", "-o", "lib/libtofutop.so", "empty.c"]).current_dir(&here);
        assert!(gcc.status().unwrap().success());
        let fcc = |name: &str, args: &[&str]| {
            let mut command = Command::new(here.join("bin").join(name));
            command.args(args).current_dir(&here).env_remove("TOFU_CC").output().unwrap()
        };
        // An implicit declaration, a library of ours before the object, and the mathematical one.
        let program = "#include <stdio.h>\n#include <math.h>\nint main(int n, char **a) {\n\
                       printf(\"%g %d\\n\", sqrt(n * 9.0), twice(n)); return 0; }\n";
        fs::write(here.join("main.c"), program).unwrap();
        fs::write(here.join("twice.c"), "int twice(int n) { return 2 * n; }\n").unwrap();
        for args in [
            &["-shared", "-KPIC", "-o", "libtwice.so", "twice.c"][..],
            &["-Nclang", "-Kfast,openmp,parallel", "-mcpu=a64fx+sve", "-c", "main.c"],
            &["-L.", "-Wl,-rpath,.", "-ltwice", "main.o", "-o", "main"],
        ] {
            let output = fcc("fcc", args);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{args:?}: {said}");
            let ignored = said.contains("fcc: ignored: -Kparallel -mcpu=a64fx+sve");
            assert_eq!(ignored, args.contains(&"-c"), "{said}");
        }
        let output = Command::new("./main").current_dir(&here).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "3 2\n");
        // NaNs are there with -Kfast, and calls of profilers do nothing.
        let program = "#include \"fj_tool/fapp.h\"\n#include \"fj_tool/fipp.h\"\n\
                       #include <fjcoll.h>\n#include <math.h>\n#include <stdlib.h>\n\
                       int main(int n, char **a) { fipp_start(); fapp_start(\"all\", 1, 0);\n\
                       start_collection(\"all\"); double x = atof(a[1]);\n\
                       stop_collection(\"all\"); fapp_stop(\"all\", 1, 0); fipp_stop();\n\
                       return isnan(x) ? 7 : 1; }\n";
        fs::write(here.join("nan.c"), program).unwrap();
        for (name, text) in MORE_HEADERS.iter().filter(|(name, _)| name.starts_with("fj")) {
            let path = here.join("include").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let strict = ["-Kfast", "-V", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"];
        let output = fcc("fcc", &[&strict, &["nan.c", "-o", "nan"][..]].concat());
        assert!(output.status.success(), "{output:?}");
        let status = Command::new("./nan").arg("nan").current_dir(&here).status().unwrap();
        assert_eq!(status.code(), Some(7));
        fs::write(here.join("a.cc"), "#include <vector>\nint main() { return 0; }\n").unwrap();
        assert!(fcc("FCCpx", &["-Kfast", "a.cc", "-o", "a"]).status.success());
        let mut mpi = Command::new(here.join("bin/mpifccpx"));
        let output = mpi.arg("main.c").env("PATH", here.join("bin")).output();
        // Its own shell is not there either, or it finds no MPI.
        assert!(output.is_err() || !output.unwrap().status.success());
    }

    /// The output of the scripts, if CC and CXX name them, as with make.
    #[test]
    fn compilers_tell_what_they_would_do() {
        let folder = tempfile::tempdir().unwrap();
        let here = fs::canonicalize(folder.path()).unwrap();
        write_compilers(Arch::X86_64, &here).unwrap();
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
        // For Fugaku's processor they are Fujitsu's, too.
        write_compilers(Arch::Arm64, &here).unwrap();
        let shown = |compiler: &str, link: &str| format!("SDK/bin/{compiler} {includes} {link}");
        for name in ["mpicc", "mpifccpx", "mpifcc"] {
            assert_eq!(say(name, &["-show"]), shown("fccpx", link));
        }
        for name in ["mpic++", "mpiFCCpx", "mpiFCC"] {
            assert_eq!(say(name, &["-show"]), shown("FCCpx", link_cxx));
        }
        let mut unknown = Command::new(bin.join("mpicc"));
        assert_eq!(unknown.arg("-showme:version").output().unwrap().status.code(), Some(1));
        let mut other = Command::new(bin.join("mpicc"));
        let output = other.args(["a b", "-c"]).env("MPICH_CC", "printf [%s]").output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.ends_with("[a b][-c]"), "{said}");
    }
}
