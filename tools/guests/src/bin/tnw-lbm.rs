//! TNW: a two-dimensional fluid by the Lattice-Boltzmann method, a block on each node, with the
//! bits of a run on one node.
//!
//! A lattice of `nx=N` by `ny=N` sites (64), periodic in both directions, `steps=N` (50). X of the
//! lattice is cut along X of the machine, Y along a ring through the nodes of Y and Z. `how=nget`
//! (the default) or `how=pput` is how messages are sent. Each node also computes the whole lattice
//! by itself, and compares; `verify=0` omits that.
//!
//! The lattice is D2Q9, with nine populations per site, which come from the eight neighbours and
//! from the site itself, and a single relaxation time. Its weights are rational numbers, so that it
//! needs only additions, multiplications and divisions, whose results are the same everywhere.
#![cfg_attr(feature = "bare", no_std, no_main)]

extern crate alloc;

use alloc::vec::Vec;

use tofu_abi::Coords;
use tofu_abi::topology::Shape;
use tofu_guests::tnw::{How, Lane, leave, link_between, torus};
use tofu_guests::{Error, NodePlatform, fail, find_nwp, now_ns, number, option, println};
use tofu_tnw::{Channel, Nwp};

tofu_guests::entry!(lbm);

/// The directions of the populations, and their weights.
const VELOCITIES: [(i32, i32); 9] =
    [(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1)];
const WEIGHTS: [f64; 9] = [
    4.0 / 9.0,
    1.0 / 9.0,
    1.0 / 9.0,
    1.0 / 9.0,
    1.0 / 9.0,
    1.0 / 36.0,
    1.0 / 36.0,
    1.0 / 36.0,
    1.0 / 36.0,
];
const POPULATIONS: usize = VELOCITIES.len();
/// Rate of relaxation.
const OMEGA: f64 = 1.25;
/// The longest lattice in each direction.
const MOST_SITES: u64 = 4096;

/// The populations of a site of this density and velocity in equilibrium.
fn equilibrium(density: f64, (ux, uy): (f64, f64)) -> [f64; POPULATIONS] {
    let square = 1.5 * (ux * ux + uy * uy);
    core::array::from_fn(|q| {
        let (ex, ey) = VELOCITIES[q];
        let along = 3.0 * (f64::from(ex) * ux + f64::from(ey) * uy);
        WEIGHTS[q] * density * (1.0 + along + 0.5 * along * along - square)
    })
}

/// A wave of period `of`, between -1 and 1: of parabolas.
fn wave(at: usize, of: usize) -> f64 {
    let place = 2.0 * (at as f64 / of as f64);
    let (sign, place) = if place < 1.0 { (1.0, place) } else { (-1.0, place - 1.0) };
    sign * 4.0 * place * (1.0 - place)
}

/// The data that is sent to the next block in a direction of the lattice, or to the one before.
#[derive(Clone, Copy)]
struct Side {
    along_x: bool,
    forward: bool,
}

/// A part of the lattice, with a line of sites around it that belong to its neighbours.
struct Block {
    /// Its first site, and how many it has.
    first: (usize, usize),
    sites: (usize, usize),
    /// By population, then by Y, then by X.
    now: Vec<f64>,
    next: Vec<f64>,
}

/// Zeros.
fn zeros(count: usize) -> Result<Vec<f64>, Error> {
    let mut all = Vec::new();
    all.try_reserve_exact(count)
        .map_err(|_| fail!("not enough memory for this many sites; --memory gives more"))?;
    all.resize(count, 0.0);
    Ok(all)
}

impl Block {
    fn new(
        lattice: (usize, usize),
        first: (usize, usize),
        sites: (usize, usize),
    ) -> Result<Self, Error> {
        let count = POPULATIONS * (sites.0 + 2) * (sites.1 + 2);
        let mut block = Self { first, sites, now: zeros(count)?, next: zeros(count)? };
        for y in 1..=sites.1 {
            for x in 1..=sites.0 {
                let (i, j) = (first.0 + x - 1, first.1 + y - 1);
                let (a, b) = (wave(i, lattice.0), wave(j, lattice.1));
                let populations = equilibrium(1.0 + 0.02 * a * b, (0.06 * b, 0.03 * a));
                for (q, population) in populations.into_iter().enumerate() {
                    let at = block.index(q, x, y);
                    block.now[at] = population;
                }
            }
        }
        Ok(block)
    }

    const fn index(&self, q: usize, x: usize, y: usize) -> usize {
        (q * (self.sites.1 + 2) + y) * (self.sites.0 + 2) + x
    }

