//! Links, nodes and boards fail and are repaired by random schedules, while 48 nodes put to each
//! other, send frames of IP over Tofu and meet in barriers. Everything runs in the test's own
//! thread and on its clock, so a seed gives the same run each time.

#[allow(dead_code)]
#[path = "barrier/group.rs"]
mod group;
#[path = "soak/schedule.rs"]
mod schedule;

use std::collections::BTreeSet;

use tofu_abi::desc::MAX_MTU;
use tofu_abi::reduce::{Input, Op};
use tofu_abi::regs::{PortReg, Register};
use tofu_abi::topology::{Port, Shape};
use tofu_abi::{Coords, Path, Rcode, TniId};
use tofu_driver::{Order, PacketConfig};
use tofu_fabric::{Class, Link as Cable, Route};
use tofu_inproc::InProcess;
use tofu_ipotofu::{Config, Link, addr};
use tofu_tests::{Cluster, Endpoint, PATIENCE_NS, description, pattern};

use group::{Group, tree};
use schedule::{Change, Down, Random};

const SHAPE: &str = "1x1x4x2x3x2";
const NODES: u32 = 48;
const SECOND: u64 = 1_000_000_000;
/// The place to which Puts write, after the data that they read.
const LANDING: usize = 32 << 10;

/// A machine, and what is down in it.
struct Soak {
    cluster: Cluster,
    shape: Shape,
    cables: Vec<Cable>,
    down: Down,
    ends: Vec<Endpoint>,
    ip: Vec<Link<InProcess>>,
    random: Random,
    serial: u64,
    /// Puts of each node that were lost.
    lost: Vec<u64>,
    /// Ports that were down at some time.
    was_down: BTreeSet<(Coords, Port)>,
    /// Frames to each node that have not arrived, and how many have.
    sent: Vec<BTreeSet<Vec<u8>>>,
    arrived: u64,
}

impl Soak {
    fn node(&mut self) -> u32 {
        self.random.below(NODES.into()) as u32
    }

    fn new(seed: u64) -> Self {
        let shape: Shape = SHAPE.parse().unwrap();
        let cluster = Cluster::new(SHAPE);
        let open = |rank| {
            let packets =
                PacketConfig { rx_buffers: 64, tx_buffers: 64, ..PacketConfig::new(TniId::ALL[0]) };
            let config = Config { mtu: 1500, ..Config::new(shape) };
            Link::open(cluster.device(rank), config, &packets).unwrap()
        };
        let ip = (0..NODES).map(open).collect();
        let ends = (0..NODES).map(|rank| cluster.endpoint(rank, 1, 2)).collect();
        let down = Down::new(shape, description().board);
        let cables = Cable::all(&shape).collect();
        let lost = vec![0; NODES as usize];
        let sent = vec![BTreeSet::new(); NODES as usize];
        let (random, was_down) = (Random(seed), BTreeSet::new());
        let (serial, arrived) = (0, 0);
        Self {
            cluster,
            shape,
            cables,
            down,
            ends,
            ip,
            random,
            serial,
            lost,
            was_down,
            sent,
            arrived,
        }
    }

    fn apply(&mut self, change: Change) {
        let nodes = self.down.note(change);
        match change {
            Change::Link(index, up) => {
                let Cable { from, port, to, .. } = self.cables[index];
                self.was_down.extend([(from, port), (to, port.opposite())]);
                let rank = self.down.node(from);
                self.cluster.set_link(rank, port.index(), up);
            }
            Change::Node(_, up) | Change::Board(_, up) => {
                nodes.into_iter().for_each(|rank| self.set_node(rank, up));
            }
        }
    }

    fn set_node(&mut self, rank: u32, up: bool) {
        let at = self.ends[rank as usize].node;
        for (port, next) in self.shape.neighbors(at) {
            self.was_down.extend([(at, port), (next, port.opposite())]);
        }
        self.cluster.set_node(rank, up);
    }

    fn works(&self, from: Coords, to: Coords, path: Path) -> bool {
        let down = |at: Coords| self.down.nodes.contains(&self.down.node(at));
        Route::new(&self.shape, from, to, path, Class::Request).unwrap().all(|hop| {
            let at = self.shape.coords(hop.from).unwrap();
            let next = self.shape.coords(hop.to).unwrap();
            let dead = |link: &usize| {
                let Cable { from, port, .. } = self.cables[*link];
                (from, port) == (at, hop.port) || (from, port) == (next, hop.port.opposite())
            };
            !down(at) && !down(next) && !self.down.links.iter().any(dead)
        })
    }

