//! A C program against the header and the shared library, built as a user would build it.

use std::path::Path;

use tofu_c_tests::{Program, builds_as_c99_and_cxx, exported, text};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn c_program_uses_every_function() {
    let c = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];
    let source = Path::new(HERE).join("tests/jtofu.c");
    let Some(program) = Program::build(&c, &source, &["jtofu"]) else { return };
    let unit = [
        ("JTOFU_MAPINFO_NODE", "4x3"),
        ("JTOFU_MAPINFO_SYSTEM", "1x1x1x2x3x2"),
        ("JTOFU_MAPINFO_PPN", "4"),
        ("JTOFU_MAPINFO_PROC", "46"),
    ];
    assert_eq!(program.run(&[], &unit), "all as it should be\n");
    let row = [
        ("JTOFU_MAPINFO_NODE", "47"),
        ("JTOFU_MAPINFO_SYSTEM", "4x1x1x2x3x2"),
        ("JTOFU_MAPINFO_TORUS", "none"),
        ("JTOFU_MAPINFO_EXCLUDE", "1,0,0,0,0,0"),
    ];
    assert_eq!(program.run(&["failures"], &row), "round the failed node\n");
    assert_eq!(program.run(&[], &[]), "nothing there\n");
    let debug = program.command(&[("JTOFU_DEBUG", "1")]).output().unwrap();
    assert!(debug.status.success());
    assert_eq!(
        text(&debug),
        "nothing there\njtofu: none of TOFU_MAPINFO, TOFU_MAPINFO_FILE, JTOFU_MAPINFO_NODE is set\n"
    );
}

/// `mpi-ext.h`, with an MPI library for one process.
#[test]
fn mpi_extension_tells_places() {
    let folder = |name: &str| format!("-I{}", Path::new(HERE).join(name).display());
    let (stub, own) = (folder("tests/mpi-stub"), folder("include"));
    let source = Path::new(HERE).join("tests/mpi-ext.c");
    for (compiler, standard) in [("gcc", "-std=c11"), ("g++", "-std=c++17")] {
        let warnings = ["-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE"];
        let options = [&[compiler, standard, &stub, &own][..], &warnings].concat();
        let Some(program) = Program::build(&options, &source, &["jtofu"]) else { return };
        let job = [
            ("JTOFU_MAPINFO_NODE", "4x3"),
            ("JTOFU_MAPINFO_SYSTEM", "1x1x1x2x3x2"),
            ("JTOFU_MAPINFO_PPN", "2"),
            ("STUB_RANK", "5"),
            ("STUB_SIZE", "24"),
        ];
        assert_eq!(program.run(&[], &job), "all as it should be\n", "{compiler}");
    }
}

#[test]
fn header_compiles_as_c99_and_cxx() {
    let source = "#include <jtofu.h>\nint main(void) { return jtofu_finalize() != -5; }\n";
    builds_as_c99_and_cxx(source, &["jtofu"]);
}

#[test]
fn library_exports_exactly_its_functions() {
    let Some(exported) = exported("libtofutop.so") else { return };
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
    assert_eq!(exported, expected.map(str::to_owned).into());
}
