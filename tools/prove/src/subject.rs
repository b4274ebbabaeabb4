//! The driver that is proved.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tempfile::TempDir;
use tofu_image::{Arch, Cache, Kernel, Module, Progress};
use tofu_rules::Rule;
use tofu_spec::units::{Driver, GuestArgs};
use tofu_ui::printable;

use crate::options::Options;

/// Largest file that is taken for a module or a program.
const MOST: u64 = 256 << 20;
/// Lines of a compiler that are shown.
const LINES: usize = 12;
/// Uses queues and barrier channels of the shipped driver.
const EXERCISE: &str = "tofu-guest exercise";
/// Freed memory is poisoned, objects have red zones, and those who allocate and free are noted.
const HEAP: &str = "slab_debug=FZPU,kmalloc-*";
/// Functions that take memory from it.
const HEAP_FUNCTIONS: [&str; 5] = ["\0__kmalloc", "\0kmem", "\0krealloc", "\0kv", "\0kstrdup"];
/// A file of a node with the addresses at which the module was loaded.
pub(crate) const LOADED: &str = "/tmp/prove.sections";
/// Loads the shipped driver, wherever the image has it.
const LOAD: &str = "{ modprobe tofu || insmod /lib/modules/*/kernel/tofu/tofu.ko; }";

/// The driver.
#[derive(Debug)]
pub enum Subject {
    /// The one that images contain.
    Shipped,
    /// A module.
    Module {
        /// Its name in the kernel.
        name: String,
        /// Its bytes.
        bytes: Vec<u8>,
        /// Its parameters.
        arguments: Vec<String>,
    },
    /// A program that drives the device through VFIO.
    Program {
        /// Its name.
        name: String,
        /// Its bytes.
        bytes: Vec<u8>,
        /// Its arguments.
        arguments: Vec<String>,
    },
}

impl Subject {
    /// The drivers that the options name, with their names in reports.
    ///
    /// # Errors
    ///
    /// If one is none, or does not compile, or if they need different nodes.
    pub(crate) fn all(
        options: &Options,
        progress: &dyn Progress,
    ) -> anyhow::Result<Vec<(String, Self)>> {
        let [_, _, ..] = &options.drivers[..] else {
            let subject = match options.drivers.first() {
                Some(path) => Self::new(path, options, progress)?,
                None => Self::Shipped,
            };
            return Ok(vec![(subject.name(), subject)]);
        };
        let one = |path: &PathBuf| {
            let subject = Self::new(path, options, progress)?;
            if subject.module().is_none() {
                bail!("{}: programs are proved one at a time", path.display());
            }
            Ok((printable(&path.display().to_string()), subject))
        };
        options.drivers.iter().map(one).collect()
    }

    /// The driver in a file or folder.
    fn new(path: &Path, options: &Options, progress: &dyn Progress) -> anyhow::Result<Self> {
        let arguments = options.arguments.clone();
        if path.is_dir() {
            let (name, bytes) = compiled(path, options, progress)?;
            return Ok(Self::Module { name, bytes, arguments });
        }
        let bytes = tofu_input::read(path, MOST)
            .with_context(|| format!("cannot read {}", path.display()))?;
        if !bytes.starts_with(b"\x7fELF") {
            bail!("{}: neither a module (.ko), nor a program, nor a folder", path.display());
        }
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(match path.extension().is_some_and(|extension| extension == "ko") {
            true => Self::Module { name: module_name(&stem)?, bytes, arguments },
            false => Self::Program { name: module_name(&stem)?, bytes, arguments },
        })
    }

    /// Its name in the report, if it is alone.
    fn name(&self) -> String {
        match self {
            Self::Shipped => "tofu.ko, as shipped".into(),
            Self::Module { name, .. } => format!("{name}.ko"),
            Self::Program { name, .. } => format!("{name}, through VFIO"),
        }
    }

    /// The name of its module, if it is one.
    pub(crate) fn module(&self) -> Option<&str> {
        match self {
            Self::Shipped => Some("tofu"),
            Self::Module { name, .. } => Some(name),
            Self::Program { .. } => None,
        }
    }

    /// The file that is copied to a node: its path there, and the bytes.
    pub(crate) fn file(&self) -> Option<(String, &[u8])> {
        match self {
            Self::Shipped => None,
            Self::Module { name, bytes, .. } => Some((format!("/tmp/{name}.ko"), bytes)),
            Self::Program { name, bytes, .. } => Some((format!("/tmp/{name}"), bytes)),
        }
    }

    /// The shell command that loads the module, or runs the program.
    pub(crate) fn load(&self) -> String {
        match self {
            Self::Shipped => LOAD.into(),
            Self::Module { name, arguments, .. } => {
                let words = words(arguments);
                let note = format!("grep -s . /sys/module/{name}/sections/.*text* >>{LOADED}");
                format!("{{ insmod /tmp/{name}.ko{words}; R=$?; {note}; (exit $R); }}")
            }
            Self::Program { name, arguments, .. } => format!("/tmp/{name}{}", words(arguments)),
        }
    }

