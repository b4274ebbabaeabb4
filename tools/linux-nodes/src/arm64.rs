//! Programs for arm64 nodes, and the libraries that users' programs for such nodes are linked with.
//! They are not part of this command: a released package has them in a folder, and in a checkout
//! they are built when needed.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tofu_image::{Arch, Cache, Phase, Program, Progress, Sysroot};
use tofu_programs::{LINUX, LINUX_PACKAGES};

/// The variable that names a user's folder with the programs and libraries.
const VARIABLE: &str = "TOFU_ARM64_PROGRAMS";
/// The folder in which a package has them, relative to the parent of the command's folder.
const PACKAGED: &str = "lib/tofu/arm64";
/// The target for static programs, which need only Rust's own linker.
const STATIC: &str = "aarch64-unknown-linux-musl";
/// The target for programs that are linked as users link theirs.
const SHARED: &str = "aarch64-unknown-linux-gnu";
/// Rust's own linker.
const LINKER: &str = "rust-lld";
/// The linker for what Debian's rustc compiles.
const COMPILER: &str = "aarch64-linux-gnu-gcc";
/// Packages of this workspace with libraries for users' programs.
const LIBRARY_PACKAGES: [&str; 4] = ["tofu-utofu-c", "tofu-jtofu-c", "tofu-tnw-c", "tofu-hwb"];

/// The reason why there are no programs.
pub(crate) const NONE: &str = "no programs for arm64 nodes beside this command: run it in a \
                               checkout of its sources, where they are built, or name a folder \
                               with them by TOFU_ARM64_PROGRAMS";

/// Returns the programs for arm64 nodes, or `None` if neither they nor their sources exist.
///
/// # Errors
///
/// If they cannot be read or built, with what is missing and how to get it.
pub(crate) fn programs(progress: &dyn Progress) -> anyhow::Result<Option<Vec<Program>>> {
    if LINUX.is_empty() {
        bail!("this tofu was built without programs for Linux nodes");
    }
    let Some(folder) = folder(|root| build_programs(root, progress))? else { return Ok(None) };
    let program = |name: &str| {
        let path = folder.join(name);
        let bytes = tofu_input::read(&path, tofu_input::PROGRAM)
            .with_context(|| format!("program for arm64 {}: cannot read it", path.display()))?;
        if Arch::of_elf(&bytes) != Some(Arch::Arm64) {
            bail!("program for arm64 {}: it is for another processor", path.display());
        }
        Ok(Program::new(name, bytes)?)
    };
    LINUX.iter().map(|shipped| program(shipped.name)).collect::<Result<_, _>>().map(Some)
}

/// Returns the folder with the libraries for programs on arm64 nodes, or `None` if neither they nor
/// their sources exist.
///
/// # Errors
///
/// If they cannot be built, with what is missing and how to get it.
pub(crate) fn libraries(progress: &dyn Progress) -> anyhow::Result<Option<PathBuf>> {
    folder(|root| build_libraries(root, progress))
}

/// Returns the folder that the user names, else that of a package, else the one that `build` makes
/// in a checkout.
fn folder(build: impl FnOnce(&Path) -> anyhow::Result<PathBuf>) -> anyhow::Result<Option<PathBuf>> {
    if let Some(named) = env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        return Ok(Some(named.into()));
    }
    match packaged().filter(|folder| folder.is_dir()) {
        Some(folder) => Ok(Some(folder)),
        None => checkout().as_deref().map(build).transpose(),
    }
}

fn packaged() -> Option<PathBuf> {
    let command = env::current_exe().ok()?;
    Some(command.parent()?.parent()?.join(PACKAGED))
}

/// Returns the checkout that contains this command or the working folder.
fn checkout() -> Option<PathBuf> {
    let places = [env::current_exe().ok(), env::current_dir().ok()];
    let is_ours = |folder: &&Path| {
        folder.join("tools/agent/Cargo.toml").is_file()
            && folder.join("tools/programs/build.rs").is_file()
    };
    let found = places.iter().flatten().find_map(|place| place.ancestors().find(is_ours));
    found.map(Path::to_owned)
}

