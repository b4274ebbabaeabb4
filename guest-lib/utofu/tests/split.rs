//! Long Puts that go in parts. Both ends get the same reports as for whole Puts, once, and when all
//! data has arrived.

mod common;

use std::sync::Arc;

use common::Memory;
use tofu_abi::Coords;
use tofu_abi::topology::{Axis, NodeId, Port, Shape};
use tofu_machine::{Links, MachineConfig};
use tofu_utofu::command::Posting;
use tofu_utofu::flags::{LOCAL_MRQ_NOTICE, REMOTE_MRQ_NOTICE, STRONG_ORDER, TCQ_NOTICE};
use tofu_utofu::ids::Stadd;
use tofu_utofu::{Code, Completion, Context, DeviceShare, Notice, NoticeKind, Transfer, Vcq};
use tofu_utofu_local::{Generation, LocalMachine, LocalProvider};

const ALL: u64 = TCQ_NOTICE | LOCAL_MRQ_NOTICE | REMOTE_MRQ_NOTICE;
/// A, B and C differ, and so does X: four paths.
const FROM: Coords = Coords::new(0, 0, 0, 0, 0, 0);
const TO: Coords = Coords::new(1, 0, 0, 1, 2, 1);
const SIZE: usize = 100_000;
/// Nothing here takes so many turns.
const TURNS: usize = 100_000;

struct World {
    machine: LocalMachine,
    ends: [Context<LocalProvider>; 2],
}

impl World {
    /// A process at each of two nodes of a machine on modelled links, whose Puts of at least
    /// `bytes` bytes go in parts.
    fn new(to: Coords, bytes: u32) -> Self {
        let shape = Shape::new([2, 1, 1, 2, 3, 2]).unwrap();
        let config = MachineConfig { links: Links::Modelled, ..MachineConfig::new(shape) };
        let machine = LocalMachine::stepped(config).unwrap();
        let ends = [FROM, to].map(|node| {
            let share = DeviceShare::of(Generation::Fugaku, 0, 1).unwrap();
            Context::splitting(machine.node(node).unwrap(), share, bytes)
        });
        Self { machine, ends }
    }

    /// Runs until `poll` returns something.
    fn until<T>(&self, mut poll: impl FnMut() -> Option<T>) -> T {
        for _ in 0..TURNS {
            if let Some(found) = poll() {
                return found;
            }
            self.machine.machine().run_turn();
        }
        panic!("it does not come");
    }

    /// Runs until nothing is in progress.
    fn settle(&self) {
        while self.machine.machine().run_turn() {}
    }

    /// Bytes that have left a node by each of its ports with a link.
    fn sent(&self, node: Coords) -> Vec<u64> {
        let fabric = self.machine.machine().fabric();
        let id: NodeId = fabric.shape().node_id(node).unwrap();
        let counters = |port| fabric.port_counters(id, port).unwrap().send_bytes;
        Port::ALL.into_iter().map(counters).filter(|bytes| *bytes > 0).collect()
    }
}

/// The effects of a Put that are visible at both ends.
#[derive(Debug, PartialEq)]
struct Told {
    completions: Vec<Completion>,
    local: Vec<Notice>,
    remote: Vec<Notice>,
}

struct Ends {
    vcqs: [Vcq<LocalProvider>; 2],
    memories: [Memory; 2],
    stadds: [Stadd; 2],
}

impl Ends {
    fn new(world: &World) -> Self {
        let vcqs = [0, 1].map(|end| world.ends[end].create_vcq(3, None, 0).unwrap());
        let memories = [Memory::new(SIZE + 100), Memory::new(SIZE + 100)];
        let stadds = [0, 1].map(|end: usize| memories[end].register(&vcqs[end], 0));
        memories[0].fill(|i| (i % 251 + 1) as u8);
        Self { vcqs, memories, stadds }
    }

    fn transfer(&self, length: usize, flags: u64) -> Transfer {
        let [local, remote] = [Stadd(self.stadds[0].0 + 3), Stadd(self.stadds[1].0 + 16)];
        Transfer { peer: self.vcqs[1].id(), local, remote, length, edata: 0xc5, flags }
    }

