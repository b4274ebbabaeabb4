//! Plans, run by a simulator of gates that knows only the links.

use proptest::prelude::*;
use tofu_abi::reduce::{self, Op, Value};
use tofu_collective::plan::{
    Algorithm, Costs, GateOf, GroupShape, Links, NoChoice, Plan, choose, disseminate, in_series,
};

/// A gate's buffer for one of two rounds.
#[derive(Clone, Default)]
struct Buffer {
    local: Option<Value>,
    remote: Option<Value>,
}

#[derive(Clone)]
struct Gate {
    links: Links,
    round: usize,
    buffers: [Buffer; 2],
}

/// A signal on its way: its target, the input there, and its round.
struct Signal {
    to: GateOf,
    remote: bool,
    round: usize,
    value: Value,
}

struct Machine {
    op: Op,
    members: Vec<Vec<Gate>>,
    signals: Vec<Signal>,
    /// By member: inputs of its rounds.
    inputs: Vec<Vec<Value>>,
    started: Vec<usize>,
    results: Vec<Vec<Value>>,
}

impl Machine {
    fn new(plan: &Plan, op: Op, inputs: Vec<Vec<Value>>) -> Self {
        let gate = |links: &Links| Gate { links: *links, round: 0, buffers: Default::default() };
        let members: Vec<Vec<Gate>> = (0..plan.members())
            .map(|member| plan.gates(member).iter().map(gate).collect())
            .collect();
        let count = members.len();
        Self {
            op,
            members,
            signals: Vec::new(),
            inputs,
            started: vec![0; count],
            results: vec![Vec::new(); count],
        }
    }

    fn send(&mut self, from: GateOf, round: usize, value: Value) {
        let links = self.members[from.member as usize][usize::from(from.gate)].links;
        let local = links.dst_local.map(|gate| (GateOf { gate, ..from }, false));
        let remote = links.dst_remote.map(|to| (to, true));
        for (to, remote) in local.into_iter().chain(remote) {
            self.signals.push(Signal { to, remote, round, value });
        }
    }

    /// Returns true if a member may start its next round.
    fn may_start(&self, member: usize) -> bool {
        let started = self.started[member];
        started == self.results[member].len() && started < self.inputs[member].len()
    }

    fn start(&mut self, member: usize) {
        let round = self.started[member];
        self.started[member] += 1;
        let value = self.inputs[member][round];
        self.send(GateOf { member: member as u32, gate: 0 }, round, value);
        self.fire(GateOf { member: member as u32, gate: 0 });
    }

    fn deliver(&mut self, signal: Signal) {
        let gate = &mut self.members[signal.to.member as usize][usize::from(signal.to.gate)];
        assert!(
            (gate.round..gate.round + 2).contains(&signal.round),
            "a signal of round {} comes to {:?} in round {}",
            signal.round,
            signal.to,
            gate.round
        );
        let buffer = &mut gate.buffers[signal.round % 2];
        let input = if signal.remote { &mut buffer.remote } else { &mut buffer.local };
        assert!(input.is_none(), "two signals for one input of {:?}", signal.to);
        *input = Some(signal.value);
        self.fire(signal.to);
    }

    /// Fires a gate if it has its inputs; an end gate must also have been started.
    fn fire(&mut self, at: GateOf) {
        let member = at.member as usize;
        let gate = &mut self.members[member][usize::from(at.gate)];
        let buffer = &gate.buffers[gate.round % 2];
        let complete = buffer.local.is_some() == gate.links.src_local.is_some()
            && buffer.remote.is_some() == gate.links.src_remote.is_some();
        if !complete || at.gate == 0 && self.started[member] == self.results[member].len() {
            return;
        }
        let buffer = std::mem::take(&mut gate.buffers[gate.round % 2]);
        let round = gate.round;
        gate.round += 1;
        let value = match (buffer.local, buffer.remote) {
            (Some(mut value), Some(other)) => {
                reduce::combine(self.op, &mut value, &other);
                value
            }
            (Some(value), None) | (None, Some(value)) => value,
            (None, None) => panic!("{at:?} has no inputs"),
        };
        if at.gate == 0 {
            self.results[member].push(value);
        } else {
            self.send(at, round, value);
        }
    }

