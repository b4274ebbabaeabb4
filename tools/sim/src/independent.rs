//! A second simulator of tori, which shares no code with the first one and gives the same results.
//!
//! It implements what textbooks describe: virtual cut-through, dimension-order routes, two virtual
//! channels with a date line, credit counted in packets, and outputs that serve all queues that
//! want them in turn.
//!
//! Throughput in GB/s and latency in us on 8x8 nodes, `tofu sim` first:
//!
//! | load | date line: GB/s | us | look-ahead: GB/s | us |
//! |---|---|---|---|---|
//! | 0.1 | 0.362, 0.366 | 0.680, 0.677 | 0.362, 0.366 | 0.679, 0.676 |
//! | 0.3 | 1.090, 1.092 | 0.820, 0.814 | 1.090, 1.093 | 0.801, 0.800 |
//! | 0.5 | 1.800, 1.793 | 1.180, 1.156 | 1.802, 1.791 | 1.059, 1.046 |
//! | 0.7 | 2.096, 2.193 | saturated | 2.536, 2.525 | 2.034, 3.015 |
//! | 0.9 | 2.119, 2.111 | saturated | 2.284, 2.439 | saturated |
//!
//! The network in the terms of other simulators, with flits of 16 bytes and cycles of 3.2 ns, and
//! what the scenario `torus` makes of it:
//!
//! - a link: 5.0 GB/s in each direction; a flit a cycle
//! - a hop of a header, link and router: 100 ns; 31.25 cycles
//! - a packet: a message of 1024 bytes: 1120 bytes, 224 ns; 70 flits
//! - switching: virtual cut-through; the next queue must have room for the whole packet
//! - routes: the shortest in X, Y and Z order; towards higher coordinates if both directions are
//!   equally long
//! - virtual channels of such messages: 2, assigned to hops by `scheduler`
//! - a queue, of each port and channel: 8192 bytes (`queue_bytes`); 512 flits
//! - credit: returned a hop after the last flit has left the queue; 31.25 cycles
//! - an input of the crossbar: a packet of each queue at a time, to different parts of the crossbar
//! - an output: serves three groups of inputs in turn, and in a group the queues in turn
//! - into and out of a node: one TNI, as fast as a link; packets wait for room in it
//! - load 1: the middle of a ring is full: 3.65 GB/s of each node; 0.80 flits a cycle
//! - latency without load: 6.01 hops and a packet: 825 ns; 258 cycles
//!
//! A third one, CAMINOS 0.6.3 (<https://crates.io/crates/caminos-lib>), was run on a torus and a
//! mesh of 9x9 nodes. An odd length leaves no choice between two directions that are equally long.
//! Its configuration was the crate's default with `Torus` or `Mesh`, `sides: [9, 9]` and one server
//! each, `Basic` router with `virtual_channels: 1`, `buffer_size: 1024`, `flit_size: 70`,
//! `output_buffer_size: 0`, `bubble` for the torus, `DOR`, messages and packets of 70 phits, a seed
//! of 42, 31 cycles a hop, one into and out of a node, and 31,250 measured cycles. Ours was the
//! scenario `torus` with the shape `9x9x1x1x1x1`, `warm_up` of 50 us, `time` of 100 us, and `torus
//! = ""` for the mesh. Load and throughput in flits a cycle of each node, latency in cycles:
//!
//! | | load | CAMINOS | latency | ours, date line | latency | look-ahead | latency |
//! |---|---|---|---|---|---|---|---|
//! | torus | 0.089 | 0.088 | 226 | 0.090 | 225 | 0.090 | 225 |
//! | | 0.267 | 0.265 | 290 | 0.266 | 291 | 0.266 | 278 |
//! | | 0.444 | 0.444 | 491 | 0.448 | 481 | 0.448 | 409 |
//! | | 0.533 | 0.535 | 927 | 0.537 | 816 | 0.537 | 553 |
//! | | 0.622 | 0.595 | 2466 | 0.523 | 4591 | 0.578 | 1756 |
//! | | 0.711 | 0.599 | saturated | 0.488 | saturated | 0.504 | saturated |
//! | | 0.889 | 0.606 | saturated | 0.530 | saturated | 0.570 | saturated |
//! | mesh | 0.044 | 0.045 | 268 | | | 0.044 | 266 |
//! | | 0.133 | 0.133 | 302 | | | 0.134 | 294 |
//! | | 0.222 | 0.220 | 370 | | | 0.221 | 344 |
//! | | 0.311 | 0.309 | 655 | | | 0.311 | 450 |
//! | | 0.400 | 0.356 | 3591 | | | 0.397 | 938 |
//! | | 0.444 | 0.356 | saturated | | | 0.413 | saturated |
//!
//! On the torus they differ beyond saturation by what keeps rings from deadlock. With a bubble, a
//! packet enters a ring only where there is room for two. So CAMINOS has one virtual channel of
//! 1024 flits in the place of two of 512, and keeps what it carries, whereas rings with a date line
//! fill up and carry less. With two channels its rings came to a stop. On the mesh its one queue
//! makes packets wait behind others for another output.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::scenario::Scenario;

