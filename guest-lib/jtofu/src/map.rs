//! Finds nodes of the machine for the torus that a job requests.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::rc::Rc;
use std::str::FromStr;

use tofu_abi::topology::{Axis, Shape};
use tofu_abi::{Coords, decimal};

use crate::System;
use crate::axis_embedding::{GridPoint, StrandPlan};

/// The most nodes of a machine, and so the longest axis of a job.
const MAX_NODES: u32 = Shape::LARGEST.nodes();
/// The number of embeddings of each kind, length and choice of axes that are combined, for
/// jobs of one, two and three axes. With more axes, there are more combinations.
const PLANS_USED: [usize; 3] = [16, 4, 2];
/// Places in the machine that are tried for each folding of the axes, and in total. These limits
/// matter only when nodes have failed: without failures the first try succeeds.
const ORIGINS_TRIED: usize = 4096;
const TRIES: usize = 300_000;
/// Places laid before the search ends, which bounds its time on large machines.
const WORK: usize = 40_000_000;

/// Text or numbers that are not a shape of a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is no shape of a job: one to three lengths of 1 to 393216, such as 12, 4x3 or \
     2x3x2, and at most 393216 nodes in all"
)]
pub struct LogicalShapeError(String);

/// The torus that a job requests, with one to three axes, in nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogicalShape {
    len: [u32; 3],
    axes: u8,
}

impl LogicalShape {
    /// Creates a torus with axes of these lengths.
    ///
    /// # Errors
    /// [`LogicalShapeError`] unless there are one to three lengths, none of them 0, with a product
    /// of at most 393,216.
    pub fn new(lens: &[u32]) -> Result<Self, LogicalShapeError> {
        let total = lens.iter().try_fold(1u32, |total, n| total.checked_mul(*n));
        if !(1..=3).contains(&lens.len()) || !total.is_some_and(|n| (1..=MAX_NODES).contains(&n)) {
            let lens: Vec<_> = lens.iter().map(u32::to_string).collect();
            return Err(LogicalShapeError(lens.join("x")));
        }
        let mut len = [1; 3];
        len[..lens.len()].copy_from_slice(lens);
        Ok(Self { len, axes: lens.len() as u8 })
    }

    /// Returns the lengths of x, y and z in nodes, with 1 for axes that the job does not have.
    pub const fn size(&self) -> [u32; 3] {
        self.len
    }

    /// Returns the lengths of the axes that the job has.
    pub fn lens(&self) -> &[u32] {
        &self.len[..usize::from(self.axes)]
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> u32 {
        self.len.iter().product()
    }

    /// Returns the number of the node at these logical coordinates. x varies fastest.
    pub fn index(&self, at: [u32; 3]) -> Option<u32> {
        let [x, y, z] = at;
        let [nx, ny, nz] = self.len;
        (x < nx && y < ny && z < nz).then(|| (z * ny + y) * nx + x)
    }

    /// Returns the logical coordinates of a node: the inverse of [`LogicalShape::index`].
    pub fn coords(&self, index: u32) -> Option<[u32; 3]> {
        let [nx, ny, _] = self.len;
        (index < self.nodes()).then(|| [index % nx, index / nx % ny, index / nx / ny])
    }
}

impl fmt::Display for LogicalShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lens: Vec<_> = self.lens().iter().map(u32::to_string).collect();
        f.write_str(&lens.join("x"))
    }
}

impl FromStr for LogicalShape {
    type Err = LogicalShapeError;

    fn from_str(text: &str) -> Result<Self, LogicalShapeError> {
        let lens: Option<Vec<_>> = text.split('x').map(decimal).collect();
        lens.and_then(|lens| Self::new(&lens).ok())
            .ok_or_else(|| LogicalShapeError(text.to_owned()))
    }
}

/// The reason why there is no map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The machine has fewer working nodes than the job has places.
    #[error(
        "a map of {shape} needs {} nodes, and the machine {machine} has {usable} in order{}",
        shape.nodes(), hint(.smaller)
    )]
    TooFew {
        /// The request of the job.
        shape: LogicalShape,
        /// Shape of the machine.
        machine: Shape,
        /// Nodes that have not failed.
        usable: u32,
        /// A shape with one axis shorter that fits.
        smaller: Option<LogicalShape>,
    },
    /// There are enough nodes, but no axes of the machine fold into such a torus.
    #[error(
        "the machine {machine}{} has no map of {shape} whose neighbours are one hop apart{}{}",
        if *.failures { ", with its failures," } else { "" },
        if *.closed { " and whose axes are all closed" } else { "" },
        hint(.smaller)
    )]
    None {
        /// The request of the job.
        shape: LogicalShape,
        /// Shape of the machine.
        machine: Shape,
        /// True if nodes or links have failed.
        failures: bool,
        /// True if open axes were refused.
        closed: bool,
        /// A shape with one axis shorter that fits.
        smaller: Option<LogicalShape>,
    },
}

