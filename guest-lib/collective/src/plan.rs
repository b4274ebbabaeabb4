//! Plans of linked gates: from the members of a group to the links of each member's gates.
//!
//! A gate has at most two inputs, one from a gate of the same member and one from a gate of another
//! member, and at most two outputs of the same kinds. Gate 0 of each member is its start and end
//! gate: it sends the member's input to its outputs, and the signals at its inputs are the result.
//! All other gates are relays, which combine their inputs and forward the result.
//!
//! Every algorithm is made of three kinds of steps: two members exchange their values, a member
//! passes its value to another one, or it passes the result to another one. Every algorithm
//! synchronises: no member has its result before all members have started.
//!
//! This is also why two buffers for each input are enough. A member that starts round `n + 2` has
//! the result of round `n + 1`. So all members have started round `n + 1`, which they do after
//! they have ended round `n`. And when a member ends a round, all of its gates have fired.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use thiserror::Error;

/// A gate of a group: member and gate, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GateOf {
    /// Member of the group.
    pub member: u32,
    /// Which gate of the member, not its number in the device; 0 is its start and end gate.
    pub gate: u8,
}

/// The links of a gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Links {
    /// Input from a gate of the same member.
    pub src_local: Option<u8>,
    /// Input from a gate of another member.
    pub src_remote: Option<GateOf>,
    /// Output to a gate of the same member.
    pub dst_local: Option<u8>,
    /// Output to a gate of another member.
    pub dst_remote: Option<GateOf>,
}

/// A way to link the gates of all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    members: Vec<Vec<Links>>,
}

impl Plan {
    /// Number of members.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// The links of a member's gates; none if there is no such member.
    pub fn gates(&self, member: usize) -> &[Links] {
        self.members.get(member).map_or(&[], Vec::as_slice)
    }

    /// Gates that the member with the most of them needs.
    pub fn most_gates(&self) -> usize {
        self.members.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Communication stages: signals, one after the other, on the longest way from a start to an
    /// end.
    pub fn stages(&self) -> u32 {
        self.longest(|_, _| 1, 0)
    }

    /// The longest way from a start to an end, by the time of each step: the first gate takes
    /// `start`, each link to another gate `step(from, to)`.
    ///
    /// Ends after as many steps as there are gates, also for circular links, which no plan of this
    /// module has.
    pub fn longest(&self, mut step: impl FnMut(GateOf, GateOf) -> u32, start: u32) -> u32 {
        // When each gate fires, by going through gates whose inputs have all come.
        let mut waiting: Vec<Vec<u8>> = Vec::with_capacity(self.members.len());
        let mut at: Vec<Vec<u32>> = Vec::with_capacity(self.members.len());
        for gates in &self.members {
            let inputs = |links: &Links| {
                u8::from(links.src_local.is_some()) + u8::from(links.src_remote.is_some())
            };
            waiting.push(gates.iter().map(inputs).collect());
            at.push(vec![0; gates.len()]);
        }
        let starts =
            (0..self.members.len() as u32).map(|member| (GateOf { member, gate: 0 }, start));
        let mut ready: Vec<(GateOf, u32)> = starts.collect();
        let mut longest = 0;
        while let Some((from, time)) = ready.pop() {
            let links = &self.members[from.member as usize][usize::from(from.gate)];
            let local = links.dst_local.map(|gate| GateOf { gate, ..from });
            for to in local.into_iter().chain(links.dst_remote) {
                let come = time + step(from, to);
                let (member, gate) = (to.member as usize, usize::from(to.gate));
                at[member][gate] = at[member][gate].max(come);
                waiting[member][gate] = waiting[member][gate].saturating_sub(1);
                if waiting[member][gate] == 0 {
                    match gate {
                        0 => longest = longest.max(at[member][0]),
                        _ => ready.push((to, at[member][gate])),
                    }
                }
            }
        }
        longest
    }
}

/// An algorithm, which says in what steps a group gets its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Members exchange with the one whose number differs in bit 0, then in bit 1, and so on. For
    /// `n` members, a power of two, log2 `n` gates each. For other numbers, each member above the
    /// power passes its value to one below it, which takes two gates more.
    RecursiveDoubling,
    /// The members' values are combined towards the root of a binary tree, and the result comes
    /// down. At most five gates each.
    Tree,
    /// Along a line of members, from both ends to its middle, and back: all links are between
    /// neighbours. On a ring that is half of it in each direction. Each member has two relay gates
    /// besides its start and end gate, and sends and receives twice.
    DoubleRing,
    /// The first within each line of X, then of Y, then of Z.
    RecursiveDoubling3d,
    /// The same with double rings.
    DoubleRing3d,
    /// For members in this many consecutive parts of nearly equal size, each of one network
    /// interface or of one node: 2^k trees, and recursive doubling among their roots. A tree has
    /// the members of one of the 2^k largest parts, and a share of the members of the other parts.
    Parts(u32),
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RecursiveDoubling => "recursive doubling",
            Self::Tree => "reduce-broadcast tree",
            Self::DoubleRing => "double ring",
            Self::RecursiveDoubling3d => "3D recursive doubling",
            Self::DoubleRing3d => "3D double ring",
            Self::Parts(n) => return write!(f, "trees in {n} parts, recursive doubling"),
        })
    }
}

