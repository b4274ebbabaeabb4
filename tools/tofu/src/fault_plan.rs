//! Plans of device faults: TOML files, for what is too long for a command line.
//!
//! Keys are the faults of [`DeviceFaultSpec`], as text, numbers or `true`; `[[event]]` has a fault
//! of one message or access.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use tofu_spec::device_faults::DeviceFaultSpec;
use toml::Value;

/// Largest file that is taken for a plan.
const MOST: u64 = 64 << 10;

/// A fault of one message or access.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Event {
    /// Vector of a message.
    msix: Option<u16>,
    /// `read` or `write`, for an access to memory.
    access: Option<String>,
    nth: u64,
    fate: String,
}

/// Reads a plan, and returns it as the text that machines take.
///
/// # Errors
///
/// If there is no such file, it is no TOML, or has something that is no fault.
pub(crate) fn read(path: &Path) -> anyhow::Result<String> {
    let name = || format!("{}", path.display());
    let bytes = tofu_input::read(path, MOST).with_context(name)?;
    let text = std::str::from_utf8(&bytes).with_context(name)?;
    faults(text).with_context(name)
}

/// The faults on the command line, or those of a plan.
///
/// # Errors
///
/// Those of [`read`].
pub(crate) fn either(faults: Option<&str>, plan: Option<&PathBuf>) -> anyhow::Result<String> {
    match (faults, plan) {
        (Some(faults), None) => Ok(faults.to_owned()),
        (None, Some(plan)) => read(plan),
        _ => bail!("give either FAULTS or --plan FILE"),
    }
}

fn faults(text: &str) -> anyhow::Result<String> {
    let mut parts = Vec::new();
    for (key, value) in text.parse::<toml::Table>()? {
        match value {
            Value::Array(events) if key == "event" => {
                for event in events {
                    parts.push(one(&event.try_into().context("[[event]]")?)?);
                }
            }
            Value::Boolean(true) => parts.push(key),
            Value::Boolean(false) => {}
            Value::Integer(number) => parts.push(format!("{key}={number}")),
            Value::String(text) if !text.contains(',') => parts.push(format!("{key}={text}")),
            _ => bail!("{key}: a text, a number or true"),
        }
    }
    ensure!(!parts.is_empty(), "the plan has no faults");
    let joined = parts.join(",");
    match joined.parse::<DeviceFaultSpec>() {
        Ok(_) => Ok(joined),
        Err(allowed) => bail!("{joined}: faults of a device are {allowed}"),
    }
}

fn one(event: &Event) -> anyhow::Result<String> {
    let Event { msix, access, nth, fate } = event;
    match (msix, access.as_deref()) {
        (Some(vector), None) => Ok(format!("msix@{vector}#{nth}={fate}")),
        (None, Some(access)) => Ok(format!("{access}#{nth}={fate}")),
        _ => bail!("[[event]]: give either msix, with a vector, or access, with read or write"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_is_the_text_of_its_faults() {
        let plan = "seed = 7\nmsix-lost = \"5%\"\nstuck = true\ngone = false\n\
                    [[event]]\nmsix = 9\nnth = 3\nfate = \"lost\"\n\
                    [[event]]\naccess = \"write\"\nnth = 100\nfate = \"abort\"\n";
        let mut parts: Vec<_> = faults(plan).unwrap().split(',').map(str::to_owned).collect();
        parts.sort();
        assert_eq!(parts, ["msix-lost=5%", "msix@9#3=lost", "seed=7", "stuck", "write#100=abort"]);
    }

    #[test]
    fn malformed_plans_are_refused() {
        for (plan, why) in [
            ("", "no faults"),
            ("seed", "TOML"),
            ("late = 1.5", "late: a text, a number or true"),
            ("loss = \"1%\"", "faults of a device are"),
            ("late = \"1s,gone\"", "late: a text"),
            ("[[event]]\nnth = 1\nfate = \"lost\"", "give either msix"),
            ("[[event]]\nmsix = 1\nnth = 1\nfate = \"lost\"\nx = 1", "[[event]]"),
            ("[[event]]\nmsix = 1\nnth = 0\nfate = \"lost\"", "faults of a device are"),
            ("[[event]]\nmsix = 70000\nnth = 1\nfate = \"lost\"", "[[event]]"),
        ] {
            let error = format!("{:#}", faults(plan).unwrap_err());
            assert!(error.contains(why), "{plan}: {error}");
        }
    }
}
