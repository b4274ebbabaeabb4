//! The specification of an image to be built.

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::arch::{self, Arch};
use crate::error::{Error, IoContext, Result};
use crate::hash::hex;

/// A kernel for our driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// Built here, small and fast.
    Plain,
    /// Built here, with checks of locks, memory and leaks.
    Debug,
    /// Debian's for virtual machines.
    Cloud,
    /// Debian's for all machines.
    Generic,
    /// Debian's for arm64 with pages of 16 KiB.
    Pages16K,
}

impl Flavour {
    pub(crate) const ALL: [Self; 5] =
        [Self::Plain, Self::Debug, Self::Cloud, Self::Generic, Self::Pages16K];

    /// Returns Debian's kernel of this flavour, or `None` if the kernel is built here.
    pub(crate) fn debian(self) -> Option<Kernel> {
        match self {
            Self::Plain | Self::Debug => None,
            Self::Cloud => Some(Kernel::CloudBackports),
            Self::Generic => Some(Kernel::GenericBackports),
            Self::Pages16K => Some(Kernel::Pages16KBackports),
        }
    }
}

/// A kernel that our driver is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DriverFor {
    pub(crate) flavour: Flavour,
    pub(crate) arch: Arch,
}

/// The kernel of an image.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Kernel {
    /// [`Kernel::Cloud`], or [`Kernel::Generic`] if a requested package needs RDMA devices.
    #[default]
    Auto,
    /// Debian 13's kernel for virtual machines (34 MB of packages): has VFIO, but not soft RoCE.
    Cloud,
    /// Debian 13's kernel for all machines (108 MB of packages): has soft RoCE.
    Generic,
    /// The newest kernel for virtual machines, from backports.
    CloudBackports,
    /// The newest kernel for all machines, from backports.
    GenericBackports,
    /// Debian 13's kernel for arm64 with pages of 16 KiB.
    Pages16K,
    /// The newest kernel with pages of 16 KiB, from backports.
    Pages16KBackports,
    /// A kernel built for the driver tofu.ko, with the driver: see `driver.rs`. For arm64 it has
    /// pages of 64 KiB, like Fugaku's.
    Driver,
    /// [`Kernel::Driver`] with checks of locks and memory, for tests of the driver; slow.
    DriverDebug,
    /// [`Kernel::CloudBackports`] as it is, and the driver compiled for it.
    DriverCloud,
    /// [`Kernel::GenericBackports`] as it is, and the driver compiled for it.
    DriverGeneric,
    /// [`Kernel::Pages16KBackports`] as it is, and the driver compiled for it.
    Driver16K,
    /// A user's own file: a bzImage or ELF kernel with everything necessary built in.
    File(PathBuf),
}

impl Kernel {
    /// Returns the key of the part of the cache that has its files.
    pub(crate) fn part_key(&self, arch: Arch) -> String {
        format!("kernel-{self}{}", arch::suffix(arch))
    }

    /// The names of kernels that have one.
    pub const NAMES: [&'static str; 12] = [
        "auto",
        "cloud",
        "generic",
        "cloud-backports",
        "generic-backports",
        "16k",
        "16k-backports",
        "driver",
        "driver-debug",
        "driver-cloud",
        "driver-generic",
        "driver-16k",
    ];

    /// Returns the flavour of a kernel with the driver.
    pub(crate) fn driver(&self) -> Option<Flavour> {
        match self {
            Kernel::Driver => Some(Flavour::Plain),
            Kernel::DriverDebug => Some(Flavour::Debug),
            Kernel::DriverCloud => Some(Flavour::Cloud),
            Kernel::DriverGeneric => Some(Flavour::Generic),
            Kernel::Driver16K => Some(Flavour::Pages16K),
            _ => None,
        }
    }

