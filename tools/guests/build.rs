//! Link arguments of bare-metal programs.

fn main() {
    // Without the feature `bare` there is no tofu-bare, and Linux programs link as usual.
    let Ok(script) = std::env::var("DEP_TOFU_BARE_LINKER_SCRIPT") else { return };
    println!("cargo::rerun-if-changed={script}");
    for arg in ["-nostartfiles", "-static", "-no-pie", "-Wl,--build-id=none"] {
        println!("cargo::rustc-link-arg-bins={arg}");
    }
    println!("cargo::rustc-link-arg-bins=-T{script}");
    // A loader; see tofu_bare::loader.
    for symbol in ["__image_base=0x100000", "__loader_heap=0x200000"] {
        println!("cargo::rustc-link-arg-bin=tofu-boot=-Wl,--defsym={symbol}");
    }
}
