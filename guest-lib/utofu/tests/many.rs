//! Random commands between several VCQs of several nodes, many of them in progress at the same
//! time, against a model of all memories.
//!
//! Concurrent commands do not overlap, because their order would not be defined. All others may:
//! the VCQs of a node have all registered the same memory, twice.

mod common;

use common::{Memory, armw, wait, word};
use proptest::prelude::*;
use tofu_abi::Coords;
use tofu_abi::topology::Shape;
use tofu_utofu::command::{Packets, Posting};
use tofu_utofu::flags::{
    DELAY_START, LOCAL_MRQ_NOTICE, REMOTE_MRQ_NOTICE, TCQ_NOTICE, VCQ_EXCLUSIVE,
};
use tofu_utofu::ids::Stadd;
use tofu_utofu::{Code, Command, Context, DeviceShare, Notice, NoticeKind, Vcq};
use tofu_utofu_local::{LocalMachine, LocalProvider};

const NODES: usize = 3;
/// Bytes of each node's memory.
const SIZE: usize = 6000;
/// Node, interface, component ID and flags of the VCQs. The second differs from the first only in
/// bit 3 of its extra value.
const VCQS: [(usize, u16, Option<u16>, u64); 8] = [
    (0, 0, None, 0),
    (0, 0, Some(0), 0),
    (0, 1, Some(5), 0),
    (1, 3, None, 0),
    (1, 3, Some(5), 0),
    (1, 2, None, VCQ_EXCLUSIVE),
    (2, 0, None, 0),
    (2, 5, Some(7), 0),
];
const RESERVED: u32 = 77;

#[derive(Clone, Copy, Debug)]
enum CommandKind {
    Put { len: usize, mtu: usize },
    Get { len: usize },
    Piggyback { len: usize, byte: u8 },
    Armw { op: u32, value: u64, wide: bool },
    Swap { new: u64, right: bool, wide: bool },
    Nowhere { len: usize },
}

#[derive(Clone, Copy, Debug)]
struct Op {
    from: usize,
    to: usize,
    /// Which registration of each side.
    reserved: [bool; 2],
    /// Offsets in the memories of both sides.
    at: [usize; 2],
    kind: CommandKind,
    remote_notice: bool,
    delay: bool,
}

