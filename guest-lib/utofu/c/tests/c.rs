//! C programs against the header and the shared library, built as a user would build them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tofu_abi::Generation;
use tofu_abi::generation::Description;
use tofu_abi::reduce::MAX_UTOFU_INTEGERS;
use tofu_c_tests::{Installed, Program, exported, have, run};
use tofu_utofu::Code;

const HERE: &str = env!("CARGO_MANIFEST_DIR");
/// The libraries that the programs use.
const LIBRARIES: [&str; 2] = ["utofu", "jtofu"];
/// The command that compiles the C programs of the tests.
const C: [&str; 7] = ["gcc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"];
/// The same for programs that are C++ as well.
const CPP: [&str; 8] =
    ["g++", "-x", "c++", "-std=c++11", "-O1", "-Wall", "-Wextra", "-D_Static_assert=static_assert"];

/// Builds a program; `None` without a compiler.
fn build(compiler: &[&str], source: &Path) -> Option<Program> {
    Program::build(compiler, source, &LIBRARIES)
}

/// Builds a program and runs it with arguments and these environment variables; returns its output,
/// or `None` if there is no compiler.
fn build_and_run_with(
    compiler: &[&str],
    source: &Path,
    args: &[&str],
    env: &[(&str, &str)],
) -> Option<String> {
    build(compiler, source).map(|program| program.run(args, env))
}

fn build_and_run(source: &Path, env: &[(&str, &str)]) -> Option<String> {
    build_and_run_with(&C, source, &[], env)
}

fn test_source(name: &str) -> PathBuf {
    Path::new(HERE).join("tests").join(name)
}

/// Two neighbouring nodes in the program's own process.
const PAIR: [(&str, &str); 2] = [("TOFU_PROVIDER", "inproc"), ("TOFU_SHAPE", "1x1x1x2x1x1")];

#[test]
fn paths_avoid_known_dead_links() {
    let Some(program) = build(&C, &test_source("news.c")) else { return };
    let dead = tempfile::NamedTempFile::new().unwrap();
    let path = dead.path().to_str().unwrap();
    let run = |text: &str, avoid: &str| {
        fs::write(dead.path(), text).unwrap();
        let ring = "1x1x1x1x3x1";
        program.run(
            &[],
            &[
                ("TOFU_PROVIDER", "inproc"),
                ("TOFU_SHAPE", ring),
                ("JTOFU_MAPINFO_NODE", "3"),
                ("JTOFU_MAPINFO_SYSTEM", ring),
                ("TOFU_LINKS", path),
                ("UTOFU_AVOID_DEAD_LINKS", avoid),
            ],
        )
    };
    let well = "shape 1x1x1x1x3x1 torus \n";
    assert_eq!(run("", "1"), "010\n000\n3 010\n010\n010\n");
    assert_eq!(run(well, "1"), "010\n000\n3 010\n010\n010\n");
    for dead in ["0 0 0 0 0 0 B+", "0 0 0 0 1 0 B-"] {
        let dead = format!("{well}{dead}\n");
        assert_eq!(run(&dead, "1"), "020\n020\n1 020\n020\n010\n");
        assert_eq!(run(&dead, "0"), "010\n000\n1 020\n010\n010\n");
    }
    // Where no way is known, dead links are ignored.
    let cut_off = format!("{well}0 0 0 0 0 0 B+ B-\n");
    assert_eq!(run(&cut_off, "1"), "010\n000\n3 010\n010\n010\n");
    let other = "shape 1x1x1x2x3x2 torus \n0 0 0 0 0 0 B+\n";
    assert!(run(other, "1").contains("\n3 010\n"), "another machine");
}

#[test]
fn values_layouts_and_symbols_are_stable() {
    for compiler in [&C[..], &CPP] {
        if let Some(output) = build_and_run_with(compiler, &test_source("abi.c"), &[], &[]) {
            assert_eq!(output, "66 functions\n");
        }
    }
}

