//! `guest-lib/kernel/kdir` on machines where something does not match: made-up files and programs,
//! each time with one of another version.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

const RELEASE: &str = "7.3.4+deb13-amd64";
const VERSION: &str = "7.3.4-1~bpo13+1";
const CC: &str = "x86_64-linux-gnu-gcc-14";
const RUSTC: &str = "rustc 1.85.1 (4eb161250 2025-03-15) (built from a source tarball)";

/// A machine with everything that is needed.
struct Machine {
    folder: TempDir,
}

impl Machine {
    fn new() -> Self {
        let this = Self { folder: tempfile::tempdir().unwrap() };
        let common = this.src().join("linux-headers-7.3.4+deb13-common");
        this.write(&this.header("Makefile"), &format!("include {}/Makefile\n", common.display()));
        this.write(&common.join("Makefile"), &makefile("7.3.4"));
        this.write(&this.header("scripts/x"), "");
        this.headers_of(RELEASE, VERSION);
        this.config("y", RUSTC);
        this.source("7.3.4");
        this.program(CC, "");
        let version = format!("#1 SMP Debian {VERSION} (2026-11-01)");
        let script = format!(
            "case $1 in -v) echo '{version}' ;; -m) echo x86_64 ;; *) echo {RELEASE} ;; esac"
        );
        this.program("uname", &script);
        this.program("rustc", &format!("echo '{RUSTC}'"));
        this.program("dpkg-query", &format!("printf '%s' '{VERSION}'"));
        // Where nothing is wrong, this is as far as it goes.
        this.program("make", "echo made for \"${6#ARCH=}\" by \"${9#HOSTCC=}\"; exit 9");
        this
    }

    fn src(&self) -> PathBuf {
        self.folder.path().join("src")
    }

    fn header(&self, name: &str) -> PathBuf {
        self.src().join(format!("linux-headers-{RELEASE}")).join(name)
    }

    fn write(&self, path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.folder.path().join("bin").join(name);
        self.write(&path, &format!("#!/bin/sh\n{script}\n"));
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn headers_of(&self, release: &str, version: &str) {
        let generated = |name: &str| self.header("include/generated").join(name);
        let text = format!("#define UTS_RELEASE \"{release}\"\n");
        self.write(&generated("utsrelease.h"), &text);
        let text = format!("#define LINUX_PACKAGE_ID \" Debian {version}\"\n");
        self.write(&generated("package.h"), &text);
    }

    fn config(&self, rust: &str, compiler: &str) {
        self.config_for("X86_64", CC, rust, compiler);
    }

    fn config_for(&self, arch: &str, cc: &str, rust: &str, compiler: &str) {
        let text = format!(
            "CONFIG_{arch}=y\nCONFIG_CC_VERSION_TEXT=\"{cc} (Debian 14.2.0-19) 14.2.0\"\n\
             CONFIG_RUST={rust}\nCONFIG_RUSTC_VERSION_TEXT=\"{compiler}\"\n"
        );
        self.write(&self.header(".config"), &text);
    }

    /// The package of the source, of these numbers.
    fn source(&self, numbers: &str) {
        let tree = self.folder.path().join("linux-source-7.3");
        self.write(&tree.join("Makefile"), &makefile(numbers));
        for file in ["rust/x", "scripts/x", "drivers/base/base.h", ".clippy.toml", ".rustfmt.toml"]
        {
            self.write(&tree.join(file), "");
        }
        for file in ["arch/x", ".kernelvariables", "Module.symvers", "vmlinux", "tools/x"] {
            self.write(&self.header(file), "");
        }
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(self.folder.path()).arg("-cJf");
        tar.arg(self.src().join("linux-source-7.3.tar.xz")).arg("linux-source-7.3");
        assert!(tar.status().unwrap().success());
    }

    /// Runs kdir; returns its exit code and its only line.
    #[track_caller]
    fn run(&self) -> (Option<i32>, String) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-lib/kernel/kdir");
        let path = std::env::var("PATH").unwrap();
        let bin = self.folder.path().join("bin");
        let k = self.folder.path().join("k");
        let _ = fs::remove_dir_all(&k);
        let output = Command::new("sh")
            .arg(script)
            .arg(&k)
            .env("PATH", format!("{}:{path}", bin.display()))
            .env("KDIR_SRC", self.src())
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap().replace(self.src().to_str().unwrap(), "SRC");
        assert_eq!(said.lines().count(), 1, "{said}");
        (output.status.code(), said.trim_end().to_owned())
    }

