//! The command line.

use core::cell::Cell;

struct Line(Cell<&'static str>);

// SAFETY: one CPU, one thread.
unsafe impl Sync for Line {}

static LINE: Line = Line(Cell::new(""));

/// The kernel command line from the VMM; empty if that is not UTF-8.
pub fn command_line() -> &'static str {
    LINE.0.get()
}

/// The value of the last `name=value` on the command line; empty for a bare
/// `name`.
pub fn option(name: &str) -> Option<&'static str> {
    command_line().split_ascii_whitespace().rev().find_map(|word| {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        (key == name).then_some(value)
    })
}

/// The value of `name=` as a number, decimal or hexadecimal with `0x`.
pub fn number(name: &str) -> Option<u64> {
    let value = option(name)?;
    match value.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => value.parse().ok(),
    }
}

pub(crate) fn set(line: &'static str) {
    LINE.0.set(line);
}