#[test]
fn library_exports_exactly_its_functions() {
    let Some(exported) = exported("libtofucom.so") else { return };
    // The functions of the headers, and the three that are not in any.
    let header = |name| fs::read_to_string(Path::new(HERE).join("include").join(name)).unwrap();
    let (utofu, collective) = (header("utofu.h"), header("tofu_collective.h"));
    let wait = header("tofu_wait.h");
    let functions = |header: &str, prefix| {
        let lines = header.lines().filter_map(|line| {
            let name = line.strip_prefix("int ").or(line.strip_prefix("void "))?;
            name.starts_with(prefix).then_some(name)
        });
        lines.map(|name| name.split('(').next().unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    let mut expected = functions(&utofu, "utofu_");
    assert_eq!(expected.len(), 65);
    expected.extend(functions(&collective, "tofu_coll_"));
    expected.extend(functions(&wait, "tofu_wait"));
    assert_eq!(expected.len(), 65 + 8 + 2);
    let others = ["utofu_get_last_error", "tofu_inproc_count", "tofu_inproc_select"];
    expected.extend(others.map(str::to_owned));
    assert_eq!(exported, expected);
}

/// Functions and codes in the table of the manual.
fn documented_codes() -> BTreeSet<(String, String)> {
    let page = Path::new(HERE).join("../../../docs/src/reference/utofu-codes.md");
    let page = fs::read_to_string(page).unwrap();
    let mut codes = BTreeSet::new();
    for row in page.lines().filter_map(|line| line.strip_prefix("| `")) {
        let (functions, row) = row.split_once(" | ").unwrap();
        for function in functions.split_whitespace() {
            let function = function.trim_matches('`').to_owned();
            let all = row.trim_end_matches([' ', '|']).split_whitespace();
            codes.extend(all.map(|code| (function.clone(), code.to_owned())));
        }
    }
    codes
}

#[test]
fn functions_return_the_manuals_codes() {
    let source = test_source("codes.c");
    let Some(mut output) = build_and_run(&source, &PAIR) else {
        return;
    };
    let many = [PAIR[0], ("TOFU_SHAPE", "1x1x1x1x1x1"), ("TOFU_PPN", "48")];
    output += &build_and_run_with(&C, &source, &["many-processes"], &many).unwrap();
    let none = [("TOFU_DEVICE", "ffff:ff:1f.7")];
    output += &build_and_run_with(&C, &source, &["no-device"], &none).unwrap();
    let returned: BTreeSet<_> = output
        .lines()
        .filter_map(|line| line.split_once(" ERR_"))
        .map(|(function, code)| (function.to_owned(), code.to_owned()))
        .collect();
    let documented = documented_codes();
    let list = |a: &BTreeSet<_>, b: &BTreeSet<_>| a.difference(b).cloned().collect::<Vec<_>>();
    assert_eq!(list(&returned, &documented), [], "not in the manual");
    assert_eq!(list(&documented, &returned), [], "in the manual, and not seen");
    assert!(documented.len() > 300, "the table was not read");
    let succeeded: BTreeSet<_> =
        output.lines().filter_map(|line| line.strip_suffix(" SUCCESS")).collect();
    // All but the two that return nothing.
    assert_eq!(succeeded.len(), 65 - 2, "{succeeded:?}");
}

#[test]
fn every_function_does_what_it_says() {
    if let Some(output) = build_and_run(&test_source("functions.c"), &PAIR) {
        assert_eq!(output, "ok\n");
    }
}

#[test]
fn functions_refuse_null_and_garbage() {
    if let Some(output) = build_and_run(&test_source("garbage.c"), &PAIR) {
        assert_eq!(output, "ok\n");
    }
}

#[test]
fn arbitrary_calls_return_codes_only() {
    let source = test_source("anything.c");
    let Some(output) = build_and_run_with(&C, &source, &["60000"], &PAIR) else {
        return;
    };
    let documented = documented_codes();
    let name = |value: i32| Code::ALL.iter().find(|code| code.value() == value).unwrap().name();
    let mut seen = BTreeSet::new();
    for line in output.lines() {
        let (function, code) = line.split_once(' ').unwrap();
        seen.insert(function);
        if let Some(code) = name(code.parse().unwrap()).strip_prefix("UTOFU_ERR_") {
            assert!(documented.contains(&(function.to_owned(), code.to_owned())), "{line}");
        }
    }
    assert_eq!(seen.len(), 65);
}

#[test]
fn random_commands_do_what_a_model_does() {
    if let Some(output) = build_and_run_with(&C, &test_source("model.c"), &["5000"], &PAIR) {
        assert_eq!(output, "ok\n");
    }
}

#[test]
fn programs_run_while_their_puts_are_split() {
    let example = |name: &str| Path::new(HERE).join("../examples/c").join(name);
    let env = [PAIR[0], ("TOFU_SHAPE", "1x1x1x2x3x2"), ("UTOFU_SPLIT_PUTS", "9600")];
    for (name, line) in [("sizes.c", "22 sizes"), ("split.c", "40000000 bytes in 3 pieces")] {
        let Some(whole) = build_and_run(&example(name), &env[..2]) else { return };
        assert!(whole.contains(line), "{whole}");
        assert_eq!(build_and_run(&example(name), &env), Some(whole));
    }
}

#[test]
fn groups_synchronise_and_reduce() {
    let unit = [PAIR[0], ("TOFU_SHAPE", "1x1x1x2x3x2")];
    if let Some(output) = build_and_run(&test_source("collective.c"), &unit) {
        assert_eq!(output, "ok\n");
    }
}

#[test]
fn forked_child_has_nothing_of_its_parent() {
    if let Some(output) = build_and_run(&test_source("fork.c"), &PAIR) {
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
fn programs_sleep_until_something_comes() {
    let Some(program) = build(&C, &test_source("wait.c")) else { return };
    assert_eq!(program.run(&[], &PAIR), "ok\n");
    let split = [PAIR[0], ("TOFU_SHAPE", "1x1x1x2x3x2"), ("UTOFU_SPLIT_PUTS", "9600")];
    // A node with several paths to it.
    assert_eq!(program.run(&["11"], &split), "ok\n");
}

#[test]
fn missing_device_is_reported_with_advice() {
    let output = build_and_run(&test_source("nodevice.c"), &[("TOFU_DEVICE", "ffff:ff:1f.7")]);
    if let Some(output) = output {
        assert!(output.starts_with("-7 utofu_create_vcq: UTOFU_ERR_NOT_AVAILABLE"), "{output}");
        assert!(output.contains("TOFU_PROVIDER=inproc"), "{output}");
    }
    let wrong = [("TOFU_PROVIDER", "inproc"), ("TOFU_SHAPE", "2x2")];
    if let Some(output) = build_and_run(&test_source("nodevice.c"), &wrong) {
        assert!(output.starts_with("-7 ") && output.contains("TOFU_SHAPE"), "{output}");
    }
    let wrong = [("TOFU_PROVIDER", "inproc"), ("TOFU_PPN", "49")];
    if let Some(output) = build_and_run(&test_source("nodevice.c"), &wrong) {
        assert!(output.starts_with("-7 ") && output.contains("49"), "{output}");
    }
    let wrong = [("TOFU_PROVIDER", "inproc"), ("UTOFU_SPLIT_PUTS", "long")];
    if let Some(output) = build_and_run(&test_source("nodevice.c"), &wrong) {
        assert!(output.starts_with("-7 ") && output.contains("UTOFU_SPLIT_PUTS"), "{output}");
    }
    let wrong = [("TOFU_PROVIDER", "inproc"), ("UTOFU_SPIN_US", "soon")];
    if let Some(output) = build_and_run(&test_source("nodevice.c"), &wrong) {
        assert!(output.starts_with("-7 ") && output.contains("UTOFU_SPIN_US"), "{output}");
    }
    let wrong = [("TOFU_PROVIDER", "unknown")];
    if let Some(output) = build_and_run(&test_source("nodevice.c"), &wrong) {
        assert!(output.starts_with("-7 ") && output.contains("TOFU_PROVIDER"), "{output}");
    }
}

#[test]
fn host_devices_are_in_a_separate_library() {
    let Some(program) = build(&C, &test_source("nodevice.c")) else { return };
    let file = program.libraries().join("libtofulocal.so");
    let said = || program.run(&[], &PAIR);
    // A library of another version, and one that is no library of tofu.
    let foreign = |source: &str| {
        let c = file.with_extension("c");
        fs::write(&c, source).unwrap();
        run(Command::new(C[0]).args(["-shared", "-fPIC", "-o"]).arg(&file).arg(&c));
    };
    let wrong = |expected: &str| {
        let said = said();
        assert!(said.starts_with("-7 utofu_create_vcq: UTOFU_ERR_NOT_AVAILABLE: "), "{said}");
        assert!(said.contains(file.to_str().unwrap()) && said.contains(expected), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    };
    fs::remove_file(&file).unwrap();
    foreign("static unsigned version = 77; void *tofu_local_table(void) { return &version; }");
    wrong("has version 77 of its functions");
    foreign("int other;");
    wrong("it has no table of functions");
    fs::write(&file, "no library").unwrap();
    wrong("does not load");

    fs::remove_file(&file).unwrap();
    let said = said();
    assert!(said.starts_with("-7 "), "{said}");
    for expected in [
        "libtofulocal.so is needed",
        program.libraries().to_str().unwrap(),
        "tofu sdk",
        "cargo build --release -p tofu-local",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    assert_eq!(said.lines().count(), 1, "{said}");
    // Programs that do not request such a device do not need it.
    let said = program.run(&[], &[("TOFU_DEVICE", "ffff:ff:1f.7")]);
    assert!(said.contains("TOFU_PROVIDER=inproc"), "{said}");
}

/// The expected output of `generation.c` for a generation.
fn said_of(generation: Generation) -> String {
    let Description { version, tnis, barrier, piggyback, .. } = *generation.description();
    let Description { atomics, session_mode, .. } = *generation.description();
    let list = |count: u8| (0..count).map(|tni| format!(" {tni}")).collect::<String>();
    let mut said = format!("version {version}.0\none-sided{}\n", list(tnis));
    said += &format!("barrier{}\n", list(barrier.tnis));
    let (flags, operations) = match (session_mode, atomics) {
        (false, false) => ("0", "0"),
        (true, true) => ("0x3", "0x3f"),
        _ => unreachable!("{generation}"),
    };
    let integers = usize::from(barrier.integers).min(MAX_UTOFU_INTEGERS);
    // All but MAXLOC, which takes pairs.
    let reductions = if integers < 2 { 0x1be } else { 0x1fe };
    for tni in 0..6 {
        said += &match (tni < tnis, tni < barrier.tnis) {
            (true, with_gates) => {
                let (caps, gates) = match with_gates {
                    true => {
                        let doubles = barrier.doubles;
                        (format!("SUCCESS {reductions:#x} {integers} {doubles}"), "SUCCESS")
                    }
                    false => ("NOT_SUPPORTED".to_owned(), "FULL"),
                };
                let onesided = format!("SUCCESS {flags} {operations} {piggyback}");
                format!("TNI {tni}: {onesided}, barriers {caps}, VCQ SUCCESS, gates {gates}\n")
            }
            (false, _) => {
                let no = "INVALID_TNI_ID";
                format!("TNI {tni}: {no}, barriers {no}, VCQ {no}, gates {no}\n")
            }
        };
    }
    let supported = |is: bool| if is { "SUCCESS" } else { "NOT_SUPPORTED" };
    said += &format!("session {}\n", supported(session_mode));
    for prepare in ["", "prepare_"] {
        for command in ["armw4", "armw8", "cswap4", "cswap8"] {
            said += &format!("{prepare}{command} {}\n", supported(atomics));
        }
    }
    said += &format!("one-sided works over {tnis} TNIs\n");
    said += &format!("MAXLOC {}\n", if integers < 2 { "INVALID_NUMBER" } else { "SUCCESS" });
    said + &format!("barriers work with {integers} elements\n")
}

#[test]
fn interfaces_follow_their_generation() {
    let Some(program) = build(&C, &test_source("generation.c")) else { return };
    for generation in Generation::ALL {
        let env = [&PAIR[..], &[("TOFU_GENERATION", generation.name())]].concat();
        assert_eq!(program.run(&[], &env), said_of(generation), "{generation}");
    }
}

#[test]
fn earlier_generations_survive_any_calls() {
    let Some(program) = build(&C, &test_source("anything.c")) else { return };
    for generation in Generation::ALL.into_iter().filter(|of| *of != Generation::Fugaku) {
        let env = [&PAIR[..], &[("TOFU_GENERATION", generation.name())]].concat();
        let output = program.run(&["15000"], &env);
        let functions: BTreeSet<_> =
            output.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(functions.len(), 65, "{generation}");
    }
}

/// The features that an example needs beyond those of all generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    Nothing,
    Atomics,
    Sessions,
}

/// Runs an example on machines of a shape, of all generations that have what it needs.
fn example(name: &str, needs: Needs, shape: &str, expected: impl Fn(&Description) -> String) {
    let source = Path::new(HERE).join("../examples/c").join(name);
    let Some(program) = build(&C, &source) else { return };
    for generation in Generation::ALL {
        let description = generation.description();
        let has = match needs {
            Needs::Nothing => true,
            Needs::Atomics => description.atomics,
            Needs::Sessions => description.session_mode,
        };
        if has {
            let env = [
                ("TOFU_PROVIDER", "inproc"),
                ("TOFU_SHAPE", shape),
                ("TOFU_GENERATION", generation.name()),
            ];
            assert_eq!(program.run(&[], &env), expected(description), "{name}: {generation}");
        }
    }
}

#[test]
fn examples_print_what_the_manual_says() {
    use Needs::{Atomics, Nothing, Sessions};
    const PAIR: &str = "1x1x1x2x1x1";
    const FOUR: &str = "1x1x1x2x2x1";
    const UNIT: &str = "1x1x1x2x3x2";
    example("ring_put.c", Nothing, UNIT, |_| {
        let line = |rank: u32| {
            let from = (rank + 11) % 12;
            format!("rank {rank}: \"hello from rank {from}\", edata {from}\n")
        };
        (0..12).map(line).collect()
    });
    example("ring_get.c", Nothing, FOUR, |_| {
        let line = |rank: usize| {
            let letter = ["D", "A", "B", "C"][rank];
            format!("rank {rank}: 100000 bytes of '{letter}', 0 wrong\n")
        };
        (0..4).map(line).collect()
    });
    // Each side adds one to what came: 2000 modulo 256.
    for (name, needs, shape, expected) in [
        ("counter.c", Atomics, FOUR, "counter 4000, each number drawn once: yes\n"),
        ("pingpong.c", Nothing, PAIR, "1000 rounds of 4096 bytes, first byte 208\n"),
        ("relay.c", Sessions, UNIT, "rank 11 has it: through 12 ranks, 10 of which did nothing\n"),
        ("stride.c", Nothing, UNIT, "12 ranks, halo columns of 300 rows, 0 wrong\n"),
        ("lock.c", Atomics, FOUR, "counter 800 of 800, lock free\n"),
        ("piggyback.c", Nothing, FOUR, "512 of 512 letters as they were written\n"),
        ("prepared.c", Atomics, UNIT, "100 rounds of 192 bytes of descriptors, 0 wrong\n"),
        ("sizes.c", Nothing, PAIR, "22 sizes up to 16777215 bytes, 22 as they were sent\n"),
        ("threads.c", Atomics, PAIR, "2 ranks of 4 threads: each number drawn once\n"),
        ("split.c", Nothing, PAIR, "40000000 bytes in 3 pieces\n"),
    ] {
        example(name, needs, shape, |_| expected.to_owned());
    }
    example("striping.c", Nothing, PAIR, |description| {
        format!("12582912 bytes over {} TNIs, 0 wrong\n", description.tnis)
    });
    example("many_vcqs.c", Nothing, PAIR, |&Description { tnis, .. }| {
        let all = u32::from(tnis) * 16;
        format!(
            "rank 0: {tnis} TNIs, {all} completions\nrank 1: {all} of {all} numbers at the right \
             VCQ\n"
        )
    });
}

#[test]
fn job_finds_its_neighbours() {
    let source = Path::new(HERE).join("../examples/c/torus.c");
    let env = [
        PAIR[0],
        ("TOFU_SHAPE", "1x1x1x2x3x2"),
        ("JTOFU_MAPINFO_NODE", "4x3"),
        ("JTOFU_MAPINFO_SYSTEM", "1x1x1x2x3x2"),
    ];
    if let Some(output) = build_and_run(&source, &env) {
        let expected = "rank 0: left 3 right 1 below 8 above 4\n\
                        48 of 48 numbers from the right neighbour\n";
        assert_eq!(output, expected);
    }
}

#[test]
fn manuals_python_runs() {
    if !have("python3") {
        eprintln!("SKIP manuals_python_runs: no python3");
        return;
    }
    let manual = Path::new(HERE).join("../../../docs/src/user/utofu.md");
    let manual = fs::read_to_string(manual).unwrap();
    let start = manual.find("import ctypes").unwrap();
    let program = &manual[start..start + manual[start..].find("```").unwrap()];
    let installed = Installed::new(&LIBRARIES);
    let mut python = Command::new("timeout");
    python.args(["60", "python3", "-c", program]);
    let output = run(installed.environment(&mut python).env("TOFU_PROVIDER", "inproc"));
    assert_eq!(output, "b'tofu'\n");
}

#[test]
fn header_compiles_as_c99_and_cpp() {
    let headers = Path::new(HERE).join("include");
    for (compiler, language) in [("gcc", "c"), ("g++", "c++")] {
        if !have(compiler) {
            eprintln!("SKIP header_compiles_as_c99_and_cpp: no {compiler}");
            continue;
        }
        let standard = if language == "c" { "-std=c99" } else { "-std=c++98" };
        run(Command::new(compiler)
            .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-Wno-long-long", standard])
            .args(["-fsyntax-only", "-x", language, "-I"])
            .arg(&headers)
            .args(["utofu.h", "tofu_collective.h", "tofu_wait.h"].map(|name| headers.join(name))));
    }
}
