//! Builds the programs for nodes and embeds them.
//!
//! Those of tools/guests run without an operating system. They are a separate workspace (no std,
//! panic = "abort"), so they get their own cargo. Those for Linux nodes are packages of this
//! workspace, but linked statically, because there may be nothing else in a guest: another cargo
//! builds all of them. Both build in the folder `programs` of the target folder, which all profiles
//! share: the programs are the same for all. The first sentence of its documentation describes
//! every binary.
//!
//! With TOFU_SKIP_PROGRAMS set, nothing is built or embedded: the command then compiles in seconds,
//! for `cargo check`, and has no guests.

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

/// The program of tools/guests that is not a guest.
const FIRMWARE: &str = "tofu-boot";
/// The package of the guests that are shipped. Others in its workspace are tests.
const GUESTS: &str = "tofu-guests";

/// Packages of this workspace whose programs run on Linux nodes.
const LINUX: [&str; 5] = ["tofu-agent", "tofu-guest", "tofu-guests-linux", "tofu-net", "tofud"];

/// The folders that the programs are built from, relative to this folder.
const SOURCES: [&str; 18] = [
    "../../Cargo.lock",
    "../../guest-lib/abi",
    "../../guest-lib/bare",
    "../../guest-lib/collective",
    "../../guest-lib/driver",
    "../../guest-lib/ipotofu",
    "../../guest-lib/netboot",
    "../../guest-lib/tnw",
    "../../guest-lib/utofu/src",
    "../../guest-lib/vfio",
    "../agent",
    "../guests",
    "../guests-linux",
    "../tap",
    "../tofu-guest",
    "../tofu-net",
    "../tofud",
    "../../vmm-device/sync",
];

fn main() {
    let root = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../..");
    let guests = root.join("tools/guests");
    let out = PathBuf::from(variable("OUT_DIR"));
    for watched in SOURCES {
        println!("cargo::rerun-if-changed={watched}");
    }
    let version = Command::new(variable("RUSTC")).arg("--version").output().expect("rustc starts");
    let version = String::from_utf8_lossy(&version.stdout);
    println!("cargo::rustc-env=TOFU_RUSTC_VERSION={}", version.trim());

    println!("cargo::rerun-if-env-changed=TOFU_SKIP_PROGRAMS");
    if env::var_os("TOFU_SKIP_PROGRAMS").is_some() {
        write_code(&out, &[], &[], &[]);
        return;
    }

    let shared = shared_folder(&out);
    let target = shared.join("guests");
    let mut build = cargo(&guests);
    build.args(["build", "--release", "--locked", "--target-dir"]).arg(&target);
    // Line tables would be most of the command. The names of functions stay, for backtraces.
    build.env("CARGO_PROFILE_RELEASE_DEBUG", "none");
    build.env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    run(build, "the guest programs in tools/guests do not build");
    let bare = programs(
        &guests,
        |package| package == GUESTS,
        &target.join("release"),
        &out.join("guests"),
    );

    let (target, triple) = (shared.join("linux"), variable("TARGET"));
    let mut build = cargo(&root);
    build.args(["build", "--release", "--locked", "--bins", "--target", &triple, "--target-dir"]);
    build.arg(&target).args(LINUX.iter().flat_map(|package| ["--package", package]));
    build.env("RUSTFLAGS", "-C target-feature=+crt-static");
    build.env("CARGO_PROFILE_RELEASE_DEBUG", "none");
    build.env("CARGO_PROFILE_RELEASE_PANIC", "abort");
    build.env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    run(build, "the programs for Linux nodes do not build");
    let ours = |package: &str| LINUX.contains(&package);
    let linux = programs(&root, ours, &target.join(&triple).join("release"), &out.join("linux"));

    let (firmware, bare): (Vec<_>, Vec<_>) =
        bare.into_iter().partition(|(name, ..)| name == FIRMWARE);
    write_code(&out, &firmware, &bare, &linux);
}

