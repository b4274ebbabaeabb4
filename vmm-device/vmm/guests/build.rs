//! Link arguments of bare-metal programs.

fn main() {
    let script = std::env::var("DEP_TOFU_BARE_LINKER_SCRIPT").expect("tofu-bare sets it");
    println!("cargo::rerun-if-changed={script}");
    for arg in ["-nostartfiles", "-static", "-no-pie", "-Wl,--build-id=none"] {
        println!("cargo::rustc-link-arg-bins={arg}");
    }
    println!("cargo::rustc-link-arg-bins=-T{script}");
}
