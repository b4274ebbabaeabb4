//! The programs' interface to where they run: a process on Linux.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tofu_tnw::Nwp;

use crate::error::{Error, exit_code};
use crate::fail;

/// Memory that the device can reach.
pub use tofu_vfio::Buffer as NodeBuffer;
/// The device's surroundings.
pub use tofu_vfio::VfioPlatform as NodePlatform;

/// Names the program's function, a `fn() -> Result<(), Error>`. An error is printed and makes the
/// exit code 1.
#[macro_export]
macro_rules! entry {
    ($program:path) => {
        fn main() -> std::process::ExitCode {
            $crate::start($program)
        }
    };
}

/// Exit code after a panic, as without an operating system.
const EXIT_PANIC: i32 = 101;
/// Exit code when the device is taken away.
const EXIT_RELEASED: i32 = 1;
/// Exit code for a command line that makes no sense.
const EXIT_USAGE: u8 = 2;

const HELP: &str = "\
options are words such as count=100; the kernel's command line has defaults (tofu.count=100)
  shape=XxYxZxAxBxC  the machine's shape      torus=xyz  axes of X, Y, Z that are rings
  nodes=N            only the first N nodes   wait=irq|poll  how to wait for the device
  io=1               nodes with Z = 0 run no programs
  device=BDF         the device, if there are several
  json=1             results as one line of JSON, where there are some
and those of the program; `tofu guest ls` lists the programs";

#[doc(hidden)]
pub fn start(program: fn() -> Result<(), Error>) -> ExitCode {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        std::process::exit(EXIT_PANIC);
    }));
    // Only errors are logged; the program also works without a log.
    if log::set_logger(&Messages).is_ok() {
        log::set_max_level(log::LevelFilter::Warn);
    }
    now_ns();
    match command_line().words.iter().find(|word| !is_option(word)) {
        None => ExitCode::from(exit_code(program(), print_args) as u8),
        Some(word) if matches!(word.as_str(), "-h" | "--help" | "help") => {
            print_args(format_args!("{HELP}\n"));
            ExitCode::SUCCESS
        }
        Some(word) => {
            eprintln!("{word}: options are words such as count=100; --help lists them");
            ExitCode::from(EXIT_USAGE)
        }
    }
}

/// Messages of the libraries.
struct Messages;

impl log::Log for Messages {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let _ = writeln!(std::io::stderr(), "{}", record.args());
    }

    fn flush(&self) {}
}

/// The source of options.
struct CommandLine {
    /// The program's own.
    words: Vec<String>,
    /// The kernel's.
    kernel: String,
}

fn command_line() -> &'static CommandLine {
    static LINE: OnceLock<CommandLine> = OnceLock::new();
    LINE.get_or_init(|| CommandLine {
        words: std::env::args_os().skip(1).map(|word| word.to_string_lossy().into()).collect(),
        kernel: std::fs::read_to_string("/proc/cmdline").unwrap_or_default(),
    })
}

/// `name=value`.
fn is_option(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    })
}

/// The text after `key=` in a word that is an option of that name.
fn value<'a>(word: &'a str, key: &str) -> Option<&'a str> {
    word.strip_prefix(key)?.strip_prefix('=')
}

impl CommandLine {
    fn option(&self, name: &str) -> Option<&str> {
        let own = self.words.iter().rev().find_map(|word| value(word, name));
        own.or_else(|| {
            let key = format!("tofu.{name}");
            self.kernel.split_ascii_whitespace().rev().find_map(|word| value(word, &key))
        })
    }
}

/// The value of the last `name=value` among the program's arguments, or else of `tofu.name=value`
/// on the kernel's command line.
pub fn option(name: &str) -> Option<&'static str> {
    command_line().option(name)
}

/// Nanoseconds of a monotonic clock.
pub fn now_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// The node's network processor of TNW, reset and enabled: the first one, or that of `device=`. The
/// program ends when the kernel wants the device back.
///
/// # Errors
///
/// If there is none, or it cannot be used.
pub fn find_nwp() -> Result<Nwp<NodePlatform>, Error> {
    let bdf = option("device").map(str::parse).transpose()?;
    Ok(Nwp::probe(until_released(NodePlatform::open_nwp(bdf)?)?)?)
}

/// The node's Tofu device: the first one, or that of `device=`. The program ends when the kernel
/// wants the device back.
///
/// # Errors
///
/// If there is none, or it cannot be used.
pub fn find_device() -> Result<NodePlatform, Error> {
    let bdf = option("device").map(str::parse).transpose()?;
    until_released(NodePlatform::open_at(bdf)?)
}

/// A device whose removal ends the program.
fn until_released(platform: NodePlatform) -> Result<NodePlatform, Error> {
    let bdf = platform.bdf();
    platform
        .on_release_request(move || {
            print_args(format_args!("FAILED: {bdf} is being taken away\n"));
            std::process::exit(EXIT_RELEASED);
        })
        .map_err(|error| fail!("{bdf}: {error}"))?;
    Ok(platform)
}

#[doc(hidden)]
pub fn print_args(args: fmt::Arguments<'_>) {
    // A reader that stops early is no reason to fail.
    let _ = std::io::stdout().write_fmt(args);
}

/// Tells the user something that is not a result.
pub(crate) fn tell(args: fmt::Arguments<'_>) {
    // There may be no reader.
    let _ = std::io::stderr().write_fmt(args);
}

/// Sleeps for some time.
pub(crate) struct Sleeper;

impl Sleeper {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self)
    }

    pub(crate) fn sleep(&self, ns: u64) {
        std::thread::sleep(Duration::from_nanos(ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_own_options_come_first() {
        let line = CommandLine {
            words: ["count=3", "count=4", "max=", "tofu.x=1"].map(str::to_owned).into(),
            kernel: "console=ttyS0 tofu.shape=2x1x1x1x1x1 tofu.count=9 quiet shape=no\n".into(),
        };
        assert_eq!(line.option("count"), Some("4"));
        assert_eq!(line.option("shape"), Some("2x1x1x1x1x1"));
        assert_eq!(line.option("max"), Some(""));
        assert_eq!(line.option("quiet"), None);
        assert_eq!(line.option("x"), None);
        assert_eq!(line.option("coun"), None);
    }

    #[test]
    fn options_are_told_from_other_words() {
        assert!(is_option("count=3") && is_option("a_b="));
        for word in ["--help", "count", "=3", "--count=3", "", "-h"] {
            assert!(!is_option(word), "{word}");
        }
    }
}