    fn told(&self) -> Told {
        let [from, to] = &self.vcqs;
        Told {
            completions: std::iter::from_fn(|| from.poll_tcq()).collect(),
            local: std::iter::from_fn(|| from.poll_mrq()).collect(),
            remote: std::iter::from_fn(|| to.poll_mrq()).collect(),
        }
    }

    fn is_there(&self, length: usize) -> bool {
        let bytes = self.memories[1].bytes();
        let data = bytes[16..16 + length].iter().enumerate();
        data.clone().all(|(i, byte)| *byte == ((i + 3) % 251 + 1) as u8)
            && bytes[16 + length..].iter().chain(&bytes[..16]).all(|byte| *byte == 0)
    }
}

/// All reports of one Put once nothing is in progress.
fn put(to: Coords, split_from: u32, length: usize, flags: u64) -> (Told, bool, Vec<u64>) {
    let world = World::new(to, split_from);
    let ends = Ends::new(&world);
    ends.vcqs[0].put(&ends.transfer(length, flags), 42).unwrap();
    let mut told = ends.told();
    for _ in 0..10 {
        world.settle();
        let more = ends.told();
        told.completions.extend(more.completions);
        told.local.extend(more.local);
        told.remote.extend(more.remote);
    }
    (told, ends.is_there(length), world.sent(FROM))
}

#[test]
fn split_put_notifies_like_a_whole_one() {
    for flags in 0..8 {
        let flags = [TCQ_NOTICE, LOCAL_MRQ_NOTICE, REMOTE_MRQ_NOTICE]
            .into_iter()
            .enumerate()
            .filter(|(bit, _)| flags >> bit & 1 != 0)
            .fold(STRONG_ORDER, |flags, (_, flag)| flags | flag);
        for length in [9600, 20_000, SIZE] {
            let (whole, there, ports) = put(TO, u32::MAX, length, flags);
            assert!(there);
            assert_eq!(ports.len(), 1);
            let (parts, there, ports) = put(TO, 2000, length, flags);
            assert!(there, "{length} bytes, flags {flags:#x}");
            assert_eq!(parts, whole, "{length} bytes, flags {flags:#x}");
            // A program that gets no report of the end may never poll for it.
            let several = flags & (TCQ_NOTICE | LOCAL_MRQ_NOTICE) != 0;
            // By B (the default path), A and C, and by B again.
            assert_eq!(ports.len(), if several { 3 } else { 1 }, "{length} bytes: {ports:?}");
        }
    }
}

/// The papers' rule: one, two or four paths, depending on how many of A, B and C differ.
#[test]
fn as_many_paths_as_a_b_and_c_say() {
    let total = |ports: &[u64]| ports.iter().sum::<u64>();
    for (to, first_hops) in [
        (Coords::new(1, 0, 0, 0, 0, 0), 1),
        (Coords::new(0, 0, 0, 1, 0, 0), 1),
        (Coords::new(1, 0, 0, 1, 0, 0), 2),
        (Coords::new(0, 0, 0, 1, 1, 0), 2),
        (Coords::new(1, 0, 0, 1, 1, 0), 2),
        (TO, 3),
    ] {
        let (told, there, ports) = put(to, 2000, SIZE, ALL);
        assert!(there);
        assert_eq!([told.completions.len(), told.local.len(), told.remote.len()], [1; 3]);
        assert_eq!(ports.len(), first_hops, "{to}: {ports:?}");
        // Each port has its share: none has more than half, unless it is the only one.
        let most = ports.iter().max().unwrap();
        assert!(first_hops == 1 || *most < total(&ports) * 3 / 5, "{to}: {ports:?}");
    }
}

/// A path that the program has chosen is kept.
#[test]
fn chosen_path_is_kept() {
    let world = World::new(TO, 2000);
    let ends = Ends::new(&world);
    let mut transfer = ends.transfer(SIZE, ALL);
    transfer.peer = transfer.peer.with_path(Some(tofu_abi::Path::new(0, 0, 1))).unwrap();
    ends.vcqs[0].put(&transfer, 1).unwrap();
    world.settle();
    assert!(ends.is_there(SIZE));
    assert_eq!(world.sent(FROM).len(), 1);
}