/// Times in picoseconds, for the K computer's links: a hop, and 1024 bytes in a frame of 1120.
const HOP: u64 = 100_000;
const WIRE: u64 = 224_000;
/// Packets that a receive queue of 8 KiB holds.
const ROOM: u32 = 7;
const WARM_UP: u64 = 40_000_000;
const TIME: u64 = 80_000_000;

#[derive(Clone, Copy)]
struct Packet {
    since: u64,
    /// Hops on each axis, towards higher coordinates if positive.
    left: [i32; 3],
    crossed: [bool; 3],
}

/// An event at a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Send,
    /// The first packet of a queue (input, channel) may request its output.
    Ask(usize, usize),
    /// An output is free, or has received credit for a channel.
    Free(usize),
    Credit(usize, usize),
    /// A packet arrives: input, channel, its place in `wires`.
    Arrive(usize, usize, usize),
}

struct Node {
    at: [i32; 3],
    /// Ports by axis and direction, then the interface.
    queues: [[VecDeque<Packet>; 2]; 7],
    busy_until: [[u64; 2]; 7],
    free_at: [u64; 7],
    credit: [[u32; 2]; 6],
    turn: [usize; 7],
}

struct Torus {
    len: [i32; 3],
    look_ahead: bool,
    mean: f64,
    nodes: Vec<Node>,
    events: BinaryHeap<Reverse<(u64, u64, usize, What)>>,
    count: u64,
    wires: Vec<Packet>,
    random: u64,
    arrived: u64,
    latency: u64,
}

