//! `tofu up --check`.

use std::io::{self, Write};

use serde_json::json;
use tofu_spec::plan::Plan;

/// Describes a machine that can be started.
pub(crate) fn describe(plan: &Plan, json: bool) -> anyhow::Result<u8> {
    let mut out = io::stdout().lock();
    let (guests, mib) = (plan.vms().count(), plan.guest_memory() >> 20);
    if json {
        let machine = json!({
            "ok": true, "shape": plan.network.shape.to_string(),
            "generation": plan.interconnect.name(), "nodes": plan.network.shape.nodes(),
            "guests": guests, "memory_mib": mib,
        });
        writeln!(out, "{machine}")?;
    } else {
        writeln!(out, "{}; {guests} guests, {mib} MiB", plan.network.summary())?;
    }
    out.flush()?;
    Ok(0)
}
