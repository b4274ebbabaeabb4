//! Debian's own kernels: identifies them, and checks that everything with which the driver is
//! compiled matches them.
//!
//! These kernels do not check the layouts with which a module was compiled (CONFIG_MODVERSIONS is
//! off), so headers and source must have exactly the kernel's version.

use crate::apt::Deb;
use crate::arch::Arch;
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::manifest::Manifest;
use crate::progress::Progress;
use crate::spec::DriverFor;

/// The version that the driver is written for, because the kernel's interfaces for Rust change.
const VERSION: &str = "7.3";

/// The packages with which a module for such a kernel is compiled, except for the kernel's own. All
/// are from Debian 13 itself, whose Rust compiles the kernel.
pub(super) const PACKAGES: &[&str] = &[
    "base-files",
    "bash",
    "bindgen",
    "coreutils",
    "dash",
    "diffutils",
    "findutils",
    "gawk",
    "gcc-x86-64-linux-gnu",
    "grep",
    "gzip",
    "kmod",
    "libc6-dev",
    "make",
    "mawk",
    "perl-base",
    "rust-clippy",
    "rust-src",
    "rustc",
    "sed",
    "tar",
    "xz-utils",
];
pub(super) const SCRIPT: &str = include_str!("../../init/stock");
/// The script that makes the tree against which modules are compiled.
pub(super) const KDIR: &str = include_str!("../../../../guest-lib/kernel/kdir");
/// Approximate number of lines that the script prints.
pub(super) const LINES: u64 = 30;

/// One of Debian's kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stock {
    /// The release, as `uname -r` prints it.
    pub(super) release: String,
    /// The version of its packages.
    version: String,
}

impl Stock {
    /// Returns the kernel of a part with one of Debian's.
    pub(super) fn of(part: &Manifest) -> Result<Self> {
        let release = part.kernel.clone();
        let packages = ["linux-binary-", "linux-image-"].map(|start| format!("{start}{release}"));
        let package = packages.iter().find_map(|name| part.packages.get(name));
        let Some(version) = package.map(|package| package.version.clone()) else {
            let reason = "its package is not known: add --refresh".into();
            return Err(Error::Stock { release, reason });
        };
        let fits = release.strip_prefix(VERSION).is_some_and(|rest| rest.starts_with('.'));
        if !fits {
            let reason = format!("the driver is for Linux {VERSION}; --kernel driver builds one");
            return Err(Error::Stock { release, reason });
        }
        Ok(Self { release, version })
    }

    /// Returns the key that distinguishes its build root from those of other kernels.
    pub(super) fn key(&self) -> String {
        format!("{} {}", self.release, self.version)
    }

    fn source(&self) -> String {
        format!("linux-source-{VERSION}")
    }

    fn headers(&self) -> String {
        format!("linux-headers-{}", self.release)
    }