    /// Checks that this kernel exists for this architecture.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it does not.
    pub(crate) fn check_arch(&self, arch: Arch) -> Result<()> {
        let allowed = match (arch, self) {
            (Arch::Arm64, Self::File(_) | Self::DriverDebug) => {
                "an image for arm64 has one of Debian's kernels or one that is built for our \
                 driver (auto, cloud, generic, 16k and the like, driver, driver-cloud, \
                 driver-generic, driver-16k)"
            }
            (Arch::X86_64, Self::Pages16K | Self::Pages16KBackports | Self::Driver16K) => {
                "processors of x86-64 have pages of 4 KiB; add --arch arm64"
            }
            _ => return Ok(()),
        };
        Err(Error::Invalid { what: "kernel", value: self.to_string(), allowed })
    }

    /// Returns whether nodes with this kernel have the driver tofu.ko.
    pub fn has_driver(&self) -> bool {
        self.driver().is_some()
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kernel::Auto => f.write_str("auto"),
            Kernel::Cloud => f.write_str("cloud"),
            Kernel::Generic => f.write_str("generic"),
            Kernel::CloudBackports => f.write_str("cloud-backports"),
            Kernel::GenericBackports => f.write_str("generic-backports"),
            Kernel::Pages16K => f.write_str("16k"),
            Kernel::Pages16KBackports => f.write_str("16k-backports"),
            Kernel::Driver => f.write_str("driver"),
            Kernel::DriverDebug => f.write_str("driver-debug"),
            Kernel::DriverCloud => f.write_str("driver-cloud"),
            Kernel::DriverGeneric => f.write_str("driver-generic"),
            Kernel::Driver16K => f.write_str("driver-16k"),
            Kernel::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl FromStr for Kernel {
    type Err = Error;

    /// Parses one of [`Kernel::NAMES`], or a path that contains a `/`.
    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "auto" => Kernel::Auto,
            "cloud" => Kernel::Cloud,
            "generic" => Kernel::Generic,
            "cloud-backports" => Kernel::CloudBackports,
            "generic-backports" => Kernel::GenericBackports,
            "16k" => Kernel::Pages16K,
            "16k-backports" => Kernel::Pages16KBackports,
            "driver" => Kernel::Driver,
            "driver-debug" => Kernel::DriverDebug,
            "driver-cloud" => Kernel::DriverCloud,
            "driver-generic" => Kernel::DriverGeneric,
            "driver-16k" => Kernel::Driver16K,
            path if path.contains('/') => Kernel::File(path.into()),
            other => {
                return Err(Error::Invalid {
                    what: "kernel",
                    value: other.into(),
                    allowed: "auto, cloud, generic, cloud-backports, generic-backports, 16k, \
                              16k-backports, driver, driver-debug, driver-cloud, driver-generic, \
                              driver-16k, or the path of a kernel file",
                });
            }
        })
    }
}

/// A program for `/usr/local/bin` of the guest. It must be static, because there may be no
/// libraries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) mode: u32,
}

impl Program {
    /// Writes it into a folder.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(&self.name);
        fs::write(&path, &self.bytes).on("write", &path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(self.mode)).on("change", &path)
    }

    /// Creates a program that all users may run.
    ///
    /// # Errors
    /// If `name` is not a file name.
    pub fn new(name: &str, bytes: Vec<u8>) -> Result<Self> {
        Self::with_mode(name, bytes, 0o755)
    }

    /// Creates a file with the permissions `mode`.
    ///
    /// # Errors
    /// If `name` is not a file name, or `mode` has other bits than 07777.
    pub(crate) fn with_mode(name: &str, bytes: Vec<u8>, mode: u32) -> Result<Self> {
        check_name("program name", name)?;
        if mode & !0o7777 != 0 {
            return Err(Error::Invalid {
                what: "file mode",
                value: format!("{mode:#o}"),
                allowed: "permissions, 0 to 07777",
            });
        }
        Ok(Self { name: name.into(), bytes, mode })
    }
}

/// Checks a name that becomes a file name.
pub(crate) fn check_name(what: &'static str, name: &str) -> Result<()> {
    let fit = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    let first = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if first && name.len() <= 64 && name.chars().all(fit) {
        return Ok(());
    }
    Err(Error::Invalid {
        what,
        value: name.chars().take(80).collect(),
        allowed: "1 to 64 letters, digits, and . _ + - after the first",
    })
}

