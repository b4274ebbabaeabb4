//! Crates of a few files with and without cycles.

use std::fs;

use super::{complaints, source};

/// The findings in a crate of these files.
fn wrong(files: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("there is room for a few files");
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("it is in the folder"))
            .expect("folders can be made");
        fs::write(path, text).expect("files can be written");
    }
    let root = folder.path().join(files[0].0);
    complaints(&source::read_crate(&root).expect("the crate can be read"), folder.path())
}

const CHILD: &str = "use crate::Of; pub fn make(_: Of) {}";

#[test]
fn exporting_a_child_is_no_use() {
    let root = "mod child; pub use child::make; pub struct Of;";
    assert_eq!(wrong(&[("lib.rs", root), ("child.rs", CHILD)]), [""; 0]);
}

#[test]
fn export_with_use_is_a_use() {
    let root = "mod child; pub use child::make; pub struct Of; fn f() { make(Of) }";
    let found = wrong(&[("lib.rs", root), ("child.rs", CHILD)]);
    let cycle = "a cycle of 2 modules\n    child.rs -> lib.rs: Of\n    lib.rs -> child.rs: make";
    assert_eq!(found, [cycle]);
}

#[test]
fn path_through_export_leads_to_definition() {
    let root = "mod a; mod b; pub use a::A; pub use b::*;";
    let found = wrong(&[
        ("lib.rs", root),
        ("a.rs", "pub struct A; fn f() { println!(\"{}\", crate::make()) }"),
        ("b/mod.rs", "mod c; pub use self::c::make;"),
        ("b/c.rs", "use super::super::A; pub fn make() {}"),
    ]);
    let cycle = "a cycle of 2 modules\n    a.rs -> b/c.rs: make\n    b/c.rs -> a.rs: A";
    assert_eq!(found, [cycle]);
}

#[test]
fn module_import_counts_when_used() {
    let root = "mod a; mod b;";
    let a = ("a.rs", "use crate::b; pub fn a() { b::b() }");
    let cycle = "a cycle of 2 modules\n    a.rs -> b.rs: b\n    b.rs -> a.rs: a";
    assert_eq!(wrong(&[("lib.rs", root), a, ("b.rs", "pub fn b() { crate::a::a() }")]), [cycle]);
    assert_eq!(wrong(&[("lib.rs", root), a, ("b.rs", "pub fn b() { other::a::a() }")]), [""; 0]);
}

#[test]
fn items_made_by_a_macro_count() {
    let root = "mod a; mod b;";
    let a = "use crate::b::N; macro_rules! ids { ($n:ident) => { pub struct $n; } } ids! { Id }";
    let b = ("b.rs", "use crate::a::Id; pub const N: u8 = 1; fn f(_: Id) {}");
    let cycle = "a cycle of 2 modules\n    a.rs -> b.rs: N\n    b.rs -> a.rs: Id";
    assert_eq!(wrong(&[("lib.rs", root), ("a.rs", a), b]), [cycle]);
}

#[test]
fn tests_do_not_count() {
    let root = "mod a; pub struct Of; #[cfg(test)] mod tests { use crate::a::a; }
        #[test] fn f() { a::a() } #[cfg(all(loom, test))] use a::b;";
    assert_eq!(wrong(&[("lib.rs", root), ("a.rs", "pub fn a(_: crate::Of) {}")]), [""; 0]);
    let root = "mod a; pub struct Of; #[cfg(not(test))] fn f() { a::a() }";
    assert_eq!(wrong(&[("lib.rs", root), ("a.rs", "pub fn a(_: crate::Of) {}")]).len(), 1);
}

#[test]
fn cycle_may_be_explained() {
    let root = "mod a; mod b;";
    let b = ("b.rs", "pub fn b() { crate::a::a() }");
    let explained = "//! Cycle: `crate::b`, because they call each other.\n
        pub fn a() { crate::b::b() }";
    assert_eq!(wrong(&[("lib.rs", root), ("a.rs", explained), b]), [""; 0]);
    let b = ("b.rs", "pub fn b() {}");
    let found = wrong(&[("lib.rs", root), ("a.rs", explained), b]);
    assert_eq!(found, ["a.rs: explains a cycle with b.rs, and there is none"]);
    let found = wrong(&[("lib.rs", root), ("a.rs", "//! Cycle: we know."), b]);
    assert_eq!(found.len(), 1, "{found:?}");
}
