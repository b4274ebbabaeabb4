//! The initial RAM file system of Linux guests: busybox, our init script, the modules that a guest
//! may need, and our own programs.

use crate::Program;
use crate::cpio::Archive;
use crate::error::Result;
use crate::modules::{self, Module};

const INIT: &str = include_str!("../init/init");
const INITTAB: &str = include_str!("../init/inittab");
const SESSION: &str = include_str!("../init/session");
/// The first program of a guest that configures packages.
pub(crate) const SETUP: &str = include_str!("../init/setup");

/// Returns the contents of our scripts, for the image's fingerprint.
pub(crate) fn scripts() -> [&'static str; 3] {
    [INIT, INITTAB, SESSION]
}

/// Makes the archive. `load` lists the modules that init always loads.
pub(crate) fn build(
    busybox: &[u8],
    release: &str,
    modules: &[Module],
    load: &[&str],
    programs: &[Program],
) -> Result<Vec<u8>> {
    build_with(INIT, busybox, (release, modules), load, programs)
}

/// Makes an archive with another first program than that of nodes.
pub(crate) fn build_with(
    init: &str,
    busybox: &[u8],
    (release, modules): (&str, &[Module]),
    load: &[&str],
    programs: &[Program],
) -> Result<Vec<u8>> {
    let mut archive = Archive::new();
    // Linux creates neither parent folders nor a console.
    for folder in [
        "bin",
        "sbin",
        "dev",
        "etc",
        "etc/tofu",
        "lib",
        "lib/modules",
        "root",
        "usr",
        "usr/bin",
        "usr/sbin",
        "usr/local",
        "usr/local/bin",
        "usr/local/sbin",
        "usr/local/lib",
        "usr/local/lib/tofu",
    ] {
        archive.folder(folder, if folder == "root" { 0o700 } else { 0o755 })?;
    }
    archive.device("dev/console", 0o600, 5, 1)?;
    archive.file("bin/busybox", 0o755, busybox)?;
    archive.file("init", 0o755, init.as_bytes())?;
    archive.file("etc/inittab", 0o644, INITTAB.as_bytes())?;
    archive.file("etc/tofu/session", 0o755, SESSION.as_bytes())?;
    archive.link("usr/local/lib/tofu/session", "/etc/tofu/session")?;
    archive.link("usr/local/lib/tofu/busybox", "/bin/busybox")?;
    archive.link("usr/local/sbin/reboot", "/bin/busybox")?;
    archive.file("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\n")?;
    archive.file("etc/group", 0o644, b"root:x:0:\n")?;
    let mut list = String::new();
    for name in load {
        list.push_str(name);
        list.push('\n');
    }
    archive.file("etc/tofu/modules", 0o644, list.as_bytes())?;

    if !modules.is_empty() {
        add_modules(&mut archive, release, modules)?;
    }
    for program in programs {
        let path = format!("usr/local/bin/{}", program.name);
        archive.file(&path, program.mode, &program.bytes)?;
    }
    archive.finish()
}

/// Adds modules of the kernel `release`, with the folders that they are in.
fn add_modules(archive: &mut Archive, release: &str, modules: &[Module]) -> Result<()> {
    let base = format!("lib/modules/{release}");
    archive.folder(&base, 0o755)?;
    let mut made = Vec::new();
    for module in modules {
        for (at, _) in module.path.match_indices('/') {
            let folder = &module.path[..at];
            if !made.contains(&folder) {
                archive.folder(&format!("{base}/{folder}"), 0o755)?;
                made.push(folder);
            }
        }
        archive.file(&format!("{base}/{}", module.path), 0o644, &module.bytes)?;
    }
    let dependencies = modules::dependency_file(modules);
    archive.file(&format!("{base}/modules.dep"), 0o644, dependencies.as_bytes())?;
    let aliases = modules::alias_file(modules);
    archive.file(&format!("{base}/modules.alias"), 0o644, aliases.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_input_gives_equal_bytes() {
        let programs = [Program::new("tofu-agent", b"x".to_vec()).unwrap()];
        let module = Module {
            name: "vfio".into(),
            path: "kernel/drivers/vfio/vfio.ko".into(),
            bytes: b"m".to_vec(),
            depends: vec![],
            aliases: vec![],
        };
        let build =
            || build(b"busybox", "6.12", std::slice::from_ref(&module), &["vfio"], &programs);
        let (first, second) = (build().unwrap(), build().unwrap());
        assert_eq!(first, second);
        let has = |text: &[u8]| first.windows(text.len()).any(|window| window == text);
        for folder in ["kernel", "kernel/drivers", "kernel/drivers/vfio"] {
            assert!(has(format!("lib/modules/6.12/{folder}\0").as_bytes()), "{folder}");
        }
        assert!(has(b"usr/local/bin/tofu-agent\0"));
    }
}
