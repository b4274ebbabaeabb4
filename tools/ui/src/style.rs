//! The style of output.

use std::io::{self, IsTerminal};

/// The style of output, by where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// JSON events instead of text.
    pub json: bool,
    /// ANSI colours.
    pub colour: bool,
    /// A moving progress line on stderr.
    pub progress: bool,
}

impl Style {
    /// The style that suits the standard streams: colour only on a terminal and only if
    /// NO_COLOR is unset or empty, progress only if stderr is a terminal.
    pub fn detect(json: bool) -> Self {
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            json,
            colour: !json && !no_colour && io::stdout().is_terminal(),
            progress: !json && io::stderr().is_terminal(),
        }
    }
}