    /// A command that nodes have for traffic of the driver beside its network interface.
    pub(crate) fn traffic(&self) -> Option<&'static str> {
        // A changed copy has the queues, too.
        (self.module() == Some("tofu")).then_some(EXERCISE)
    }

    /// Returns false if it cannot make a network interface, because it does not name the kernel's
    /// functions for that.
    pub(crate) fn may_have_network(&self) -> bool {
        self.names(&["\0register_netdev"])
    }

    /// Returns false if it takes no memory from the kernel's heap by itself.
    pub(crate) fn uses_heap(&self) -> bool {
        self.module().is_some() && self.names(&HEAP_FUNCTIONS)
    }

    /// Returns true if a symbol of the module begins so; each text here begins with the end of the
    /// symbol before. It is true for what is no module of the user.
    fn names(&self, symbols: &[&str]) -> bool {
        let Self::Module { bytes, .. } = self else { return true };
        let contains = |symbol: &&str| bytes.windows(symbol.len()).any(|b| b == symbol.as_bytes());
        symbols.iter().any(contains)
    }

    /// Rules that it does not meet in any traffic, and why.
    pub(crate) fn leaves_out(&self) -> &'static [(Rule, &'static str)] {
        match self {
            Self::Shipped => {
                &[(Rule::StatisticsQueue, "the driver has no use for the statistics queue")]
            }
            _ => &[],
        }
    }

    /// The driver of the nodes when they boot.
    pub(crate) fn boots_with(&self) -> Driver {
        match self {
            Self::Program { .. } => Driver::Vfio,
            _ => Driver::Tofu,
        }
    }

    /// Words for the kernel's command line: nothing else takes a program's device, and the kernel
    /// checks what a module does with its heap.
    pub(crate) fn append(&self) -> anyhow::Result<GuestArgs> {
        let words = match self {
            Self::Program { .. } => "tofu.share=off",
            _ => HEAP,
        };
        words.parse().map_err(anyhow::Error::msg)
    }

    /// The image whose kernel takes modules of that kernel.
    pub(crate) fn image<'a>(&self, kernel: &'a str) -> Option<&'a str> {
        self.module().map(|_| kernel)
    }
}

/// Arguments as they are given to a shell.
fn words(arguments: &[String]) -> String {
    let quoted = |word: &String| format!(" '{}'", word.replace('\'', r"'\''"));
    arguments.iter().map(quoted).collect()
}

/// The name that the kernel gives to a module of this file name.
fn module_name(stem: &str) -> anyhow::Result<String> {
    let name = stem.replace('-', "_");
    if name.is_empty() || !name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_') {
        bail!("{}: no name of a module or a program", printable(stem));
    }
    Ok(name)
}

/// Compiles the module in a folder. Returns its name and bytes.
fn compiled(
    folder: &Path,
    options: &Options,
    progress: &dyn Progress,
) -> anyhow::Result<(String, Vec<u8>)> {
    let kernel: Kernel = options.kernel.parse()?;
    let to = TempDir::new()?;
    let module = Module::new(folder).base(options.base.clone()).kernel(&kernel, Arch::host())?;
    let made = module.make(&Cache::from_env()?, to.path(), progress)?;
    if !made.ok {
        let errors: Vec<&str> = made.said.lines().filter(|line| line.contains("error")).collect();
        let lines = if errors.is_empty() { made.said.lines().collect() } else { errors };
        let shown: Vec<String> = lines.iter().take(LINES).map(|line| printable(line)).collect();
        bail!("{} does not compile:\n{}", folder.display(), shown.join("\n"));
    }
    let [module]: [PathBuf; 1] = made
        .modules
        .try_into()
        .map_err(|all: Vec<_>| anyhow::anyhow!("{}: {} modules", folder.display(), all.len()))?;
    let stem = module.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok((module_name(&stem)?, fs::read(&module)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_names_are_the_kernels() {
        assert_eq!(module_name("first-put").unwrap(), "first_put");
        for bad in ["", "a b", "x;reboot", "../x"] {
            assert!(module_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn symbols_are_known_by_their_beginning() {
        let module = |bytes: &[u8]| {
            let (name, arguments) = (String::new(), Vec::new());
            Subject::Module { name, bytes: bytes.into(), arguments }
        };
        assert!(module(b"x\0register_netdevice\0").may_have_network());
        assert!(!module(b"x\0unregister_netdev\0").may_have_network());
        assert!(module(b"x\0__kmalloc_noprof\0").uses_heap());
        assert!(!module(b"x\0devm_kmalloc\0").uses_heap());
        assert!(Subject::Shipped.may_have_network() && Subject::Shipped.uses_heap());
    }

    #[test]
    fn arguments_are_quoted() {
        assert_eq!(words(&["a=1".into(), "it's".into()]), r" 'a=1' 'it'\''s'");
    }
}
