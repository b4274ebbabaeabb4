//! `tofu bench`: figures of this emulation on this host.

/// Runs `tofu bench`.
pub(crate) fn run(_json: bool) -> anyhow::Result<u8> {
    anyhow::bail!("this build has no benches yet")
}
