//! Traffic of many nodes through the modelled network: the messages of each node, and the results.
//!
//! Nothing here depends on the host: each random number is derived from the seed, the node and the
//! number of earlier draws of the node.

use std::fmt;

use anyhow::bail;
use hdrhistogram::Histogram;
use serde::Serialize;
use tofu_abi::desc::MAX_MTU;
use tofu_abi::topology::{NodeId, Port, Shape};
use tofu_abi::{Coords, Path, TniId};
use tofu_fabric::chance::{self, below, mix, scramble};
use tofu_fabric::{Class, DiscardReason, LinkErrors, Ps, Way};
use tofu_links::Parameters;
use tofu_netmodel::{Message, Network, Options, Sink};

/// Bytes of the routing header in front of a TLP.
const ROUTING_HEADER: u16 = tofu_abi::frame::ROUTING_HEADER_SIZE as u16;
/// Payload of the longest TLP.
const MTU: u64 = MAX_MTU as u64;
/// The time a target takes to answer a message (*ours*: about as long as TofuD takes to write it).
const ANSWER: Ps = 100_000;
/// Bytes of the TLP that answers a Put: the shortest that TofuD has.
pub(crate) const ANSWER_BYTES: u16 = tofu_abi::frame::TLP_MIN as u16;
/// The time for which the network runs before nodes are served again. No answer is sent sooner.
const STEP: Ps = ANSWER;
/// If nothing arrives for this long although messages are on their way, nothing will.
const PATIENCE: Ps = 10_000_000_000;

/// The destinations of a node's messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Any other node, each time.
    Uniform,
    /// The same node each time. Each node receives from exactly one other.
    Permutation,
    /// A permutation as above, but another one for each message.
    Permutations,
    /// The neighbours, in turn.
    Neighbour,
    /// The node whose number results from exchanging rows and columns, with nodes numbered in a
    /// matrix that is as square as possible.
    Transpose,
    /// One node for this percentage of messages, and any other node for the rest.
    Hotspot(NodeId, u32),
    /// The targets of these pairs, in turn.
    Pairs(Vec<(NodeId, NodeId)>),
}

/// The amount of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// This many messages of each node, one after another as fast as possible.
    Count(u64),
    /// Messages at random times, with this many kB of payload per second and node. Events are
    /// counted for `time` after `warm_up`.
    Rate { kbytes: u64, warm_up: Ps, time: Ps },
}

/// The time for which nodes that send at a rate wait between two messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Arrivals {
    /// A uniformly distributed time of up to twice the mean.
    #[default]
    Even,
    /// An exponentially distributed time, as in a Poisson process. Other simulators approximate
    /// that by tossing a coin in each cycle.
    Poisson,
}

impl Arrivals {
    /// Returns the time between two messages, from a random number.
    const fn interval(self, mean: u64, random: u64) -> Ps {
        match self {
            Self::Even => below(random, 2 * mean),
            Self::Poisson => exponential(random, mean),
        }
    }
}

/// Returns an exponentially distributed time: `mean` times the negative logarithm of the random
/// number as a fraction. Integer arithmetic gives the same result on every host.
const fn exponential(random: u64, mean: u64) -> Ps {
    /// The natural logarithm of 2, with 32 fractional bits.
    const LN_2: u128 = 2_977_044_472;
    let random = random | 1;
    // The mantissa has one bit before the binary point and 63 after it. Its logarithm to base 2 is
    // a fraction; each squaring yields one bit of it.
    let mut mantissa = random << random.leading_zeros();
    let mut fraction = 0u64;
    let mut bit = 0;
    while bit < 32 {
        let square = mantissa as u128 * mantissa as u128;
        let carry = square >> 127;
        mantissa = (square >> (63 + carry)) as u64;
        fraction = fraction << 1 | carry as u64;
        bit += 1;
    }
    let halvings = ((random.leading_zeros() as u64 + 1) << 32) - fraction;
    let time = (((mean as u128 * halvings as u128) >> 32) * LN_2) >> 32;
    time as u64
}

/// The way a message is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Rails {
    /// Through one TNI.
    #[default]
    Single,
    /// In parts, each through another TNI and along another shortest path: four if source and
    /// target differ in A, B and C, two if they differ in one or two of them (IEEE Micro 2012).
    Minimal,
}