    /// Runs until nothing happens any more; `choose(n)` picks one of `n` possible next events.
    fn run(&mut self, mut choose: impl FnMut(usize) -> usize) {
        loop {
            let ready: Vec<usize> =
                (0..self.members.len()).filter(|m| self.may_start(*m)).collect();
            let count = ready.len() + self.signals.len();
            if count == 0 {
                return;
            }
            match choose(count) {
                i if i < ready.len() => self.start(ready[i]),
                i => {
                    let signal = self.signals.swap_remove(i - ready.len());
                    self.deliver(signal);
                }
            }
        }
    }
}

/// Every link has another end, and local links stay within the member.
fn check_links(plan: &Plan) {
    for member in 0..plan.members() {
        let gates = plan.gates(member);
        for (gate, links) in gates.iter().enumerate() {
            let here = GateOf { member: member as u32, gate: gate as u8 };
            assert!(links.src_local.is_some() || links.src_remote.is_some(), "{here:?}: no input");
            assert!(links.dst_local.is_some() || links.dst_remote.is_some(), "{here:?}: no output");
            let of = |at: GateOf| plan.gates(at.member as usize)[usize::from(at.gate)];
            let local = |gate: u8| GateOf { gate, ..here };
            if let Some(to) = links.dst_local {
                assert_eq!(of(local(to)).src_local, Some(here.gate));
            }
            if let Some(from) = links.src_local {
                assert_eq!(of(local(from)).dst_local, Some(here.gate));
            }
            if let Some(to) = links.dst_remote {
                assert_eq!(of(to).src_remote, Some(here));
            }
            if let Some(from) = links.src_remote {
                assert_eq!(of(from).dst_remote, Some(here));
            }
        }
    }
}

const ALGORITHMS: [Algorithm; 7] = [
    Algorithm::RecursiveDoubling,
    Algorithm::Tree,
    Algorithm::DoubleRing,
    Algorithm::RecursiveDoubling3d,
    Algorithm::DoubleRing3d,
    Algorithm::Parts(6),
    Algorithm::Parts(8),
];

/// Boxes of `members` members.
fn shapes(members: u32) -> Vec<GroupShape> {
    let mut shapes = Vec::new();
    for x in (1..=members).filter(|x| members.is_multiple_of(*x)) {
        for y in (1..=members / x).filter(|y| (members / x).is_multiple_of(*y)) {
            shapes.push(GroupShape { axes: [x, y, members / x / y] });
        }
    }
    shapes
}

