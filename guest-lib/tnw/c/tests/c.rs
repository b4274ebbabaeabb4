//! C programs against the header and the shared library, built as a user would build them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use tofu_c_tests::{Program, exported, have, run};

const HERE: &str = env!("CARGO_MANIFEST_DIR");
/// The command that compiles the programs.
const C: [&str; 7] = ["gcc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"];
/// Two neighbouring nodes in the program's own process.
const PAIR: [(&str, &str); 2] = [("TOFU_PROVIDER", "inproc"), ("TOFU_SHAPE", "2x1x1")];

/// Builds a program of the tests; `None` without a compiler.
fn build(name: &str) -> Option<Program> {
    Program::build(&C, &Path::new(HERE).join("tests").join(name), &["tnw"])
}

#[test]
fn library_exports_exactly_its_functions() {
    let Some(exported) = exported("libtnw.so") else { return };
    let header = fs::read_to_string(Path::new(HERE).join("include/tnw.h")).unwrap();
    let declared = header.lines().filter_map(|line| {
        let name = line.strip_prefix("int ").or(line.strip_prefix("const char *"))?;
        name.split_once('(').map(|(name, _)| name.to_owned())
    });
    let declared: BTreeSet<_> = declared.collect();
    assert_eq!(declared.len(), 15);
    assert_eq!(exported, declared);
}

#[test]
fn every_function_does_what_it_says() {
    let Some(program) = build("functions.c") else { return };
    assert_eq!(program.run(&[], &PAIR), "ok\n");
}

#[test]
fn threads_share_nodes_and_channels() {
    let Some(program) = build("threads.c") else { return };
    // Without a shape it is 2x2x2.
    assert_eq!(program.run(&[], &[PAIR[0]]), "ok\n");
}

#[test]
fn missing_device_is_reported_with_advice() {
    let Some(program) = build("nodevice.c") else { return };
    for (env, why) in [
        (&[("TOFU_DEVICE", "ffff:ff:1f.7")][..], "TOFU_PROVIDER=inproc"),
        (&[("TOFU_DEVICE", "nonsense")], "TOFU_DEVICE"),
        (&[("TOFU_PROVIDER", "unknown")], "TOFU_PROVIDER is not"),
        (&[("TOFU_PROVIDER", "local")], "TOFU_LOCAL_SOCKET is not set"),
        (&[PAIR[0], ("TOFU_SHAPE", "2x2")], "TOFU_SHAPE is not three lengths"),
        (&[PAIR[0], ("TOFU_SHAPE", "unit")], "TOFU_SHAPE is not three lengths"),
    ] {
        let said = program.run(&[], env);
        assert!(said.starts_with("-35 tnwOpen: ") && said.contains(why), "{said}");
    }
}

#[test]
fn host_devices_are_in_a_separate_library() {
    let Some(program) = build("nodevice.c") else { return };
    fs::remove_file(program.libraries().join("libtofulocal.so")).unwrap();
    for provider in ["inproc", "local"] {
        let env = [("TOFU_PROVIDER", provider), ("TOFU_LOCAL_SOCKET", "@nothing")];
        let said = program.run(&[], &env);
        assert!(said.starts_with("-35 tnwOpen: "), "{said}");
        let folder = program.libraries();
        assert!(said.contains("libtofulocal.so is needed"), "{said}");
        assert!(said.contains(folder.to_str().unwrap()), "{said}");
    }
}

#[test]
fn header_compiles_as_c99_and_cpp() {
    let header = Path::new(HERE).join("include/tnw.h");
    for (compiler, language, standard) in [("gcc", "c", "-std=c99"), ("g++", "c++", "-std=c++98")] {
        if !have(compiler) {
            eprintln!("SKIP header_compiles_as_c99_and_cpp: no {compiler}");
            continue;
        }
        run(Command::new(compiler)
            .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-Wno-long-long", standard])
            .args(["-fsyntax-only", "-x", language])
            .arg(&header));
    }
}
