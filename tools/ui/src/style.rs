//! What output looks like.

use std::io::{self, IsTerminal};

/// Where output goes and what it looks like.
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
    /// What suits the standard streams: colour only on a terminal and only if
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