    /// Returns the packages of the build root: those for this host's architecture, and others that
    /// are unpacked without their dependencies. For another architecture, the headers are among the
    /// latter, while the programs are the host's.
    pub(super) fn find_packages(
        &self,
        cache: &Cache,
        wanted: DriverFor,
        progress: &dyn Progress,
    ) -> Result<(Vec<Deb>, Vec<Deb>)> {
        let from = wanted.from();
        let mut names: Vec<String> = wanted.packages().into_iter().map(str::to_owned).collect();
        names.push(self.source());
        let mut foreign = Vec::new();
        if wanted.arch == Arch::host() {
            names.push(self.headers());
        } else {
            let apt = cache.apt_for(wanted.arch, progress)?;
            let depends =
                apt.depends(&self.headers(), from).map_err(|error| self.explain(error))?;
            let start = |start: &'static str| move |name: &&String| name.starts_with(start);
            names.extend(depends.iter().filter(start("linux-kbuild-")).cloned());
            let common = depends.iter().filter(start("linux-headers-")).map(String::as_str);
            let headers = self.headers();
            let alone: Vec<&str> = common.chain([headers.as_str()]).collect();
            foreign = apt.alone(&alone, from).map_err(|error| self.explain(error))?;
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let closure = cache.apt(progress)?.closure(&names, from);
        let debs = closure.map_err(|error| self.explain(error))?;
        self.check(debs.iter().chain(&foreign))?;
        Ok((debs, foreign))
    }

    /// Turns the error that a package does not exist into an explanation.
    fn explain(&self, error: Error) -> Error {
        match error {
            Error::NoPackage { name, .. } if name == self.headers() || name == self.source() => {
                let reason =
                    format!("Debian has no {name} any more, but a newer kernel: add --refresh");
                Error::Stock { release: self.release.clone(), reason }
            }
            other => other,
        }
    }

    /// Checks that headers and source have the kernel's version.
    fn check<'a>(&self, mut debs: impl Iterator<Item = &'a Deb>) -> Result<()> {
        let ours =
            |deb: &&Deb| deb.name() == self.source() || deb.name().starts_with("linux-headers-");
        match debs.find(|deb| ours(deb) && deb.version() != self.version) {
            None => Ok(()),
            Some(deb) => Err(Error::Stock {
                release: self.release.clone(),
                reason: format!(
                    "it is of version {}, and {} of {}: add --refresh",
                    self.version,
                    deb.name(),
                    deb.version()
                ),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Package;

    const RELEASE: &str = "7.3.4+deb13-cloud-amd64";

    fn part(release: &str) -> Manifest {
        let mut part = Manifest::new("kernel-x", "");
        part.kernel = release.into();
        let package = Package { version: "7.3.4-1~bpo13+1".into(), sha256: String::new() };
        part.packages.insert(format!("linux-binary-{release}"), package);
        part
    }

    fn deb(name: &str, version: &str) -> Deb {
        Deb { file: format!("{name}_{version}_amd64.deb"), size: 1 }
    }

    #[test]
    fn kernel_of_another_version_is_refused() {
        assert_eq!(Stock::of(&part(RELEASE)).unwrap().version, "7.3.4-1~bpo13+1");
        for other in ["7.4.1+deb13-amd64", "7.30.1+deb13-amd64", "6.12.107+deb13-amd64"] {
            let error = Stock::of(&part(other)).unwrap_err().to_string();
            let text = format!(
                "cannot build tofu.ko for Debian's kernel {other}: the driver is for Linux 7.3; \
                 --kernel driver builds one"
            );
            assert_eq!(error, text);
        }
        let mut unknown = part(RELEASE);
        unknown.packages.clear();
        assert!(Stock::of(&unknown).unwrap_err().to_string().contains("is not known"));
    }

    #[test]
    fn source_and_headers_match_the_kernel() {
        let stock = Stock::of(&part(RELEASE)).unwrap();
        let good = "7.3.4-1~bpo13+1";
        let names = [
            "linux-source-7.3",
            "linux-headers-7.3.4+deb13-common",
            &format!("linux-headers-{RELEASE}"),
        ];
        let debs = |bad: &str| -> Vec<Deb> {
            let version = |name: &str| if name == bad { "7.3.5-1~bpo13+1" } else { good };
            let mut debs: Vec<Deb> = names.iter().map(|name| deb(name, version(name))).collect();
            debs.push(deb("make", "4.4.1-2"));
            debs
        };
        stock.check(debs("").iter()).unwrap();
        for name in names {
            assert_eq!(
                stock.check(debs(name).iter()).unwrap_err().to_string(),
                format!(
                    "cannot build tofu.ko for Debian's kernel {RELEASE}: it is of version {good}, \
                     and {name} of 7.3.5-1~bpo13+1: add --refresh"
                )
            );
        }
        let gone = Error::NoPackage { name: stock.headers(), release: "trixie" };
        assert!(stock.explain(gone).to_string().contains("a newer kernel: add --refresh"));
    }
}
