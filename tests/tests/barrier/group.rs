//! Groups of nodes with a barrier channel each.

use tofu_abi::barrier::{BgAddress, Profile};
use tofu_abi::reduce::{self, Input, Op, Value};
use tofu_abi::regs::{BchReg, BgsReg, Register};
use tofu_abi::{BchId, BgId, Coords, TniId};
use tofu_driver::{Channel, ChannelConfig, Gate, Outcome};
use tofu_inproc::InProcess;
use tofu_tests::{Cluster, PATIENCE_NS};

/// Channel of all groups, where it does not matter.
pub(crate) const BCH: u8 = 3;
pub(crate) const BCH_ID: BchId = BchId::ALL[BCH as usize];

/// The resources for barriers.
pub(crate) fn profile() -> Profile {
    tofu_tests::description().barrier
}

/// Interface of all groups, where it does not matter: one with barriers.
pub(crate) fn tni() -> u8 {
    2 % profile().tnis
}

pub(crate) fn tni_id() -> TniId {
    TniId::ALL[usize::from(tni())]
}

/// A register of a gate.
pub(crate) fn gate_register(bg: u8, reg: BgsReg) -> Register {
    Register::Bgs { tni: tni_id(), bg: BgId::new(bg).unwrap(), reg }
}

/// A register of the channel.
pub(crate) fn channel_register(reg: BchReg) -> Register {
    Register::Bch { tni: tni_id(), bch: BCH_ID, reg }
}

/// A gate without links.
pub(crate) fn gate(tni: u8, bg: u8) -> Gate {
    Gate::new(TniId::new(tni).unwrap(), BgId::new(bg).unwrap())
}

/// The address of a gate.
pub(crate) fn gate_at(node: Coords, tni: u8, bg: u8) -> BgAddress {
    BgAddress::new(node, TniId::new(tni).unwrap(), BgId::new(bg).unwrap())
}

/// The other end of a local link.
pub(crate) fn bg(number: u8) -> Option<BgId> {
    Some(BgId::new(number).unwrap())
}

/// The settings of a channel of group 0.
pub(crate) fn channel_config(tni: u8, bch: u8) -> ChannelConfig {
    ChannelConfig::new(TniId::new(tni).unwrap(), BchId::new(bch).unwrap())
}

/// Relay gates of every generation.
pub(crate) const RELAYS: [u8; 4] = [16, 17, 18, 19];

/// A way to connect gates: the gates of one member, by its place among the addresses of all
/// members.
pub(crate) type Algorithm = fn(&[BgAddress], usize) -> Vec<Gate>;

/// A gate of another member.
fn gate_of(members: &[BgAddress], rank: usize, bg: u8) -> Option<BgAddress> {
    Some(members[rank].with_bg(bg))
}

/// Each member exchanges with a partner in each of log2 n steps; for powers of two.
pub(crate) fn doubling(members: &[BgAddress], rank: usize) -> Vec<Gate> {
    doubling_with(members, rank, |_, step| RELAYS[0] + step as u8 - 1)
}

/// The same; `relay` returns the relay gate of a member for each step except the first.
pub(crate) fn doubling_with(
    members: &[BgAddress],
    rank: usize,
    relay: impl Fn(usize, usize) -> u8,
) -> Vec<Gate> {
    let steps = members.len().ilog2() as usize;
    let count = steps.max(1);
    // A round begins and ends with the start/end gate, which has the first step's signals.
    let number = |rank: usize, step: usize| match step % count {
        0 => members[rank].bg(),
        step => relay(rank, step),
    };
    let far = |rank: usize, step| gate_of(members, rank, number(rank, step));
    (0..count)
        .map(|step| {
            let before = step + count - 1;
            let mut gate = gate(members[rank].tni(), number(rank, step));
            gate.src_local = bg(number(rank, before));
            gate.dst_local = bg(number(rank, step + 1));
            if steps > 0 {
                gate.src_remote = far(rank ^ 1 << (before % count), before);
                gate.dst_remote = far(rank ^ 1 << step, step + 1);
            }
            gate
        })
        .collect()
}

