//! One axis of a job's torus: a line or ring of places in a grid spanned by some of the machine's
//! axes. Each place is a neighbour of the previous one.
//!
//! A place has all six coordinates, with 0 for other axes. The product of the embeddings of all
//! axes of a job is its map.

use std::collections::{HashMap, HashSet};
use std::mem;

use crate::System;

/// A place in the grid of some axes, relative to the corner of the job's box.
pub(crate) type GridPoint = [u8; 6];

/// The most places of a grid that is searched.
const SEARCHED_PLACES: usize = 36;
/// The number of steps after which a search gives up.
const SEARCH_STEPS: u32 = 30_000;
/// Places between bad rows from which a ribbon is tried.
const RIBBON_STARTS: usize = 64;

/// The layout of an embedding in a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Lay {
    /// A ring through all places.
    Block,
    /// A ring through rows of 2 or 3 places each along `column`. If there are 3, which form a ring
    /// themselves, a row may omit one place: this is how B leads around a failed node.
    Ribbon { column: usize },
    /// A line back and forth through all places, or part of such a line.
    Line,
    /// The first embedding that a search finds.
    Search,
}

/// A way to lay an embedding of some length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StrandPlan {
    /// Lengths of the grid, with 1 for axes that the embedding does not use.
    pub(crate) lens: [u8; 6],
    /// True if the last place will be a neighbour of the first.
    pub(crate) closed: bool,
    lay: Lay,
    /// Number of places of the embedding.
    len: u32,
}

impl StrandPlan {
    fn volume(&self) -> u32 {
        volume(&self.lens)
    }

    /// Returns how many places of the grid the embedding leaves out.
    pub(crate) fn waste(&self) -> u32 {
        self.volume() - self.len
    }

    /// Returns the number of places along X, Y and Z, by which the embedding multiplies the number
    /// of units.
    pub(crate) fn units(&self) -> u32 {
        self.lens[..3].iter().map(|n| u32::from(*n)).product()
    }

    /// Returns the work of laying the embedding, in places.
    pub(crate) fn work(&self) -> usize {
        match self.lay {
            Lay::Search => SEARCH_STEPS as usize,
            _ => self.volume() as usize,
        }
    }

    /// Returns embeddings of `len` places in a grid of exactly these axes (one bit each), best
    /// first, with a limit for each kind.
    pub(crate) fn all(system: &System, axes: u8, len: u32, most_of_each: usize) -> Vec<Self> {
        let mut plans = Vec::new();
        let axes: Vec<usize> = (0..6).filter(|axis| axes & 1 << axis != 0).collect();
        if axes.is_empty() {
            let plan = Self { lens: [1; 6], closed: true, lay: Lay::Block, len };
            return if len == 1 { vec![plan] } else { Vec::new() };
        }
        if len == 1 {
            return Vec::new();
        }
        let size = system.shape().lengths();
        let most: u32 = axes.iter().map(|axis| u32::from(size[*axis])).product();
        if most < len {
            return Vec::new();
        }
        blocks(&axes, &size, len, [1; 6], &mut |lens| {
            let closed = ring_column(system, &lens).is_some();
            let lay = if closed { Lay::Block } else { Lay::Line };
            plans.push(Self { lens, closed, lay, len });
        });
        for &column in &axes {
            let others: Vec<_> = axes.iter().copied().filter(|axis| *axis != column).collect();
            let ring = system.wraps()[column] && size[column] == 3;
            let mut widths = vec![];
            if len.is_multiple_of(2) {
                widths.push(2);
            }
            if ring {
                widths.push(3);
            }
            for width in widths {
                let rows = len.div_ceil(u32::from(width));
                let mut lens = [1; 6];
                lens[column] = width;
                grids(&others, &size, rows, lens, &mut |lens| {
                    let lay = Lay::Ribbon { column };
                    plans.push(Self { lens, closed: true, lay, len });
                });
            }
        }
        grids(&axes, &size, len, [1; 6], &mut |lens| {
            plans.push(Self { lens, closed: false, lay: Lay::Line, len });
        });
        let mut lens = [1; 6];
        axes.iter().for_each(|axis| lens[*axis] = size[*axis]);
        if volume(&lens) as usize <= SEARCHED_PLACES {
            // Without a ring of odd length, every ring has an even length.
            let odd_rings = axes.iter().any(|axis| system.wraps()[*axis] && size[*axis] % 2 == 1);
            if len > 2 && (odd_rings || len.is_multiple_of(2)) {
                plans.push(Self { lens, closed: true, lay: Lay::Search, len });
            }
            plans.push(Self { lens, closed: false, lay: Lay::Search, len });
        }
        plans.sort_by_key(|plan| (!plan.closed, plan.waste(), plan.units(), plan.lay, plan.lens));
        plans.dedup();
        // The best of each kind are kept, because only some kinds lead around holes.
        let mut kept: HashMap<_, usize> = HashMap::new();
        plans.retain(|plan| {
            let kept = kept.entry((mem::discriminant(&plan.lay), plan.closed)).or_default();
            *kept += 1;
            *kept <= most_of_each
        });
        plans
    }