/// Returns whether programs and libraries for arm64 nodes are available, and where they come from.
pub(crate) fn origin() -> (bool, String) {
    if let Some(named) = env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        return (true, format!("our programs are in {}", PathBuf::from(named).display()));
    }
    if let Some(folder) = packaged().filter(|folder| folder.is_dir()) {
        return (true, format!("our programs are in {}", folder.display()));
    }
    let Some(root) = checkout() else {
        return (false, format!("our programs are neither beside this command nor in {VARIABLE}"));
    };
    let lacking: Vec<_> =
        [STATIC, SHARED].into_iter().filter(|target| !has_target(&root, target)).collect();
    let debian = || Cache::from_env().ok()?.present_arm64_rustc();
    let compiler = match (lacking.as_slice(), rustup(&root)) {
        ([], _) => "this host's rustc".to_owned(),
        (lacking, true) => {
            format!("this host's rustc, when rustup has fetched {}", lacking.join(", "))
        }
        (_, false) => match debian() {
            Some(version) => format!("Debian's rustc {version} in the cache"),
            None => "Debian's rustc, which is fetched at the first use".to_owned(),
        },
    };
    (true, format!("our programs are built in {} by {compiler}", root.display()))
}

fn rustup(root: &Path) -> bool {
    run(Command::new("rustup").arg("--version"), root).is_ok()
}

fn has_target(root: &Path, target: &str) -> bool {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut libraries = Command::new(rustc);
    libraries.args(["--print", "target-libdir", "--target", target]);
    let said = run(&mut libraries, root).map(|output| output.stdout).unwrap_or_default();
    let folder = String::from_utf8_lossy(&said).trim().to_owned();
    Path::new(&folder).is_dir()
}

/// A compiler for arm64 nodes.
enum Toolchain {
    /// The host's Rust, with Rust's libraries for the target.
    Own,
    /// Debian's rustc in the cache, with the libraries for [`SHARED`].
    Debian { rustc: PathBuf, linker: OsString },
}

impl Toolchain {
    /// Returns the host's Rust if it has Rust's own libraries for a target or rustup fetches them,
    /// else Debian's.
    fn find(root: &Path, target: &str, progress: &dyn Progress) -> anyhow::Result<Self> {
        if has_target(root, target) {
            return Ok(Self::Own);
        }
        let mut why = "there is no rustup".to_owned();
        if rustup(root) {
            progress.note(&format!("fetching Rust's libraries for {target}"));
            let mut fetch = Command::new("rustup");
            match run(fetch.args(["target", "add", target]), root) {
                Ok(_) => return Ok(Self::Own),
                Err(error) => why = error.to_string(),
            }
        }
        progress.note(&format!("{why}: taking Debian's rustc instead"));
        let cache = Cache::from_env()?;
        let debian = || -> anyhow::Result<Self> {
            let linker = match tofu_image::has_arm64_gcc() {
                true => COMPILER.into(),
                false => cache.arm64_compilers(progress)?.join(COMPILER).into_os_string(),
            };
            Ok(Self::Debian { rustc: cache.arm64_rustc(progress)?, linker })
        };
        debian().with_context(|| {
            format!("Rust has no libraries for {target}; `rustup target add {target}` fetches them")
        })
    }
}

/// Builds the programs in a checkout. Returns the folder with them.
fn build_programs(root: &Path, progress: &dyn Progress) -> anyhow::Result<PathBuf> {
    let toolchain = Toolchain::find(root, STATIC, progress)?;
    let target = match toolchain {
        Toolchain::Own => STATIC,
        Toolchain::Debian { .. } => SHARED,
    };
    let (mut cargo, target) = cargo(root, &toolchain, target, LINUX_PACKAGES);
    cargo.arg("--bins").env("CARGO_PROFILE_RELEASE_PANIC", "abort");
    if let Toolchain::Debian { .. } = toolchain {
        cargo.env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static");
    }
    let result = told_if_long(progress, Phase::Programs, LONG, || run(&mut cargo, root));
    let result = result.context("the programs for arm64 nodes do not build")?;
    log::debug!("{}", String::from_utf8_lossy(&result.stderr));
    Ok(target)
}

