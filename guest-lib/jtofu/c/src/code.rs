//! The codes that functions return.

use std::ffi::c_int;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The error codes of `jtofu.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    NotInitialized = -1,
    InvalidArg = -3,
    InvalidPointer = -4,
    ExcessFinalize = -5,
    OutOfMemory = -6,
    Internal = -100,
}

impl Code {
    /// Returns `InvalidArg`. The API cannot report reasons, so it prints them on standard error if
    /// the user has enabled that.
    pub(crate) fn invalid(reason: impl Display) -> Self {
        if std::env::var_os("JTOFU_DEBUG").is_some_and(|value| value != "0") {
            eprintln!("jtofu: {reason}");
        }
        Self::InvalidArg
    }
}

/// Runs the body of a function. No panic may escape into a C program.
pub(crate) fn run(body: impl FnOnce() -> Result<c_int, Code>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(code)) => code as c_int,
        Err(_) => Code::Internal as c_int,
    }
}