    /// Returns the places of the embedding, none of which is a hole, or `None` if there is no such
    /// embedding.
    pub(crate) fn places(
        &self,
        system: &System,
        holes: &HashSet<GridPoint>,
    ) -> Option<Vec<GridPoint>> {
        match self.lay {
            Lay::Block if holes.is_empty() => ring(system, &self.lens),
            Lay::Block => None,
            Lay::Line => self.line(holes),
            Lay::Ribbon { column } if self.lens[column] == 2 => self.ladder(column, holes),
            Lay::Ribbon { column } => self.ribbon(column, holes),
            Lay::Search => self.search(system, holes),
        }
    }

    fn line(&self, holes: &HashSet<GridPoint>) -> Option<Vec<GridPoint>> {
        let line = snake(&self.lens);
        let parts = line.split(|place| holes.contains(place));
        let len = self.len as usize;
        parts.into_iter().find(|part| part.len() >= len).map(|part| part[..len].to_vec())
    }

    /// Lays the embedding there and back along two parallel lines.
    fn ladder(&self, column: usize, holes: &HashSet<GridPoint>) -> Option<Vec<GridPoint>> {
        let rows = snake(&with(self.lens, column, 1));
        let whole =
            |row: &GridPoint| !holes.contains(row) && !holes.contains(&with(*row, column, 1));
        let count = self.len as usize / 2;
        let part = rows.split(|row| !whole(row)).find(|part| part.len() >= count)?;
        let there = part[..count].iter().copied();
        Some(there.clone().chain(there.rev().map(|row| with(row, column, 1))).collect())
    }

    /// Lays a ring through rows of three.
    fn ribbon(&self, column: usize, holes: &HashSet<GridPoint>) -> Option<Vec<GridPoint>> {
        let rows = snake(&with(self.lens, column, 1));
        // The missing place of each row. A row that lacks two cannot be passed.
        let gaps: Vec<Result<Option<u8>, ()>> = rows
            .iter()
            .map(|row| {
                let mut gap = Ok(None);
                for at in (0..3).filter(|at| holes.contains(&with(*row, column, *at))) {
                    gap = if gap == Ok(None) { Ok(Some(at)) } else { Err(()) };
                }
                gap
            })
            .collect();
        let after_gap = |at: &usize| *at == 0 || gaps[*at - 1] != Ok(None);
        (0..rows.len()).filter(after_gap).take(RIBBON_STARTS).find_map(|start| {
            let part: Vec<_> = gaps[start..].iter().map_while(|gap| gap.ok()).collect();
            let (exits, whole) = exits(&part, self.len)?;
            Some(weave(&rows[start..], column, &exits, &whole))
        })
    }