/// Traffic on a machine.
#[derive(Clone, Debug)]
pub(crate) struct Traffic {
    pub(crate) shape: Shape,
    pub(crate) links: Parameters,
    pub(crate) options: Options,
    pub(crate) down: Vec<(Coords, Port)>,
    /// Errors of links, in both directions of each.
    pub(crate) errors: Vec<(Coords, Port, LinkErrors)>,
    pub(crate) seed: u64,
    pub(crate) pattern: Pattern,
    /// Payload of a message, in bytes.
    pub(crate) size: u64,
    pub(crate) load: Load,
    pub(crate) arrivals: Arrivals,
    pub(crate) rails: Rails,
    /// The number of TNIs that a node's messages use in turn.
    pub(crate) tnis: u8,
    /// True if targets answer each message, like a Put.
    pub(crate) answers: bool,
    /// Bytes of the TLP of an answer.
    pub(crate) answer_bytes: u16,
    /// The nodes that send, in order; all if there are none. Random targets are among them.
    pub(crate) senders: Vec<NodeId>,
    /// The most messages of a node that are on their way or not yet answered.
    pub(crate) window: u64,
    /// The time for which a TNI sends nothing after each frame of a message.
    pub(crate) gap: Ps,
}

/// The result of a run. Rates are of payload.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub(crate) struct Outcome {
    /// Nodes that send.
    pub(crate) senders: u32,
    pub(crate) delivered: u64,
    pub(crate) lost: u64,
    /// The time that was counted; with a count of messages, until the last one arrived.
    pub(crate) time_us: f64,
    /// Payload that arrived, for each node that sends.
    pub(crate) gbytes_per_s: f64,
    /// The same by each node's own time, from its first message to the last that it received: of
    /// the slowest node, on average, and of the fastest. `None` unless messages are counted.
    pub(crate) of_a_node: Option<Spread>,
    /// From when a message is due until all of it has arrived.
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
    /// Frames that crossed links, of messages and answers.
    pub(crate) hops: u64,
    /// Routing headers and TLPs that the busiest direction of a link carried.
    pub(crate) busiest_gbytes_per_s: f64,
    /// Frames with a wrong link CRC.
    pub(crate) lcrc_errors: u64,
    /// The number of times a sender repeated frames because no acknowledgement came.
    pub(crate) ack_timeouts: u64,
}

/// The least, mean and most of several results.
#[derive(Clone, Copy, Debug, Serialize, PartialEq)]
pub(crate) struct Spread {
    pub(crate) least: f64,
    pub(crate) mean: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// Returns `None` if there are no results.
    pub(crate) fn of(all: impl Iterator<Item = f64> + Clone) -> Option<Self> {
        let least = all.clone().reduce(f64::min)?;
        let most = all.clone().reduce(f64::max)?;
        let mean = all.clone().sum::<f64>() / all.count() as f64;
        Some(Self { least, mean, most })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { least, mean, most } = self;
        write!(f, "{least:.3} / {mean:.3} / {most:.3}")
    }
}

/// Returns a random number that depends only on the arguments.
pub(crate) const fn draw(seed: u64, of: u64, n: u64) -> u64 {
    let state = scramble(mix(seed) ^ of.wrapping_mul(chance::STEP));
    scramble(state.wrapping_add(n.wrapping_mul(chance::STEP)))
}

/// Maps a place by a pseudorandom permutation of `len` places: a Feistel network over the next
/// power of four, iterated until the result is below `len`.
pub(crate) fn permuted(seed: u64, which: u64, place: u32, len: u32) -> u32 {
    let half = (u32::BITS - len.saturating_sub(1).leading_zeros()).div_ceil(2).max(1);
    let mask = (1 << half) - 1;
    let mut at = place;
    loop {
        let (mut left, mut right) = (at >> half, at & mask);
        for round in 0..4 {
            let mixed = draw(seed, which, u64::from(right) << 2 | round) as u32 & mask;
            (left, right) = (right, left ^ mixed);
        }
        at = left << half | right;
        if at < len {
            return at;
        }
    }
}

impl Pattern {
    /// Returns true if destinations are drawn among all nodes that send.
    pub(crate) const fn is_random(&self) -> bool {
        matches!(self, Self::Uniform | Self::Permutation | Self::Permutations)
    }

