//! Terminal output and process control shared by all commands: style, text,
//! signals, exit codes.

#![forbid(unsafe_code)]

pub mod exit;
mod nearest;
pub mod palette;
pub mod signals;
mod style;
mod table;
pub mod terminal;
mod text;
mod toml_file;

pub use nearest::{did_you_mean, nearest};
pub use style::Style;
pub use table::{table, terminal_width};
pub use text::printable;
#[doc(hidden)]
pub use text::tell_line;
pub use toml_file::{FieldLines, FileError, FileLine, TomlFile, not_allowed};