/// Different numbers for each member and round.
fn input(op: Op, member: usize, round: usize) -> Value {
    let mut random = (member as u64 + 1) << 32 | (round as u64 + 1);
    let mut next = || {
        // splitmix64
        random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (random ^ random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
    };
    let data = match op {
        Op::FpSum => {
            let mut double = || (next() as i64 as f64 * 2f64.powi(next() as i32 % 60)).to_bits();
            reduce::doubles(&[double(), double(), double()])
        }
        _ => reduce::integers(&std::array::from_fn::<u64, 8, _>(|_| next())),
    };
    reduce::widen(op, &data.expect("not too much"))
}

fn expected(op: Op, members: usize, round: usize) -> Value {
    let mut value = input(op, 0, round);
    for member in 1..members {
        reduce::combine(op, &mut value, &input(op, member, round));
    }
    value
}

/// Runs some rounds, and compares every member's results.
fn check(
    algorithm: Algorithm,
    shape: GroupShape,
    op: Op,
    rounds: usize,
    choose: impl FnMut(usize) -> usize,
) {
    let plan = algorithm.plan(shape).unwrap();
    check_plan(&plan, &format!("{algorithm}, {shape:?}"), op, rounds, choose);
}

fn check_plan(plan: &Plan, name: &str, op: Op, rounds: usize, choose: impl FnMut(usize) -> usize) {
    let members = plan.members();
    let inputs = (0..members)
        .map(|member| (0..rounds).map(|round| input(op, member, round)).collect())
        .collect();
    let mut machine = Machine::new(plan, op, inputs);
    machine.run(choose);
    let results: Vec<Value> = (0..rounds).map(|round| expected(op, members, round)).collect();
    for (member, got) in machine.results.iter().enumerate() {
        assert_eq!(got.len(), rounds, "{name}: member {member} hangs");
        assert_eq!(*got, results, "{name}, {op:?}: member {member}");
    }
}

#[test]
fn operations_work_for_1_to_48_members() {
    for members in 1..=48 {
        for algorithm in ALGORITHMS {
            for op in Op::ALL {
                check(algorithm, GroupShape::line(members), op, 3, |_| 0);
            }
        }
    }
}

#[test]
fn boxes_of_1_to_48_members() {
    for members in 1..=48 {
        for shape in shapes(members) {
            for algorithm in ALGORITHMS {
                check_links(&algorithm.plan(shape).unwrap());
                // The latest event first, so that some members get far ahead of others.
                check(algorithm, shape, Op::Sum, 4, |n| n - 1);
            }
        }
    }
}

#[test]
fn no_member_ends_before_all_have_started() {
    for members in [2, 3, 12, 13, 48] {
        for algorithm in ALGORITHMS {
            let plan = algorithm.plan(GroupShape::line(members)).unwrap();
            let count = members as usize;
            for late in 0..count {
                let mut inputs = vec![vec![[0; 15]]; count];
                inputs[late].clear();
                let mut machine = Machine::new(&plan, Op::Barrier, inputs);
                machine.run(|_| 0);
                assert!(machine.results.iter().all(Vec::is_empty), "{algorithm}: without {late}");
            }
        }
    }
}

#[test]
fn dissemination_is_barrier_and_idempotent() {
    for members in 1..=48 {
        for parts in [1, 2, 3, 5, 6, 7, 48] {
            let plan = disseminate(members, parts).unwrap();
            check_links(&plan);
            for op in [Op::Barrier, Op::And, Op::Or, Op::Max] {
                let name = format!("dissemination, {members} in {parts} parts");
                check_plan(&plan, &name, op, 3, |n| n - 1);
            }
        }
    }
    for late in 0..13 {
        let mut inputs = vec![vec![[0; 15]]; 13];
        inputs[late].clear();
        let mut machine = Machine::new(&disseminate(13, 6).unwrap(), Op::Barrier, inputs);
        machine.run(|_| 0);
        assert!(machine.results.iter().all(Vec::is_empty), "without {late}");
    }
    assert!(disseminate(0, 1).is_err());
}

#[test]
fn value_passes_relays_in_series() {
    for relays in 0..5 {
        let plan = in_series(relays);
        check_links(&plan);
        check_plan(&plan, "in series", Op::Sum, 3, |_| 0);
        assert_eq!(
            (plan.most_gates(), plan.stages()),
            (1 + usize::from(relays), 1 + u32::from(relays))
        );
    }
}

/// Start and end points, TNIs, gates of the TNI with the most, and stages, as in Table VI of the
/// paper on TofuD.
#[test]
fn test_programs_of_the_tofud_paper() {
    let of_a_tni = |plan: &Plan, tnis: u32| {
        let members = plan.members();
        let end = |part: u32| part as usize * members / tnis as usize;
        let gates = |part| (end(part)..end(part + 1)).map(|m| plan.gates(m).len()).sum();
        (0..tnis).map(gates).max().unwrap_or(0usize)
    };
    let parts = |members, tnis| Algorithm::Parts(tnis).plan(GroupShape::line(members)).unwrap();
    for (plan, tnis, gates, stages) in [
        (in_series(1), 1, 2, 2),
        (parts(4, 4), 4, 2, 2),
        (parts(8, 6), 6, 5, 4),
        (parts(16, 6), 6, 9, 6),
        (disseminate(48, 6).unwrap(), 6, 24, 9),
    ] {
        assert_eq!((of_a_tni(&plan, tnis), plan.stages()), (gates, stages));
    }
}

#[test]
fn gates_are_as_few_as_the_papers_say() {
    for bits in 1..=10u32 {
        let plan = Algorithm::RecursiveDoubling.plan(GroupShape::line(1 << bits)).unwrap();
        assert_eq!(plan.most_gates(), bits as usize, "log2 n gates");
        assert_eq!(plan.stages(), bits);
    }
    for members in 1..=100 {
        let gates =
            |algorithm: Algorithm| algorithm.plan(GroupShape::line(members)).unwrap().most_gates();
        assert!(gates(Algorithm::Tree) <= 5, "one channel and five gates");
        assert!(gates(Algorithm::DoubleRing) <= 3, "two besides the channel's");
        assert!(gates(Algorithm::RecursiveDoubling) <= members.ilog2() as usize + 2);
    }
    assert_eq!(Algorithm::Tree.plan(GroupShape::line(48)).unwrap().most_gates(), 5);
    // The same exchanges in other directions.
    let shape = GroupShape { axes: [4, 2, 8] };
    let plan = Algorithm::RecursiveDoubling3d.plan(shape).unwrap();
    assert_eq!((plan.most_gates(), plan.stages()), (6, 6));
    // A ring's stages grow with its length, both directions at the same time.
    let stages = |n| Algorithm::DoubleRing.plan(GroupShape::line(n)).unwrap().stages();
    assert_eq!((stages(8), stages(9), stages(17), stages(33)), (7, 9, 17, 33));
}

#[test]
fn lone_member_has_one_gate() {
    for algorithm in ALGORITHMS {
        let plan = algorithm.plan(GroupShape::line(1)).unwrap();
        let own = Links { src_local: Some(0), dst_local: Some(0), ..Links::default() };
        assert_eq!(plan.gates(0), [own]);
        assert_eq!(plan.gates(1), []);
    }
}

#[test]
fn groups_that_do_not_exist() {
    for axes in [[0, 1, 1], [1 << 10, 1 << 10, 2], [1 << 16, 1 << 16, 1]] {
        for algorithm in ALGORITHMS {
            assert!(algorithm.plan(GroupShape { axes }).is_err(), "{axes:?}");
        }
        assert!(choose(GroupShape { axes }, 48, Costs::TOFUD, |_, _| 1).is_err());
    }
}

#[test]
fn quickest_algorithm_that_fits_is_chosen() {
    let far = |_, _| 1;
    let choice = choose(GroupShape::line(16), 33, Costs::TOFUD, far).unwrap();
    assert_eq!(choice.algorithm, Algorithm::RecursiveDoubling3d, "in one dimension the same");
    assert_eq!(choice.nanoseconds, 480 + 3 * 130 + 4 * 100);
    let choice = choose(GroupShape::line(1024), 6, Costs::TOFUD, far).unwrap();
    assert_eq!(choice.algorithm, Algorithm::Tree);
    // Neighbours on a line, far from all others: a ring's links are short.
    let line = |a: u32, b: u32| a.abs_diff(b) * 20;
    let choice = choose(GroupShape::line(5), 33, Costs::TOFUD, line).unwrap();
    assert!(
        choice.nanoseconds
            <= choose(GroupShape::line(5), 5, Costs::TOFUD, line).unwrap().nanoseconds
    );
    let error = choose(GroupShape::line(48), 2, Costs::TOFUD, far).unwrap_err();
    assert_eq!(error, NoChoice::Gates { needed: 3, free: 2 });
    assert_eq!(error.to_string(), "a member has 2 barrier gates left, and would need 3");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn signals_may_take_any_time(
        members in 1u32..=48,
        which in any::<prop::sample::Index>(),
        algorithm in prop::sample::select(ALGORITHMS.to_vec()),
        choices in prop::collection::vec(any::<prop::sample::Index>(), 200),
    ) {
        let shapes = shapes(members);
        let shape = shapes[which.index(shapes.len())];
        let mut choices = choices.iter().cycle();
        check(algorithm, shape, Op::FpSum, 5, |n| choices.next().unwrap().index(n));
    }
}