    /// Returns the destination of a node's `n`th message, or `None` if the node does not send it.
    /// Random destinations are among the first `nodes`.
    fn target(&self, shape: &Shape, nodes: u32, seed: u64, node: NodeId, n: u64) -> Option<NodeId> {
        let uniform = |random| {
            let other = below(random, u64::from(nodes).saturating_sub(1)) as u32;
            (nodes > 1).then_some(NodeId(other + u32::from(other >= node.0)))
        };
        let of = u64::from(node.0);
        match self {
            Self::Uniform => uniform(draw(seed, of, n)),
            Self::Permutation => Some(NodeId(permuted(seed, 0, node.0, nodes))),
            Self::Permutations => Some(NodeId(permuted(seed, n, node.0, nodes))),
            Self::Neighbour => {
                let here = shape.coords(node)?;
                let count = shape.neighbors(here).count() as u64;
                if count == 0 {
                    return None;
                }
                let (_, there) = shape.neighbors(here).nth((n % count) as usize)?;
                shape.node_id(there)
            }
            Self::Transpose => {
                let rows = (1..=nodes.isqrt()).rev().find(|rows| nodes.is_multiple_of(*rows))?;
                let columns = nodes / rows;
                Some(NodeId(node.0 % columns * rows + node.0 / columns))
            }
            Self::Hotspot(hot, percent) => {
                if below(draw(!seed, of, n), 100) < u64::from(*percent) {
                    return (node != *hot).then_some(*hot);
                }
                uniform(draw(seed, of, n))
            }
            Self::Pairs(pairs) => {
                let mine = || pairs.iter().filter(|(from, _)| *from == node);
                let count = mine().count() as u64;
                if count == 0 {
                    return None;
                }
                mine().nth((n % count) as usize).map(|(_, to)| *to)
            }
        }
    }
}

/// Returns the paths of a message's parts.
pub(crate) fn paths(rails: Rails, from: Coords, to: Coords) -> impl Iterator<Item = Path> + Clone {
    let parts = match rails {
        Rails::Single => 1,
        Rails::Minimal => usize::MAX,
    };
    from.minimal_paths(to).take(parts)
}

/// Returns how many TLPs a payload takes, and the bytes of the last one.
fn tlps(payload: u64) -> (u32, u16) {
    let tlps = payload.div_ceil(MTU).max(1);
    let last = payload - (tlps - 1) * MTU;
    (tlps as u32, tlp_size(last as u32))
}

fn tlp_size(payload: u32) -> u16 {
    tofu_icc::wire_bytes(payload) as u16 - tofu_abi::frame::ROUTING_HEADER_SIZE as u16
}

/// The most nodes of a machine whose routes are all walked.
pub(crate) const MOST_WALKED: u32 = 2048;

impl Traffic {
    /// Returns the same traffic with other random numbers.
    pub(crate) fn with_seed(&self, seed: u64) -> Self {
        let options = Options { seed, ..self.options.clone() };
        Self { seed, options, ..self.clone() }
    }

    /// Returns the destination of a sender's `n`th message, or `None` if it does not send it.
    fn target(&self, node: NodeId, n: u64) -> Option<NodeId> {
        let Self { shape, pattern, seed, senders, .. } = self;
        if senders.is_empty() {
            return pattern.target(shape, shape.nodes(), *seed, node, n);
        }
        let place = senders.binary_search(&node).ok()?;
        if !pattern.is_random() {
            return pattern.target(shape, shape.nodes(), *seed, node, n);
        }
        // Senders count as if they were all nodes.
        let of = NodeId(place as u32);
        let target = pattern.target(shape, senders.len() as u32, *seed, of, n)?;
        senders.get(target.index()).copied()
    }