fn hint(smaller: &Option<LogicalShape>) -> String {
    smaller.map_or_else(String::new, |shape| format!("; {shape} would fit"))
}

/// One axis of a job's torus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisMap {
    /// Length in nodes.
    pub len: u32,
    /// True if its last node is a neighbour of its first.
    pub closed: bool,
    /// The axes of the machine that it is folded from, and how much of each it spans.
    pub folded: Vec<(Axis, u8)>,
}

impl fmt::Display for AxisMap {
    /// Formats the axis, for example as `4 from A2 C2, closed`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.len)?;
        for (at, (axis, len)) in self.folded.iter().enumerate() {
            write!(f, "{}{axis}{len}", if at == 0 { " from " } else { " " })?;
        }
        f.write_str(if self.closed { ", closed" } else { ", open" })
    }
}

/// A job's torus laid into the machine, with neighbours in the torus being neighbours in the
/// machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankMap {
    shape: LogicalShape,
    axes: Vec<AxisMap>,
    reference: Coords,
    extent: [u8; 6],
    nodes: Vec<Coords>,
}

/// The places of an embedding, if it can be laid.
type AxisEmbedding = Option<Rc<Vec<GridPoint>>>;

/// A way to fold all axes of the job.
#[derive(Clone, Copy)]
struct Folding {
    plans: [StrandPlan; 3],
    axes: [u8; 3],
}

impl Folding {
    /// Returns the cost of a folding: the open axes, the nodes of the job's box that are left out,
    /// and the units of 12 nodes that it touches.
    fn cost(&self) -> (usize, u32, u32) {
        (
            self.plans.iter().filter(|plan| !plan.closed).count(),
            self.plans.iter().map(StrandPlan::waste).fold(0, u32::saturating_add),
            self.plans.iter().map(StrandPlan::units).product(),
        )
    }

    fn lens(&self) -> [u8; 6] {
        let mut lens = [1; 6];
        for plan in &self.plans {
            lens.iter_mut().zip(plan.lens).for_each(|(len, n)| *len = (*len).max(n));
        }
        lens
    }
}

impl RankMap {
    /// Finds nodes for a job: each place of its torus gets its own node, and neighbours are
    /// one hop apart. Failed nodes and links are not used.
    ///
    /// Each axis of the job is folded from axes of the machine, into a ring if possible. Maps with
    /// all axes closed are preferred, then those that leave few nodes unused, then those within few
    /// units. With `closed`, maps with an open axis are rejected.
    ///
    /// To avoid a failed node, the axis that includes B leads around it, and is then one place
    /// shorter than its fold; otherwise the job is placed elsewhere.
    ///
    /// # Errors
    /// [`MapError`] if nothing was found. The search knows the foldings described in the manual,
    /// and tries a bounded number of places for them. Without failures it misses no folding of
    /// these kinds.
    pub fn find(system: &System, shape: LogicalShape, closed: bool) -> Result<Self, MapError> {
        if let Some(map) = search(system, shape, closed) {
            return Ok(map);
        }
        let usable = system.shape().nodes() - system.failed().len() as u32;
        let smaller = || smaller(system, shape, closed);
        let machine = *system.shape();
        Err(if shape.nodes() > usable {
            MapError::TooFew { shape, machine, usable, smaller: smaller() }
        } else {
            let failures = !system.is_whole();
            MapError::None { shape, machine, failures, closed, smaller: smaller() }
        })
    }

    /// Finds nodes for a job that continues without nodes that it has lost. If its torus no longer
    /// exists, the result is the largest one with one axis shorter: 8x12x6 continues as 8x11x6
    /// after a board has failed (the journal paper's example).
    ///
    /// # Errors
    /// [`MapError`] about the whole torus, if none of them was found.
    pub fn find_degraded(
        system: &System,
        shape: LogicalShape,
        closed: bool,
    ) -> Result<Self, MapError> {
        Self::find(system, shape, closed).or_else(|error| {
            let mut shorter = shorter(shape, u32::MAX).into_iter();
            shorter.find_map(|shape| search(system, shape, closed)).ok_or(error)
        })
    }

