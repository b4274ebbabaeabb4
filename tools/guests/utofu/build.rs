//! Passes the linker what a program without an operating system needs.

fn main() {
    let Ok(script) = std::env::var("DEP_TOFU_BARE_LINKER_SCRIPT") else { return };
    println!("cargo::rerun-if-changed={script}");
    for arg in ["-nostartfiles", "-static", "-no-pie", "-Wl,--build-id=none"] {
        println!("cargo::rustc-link-arg-bins={arg}");
    }
    println!("cargo::rustc-link-arg-bins=-T{script}");
}