    /// Returns the limits that follow from the routes of all pairs of nodes, if each node sends
    /// equally to all others, including or excluding itself. Returns `None` for other traffic, for
    /// links with errors, and for large machines.
    pub(crate) fn limits(&self) -> Option<Limits> {
        let Self { shape, links, .. } = self;
        let itself = match self.pattern {
            Pattern::Uniform => false,
            Pattern::Permutations => true,
            _ => return None,
        };
        let broken = !self.down.is_empty() || !self.errors.is_empty();
        let all_send = self.senders.is_empty() && self.gap == 0 && self.window == u64::MAX;
        if broken
            || !all_send
            || self.rails != Rails::Single
            || !(2..=MOST_WALKED).contains(&shape.nodes())
        {
            return None;
        }
        // The number of routes through each port.
        let mut ways = vec![0u64; shape.nodes() as usize * Port::COUNT];
        for from in shape.iter() {
            for to in shape.iter().filter(|to| *to != from) {
                let mut at = from;
                for leg in shape.legs(from, to, to.default_path()) {
                    for _ in 0..leg.hops.unsigned_abs() {
                        ways[shape.node_id(at)?.index() * Port::COUNT + leg.port().index()] += 1;
                        at = shape.neighbor(at, leg.port())?;
                    }
                }
            }
        }
        let targets = shape.nodes() - u32::from(!itself);
        let most = *ways.iter().max()? as f64 / f64::from(targets);
        let pairs = f64::from(targets) * f64::from(shape.nodes());
        let hops = ways.iter().sum::<u64>() as f64 / pairs;
        let frames = self.frames();
        // Answers go in the opposite direction, and both directions carry the same total.
        let bytes =
            frames.bytes + u64::from(self.answers) * frame_of(links, self.answer_bytes).bytes;
        let rate = f64::from(links.link_kbytes()) * 1e3 * self.size as f64 / bytes as f64;
        Some(Limits {
            rate: (rate / most).min(rate * f64::from(self.tnis)),
            hops,
            latency: hops * links.hop_ps() as f64 + frames.time as f64,
        })
    }

    /// Returns the frames of a message on a link.
    pub(crate) fn frames(&self) -> Frames {
        let (tlps, last) = tlps(self.size);
        let (full, last) =
            (frame_of(&self.links, tlp_size(MTU as u32)), frame_of(&self.links, last));
        let others = u64::from(tlps - 1);
        Frames { bytes: others * full.bytes + last.bytes, time: others * full.time + last.time }
    }
}

/// Frames of a message on a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frames {
    /// Bytes that the link carries in that time.
    pub(crate) bytes: u64,
    pub(crate) time: Ps,
}

fn frame_of(links: &Parameters, tlp: u16) -> Frames {
    let frame = tlp + ROUTING_HEADER;
    Frames { bytes: links.wire_bytes(frame).into(), time: links.wire_ps(frame) }
}

/// Limits that no network with these routes exceeds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The payload of each node, in bytes per second, at which the busiest link is full, or all
    /// TNIs of a node are.
    pub(crate) rate: f64,
    /// The mean number of links on a message's route.
    pub(crate) hops: f64,
    /// The mean time of a message that never waits, in picoseconds.
    pub(crate) latency: f64,
}

/// A node that sends.
struct Sender {
    node: NodeId,
    at: Coords,
    /// Messages that it has sent, and when the next one is due.
    sent: u64,
    due: Ps,
}

/// A message or answer on its way.
#[derive(Clone, Copy)]
struct Open {
    since: Ps,
    /// Parts that have not arrived yet.
    parts: u8,
    lost: bool,
    answer: bool,
    src: Coords,
    dst: Coords,
}

/// Reports of the network since the last call.
#[derive(Default)]
struct Told {
    /// When a part ended, its token, and whether it was lost.
    ended: Vec<(Ps, u64, bool)>,
}

impl Sink for Told {
    fn delivered(&mut self, at: Ps, _: NodeId, _: TniId, token: u64) {
        self.ended.push((at, token, false));
    }

    fn left(&mut self, _: Ps, _: NodeId, _: TniId, _: u64) {}

    fn lost(&mut self, at: Ps, _: NodeId, _: Option<Port>, _: DiscardReason, token: u64) {
        self.ended.push((at, token, true));
    }

    fn wants_hops(&self) -> bool {
        false
    }
}

struct Run<'a> {
    traffic: &'a Traffic,
    network: Network,
    senders: Vec<Sender>,
    open: Vec<Open>,
    free: Vec<usize>,
    /// The number of parts and answers sent, which makes tokens unique.
    serial: u32,
    /// Messages on their way, without answers.
    under_way: u64,
    /// The interval of time that is counted.
    from: Ps,
    until: Ps,
    delivered: u64,
    lost: u64,
    last: Ps,
    latency: Histogram<u64>,
    answers: Vec<Message>,
    /// By node.
    times: Vec<Times>,
}