    /// Returns the torus that the job requested.
    pub const fn shape(&self) -> LogicalShape {
        self.shape
    }

    /// Returns the job's axes.
    pub fn axes(&self) -> &[AxisMap] {
        &self.axes
    }

    /// Returns the lowest corner of the smallest box of the machine that contains the job's nodes.
    /// On a torus axis, the box may wrap around.
    pub const fn reference(&self) -> Coords {
        self.reference
    }

    /// Returns the lengths of that box.
    pub const fn extent(&self) -> [u8; 6] {
        self.extent
    }

    /// Returns the nodes, in the order of [`LogicalShape::index`].
    pub fn nodes(&self) -> &[Coords] {
        &self.nodes
    }

    /// Returns all pairs of neighbours in the job's torus, as numbers of nodes, with the axis of
    /// each. On a closed axis, these include the pair of its last and first node.
    pub fn steps(&self) -> impl Iterator<Item = (u32, u32, usize)> + '_ {
        (0..self.shape.nodes()).flat_map(move |from| {
            self.axes.iter().enumerate().filter_map(move |(axis, info)| {
                let mut at = self.shape.coords(from)?;
                at[axis] += 1;
                if at[axis] == info.len {
                    // A ring of two has one pair of neighbours.
                    if !info.closed || info.len <= 2 {
                        return None;
                    }
                    at[axis] = 0;
                }
                Some((from, self.shape.index(at)?, axis))
            })
        })
    }

    /// Returns whether the map fulfils everything that it promises.
    fn holds(&self, system: &System) -> bool {
        let mut seen = HashSet::with_capacity(self.nodes.len());
        let at = |index: u32| self.nodes[index as usize];
        self.nodes.iter().all(|node| !system.is_failed(*node) && seen.insert(*node))
            && self.steps().all(|(from, to, _)| {
                system.shape().adjacent(at(from), at(to)) && system.link_up(at(from), at(to))
            })
    }
}

/// Returns the largest shape with one axis shorter by one to three that fits, with all axes closed
/// if possible.
fn smaller(system: &System, shape: LogicalShape, closed: bool) -> Option<LogicalShape> {
    let shapes = shorter(shape, 3);
    let fits =
        |closed| shapes.iter().copied().find(|shape| search(system, *shape, closed).is_some());
    fits(true).or_else(|| if closed { None } else { fits(false) })
}

/// Returns shapes with one axis shorter by up to `most`, largest first.
fn shorter(shape: LogicalShape, most: u32) -> Vec<LogicalShape> {
    let mut shapes = Vec::new();
    for less in 1..=most.min(shape.size().into_iter().max().unwrap_or(0)) {
        for axis in (0..shape.lens().len()).rev() {
            let mut lens = shape.lens().to_vec();
            lens[axis] = lens[axis].saturating_sub(less);
            shapes.extend(LogicalShape::new(&lens));
        }
    }
    shapes.sort_by_key(|shape| std::cmp::Reverse(shape.nodes()));
    shapes
}

fn search(system: &System, shape: LogicalShape, closed: bool) -> Option<RankMap> {
    let usable = system.shape().nodes() - system.failed().len() as u32;
    if shape.nodes() > usable {
        return None;
    }
    let foldings = foldings(system, shape, closed);
    if let Some(map) = lay(system, shape, &foldings) {
        return Some(map);
    }
    // If every map uses a link that is down, avoid the nodes at one end of all such links.
    let (one, other): (Vec<_>, Vec<_>) = system.links_down().iter().copied().unzip();
    [one, other].into_iter().filter(|ends| !ends.is_empty()).find_map(|ends| {
        let system = system.clone().with_failed(ends).ok()?;
        lay(&system, shape, &foldings)
    })
}

