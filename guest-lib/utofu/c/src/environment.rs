//! Numbers in environment variables.

use std::env;
use std::time::Duration;

use tofu_abi::{Group, Subnet};
use tofu_utofu::{Code, Error};

/// The size in bytes from which splitting is faster where links are shared, and no slower where
/// they are not (`tests/benches/paths.rs`).
const SPLIT_FROM: u32 = 512 << 10;

/// The time in microseconds for which polls find nothing before they rest: longer than what is
/// awaited takes where all have a processor.
const SPIN_US: u32 = 200;

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

/// Reads a number below 2^32 from the environment.
fn number32(name: &'static str, default: u32) -> Result<u32, Error> {
    let hint = "the environment variable is not a number below 4294967296";
    let wrong = || Error::new(Code::NotAvailable, name, hint);
    match env::var(name) {
        Err(env::VarError::NotPresent) => Ok(default),
        Ok(text) => text.parse().map_err(|_| wrong()),
        Err(env::VarError::NotUnicode(_)) => Err(wrong()),
    }
}

/// Returns the group of processes that may access each other's memory and gates: the register GPID.
pub(crate) fn group() -> Result<u64, Error> {
    number32("TOFU_GROUP", 0).map(|number| Group::Given(number).gpid())
}

/// Returns the subnet to which the process is confined: the registers MODE and SUBNET_SIZE.
pub(crate) fn subnet() -> Result<Subnet, Error> {
    const NAME: &str = "TOFU_SUBNET";
    match env::var(NAME) {
        Err(env::VarError::NotPresent) => Ok(Subnet::default()),
        text => text.ok().and_then(|text| text.parse().ok()).ok_or_else(|| {
            let hint =
                "the environment variable is not size, first coordinate and length on X, Y, Z";
            Error::new(Code::NotAvailable, NAME, hint)
        }),
    }
}

/// Returns the size in bytes from which Puts are sent in parts over several paths, if they are.
pub(crate) fn split_puts() -> Result<Option<u32>, Error> {
    Ok(match number32("UTOFU_SPLIT_PUTS", 0)? {
        0 => None,
        1 => Some(SPLIT_FROM),
        bytes => Some(bytes),
    })
}

/// Returns true if commands go by direct descriptors when the device is ready for one.
pub(crate) fn direct_descriptors() -> Result<bool, Error> {
    number("UTOFU_DIRECT_DESCRIPTORS", 0).map(|direct| direct != 0)
}

/// Returns the time after which polls that find nothing rest, if they do.
pub(crate) fn rest_after() -> Result<Option<Duration>, Error> {
    let spin = number32("UTOFU_SPIN_US", SPIN_US)?;
    Ok((spin > 0).then(|| Duration::from_micros(spin.into())))
}
