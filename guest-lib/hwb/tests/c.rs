//! C programs against the header and the shared library, built as a user would build them.

use std::path::Path;

use tofu_c_tests::{Program, builds_as_c99_and_cxx, exported, text};

const NAME: [&str; 1] = ["fujitsu_hwb"];

#[test]
fn two_cores_meet() {
    let c = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O2"];
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hwb.c");
    let Some(program) = Program::build(&c, &source, &NAME) else { return };
    let said = program.run(&[], &[]);
    if said == "too few cores\n" {
        eprintln!("SKIP two_cores_meet: this host has one core");
        return;
    }
    assert_eq!(said, "all as it should be\n");
    let debug = program.command(&[("FUJITSU_HWBLIB_DEBUG", "1")]).output().unwrap();
    assert!(text(&debug).contains("libFJhwb: the caller is not bound to one core\n"));
}

#[test]
fn header_compiles_as_c99_and_cxx() {
    let source = "#include <fujitsu_hwb.h>\nint main(void) { return fhwb_fini(0) >= 0; }\n";
    builds_as_c99_and_cxx(source, &NAME);
}

#[test]
fn library_exports_exactly_its_functions() {
    let Some(exported) = exported("libFJhwb.so") else { return };
    let expected = [
        "fhwb_assign",
        "fhwb_fini",
        "fhwb_get_all_pe_info",
        "fhwb_get_bb_from_bd",
        "fhwb_get_cmg_from_bd",
        "fhwb_get_pe_info",
        "fhwb_init",
        "fhwb_sync",
        "fhwb_unassign",
    ];
    assert_eq!(exported, expected.map(str::to_owned).into());
}