    /// Moves the populations of each site towards equilibrium.
    fn collide(&mut self) {
        for y in 1..=self.sites.1 {
            for x in 1..=self.sites.0 {
                let f: [f64; POPULATIONS] = core::array::from_fn(|q| self.now[self.index(q, x, y)]);
                let (mut density, mut px, mut py) = (0.0, 0.0, 0.0);
                for (f, (ex, ey)) in f.into_iter().zip(VELOCITIES) {
                    density += f;
                    px += f64::from(ex) * f;
                    py += f64::from(ey) * f;
                }
                let rest = equilibrium(density, (px / density, py / density));
                for (q, (f, rest)) in f.into_iter().zip(rest).enumerate() {
                    let at = self.index(q, x, y);
                    self.now[at] = f + OMEGA * (rest - f);
                }
            }
        }
    }

    /// Moves the populations to the next sites.
    fn stream(&mut self) {
        for (q, (ex, ey)) in VELOCITIES.into_iter().enumerate() {
            for y in 1..=self.sites.1 {
                for x in 1..=self.sites.0 {
                    let from = (x as i32 - ex) as usize;
                    let from = self.index(q, from, (y as i32 - ey) as usize);
                    let at = self.index(q, x, y);
                    self.next[at] = self.now[from];
                }
            }
        }
        core::mem::swap(&mut self.now, &mut self.next);
    }

    /// Places of the data for a side: in this block, or, if `outside`, in the line around the next
    /// block where it arrives. Lines along X have the corners, which have arrived along Y.
    fn edge(&self, side: Side, outside: bool) -> Vec<usize> {
        let (across, along) = if side.along_x { self.sites } else { (self.sites.1, self.sites.0) };
        let line = match (side.forward, outside) {
            (true, false) => across,
            (true, true) => 0,
            (false, false) => 1,
            (false, true) => across + 1,
        };
        let along = if side.along_x { 1..along + 1 } else { 0..along + 2 };
        let wanted = if side.forward { 1 } else { -1 };
        let moves = |q: &usize| {
            let (ex, ey) = VELOCITIES[*q];
            wanted == if side.along_x { ex } else { ey }
        };
        let populations = (0..POPULATIONS).filter(moves);
        let places = populations.flat_map(|q| {
            along.clone().map(move |at| match side.along_x {
                true => self.index(q, line, at),
                false => self.index(q, at, line),
            })
        });
        places.collect()
    }

    /// The message to a side, as bytes.
    fn pack(&self, side: Side) -> Vec<u8> {
        let places = self.edge(side, false);
        places.into_iter().flat_map(|at| self.now[at].to_le_bytes()).collect()
    }

    /// Stores the data from the other side at its place.
    fn unpack(&mut self, side: Side, bytes: &[u8]) {
        let places = self.edge(side, true);
        for (at, bytes) in places.into_iter().zip(bytes.as_chunks().0) {
            self.now[at] = f64::from_le_bytes(*bytes);
        }
    }

    /// Bytes of a message to a side.
    fn edge_bytes(&self, along_x: bool) -> usize {
        8 * self.edge(Side { along_x, forward: true }, false).len()
    }

    /// A sum of the bits of all populations, weighted by their places in the lattice.
    fn checksum(&self, lattice: (usize, usize)) -> u64 {
        let mut sum = 0u64;
        for q in 0..POPULATIONS {
            for y in 1..=self.sites.1 {
                for x in 1..=self.sites.0 {
                    let site = (self.first.1 + y - 1) * lattice.0 + self.first.0 + x - 1;
                    let bits = self.now[self.index(q, x, y)].to_bits();
                    let mixed = (bits ^ (site * POPULATIONS + q) as u64)
                        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    sum =
                        sum.wrapping_add((mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9));
                }
            }
        }
        sum
    }
}

/// The blocks in a direction of the lattice: neighbours in a ring, or this one alone.
struct Ring<'a> {
    /// Their number, and which this is.
    count: usize,
    index: usize,
    lanes: Option<Lanes<'a>>,
    how: How,
}

