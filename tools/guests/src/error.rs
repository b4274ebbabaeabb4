//! Errors of a program, and its exit code.

use alloc::string::{String, ToString};
use core::fmt;

/// The problem, in words.
#[derive(Debug)]
pub struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: core::error::Error> From<E> for Error {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

impl Error {
    /// An error with this text.
    pub fn new(text: fmt::Arguments<'_>) -> Self {
        Self(text.to_string())
    }
}

/// An [`Error`] from a format string.
#[macro_export]
macro_rules! fail {
    ($($arg:tt)*) => { $crate::Error::new(::core::format_args!($($arg)*)) };
}

/// The exit code for how a program ended; an error is printed by `print`.
pub fn exit_code(result: Result<(), Error>, print: impl FnOnce(fmt::Arguments<'_>)) -> i32 {
    match result {
        Ok(()) => 0,
        Err(error) => {
            print(format_args!("FAILED: {error}\n"));
            1
        }
    }
}
