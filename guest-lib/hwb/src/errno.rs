//! Errors that functions return.

use std::ffi::c_int;
use std::fmt::Display;

/// An error of `errno.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    /// Returns the error, and prints the reason if the user has enabled that.
    pub(crate) fn new(number: c_int, reason: impl Display) -> Self {
        if std::env::var_os("FUJITSU_HWBLIB_DEBUG").is_some() {
            eprintln!("libFJhwb: {reason}");
        }
        Self(number)
    }
}
