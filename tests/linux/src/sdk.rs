//! C programs for nodes, compiled with the files that `tofu sdk` writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tofu_c_tests::{have, libraries, run};

use crate::{MOMENT, Place, Running, Said, skip};

/// Longest time for the image that MPI's headers come from, where it has to be fetched.
const IMAGE: Duration = Duration::from_secs(600);

/// The time limit for building programs and libraries for other processors on a busy host.
pub const BUILD: Duration = Duration::from_secs(1200);

/// Returns true if there are a compiler and `strip`; after it was said if not.
pub fn has_compiler() -> bool {
    let found = have("gcc") && have("strip");
    if !found {
        skip("there is no gcc, or no strip");
    }
    found
}

/// The libraries, what `tofu sdk` writes, and the programs compiled with it, all in the folder of
/// a [`Place`].
pub struct Sdk {
    folder: PathBuf,
    libraries: PathBuf,
    /// The compiler and its options.
    compiler: (PathBuf, &'static [&'static str]),
}

/// Options of GCC in these tests.
const STRICT: &[&str] = &["-Wall", "-Wextra", "-Werror", "-O2"];
/// The same for Fugaku's processor, as makefiles for Fugaku have them.
const FUJITSU: &[&str] = &["-Nclang", "-Kfast,openmp", "-Wall", "-Wextra", "-Werror"];

impl Sdk {
    /// For programs with uTofu and jTofu.
    #[track_caller]
    pub fn new(place: &Place) -> Self {
        let this = Self {
            folder: place.path().to_path_buf(),
            libraries: place.path().join("libraries"),
            compiler: ("gcc".into(), STRICT),
        };
        fs::create_dir(&this.libraries).unwrap();
        let names = [
            "libtofucom.so",
            "libtofutop.so",
            "libtnw.so",
            "libFJhwb.so",
            "libtofulocal.so",
            "libtofu_fi.so",
        ];
        for name in names {
            // Copying their debug information takes long.
            let built = libraries().join(name);
            run(Command::new("strip").arg("-o").arg(this.libraries.join(name)).arg(built));
        }
        Running::start(this.command(place, &["sdk", "sdk"]), b"").end(MOMENT).ok();
        this
    }

    /// For programs on nodes with Fugaku's processor; what that takes is built in the checkout.
    /// `None`, after it was said, if Debian's packages for it cannot be had.
    #[track_caller]
    pub fn arm64(place: &Place, more: &[&str]) -> Option<Self> {
        let this = Self {
            folder: place.path().to_path_buf(),
            libraries: place.path().join("sdk/lib"),
            compiler: (place.path().join("sdk/bin/fccpx"), FUJITSU),
        };
        let sdk = place.path().join("sdk");
        let args = [&["sdk", "--arch", "arm64", sdk.to_str().unwrap()], more].concat();
        let said = Running::start(place.command_in_checkout(&args), b"").end(BUILD);
        if said.lacks_packages() {
            skip("of compiled programs: Debian's packages for arm64 cannot be had");
            return None;
        }
        said.ok();
        Some(this)
    }

    /// The folder that `tofu sdk` has written.
    pub fn path(&self) -> PathBuf {
        self.folder.join("sdk")
    }

    /// The C compiler for the nodes.
    pub fn compiler(&self) -> &Path {
        &self.compiler.0
    }

    /// Adds what programs with MPI need; `false`, after it was said why, if it cannot be had.
    #[track_caller]
    pub fn add_mpi(&self, place: &Place) -> bool {
        let command = self.command(place, &["sdk", "--mpi", "sdk"]);
        let said = Running::start(command, b"").end(IMAGE);
        if said.lacks_packages() {
            skip(said.err.lines().last().unwrap_or_default());
            return false;
        }
        said.ok();
        true
    }

    /// A command of `tofu` with these libraries, in the place's folder.
    pub fn command(&self, place: &Place, args: &[&str]) -> Command {
        if self.compiler.1 == STRICT {
            let mut command = place.command(args);
            command.env("TOFU_LIBRARIES", &self.libraries).current_dir(&self.folder);
            return command;
        }
        // Those for other processors are built in the checkout, and found there.
        let program = |word: &&str| match word.strip_prefix("./") {
            Some(name) => self.folder.join(name).to_str().unwrap().to_owned(),
            None => (*word).to_owned(),
        };
        let args: Vec<_> = args.iter().map(program).collect();
        place.command_in_checkout(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// A program of the place's folder on this host, with these libraries.
    pub fn here(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", &self.libraries).current_dir(&self.folder);
        command
    }

    /// Compiles a source file, named from the folder of these tests, with these libraries.
    #[track_caller]
    pub fn compile(&self, source: &str, libraries: &[&str]) {
        self.compile_by(&self.compiler.0, source, libraries);
    }

    /// The same for a program with MPI.
    #[track_caller]
    pub fn compile_mpi(&self, source: &str, libraries: &[&str]) {
        self.compile_by(&self.folder.join("sdk/bin/mpicc"), source, libraries);
    }

    /// The same for a program with MPI in C++, as make compiles it when CC and CXX say so.
    #[track_caller]
    pub fn compile_mpi_cxx(&self, source: &str) {
        let bin = self.folder.join("sdk/bin");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
        let program = self.folder.join(source.file_stem().unwrap());
        let mut command = Command::new(bin.join("mpicxx"));
        command.env("CC", bin.join("mpicc")).env("CXX", bin.join("mpicxx"));
        run(command.arg(&source).arg("-o").arg(program));
    }

    /// Builds a CMake project that looks for MPI, in a folder of these tests; `false`, after a
    /// message, where there is no CMake.
    #[track_caller]
    pub fn build_with_cmake(&self, source: &str) -> bool {
        if !have("cmake") {
            skip("of CMake: there is none");
            return false;
        }
        let bin = self.folder.join("sdk/bin");
        let build = self.folder.join("build");
        let mut configure = Command::new("cmake");
        configure.arg("-S").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(source));
        configure.arg("-B").arg(&build);
        for (language, compiler) in [("C", "mpicc"), ("CXX", "mpicxx")] {
            let compiler = bin.join(compiler);
            configure.arg(format!("-DMPI_{language}_COMPILER={}", compiler.display()));
        }
        run(&mut configure);
        run(Command::new("cmake").arg("--build").arg(&build));
        true
    }

    fn compile_by(&self, compiler: &Path, source: &str, libraries: &[&str]) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
        let sdk = self.folder.join("sdk");
        let mut command = Command::new(compiler);
        command.args(self.compiler.1).arg("-I").arg(sdk.join("include"));
        command.arg(&source).arg("-L").arg(sdk.join("lib")).args(libraries);
        run(command.arg("-o").arg(self.folder.join(source.file_stem().unwrap())));
    }
}

impl Said {
    /// Returns true if it failed because Debian's packages are not available here.
    pub fn lacks_packages(&self) -> bool {
        self.code == Some(2) && (self.err.contains("mirror") || self.err.contains("cannot find"))
    }
}
