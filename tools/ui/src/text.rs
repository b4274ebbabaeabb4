//! Text from other sources, and text for standard error.

use std::fmt;
use std::io::{self, Write};

/// A guest's text with control characters replaced, so that a guest cannot control the user's
/// terminal. Tabs become spaces.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\t' => ' ',
            c if c.is_control() => '\u{fffd}',
            c => c,
        })
        .collect()
}

/// Writes a line to standard error, like `eprintln!`, but without a panic if it cannot be written.
///
/// A message that cannot be shown must not end what runs.
#[macro_export]
macro_rules! tell {
    ($($text:tt)*) => { $crate::tell_line(format_args!($($text)*)) };
}

/// The function behind [`tell!`].
pub fn tell_line(line: fmt::Arguments<'_>) {
    // There is nowhere left to say that it failed.
    let _ = writeln!(io::stderr(), "{line}");
}