/// A node's first message, and what it has received.
#[derive(Clone, Copy, Default)]
struct Times {
    first: Option<Ps>,
    last: Ps,
    received: u64,
    /// Messages that have neither been answered nor, if none are, arrived.
    open: u64,
}

impl Traffic {
    /// Runs the traffic on this many threads.
    ///
    /// # Errors
    /// If a link that should be down does not exist, or the network stalls.
    pub(crate) fn run(&self, threads: u32) -> anyhow::Result<Outcome> {
        let options = Options { threads, ..self.options.clone() };
        let mut network = Network::new(self.shape, &self.links, &options)?;
        for &(node, port) in &self.down {
            network.set_link(node, port, false)?;
        }
        for (node, port, errors) in &self.errors {
            network.set_errors(*node, *port, errors)?;
            if let Some(far) = self.shape.neighbor(*node, *port) {
                network.set_errors(far, port.opposite(), errors)?;
            }
        }
        let sends = |node| match self.pattern {
            Pattern::Hotspot(hot, percent) => {
                self.shape.nodes() > 1 && (node != hot || percent < 100)
            }
            _ => self.target(node, 0).is_some(),
        };
        let (from, until) = match self.load {
            Load::Count(_) => (0, Ps::MAX),
            Load::Rate { warm_up, time, .. } => (warm_up, warm_up + time),
        };
        let senders = (0..self.shape.nodes()).map(NodeId).filter(|node| sends(*node));
        let mut run = Run {
            traffic: self,
            network,
            senders: Vec::new(),
            open: Vec::new(),
            free: Vec::new(),
            serial: 0,
            under_way: 0,
            from,
            until,
            delivered: 0,
            lost: 0,
            last: 0,
            latency: Histogram::new(3)?,
            answers: Vec::new(),
            times: vec![Times::default(); self.shape.nodes() as usize],
        };
        run.senders = senders
            .filter_map(|node| Some(Sender { node, at: self.shape.coords(node)?, sent: 0, due: 0 }))
            .collect();
        for i in 0..run.senders.len() {
            run.senders[i].due = run.interval(i);
        }
        run.go()?;
        Ok(run.outcome())
    }
}