/// Returns all ways to fold the job's axes from those of the machine, best first.
fn foldings(system: &System, shape: LogicalShape, closed: bool) -> Vec<Folding> {
    let long: Vec<usize> = (0..6).filter(|axis| system.shape().lengths()[*axis] > 1).collect();
    let most = PLANS_USED[shape.lens().len() - 1];
    let mut known: HashMap<(u8, u32), Vec<StrandPlan>> = HashMap::new();
    let mut plans = |axes: u8, len: u32| {
        let make = || {
            let mut plans = StrandPlan::all(system, axes, len, most);
            plans.retain(|plan| plan.closed || !closed);
            plans
        };
        known.entry((axes, len)).or_insert_with(make).clone()
    };
    let mut found = Vec::new();
    // Each axis of the machine belongs to one of the job's axes or to none. The choice is a number
    // with one digit for each.
    let owners = shape.lens().len() as u32 + 1;
    for choice in 0..owners.pow(long.len() as u32) {
        let mut axes = [0u8; 3];
        let mut rest = choice;
        for &axis in long.iter().rev() {
            if let Some(owner) = axes.get_mut((rest % owners) as usize)
                && rest % owners + 1 < owners
            {
                *owner |= 1 << axis;
            }
            rest /= owners;
        }
        let [x, y, z] = shape.size();
        let [xs, ys, zs] = [plans(axes[0], x), plans(axes[1], y), plans(axes[2], z)];
        for x in &xs {
            for y in &ys {
                for z in &zs {
                    found.push(Folding { plans: [*x, *y, *z], axes });
                }
            }
        }
    }
    // The sort is stable: among equals, the job's x comes from the machine's first axis.
    found.sort_by_cached_key(Folding::cost);
    found
}

/// Lays the first folding that fits somewhere.
fn lay(system: &System, shape: LogicalShape, foldings: &[Folding]) -> Option<RankMap> {
    let (mut tries, mut work) = (0, 0);
    // Strands without holes occur in many foldings.
    let mut known: HashMap<StrandPlan, AxisEmbedding> = HashMap::new();
    for folding in foldings {
        let lens = folding.lens();
        let whole = folding.plans.map(|plan| {
            let lay = || {
                work += plan.work();
                plan.places(system, &HashSet::new()).map(Rc::new)
            };
            known.entry(plan).or_insert_with(lay).clone()
        });
        for origin in origins(system, lens).take(ORIGINS_TRIED) {
            tries += 1;
            if tries > TRIES || work > WORK {
                return None;
            }
            let inside = |node: &Coords| relative(system, *node, origin, lens);
            let failed: Vec<GridPoint> = system.failed().iter().filter_map(inside).collect();
            // If there are failures, one axis leads around them, and the others do not meet them.
            let turns = if failed.is_empty() { 1 } else { shape.lens().len() };
            for turn in 0..turns {
                let mut strands = whole.clone();
                if !failed.is_empty() {
                    let holes = holes(folding, turn, &failed, &whole);
                    strands[turn] = folding.plans[turn].places(system, &holes).map(Rc::new);
                    work += folding.plans[turn].work();
                }
                let [Some(x), Some(y), Some(z)] = strands else { continue };
                work += shape.nodes() as usize;
                let map = assemble(system, shape, folding, origin, [&x, &y, &z]);
                if map.holds(system) {
                    return Some(map);
                }
            }
            // In a machine without failures, other places give the same result.
            if system.is_whole() {
                break;
            }
        }
    }
    None
}

/// Projects the failed places onto one axis of the job, as far as the other axes reach them.
fn holes(
    folding: &Folding,
    turn: usize,
    failed: &[GridPoint],
    strands: &[AxisEmbedding; 3],
) -> HashSet<GridPoint> {
    let on = |place: &GridPoint, axes: u8| {
        let mut part = *place;
        (0..6).filter(|axis| axes & 1 << axis == 0).for_each(|axis| part[axis] = 0);
        part
    };
    let met = |place: &&GridPoint| {
        (0..3).filter(|axis| *axis != turn).all(|axis| {
            let part = on(place, folding.axes[axis]);
            strands[axis].as_ref().is_some_and(|strand| strand.contains(&part))
        })
    };
    failed.iter().filter(met).map(|place| on(place, folding.axes[turn])).collect()
}

/// Returns the lowest corners of all places for a box in the machine. On a torus axis, a box may
/// wrap around.
fn origins(system: &System, lens: [u8; 6]) -> impl Iterator<Item = [u8; 6]> {
    let size = system.shape().lengths();
    let torus = system.wraps();
    let choices: [u32; 6] = std::array::from_fn(|axis| {
        let free = u32::from(size[axis] - lens[axis]);
        if torus[axis] && free > 0 { size[axis].into() } else { free + 1 }
    });
    (0..choices.iter().product()).map(move |number: u32| {
        let mut rest = number;
        choices.map(|n| {
            let at = rest % n;
            rest /= n;
            at as u8
        })
    })
}