/// Members of a group in a box: member `x + X * (y + Y * z)` of X by Y by Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupShape {
    /// Lengths of X, Y and Z, each at least 1.
    pub axes: [u32; 3],
}

impl GroupShape {
    /// All members in one line.
    pub const fn line(members: u32) -> Self {
        Self { axes: [members, 1, 1] }
    }

    /// Number of members, 0 for more than there can be.
    pub fn members(&self) -> u32 {
        let product = |n: u32, axis: &u32| n.checked_mul(*axis);
        self.axes.iter().try_fold(1, product).unwrap_or(0)
    }
}

/// More members than this are not planned for.
pub const MAX_MEMBERS: u32 = 1 << 20;

/// The reason why a group cannot be planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a group of {members} members: there are 1 to {MAX_MEMBERS}")]
pub struct BadGroup {
    /// Its number of members.
    pub members: u32,
}

impl Algorithm {
    /// The algorithms that are tried if none is requested.
    pub const ALL: [Self; 5] = [
        Self::RecursiveDoubling3d,
        Self::RecursiveDoubling,
        Self::Tree,
        Self::DoubleRing3d,
        Self::DoubleRing,
    ];

    /// The way a group's gates are linked.
    ///
    /// # Errors
    ///
    /// For no members, or more than [`MAX_MEMBERS`].
    pub fn plan(self, shape: GroupShape) -> Result<Plan, BadGroup> {
        let members = shape.members();
        let mut builder = Builder::new(members)?;
        let line: Vec<u32> = (0..members).collect();
        match self {
            Self::RecursiveDoubling => builder.doubling(&line),
            Self::Tree => builder.tree(&line),
            Self::DoubleRing => builder.double_ring(&line),
            Self::RecursiveDoubling3d => {
                shape.for_lines(|line| builder.doubling(line));
            }
            Self::DoubleRing3d => shape.for_lines(|line| builder.double_ring(line)),
            Self::Parts(number) => {
                let trees = trees(&parts(&line, number));
                trees.iter().for_each(|tree| builder.gather_evenly(tree));
                let roots: Vec<u32> = trees.iter().map(|tree| tree[0]).collect();
                builder.doubling(&roots);
                for mut tree in trees {
                    // A member with a relay gate on the way up has none on the way down.
                    let others = tree.get_mut(2..).unwrap_or_default();
                    others.chunks_exact_mut(2).for_each(|pair| pair.swap(0, 1));
                    builder.scatter_evenly(&tree);
                }
            }
        }
        Ok(builder.finish())
    }
}

/// Members in a row, divided into parts as equal as can be.
fn parts(line: &[u32], number: u32) -> Vec<&[u32]> {
    let number = (number as usize).clamp(1, line.len().max(1));
    let end = |part: usize| part * line.len() / number;
    (0..number).map(|part| &line[end(part)..end(part + 1)]).collect()
}