fn kind() -> impl Strategy<Value = CommandKind> {
    prop_oneof![
        3 => (0..700usize, prop_oneof![Just(0), 8..200usize])
            .prop_map(|(len, mtu)| CommandKind::Put { len, mtu }),
        3 => (0..700usize).prop_map(|len| CommandKind::Get { len }),
        2 => (1..33usize, any::<u8>()).prop_map(|(len, byte)| CommandKind::Piggyback { len, byte }),
        2 => (1..6u32, any::<u64>(), any::<bool>())
            .prop_map(|(op, value, wide)| CommandKind::Armw { op, value, wide }),
        1 => (any::<u64>(), any::<bool>(), any::<bool>())
            .prop_map(|(new, right, wide)| CommandKind::Swap { new, right, wide }),
        1 => (0..700usize).prop_map(|len| CommandKind::Nowhere { len }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let vcq = 0..VCQS.len();
    let at = [0..SIZE - 700, 0..SIZE - 700];
    (vcq.clone(), vcq, any::<[bool; 2]>(), at, kind(), any::<bool>(), prop::bool::weighted(0.2))
        .prop_map(|(from, to, reserved, mut at, kind, remote_notice, delay)| {
            if matches!(kind, CommandKind::Armw { .. } | CommandKind::Swap { .. }) {
                at[1] &= !7;
            }
            Op { from, to, reserved, at, kind, remote_notice, delay }
        })
}

/// Bytes of a node's memory.
#[derive(Clone, Copy)]
struct Bytes {
    node: usize,
    start: usize,
    len: usize,
}

impl Bytes {
    fn overlap(self, other: Self) -> bool {
        self.node == other.node
            && self.start < other.start + other.len
            && other.start < self.start + self.len
    }
}

impl Op {
    /// The bytes that it reads, and those that it writes.
    fn footprint(&self) -> [Bytes; 2] {
        let bytes = |side: usize, len| {
            let node = VCQS[[self.from, self.to][side]].0;
            Bytes { node, start: self.at[side], len }
        };
        match self.kind {
            CommandKind::Put { len, .. } => [bytes(0, len), bytes(1, len)],
            CommandKind::Get { len } => [bytes(1, len), bytes(0, len)],
            CommandKind::Piggyback { len, .. } => [bytes(0, 0), bytes(1, len)],
            CommandKind::Armw { .. } | CommandKind::Swap { .. } => [bytes(0, 0), bytes(1, 8)],
            CommandKind::Nowhere { .. } => [bytes(0, 0), bytes(0, 0)],
        }
    }
}

/// Those that may be in progress together, in order.
fn compatible(ops: Vec<Op>) -> Vec<Op> {
    let mut taken: Vec<[Bytes; 2]> = Vec::new();
    let mut kept = Vec::new();
    for op in ops {
        let [reads, writes] = op.footprint();
        let clash =
            |[r, w]: &[Bytes; 2]| writes.overlap(*r) || writes.overlap(*w) || reads.overlap(*w);
        // A Put onto its own source has no defined result either.
        if !taken.iter().any(clash) && !reads.overlap(writes) {
            taken.push([reads, writes]);
            kept.push(op);
        }
    }
    kept
}

/// The compared parts of a notice.
type Told = (u8, u64, u8, u64, u64, u64, Code);

fn told(notice: &Notice) -> Told {
    let lcl = match notice.kind {
        NoticeKind::LclArmw | NoticeKind::RmtArmw => 0,
        _ => notice.lcl_stadd,
    };
    let n = notice;
    (n.kind as u8, n.vcq_id.0, n.edata, n.rmt_value, lcl, n.rmt_stadd, n.status())
}

impl CommandKind {
    /// The notices at the sender and at the target.
    fn notices(&self) -> (NoticeKind, NoticeKind) {
        match self {
            Self::Get { .. } => (NoticeKind::LclGet, NoticeKind::RmtGet),
            Self::Armw { .. } | Self::Swap { .. } => (NoticeKind::LclArmw, NoticeKind::RmtArmw),
            _ => (NoticeKind::LclPut, NoticeKind::RmtPut),
        }
    }
}

/// The value that an atomic command writes, and the command.
fn atomic(
    kind: &CommandKind,
    old: u64,
    to: &Posting,
    remote: u64,
) -> (u64, Result<Command, tofu_utofu::Error>) {
    match *kind {
        CommandKind::Armw { op, value, wide } => {
            let value = if wide { value } else { value & 0xffff_ffff };
            (armw(op, old, value), to.armw(op, value, if wide { 8 } else { 4 }, remote))
        }
        CommandKind::Swap { new, right, wide } => {
            let expected = if right { old } else { !old };
            let command = if wide {
                to.cswap8(expected, new, remote)
            } else {
                to.cswap4(expected as u32, new as u32, remote)
            };
            (if right { new } else { old }, command)
        }
        _ => unreachable!("not atomic"),
    }
}

struct World {
    _machine: LocalMachine,
    vcqs: Vec<Vcq<LocalProvider>>,
    memories: Vec<Memory>,
    model: Vec<Vec<u8>>,
    /// By VCQ: under a tag that the library chose, and under the reserved one.
    stadds: Vec<[Stadd; 2]>,
}

impl World {
    fn new(phases: [usize; NODES]) -> Self {
        let machine = LocalMachine::new(Shape::new([1, 1, 1, 2, 3, 1]).unwrap()).unwrap();
        let contexts: Vec<_> = (0..NODES as u8)
            .map(|b| {
                let node = machine.node(Coords::new(0, 0, 0, b & 1, b, 0)).unwrap();
                Context::new(node, DeviceShare::new(0, 1).unwrap())
            })
            .collect();
        let byte = |node: usize, i: usize| (i * (11 + node) + i / 256) as u8;
        let memories: Vec<_> = (0..NODES).map(|n| Memory::aligned(SIZE, phases[n] * 8)).collect();
        let model = (0..NODES)
            .map(|n| {
                memories[n].fill(|i| byte(n, i));
                (0..SIZE).map(|i| byte(n, i)).collect()
            })
            .collect();
        let vcqs: Vec<_> = VCQS
            .iter()
            .map(|&(node, tni, cmp, flags)| contexts[node].create_vcq(tni, cmp, flags).unwrap())
            .collect();
        let stadds = VCQS
            .iter()
            .zip(&vcqs)
            .map(|(&(node, ..), vcq)| {
                let memory = &memories[node];
                // SAFETY: the memory is never freed and only accessed by volatile accesses.
                let reserved =
                    unsafe { vcq.reg_mem(memory.addr(), SIZE, Some(RESERVED), 0).unwrap() };
                [memory.register(vcq, 0), reserved]
            })
            .collect();
        Self { _machine: machine, vcqs, memories, model, stadds }
    }

    /// Makes the command of an operation, applies it to the model, and returns the notices that are
    /// due at the sender and at the target.
    fn prepare(&mut self, op: &Op, edata: u8) -> (Command, Told, Option<Told>) {
        let place = |side: usize, vcq: usize| {
            self.stadds[vcq][usize::from(op.reserved[side])].0 + op.at[side] as u64
        };
        let (lcl, rmt) = (place(0, op.from), place(1, op.to));
        let (me, peer) = (self.vcqs[op.from].id().0, self.vcqs[op.to].id());
        let flags = TCQ_NOTICE
            | LOCAL_MRQ_NOTICE
            | if op.remote_notice { REMOTE_MRQ_NOTICE } else { 0 }
            | if op.delay { DELAY_START } else { 0 };
        let to = Posting::new(peer.0, edata.into(), flags).unwrap();
        let [reads, writes] = op.footprint();
        let (lcl_kind, rmt_kind) = op.kind.notices();
        let ok = Code::Success;
        // Old value, own end, other end, status.
        let mut due = (0, 0, rmt, ok);
        let command = match op.kind {
            CommandKind::Put { len, .. } | CommandKind::Get { len } => {
                let data = self.model[reads.node][reads.start..reads.start + len].to_vec();
                self.model[writes.node][writes.start..writes.start + len].copy_from_slice(&data);
                due = (0, lcl + len as u64, rmt + len as u64, ok);
                match op.kind {
                    CommandKind::Put { mtu, .. } => {
                        to.put(lcl, rmt, len, Packets::new(mtu, 0).unwrap())
                    }
                    _ => to.get(lcl, rmt, len, Packets::default()),
                }
            }
            CommandKind::Piggyback { len, byte } => {
                let data: Vec<u8> = (0..len).map(|i| byte.wrapping_add(i as u8)).collect();
                self.model[writes.node][writes.start..writes.start + len].copy_from_slice(&data);
                due = (0, len as u64, rmt + len as u64, ok);
                to.put_piggyback(&data, rmt)
            }
            CommandKind::Armw { wide, .. } | CommandKind::Swap { wide, .. } => {
                let len = if wide { 8 } else { 4 };
                let old = word(&self.model[writes.node], writes.start, len);
                due.0 = old;
                let (new, command) = atomic(&op.kind, old, &to, rmt);
                self.model[writes.node][writes.start..writes.start + len]
                    .copy_from_slice(&new.to_le_bytes()[..len]);
                command
            }
            CommandKind::Nowhere { len } => {
                let never = Stadd::new(8000, 5).0;
                due = (0, lcl, never, Code::MrqRmtStadd);
                to.put(lcl, never, len.max(1), Packets::default())
            }
        };
        let (value, own_end, other_end, status) = due;
        let own = (lcl_kind as u8, peer.0, edata, value, own_end, other_end, status);
        let theirs = (op.remote_notice && status == ok).then_some((
            rmt_kind as u8,
            me,
            edata,
            other_end,
            own_end,
            other_end,
            ok,
        ));
        (command.unwrap(), own, theirs)
    }

    /// Runs all operations concurrently.
    fn batch(&mut self, ops: &[Op]) -> Result<(), TestCaseError> {
        let mut completions = vec![Vec::new(); VCQS.len()];
        let mut notices = vec![Vec::new(); VCQS.len()];
        for (number, op) in ops.iter().enumerate() {
            let (command, own, theirs) = self.prepare(op, number as u8);
            self.vcqs[op.from].post(&command, number).unwrap();
            // All are sent, also those that their targets refuse.
            completions[op.from].push((number, true));
            notices[op.from].push(own);
            notices[op.to].extend(theirs);
        }
        // Starts what was delayed.
        for (vcq, completions) in self.vcqs.iter().zip(&mut completions) {
            vcq.post(&Command::nop(TCQ_NOTICE).unwrap(), 1000).unwrap();
            completions.push((1000, true));
        }
        // The last VCQ first: messages for others are kept for them in the meantime.
        for (i, vcq) in self.vcqs.iter().enumerate().rev() {
            for expected in &completions[i] {
                let done = wait("completion", || vcq.poll_tcq());
                prop_assert_eq!((done.cbdata, done.status() == Code::Success), *expected);
            }
            prop_assert!(vcq.poll_tcq().is_none());
        }
        for (i, vcq) in self.vcqs.iter().enumerate().rev() {
            let due = &mut notices[i];
            let mut came: Vec<_> =
                due.iter().map(|_| told(&wait("notice", || vcq.poll_mrq()))).collect();
            due.sort_by_key(|n| (n.0, n.2, n.1));
            came.sort_by_key(|n| (n.0, n.2, n.1));
            prop_assert_eq!(&came, due, "VCQ {}", i);
            prop_assert!(vcq.poll_mrq().is_none());
        }
        for (memory, model) in self.memories.iter().zip(&self.model) {
            prop_assert_eq!(&memory.bytes(), model);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn many_at_once_agree_with_the_model(
        phases in [0usize..8192, 0usize..8192, 0usize..8192],
        batches in prop::collection::vec(prop::collection::vec(op(), 1..60), 1..8),
    ) {
        // The reserved STADDs keep the lowest bits of the address.
        let mut world = World::new(phases);
        for batch in batches {
            world.batch(&compatible(batch))?;
        }
    }
}

#[test]
fn notice_names_its_vcq_in_any_order() {
    for order in [[6, 1], [1, 6]] {
        // Extra values 0 and 8: the notice of the device has only the lower three bits.
        let world = World::new([0; NODES]);
        let from = &world.vcqs[2];
        for (edata, to) in order.into_iter().enumerate() {
            let posting = Posting::new(world.vcqs[to].id().0, edata as u64, LOCAL_MRQ_NOTICE);
            let put = posting.unwrap().put_piggyback8(1, 8, world.stadds[to][0].0);
            from.post(&put.unwrap(), 0).unwrap();
        }
        for _ in order {
            let notice = wait("notice", || from.poll_mrq());
            assert_eq!(notice.vcq_id, world.vcqs[order[usize::from(notice.edata)]].id());
        }
    }
}
