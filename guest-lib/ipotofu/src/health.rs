//! Which links are dead, as known from this node's own tests and from reports of other nodes about
//! their links.
//!
//! A node may only report its own links. Its report goes directly to every other node, and the
//! device writes the source node into each packet, so a node cannot report in another one's name.
//! Reports are not relayed, so they cannot be multiplied.

use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tofu_abi::topology::{NodeId, Port, Shape};
use tofu_abi::{Coords, PacketTarget, Path};

use crate::addr;
use crate::nodes::{NODES, SET, set_of};
use crate::storage::Storage;
use crate::wire::{HEADER_SIZE, Header, VERSION};

/// First byte of a report: version and kind.
const REPORT: u8 = VERSION << 4 | 7;
/// Ports of a node, as a mask.
const ALL_PORTS: u16 = (1 << Port::COUNT) - 1;
/// The time for which a report is believed, in nanoseconds. The time is long enough for two lost
/// reports.
pub const REPORT_NS: u64 = 35_000_000_000;
/// The interval at which a node with dead ports repeats its report, in nanoseconds, because other
/// nodes may have been started since.
const REFRESH_NS: u64 = 10_000_000_000;
/// Minimum time between two reports of a node, in nanoseconds, even if links change more often.
const CHANGE_NS: u64 = 1_000_000_000;
/// Number of nodes in one burst of reports, and the time to the next burst in nanoseconds.
const BURST: u32 = 32;
const BURST_NS: u64 = 5_000_000;
/// The most nodes that dead links may cut off together: twice a board of the K computer.
const ISLAND: usize = 8;
/// The number of reports that a node sends when all its ports work again.
const FAREWELLS: u8 = 2;

/// A node's report of its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The node.
    pub origin: Coords,
    /// The number of the report. Later reports have higher numbers, modulo 2^32.
    pub number: u32,
    /// The ports whose link is dead, one bit each.
    pub dead: u16,
}

impl Report {
    /// Returns true if a packet with this header is a report.
    pub fn is_report(header: &[u8]) -> bool {
        header.first() == Some(&REPORT)
    }

    /// Parses a report that has come from node `from`. `None` if it is not a report, or names
    /// another node.
    pub fn parse(from: Coords, header: &[u8]) -> Option<Self> {
        let Header { version_kind, total, offset, length, id, sum, origin, .. } =
            Header::parse(header)?;
        let origin = addr::unpack(origin).filter(|origin| *origin == from)?;
        let right =
            version_kind == REPORT && total & !ALL_PORTS == 0 && (offset, length, sum) == (0, 0, 0);
        right.then_some(Self { origin, number: id, dead: total })
    }

    /// Encodes the packet, which consists of a header only.
    pub fn emit(&self) -> [u8; HEADER_SIZE] {
        Header {
            version_kind: REPORT,
            total: self.dead & ALL_PORTS,
            id: self.number,
            origin: addr::pack(self.origin),
            ..Header::default()
        }
        .emit()
    }
}

/// A report of one node: the node's key plus one from bit 44 on, its dead ports from bit 32 on, and
/// the report's number below.
#[derive(Debug)]
struct Said {
    what: AtomicU64,
    since_ns: AtomicU64,
}

/// The entry of a node.
struct Found<'a> {
    said: &'a Said,
    dead: u16,
    number: u32,
}

/// Dead ports of nodes, in a fixed number of places, with a few for all nodes of the same hash.
#[derive(Debug)]
struct Table<S: Storage>(S::Places<Said>);

impl<S: Storage> Table<S> {
    fn new() -> Result<Self, S::Error> {
        let nothing = || Said { what: AtomicU64::new(0), since_ns: AtomicU64::new(0) };
        S::places(NODES, nothing).map(Self)
    }

    /// A node's key plus one, and the places that it may have.
    fn set(&self, node: Coords) -> (u64, &[Said]) {
        let (key, at) = set_of(node);
        (u64::from(key) + 1, &self.0[at..at + SET])
    }