    /// Searches depth-first, from each place in turn.
    fn search(&self, system: &System, holes: &HashSet<GridPoint>) -> Option<Vec<GridPoint>> {
        let places: Vec<_> =
            snake(&self.lens).into_iter().filter(|place| !holes.contains(place)).collect();
        let near: Vec<Vec<usize>> = places
            .iter()
            .map(|one| {
                let near = |other: &GridPoint| neighbours(system, &self.lens, one, other);
                (0..places.len()).filter(|other| near(&places[*other])).collect()
            })
            .collect();
        let len = self.len as usize;
        let mut steps = 0;
        for first in 0..places.len() {
            let mut used = vec![false; places.len()];
            used[first] = true;
            // The route so far, and which neighbour of each place to try next.
            let mut way = vec![(first, 0)];
            while let Some((at, next)) = way.last_mut() {
                let at = *at;
                if next == &0 {
                    steps += 1;
                    if steps > SEARCH_STEPS {
                        return None;
                    }
                }
                if way.len() == len && (!self.closed || near[at].contains(&first)) {
                    return Some(way.into_iter().map(|(at, _)| places[at]).collect());
                }
                let depth = way.len();
                let (_, next) = way.last_mut()?;
                match near[at].get(*next) {
                    Some(to) if depth < len => {
                        *next += 1;
                        if !used[*to] {
                            used[*to] = true;
                            way.push((*to, 0));
                        }
                    }
                    _ => {
                        used[at] = false;
                        way.pop();
                    }
                }
            }
        }
        None
    }
}

fn volume(lens: &[u8; 6]) -> u32 {
    lens.iter().map(|n| u32::from(*n)).product()
}

fn with(mut place: GridPoint, axis: usize, at: u8) -> GridPoint {
    place[axis] = at;
    place
}

/// Returns whether an axis of a grid wraps around, which it does only if it is the machine's whole
/// axis.
fn wraps(system: &System, lens: &[u8; 6], axis: usize) -> bool {
    system.wraps()[axis] && lens[axis] == system.shape().lengths()[axis]
}

/// Returns whether two places of a grid are neighbours.
fn neighbours(system: &System, lens: &[u8; 6], one: &GridPoint, other: &GridPoint) -> bool {
    let mut links = 0;
    for axis in 0..6 {
        match one[axis].abs_diff(other[axis]) {
            0 => {}
            1 => links += 1,
            d if wraps(system, lens, axis) && d == lens[axis] - 1 => links += 1,
            _ => return false,
        }
    }
    links == 1
}

/// Finds all grids of these axes, each at least 2 long, with exactly this many places.
fn blocks(
    axes: &[usize],
    size: &[u8; 6],
    places: u32,
    lens: [u8; 6],
    found: &mut impl FnMut([u8; 6]),
) {
    let Some((&axis, rest)) = axes.split_first() else {
        if places == 1 {
            found(lens);
        }
        return;
    };
    for n in (2..=size[axis]).filter(|n| places.is_multiple_of(u32::from(*n))) {
        blocks(rest, size, places / u32::from(n), with(lens, axis, n), found);
    }
}

/// Finds grids of these axes, each at least 2 long, with at least this many places but not many
/// more. The longest axis has just the length needed, and one or two more, for holes.
fn grids(
    axes: &[usize],
    size: &[u8; 6],
    places: u32,
    lens: [u8; 6],
    found: &mut impl FnMut([u8; 6]),
) {
    let Some(&long) = axes.iter().max_by_key(|axis| size[**axis]) else {
        if places <= 1 {
            found(lens);
        }
        return;
    };
    let others: Vec<_> = axes.iter().copied().filter(|axis| *axis != long).collect();
    let mut each = vec![2; others.len()];
    loop {
        let mut lens = lens;
        others.iter().zip(&each).for_each(|(axis, n)| lens[*axis] = *n);
        let across: u32 = each.iter().map(|n| u32::from(*n)).product();
        let least = places.div_ceil(across).max(2);
        for n in least..=(least + 2).min(size[long].into()) {
            found(with(lens, long, n as u8));
        }
        // Count up, with one digit for each axis.
        let Some(place) = others.iter().zip(&each).position(|(axis, n)| *n < size[*axis]) else {
            return;
        };
        each[place] += 1;
        each[..place].fill(2);
    }
}