/// To the next block and from the one before; then to the one before and from the next.
struct Lanes<'a> {
    out: [Lane<'a>; 2],
    inward: [Lane<'a>; 2],
}

impl<'a> Ring<'a> {
    /// The ring of these nodes, which include this one.
    fn new(nwp: &'a Nwp<NodePlatform>, nodes: &[Coords], how: How) -> Result<Self, Error> {
        let count = nodes.len();
        let here = nodes.iter().position(|at| *at == nwp.coords());
        let index = here.ok_or_else(|| fail!("this node is not in its ring"))?;
        Ok(Self { count, index, lanes: None, how })
    }

    /// Opens the lanes to its neighbours, for messages of up to `most` bytes.
    fn open(
        &mut self,
        nwp: &'a Nwp<NodePlatform>,
        nodes: &[Coords],
        most: usize,
    ) -> Result<(), Error> {
        if self.count == 1 {
            return Ok(());
        }
        let shape = torus(nwp)?;
        let node = |index: usize| nodes[index % self.count];
        let (before, here, next) =
            (node(self.index + self.count - 1), node(self.index), node(self.index + 1));
        let forward = link_between(&shape, here, next);
        // The other end of the link from the previous node to this one.
        let backward = link_between(&shape, before, here).map(|link| link.opposite());
        let (Some(forward), Some(backward)) = (forward, backward) else {
            return Err(fail!("{before}, {here} and {next} are no neighbours: no ring"));
        };
        if forward == backward {
            return Err(fail!("{here} has one link only to both of its neighbours: no ring"));
        }
        let most = most.max(8);
        let [on, back] = [Channel::ALL[0], Channel::ALL[1]];
        let lane = |link, channel| Lane::open(nwp, link, channel, most)?.sleeping();
        self.lanes = Some(Lanes {
            out: [lane(forward, on)?, lane(backward, back)?],
            inward: [lane(backward, on)?, lane(forward, back)?],
        });
        Ok(())
    }

    /// Sends one message forward and one back, and returns those that arrived in the same
    /// directions.
    fn exchange(&mut self, messages: [Vec<u8>; 2]) -> Result<[Vec<u8>; 2], Error> {
        let Some(Lanes { out, inward }) = &mut self.lanes else { return Ok(messages) };
        let [forward, back] = messages.each_ref().map(Vec::len);
        let credits = [inward[0].credit(forward)?, inward[1].credit(back)?];
        let sends = [out[0].send(self.how, &messages[0])?, out[1].send(self.how, &messages[1])?];
        for (lane, credit) in inward.iter_mut().zip(credits) {
            lane.received(credit)?;
        }
        for (lane, send) in out.iter_mut().zip(sends) {
            lane.sent(send)?;
        }
        Ok([inward[0].bytes(forward).to_vec(), inward[1].bytes(back).to_vec()])
    }

    /// The sum of the values of all nodes of the ring.
    fn sum(&mut self, own: u64) -> Result<u64, Error> {
        let (mut sum, mut passed) = (own, own);
        for _ in 1..self.count {
            let message = passed.to_le_bytes().to_vec();
            let [come, _] = self.exchange([message.clone(), message])?;
            passed = u64::from_le_bytes(come[..8].try_into()?);
            sum = sum.wrapping_add(passed);
        }
        Ok(sum)
    }
}

/// Orders the nodes of a torus of two axes so that each is a neighbour of the previous one, and the
/// first of the last; `None` if there is no such order, because both lengths are odd.
fn round_trip(a: u8, b: u8) -> Option<Vec<(u8, u8)>> {
    if a == 1 || b == 1 {
        return Some((0..a).flat_map(|i| (0..b).map(move |j| (i, j))).collect());
    }
    if !b.is_multiple_of(2) {
        let swapped = if a.is_multiple_of(2) { round_trip(b, a)? } else { return None };
        return Some(swapped.into_iter().map(|(j, i)| (i, j)).collect());
    }
    // Back and forth, row by row, and back through the first place of each row.
    let rows =
        (0..b).flat_map(|j| (1..a).map(move |i| (if j.is_multiple_of(2) { i } else { a - i }, j)));
    let mut order: Vec<_> = rows.chain((0..b).rev().map(|j| (0, j))).collect();
    order.rotate_right(1);
    Some(order)
}

/// The coordinates of the nodes in this one's rings: along X, and along Y and Z.
fn rings(shape: &Shape, here: Coords) -> Result<[Vec<Coords>; 2], Error> {
    let [lx, ly, lz, ..] = shape.lengths();
    let [x, y, z, ..] = here.to_array();
    let along_x = (0..lx).map(|x| Coords::new(x, y, z, 0, 0, 0)).collect();
    let Some(order) = round_trip(ly, lz) else {
        return Err(fail!("no ring goes through {ly} times {lz} nodes: one of them must be even"));
    };
    Ok([along_x, order.into_iter().map(|(y, z)| Coords::new(x, y, z, 0, 0, 0)).collect()])
}

/// One step. Returns how long the exchange with neighbours took, in nanoseconds.
fn step(block: &mut Block, rings: &mut [Ring<'_>; 2]) -> Result<u64, Error> {
    block.collide();
    let start = now_ns();
    for (ring, along_x) in rings.iter_mut().zip([true, false]) {
        let sides = [true, false].map(|forward| Side { along_x, forward });
        let come = ring.exchange(sides.map(|side| block.pack(side)))?;
        for (side, bytes) in sides.into_iter().zip(come) {
            block.unpack(side, &bytes);
        }
    }
    let took = now_ns() - start;
    block.stream();
    Ok(took)
}

/// The part of `count` sites that block `index` of `blocks` has: its first, and how many.
const fn part(count: usize, index: usize, blocks: usize) -> (usize, usize) {
    let first = count * index / blocks;
    (first, count * (index + 1) / blocks - first)
}

/// Returns true if a block has the same populations as the whole lattice there, bit by bit.
fn compare(block: &Block, whole: &Block) -> Result<(), Error> {
    for q in 0..POPULATIONS {
        for y in 1..=block.sites.1 {
            for x in 1..=block.sites.0 {
                let (i, j) = (block.first.0 + x, block.first.1 + y);
                let mine = block.now[block.index(q, x, y)];
                let expected = whole.now[whole.index(q, i, j)];
                if mine.to_bits() != expected.to_bits() {
                    return Err(fail!(
                        "population {q} of site {},{} is {mine:e}, on one node {expected:e}",
                        i - 1,
                        j - 1
                    ));
                }
            }
        }
    }
    Ok(())
}

fn lbm() -> Result<(), Error> {
    let (nx, ny, steps) = (number("nx", 64)?, number("ny", 64)?, number("steps", 50)?);
    let allowed = 1..=MOST_SITES;
    if !allowed.contains(&nx) || !allowed.contains(&ny) || steps == 0 {
        return Err(fail!("nx= and ny= must be 1 to {MOST_SITES}, steps= at least 1"));
    }
    let how = match option("how") {
        None | Some("nget") => How::Nget,
        Some("pput") => How::Pput,
        Some(other) => return Err(fail!("how={other} is neither nget nor pput")),
    };
    let lattice = (nx as usize, ny as usize);
    let nwp = find_nwp()?;
    let nodes = rings(&torus(&nwp)?, nwp.coords())?;
    let [along_x, along_y] = &nodes;
    if along_x.len() > lattice.0 || along_y.len() > lattice.1 {
        let (x, y) = (along_x.len(), along_y.len());
        return Err(fail!("{nx}x{ny} sites are too few for {x}x{y} blocks"));
    }
    let mut rings = [Ring::new(&nwp, along_x, how)?, Ring::new(&nwp, along_y, how)?];
    let [(x, width), (y, height)] =
        [0, 1].map(|i| part([lattice.0, lattice.1][i], rings[i].index, rings[i].count));
    let mut block = Block::new(lattice, (x, y), (width, height))?;
    for ((ring, nodes), along) in rings.iter_mut().zip(&nodes).zip([true, false]) {
        ring.open(&nwp, nodes, block.edge_bytes(along))?;
    }
    let (start, mut exchanged) = (now_ns(), 0);
    for _ in 0..steps {
        exchanged += step(&mut block, &mut rings)?;
    }
    let took = now_ns() - start;
    let mut checksum = block.checksum(lattice);
    for ring in &mut rings {
        checksum = ring.sum(checksum)?;
    }
    let verify = number("verify", 1)? != 0;
    if verify {
        verify_alone(&block, lattice, (steps, how), checksum)?;
    }
    if nwp.coords() == Coords::default() {
        let said = if verify { "as on one node to the last bit" } else { "not verified" };
        println!(
            "{nx}x{ny} sites in {}x{} blocks, {steps} steps: {said}, checksum {checksum:016x}",
            rings[0].count, rings[1].count
        );
        println!(
            "{} us a step, of which {} us to exchange; {} thousand sites a second and node",
            took / steps / 1000,
            exchanged / steps / 1000,
            (width * height) as u64 * steps * 1_000_000 / took.max(1)
        );
    }
    drop(rings);
    leave(&nwp);
    Ok(())
}

/// Computes the same on this node alone, and compares the block and the checksum.
fn verify_alone(
    block: &Block,
    lattice: (usize, usize),
    (steps, how): (u64, How),
    checksum: u64,
) -> Result<(), Error> {
    let mut whole = Block::new(lattice, (0, 0), lattice)?;
    let mut alone = [true, false].map(|_| Ring { count: 1, index: 0, lanes: None, how });
    for _ in 0..steps {
        step(&mut whole, &mut alone)?;
    }
    compare(block, &whole)?;
    let expected = whole.checksum(lattice);
    if checksum != expected {
        return Err(fail!("the checksum is {checksum:016x}, on one node {expected:016x}"));
    }
    Ok(())
}
