//! Paths around links that the node knows to be dead.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tofu_abi::{Coords, Path};
use tofu_jtofu::{PathTo, System, dead_links};
use tofu_process::lock;
use tofu_utofu::VbgSetting;
use tofu_utofu::ids::{VbgId, VcqId};

/// The variable that, if it is 0, makes default paths ignore dead links.
const AVOID: &str = "UTOFU_AVOID_DEAD_LINKS";
/// The time for which commands use what was read.
const FRESH: Duration = Duration::from_secs(1);

/// The state of links that commands use.
static KNOWN: Mutex<Known> = Mutex::new(Known {
    read: None,
    system: None,
    detours: BTreeMap::new(),
    chosen: BTreeSet::new(),
});
/// True if any link is known to be dead. If not, commands need not check any further.
static ANY: AtomicBool = AtomicBool::new(false);

struct Known {
    read: Option<Instant>,
    /// The machine, if any of its links is dead.
    system: Option<System>,
    /// Paths that have been found, by their two ends.
    detours: BTreeMap<(Coords, Coords), Path>,
    /// Nodes to which the program has explicitly chosen the default path.
    chosen: BTreeSet<Coords>,
}

/// Returns the machine without the links that the node knows to be dead, if there are any.
fn system() -> Option<System> {
    if env::var_os(AVOID).is_some_and(|value| value == "0") {
        return None;
    }
    let system = dead_links().and_then(|text| System::from_dead_links(&text))?;
    (!system.links_down().is_empty()).then_some(system)
}

/// Returns the path to use instead of `default`. That is `default` itself unless the command or its
/// answer would meet a link that is known to be dead. In that case it is the shortest path that
/// meets none, if there is one.
fn working(system: &System, from: Coords, to: Coords, default: Path) -> Path {
    first_of(&system.onesided_paths(from, to).unwrap_or_default(), default)
}

/// Returns `default` if it is among the paths or there are none, and the first path otherwise.
fn first_of(paths: &[PathTo], default: Path) -> Path {
    let works = paths.iter().any(|way| way.path == default);
    let first = paths.first().filter(|_| !works);
    first.map_or(default, |way| way.path)
}

/// Returns the path to a node that a new ID gets instead of `default`. `here` returns the
/// coordinates of this process, and is called only if a link is dead.
pub(crate) fn path(to: Coords, default: Path, here: impl FnOnce() -> Option<Coords>) -> Path {
    let mut known = lock(&KNOWN);
    known.look(Duration::ZERO);
    let Some(system) = &known.system else { return default };
    here().map_or(default, |from| working(system, from, to, default))
}

/// Chooses paths for signals of barrier gates for which the program has chosen none and whose
/// default path is known to be dead: the shortest path without a known dead link, if there is one.
pub(crate) fn signals(from: Coords, gates: &[VbgSetting]) -> Vec<VbgSetting> {
    let mut gates = gates.to_vec();
    let mut known = lock(&KNOWN);
    known.look(Duration::ZERO);
    let Some(system) = &known.system else { return gates };
    for gate in gates.iter_mut().filter(|gate| gate.path.is_none()) {
        let Some(to) = gate.dst_remote.map(VbgId::coords) else { continue };
        let paths = system.barrier_paths(from, to).unwrap_or_default();
        gate.path = Some(first_of(&paths, to.default_path()));
    }
    gates
}

impl Known {
    /// Reads the dead links again if they are older than `fresh`.
    fn look(&mut self, fresh: Duration) {
        if self.read.is_some_and(|read| read.elapsed() < fresh) {
            return;
        }
        self.system = system();
        self.detours.clear();
        self.read = Some(Instant::now());
        ANY.store(self.system.is_some(), Relaxed);
    }
}

/// Reads dead links that commands may have to avoid. Called when a VCQ is created, and when
/// a command has met a dead link.
#[cold]
pub(crate) fn refresh() {
    lock(&KNOWN).look(FRESH);
}

/// Records that the program has chosen a path to a node. If that is the default path, commands keep
/// it.
pub(crate) fn choose(to: Coords, path: Path) {
    if path == to.default_path() {
        lock(&KNOWN).chosen.insert(to);
    }
}

/// Returns the ID that a command uses instead of `to`. It is the same, unless its path is the
/// default one, was not chosen explicitly, and is known to be dead. `from` returns the coordinates
/// of the sender, and is called only if a link is dead.
#[inline(always)]
pub(crate) fn detour(to: u64, flags: u64, from: impl FnOnce() -> Option<Coords>) -> u64 {
    if ANY.load(Relaxed) { look_up(to, flags, from()) } else { to }
}

#[cold]
fn look_up(to: u64, flags: u64, from: Option<Coords>) -> u64 {
    let (Ok(id), Some(from)) = (VcqId::check(to), from) else { return to };
    let node = id.coords();
    let default = node.default_path();
    if flags >> 28 & 15 != 0 || id.path_of_id(0).ok() != Some(default) {
        return to;
    }
    let mut known = lock(&KNOWN);
    known.look(FRESH);
    let Known { system: Some(system), detours, chosen, .. } = &mut *known else { return to };
    if chosen.contains(&node) {
        return to;
    }
    let path = *detours.entry((from, node)).or_insert_with(|| working(system, from, node, default));
    id.with_path(Some(path)).map_or(to, |id| id.0)
}
