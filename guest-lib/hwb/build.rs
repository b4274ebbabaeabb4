//! Gives the shared library the name that programs look for.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // A linker by itself, as for other processors, or a compiler that runs one.
    let linker = std::env::var("RUSTC_LINKER").unwrap_or_default();
    let pass = if linker.ends_with("lld") { "" } else { "-Wl," };
    println!("cargo:rustc-cdylib-link-arg={pass}-soname=libFJhwb.so");
}