    /// Finds the report of a node, of any age.
    fn find(&self, node: Coords) -> Option<Found<'_>> {
        let (key, set) = self.set(node);
        set.iter().find_map(|said| {
            let what = said.what.load(Ordering::Relaxed);
            let dead = (what >> 32) as u16 & ALL_PORTS;
            (what >> 44 == key).then_some(Found { said, dead, number: what as u32 })
        })
    }

    /// Dead ports of a node, if they were reported within `lifetime_ns`.
    fn dead(&self, node: Coords, now_ns: u64, lifetime_ns: u64) -> u16 {
        let found = self.find(node).filter(|found| is_fresh(found.said, now_ns, lifetime_ns));
        found.map_or(0, |found| found.dead)
    }

    /// Stores the dead ports of a node in its own place, an empty one, or the oldest.
    fn set_dead(&self, node: Coords, dead: u16, number: u32, now_ns: u64) {
        let (key, set) = self.set(node);
        let place = set.iter().min_by_key(|said| match said.what.load(Ordering::Relaxed) {
            what if what >> 44 == key => (0, 0),
            0 => (1, 0),
            _ => (2, said.since_ns.load(Ordering::Relaxed)),
        });
        if let Some(place) = place {
            let what = key << 44 | u64::from(dead & ALL_PORTS) << 32 | u64::from(number);
            place.what.store(what, Ordering::Relaxed);
            place.since_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// All nodes with a report within `lifetime_ns`.
    fn iter(&self, now_ns: u64, lifetime_ns: u64) -> impl Iterator<Item = Coords> {
        let fresh = self.0.iter().filter(move |said| is_fresh(said, now_ns, lifetime_ns));
        fresh.filter_map(|said| {
            let key = said.what.load(Ordering::Relaxed) >> 44;
            addr::unpack(key.checked_sub(1)? as u32)
        })
    }
}

fn is_fresh(said: &Said, now_ns: u64, lifetime_ns: u64) -> bool {
    now_ns.saturating_sub(said.since_ns.load(Ordering::Relaxed)) <= lifetime_ns
}

/// The known dead links as text for programs: a line with the machine, then one for each of
/// [`Health::iter`], with the node's coordinates and the names of its dead ports.
#[derive(Debug)]
pub struct Known<'a, S: Storage> {
    health: &'a Health<S>,
    now_ns: u64,
}

/// The dead links that a node knows. Any thread may read and write it. A thread that reads while
/// another one writes may see an older or newer state of a node.
///
/// It is advice, and never a reason not to send: if every path has a link that is reported dead, a
/// sender tries the default path.
#[derive(Debug)]
pub struct Health<S: Storage> {
    shape: Shape,
    me: Coords,
    own: AtomicU32,
    reported: Table<S>,
    /// The reports of the node's administrator, which are believed until they are withdrawn.
    noted: Table<S>,
    /// Time until which there may be reports of other nodes, in nanoseconds.
    until_ns: AtomicU64,
}

