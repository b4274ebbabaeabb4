//! A C program against the header and the shared library, built as a user would build it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

fn have(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// The shared library, which cargo leaves beside the tests.
fn library() -> PathBuf {
    let test = env::current_exe().unwrap();
    test.with_file_name("libtofutop.so")
}

fn text(output: &Output) -> String {
    let of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    of(&output.stdout) + &of(&output.stderr)
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    text(&output)
}

/// A folder with the header, the library and the pkg-config file as if installed.
fn installed() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let place = |from: &Path, to: &str| {
        let to = root.path().join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
    };
    place(&Path::new(HERE).join("include/jtofu.h"), "include/jtofu.h");
    place(&library(), "lib/libtofutop.so");
    let config = fs::read_to_string(Path::new(HERE).join("jtofu.pc.in")).unwrap();
    let config = config
        .replace("@prefix@", root.path().to_str().unwrap())
        .replace("@version@", env!("CARGO_PKG_VERSION"));
    fs::create_dir_all(root.path().join("lib/pkgconfig")).unwrap();
    fs::write(root.path().join("lib/pkgconfig/jtofu.pc"), config).unwrap();
    root
}

fn flags(root: &Path) -> Vec<String> {
    if !have("pkg-config") {
        let root = root.display();
        return vec![format!("-I{root}/include"), format!("-L{root}/lib"), "-ltofutop".into()];
    }
    let flags = run(Command::new("pkg-config")
        .args(["--cflags", "--libs", "jtofu"])
        .env("PKG_CONFIG_PATH", root.join("lib/pkgconfig")));
    flags.split_whitespace().map(str::to_owned).collect()
}

fn program(root: &Path, env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(root.join("jtofu"));
    for (name, _) in env::vars().filter(|(name, _)| name.contains("TOFU_")) {
        command.env_remove(name);
    }
    command.env("LD_LIBRARY_PATH", root.join("lib")).envs(env.iter().copied());
    command
}

#[test]
fn a_c_program_uses_every_function() {
    if !have("gcc") {
        eprintln!("SKIP a_c_program_uses_every_function: no gcc");
        return;
    }
    let root = installed();
    let root = root.path();
    run(Command::new("gcc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread", "-o"])
        .arg(root.join("jtofu"))
        .arg(Path::new(HERE).join("tests/jtofu.c"))
        .args(flags(root)));

    let unit = [
        ("JTOFU_MAPINFO_NODE", "4x3"),
        ("JTOFU_MAPINFO_SYSTEM", "1x1x1x2x3x2"),
        ("JTOFU_MAPINFO_PPN", "4"),
        ("JTOFU_MAPINFO_PROC", "46"),
    ];
    assert_eq!(run(&mut program(root, &unit)), "all as it should be\n");
    let row = [
        ("JTOFU_MAPINFO_NODE", "47"),
        ("JTOFU_MAPINFO_SYSTEM", "4x1x1x2x3x2"),
        ("JTOFU_MAPINFO_TORUS", "none"),
        ("JTOFU_MAPINFO_EXCLUDE", "1,0,0,0,0,0"),
    ];
    assert_eq!(run(program(root, &row).arg("failures")), "round the failed node\n");
    assert_eq!(run(&mut program(root, &[])), "nothing there\n");
    assert_eq!(
        run(&mut program(root, &[("JTOFU_DEBUG", "1")])),
        "nothing there\njtofu: none of TOFU_MAPINFO, TOFU_MAPINFO_FILE, JTOFU_MAPINFO_NODE is set\n"
    );
}

#[test]
fn the_header_is_good_for_c99_and_cxx() {
    let source = "#include <jtofu.h>\nint main(void) { return jtofu_finalize() != -5; }\n";
    for (compiler, standard, suffix) in [("gcc", "-std=c99", "c"), ("g++", "-std=c++11", "cc")] {
        if !have(compiler) {
            eprintln!("SKIP the_header_is_good_for_c99_and_cxx: no {compiler}");
            continue;
        }
        let root = installed();
        let root = root.path();
        let file = root.join(format!("main.{suffix}"));
        fs::write(&file, source).unwrap();
        run(Command::new(compiler)
            .args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"])
            .arg(root.join("jtofu"))
            .arg(file)
            .args(flags(root)));
        run(&mut program(root, &[]));
    }
}

#[test]
fn the_library_has_its_name_and_just_its_functions() {
    if !have("nm") || !have("readelf") {
        eprintln!("SKIP the_library_has_its_name_and_just_its_functions: no binutils");
        return;
    }
    let dynamic = run(Command::new("readelf").arg("-d").arg(library()));
    assert!(dynamic.contains("soname: [libtofutop.so]"), "{dynamic}");
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library()));
    let mut names: Vec<_> =
        symbols.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    names.sort_unstable();
    let expected = [
        "jtofu_add_job",
        "jtofu_create_mapinfo_by_envvars",
        "jtofu_delete_job",
        "jtofu_finalize",
        "jtofu_initialize",
        "jtofu_query_barrier_hops",
        "jtofu_query_barrier_paths",
        "jtofu_query_jtofu_version",
        "jtofu_query_log_coords",
        "jtofu_query_log_size",
        "jtofu_query_max_proc_per_node",
        "jtofu_query_onesided_hops",
        "jtofu_query_onesided_paths",
        "jtofu_query_phys_coords",
        "jtofu_query_phys_size",
        "jtofu_query_ranks_from_log_coords",
        "jtofu_query_ranks_from_phys_coords",
        "jtofu_query_ref_coords",
        "jtofu_query_sys_size",
        "jtofu_query_sys_torus",
    ];
    let names: Vec<_> = names.into_iter().filter(|name| *name != "rust_eh_personality").collect();
    assert_eq!(names, expected);
}
