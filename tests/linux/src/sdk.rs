//! C programs for nodes, compiled with the files that `tofu sdk` writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::{MOMENT, Place, Running, Said, skip};

/// Longest time for the image that MPI's headers come from, where it has to be fetched.
const IMAGE: Duration = Duration::from_secs(600);

/// Whether there are a compiler and `strip`; if not, prints that.
pub fn has_compiler(test: &str) -> bool {
    let found = ["gcc", "strip"].iter().all(|tool| {
        Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success())
    });
    if !found {
        skip(test, "there is no gcc, or no strip");
    }
    found
}

#[track_caller]
fn must(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {err}", output.status);
}

/// The libraries, what `tofu sdk` writes, and the programs compiled with it, all in the folder of
/// a [`Place`].
pub struct Sdk {
    folder: PathBuf,
    libraries: PathBuf,
}

impl Sdk {
    /// For programs with uTofu and jTofu.
    #[track_caller]
    pub fn new(place: &Place) -> Self {
        let this =
            Self { folder: place.path().to_path_buf(), libraries: place.path().join("libraries") };
        fs::create_dir(&this.libraries).unwrap();
        for name in ["libtofucom.so", "libtofutop.so", "libtnw.so"] {
            // Cargo leaves them beside the tests. Copying their debug information takes long.
            let built = std::env::current_exe().unwrap().with_file_name(name);
            must(Command::new("strip").arg("-o").arg(this.libraries.join(name)).arg(built));
        }
        Running::start(this.command(place, &["sdk", "sdk"]), b"").end(MOMENT).ok();
        this
    }

    /// Adds the files that programs with MPI need; `false`, after the reason was printed, if they
    /// are not available.
    #[track_caller]
    pub fn add_mpi(&self, place: &Place, test: &str) -> bool {
        let command = self.command(place, &["sdk", "--mpi", "sdk"]);
        let said = Running::start(command, b"").end(IMAGE);
        if said.lacks_packages() {
            skip(test, said.err.lines().last().unwrap_or_default());
            return false;
        }
        said.ok();
        true
    }

    /// A command of `tofu` with these libraries, in the place's folder.
    pub fn command(&self, place: &Place, args: &[&str]) -> Command {
        let mut command = place.command(args);
        command.env("TOFU_LIBRARIES", &self.libraries).current_dir(&self.folder);
        command
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
        self.compile_by(Path::new("gcc"), source, libraries);
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
        must(command.arg(&source).arg("-o").arg(program));
    }

    /// Builds a CMake project that looks for MPI, in a folder of these tests; `false`, after a
    /// message, where there is no CMake.
    #[track_caller]
    pub fn build_with_cmake(&self, source: &str, test: &str) -> bool {
        if !Command::new("cmake").arg("--version").output().is_ok_and(|out| out.status.success()) {
            skip(test, "of CMake: there is none");
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
        must(&mut configure);
        must(Command::new("cmake").arg("--build").arg(&build));
        true
    }

    fn compile_by(&self, compiler: &Path, source: &str, libraries: &[&str]) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
        let sdk = self.folder.join("sdk");
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Wextra", "-Werror", "-O2", "-I"]).arg(sdk.join("include"));
        command.arg(&source).arg("-L").arg(sdk.join("lib")).args(libraries);
        must(command.arg("-o").arg(self.folder.join(source.file_stem().unwrap())));
    }
}

impl Said {
    /// Whether it failed because Debian's packages are not available here.
    pub fn lacks_packages(&self) -> bool {
        self.code == Some(2) && (self.err.contains("mirror") || self.err.contains("cannot find"))
    }
}