/// Reduces along a binary tree to rank 0 and sends the result back along it.
pub(crate) fn tree(members: &[BgAddress], rank: usize) -> Vec<Gate> {
    let tni = members[rank].tni();
    let start = members[rank].bg();
    let child = |of: usize, n: usize| Some(2 * of + n).filter(|c| *c < members.len());
    let children = [child(rank, 1), child(rank, 2)];
    // The signal up waits for the second child if there is one, else for the first. So does the
    // last signal down.
    let up = |rank: usize| match (child(rank, 1), child(rank, 2)) {
        (_, Some(_)) => RELAYS[1],
        (Some(_), None) => RELAYS[0],
        (None, None) => members[rank].bg(),
    };
    let down = |rank: usize| match child(rank, 1) {
        Some(_) => RELAYS[2],
        None => members[rank].bg(),
    };
    let mut gates: Vec<Gate> = Vec::new();
    let mut chain = vec![start];
    for (n, child) in children.iter().enumerate().filter_map(|(n, c)| Some((n, (*c)?))) {
        let mut gate = gate(tni, RELAYS[n]);
        gate.src_remote = gate_of(members, child, up(child));
        gates.push(gate);
        chain.push(RELAYS[n]);
    }
    for (n, child) in children.iter().enumerate().filter_map(|(n, c)| Some((n, (*c)?))) {
        let mut gate = gate(tni, RELAYS[2 + n]);
        gate.dst_remote = gate_of(members, child, down(child));
        gates.push(gate);
        chain.push(RELAYS[2 + n]);
    }
    chain.push(start);
    gates.push(gate(tni, start));
    let parent = (rank > 0).then(|| (rank - 1) / 2);
    let find = |gates: &mut Vec<Gate>, bg: u8| gates.iter().position(|g| g.bg.get() == bg).unwrap();
    for link in chain.windows(2) {
        // The chain is cut where the value goes to the parent and comes back.
        if parent.is_some() && link[0] == up(rank) && link[1] == down(rank) {
            continue;
        }
        let (from, to) = (find(&mut gates, link[0]), find(&mut gates, link[1]));
        gates[from].dst_local = bg(link[1]);
        gates[to].src_local = bg(link[0]);
    }
    if let Some(parent) = parent {
        let (leaves, comes) = (find(&mut gates, up(rank)), find(&mut gates, down(rank)));
        gates[leaves].dst_remote = gate_of(members, parent, RELAYS[(rank - 1) % 2]);
        gates[comes].src_remote = gate_of(members, parent, RELAYS[2 + (rank - 1) % 2]);
    }
    gates
}

/// Reduces from rank to rank, and sends the result round once more.
pub(crate) fn ring(members: &[BgAddress], rank: usize) -> Vec<Gate> {
    let (tni, start, n) = (members[rank].tni(), members[rank].bg(), members.len());
    let mut end = gate(tni, start);
    let mut first = gate(tni, RELAYS[0]);
    let mut second = gate(tni, RELAYS[1]);
    (end.dst_local, first.src_local) = (bg(RELAYS[0]), bg(start));
    (second.dst_local, end.src_local) = (bg(start), bg(RELAYS[1]));
    if rank > 0 {
        first.src_remote = gate_of(members, rank - 1, RELAYS[0]);
    }
    if rank + 1 < n {
        first.dst_remote = gate_of(members, rank + 1, RELAYS[0]);
        second.src_remote = gate_of(members, (rank + n - 1) % n, RELAYS[1]);
    } else {
        (first.dst_local, second.src_local) = (bg(RELAYS[1]), bg(RELAYS[0]));
    }
    // The second round begins at the last rank and ends at the one before.
    if n > 1 && rank + 2 != n {
        second.dst_remote = gate_of(members, (rank + 1) % n, RELAYS[1]);
    }
    vec![end, first, second]
}

