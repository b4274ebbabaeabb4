//! Shared by all commands for the terminal: style, text, progress, signals, exit codes.

#![forbid(unsafe_code)]

pub mod exit;
mod nearest;
mod progress;
pub mod signals;
mod style;
mod table;
pub mod terminal;
mod text;
mod toml_file;

pub use nearest::{did_you_mean, nearest};
pub use progress::{ImageProgress, is_interrupted};
pub use style::Style;
pub use table::{table, terminal_width};
pub use text::printable;
#[doc(hidden)]
pub use text::tell_line;
pub use toml_file::{FileError, FileLine, TomlFile};