impl<S: Storage> Health<S> {
    /// Creates the state of node `me` of a machine, without dead links.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    pub fn new(shape: Shape, me: Coords) -> Result<Self, S::Error> {
        let (own, until_ns) = (AtomicU32::new(0), AtomicU64::new(0));
        Ok(Self { shape, me, own, reported: Table::new()?, noted: Table::new()?, until_ns })
    }

    /// The machine.
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The node's own dead ports that are known.
    pub fn own(&self) -> u16 {
        self.own.load(Ordering::Relaxed) as u16
    }

    /// Sets the node's own dead ports.
    pub fn set_own(&self, dead: u16) {
        self.own.store((dead & ALL_PORTS).into(), Ordering::Relaxed);
    }

    /// Stores a report. Returns whether it changes anything.
    pub fn learn(&self, report: &Report, now_ns: u64) -> bool {
        let Report { origin, number, dead } = *report;
        if origin == self.me || !self.shape.contains(origin) {
            return false;
        }
        let before = match self.reported.find(origin) {
            Some(old) => {
                // A late report is ignored, unless the node may have been restarted since.
                let late = number.wrapping_sub(old.number) as i32 <= 0;
                let repeated = (number, dead) == (old.number, old.dead);
                if late && !repeated && is_fresh(old.said, now_ns, REPORT_NS) {
                    return false;
                }
                old.dead
            }
            // A node without an entry counts as healthy, so this report needs no entry.
            None if dead == 0 => return false,
            None => 0,
        };
        self.reported.set_dead(origin, dead, number, now_ns);
        let until_ns = now_ns.saturating_add(REPORT_NS + 1);
        self.until_ns.fetch_max(until_ns, Ordering::Relaxed);
        dead != before
    }

    /// Stores the administrator's report of a node's dead ports; 0 if there are none.
    pub fn note(&self, node: Coords, dead: u16) {
        let is_new = dead != 0 || self.noted.find(node).is_some();
        if is_new && self.shape.contains(node) {
            self.noted.set_dead(node, dead, 0, 0);
            self.until_ns.store(u64::MAX, Ordering::Relaxed);
        }
    }

    /// Returns true if no dead link is known.
    pub fn is_quiet(&self, now_ns: u64) -> bool {
        self.own() == 0 && self.until_ns.load(Ordering::Relaxed) <= now_ns
    }

    /// Ports of a node that were reported dead at this end of their links.
    fn said_of(&self, node: Coords, now_ns: u64) -> u16 {
        let said = match node == self.me {
            true => self.own(),
            false => self.reported.dead(node, now_ns, REPORT_NS),
        };
        said | self.noted.dead(node, now_ns, u64::MAX)
    }

    /// Returns true if the link of a node's port was reported dead at either end.
    pub fn is_dead(&self, node: Coords, port: Port, now_ns: u64) -> bool {
        let is_set = |mask: u16, port: Port| mask >> port.index() & 1 != 0;
        is_set(self.said_of(node, now_ns), port)
            || self
                .shape
                .neighbor(node, port)
                .is_some_and(|other| is_set(self.said_of(other, now_ns), port.opposite()))
    }

    /// Ports of a node whose link is known to be dead, one bit each.
    pub fn dead_ports(&self, node: Coords, now_ns: u64) -> u16 {
        let links = Port::ALL.into_iter().filter(|p| self.shape.neighbor(node, *p).is_some());
        let dead = links.filter(|port| self.is_dead(node, *port, now_ns));
        dead.fold(0, |mask, port| mask | 1 << port.index())
    }

    /// Returns true if links that are known to be dead cut a node off from this one, alone or with
    /// a few others, such as those of a failed board: no node reports the links between them.
    pub fn is_cut_off(&self, node: Coords, now_ns: u64) -> bool {
        if self.is_quiet(now_ns) {
            return false;
        }
        let mut island = [node; ISLAND];
        let (mut looked, mut count) = (0, 1);
        while looked < count {
            let at = island[looked];
            looked += 1;
            for port in Port::ALL {
                let other = self.shape.neighbor(at, port);
                let Some(other) = other.filter(|_| !self.is_dead(at, port, now_ns)) else {
                    continue;
                };
                if island[..count].contains(&other) {
                    continue;
                }
                if other == self.me || count == ISLAND {
                    return false;
                }
                island[count] = other;
                count += 1;
            }
        }
        node != self.me
    }

    /// Returns true if no link on a packet's route from this node is known to be dead.
    pub fn is_clear(&self, target: &PacketTarget, now_ns: u64) -> bool {
        self.is_quiet(now_ns)
            || self.walk(self.me, target.node, target.path, Some(target.distances), now_ns)
    }

    /// The path for a command to a node and for its answer: the default path if it may work, or
    /// else the shortest other one that may.
    pub fn path(&self, to: Coords, now_ns: u64) -> Path {
        let default = to.default_path();
        if self.is_quiet(now_ns) || !self.shape.contains(to) {
            return default;
        }
        let works = |path| {
            self.walk(self.me, to, path, None, now_ns) && self.walk(to, self.me, path, None, now_ns)
        };
        if works(default) {
            return default;
        }
        let (mut best, mut least) = (default, u32::MAX);
        // A loop, because the type names of nested iterators are too long for the kernel's tools.
        for path in self.shape.paths() {
            let hops = self.shape.hops(self.me, to, path);
            if hops < least && works(path) {
                (best, least) = (path, hops);
            }
        }
        best
    }

    fn walk(
        &self,
        from: Coords,
        to: Coords,
        path: Path,
        distances: Option<[i8; 3]>,
        now_ns: u64,
    ) -> bool {
        let mut legs = self.shape.legs(from, to, path);
        if let Some(distances) = distances {
            legs = legs.with_distances(distances);
        }
        legs.links().all(|(at, port, _)| !self.is_dead(at, port, now_ns))
    }

    /// The known dead links as text.
    pub const fn known(&self, now_ns: u64) -> Known<'_, S> {
        Known { health: self, now_ns }
    }

    /// The nodes with dead links reported at their end, and their dead ports, one bit each. A node
    /// with both a report and an administrator's note comes twice.
    pub fn iter(&self, now_ns: u64) -> impl Iterator<Item = (Coords, u16)> {
        let own = core::iter::once(self.me);
        let noted = self.noted.iter(now_ns, u64::MAX);
        let all = own.chain(self.reported.iter(now_ns, REPORT_NS)).chain(noted);
        all.map(move |node| (node, self.said_of(node, now_ns))).filter(|(_, dead)| *dead != 0)
    }
}

