//! The live state of a node's device for `tofu inspect`.

use std::iter;

use anyhow::{Context, anyhow, bail};
use tofu_abi::desc::MAX_MESSAGE;
use tofu_abi::{CqId, StagOffset, TniId};
use tofu_control::protocol::{InspectRequest, Reply, TranslateRequest};
use tofu_fabric::NodeId;
use tofu_icc::Access;
use tofu_inspect::{Inspect, Missing, Query, Seen, look};
use tofu_ui::{did_you_mean, printable};

use crate::registry::Registry;

/// The most names in a path.
const MAX_PATH: usize = 32;
/// The number of names an error lists.
const NAMES: usize = 12;

/// Inspects a node.
///
/// # Errors
///
/// One line for the user, as all errors here.
pub(super) fn look_at(registry: &Registry, ask: &InspectRequest) -> anyhow::Result<Reply> {
    let Some(node) = registry.device(NodeId(ask.node))? else {
        return Ok(Reply::Inspection { tree: None, complete: true });
    };
    let path: Vec<_> = ask.path.split('/').filter(|name| !name.is_empty()).collect();
    if path.len() > MAX_PATH {
        bail!("a path has {MAX_PATH} names at most");
    }
    let limit = ask.limit.min(InspectRequest::MOST) as usize;
    let query = Query { path: &path, depth: ask.depth as usize, limit };
    let what: &dyn Inspect = &*node;
    let Seen { value, complete } = look(what, &query).map_err(|missing| {
        let inside = inside(what, &path, &missing);
        absent(&path, &missing, inside.as_deref())
    })?;
    Ok(Reply::Inspection { tree: Some(value), complete })
}

/// Finds a path whose first name is missing inside one of the parts that exist, as far as it goes:
/// `device/tni/0` for `tni/0`.
fn inside(what: &dyn Inspect, path: &[&str], missing: &Missing) -> Option<String> {
    if missing.at != 0 {
        return None;
    }
    missing.names.iter().find_map(|part| {
        let whole: Vec<_> = iter::once(part.as_str()).chain(path.iter().copied()).collect();
        let found = match look(what, &Query { path: &whole, depth: 0, limit: 1 }) {
            Ok(_) => whole.len(),
            Err(missing) => missing.at,
        };
        (found > 1).then(|| whole[..found].join("/"))
    })
}

/// Returns the error for a path that does not exist. `inside` is where it may be.
fn absent(path: &[&str], missing: &Missing, inside: Option<&str>) -> anyhow::Error {
    let Missing { at, names } = missing;
    let before = match at {
        0 => "the node".to_owned(),
        at => printable(&path[..*at].join("/")),
    };
    let name = path.get(*at).copied().unwrap_or_default();
    let wanted = printable(name);
    if names.is_empty() {
        return anyhow!("{before} has no parts, and so no {wanted}");
    }
    let all = names.iter().map(String::as_str);
    let more = if names.len() > NAMES { ", ..." } else { "" };
    let some: Vec<_> = all.clone().take(NAMES).collect();
    // No best guess makes sense for a number.
    let number = name.chars().all(|c| c.is_ascii_digit());
    let meant = match inside {
        Some(inside) => format!("; did you mean {}?", printable(inside)),
        None if number => String::new(),
        None => did_you_mean(name, all),
    };
    let there = if meant.is_empty() { "; there are" } else { " There are" };
    anyhow!("{before} has no {wanted}{meant}{there} {}{more}", some.join(", "))
}

/// Walks the tables of a control queue.
pub(super) fn translate(registry: &Registry, ask: &TranslateRequest) -> anyhow::Result<Reply> {
    let TranslateRequest { node, tni, cq, stag, offset, length, write } = *ask;
    let Some(node) = registry.device(NodeId(node))? else {
        return Ok(Reply::Inspection { tree: None, complete: true });
    };
    let icc = node.icc().context("devices of TNW have no steering tables")?;
    let queue = TniId::new(tni).zip(CqId::new(cq));
    if length > MAX_MESSAGE {
        bail!("{length} bytes; a message has {MAX_MESSAGE} at most");
    }
    let at = StagOffset(0).with_stag(stag).with_offset(offset);
    if (at.stag(), at.offset()) != (stag, offset) {
        bail!("STag {stag:#x} offset {offset:#x}: there are no such STags or offsets");
    }
    let access = if write { Access::Write } else { Access::Read };
    let walk = queue
        .and_then(|(tni, cq)| icc.translation(tni, cq, at.with_cqid(cq.get()), length, access));
    let Some(walk) = walk else {
        bail!("the device has no TNI {tni} CQ {cq}");
    };
    let query = Query { path: &[], depth: usize::MAX, limit: usize::MAX };
    let seen = look(&walk, &query).map_err(|_| anyhow!("an empty path leads nowhere"))?;
    Ok(Reply::Inspection { tree: Some(seen.value), complete: true })
}
