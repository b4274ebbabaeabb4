//! What all commands have towards the terminal: style, text, progress, signals, exit codes.

#![forbid(unsafe_code)]

pub mod exit;
mod progress;
pub mod signals;
mod style;
mod text;

pub use progress::{ImageProgress, is_interrupted};
pub use style::Style;
pub use text::printable;