#[test]
fn notices_follow_all_data() {
    let world = World::new(TO, 2000);
    let ends = Ends::new(&world);
    for round in 0..2 {
        ends.memories[1].fill(|_| 0);
        ends.vcqs[0].put(&ends.transfer(SIZE, ALL | STRONG_ORDER), round).unwrap();
        let mut completed = false;
        world.until(|| {
            let bytes = ends.memories[1].bytes();
            let last = bytes[16 + SIZE - 8..16 + SIZE].iter().all(|byte| *byte != 0);
            assert!(!last || ends.is_there(SIZE), "the last word comes last");
            completed |= ends.vcqs[0].poll_tcq().is_some();
            let notice = ends.vcqs[1].poll_mrq()?;
            assert_eq!(notice.kind, NoticeKind::RmtPut);
            assert!(ends.is_there(SIZE));
            Some(())
        });
        world.until(|| completed.then_some(()).or_else(|| ends.vcqs[0].poll_tcq().map(drop)));
        world.until(|| ends.vcqs[0].poll_mrq());
    }
}

/// A command that is posted after a Put arrives after it, as over one path.
#[test]
fn later_commands_do_not_overtake() {
    let world = World::new(TO, 2000);
    let ends = Ends::new(&world);
    let [from, to] = &ends.vcqs;
    from.put(&ends.transfer(SIZE, TCQ_NOTICE), 1).unwrap();
    let flag = Posting::new(to.id().0, 7, ALL).unwrap();
    let at = ends.stadds[1].0 + 8;
    from.post(&flag.put_piggyback8(9, 8, at).unwrap(), 2).unwrap();
    from.put(&ends.transfer(SIZE / 2, ALL), 3).unwrap();
    let mut done = Vec::new();
    let mut look = || {
        done.extend(std::iter::from_fn(|| from.poll_tcq()).map(|done| done.cbdata));
        done.clone()
    };
    let notice = world.until(|| {
        look();
        to.poll_mrq()
    });
    assert_eq!(notice.edata, 7);
    let bytes = ends.memories[1].bytes();
    assert!(bytes[16..16 + SIZE].iter().all(|byte| *byte != 0), "the Put before it is there");
    let notice = world.until(|| {
        look();
        to.poll_mrq()
    });
    assert_eq!(notice.edata, 0xc5);
    let done = world.until(|| Some(look()).filter(|done| done.len() == 3));
    assert_eq!(done, [1, 2, 3]);
    let local: Vec<_> = std::iter::from_fn(|| from.poll_mrq()).map(|notice| notice.edata).collect();
    assert_eq!(local, [7, 0xc5]);
}

/// If a part meets a dead link, the whole Put is sent over its own path, and that path's result
/// counts.
#[test]
fn lost_part_resends_the_put_whole() {
    let world = World::new(TO, 2000);
    let fabric = Arc::clone(world.machine.machine().fabric());
    let ends = Ends::new(&world);
    let told = |world: &World, ends: &Ends| {
        let completion = world.until(|| ends.vcqs[0].poll_tcq());
        let local = world.until(|| ends.vcqs[0].poll_mrq());
        world.settle();
        let more = ends.told();
        assert_eq!((more.completions.len(), more.local.len()), (0, 0));
        (completion.status(), local, more.remote.len())
    };
    fabric.set_link(FROM, Axis::A.port(true), false).unwrap();
    ends.vcqs[0].put(&ends.transfer(SIZE, ALL), 1).unwrap();
    let (status, local, remote) = told(&world, &ends);
    assert_eq!((status, local.status(), remote), (Code::Success, Code::Success, 1));
    assert!(ends.is_there(SIZE));
    let before = world.sent(FROM);
    ends.vcqs[0].put(&ends.transfer(SIZE, ALL), 2).unwrap();
    assert_eq!(told(&world, &ends).2, 1);
    let now = world.sent(FROM);
    let used = now.iter().zip(&before).filter(|(now, before)| now > before).count();
    assert_eq!(used, 1, "from then on Puts there go whole");

    // No packet gets through.
    for port in [Axis::B.port(true), Axis::B.port(false), Axis::C.port(true)] {
        fabric.set_link(FROM, port, false).unwrap();
    }
    let transfer = ends.transfer(SIZE, ALL);
    ends.vcqs[0].put(&transfer, 3).unwrap();
    let (status, local, remote) = told(&world, &ends);
    assert_eq!((status, local.status(), remote), (Code::Success, Code::MrqPeer, 0));
    assert_eq!((local.lcl_stadd, local.rmt_stadd), (transfer.local.0, transfer.remote.0));
}

