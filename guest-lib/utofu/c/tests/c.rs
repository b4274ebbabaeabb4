//! C programs against the header and the shared library, built as a user builds his.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

fn have(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// The shared library, which cargo leaves beside the tests.
fn library() -> PathBuf {
    env::current_exe().unwrap().with_file_name("libtofucom.so")
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out
}

/// A folder with the header, the library and the pkg-config file as if installed.
fn installed() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let header = Path::new(HERE).join("../header");
    fs::create_dir_all(root.path().join("include")).unwrap();
    fs::create_dir_all(root.path().join("lib/pkgconfig")).unwrap();
    fs::copy(header.join("utofu.h"), root.path().join("include/utofu.h")).unwrap();
    fs::copy(library(), root.path().join("lib/libtofucom.so")).unwrap();
    let config = fs::read_to_string(header.join("utofu.pc.in")).unwrap();
    let config = config
        .replace("@prefix@", root.path().to_str().unwrap())
        .replace("@version@", env!("CARGO_PKG_VERSION"));
    fs::write(root.path().join("lib/pkgconfig/utofu.pc"), config).unwrap();
    root
}

fn flags(root: &Path) -> Vec<String> {
    if !have("pkg-config") {
        let root = root.display();
        return vec![format!("-I{root}/include"), format!("-L{root}/lib"), "-ltofucom".into()];
    }
    let flags = run(Command::new("pkg-config")
        .args(["--cflags", "--libs", "utofu"])
        .env("PKG_CONFIG_PATH", root.join("lib/pkgconfig")));
    flags.split_whitespace().map(str::to_owned).collect()
}

/// Builds a program and runs it with these environment variables; returns its output, or `None`
/// if there is no compiler.
fn build_and_run(source: &Path, env: &[(&str, &str)]) -> Option<String> {
    let name = source.file_stem().unwrap().to_str().unwrap();
    if !have("gcc") {
        eprintln!("SKIP {name}: no gcc");
        return None;
    }
    let root = installed();
    let root = root.path();
    let program = root.join(name);
    run(Command::new("gcc")
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .args([&program, source])
        .args(flags(root)));
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "120"]).arg(&program);
    for (name, _) in env::vars().filter(|(name, _)| name.contains("TOFU_")) {
        command.env_remove(name);
    }
    command.env("LD_LIBRARY_PATH", root.join("lib")).envs(env.iter().copied());
    Some(run(&mut command))
}

fn test_source(name: &str) -> PathBuf {
    Path::new(HERE).join("tests").join(name)
}

/// Two neighbouring nodes in the program's own process.
const PAIR: [(&str, &str); 2] = [("TOFU_PROVIDER", "inproc"), ("TOFU_SHAPE", "1x1x1x2x1x1")];

#[test]
fn values_layouts_and_symbols_are_those_that_programs_rely_on() {
    if let Some(output) = build_and_run(&test_source("abi.c"), &[]) {
        assert_eq!(output, "66 functions\n");
    }
}

#[test]
fn every_function_does_what_it_says() {
    if let Some(output) = build_and_run(&test_source("functions.c"), &PAIR) {
        assert_eq!(output, "ok\n");
    }
}

#[test]
fn null_and_garbage_are_refused_by_every_function() {
    if let Some(output) = build_and_run(&test_source("garbage.c"), &PAIR) {
        assert_eq!(output, "ok\n");
    }
}

#[test]
fn threads_share_a_vcq() {
    if let Some(output) = build_and_run(&test_source("threads.c"), &PAIR) {
        assert_eq!(output, "ok\n");
    }
}

