//! Paths round links that the node knows to be dead.

use std::env;

use tofu_abi::{Coords, Path};
use tofu_jtofu::{System, news};

use crate::process;

/// The variable that has default paths chosen without a look at dead links, if it is 0.
const AVOID: &str = "UTOFU_AVOID_DEAD_LINKS";

/// The path to a node that takes the place of `default`: that itself, unless it is known not to
/// work, as the command or its answer would meet a dead link. Then it is the shortest that is not
/// known to, if there is one.
pub(crate) fn path(to: Coords, default: Path) -> Path {
    if env::var_os(AVOID).is_some_and(|value| value == "0") {
        return default;
    }
    let Some(system) = news().and_then(|text| System::from_news(&text)) else { return default };
    if system.links_down().is_empty() {
        return default;
    }
    let Ok((me, _)) = process::current() else { return default };
    let paths = system.onesided_paths(me.provider().coords(), to).unwrap_or_default();
    let works = paths.iter().any(|way| way.path == default);
    let first = paths.first().filter(|_| !works);
    first.map_or(default, |way| way.path)
}
