//! Builds the guest programs of tools/guests and embeds them.
//!
//! They are a workspace of their own (no std, panic = "abort"), so they get a
//! cargo of their own with a target folder inside this crate's OUT_DIR. Every
//! binary of that workspace becomes a shipped guest, described by the first line of
//! its documentation.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Settings of the outer cargo that must not reach the inner one: they choose
/// wrappers (clippy), flags (sanitizers, coverage) and targets for host programs.
const NOT_INHERITED: [&str; 8] = [
    "CARGO_ENCODED_RUSTFLAGS",
    "RUSTFLAGS",
    "RUSTC",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "CARGO_BUILD_TARGET",
    "CARGO_TARGET_DIR",
    "CARGO_MAKEFLAGS",
];

fn main() {
    let guests = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../guests");
    let out = PathBuf::from(variable("OUT_DIR"));
    let target = out.join("guests");
    for watched in
        ["../guests", "../../guest-lib/abi", "../../guest-lib/bare", "../../guest-lib/driver"]
    {
        println!("cargo::rerun-if-changed={watched}");
    }

    let mut build = cargo(&guests);
    build.args(["build", "--release", "--locked", "--target-dir"]).arg(&target);
    let status = build.status().expect("cargo starts");
    assert!(status.success(), "the guest programs in tools/guests do not build");

    let mut metadata = cargo(&guests);
    metadata.args(["metadata", "--no-deps", "--locked", "--format-version", "1"]);
    let metadata = metadata.output().expect("cargo starts");
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: serde_json::Value =
        serde_json::from_slice(&metadata.stdout).expect("cargo metadata prints JSON");

    let version = Command::new(variable("RUSTC")).arg("--version").output().expect("rustc starts");
    let version = String::from_utf8_lossy(&version.stdout);
    println!("cargo::rustc-env=TOFU_RUSTC_VERSION={}", version.trim());

    let mut shipped = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        for program in package["targets"].as_array().into_iter().flatten() {
            let is_program = program["kind"]
                .as_array()
                .is_some_and(|kinds| kinds.iter().any(|kind| kind == "bin"));
            if let (true, Some(name)) = (is_program, program["name"].as_str()) {
                let source = program["src_path"].as_str().unwrap_or_default();
                shipped.push((name, summary(Path::new(source)), target.join("release").join(name)));
            }
        }
    }
    shipped.sort();

    let mut code = String::from("/// The guest programs in tools/guests, by name.\n");
    code.push_str("pub(crate) static SHIPPED: &[Shipped] = &[\n");
    for (name, summary, image) in shipped {
        let image = image.to_str().expect("OUT_DIR is UTF-8");
        code.push_str(&format!(
            "Shipped {{ name: {name:?}, summary: {summary:?}, image: include_bytes!({image:?}) }},\n"
        ));
    }
    code.push_str("];\n");
    fs::write(out.join("shipped.rs"), code).expect("OUT_DIR is writable");
}

/// The first line of a program's documentation, without a full stop at its end.
fn summary(source: &Path) -> String {
    let text = fs::read_to_string(source).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("//! "));
    let line = line.unwrap_or_else(|| panic!("{} has no //! documentation", source.display()));
    line.trim_end_matches('.').to_owned()
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

fn cargo(folder: &Path) -> Command {
    let mut cargo = Command::new(variable("CARGO"));
    cargo.current_dir(folder);
    for name in NOT_INHERITED {
        cargo.env_remove(name);
    }
    cargo
}