/// Returns a node's place in the box, if it is in there.
fn relative(system: &System, node: Coords, origin: [u8; 6], lens: [u8; 6]) -> Option<GridPoint> {
    let (node, shape) = (node.to_array(), system.shape());
    let place = Axis::ALL.map(|axis| {
        let at = axis.index();
        shape.steps_up(axis, origin[at], node[at])
    });
    place.iter().zip(lens).all(|(at, len)| *at < len).then_some(place)
}

fn assemble(
    system: &System,
    shape: LogicalShape,
    folding: &Folding,
    origin: [u8; 6],
    [xs, ys, zs]: [&[GridPoint]; 3],
) -> RankMap {
    let up = |place: GridPoint| {
        let at =
            |axis: Axis| system.shape().step_up(axis, origin[axis.index()], place[axis.index()]);
        Coords::from_array(Axis::ALL.map(at))
    };
    let (mut low, mut high) = ([u8::MAX; 6], [0; 6]);
    let mut nodes = Vec::with_capacity(shape.nodes() as usize);
    for z in zs {
        for y in ys {
            for x in xs {
                // Each of the machine's axes is non-zero in at most one of the three.
                let place: GridPoint = std::array::from_fn(|axis| x[axis] + y[axis] + z[axis]);
                for axis in 0..6 {
                    low[axis] = low[axis].min(place[axis]);
                    high[axis] = high[axis].max(place[axis]);
                }
                nodes.push(up(place));
            }
        }
    }
    let axes = (0..shape.lens().len())
        .map(|axis| {
            let plan = folding.plans[axis];
            let used = (0..6).filter(|at| folding.axes[axis] & 1 << at != 0);
            AxisMap {
                len: shape.size()[axis],
                closed: plan.closed || shape.size()[axis] <= 2,
                folded: used.map(|at| (Axis::ALL[at], plan.lens[at])).collect(),
            }
        })
        .collect();
    RankMap {
        shape,
        axes,
        reference: up(low),
        extent: std::array::from_fn(|axis| high[axis] - low[axis] + 1),
        nodes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::system;
    use proptest::prelude::*;
    use tofu_abi::Generation::{Fugaku as FUGAKU, Fx100 as FX100, K};

    fn unit() -> System {
        "1x1x1x2x3x2".parse().unwrap()
    }

    fn find(system: &System, shape: &str) -> Result<RankMap, MapError> {
        RankMap::find(system, shape.parse().unwrap(), false)
    }

    /// Checks what a map promises against the links of ports.
    fn check(system: &System, map: &RankMap) {
        let shape = system.shape();
        let near = |one, other| shape.neighbors(one).any(|(_, to)| to == other);
        let nodes = map.nodes();
        assert_eq!(nodes.len(), map.shape().nodes() as usize);
        let once: HashSet<_> = nodes.iter().collect();
        assert_eq!(once.len(), nodes.len(), "each node once");
        for index in 0..map.shape().nodes() {
            let at = map.shape().coords(index).unwrap();
            let node = nodes[index as usize];
            assert!(shape.contains(node) && !system.failed().contains(&node));
            for (axis, info) in map.axes().iter().enumerate() {
                let mut to = at;
                to[axis] = (to[axis] + 1) % info.len;
                if info.len == 1 || to[axis] == 0 && !info.closed {
                    continue;
                }
                let other = nodes[map.shape().index(to).unwrap() as usize];
                assert!(near(node, other), "{} {at:?} {node} {other}", map.shape());
                let link = (node.min(other), node.max(other));
                assert!(!system.links_down().contains(&link), "{node} {other}");
            }
            let (reference, extent) = (map.reference().to_array(), map.extent());
            for axis in 0..6 {
                let size = system.shape().lengths()[axis];
                let place = (node.to_array()[axis] + size - reference[axis]) % size;
                assert!(place < extent[axis]);
            }
        }
    }

    fn all_closed(map: &RankMap) -> bool {
        map.axes().iter().all(|axis| axis.closed)
    }

    #[test]
    fn shapes_are_parsed_strictly() {
        for good in ["1", "12", "4x3", "2x3x2", "393216"] {
            assert_eq!(good.parse::<LogicalShape>().unwrap().to_string(), good);
        }
        for bad in [
            "",
            "x",
            "0",
            "4x",
            "4x3x2x1",
            "+4",
            "-1",
            "4 x3",
            "393217",
            "99999999999",
            "65536x65536",
        ] {
            assert!(bad.parse::<LogicalShape>().is_err(), "{bad}");
        }
        let shape: LogicalShape = "4x3x2".parse().unwrap();
        for index in 0..24 {
            assert_eq!(shape.index(shape.coords(index).unwrap()), Some(index));
        }
        assert_eq!((shape.coords(1), shape.coords(24)), (Some([1, 0, 0]), None));
    }

    #[test]
    fn unit_holds_all_tori_of_its_size() {
        for shape in ["12", "4x3", "3x4", "6x2", "2x6", "2x3x2", "3x2x2", "1x12", "12x1x1", "1"] {
            let map = find(&unit(), shape).unwrap();
            check(&unit(), &map);
            assert!(all_closed(&map), "{shape}");
        }
        let map = find(&unit(), "4x3").unwrap();
        assert_eq!(map.axes()[0].to_string(), "4 from A2 C2, closed");
        assert_eq!(map.axes()[1].to_string(), "3 from B3, closed");
    }

    #[test]
    fn papers_torus_is_found() {
        // 8x12x6 with each axis folded from one of X, Y, Z and one of A, B, C, and then with a
        // failed node: the axis with B is one shorter.
        let system = system([4, 4, 3, 2, 3, 2], [false; 3]);
        let map = find(&system, "8x12x6").unwrap();
        check(&system, &map);
        assert!(all_closed(&map));
        for failed in system_nodes(&system).step_by(97) {
            let system = system.clone().with_failed([failed]).unwrap();
            let map = find(&system, "8x11x6").unwrap();
            check(&system, &map);
            assert!(all_closed(&map), "{failed}");
        }
    }

    #[test]
    fn job_avoids_a_dead_board() {
        let whole = system([4, 4, 3, 2, 3, 2], [false; 3]);
        let degraded = |system: &System, shape: &str| {
            RankMap::find_degraded(system, shape.parse().unwrap(), true)
        };
        assert_eq!(degraded(&whole, "8x12x6").unwrap().shape().to_string(), "8x12x6");
        for first in system_nodes(&whole).step_by(61) {
            let board = whole.shape().block(first, FUGAKU.description().board);
            let system = whole.clone().with_failed(board).unwrap();
            let map = degraded(&system, "8x12x6").unwrap();
            check(&system, &map);
            assert!(map.shape().to_string() == "8x11x6" && all_closed(&map), "{first}");
        }
        // Two boards of two nodes each; one of them is left.
        let two = system([2, 1, 1, 1, 1, 2], [false; 3]);
        let one = two.with_failed([Coords::default(), Coords::new(0, 0, 0, 0, 0, 1)]).unwrap();
        assert_eq!(degraded(&one, "4").unwrap().shape().to_string(), "2");
        assert_eq!(degraded(&one, "2x2").unwrap().shape().to_string(), "2x1");
        let none = one.clone().with_failed(system_nodes(&one)).unwrap();
        let error = degraded(&none, "2x2").unwrap_err().to_string();
        assert!(error.contains("needs 4 nodes") && error.contains("has 0 in order"), "{error}");
    }

    fn system_nodes(system: &System) -> impl Iterator<Item = Coords> + use<> {
        let whole = System::new(system.shape().with_torus([false; 3]));
        origins(&whole, [1; 6]).map(Coords::from_array).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn large_machines_are_used_whole() {
        for (size, shape) in [
            ([24, 18, 16, 2, 3, 2], "48x36x48"),
            ([24, 18, 16, 2, 3, 2], "48x1728"),
            ([24, 18, 16, 2, 3, 2], "82944"),
            ([32, 32, 32, 2, 3, 2], "393216"),
            ([5, 3, 7, 1, 1, 1], "105"),
        ] {
            let system = system(size, [true; 3]);
            let map = find(&system, shape).unwrap();
            assert!(all_closed(&map), "{shape}");
            if system.shape().nodes() < 100_000 {
                check(&system, &map);
            }
        }
    }

    #[test]
    fn rings_go_round_any_one_failed_node() {
        for size in [[1, 1, 1, 2, 3, 2], [1, 1, 2, 2, 3, 2], [2, 1, 1, 2, 3, 2], [3, 1, 1, 1, 3, 1]]
        {
            let system = system(size, [false; 3]);
            for failed in system_nodes(&system) {
                let system = system.clone().with_failed([failed]).unwrap();
                let map = find(&system, &(system.shape().nodes() - 1).to_string()).unwrap();
                check(&system, &map);
                assert!(all_closed(&map), "{size:?} {failed}");
            }
        }
    }

    /// With any single board failed, every machine of up to 96 nodes continues as one ring of the
    /// remaining nodes, and as a torus of three axes, whose B axis is shorter by one.
    #[test]
    fn machines_go_round_any_one_dead_board() {
        let sizes = (1..=8u8).flat_map(|x| (1..=8u8).map(move |y| (x, y)));
        let sizes = sizes.flat_map(|(x, y)| (1..=8u8).map(move |z| [x, y, z]));
        let units = |[x, y, z]: &[u8; 3]| u32::from(*x) * u32::from(*y) * u32::from(*z);
        for [x, y, z] in sizes.filter(|size| units(size) <= 8) {
            for (generation, torus) in [(K, [true; 3]), (FX100, [false; 3]), (FUGAKU, [true; 3])] {
                let whole = system([x, y, z, 2, 3, 2], torus);
                let shape = *whole.shape();
                let board = |at| shape.block(at, generation.description().board);
                for first in shape.iter().filter(|at| board(*at).next() == Some(*at)) {
                    let system = whole.clone().with_failed(board(first)).unwrap();
                    let left = shape.nodes() as usize - system.failed().len();
                    let map = find(&system, &left.to_string());
                    let map = map.unwrap_or_else(|error| panic!("{shape} {first}: {error}"));
                    check(&system, &map);
                    assert!(all_closed(&map), "{shape} {first}");
                    if generation != FX100 {
                        let job = format!("{}x{}x{}", 2 * x, 3 * z - 1, 2 * y);
                        let map = find(&system, &job);
                        let map = map.unwrap_or_else(|error| panic!("{shape} {first}: {error}"));
                        check(&system, &map);
                        assert!(all_closed(&map), "{shape} {first} {job}");
                    }
                }
            }
        }
    }

    #[test]
    fn nodes_that_no_link_reaches_are_not_used() {
        let node = Coords::new(0, 0, 0, 1, 2, 1);
        let links: Vec<_> = unit().shape().neighbors(node).map(|(_, to)| (node, to)).collect();
        let system = unit().with_links_down(links.clone()).unwrap().with_cut_off_failed();
        assert_eq!(system.failed(), [node]);
        assert!(find(&system, "11").is_ok() && find(&system, "12").is_err());
        let system = unit().with_links_down(links[1..].to_vec()).unwrap().with_cut_off_failed();
        assert_eq!(system.failed(), []);
    }

    /// Returns whether a ring of this length exists, by exhaustive search.
    fn ring_exists(system: &System, len: usize) -> bool {
        fn extend(system: &System, way: &mut Vec<Coords>, all: &[Coords], len: usize) -> bool {
            let (first, last) = (way[0], way[way.len() - 1]);
            if way.len() == len {
                return len <= 2 || system.shape().adjacent(last, first);
            }
            for next in all {
                // The lowest node comes first.
                if *next > first && system.shape().adjacent(last, *next) && !way.contains(next) {
                    way.push(*next);
                    if extend(system, way, all, len) {
                        return true;
                    }
                    way.pop();
                }
            }
            false
        }
        let all: Vec<_> = system_nodes(system).filter(|node| !system.is_failed(*node)).collect();
        all.iter().any(|first| extend(system, &mut vec![*first], &all, len))
    }

    #[test]
    fn rings_are_found_wherever_there_are_any() {
        let sizes =
            [[1, 1, 1, 2, 3, 2], [3, 3, 1, 1, 1, 1], [1, 1, 1, 2, 2, 2], [3, 1, 2, 2, 1, 1]];
        for size in sizes {
            let system = system(size, [false; 3]);
            let nodes: Vec<_> = system_nodes(&system).collect();
            for failed in [&[][..], &[0], &[0, 1], &[0, 4], &[1, 2], &[3, 7], &[0, 5, 7]] {
                let failed = failed.iter().map(|at: &usize| nodes[at % nodes.len()]);
                let system = system.clone().with_failed(failed).unwrap();
                for len in 1..=nodes.len() as u32 {
                    let shape = LogicalShape::new(&[len]).unwrap();
                    let map = RankMap::find(&system, shape, true);
                    let exists = ring_exists(&system, len as usize);
                    assert_eq!(map.is_ok(), exists, "{size:?} {:?} {len}", system.failed());
                    map.iter().for_each(|map| check(&system, map));
                }
            }
        }
    }

    #[test]
    fn downed_link_is_not_used() {
        let zero = Coords::default();
        for other in [Coords::new(0, 0, 0, 1, 0, 0), Coords::new(0, 0, 0, 0, 1, 0)] {
            let system = unit().with_links_down([(zero, other)]).unwrap();
            for shape in ["11", "4x2", "2x2x2"] {
                check(&system, &find(&system, shape).unwrap());
            }
        }
    }

    #[test]
    fn open_axes_are_last_and_refusable() {
        let row = system([5, 1, 1, 1, 1, 1], [false; 3]);
        let map = find(&row, "5").unwrap();
        check(&row, &map);
        assert!(!all_closed(&map));
        let error = RankMap::find(&row, "5".parse().unwrap(), true).unwrap_err().to_string();
        assert_eq!(
            error,
            "the machine 5x1x1x1x1x1 has no map of 5 whose neighbours are one hop apart and \
             whose axes are all closed; 2 would fit"
        );
    }

    #[test]
    fn errors_say_what_would_fit() {
        let failed = unit().with_failed([Coords::default()]).unwrap();
        assert_eq!(
            find(&failed, "4x3").unwrap_err().to_string(),
            "a map of 4x3 needs 12 nodes, and the machine 1x1x1x2x3x2 has 11 in order; 4x2 \
             would fit"
        );
        assert_eq!(
            find(&"3x3x1x1x1x1".parse().unwrap(), "2x4").unwrap_err().to_string(),
            "the machine 3x3x1x1x1x1 has no map of 2x4 whose neighbours are one hop apart; \
             2x3 would fit"
        );
    }

    fn machine() -> impl Strategy<Value = System> {
        let size = (1..=4u8, 1..=3u8, 1..=4u8, 1..=2u8, 1..=3u8, 1..=2u8);
        (size, any::<[bool; 3]>())
            .prop_map(|((x, y, z, a, b, c), torus)| system([x, y, z, a, b, c], torus))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(120))]

        #[test]
        fn maps_keep_their_promises(
            system in machine(), lens in proptest::collection::vec(1..=12u32, 1..=3),
            failed in proptest::collection::vec(any::<prop::sample::Index>(), 0..3),
            cut in proptest::option::of(any::<prop::sample::Index>()),
        ) {
            let nodes: Vec<_> = system_nodes(&system).collect();
            let failed = failed.iter().map(|at| nodes[at.index(nodes.len())]);
            let mut system = system.with_failed(failed).unwrap();
            let links: Vec<_> = nodes
                .iter()
                .flat_map(|one| nodes.iter().map(|other| (*one, *other)))
                .filter(|(one, other)| system.shape().adjacent(*one, *other))
                .collect();
            if let Some(cut) = cut && !links.is_empty() {
                system = system.with_links_down([links[cut.index(links.len())]]).unwrap();
            }
            let shape = LogicalShape::new(&lens).unwrap();
            match RankMap::find(&system, shape, false) {
                Ok(map) => check(&system, &map),
                Err(MapError::TooFew { usable, .. }) => prop_assert!(shape.nodes() > usable),
                Err(MapError::None { .. }) => prop_assert!(lens != [1]),
            }
        }

        /// A product of axes, each folded from one of X, Y, Z and one of A, B, C, fits.
        #[test]
        fn folded_pairs_always_fit(
            size in (2..=6u8, 2..=6u8, 2..=6u8), torus: [bool; 3], fail: prop::sample::Index,
        ) {
            let (x, y, z) = size;
            let system = system([x, y, z, 2, 3, 2], torus);
            let [x, y, z] = [x, y, z].map(u32::from);
            let shape = LogicalShape::new(&[2 * x, 3 * y, 2 * z]).unwrap();
            let map = RankMap::find(&system, shape, true).unwrap();
            check(&system, &map);
            let nodes: Vec<_> = system_nodes(&system).collect();
            let system = system.with_failed([nodes[fail.index(nodes.len())]]).unwrap();
            let shape = LogicalShape::new(&[2 * x, 3 * y - 1, 2 * z]).unwrap();
            check(&system, &RankMap::find(&system, shape, true).unwrap());
        }
    }
}
