//! Numbers in environment variables.

use std::env;

use tofu_utofu::{Code, Error};

/// Reads a number from the environment.
pub(crate) fn number(name: &'static str, default: u16) -> Result<u16, Error> {
    match env::var(name) {
        Err(env::VarError::NotPresent) => Ok(default),
        Ok(text) => text.parse().map_err(|_| not_a_number(name)),
        Err(env::VarError::NotUnicode(_)) => Err(not_a_number(name)),
    }
}

const fn not_a_number(name: &'static str) -> Error {
    Error::new(Code::NotAvailable, name, "the environment variable is not a number below 65536")
}

/// The group of processes that may reach each other's memory and gates: the register GPID.
pub(crate) fn group() -> Result<u64, Error> {
    const NAME: &str = "TOFU_GROUP";
    let hint = "the environment variable is not a number below 4294967296";
    let wrong = || Error::new(Code::NotAvailable, NAME, hint);
    match env::var(NAME) {
        Err(env::VarError::NotPresent) => Ok(0),
        Ok(text) => text.parse::<u32>().map(u64::from).map_err(|_| wrong()),
        Err(env::VarError::NotUnicode(_)) => Err(wrong()),
    }
}