/// The members of 2^k trees. Each tree has one of the largest parts; the members of the other parts
/// are distributed so that all trees have about the same number.
fn trees(parts: &[&[u32]]) -> Vec<Vec<u32>> {
    let mut by_size: Vec<&[u32]> = parts.to_vec();
    by_size.sort_by_key(|part| core::cmp::Reverse(part.len()));
    let roots = 1 << by_size.len().checked_ilog2().unwrap_or(0);
    let (largest, others) = by_size.split_at(roots.min(by_size.len()));
    let mut trees: Vec<Vec<u32>> = largest.iter().map(|part| part.to_vec()).collect();
    for member in others.concat() {
        if let Some(smallest) = trees.iter_mut().min_by_key(|tree| tree.len()) {
            smallest.push(member);
        }
    }
    trees
}

/// A barrier among members in this many consecutive parts: a tree within each part, and among the
/// roots the dissemination algorithm, in which each signals to the one 1, 2, 4, ... further on. It
/// takes no more stages for other numbers of parts than for the next power of two.
///
/// Values of members reach others several times, so this does not work for sums. AND, OR and the
/// maximum are correct.
///
/// # Errors
///
/// As [`Algorithm::plan`].
pub fn disseminate(members: u32, number: u32) -> Result<Plan, BadGroup> {
    let mut builder = Builder::new(members)?;
    let line: Vec<u32> = (0..members).collect();
    let parts = parts(&line, number);
    parts.iter().for_each(|part| builder.gather_evenly(part));
    let roots: Vec<u32> = parts.iter().map(|part| part[0]).collect();
    let mut distance = 1;
    while distance < roots.len() {
        builder.shift(&roots, distance);
        distance *= 2;
    }
    parts.iter().for_each(|part| builder.scatter_evenly(part));
    Ok(builder.finish())
}

/// A member alone, whose value goes through so many relay gates, one after the other.
pub fn in_series(relays: u8) -> Plan {
    let gate = |i: u8| Links {
        src_local: Some(i.checked_sub(1).unwrap_or(relays)),
        dst_local: Some(if i == relays { 0 } else { i + 1 }),
        ..Links::default()
    };
    Plan { members: vec![(0..=relays).map(gate).collect()] }
}

impl GroupShape {
    /// Calls `f` for each line of members along X, then Y, then Z.
    fn for_lines(&self, mut f: impl FnMut(&[u32])) {
        let [x, y, z] = self.axes;
        let mut stride = 1;
        for length in [x, y, z] {
            for first in (0..self.members()).filter(|m| m / stride % length == 0) {
                let line: Vec<u32> = (0..length).map(|i| first + i * stride).collect();
                f(&line);
            }
            stride *= length;
        }
    }
}

/// Links gates step by step.
///
/// Each member has a *last* gate, which holds what the member knows; at first that is its start
/// gate.
#[derive(Debug)]
struct Builder {
    members: Vec<Vec<Links>>,
    last: Vec<u8>,
}

impl Builder {
    fn new(members: u32) -> Result<Self, BadGroup> {
        if !(1..=MAX_MEMBERS).contains(&members) {
            return Err(BadGroup { members });
        }
        let members = members as usize;
        Ok(Self { members: vec![vec![Links::default()]; members], last: vec![0; members] })
    }

    fn last_of(&mut self, member: u32) -> &mut Links {
        let member = member as usize;
        &mut self.members[member][usize::from(self.last[member])]
    }

    /// Adds a gate, which becomes the member's last one.
    fn add(&mut self, member: u32, src_local: Option<u8>) -> GateOf {
        let gates = &mut self.members[member as usize];
        let gate = gates.len() as u8;
        gates.push(Links { src_local, ..Links::default() });
        self.last[member as usize] = gate;
        GateOf { member, gate }
    }

    /// Adds a gate behind the last one.
    fn behind(&mut self, member: u32) -> GateOf {
        let before = self.last[member as usize];
        let gate = self.add(member, Some(before));
        self.members[member as usize][usize::from(before)].dst_local = Some(gate.gate);
        gate
    }

    /// The last gate, with its remote output unused.
    fn free_to_send(&mut self, member: u32) -> GateOf {
        if self.last_of(member).dst_remote.is_some() {
            return self.behind(member);
        }
        GateOf { member, gate: self.last[member as usize] }
    }