/// Returns a line back and forth through a grid, with the first axis varying fastest.
fn snake(lens: &[u8; 6]) -> Vec<GridPoint> {
    let mut line = vec![[0; 6]];
    for axis in (0..6).filter(|axis| lens[*axis] > 1) {
        let mut longer = Vec::with_capacity(line.len() * usize::from(lens[axis]));
        for at in 0..lens[axis] {
            longer.extend(line.iter().map(|place| with(*place, axis, at)));
            line.reverse();
        }
        line = longer;
    }
    line
}

/// The order in which a ring visits all places of a grid.
enum Column {
    /// This is the only axis, and it is closed by itself.
    Alone(usize),
    /// The ring returns along this axis at 0, and goes back and forth across it elsewhere.
    Spine(usize),
}

/// Returns the axis along which a ring through all places of a grid returns, if there is such a
/// ring.
///
/// It does not exist for a single mesh longer than 2, and for meshes of odd lengths only, because a
/// mesh is bipartite.
fn ring_column(system: &System, lens: &[u8; 6]) -> Option<Column> {
    let axes: Vec<usize> = (0..6).filter(|axis| lens[*axis] > 1).collect();
    if let [axis] = axes[..] {
        let closed = lens[axis] == 2 || wraps(system, lens, axis);
        return closed.then_some(Column::Alone(axis));
    }
    let two = axes.iter().find(|axis| lens[**axis] == 2);
    let torus = || axes.iter().find(|axis| wraps(system, lens, **axis));
    // The way back requires that the rows across end on its side.
    let even =
        || axes.iter().find(|axis| (volume(lens) / u32::from(lens[**axis])).is_multiple_of(2));
    two.or_else(torus).or_else(even).map(|axis| Column::Spine(*axis))
}

/// Returns a ring through all places of a grid, from its corner.
fn ring(system: &System, lens: &[u8; 6]) -> Option<Vec<GridPoint>> {
    if volume(lens) == 1 {
        return Some(vec![[0; 6]]);
    }
    let column = match ring_column(system, lens)? {
        Column::Alone(axis) => {
            return Some((0..lens[axis]).map(|at| with([0; 6], axis, at)).collect());
        }
        Column::Spine(axis) => axis,
    };
    let rows = snake(&with(*lens, column, 1));
    let mut ring = Vec::with_capacity(volume(lens) as usize);
    ring.push(rows[0]);
    for (row, odd) in rows.iter().zip([false, true].into_iter().cycle()) {
        let across = 1..lens[column];
        if odd {
            ring.extend(across.rev().map(|at| with(*row, column, at)));
        } else {
            ring.extend(across.map(|at| with(*row, column, at)));
        }
    }
    ring.extend(rows[1..].iter().rev());
    Some(ring)
}

/// Finds the path of a ring of `len` places through rows of three, some of which lack one place.
///
/// Between two rows the ring has two strands, so one of three places is left free there. The result
/// has the free place between each row and the next, for each row of the ring, and whether the ring
/// passes each row whole. If a row is passed whole, the free places before and after it differ. If
/// it is passed without one place, that place is free before and after. The first and the last row
/// have only one neighbour, so either is possible.
fn exits(gaps: &[Option<u8>], len: u32) -> Option<(Vec<u8>, Vec<bool>)> {
    if len < 2 {
        return None;
    }
    let mut room = 0u32;
    for (last, gap) in gaps.iter().enumerate() {
        room += if gap.is_some() { 2 } else { 3 };
        let Some(spare) = room.checked_sub(len) else { continue };
        // With this many places to spare, fewer rows would have been enough.
        if spare > 5 {
            return None;
        }
        if let Some(found) = exits_of(&gaps[..=last], spare as usize) {
            return Some(found);
        }
    }
    None
}