/// Faults of either memory are reported as for a whole Put.
#[test]
fn faults_are_those_of_a_whole_put() {
    let run = |split_from| {
        let world = World::new(TO, split_from);
        let ends = Ends::new(&world);
        let good = ends.transfer(SIZE, ALL);
        let beyond = Transfer { length: SIZE + 1000, ..good };
        let nowhere = Transfer { local: Stadd::new(999, 0), ..good };
        let unknown = Transfer { remote: Stadd::new(999, 0), ..good };
        let mut all = Vec::new();
        for transfer in [beyond, nowhere, unknown, good] {
            ends.vcqs[0].put(&transfer, 1).unwrap();
            let completion = world.until(|| ends.vcqs[0].poll_tcq());
            let local = world.until(|| ends.vcqs[0].poll_mrq());
            world.settle();
            all.push((completion, local, ends.told()));
        }
        all
    };
    assert_eq!(run(2000), run(u32::MAX));
}

/// Posting reports a full queue as for whole Puts, and all posted Puts are reported.
#[test]
fn full_queue_fills_and_empties() {
    let world = World::new(TO, 2000);
    let ends = Ends::new(&world);
    let mut posted = 0;
    let full = loop {
        match ends.vcqs[0].put(&ends.transfer(10_000, TCQ_NOTICE | REMOTE_MRQ_NOTICE), posted) {
            Ok(()) => posted += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full.code(), Code::Busy);
    let mut arrived = 0;
    for cbdata in 0..posted {
        let done = world.until(|| {
            arrived += usize::from(ends.vcqs[1].poll_mrq().is_some());
            ends.vcqs[0].poll_tcq()
        });
        assert_eq!((done.cbdata, done.status()), (cbdata, Code::Success));
    }
    world.settle();
    arrived += std::iter::from_fn(|| ends.vcqs[1].poll_mrq()).count();
    assert_eq!(arrived, posted);
    assert!(posted > 1000, "{posted}");
}

/// A VCQ that is freed immediately has sent everything that was posted.
#[test]
fn freed_vcq_has_sent_all() {
    let shape = Shape::new([2, 1, 1, 2, 3, 2]).unwrap();
    let machine = LocalMachine::new(shape).unwrap();
    let [from, to] = [FROM, TO].map(|node| {
        let share = DeviceShare::of(Generation::Fugaku, 0, 1).unwrap();
        Context::splitting(machine.node(node).unwrap(), share, 2000)
    });
    let target = to.create_vcq(0, None, 0).unwrap();
    let (mine, theirs) = (Memory::new(SIZE), Memory::new(SIZE));
    let remote = theirs.register(&target, 0);
    mine.fill(|_| 1);
    for round in 0..20 {
        let vcq = from.create_vcq(0, None, 0).unwrap();
        let local = mine.register(&vcq, 0);
        let (peer, flags) = (target.id(), ALL);
        let transfer = Transfer { peer, local, remote, length: SIZE, edata: round, flags };
        vcq.put(&transfer, 1).unwrap();
        drop(vcq);
        let notice = common::notice(&target);
        assert_eq!(u64::from(notice.edata), round);
    }
    assert_eq!(theirs.bytes(), mine.bytes());
}