/// Writes the statics that embed the programs.
fn write_code(out: &Path, firmware: &[Program], bare: &[Program], linux: &[Program]) {
    let image = firmware.first().map(|(_, _, image)| {
        let image = image.to_str().expect("OUT_DIR is UTF-8");
        format!("include_bytes!({image:?})")
    });
    let image = image.unwrap_or_else(|| "&[]".to_owned());
    let mut code = format!(
        "/// The packages of this workspace that those for Linux nodes are of.\n\
         pub static LINUX_PACKAGES: &[&str] = &{LINUX:?};\n"
    );
    code +=
        &format!("/// The boot firmware of small guests.\npub static FIRMWARE: &[u8] = {image};\n");
    list(&mut code, "BARE", "The guest programs in tools/guests, by name.", bare);
    list(&mut code, "LINUX", "The programs for Linux nodes, by name.", linux);
    fs::write(out.join("shipped.rs"), code).expect("OUT_DIR is writable");
}

fn run(mut build: Command, problem: &str) {
    let status = build.status().expect("cargo starts");
    assert!(status.success(), "{problem}");
}

/// A program that was built: its name, its summary, its file.
type Program = (String, String, PathBuf);

/// The folder `programs` beside those of the profiles, or `out` if cargo's layout of the target
/// folder is not `PROFILE/build/PACKAGE/out`.
fn shared_folder(out: &Path) -> PathBuf {
    let known =
        out.ends_with("out") && out.ancestors().nth(2).is_some_and(|f| f.ends_with("build"));
    match out.ancestors().nth(4) {
        Some(target) if known => target.join("programs"),
        _ => out.join("programs"),
    }
}

/// The programs of the packages that `wanted` selects, of the workspace in `folder`. They are
/// copied from `built` to `kept`, since a build of another profile may replace the former at any
/// time.
fn programs(
    folder: &Path,
    wanted: impl Fn(&str) -> bool,
    built: &Path,
    kept: &Path,
) -> Vec<Program> {
    fs::create_dir_all(kept).expect("OUT_DIR is writable");
    let mut metadata = cargo(folder);
    metadata.args(["metadata", "--no-deps", "--locked", "--format-version", "1"]);
    let metadata = metadata.output().expect("cargo starts");
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: serde_json::Value =
        serde_json::from_slice(&metadata.stdout).expect("cargo metadata prints JSON");
    let mut programs = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        if !package["name"].as_str().is_some_and(&wanted) {
            continue;
        }
        for program in package["targets"].as_array().into_iter().flatten() {
            let is_program = program["kind"]
                .as_array()
                .is_some_and(|kinds| kinds.iter().any(|kind| kind == "bin"));
            if let (true, Some(name)) = (is_program, program["name"].as_str()) {
                let source = program["src_path"].as_str().unwrap_or_default();
                let image = kept.join(name);
                fs::copy(built.join(name), &image).expect("the program was built");
                programs.push((name.to_owned(), summary(Path::new(source)), image));
            }
        }
    }
    programs.sort();
    programs
}

/// Adds a list of programs to the code.
fn list(code: &mut String, list: &str, what: &str, programs: &[Program]) {
    code.push_str(&format!("/// {what}\npub static {list}: &[Shipped] = &[\n"));
    for (name, summary, image) in programs {
        let image = image.to_str().expect("OUT_DIR is UTF-8");
        code.push_str(&format!(
            "Shipped {{ name: {name:?}, summary: {summary:?}, \
             image: include_bytes!({image:?}) }},\n"
        ));
    }
    code.push_str("];\n");
}

/// The first sentence of a program's documentation, without the full stop.
fn summary(source: &Path) -> String {
    let text = fs::read_to_string(source).unwrap_or_default();
    let lines = text.lines().map_while(|line| line.strip_prefix("//! "));
    let paragraph = lines.collect::<Vec<_>>().join(" ");
    let sentence = paragraph.split(". ").next().unwrap_or_default();
    assert!(!sentence.is_empty(), "{} has no //! documentation", source.display());
    sentence.trim_end_matches('.').to_owned()
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