/// Builds the libraries in a checkout. Returns the folder with them.
fn build_libraries(root: &Path, progress: &dyn Progress) -> anyhow::Result<PathBuf> {
    let sysroot = Cache::from_env()?.arm64_sysroot(progress)?;
    let toolchain = Toolchain::find(root, SHARED, progress)?;
    let (mut cargo, target) = cargo(root, &toolchain, SHARED, &LIBRARY_PACKAGES);
    cargo.arg("--lib");
    if let Toolchain::Own = toolchain {
        let mut flags = OsString::from("-Clink-arg=--sysroot=");
        flags.push(&sysroot.root);
        for folder in Sysroot::FOLDERS {
            // The linker looks for it below the sysroot.
            flags.push(format!("\x1f-Clink-arg=-L=/{folder}"));
        }
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags);
    }
    let result = told_if_long(progress, Phase::Libraries, LONG, || run(&mut cargo, root));
    let result = result.context("the libraries for arm64 nodes do not build")?;
    log::debug!("{}", String::from_utf8_lossy(&result.stderr));
    Ok(target)
}

/// The time after which a build is reported to the user. If nothing must be built, cargo takes
/// less.
const LONG: Duration = Duration::from_secs(2);

/// Does some work, and reports it as a phase if it takes long.
fn told_if_long<R: Send>(
    progress: &dyn Progress,
    phase: Phase,
    long: Duration,
    work: impl FnOnce() -> R + Send,
) -> R {
    let start = Instant::now();
    let mut told = false;
    let result = thread::scope(|scope| {
        let working = scope.spawn(work);
        while !working.is_finished() {
            if !told && start.elapsed() >= long {
                progress.update(phase, 0, 1);
                told = true;
            }
            thread::sleep(Duration::from_millis(10));
        }
        working.join()
    });
    if told {
        progress.update(phase, 1, 1);
    }
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Returns a cargo command that builds packages for a target, and the folder of its results.
fn cargo(
    root: &Path,
    toolchain: &Toolchain,
    target: &str,
    packages: &[&str],
) -> (Command, PathBuf) {
    let folder = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    // tools/programs/build.rs uses this folder, too, so what compilers run is already built there.
    // Another compiler would rebuild it, and gets a separate folder.
    let name = match toolchain {
        Toolchain::Own => "programs/linux",
        Toolchain::Debian { .. } => "programs/debian",
    };
    let folder = root.join(folder).join(name);
    let linker = format!("CARGO_TARGET_{}_LINKER", target.to_ascii_uppercase().replace('-', "_"));
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--release", "--locked", "--target", target, "--target-dir"])
        .arg(&folder)
        .args(packages.iter().flat_map(|package| ["--package", package]))
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "none")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    match toolchain {
        Toolchain::Own => cargo.env(linker, LINKER),
        Toolchain::Debian { rustc, linker: gcc } => {
            cargo.env("RUSTC", rustc).env(linker, gcc).env_remove("RUSTUP_TOOLCHAIN")
        }
    };
    (cargo, folder.join(target).join("release"))
}

/// Runs a command in a folder. An error has the command's last message.
fn run(command: &mut Command, folder: &Path) -> anyhow::Result<Output> {
    let name = OsString::from(command.get_program());
    let name = name.to_string_lossy();
    let output = command
        .current_dir(folder)
        .env_remove("RUSTFLAGS")
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Said(Mutex<Vec<u64>>);

    impl Progress for Said {
        fn update(&self, _: Phase, done: u64, _: u64) {
            self.0.lock().unwrap().push(done);
        }
    }

    #[test]
    fn only_long_builds_are_reported() {
        let said = |long: Duration, takes: Duration| {
            let said = Said::default();
            let work = || {
                thread::sleep(takes);
                7
            };
            assert_eq!(told_if_long(&said, Phase::Libraries, long, work), 7);
            said.0.into_inner().unwrap()
        };
        assert_eq!(said(Duration::from_secs(3600), Duration::ZERO), [0; 0]);
        assert_eq!(said(Duration::ZERO, Duration::from_millis(50)), [0, 1]);
    }
}
