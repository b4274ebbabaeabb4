//! The driver that is proved.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use object::{Object, ObjectSection, ObjectSymbol};
use tempfile::TempDir;
use tofu_image::{Arch, Cache, Kernel, Module};
use tofu_linux_nodes::progress::ImageProgress;
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
/// Also for frames of the network stack, of which the kernel then has an exact count.
const HEAP: &str = "slab_debug=FZPU,kmalloc-*,skbuff_head_cache,skbuff_fclone_cache";
/// Functions that let the kernel call the module later.
const TIMER_FUNCTIONS: [&str; 7] = [
    "mod_timer",
    "add_timer",
    "timer_reduce",
    "hrtimer_start",
    "queue_delayed_work",
    "mod_delayed_work",
    "queue_work_on",
];
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
        progress: &ImageProgress,
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
    fn new(path: &Path, options: &Options, progress: &ImageProgress) -> anyhow::Result<Self> {
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
            true => Self::Module { name: name_within(&bytes, &stem)?, bytes, arguments },
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
                // The kernel's command line may have parameters, which modprobe would find.
                let given = format!("$(tr ' ' '\\n' </proc/cmdline | sed -n 's/^{name}\\.//p')");
                format!("{{ insmod /tmp/{name}.ko {given}{words}; R=$?; {note}; (exit $R); }}")
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
        self.names(&["register_netdev"])
    }

    /// Returns false if it lets the kernel call nothing of it later.
    pub(crate) fn has_timers(&self) -> bool {
        self.module().is_some() && self.names(&TIMER_FUNCTIONS)
    }

    /// Returns true if the module uses a function of the kernel whose name begins so, and for what
    /// is no module of the user.
    fn names(&self, functions: &[&str]) -> bool {
        let Self::Module { bytes, .. } = self else { return true };
        let Ok(file) = object::File::parse(&bytes[..]) else { return true };
        let mut used = file.symbols().filter(|symbol| symbol.is_undefined());
        used.any(|symbol| symbol.name().is_ok_and(|name| begins_so(name, functions)))
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

/// Returns true if a name begins like one of these.
fn begins_so(name: &str, beginnings: &[&str]) -> bool {
    beginnings.iter().any(|beginning| name.starts_with(beginning))
}

/// The name that a module has for the kernel, which the name of its file need not be.
fn name_within(bytes: &[u8], stem: &str) -> anyhow::Result<String> {
    let file = object::File::parse(bytes).ok();
    let information = file.as_ref().and_then(|file| file.section_by_name(".modinfo"));
    let words = information.and_then(|section| section.data().ok()).unwrap_or_default();
    let name = words.split(|byte| *byte == 0).find_map(|word| word.strip_prefix(b"name="));
    match name.map(String::from_utf8_lossy) {
        Some(name) => module_name(&name),
        None => module_name(stem),
    }
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
    progress: &ImageProgress,
) -> anyhow::Result<(String, Vec<u8>)> {
    let kernel: Kernel = options.kernel.parse()?;
    let to = TempDir::new()?;
    let module = Module::new(folder).base(options.base.clone()).kernel(&kernel, Arch::host())?;
    let made = module.make(&Cache::from_env()?, to.path(), progress)?;
    if !made.ok {
        let errors: Vec<&str> = made.said.lines().filter(|line| line.contains("error")).collect();
        let lines = if errors.is_empty() { made.said.lines().collect() } else { errors };
        progress.clear();
        for line in lines.iter().take(LINES) {
            // Without it there is still the error.
            let _ = writeln!(io::stderr(), "{}", printable(line));
        }
        bail!("{} does not compile", folder.display());
    }
    let [module]: [PathBuf; 1] = made
        .modules
        .try_into()
        .map_err(|all: Vec<_>| anyhow::anyhow!("{}: {} modules", folder.display(), all.len()))?;
    let stem = module.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let bytes = fs::read(&module)?;
    Ok((name_within(&bytes, &stem)?, bytes))
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
    fn module_without_a_name_has_its_files() {
        assert_eq!(name_within(b"no ELF", "my-driver").unwrap(), "my_driver");
    }

    #[test]
    fn functions_are_known_by_their_beginning() {
        assert!(begins_so("hrtimer_start_range_ns", &TIMER_FUNCTIONS));
        assert!(!begins_so("timer_init_key", &TIMER_FUNCTIONS));
        assert!(Subject::Shipped.may_have_network());
        // A linker stores a name that is the end of another one only once.
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        let (name, arguments) = (String::new(), Vec::new());
        let program = Subject::Module { name, bytes: own, arguments };
        assert!(program.names(&["malloc", "__libc_start_main"]));
        assert!(!program.may_have_network());
    }

    #[test]
    fn arguments_are_quoted() {
        assert_eq!(words(&["a=1".into(), "it's".into()]), r" 'a=1' 'it'\''s'");
    }
}