impl<S: Storage> fmt::Display for Known<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Known { health, now_ns } = self;
        let torus = health.shape.torus().into_iter().zip(["x", "y", "z"]);
        write!(f, "shape {} torus ", health.shape)?;
        for (_, letter) in torus.filter(|(wraps, _)| *wraps) {
            f.write_str(letter)?;
        }
        f.write_str("\n")?;
        for (node, dead) in health.iter(*now_ns) {
            write!(f, "{}", node.separated(' '))?;
            for port in Port::ALL.into_iter().filter(|port| dead >> port.index() & 1 != 0) {
                write!(f, " {}", port.name())?;
            }
            f.write_str("\n")?;
        }
        Ok(())
    }
}

/// Reports this node's dead ports to the other nodes: when they change, and from time to time. A
/// node that never had dead ports sends no reports.
#[derive(Debug)]
pub struct Reporter {
    /// The last report.
    report: Report,
    /// The next node to send the report to.
    next: NodeId,
    /// Number of remaining rounds of a report that all ports work.
    farewells: u8,
    /// Start of the current or last round, and time of the next burst, in nanoseconds.
    began_ns: u64,
    burst_ns: u64,
}

impl Reporter {
    /// A reporter of node `me` that has sent nothing yet. Its reports are numbered from `first` on.
    /// A node that was restarted should not repeat its earlier numbers.
    pub const fn new(me: Coords, first: u32) -> Self {
        Self {
            report: Report { origin: me, number: first, dead: 0 },
            next: NodeId::NOWHERE,
            farewells: 0,
            began_ns: 0,
            burst_ns: 0,
        }
    }

    /// Returns true if no reports are being sent.
    pub fn is_settled(&self) -> bool {
        self.next == NodeId::NOWHERE
    }

    /// Returns true if no port of this node is dead and there is nothing to report, so that
    /// [`Reporter::step`] need not be called.
    pub fn is_silent(&self) -> bool {
        self.is_settled() && self.report.dead == 0 && self.farewells == 0
    }

    /// Passes the reports that are due to `send`, which returns false when there is no room for
    /// more. To be called from time to time: about every second, and every few milliseconds unless
    /// [`Reporter::is_settled`].
    pub fn step<S: Storage>(
        &mut self,
        health: &Health<S>,
        now_ns: u64,
        mut send: impl FnMut(Coords, &[u8; HEADER_SIZE]) -> bool,
    ) {
        let since = now_ns.saturating_sub(self.began_ns);
        let own = health.own();
        let first = self.report.dead == 0 && self.farewells == 0;
        if own != self.report.dead && (first || since >= CHANGE_NS) {
            self.report.dead = own;
            self.report.number = self.report.number.wrapping_add(1);
            self.farewells = if own == 0 { FAREWELLS } else { 0 };
            self.begin(now_ns);
        } else if self.is_settled()
            && (own != 0 && since >= REFRESH_NS || self.farewells > 0 && since >= CHANGE_NS)
        {
            self.begin(now_ns);
        }
        if self.is_settled() || now_ns < self.burst_ns {
            return;
        }
        self.burst_ns = now_ns.saturating_add(BURST_NS);
        let header = self.report.emit();
        for _ in 0..BURST {
            let Some(to) = health.shape().coords(self.next) else {
                self.next = NodeId::NOWHERE;
                self.farewells = self.farewells.saturating_sub(1);
                return;
            };
            if to != self.report.origin && !health.is_cut_off(to, now_ns) && !send(to, &header) {
                return;
            }
            self.next = NodeId(self.next.0 + 1);
        }
    }

    fn begin(&mut self, now_ns: u64) {
        self.next = NodeId(0);
        (self.began_ns, self.burst_ns) = (now_ns, now_ns);
    }
}
