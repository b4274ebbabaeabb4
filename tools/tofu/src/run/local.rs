//! `tofu run --local`: ranks as processes of this host.

use anyhow::bail;

use super::RunArgs;

/// Runs the job and returns the exit code.
pub(crate) fn run(_args: &RunArgs) -> anyhow::Result<u8> {
    bail!("tofu run --local: not built yet")
}