    fn link(&mut self, from: GateOf, to: GateOf) {
        self.members[from.member as usize][usize::from(from.gate)].dst_remote = Some(to);
        self.members[to.member as usize][usize::from(to.gate)].src_remote = Some(from);
    }

    /// Both members know what both knew.
    fn exchange(&mut self, a: u32, b: u32) {
        let (from_a, from_b) = (self.free_to_send(a), self.free_to_send(b));
        let (to_a, to_b) = (self.behind(a), self.behind(b));
        self.link(from_a, to_b);
        self.link(from_b, to_a);
    }

    /// `to` knows also what `from` knew.
    fn give(&mut self, from: u32, to: u32) {
        let from = self.free_to_send(from);
        let to = self.behind(to);
        self.link(from, to);
    }

    /// `to`, which has given all it knew, knows what `from` knows.
    fn tell(&mut self, from: u32, to: u32) {
        let from = self.free_to_send(from);
        let to = self.add(to, None);
        self.link(from, to);
    }

    fn doubling(&mut self, line: &[u32]) {
        let Some(bits) = line.len().checked_ilog2() else { return };
        let (core, rest) = line.split_at(1 << bits);
        for (from, to) in rest.iter().zip(core) {
            self.give(*from, *to);
        }
        for bit in 0..bits {
            for (i, member) in core.iter().enumerate() {
                let other = i ^ 1 << bit;
                if other > i {
                    self.exchange(*member, core[other]);
                }
            }
        }
        for (to, from) in rest.iter().zip(core) {
            self.tell(*from, *to);
        }
    }

    /// Each member knows also what the one `distance` before it knew, of those in a circle.
    fn shift(&mut self, circle: &[u32], distance: usize) {
        let from: Vec<GateOf> = circle.iter().map(|member| self.free_to_send(*member)).collect();
        let to: Vec<GateOf> = circle.iter().map(|member| self.behind(*member)).collect();
        for (i, from) in from.into_iter().enumerate() {
            self.link(from, to[(i + distance) % to.len()]);
        }
    }

    /// The first member knows what all knew, after as few stages as there can be: of neighbours one
    /// knows what both knew, then of pairs, and so on.
    fn gather_evenly(&mut self, line: &[u32]) {
        for distance in (0..).map(|bit| 1 << bit).take_while(|distance| *distance < line.len()) {
            for pair in line.chunks(2 * distance) {
                if let Some(from) = pair.get(distance) {
                    self.give(*from, pair[0]);
                }
            }
        }
    }

    /// All members know what the first one knows, by the same tree.
    fn scatter_evenly(&mut self, line: &[u32]) {
        let Some(bits) = line.len().checked_next_power_of_two().map(usize::ilog2) else { return };
        for distance in (0..bits).rev().map(|bit| 1 << bit) {
            for pair in line.chunks(2 * distance) {
                if let Some(to) = pair.get(distance) {
                    self.tell(pair[0], *to);
                }
            }
        }
    }

    /// The first of a binary tree's members knows what all knew.
    fn gather(&mut self, line: &[u32]) {
        for i in (1..line.len()).rev() {
            self.give(line[i], line[(i - 1) / 2]);
        }
    }

    /// All of a binary tree's members know what the first one knows.
    fn scatter(&mut self, line: &[u32]) {
        for i in 1..line.len() {
            self.tell(line[(i - 1) / 2], line[i]);
        }
    }

    fn tree(&mut self, line: &[u32]) {
        self.gather(line);
        self.scatter(line);
    }

    fn double_ring(&mut self, line: &[u32]) {
        let (before, after) = line.split_at(line.len() / 2);
        let (Some(left), Some(right)) = (before.last(), after.first()) else { return };
        before.windows(2).for_each(|pair| self.give(pair[0], pair[1]));
        after.windows(2).rev().for_each(|pair| self.give(pair[1], pair[0]));
        self.exchange(*left, *right);
        before.windows(2).rev().for_each(|pair| self.tell(pair[1], pair[0]));
        after.windows(2).for_each(|pair| self.tell(pair[0], pair[1]));
    }

