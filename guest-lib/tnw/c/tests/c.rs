//! C programs against the header and the shared library, built as a user would build them.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

const HERE: &str = env!("CARGO_MANIFEST_DIR");
/// The compiler's options for the programs.
const C: [&str; 7] = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"];
/// Two neighbouring nodes in the program's own process.
const PAIR: [(&str, &str); 2] = [("TOFU_PROVIDER", "inproc"), ("TOFU_SHAPE", "2x1x1")];

fn have(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Where cargo leaves the shared library: beside the tests.
fn libraries() -> PathBuf {
    env::current_exe().unwrap().parent().unwrap().to_owned()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out
}

/// A program that was built against the files installed in a folder.
struct Program {
    root: TempDir,
    path: PathBuf,
}

impl Program {
    /// `None`, after a message, if there is no compiler.
    fn build(source: &Path) -> Option<Self> {
        let name = source.file_stem().unwrap().to_str().unwrap();
        if !have("gcc") {
            eprintln!("SKIP {name}: no gcc");
            return None;
        }
        let root = tempfile::tempdir().unwrap();
        let install = Path::new(HERE).join("../../utofu/install");
        let (prefix, libs) = (root.path().to_str().unwrap(), libraries());
        let mut install = Command::new(install);
        run(install.args(["--prefix", prefix, "tnw", "--libs"]).arg(libs));
        let flags = if have("pkg-config") {
            let pkgconfig = root.path().join("lib/pkgconfig");
            run(Command::new("pkg-config")
                .args(["--cflags", "--libs", "tnw"])
                .env("PKG_CONFIG_PATH", pkgconfig))
        } else {
            format!("-I{prefix}/include -L{prefix}/lib -ltnw")
        };
        let path = root.path().join(name);
        let mut gcc = Command::new("gcc");
        run(gcc.args(C).arg("-o").args([&path, source]).args(flags.split_whitespace()));
        Some(Self { root, path })
    }

    /// Runs it with these environment variables; returns its output.
    fn run(&self, env: &[(&str, &str)]) -> String {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "300"]).arg(&self.path);
        for (name, _) in env::vars().filter(|(name, _)| name.contains("TOFU_")) {
            command.env_remove(name);
        }
        command.env("LD_LIBRARY_PATH", self.root.path().join("lib")).envs(env.iter().copied());
        run(&mut command)
    }
}

fn test_source(name: &str) -> PathBuf {
    Path::new(HERE).join("tests").join(name)
}

#[test]
fn the_library_has_its_name_and_just_its_functions() {
    if !have("nm") || !have("readelf") {
        eprintln!("SKIP the_library_has_its_name_and_just_its_functions: no binutils");
        return;
    }
    let library = libraries().join("libtnw.so");
    let dynamic = run(Command::new("readelf").arg("-d").arg(&library));
    assert!(dynamic.contains("soname: [libtnw.so]"), "{dynamic}");
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&library));
    let symbols = symbols.lines().filter_map(|line| line.split_whitespace().nth(2));
    let exported: BTreeSet<_> = symbols.filter(|name| *name != "rust_eh_personality").collect();
    let header = fs::read_to_string(Path::new(HERE).join("include/tnw.h")).unwrap();
    let declared = header.lines().filter_map(|line| {
        let name = line.strip_prefix("int ").or(line.strip_prefix("const char *"))?;
        name.split_once('(').map(|(name, _)| name)
    });
    let declared: BTreeSet<_> = declared.collect();
    assert_eq!(declared.len(), 15);
    assert_eq!(exported, declared);
}

#[test]
fn every_function_does_what_it_says() {
    let Some(program) = Program::build(&test_source("functions.c")) else { return };
    assert_eq!(program.run(&PAIR), "ok\n");
}

#[test]
fn threads_share_nodes_and_channels() {
    let Some(program) = Program::build(&test_source("threads.c")) else { return };
    // Without a shape it is 2x2x2.
    assert_eq!(program.run(&[PAIR[0]]), "ok\n");
}

#[test]
fn a_program_without_a_device_is_told_what_to_do() {
    let Some(program) = Program::build(&test_source("nodevice.c")) else { return };
    for (env, why) in [
        (&[("TOFU_DEVICE", "ffff:ff:1f.7")][..], "TOFU_PROVIDER=inproc"),
        (&[("TOFU_DEVICE", "nonsense")], "TOFU_DEVICE"),
        (&[("TOFU_PROVIDER", "nobody")], "TOFU_PROVIDER is not"),
        (&[("TOFU_PROVIDER", "local")], "TOFU_LOCAL_SOCKET is not set"),
        (&[PAIR[0], ("TOFU_SHAPE", "2x2")], "TOFU_SHAPE is not three lengths"),
        (&[PAIR[0], ("TOFU_SHAPE", "unit")], "TOFU_SHAPE is not three lengths"),
    ] {
        let said = program.run(env);
        assert!(said.starts_with("-35 tnwOpen: ") && said.contains(why), "{said}");
    }
}

#[test]
fn the_header_is_good_c99_and_cpp() {
    let header = Path::new(HERE).join("include/tnw.h");
    for (compiler, language, standard) in [("gcc", "c", "-std=c99"), ("g++", "c++", "-std=c++98")] {
        if !have(compiler) {
            eprintln!("SKIP the_header_is_good_c99_and_cpp: no {compiler}");
            continue;
        }
        run(Command::new(compiler)
            .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-Wno-long-long", standard])
            .args(["-fsyntax-only", "-x", language])
            .arg(&header));
    }
}
