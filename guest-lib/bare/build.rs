//! Hands the linker script to the build scripts of programs.

fn main() {
    println!("cargo::rerun-if-changed=link.ld");
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("set by Cargo");
    println!("cargo::metadata=linker_script={folder}/link.ld");
}