#[test]
fn a_program_without_a_device_is_told_what_to_do() {
    let output = build_and_run(&test_source("nodevice.c"), &[("TOFU_DEVICE", "ffff:ff:1f.7")]);
    if let Some(output) = output {
        assert!(output.starts_with("-7 utofu_create_vcq: UTOFU_ERR_NOT_AVAILABLE"), "{output}");
        assert!(output.contains("TOFU_PROVIDER=inproc"), "{output}");
    }
    let wrong = [("TOFU_PROVIDER", "inproc"), ("TOFU_SHAPE", "2x2")];
    if let Some(output) = build_and_run(&test_source("nodevice.c"), &wrong) {
        assert!(output.starts_with("-7 ") && output.contains("TOFU_SHAPE"), "{output}");
    }
    let wrong = [("TOFU_PROVIDER", "inproc"), ("TOFU_PPN", "37")];
    if let Some(output) = build_and_run(&test_source("nodevice.c"), &wrong) {
        assert!(output.starts_with("-7 ") && output.contains("37"), "{output}");
    }
    let wrong = [("TOFU_PROVIDER", "nobody")];
    if let Some(output) = build_and_run(&test_source("nodevice.c"), &wrong) {
        assert!(output.starts_with("-7 ") && output.contains("TOFU_PROVIDER"), "{output}");
    }
}

/// Runs an example on a machine of a shape.
fn example(name: &str, shape: &str) -> Option<String> {
    let source = Path::new(HERE).join("../examples/c").join(name);
    build_and_run(&source, &[("TOFU_PROVIDER", "inproc"), ("TOFU_SHAPE", shape)])
}

#[test]
fn examples_print_what_the_manual_says() {
    let Some(output) = example("ring_put.c", "1x1x1x2x3x2") else {
        return;
    };
    let line = |rank: u32| {
        let from = (rank + 11) % 12;
        format!("rank {rank}: \"hello from rank {from}\", edata {from}\n")
    };
    assert_eq!(output, (0..12).map(line).collect::<String>());

    let output = example("ring_get.c", "1x1x1x2x2x1").unwrap();
    let line = |rank: u32| {
        let letter = ["D", "A", "B", "C"][rank as usize];
        format!("rank {rank}: 100000 bytes of '{letter}', 0 wrong\n")
    };
    assert_eq!(output, (0..4).map(line).collect::<String>());

    let output = example("counter.c", "1x1x1x2x2x1").unwrap();
    assert_eq!(output, "counter 4000, each number drawn once: yes\n");
    let output = example("pingpong.c", "1x1x1x2x1x1").unwrap();
    // Each side adds one to what came: 2000 modulo 256.
    assert_eq!(output, "1000 rounds of 4096 bytes, first byte 208\n");
    let output = example("striping.c", "1x1x1x2x1x1").unwrap();
    assert_eq!(output, "12582912 bytes over 6 TNIs, 0 wrong\n");
    let output = example("relay.c", "1x1x1x2x3x2").unwrap();
    assert_eq!(output, "rank 11 has it: through 12 ranks, 10 of which did nothing\n");
}

#[test]
fn the_python_of_the_manual_runs() {
    if !have("python3") {
        eprintln!("SKIP the_python_of_the_manual_runs: no python3");
        return;
    }
    let manual = Path::new(HERE).join("../../../docs/src/user/utofu.md");
    let manual = fs::read_to_string(manual).unwrap();
    let start = manual.find("import ctypes").unwrap();
    let program = &manual[start..start + manual[start..].find("```").unwrap()];
    let root = installed();
    let output = run(Command::new("timeout")
        .args(["60", "python3", "-c", program])
        .env("LD_LIBRARY_PATH", root.path().join("lib"))
        .env("TOFU_PROVIDER", "inproc"));
    assert_eq!(output, "b'tofu'\n");
}

#[test]
fn the_header_is_good_c99_and_cpp() {
    let header = Path::new(HERE).join("../header/utofu.h");
    for (compiler, language) in [("gcc", "c"), ("g++", "c++")] {
        if !have(compiler) {
            eprintln!("SKIP the_header_is_good_c99_and_cpp: no {compiler}");
            continue;
        }
        let standard = if language == "c" { "-std=c99" } else { "-std=c++98" };
        run(Command::new(compiler)
            .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-Wno-long-long", standard])
            .args(["-fsyntax-only", "-x", language])
            .arg(&header));
    }
}