/// The same gates with other numbers.
pub(crate) fn renumber(gates: &mut [Gate], number: impl Fn(u8) -> u8) {
    let local = |bg: BgId| BgId::new(number(bg.get())).unwrap();
    for gate in gates {
        gate.bg = local(gate.bg);
        for link in [&mut gate.src_local, &mut gate.dst_local].into_iter().flatten() {
            *link = local(*link);
        }
        for far in [&mut gate.src_remote, &mut gate.dst_remote].into_iter().flatten() {
            *far = far.with_bg(number(far.bg()));
        }
    }
}

/// A group of nodes.
pub(crate) struct Group {
    pub(crate) members: Vec<BgAddress>,
    pub(crate) channels: Vec<Channel<InProcess>>,
}

/// Addresses of the channels of nodes 0 to `n` - 1.
pub(crate) fn members(cluster: &Cluster, n: u32, tni: u8, bch: u8) -> Vec<BgAddress> {
    (0..n).map(|rank| gate_at(cluster.device(rank).coords(), tni, bch)).collect()
}

pub(crate) fn config(gpid: u64, bseq: u32) -> ChannelConfig {
    ChannelConfig { gpid, bseq, ..channel_config(tni(), BCH) }
}

impl Group {
    /// The first `n` nodes of a cluster.
    pub(crate) fn new(cluster: &Cluster, n: u32, algorithm: Algorithm) -> Self {
        Self::with(cluster, n, algorithm, &config(0x12_3456, 0))
    }

    pub(crate) fn with(
        cluster: &Cluster,
        n: u32,
        algorithm: Algorithm,
        config: &ChannelConfig,
    ) -> Self {
        let members = members(cluster, n, config.tni.get(), config.bch.get());
        let channels = (0..n)
            .map(|rank| {
                let gates = algorithm(&members, rank as usize);
                Channel::open(cluster.device(rank), config, &gates).unwrap()
            })
            .collect();
        Self { members, channels }
    }

    /// Starts a round at all members, one after another, each with its own input.
    pub(crate) fn start(&mut self, op: Op, inputs: &[Input], count: u8) {
        for (channel, input) in self.channels.iter_mut().zip(inputs) {
            channel.start(op, input, count).unwrap();
        }
    }

    /// Waits for the outcomes at all members.
    pub(crate) fn outcomes(&mut self) -> Vec<Outcome> {
        self.channels.iter_mut().map(|channel| channel.wait(PATIENCE_NS).unwrap()).collect()
    }

    /// A round at all members; returns the result, which must be the same everywhere.
    pub(crate) fn reduce(&mut self, op: Op, inputs: &[Input], count: u8) -> Value {
        self.start(op, inputs, count);
        let outcomes = self.outcomes();
        for outcome in &outcomes {
            assert_eq!(outcome, &outcomes[0]);
        }
        assert_eq!(outcomes[0].op, Some(op));
        outcomes[0].value
    }

    pub(crate) fn barrier(&mut self) {
        let inputs = vec![Input::default(); self.channels.len()];
        self.reduce(Op::Barrier, &inputs, 0);
    }
}

/// The expected result of a reduction.
pub(crate) fn expected(op: Op, inputs: &[Input]) -> Value {
    let mut value = reduce::widen(op, &inputs[0]);
    for input in &inputs[1..] {
        reduce::combine(op, &mut value, &reduce::widen(op, input));
    }
    value
}

/// An input for each of `n` members, with as many integers or doubles as the operation takes.
pub(crate) fn inputs(op: Op, n: usize, seed: u64) -> Vec<Input> {
    (0..n as u64)
        .map(|rank| {
            let bytes = tofu_tests::pattern(seed ^ rank << 32, 64);
            let words: Vec<u64> = bytes
                .chunks_exact(8)
                .map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap()))
                .collect();
            let words = &words[..profile().max_elements(op).into()];
            match op {
                Op::FpSum => {
                    let double = |w: &u64| ((w >> 12) as f64 - 2f64.powi(51)).to_bits();
                    let doubles: Vec<u64> = words.iter().map(double).collect();
                    reduce::doubles(&doubles).unwrap()
                }
                _ => reduce::integers(words).unwrap(),
            }
        })
        .collect()
}