    /// A Put that arrives if everything on its way works, and otherwise is reported as lost.
    fn put(&mut self) {
        let (from, to) = (self.node() as usize, self.node() as usize);
        let paths: Vec<_> = self.shape.paths().collect();
        let path = paths[self.random.below(paths.len() as u64) as usize];
        let len = self.random.below(3 * u64::from(MAX_MTU)) as usize;
        self.serial += 1;
        let data = pattern(self.serial, len);
        self.ends[to].fill(LANDING, &vec![0; len + 1]);
        self.ends[from].fill(0, &data);
        let (source, target) = (self.ends[from].node, self.ends[to].node);
        let at = self.ends[to].at(LANDING as u64);
        let order = Order::put(self.ends[to].target(), at, self.ends[from].at(0), len as u32);
        self.ends.iter_mut().for_each(|end| drop(end.notices()));
        self.ends[from].cq.post_and_ring(&order.path(path), self.serial).unwrap();
        self.cluster.settle();
        let (there, back) = (self.works(source, target, path), self.works(target, source, path));
        let what = format!("{source} to {target} by {path:?}, {len} bytes");
        if there && !back {
            assert!(self.ends[from].cq.poll_tcq().is_none(), "{what}: its answer is lost");
            self.cluster.pass(PATIENCE_NS);
        }
        let done = self.ends[from].cq.poll_tcq();
        assert_eq!(done.map(|done| done.rcode), Some(Rcode::SUCCESS), "{what}: it was sent");
        let [notice] = self.ends[from].notices()[..] else { panic!("{what}: no single notice") };
        let expected = match (there, back) {
            (true, true) => Rcode::SUCCESS,
            (true, false) => Rcode::TIMEOUT,
            (false, _) => Rcode::LINK_DOWN,
        };
        assert_eq!(notice.word0().rcode(), expected, "{what}");
        self.lost[from] += u64::from(expected != Rcode::SUCCESS);
        let arrived = self.ends[to].bytes(LANDING, len + 1);
        let wanted = if there { data } else { vec![0; len] };
        assert!(arrived[..len] == wanted && arrived[len] == 0, "{what}: wrong bytes");
    }

    fn frame(&mut self, from: usize, to: usize) -> Vec<u8> {
        self.serial += 1;
        let len = 60 + self.random.below(1400) as usize;
        let (source, target) = (self.ends[from].node, self.ends[to].node);
        let mut frame = [&addr::mac(target)[..], &addr::mac(source), &[0x88, 0xb5]].concat();
        frame.extend(pattern(self.serial, len));
        frame
    }

    /// Lets all frames and news travel as far as they can; returns the frames that arrived at each
    /// node.
    fn settle_frames(&mut self, rounds: u32) -> Vec<Vec<Vec<u8>>> {
        let mut received = vec![Vec::new(); NODES as usize];
        let mut buf = vec![0; 1 << 16];
        for _ in 0..rounds {
            for (link, frames) in self.ip.iter_mut().zip(&mut received) {
                link.flush();
                self.cluster.settle();
                while let Some(len) = link.recv(&mut buf) {
                    frames.push(buf[..len].to_vec());
                }
            }
        }
        received
    }

    /// Frames among random nodes. Each frame that arrives was sent to that node, and arrives once.
    fn frames(&mut self, count: usize) {
        for _ in 0..count {
            let (from, to) = (self.node() as usize, self.node() as usize);
            if from == to {
                continue;
            }
            let frame = self.frame(from, to);
            // A frame is refused where no way is known or too many frames wait.
            if self.ip[from].send(&frame).is_ok() {
                self.sent[to].insert(frame);
            }
        }
        let received = self.settle_frames(10);
        for (to, frames) in received.into_iter().enumerate() {
            for frame in frames {
                assert!(self.sent[to].remove(&frame), "not sent, or twice, to {to}");
                self.arrived += 1;
            }
        }
    }

    /// A barrier of all nodes. It ends if nothing is down. Otherwise it may end or not, and the
    /// gates are freed and linked again either way.
    fn barrier(&mut self, all: bool) {
        self.serial += 1;
        let config = group::config(self.serial, 0);
        let mut group = Group::with(&self.cluster, NODES, tree, &config);
        if all {
            group.barrier();
        } else {
            group.start(Op::Barrier, &[Input::default(); NODES as usize], 0);
            self.cluster.settle();
            let ended = group.channels.iter_mut().filter_map(|channel| channel.poll()).count();
            let well = self.down.repairs().is_empty();
            assert!(!well || ended == NODES as usize, "{ended} of a machine that is well");
        }
    }