/// Checks a package name, which becomes an argument of apt.
pub(crate) fn check_package(name: &str) -> Result<()> {
    let fit = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
    let first = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if (2..=128).contains(&name.len()) && first && name.chars().all(fit) {
        return Ok(());
    }
    Err(Error::Invalid {
        what: "package name",
        value: name.chars().take(80).collect(),
        allowed: "2 to 128 lower case letters, digits, and + - . after the first",
    })
}

/// The specification of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    pub(crate) name: String,
    pub(crate) arch: Arch,
    pub(crate) kernel: Kernel,
    pub(crate) with: Vec<String>,
    pub(crate) modules: Vec<String>,
    pub(crate) programs: Vec<Program>,
    pub(crate) refresh: bool,
}

/// Packages that are useful only with an RDMA device, which is soft RoCE in a guest.
const RDMA_PACKAGES: &[&str] =
    &["rdma-core", "perftest", "ibverbs-utils", "rdmacm-utils", "qperf", "infiniband-diags"];
/// The name for all modules with which programs make networks.
const NET: &str = "net";
/// Modules for these packages.
const RDMA_MODULES: &[&str] =
    &["rdma_rxe", "rdma_ucm", "ib_uverbs", "ib_umad", "crc32_generic", "crc32_pclmul"];

impl Spec {
    /// Creates a specification called `name` with only a kernel and busybox.
    ///
    /// # Errors
    /// If `name` is not 1 to 64 letters, digits and `. _ + -`.
    pub fn new(name: &str) -> Result<Self> {
        check_name("image name", name)?;
        Ok(Self {
            name: name.into(),
            arch: Arch::default(),
            kernel: Kernel::Auto,
            with: Vec::new(),
            modules: Vec::new(),
            programs: Vec::new(),
            refresh: false,
        })
    }

    /// Returns the default name for an image with these packages. Without packages it is "default",
    /// or the name of the architecture if that is not the host's.
    pub fn name_for(arch: Arch, packages: &[String]) -> String {
        let mut sorted = packages.to_vec();
        sorted.sort();
        sorted.dedup();
        let joined = sorted.join("+");
        if joined.is_empty() {
            return if arch == Arch::default() { "default".into() } else { arch.to_string() };
        }
        let name = Self::name_with(&joined, arch);
        match check_name("", &name) {
            Ok(()) => name,
            Err(_) => format!("packages-{}", &hex(&Sha256::digest(&name))[..12]),
        }
    }

