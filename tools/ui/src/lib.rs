//! What all commands have towards the terminal: style, text, progress, signals.

#![forbid(unsafe_code)]

mod progress;
pub mod signals;
mod style;
mod text;

pub use progress::{ImageProgress, is_interrupted};
pub use style::Style;
pub use text::printable;