impl Run<'_> {
    /// Returns the time until a sender's next message.
    fn interval(&self, sender: usize) -> Ps {
        let Load::Rate { kbytes, .. } = self.traffic.load else { return 0 };
        let Sender { node, sent, .. } = self.senders[sender];
        let mean = u128::from(self.traffic.size) * 1_000_000_000 / u128::from(kbytes.max(1));
        let random = draw(self.traffic.seed.rotate_left(32), u64::from(node.0), sent);
        self.traffic.arrivals.interval(mean.min(1 << 60) as u64, random)
    }

    fn go(&mut self) -> anyhow::Result<()> {
        let mut told = Told::default();
        let (mut now, mut changed) = (0, 0);
        while now < self.until {
            now += STEP;
            let answers = std::mem::take(&mut self.answers);
            for answer in &answers {
                self.network.inject(answer)?;
            }
            let before = self.under_way;
            for sender in 0..self.senders.len() {
                self.send(sender, now)?;
            }
            let waits = self.under_way > 0 && self.under_way == before && answers.is_empty();
            let late = before > 0 && now > changed + PATIENCE;
            let late = late || waits && self.network.next_event().is_none();
            if late {
                bail!("nothing arrives any more after {} us", changed / 1_000_000);
            }
            self.network.run_until(now, &mut told);
            if before == 0 || !told.ended.is_empty() {
                changed = now;
            }
            for (at, token, lost) in told.ended.drain(..) {
                self.ended(at, token, lost);
            }
            // Nothing happens before this time.
            let next = self.senders.iter().filter(|sender| !self.is_done(sender));
            let next = next.map(|sender| sender.due).min();
            let next = next.into_iter().chain(self.network.next_event()).min();
            match next {
                Some(next) if self.answers.is_empty() => now = now.max(next.saturating_sub(STEP)),
                None if self.answers.is_empty() && self.under_way == 0 => break,
                _ => {}
            }
        }
        Ok(())
    }

    fn is_done(&self, sender: &Sender) -> bool {
        matches!(self.traffic.load, Load::Count(count) if sender.sent >= count)
    }

    /// Sends the messages that are due before a time, as long as there is room.
    fn send(&mut self, index: usize, before: Ps) -> anyhow::Result<()> {
        let traffic = self.traffic;
        loop {
            let sender = &self.senders[index];
            let Sender { node, at: src, sent, due } = *sender;
            if due >= before || self.is_done(sender) {
                return Ok(());
            }
            let tni = |n: u64| TniId::ALL[(n % u64::from(traffic.tnis)) as usize];
            if self.times[node.index()].open >= traffic.window {
                return Ok(());
            }
            if self.network.room(node, tni(sent)) == 0 && traffic.rails == Rails::Single {
                return Ok(());
            }
            let target = traffic.target(node, sent);
            if let Some(dst) = target.and_then(|target| traffic.shape.coords(target)) {
                let parts = paths(traffic.rails, src, dst).count() as u64;
                let tni = |part: u64| tni(sent * parts + part);
                let on = |wanted: TniId| (0..parts).filter(|part| tni(*part) == wanted).count();
                let room = |tni| self.network.room(node, tni) as usize >= on(tni);
                if !(0..parts).map(tni).all(room) {
                    return Ok(());
                }
                // Without a rate, a message is due as soon as there is room for it.
                let since = match traffic.load {
                    Load::Count(_) => self.network.now(),
                    Load::Rate { .. } => due,
                };
                let open = Open { since, parts: parts as u8, lost: false, answer: false, src, dst };
                let place = self.keep(open);
                self.under_way += 1;
                let times = &mut self.times[node.index()];
                times.first.get_or_insert(since);
                times.open += 1;
                for (part, path) in (0..).zip(paths(traffic.rails, src, dst)) {
                    let size = traffic.size / parts + u64::from(part < traffic.size % parts);
                    let (tlps, last) = tlps(size);
                    let token = self.token(place);
                    self.network.inject(&Message {
                        src,
                        src_tni: tni(part),
                        dst,
                        dst_tni: tni(part),
                        path,
                        way: Way::Shortest,
                        class: Class::Request,
                        tlps,
                        full: tlp_size(MTU as u32),
                        last,
                        gap: traffic.gap,
                        bus: 0,
                        ready_at: since,
                        token,
                    })?;
                }
            }
            self.senders[index].sent += 1;
            self.senders[index].due += self.interval(index);
        }
    }

    /// Stores a message or answer that is on its way, and returns its place.
    fn keep(&mut self, open: Open) -> usize {
        if let Some(token) = self.free.pop() {
            self.open[token] = open;
            return token;
        }
        self.open.push(open);
        self.open.len() - 1
    }

    /// Returns a token for a part of the message in this place. A serial number distinguishes it
    /// from recent tokens of the same place, because frames of a lost message may stay in the
    /// network for a while.
    const fn token(&mut self, place: usize) -> u64 {
        self.serial = self.serial.wrapping_add(1);
        (self.serial as u64) << 32 | place as u64
    }

    /// Records that a part of a message or an answer has arrived or was lost.
    fn ended(&mut self, at: Ps, token: u64, lost: bool) {
        let place = token as u32 as usize;
        let open = &mut self.open[place];
        open.parts -= 1;
        open.lost |= lost;
        let Open { since, parts, lost, answer, src, dst } = *open;
        if parts > 0 {
            return;
        }
        self.free.push(place);
        if answer == self.traffic.answers {
            // An answer's target is the sender.
            let sender = if answer { dst } else { src };
            if let Some(node) = self.traffic.shape.node_id(sender) {
                self.times[node.index()].open -= 1;
            }
        }
        if answer {
            return;
        }
        self.under_way -= 1;
        self.last = self.last.max(at);
        let counts = self.from <= at && at < self.until;
        if lost {
            self.lost += u64::from(counts);
            return;
        }
        if counts {
            self.delivered += 1;
            if let Some(node) = self.traffic.shape.node_id(dst) {
                let times = &mut self.times[node.index()];
                times.received += 1;
                times.last = times.last.max(at);
            }
            // The histogram grows as needed.
            let _ = self.latency.record(at - since);
        }
        if self.traffic.answers {
            let answer =
                Open { since: at, parts: 1, lost: false, answer: true, src: dst, dst: src };
            let place = self.keep(answer);
            let tni = TniId::ALL[place % usize::from(self.traffic.tnis)];
            let token = self.token(place);
            self.answers.push(Message {
                src: dst,
                src_tni: tni,
                dst: src,
                dst_tni: tni,
                path: Path::new(src.a, src.b, src.c),
                way: Way::Shortest,
                class: Class::Response,
                tlps: 1,
                full: self.traffic.answer_bytes,
                last: self.traffic.answer_bytes,
                gap: 0,
                bus: 0,
                ready_at: at + ANSWER,
                token,
            });
        }
    }

    fn outcome(&mut self) -> Outcome {
        let time = match self.traffic.load {
            Load::Count(_) => self.last,
            Load::Rate { time, .. } => time,
        };
        let us = |time: Ps| time as f64 / 1e6;
        // A byte per picosecond is 1000 GB/s.
        let rate = |bytes: u64, time: Ps| bytes as f64 * 1000.0 / time.max(1) as f64;
        let senders = self.senders.len() as u32;
        let payload = self.delivered * self.traffic.size;
        let nodes = self.times.iter().filter_map(|times| {
            let took = times.last.checked_sub(times.first?).filter(|took| *took > 0)?;
            Some(rate(times.received * self.traffic.size, took))
        });
        let counted = matches!(self.traffic.load, Load::Count(_));
        let totals = self.network.totals();
        Outcome {
            senders,
            delivered: self.delivered,
            lost: self.lost,
            time_us: us(time),
            gbytes_per_s: rate(payload, time) / f64::from(senders.max(1)),
            of_a_node: Spread::of(nodes).filter(|_| counted),
            mean_us: if self.delivered > 0 { self.latency.mean() / 1e6 } else { 0.0 },
            p50_us: us(self.latency.value_at_quantile(0.5)),
            p99_us: us(self.latency.value_at_quantile(0.99)),
            max_us: us(self.latency.max()),
            hops: totals.hops,
            busiest_gbytes_per_s: rate(totals.busiest_bytes, self.network.now()),
            lcrc_errors: totals.lcrc_errors,
            ack_timeouts: totals.ack_timeouts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(pattern: &Pattern, shape: &Shape, n: u64) -> Vec<u32> {
        let nodes = (0..shape.nodes()).map(NodeId);
        nodes
            .filter_map(|node| pattern.target(shape, shape.nodes(), 3, node, n))
            .map(|target| target.0)
            .collect()
    }

    #[test]
    fn permutations_give_each_node_one_other() {
        for shape in ["1x1x1x1x1x1", "unit", "half-rack", "5x7x3x2x3x2"] {
            let shape: Shape = shape.parse().unwrap();
            let mut seen = Vec::new();
            for pattern in [Pattern::Permutation, Pattern::Permutations, Pattern::Transpose] {
                for n in 0..3 {
                    let all = targets(&pattern, &shape, n);
                    let mut sorted = all.clone();
                    sorted.sort_unstable();
                    assert_eq!(sorted, (0..shape.nodes()).collect::<Vec<_>>(), "{pattern:?}");
                    seen.push(all);
                }
            }
            assert_eq!(seen[0], seen[1]);
            assert!(shape.nodes() == 1 || seen[3] != seen[4]);
        }
    }

    #[test]
    fn other_patterns_send_to_others() {
        let shape: Shape = "half-rack".parse().unwrap();
        let hot = Pattern::Hotspot(NodeId(7), 50);
        for pattern in [Pattern::Uniform, Pattern::Neighbour, hot] {
            for n in 0..20 {
                for node in (0..shape.nodes()).map(NodeId) {
                    let target = pattern.target(&shape, shape.nodes(), 3, node, n);
                    assert_ne!(target, Some(node), "{pattern:?}");
                }
            }
        }
        let all = targets(&Pattern::Hotspot(NodeId(7), 50), &shape, 0);
        let hits = all.iter().filter(|target| **target == 7).count();
        assert!((70..130).contains(&hits), "{hits} of 192");
        assert!(targets(&Pattern::Uniform, &"1x1x1x1x1x1".parse().unwrap(), 0).is_empty());
    }

    /// IEEE Micro 2012: four parts, two or one.
    #[test]
    fn message_has_parts_by_a_b_and_c() {
        let from = Coords::new(0, 0, 0, 0, 0, 0);
        for (to, parts) in [([0, 0, 0], 1), ([1, 0, 0], 2), ([1, 2, 0], 2), ([1, 1, 1], 4)] {
            let [a, b, c] = to;
            let to = Coords::new(1, 2, 3, a, b, c);
            let all: Vec<_> = paths(Rails::Minimal, from, to).collect();
            assert_eq!(all.len(), parts);
            assert!((1..parts).all(|i| !all[..i].contains(&all[i])), "{all:?}");
            assert_eq!(paths(Rails::Single, from, to).collect::<Vec<_>>(), [Path::new(a, b, c)]);
        }
    }

    /// With dimension-order routes on a ring of even length, the nearer half and the opposite node
    /// are reached towards higher coordinates.
    #[test]
    fn tori_bound_matches_arithmetic() {
        let links = Parameters::of(tofu_abi::Generation::K);
        for lengths in [[4, 1, 1], [8, 1, 1], [16, 1, 1], [8, 8, 1], [4, 4, 4], [8, 4, 2]] {
            let [x, y, z] = lengths;
            let shape = Shape::new([x, y, z, 1, 1, 1]).unwrap();
            let traffic = Traffic {
                shape,
                links: *links,
                options: Options::default(),
                down: Vec::new(),
                errors: Vec::new(),
                seed: 1,
                pattern: Pattern::Permutations,
                size: MTU,
                load: Load::Count(1),
                arrivals: Arrivals::default(),
                rails: Rails::Single,
                tnis: 4,
                answers: false,
                answer_bytes: ANSWER_BYTES,
                senders: Vec::new(),
                gap: 0,
                window: u64::MAX,
            };
            let half = f64::from(lengths.into_iter().max().unwrap() / 2);
            let hops = half * (half + 1.0) / 2.0 / (2.0 * half);
            let link = f64::from(links.link_kbytes()) * 1e3 * 1920.0 / 2016.0;
            let ours = traffic.limits().unwrap().rate;
            assert!((ours * hops / link - 1.0).abs() < 1e-9, "{lengths:?}: {ours}");
            // Without messages to themselves, nodes load the links equally with fewer messages.
            let others =
                Traffic { pattern: Pattern::Uniform, ..traffic.clone() }.limits().unwrap().rate;
            let nodes = f64::from(shape.nodes());
            assert!((others * nodes / (nodes - 1.0) / ours - 1.0).abs() < 1e-9, "{lengths:?}");
            let one_tni = Traffic { tnis: 1, ..traffic.clone() }.limits().unwrap().rate;
            assert!((one_tni - ours.min(link)).abs() < 1.0, "{lengths:?}");
            assert_eq!(
                Traffic { pattern: Pattern::Transpose, ..traffic }
                    .limits()
                    .map(|limits| limits.rate),
                None
            );
        }
    }

    /// In a Poisson process, the times between messages have a standard deviation equal to their
    /// mean. Each time is as far from 0 as the logarithm says.
    #[test]
    fn arrivals_have_their_kinds_distribution() {
        for (arrivals, spread) in [(Arrivals::Even, 1.0 / 3.0), (Arrivals::Poisson, 1.0)] {
            let all: Vec<_> =
                (1..100_000).map(|n| arrivals.interval(1_000_000, mix(n)) as f64 / 1e6).collect();
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            let variance = all.iter().map(|at| (at - mean).powi(2)).sum::<f64>() / all.len() as f64;
            assert!((mean - 1.0).abs() < 0.01, "{arrivals:?}: {mean}");
            assert!((variance / spread - 1.0).abs() < 0.03, "{arrivals:?}: {variance}");
        }
        for random in [0, 1, 2, 3, 1 << 33, 1 << 63, (1 << 63) + 1, u64::MAX - 1, u64::MAX] {
            let ours = exponential(random, 1 << 40) as f64;
            let exact = -((random | 1) as f64 / 2f64.powi(64)).ln() * 2f64.powi(40);
            assert!((ours - exact).abs() <= 1e-6 * exact + 1024.0, "{random}: {ours} {exact}");
        }
    }

    #[test]
    fn messages_have_as_many_tlps_as_they_need() {
        assert_eq!(tlps(0), (1, 96));
        assert_eq!(tlps(8), (1, 96));
        assert_eq!(tlps(1920), (1, 1984));
        assert_eq!(tlps(1921), (2, 96));
    }
}