    /// Returns a name for an image that exists for each architecture.
    pub fn name_with(what: &str, arch: Arch) -> String {
        format!("{what}{}", arch::suffix(arch))
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the architecture of its guests.
    #[must_use]
    pub fn arch(mut self, arch: Arch) -> Self {
        self.arch = arch;
        self
    }

    /// Sets the kernel.
    #[must_use]
    pub fn kernel(mut self, kernel: Kernel) -> Self {
        self.kernel = match kernel {
            // The file may be requested again from another folder.
            Kernel::File(path) => Kernel::File(std::path::absolute(&path).unwrap_or(path)),
            named => named,
        };
        self
    }

    /// Adds a Debian root file system with `packages`.
    ///
    /// # Errors
    /// If a name is not valid for a Debian package: 2 to 128 lower-case letters, digits, and `+ -
    /// .` (Debian Policy 5.6.1). Whether Debian has the package turns out when the image is built.
    pub fn with<S: AsRef<str>>(mut self, packages: impl IntoIterator<Item = S>) -> Result<Self> {
        for package in packages {
            let package = package.as_ref();
            check_package(package)?;
            self.with.push(package.into());
        }
        self.with.sort();
        self.with.dedup();
        Ok(self)
    }

    /// Adds kernel modules and their dependencies, in addition to those of every image. `net` means
    /// all modules with which programs make networks.
    ///
    /// # Errors
    /// If a name is not valid for a module.
    pub fn modules<S: AsRef<str>>(mut self, names: impl IntoIterator<Item = S>) -> Result<Self> {
        for name in names {
            check_name("module name", name.as_ref())?;
            self.modules.push(name.as_ref().into());
        }
        Ok(self)
    }

    /// Adds our own programs.
    #[must_use]
    pub fn programs(mut self, programs: impl IntoIterator<Item = Program>) -> Self {
        self.programs.extend(programs);
        self
    }

    /// Sets whether to check Debian for newer packages even if nothing else has changed.
    #[must_use]
    pub fn refresh(mut self, refresh: bool) -> Self {
        self.refresh = refresh;
        self
    }

    /// Returns whether its kernel comes with the driver tofu.ko.
    pub fn has_driver(&self) -> bool {
        self.kernel.has_driver()
    }

    /// Returns whether its kernel is one of Debian's, whose abilities are known.
    pub fn has_debian_kernel(&self) -> bool {
        !matches!(self.kernel, Kernel::Driver | Kernel::DriverDebug | Kernel::File(_))
    }

    /// Returns whether its kernel has pages of 16 KiB, which not all processors support.
    pub fn has_pages_of_16k(&self) -> bool {
        use Kernel::{Driver16K, Pages16K, Pages16KBackports};
        matches!(self.kernel, Pages16K | Pages16KBackports | Driver16K)
    }

    /// Returns what the driver is built for, if there is one.
    pub(crate) fn driver(&self) -> Option<DriverFor> {
        Some(DriverFor { flavour: self.kernel.driver()?, arch: self.arch })
    }

    /// Checks that an image with this kernel can be made for this architecture.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it cannot.
    pub fn check_arch(&self) -> Result<()> {
        self.kernel.check_arch(self.arch)
    }

    pub(crate) fn wants_rdma(&self) -> bool {
        self.with.iter().any(|name| RDMA_PACKAGES.contains(&name.as_str()))
    }

    /// Returns the kernel that [`Kernel::Auto`] selects. Any other kernel is returned unchanged.
    pub(crate) fn chosen_kernel(&self) -> Kernel {
        match &self.kernel {
            Kernel::Auto if self.wants_rdma() => Kernel::Generic,
            Kernel::Auto => Kernel::Cloud,
            other => other.clone(),
        }
    }

    /// Returns the modules, in addition to those of every image, that the kernel must have.
    pub(crate) fn extra_modules(&self) -> Vec<&str> {
        let rdma: &[&str] = if self.wants_rdma() { &RDMA_MODULES[..4] } else { &[] };
        self.loaded_modules().chain(rdma.iter().copied()).collect()
    }

    /// Returns the modules that were requested by name. Guests load them when they boot.
    pub(crate) fn loaded_modules(&self) -> impl Iterator<Item = &str> {
        self.modules.iter().map(String::as_str).filter(|name| *name != NET)
    }

    /// Returns whether the image has the modules with which programs make networks. Packages may
    /// want them, and there is room for them beside a root file system.
    pub(crate) fn has_net_modules(&self) -> bool {
        !self.with.is_empty() || self.modules.iter().any(|name| name == NET)
    }

    /// Returns the modules that are added if the kernel has them.
    pub(crate) fn optional_modules(&self) -> &'static [&'static str] {
        if self.wants_rdma() { &RDMA_MODULES[4..] } else { &[] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_tell_specs_apart() {
        let plain = || Spec::new("a").unwrap();
        let program = |name: &str, bytes: &[u8]| Program::new(name, bytes.to_vec()).unwrap();
        let specs = [
            plain(),
            plain().arch(Arch::Arm64),
            plain().kernel(Kernel::Generic),
            plain().kernel(Kernel::Driver),
            plain().kernel(Kernel::DriverCloud),
            plain().kernel(Kernel::DriverGeneric),
            plain().kernel(Kernel::Driver).arch(Arch::Arm64),
            plain().kernel(Kernel::DriverCloud).arch(Arch::Arm64),
            plain().kernel(Kernel::Driver16K).arch(Arch::Arm64),
            plain().kernel(Kernel::Pages16K).arch(Arch::Arm64),
            plain().kernel(Kernel::File("/no/such".into())),
            plain().with(["mpich"]).unwrap(),
            plain().with(["mpich", "iperf3"]).unwrap(),
            plain().modules(["mpich"]).unwrap(),
            plain().programs([program("a", b"b")]),
            plain().programs([program("ab", b"")]),
            plain().programs([Program::with_mode("a", b"b".to_vec(), 0o700).unwrap()]),
        ];
        for (i, a) in specs.iter().enumerate() {
            for (j, b) in specs.iter().enumerate() {
                assert_eq!(a.fingerprint() == b.fingerprint(), i == j, "{i} {j}");
            }
        }
        let order = |list: [&str; 2]| plain().with(list).unwrap().fingerprint();
        assert_eq!(order(["mpich", "iperf3"]), order(["iperf3", "mpich"]));
        // Naming the default kernel yields the same image.
        assert_eq!(plain().fingerprint(), plain().kernel(Kernel::Cloud).fingerprint());
        assert_eq!(plain().fingerprint(), plain().refresh(true).fingerprint());
    }

    #[test]
    fn rdma_packages_take_a_kernel_that_has_it() {
        let spec = Spec::new("a").unwrap().with(["perftest"]).unwrap();
        assert_eq!(spec.chosen_kernel(), Kernel::Generic);
        assert!(spec.extra_modules().contains(&"rdma_rxe"));
        let spec = Spec::new("a").unwrap().with(["mpich"]).unwrap();
        assert_eq!(spec.chosen_kernel(), Kernel::Cloud);
        assert!(spec.extra_modules().is_empty());
    }

    #[test]
    fn options_absent_for_arch_are_refused() {
        let of = |arch, kernel| Spec::new("a").unwrap().arch(arch).kernel(kernel).check_arch();
        let refused = |arch, kernel| of(arch, kernel).unwrap_err().to_string();
        for name in Kernel::NAMES {
            let kernel = || name.parse::<Kernel>().unwrap();
            assert_eq!(of(Arch::Arm64, kernel()).is_ok(), name != "driver-debug", "{name}");
            assert_eq!(of(Arch::X86_64, kernel()).is_ok(), !name.contains("16k"), "{name}");
        }
        let error = refused(Arch::Arm64, Kernel::File("/a".into()));
        assert!(error.contains("\"/a\"") && error.contains("arm64"), "{error}");
        let error = refused(Arch::X86_64, Kernel::Driver16K);
        assert!(error.contains("\"driver-16k\"") && error.contains("add --arch arm64"), "{error}");
    }

    #[test]
    fn names_are_checked() {
        for bad in ["", ".", "..", "a/b", ".new", "-x", "a b", &"x".repeat(65), "\u{e4}"] {
            assert!(Spec::new(bad).is_err(), "{bad:?}");
            assert!(Program::new(bad, vec![]).is_err(), "{bad:?}");
        }
        for bad in ["", "a", "Mpich", "-o", "a b", "x;y", "?essential", "x=1", "x/sid"] {
            assert!(Spec::new("a").unwrap().with([bad]).is_err(), "{bad:?}");
        }
        assert!(Program::with_mode("a", vec![], 0o100_644).is_err());
        let packages = ["mpich".to_owned(), "iperf3".to_owned()];
        let many: Vec<String> = (0..30).map(|n| format!("package{n}")).collect();
        for (arch, none, some) in [
            (Arch::X86_64, "default", "iperf3+mpich"),
            (Arch::Arm64, "arm64", "iperf3+mpich-arm64"),
        ] {
            assert_eq!(Spec::name_for(arch, &[]), none);
            assert_eq!(Spec::name_for(arch, &packages), some);
            assert!(Spec::new(&Spec::name_for(arch, &many)).is_ok());
        }
    }

    #[test]
    fn kernels_have_names() {
        for name in Kernel::NAMES {
            assert_eq!(name.parse::<Kernel>().unwrap().to_string(), name);
        }
        assert_eq!("./bzImage".parse::<Kernel>().unwrap(), Kernel::File("./bzImage".into()));
        assert!("bzImage".parse::<Kernel>().unwrap_err().to_string().contains("generic"));
    }
}