/// Decides this for exactly these rows, with `spare` places to be left out in addition to the gaps.
fn exits_of(gaps: &[Option<u8>], spare: usize) -> Option<(Vec<u8>, Vec<bool>)> {
    const SPARE: usize = 6;
    /// The predecessor of a state: the free place before, the spare count before, and whether the
    /// row is whole.
    type From = Option<(u8, u8, bool)>;
    let mut steps: Vec<[[From; SPARE]; 3]> = Vec::with_capacity(gaps.len());
    for (row, gap) in gaps.iter().enumerate() {
        let (first, last) = (row == 0, row + 1 == gaps.len());
        let mut reached = [[None; SPARE]; 3];
        for before in 0..3u8 {
            for used in 0..=spare {
                let possible = match steps.last() {
                    Some(states) => states[usize::from(before)][used].is_some(),
                    None => used == 0,
                };
                if !possible {
                    continue;
                }
                for after in 0..3u8 {
                    // At either end, one side can be chosen to match the other.
                    let same = before == after;
                    let ends = (first || last) && same;
                    let whole = gap.is_none() && if first || last { ends } else { !same };
                    let short = same && gap.is_none_or(|gap| gap == before);
                    let more = used + usize::from(gap.is_none());
                    let to = &mut reached[usize::from(after)];
                    if whole {
                        to[used].get_or_insert((before, used as u8, true));
                    }
                    if short && more <= spare {
                        to[more].get_or_insert((before, used as u8, false));
                    }
                }
            }
        }
        steps.push(reached);
    }
    let mut free = (0..3u8).find(|free| {
        steps.last().is_some_and(|states| states[usize::from(*free)][spare].is_some())
    })?;
    let mut used = spare;
    let (mut exits, mut whole) = (Vec::new(), Vec::new());
    for states in steps.iter().rev() {
        exits.push(free);
        let (before, count, all) = states[usize::from(free)][used]?;
        whole.push(all);
        (free, used) = (before, usize::from(count));
    }
    exits.reverse();
    whole.reverse();
    Some((exits, whole))
}

/// Returns the ring that [`exits`] has decided on, from a place of its first row.
fn weave(rows: &[GridPoint], column: usize, exits: &[u8], whole: &[bool]) -> Vec<GridPoint> {
    let count = exits.len();
    let last = count - 1;
    // The two places to which each place of each row is joined, as (row, place).
    let mut joined: Vec<[Vec<(usize, u8)>; 3]> = vec![Default::default(); count];
    let mut join = |one: (usize, u8), two: (usize, u8)| {
        joined[one.0][usize::from(one.1)].push(two);
        joined[two.0][usize::from(two.1)].push(one);
    };
    for row in 0..count {
        let free = exits[row];
        if row < last {
            for at in (0..3).filter(|at| *at != free) {
                join((row, at), (row + 1, at));
            }
        }
        let ends = usize::from(row == 0) + usize::from(row == last);
        // The ring turns at either end. A single row is a ring by itself.
        let (one, two) = ((free + 1) % 3, (free + 2) % 3);
        match (ends, whole[row]) {
            (0, true) => join((row, exits[row - 1]), (row, free)),
            (0, false) => {}
            (_, false) => (0..ends).for_each(|_| join((row, one), (row, two))),
            (_, true) => {
                join((row, one), (row, free));
                join((row, free), (row, two));
                if ends == 2 {
                    join((row, one), (row, two));
                }
            }
        }
    }
    let start = (0, if exits[0] == 0 && !whole[0] { 1 } else { 0 });
    let mut ring = vec![start];
    let (mut before, mut at) = (start, joined[0][usize::from(start.1)][0]);
    while at != start {
        ring.push(at);
        let [one, two] = joined[at.0][usize::from(at.1)][..] else { break };
        (before, at) = (at, if one == before { two } else { one });
    }
    ring.into_iter().map(|(row, at)| with(rows[row], column, at)).collect()
}