    #[track_caller]
    fn refuses(&self, expected: &str) {
        assert_eq!(self.run(), (Some(1), format!("error: {expected}")));
    }
}

fn makefile(numbers: &str) -> String {
    let mut numbers = numbers.split('.');
    let names = ["VERSION", "PATCHLEVEL", "SUBLEVEL"];
    names.map(|name| format!("{name} = {}\n", numbers.next().unwrap())).concat()
}

#[test]
fn mismatched_build_folder_is_named() {
    for program in ["tar", "xz"] {
        if Command::new(program).arg("--version").output().is_err() {
            eprintln!("SKIP mismatched_build_folder_is_named: there is no {program}");
            return;
        }
    }
    let machine = Machine::new();
    assert_eq!(machine.run(), (Some(9), format!("made for x86 by {CC}")));
    machine.program("aarch64-linux-gnu-gcc-14", "");
    machine.config_for("ARM64", "aarch64-linux-gnu-gcc-14", "y", RUSTC);
    assert_eq!(machine.run(), (Some(9), format!("made for arm64 by {CC}")));
    machine.config_for("ARM64", "aarch64-linux-gnu-gcc-99", "y", RUSTC);
    machine.refuses(&format!(
        "there is no aarch64-linux-gnu-gcc-99, which kernel {RELEASE} was built by"
    ));
    machine.config_for("RISCV", CC, "y", RUSTC);
    machine.refuses(&format!("kernel {RELEASE} is neither for x86-64 nor for arm64"));
    machine.config("y", RUSTC);

    machine.headers_of("7.3.5+deb13-amd64", VERSION);
    machine.refuses(&format!(
        "SRC/linux-headers-{RELEASE} is of release \"7.3.5+deb13-amd64\", not {RELEASE}: install \
         linux-headers-{RELEASE} anew"
    ));
    machine.headers_of(RELEASE, "7.3.4-2~bpo13+1");
    machine.refuses(&format!(
        "linux-source-7.3 is of version {VERSION}, the headers of {RELEASE} are of \
         7.3.4-2~bpo13+1: install both of one version"
    ));
    machine.program("dpkg-query", "printf '%s' '7.3.4-2~bpo13+1'");
    machine.refuses(&format!(
        "the kernel that runs (#1 SMP Debian {VERSION} (2026-11-01)) is not of the headers' \
         version 7.3.4-2~bpo13+1: reboot into it, or update the headers"
    ));
    machine.program("dpkg-query", &format!("printf '%s' '{VERSION}'"));
    machine.headers_of(RELEASE, VERSION);

    machine.program("rustc", "echo 'rustc 1.90.0 (1159e78c4 2025-09-14)'");
    machine.refuses(&format!(
        "rustc is \"rustc 1.90.0 (1159e78c4 2025-09-14)\", kernel {RELEASE} was built by \
         \"{RUSTC}\": install Debian's rustc of that version, and have it first in PATH"
    ));
    machine.program("rustc", &format!("echo '{RUSTC}'"));
    machine.config("n", RUSTC);
    machine.refuses(&format!(
        "kernel {RELEASE} was built without Rust: take Debian's kernel 7.3 of the backports"
    ));
    machine.config("y", RUSTC);

    machine.source("7.3.5");
    machine.refuses(&format!(
        "SRC/linux-source-7.3.tar.xz is of Linux 7.3.5, the headers of {RELEASE} are of 7.3.4: \
         install both of one version"
    ));
    fs::remove_file(machine.src().join("linux-source-7.3.tar.xz")).unwrap();
    machine
        .refuses("SRC/linux-source-7.3.tar.xz is not there: install the package linux-source-7.3");
    fs::remove_dir_all(machine.header("")).unwrap();
    machine.refuses(&format!(
        "SRC/linux-headers-{RELEASE} is not there: install the package linux-headers-{RELEASE}"
    ));
}
