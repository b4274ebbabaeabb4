//! Programs for nodes with Arm's processors. They are no part of this command: a released package
//! has them in a folder, and whoever works in a checkout has them built when they are needed.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, bail};
use tofu_image::{Arch, Phase, Program, Progress};
use tofu_programs::{LINUX, LINUX_PACKAGES};

/// A folder of the user's with the programs.
const VARIABLE: &str = "TOFU_ARM64_PROGRAMS";
/// Where a package has them, beside the folder of the command.
const PACKAGED: &str = "lib/tofu/arm64";
/// With this C library programs are static, and need nothing but Rust's own linker.
const TARGET: &str = "aarch64-unknown-linux-musl";
const LINKER: &str = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER";

/// Why there are no programs.
pub(crate) const NONE: &str = "no programs for arm64 nodes beside this command: run it in a \
                               checkout of its sources, where they are built, or name a folder \
                               with them by TOFU_ARM64_PROGRAMS";

/// The programs for nodes with Arm's processors; `None` if there are none, nor their sources.
///
/// # Errors
///
/// If they cannot be read or built: what is missing, and how to get it.
pub(crate) fn programs(progress: &dyn Progress) -> anyhow::Result<Option<Vec<Program>>> {
    if LINUX.is_empty() {
        bail!("this tofu was built without programs for Linux nodes");
    }
    let folder = match env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        Some(named) => PathBuf::from(named),
        None => match packaged().filter(|folder| folder.is_dir()) {
            Some(folder) => folder,
            None => match checkout() {
                Some(root) => build(&root, progress)?,
                None => return Ok(None),
            },
        },
    };
    let program = |name: &str| {
        let path = folder.join(name);
        let bytes = fs::read(&path)
            .with_context(|| format!("program for arm64 {}: cannot read it", path.display()))?;
        if Arch::of_elf(&bytes) != Some(Arch::Arm64) {
            bail!("program for arm64 {}: it is for another processor", path.display());
        }
        Ok(Program::new(name, bytes)?)
    };
    LINUX.iter().map(|shipped| program(shipped.name)).collect::<Result<_, _>>().map(Some)
}

fn packaged() -> Option<PathBuf> {
    let command = env::current_exe().ok()?;
    Some(command.parent()?.parent()?.join(PACKAGED))
}

/// The checkout in which this command or the user is.
fn checkout() -> Option<PathBuf> {
    let places = [env::current_exe().ok(), env::current_dir().ok()];
    let is_ours = |folder: &&Path| {
        folder.join("tools/agent/Cargo.toml").is_file()
            && folder.join("tools/programs/build.rs").is_file()
    };
    let found = places.iter().flatten().find_map(|place| place.ancestors().find(is_ours));
    found.map(Path::to_owned)
}

/// Builds the programs in a checkout. Returns the folder with them.
fn build(root: &Path, progress: &dyn Progress) -> anyhow::Result<PathBuf> {
    progress.update(Phase::Programs, 0, 1);
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut libraries = Command::new(rustc);
    libraries.args(["--print", "target-libdir", "--target", TARGET]);
    let folder = run(&mut libraries, root)?;
    let folder = String::from_utf8_lossy(&folder.stdout).trim().to_owned();
    if !Path::new(&folder).is_dir() {
        progress.note(&format!("fetching Rust's libraries for {TARGET}"));
        let mut rustup = Command::new("rustup");
        rustup.args(["target", "add", TARGET]);
        run(&mut rustup, root).with_context(|| {
            format!("Rust has no libraries for {TARGET}; `rustup target add {TARGET}` fetches them")
        })?;
    }
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    // That of tools/programs/build.rs, too: what compilers run is there already.
    let target = root.join(target).join("programs/linux");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--release", "--locked", "--bins", "--target", TARGET, "--target-dir"])
        .arg(&target)
        .args(LINUX_PACKAGES.iter().flat_map(|package| ["--package", package]))
        .env(LINKER, "rust-lld")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "none")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    let result = run(&mut cargo, root).context("the programs for arm64 nodes do not build")?;
    log::debug!("{}", String::from_utf8_lossy(&result.stderr));
    progress.update(Phase::Programs, 1, 1);
    Ok(target.join(TARGET).join("release"))
}

/// Runs a command in a folder. The error is what it said last.
fn run(command: &mut Command, folder: &Path) -> anyhow::Result<Output> {
    let name = OsString::from(command.get_program());
    let name = name.to_string_lossy();
    let output = command
        .current_dir(folder)
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let error = said.lines().find(|line| line.starts_with("error"));
        let last = error.or_else(|| said.lines().last()).unwrap_or_default();
        bail!("{name}: {}", tofu_ui::printable(last));
    }
    Ok(output)
}