    /// Every loss is counted at the right place: Puts at their senders' interface, TLPs at ports
    /// whose links were down at some time, and nothing else.
    fn check_counters(&self) {
        for (rank, end) in self.ends.iter().enumerate() {
            let failed = self.cluster.icc(rank as u32).failed_commands(end.tni);
            assert_eq!((failed.lost, failed.refused), (self.lost[rank], 0), "node {rank}");
            for port in Port::ALL {
                let counters = self.cluster.port_counters(rank as u32, port.index());
                let discarded = counters.tx_discard_normal + counters.tx_discard_system;
                let was_down = self.was_down.contains(&(end.node, port));
                assert!(was_down || discarded == 0, "node {rank}: {port:?} was never down");
                assert_eq!((counters.tx_filtered, counters.send_nullified), (0, 0));
            }
        }
    }
}

/// A schedule of failures and repairs, and a machine that is well afterwards.
fn run(seed: u64) {
    let mut soak = Soak::new(seed);
    for round in 0..16 {
        for _ in 0..=soak.random.below(4) {
            let change = soak.random.change(NODES, soak.cables.len());
            soak.apply(change);
        }
        (0..24).for_each(|_| soak.put());
        soak.frames(24);
        if round % 4 == 0 {
            soak.barrier(false);
        }
        let ns = soak.random.below(SECOND);
        soak.cluster.pass(ns);
    }
    assert!(soak.arrived > 0 && soak.lost.iter().sum::<u64>() > 0, "seed {seed} tests nothing");
    soak.down.repairs().into_iter().for_each(|change| soak.apply(change));
    // News of the repair and the last frames spread.
    for _ in 0..8 {
        soak.frames(0);
        soak.cluster.pass(SECOND);
    }
    soak.sent.iter_mut().for_each(BTreeSet::clear);
    let lost = soak.lost.clone();
    (0..48).for_each(|_| soak.put());
    assert_eq!(soak.lost, lost, "seed {seed}: nothing is down");
    soak.frames(48);
    for _ in 0..8 {
        soak.frames(0);
    }
    let left: usize = soak.sent.iter().map(BTreeSet::len).sum();
    assert_eq!(left, 0, "seed {seed}: frames that did not arrive");
    soak.barrier(true);
    soak.check_counters();
}

/// `TOFU_LONG` takes 20 minutes of a processor.
#[test]
fn failures_and_repairs_lose_nothing() {
    let long = std::env::var_os("TOFU_LONG").is_some();
    for seed in 0..if long { 5000 } else { 3 } {
        run(seed);
    }
}

/// The values that GET_PORT_STAT of the kernel driver reads, of a node whose router has failed and
/// of its neighbours: the counters exist, and packets that met the dead ports are in them and
/// nowhere else.
#[test]
fn port_registers_survive_a_node_failure() {
    let mut soak = Soak::new(7);
    let dead = 17;
    let read = |soak: &Soak, rank: u32, port: Port, reg| {
        soak.cluster.device(rank).read(Register::Port { port, reg })
    };
    soak.apply(Change::Node(dead, false));
    let discarded = |soak: &Soak| -> u64 {
        let ports = (0..NODES).flat_map(|rank| Port::ALL.map(move |port| (rank, port)));
        ports.map(|(rank, port)| read(soak, rank, port, PortReg::NumTxDiscardNormalTlp)).sum()
    };
    let target = soak.ends[dead as usize].target();
    for rank in (0..NODES).filter(|rank| *rank != dead) {
        let before = discarded(&soak);
        let [at, from] = [soak.ends[dead as usize].at(0), soak.ends[rank as usize].at(0)];
        let order = Order::put(target, at, from, 5000);
        assert_eq!(soak.ends[rank as usize].end_of(&order), Rcode::LINK_DOWN, "node {rank}");
        // Three TLPs.
        assert_eq!(discarded(&soak) - before, 3, "node {rank}");
    }
    for rank in 0..NODES {
        for port in Port::ALL {
            for reg in PortReg::ALL {
                let (first, again) = (read(&soak, rank, port, *reg), read(&soak, rank, port, *reg));
                let at_rest = *reg == PortReg::FreeRunCount || first == again;
                assert!(at_rest && first != u64::MAX, "node {rank}, port {port}: {reg:?}");
            }
            // Nothing leaves the dead node.
            let sent = read(&soak, rank, port, PortReg::NumSendTlp);
            assert!(rank != dead || sent == 0, "{sent} TLPs by port {port}");
        }
    }
}
