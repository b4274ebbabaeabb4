//! Builds C programs against the installed headers and shared libraries, as a user would, and runs
//! them: for the tests of the C libraries, and of the command with programs that use them.
//!
//! A test needs the library's crate as a dependency, so that cargo builds the shared library. Tests
//! that this host cannot run are skipped, with a line `SKIP test: reason`.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// Reports that the test of this thread cannot run here, or with "of" what part of it.
pub fn skip(why: &str) {
    let thread = std::thread::current();
    // Of a test in a module, the name without the module's.
    let test = thread.name().and_then(|name| name.rsplit("::").next());
    eprintln!("SKIP {}: {why}", test.unwrap_or("a test"));
}

/// Returns true if this host has a program, which must know `--version`.
pub fn have(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// The folder in which cargo puts the shared libraries, beside the tests.
pub fn libraries() -> PathBuf {
    env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// The text that a program has printed: its output, then its errors.
pub fn text(output: &Output) -> String {
    let of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    of(&output.stdout) + &of(&output.stderr)
}

/// Runs a command that must succeed; returns its output. Passes on its messages about tests that
/// cannot run here.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, text(&output));
    for line in String::from_utf8_lossy(&output.stderr).lines() {
        if line.starts_with("SKIP ") {
            eprintln!("{line}");
        }
    }
    String::from_utf8(output.stdout).unwrap()
}

/// A source that uses a header builds as C99 and as C++11, without warnings, and runs.
pub fn builds_as_c99_and_cxx(source: &str, names: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    for (compiler, standard, suffix) in [("gcc", "-std=c99", "c"), ("g++", "-std=c++11", "cc")] {
        let file = folder.path().join(format!("main.{suffix}"));
        fs::write(&file, source).unwrap();
        let options = [compiler, standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror"];
        if let Some(program) = Program::build(&options, &file, names) {
            program.run(&[], &[]);
        }
    }
}

/// The names that a shared library exports, whose soname must be its file's name; `None` without
/// binutils.
pub fn exported(library: &str) -> Option<BTreeSet<String>> {
    let symbols = symbols(library)?;
    let dynamic = run(Command::new("readelf").arg("-d").arg(libraries().join(library)));
    assert!(dynamic.contains(&format!("soname: [{library}]")), "{dynamic}");
    Some(symbols)
}

/// The names that a shared library exports; `None` without binutils.
pub fn symbols(library: &str) -> Option<BTreeSet<String>> {
    if !have("nm") || !have("readelf") {
        skip("no binutils");
        return None;
    }
    let path = libraries().join(library);
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&path));
    let names = symbols.lines().filter_map(|line| line.split_whitespace().nth(2));
    Some(names.filter(|name| *name != "rust_eh_personality").map(str::to_owned).collect())
}

/// A folder with headers, libraries and files for pkg-config, as the manual says to install them.
pub struct Installed {
    root: TempDir,
    names: Vec<String>,
}

impl Installed {
    /// Installs some of the libraries `utofu`, `jtofu`, `tnw` and `fujitsu_hwb`; with `utofu` and
    /// `tnw` the devices that they load on a host.
    pub fn new(names: &[&str]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../guest-lib/utofu/install");
        let mut install = Command::new(script);
        install.arg("--prefix").arg(root.path()).arg("--libs").arg(libraries());
        run(install.args(names));
        Self { root, names: names.iter().map(|name| (*name).to_owned()).collect() }
    }

    /// The folder that contains `include` and `lib`.
    pub fn path(&self) -> &Path {
        self.root.path()
    }

    /// The options that a compiler needs to find the headers and the libraries.
    pub fn flags(&self) -> Vec<String> {
        if !have("pkg-config") {
            let root = self.path().display();
            let libraries = self.names.iter().map(|name| match name.as_str() {
                "utofu" => "-ltofucom".to_owned(),
                "jtofu" => "-ltofutop".to_owned(),
                "fujitsu_hwb" => "-lFJhwb".to_owned(),
                other => format!("-l{other}"),
            });
            return [format!("-I{root}/include"), format!("-L{root}/lib")]
                .into_iter()
                .chain(libraries)
                .collect();
        }
        let flags = run(Command::new("pkg-config")
            .args(["--cflags", "--libs"])
            .args(&self.names)
            .env("PKG_CONFIG_PATH", self.path().join("lib/pkgconfig")));
        flags.split_whitespace().map(str::to_owned).collect()
    }

    /// Has a command find the libraries, and none of the settings of this process.
    pub fn environment<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        for (name, _) in env::vars().filter(|(name, _)| name.contains("TOFU_")) {
            command.env_remove(name);
        }
        command.env("LD_LIBRARY_PATH", self.path().join("lib"))
    }
}

/// A program that was built, with the libraries that it uses.
pub struct Program {
    installed: Installed,
    path: PathBuf,
}

impl Program {
    /// Builds a program that uses these libraries, by a compiler and its options. `None`, after a
    /// message, if there is no such compiler.
    pub fn build(compiler: &[&str], source: &Path, names: &[&str]) -> Option<Self> {
        let name = source.file_stem().unwrap().to_str().unwrap();
        if !have(compiler[0]) {
            eprintln!("SKIP {name}: no {}", compiler[0]);
            return None;
        }
        let installed = Installed::new(names);
        let path = installed.path().join(name);
        run(Command::new(compiler[0])
            .args(&compiler[1..])
            .args(["-pthread", "-o"])
            .args([&path, source])
            .args(["-x", "none"])
            .args(installed.flags()));
        Some(Self { installed, path })
    }

    /// The folder with its libraries.
    pub fn libraries(&self) -> PathBuf {
        self.installed.path().join("lib")
    }

    /// The command that runs it with these environment variables, for at most five minutes.
    pub fn command(&self, env: &[(&str, &str)]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "300"]).arg(&self.path);
        self.installed.environment(&mut command).envs(env.iter().copied());
        command
    }

    /// Runs it with arguments and these environment variables; returns its output.
    #[track_caller]
    pub fn run(&self, args: &[&str], env: &[(&str, &str)]) -> String {
        run(self.command(env).args(args))
    }
}