    /// Links last gates to end gates.
    fn finish(mut self) -> Plan {
        for (gates, last) in self.members.iter_mut().zip(&self.last) {
            let last = usize::from(*last);
            let outputs = (gates[last].dst_local, gates[last].dst_remote);
            if last == 0 || outputs != (None, None) {
                // A member alone has a start gate that is linked to itself.
                gates[last].dst_local = Some(0);
                gates[0].src_local = Some(last as u8);
            }
        }
        // A last gate that nothing follows is not needed: the end gate does the same. It is the
        // member's highest, as gates are only ever added at the end.
        for member in 0..self.members.len() {
            let last = self.last[member];
            let links = self.members[member][usize::from(last)];
            if links.dst_local.is_some() || links.dst_remote.is_some() {
                continue;
            }
            self.members[member].pop();
            let end = &mut self.members[member][0];
            (end.src_local, end.src_remote) = (links.src_local, links.src_remote);
            if let Some(before) = links.src_local {
                self.members[member][usize::from(before)].dst_local = Some(0);
            }
            if let Some(from) = links.src_remote {
                let end = GateOf { member: member as u32, gate: 0 };
                self.members[from.member as usize][usize::from(from.gate)].dst_remote = Some(end);
            }
        }
        Plan { members: self.members }
    }
}

/// The times of the steps of a round, in nanoseconds, for choosing an algorithm.
///
/// Relay gates and channels as in the papers, a hop as in the fabric's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Barrier channel with start and end gate.
    pub channel: u32,
    /// A relay gate.
    pub gate: u32,
    /// A link between two nodes.
    pub hop: u32,
}

impl Costs {
    /// TofuD: 0.48 us, 0.13 us, and about 0.1 us.
    pub const TOFUD: Self = Self { channel: 480, gate: 130, hop: 100 };
}

/// A chosen algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Which one.
    pub algorithm: Algorithm,
    /// The links.
    pub plan: Plan,
    /// The time of a round by the costs, in nanoseconds.
    pub nanoseconds: u32,
}

/// Gates are too few for any algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NoChoice {
    /// There is no such group.
    #[error(transparent)]
    Group(#[from] BadGroup),
    /// Gates that a member would need for the most modest algorithm, with its start gate.
    #[error("a member has {free} barrier gates left, and would need {needed}")]
    Gates {
        /// So many would do.
        needed: usize,
        /// So many each member may have.
        free: usize,
    },
}

/// The plans of some algorithms for a group, the fastest first. `hops(a, b)` is how far members are
/// apart.
///
/// # Errors
///
/// If there is no such group.
pub fn choices(
    algorithms: &[Algorithm],
    shape: GroupShape,
    costs: Costs,
    mut hops: impl FnMut(u32, u32) -> u32,
) -> Result<Vec<Choice>, BadGroup> {
    let mut choices = Vec::with_capacity(algorithms.len());
    for algorithm in algorithms {
        let plan = algorithm.plan(shape)?;
        let step = |from: GateOf, to: GateOf| {
            let gate = if to.gate == 0 { 0 } else { costs.gate };
            let way = if from.member == to.member { 0 } else { hops(from.member, to.member) };
            gate.saturating_add(costs.hop.saturating_mul(way))
        };
        let nanoseconds = plan.longest(step, costs.channel);
        choices.push(Choice { algorithm: *algorithm, plan, nanoseconds });
    }
    // Of those that take the same time, the first keeps its place.
    choices.sort_by_key(|choice| choice.nanoseconds);
    Ok(choices)
}

/// Chooses the fastest of the algorithms for which each member has enough gates.
///
/// Every member gets the same result for the same arguments. So `free`, which is the number of
/// gates of the member with the fewest, must have been agreed upon.
///
/// # Errors
///
/// If there is no such group, or every algorithm needs more gates.
pub fn choose(
    shape: GroupShape,
    free: usize,
    costs: Costs,
    hops: impl FnMut(u32, u32) -> u32,
) -> Result<Choice, NoChoice> {
    let choices = choices(&Algorithm::ALL, shape, costs, hops)?;
    let needed = choices.iter().map(|choice| choice.plan.most_gates()).min().unwrap_or(0);
    let enough = choices.into_iter().find(|choice| choice.plan.most_gates() <= free);
    enough.ok_or(NoChoice::Gates { needed, free })
}