impl Torus {
    /// Returns the upper bits of a linear congruential generator, as a fraction.
    fn random(&mut self) -> f64 {
        let next = self.random.wrapping_mul(6_364_136_223_846_793_005);
        self.random = next.wrapping_add(1_442_695_040_888_963_407);
        ((self.random >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    fn at(&mut self, time: u64, node: usize, what: What) {
        self.count += 1;
        self.events.push(Reverse((time, self.count, node, what)));
    }

    fn number(&self, at: [i32; 3]) -> usize {
        let at = [0, 1, 2].map(|axis| at[axis].rem_euclid(self.len[axis]));
        ((at[2] * self.len[1] + at[1]) * self.len[0] + at[0]) as usize
    }

    fn neighbour(&self, node: usize, port: usize) -> usize {
        let mut at = self.nodes[node].at;
        at[port / 2] += if port % 2 == 1 { 1 } else { -1 };
        self.number(at)
    }

    /// Returns the output that a packet wants, the channel there, and whether it has crossed the
    /// date line.
    fn step(&self, node: usize, packet: &Packet) -> (usize, usize, bool) {
        let Some(axis) = (0..3).find(|axis| packet.left[*axis] != 0) else { return (6, 0, false) };
        let left = packet.left[axis];
        let edge = if left > 0 { self.len[axis] - 1 } else { 0 };
        let crossed = packet.crossed[axis] || self.nodes[node].at[axis] == edge;
        let second = crossed || self.look_ahead && left.abs() == 1;
        (2 * axis + usize::from(left > 0), usize::from(second), crossed)
    }

    fn ask(&mut self, now: u64, node: usize, input: usize, channel: usize) {
        if let Some(packet) = self.nodes[node].queues[input][channel].front() {
            let (output, ..) = self.step(node, packet);
            self.serve(now, node, output);
        }
    }

    fn serve(&mut self, now: u64, node: usize, output: usize) {
        for n in 0..14 {
            let queue = (self.nodes[node].turn[output] + n) % 14;
            let (input, channel) = (queue / 2, queue % 2);
            let here = &self.nodes[node];
            let Some(&packet) = here.queues[input][channel].front() else { continue };
            let (wanted, next, crossed) = self.step(node, &packet);
            let room = output == 6 || here.credit[output][next] > 0;
            let waits = here.free_at[output] > now || here.busy_until[input][channel] > now;
            if wanted != output || !room || waits {
                continue;
            }
            let here = &mut self.nodes[node];
            here.queues[input][channel].pop_front();
            here.turn[output] = queue + 1;
            here.free_at[output] = now + WIRE;
            here.busy_until[input][channel] = now + WIRE;
            self.at(now + WIRE, node, What::Free(output));
            self.at(now + WIRE, node, What::Ask(input, channel));
            if input < 6 {
                // Packets that left the previous node by X+ are in the queue of that name.
                let before = self.neighbour(node, input ^ 1);
                self.at(now + WIRE + HOP, before, What::Credit(input, channel));
            }
            if output == 6 {
                let end = now + WIRE;
                if (WARM_UP..WARM_UP + TIME).contains(&end) {
                    self.arrived += 1;
                    self.latency += end - packet.since;
                }
                return;
            }
            self.nodes[node].credit[output][next] -= 1;
            let mut packet = packet;
            packet.left[output / 2] -= packet.left[output / 2].signum();
            packet.crossed[output / 2] = crossed;
            let to = self.neighbour(node, output);
            self.wires.push(packet);
            self.at(now + HOP, to, What::Arrive(output, next, self.wires.len() - 1));
            return;
        }
    }

    fn happens(&mut self, now: u64, node: usize, what: What) {
        match what {
            What::Send => {
                self.send_later(now, node);
                let others = self.nodes.len() - 1;
                let to = (self.random() * others as f64) as usize;
                let to = self.nodes[to + usize::from(to >= node)].at;
                let from = self.nodes[node].at;
                let left = [0, 1, 2].map(|axis| {
                    let ahead = (to[axis] - from[axis]).rem_euclid(self.len[axis]);
                    let back = self.len[axis] - ahead;
                    if ahead <= back { ahead } else { -back }
                });
                let packet = Packet { since: now, left, crossed: [false; 3] };
                self.nodes[node].queues[6][0].push_back(packet);
                self.ask(now, node, 6, 0);
            }
            What::Ask(input, channel) => self.ask(now, node, input, channel),
            What::Free(output) => self.serve(now, node, output),
            What::Credit(output, channel) => {
                self.nodes[node].credit[output][channel] += 1;
                self.serve(now, node, output);
            }
            What::Arrive(input, channel, packet) => {
                let packet = self.wires[packet];
                self.nodes[node].queues[input][channel].push_back(packet);
                self.ask(now, node, input, channel);
            }
        }
    }

    fn send_later(&mut self, now: u64, node: usize) {
        let wait = -self.random().ln() * self.mean;
        self.at(now + wait as u64, node, What::Send);
    }

    /// Returns the packets of each node per microsecond, and their mean latency in microseconds.
    fn run(len: [i32; 3], look_ahead: bool, rate: f64) -> (f64, f64) {
        let mut torus = Self {
            len,
            look_ahead,
            mean: 1e6 / rate,
            nodes: Vec::new(),
            events: BinaryHeap::new(),
            count: 0,
            wires: Vec::new(),
            random: 1,
            arrived: 0,
            latency: 0,
        };
        for z in 0..len[2] {
            for y in 0..len[1] {
                torus.nodes.extend((0..len[0]).map(|x| Node {
                    at: [x, y, z],
                    queues: Default::default(),
                    busy_until: [[0; 2]; 7],
                    free_at: [0; 7],
                    credit: [[ROOM; 2]; 6],
                    turn: [0; 7],
                }));
            }
        }
        (0..torus.nodes.len()).for_each(|node| torus.send_later(0, node));
        while let Some(Reverse((now, _, node, what))) = torus.events.pop() {
            if now >= WARM_UP + TIME {
                break;
            }
            torus.happens(now, node, what);
        }
        let arrived = torus.arrived as f64;
        let rate = arrived / torus.nodes.len() as f64 / (TIME as f64 / 1e6);
        (rate, torus.latency as f64 / arrived / 1e6)
    }
}

/// Compares the latency far from saturation, and the throughput at and beyond it.
#[test]
fn second_simulator_agrees() {
    for (shape, len) in [("8x8x1x1x1x1", [8, 8, 1]), ("4x4x4x1x1x1", [4, 4, 4])] {
        for (scheduler, look_ahead) in [("date-line", false), ("look-ahead", true)] {
            let text = format!(
                "shape = \"{shape}\"\ngeneration = \"k\"\nscheduler = \"{scheduler}\"\n\
                 pattern = \"uniform\"\nsize = 1024\ntnis = 1\nanswers = false\n\
                 arrivals = \"poisson\"\nload = [0.1, 0.3, 0.5, 0.7, 0.9]\n\
                 warm_up = \"40us\"\ntime = \"80us\""
            );
            let ours = Scenario::parse("test", &text).unwrap().run(1).unwrap();
            for (n, (offered, rate, us)) in ours.rates().enumerate() {
                let (packets, us_2) = Torus::run(len, look_ahead, offered * 1e3 / 1024.0);
                let rate_2 = packets * 1024.0 / 1e3;
                let all = format!(
                    "{shape}, {scheduler}, {offered:.2} GB/s: {rate:.3} and {rate_2:.3} GB/s, \
                     {us:.3} and {us_2:.3} us"
                );
                println!("{all}");
                let alike = |one: f64, other: f64, by: f64| (one / other - 1.0).abs() < by;
                assert!(alike(rate, rate_2, if n < 3 { 0.03 } else { 0.1 }), "{all}");
                // Near saturation, latency is a matter of chance.
                assert!(n > 2 || alike(us, us_2, 0.05), "{all}");
            }
        }
    }
}
