//! Links, nodes and boards fail and come back by random schedules, while Linux nodes put to each
//! other, add up in barrier gates, exchange streams of TCP, and send and add up by MPI.

#[path = "../../tests/soak/schedule.rs"]
mod schedule;

use std::thread::sleep;
use std::time::Duration;

use tofu_abi::Generation;
use tofu_abi::topology::{NodeId, Port, Shape};
use tofu_linux_tests::net::{LONG, Net, long};
use tofu_linux_tests::sdk::Sdk;
use tofu_linux_tests::{Place, Running};

use schedule::{Change, Down, Random};

/// Linux nodes on the ring of B, each on its own board. All others pass packets on.
const LINUX: [usize; 3] = [0, 2, 4];
/// Changes before all is repaired.
const CHANGES: u32 = 30;
/// Rounds of changes unless `TOFU_ROUNDS` says otherwise: about two hours.
const ROUNDS: u32 = 300;
const STREAM: &str = "4194304";
const STOP: &str = "/tmp/stop-soak";

/// A machine, the ends of its links, and what is down in it.
struct Broken<'a> {
    place: &'a Place,
    links: &'a [(u32, Port)],
    down: Down,
}

impl Broken<'_> {
    /// Guests run on: those of Linux take half a minute to boot.
    fn apply(&mut self, change: Change) {
        let (what, node, more, up) = match change {
            Change::Link(index, up) => {
                ("link", self.links[index].0, self.links[index].1.name(), up)
            }
            Change::Node(node, up) => ("node", node, "--keep-guests", up),
            Change::Board(node, up) => ("board", node, "--keep-guests", up),
        };
        let state = if up { "up" } else { "down" };
        self.place.run(&[what, state, &node.to_string(), more]).ok();
        self.down.note(change);
    }
}

/// A load that restarts whenever it has ended as it should and all nodes work. Otherwise a job
/// would not get its nodes.
struct Load<'a> {
    begin: Box<dyn Fn() -> Vec<Running> + 'a>,
    check: Box<dyn Fn(Vec<String>) + 'a>,
    running: Vec<Running>,
    times: u32,
}

impl<'a> Load<'a> {
    fn new(begin: impl Fn() -> Vec<Running> + 'a, check: impl Fn(Vec<String>) + 'a) -> Self {
        let running = begin();
        Self { begin: Box::new(begin), check: Box::new(check), running, times: 0 }
    }

    /// Waits for its end, if it runs.
    fn end(&mut self) {
        let said: Vec<_> = self.running.drain(..).map(|running| running.end(LONG).ok()).collect();
        if !said.is_empty() {
            (self.check)(said);
            self.times += 1;
        }
    }

    fn look_after(&mut self, all_is_well: bool) {
        if !self.running.iter_mut().any(Running::runs) {
            self.end();
            if all_is_well {
                self.running = (self.begin)();
            }
        }
    }
}

#[test]
fn linux_nodes_lose_nothing_unreported() {
    if !long() {
        return;
    }
    let others = (0..12).filter(|node| !LINUX.contains(node)).map(|node| {
        let (a, b, c) = (node / 6, node / 2 % 3, node % 2);
        format!(
            "[[node]]\nat = [0, 0, 0, {a}, {b}, {c}]\nlinux = false\nguest = \"httpd\"\n\
             args = \"count=0 forever=1\"\n"
        )
    });
    let file = format!("shape = \"unit\"\nlinux = true\n{}", others.collect::<String>());
    let Some(net) = Net::of_file(&file, &LINUX) else { return };
    let sdk = Sdk::new(&net.place);
    sdk.compile("programs/soak.c", &["-ltofucom", "-ltofutop", "-lpthread"]);
    let rounds = std::env::var("TOFU_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    let seed = std::env::var("TOFU_SEED").map_or(1, |seed| seed.parse().unwrap());
    soak(&net, &sdk, (seed, rounds), sdk.add_mpi(&net.place));
    // A board that goes with its guest, and comes back with another one.
    net.place.run(&["board", "down", "4"]).ok();
    net.place.run_for(&["board", "up", "4"], LONG, b"").ok();
    let said = net.shell(0, "ping -c 3 -i 0.2 -w 20 n4");
    assert!(said.contains(" 0% packet loss"), "{said}");
    net.place.run(&["down"]).ok();
    net.place.is_clean();
}

fn soak(net: &Net, sdk: &Sdk, (seed, rounds): (u64, u32), with_mpi: bool) {
    let shape = Shape::UNIT;
    let ports = |node: u32| {
        let at = shape.coords(NodeId(node)).unwrap();
        shape.neighbors(at).map(|(port, _)| port)
    };
    let links: Vec<_> =
        (0..12).flat_map(|node| ports(node).map(move |port| (node, port))).collect();
    let job = |args: &[&str]| Running::start(sdk.command(&net.place, args), b"");
    let mut puts = job(&["run", "-n", "3", "--no-prefix", "./soak", STOP]);
    let streams = || {
        let server = net.begin(4, &["serve", STREAM]);
        vec![net.begin(0, &["connect", "n4", STREAM]), server]
    };
    let same = |said: Vec<String>| {
        let [client, server] =
            [0, 1].map(|i: usize| serde_json::from_str::<serde_json::Value>(&said[i]).unwrap());
        assert_eq!(client["taken"], server["given"], "seed {seed}: {client} {server}");
        assert_eq!(server["taken"], client["given"], "seed {seed}: {client} {server}");
    };
    let mut loads = vec![Load::new(streams, same)];
    if with_mpi {
        sdk.compile_mpi("programs/mpi_ip.c", &[]);
        let begin = || vec![job(&["run", "--mpi", "-n", "3", "--no-prefix", "./mpi_ip", "20"])];
        let right = |said: Vec<String>| {
            assert!(said[0].lines().any(|line| line == "0 wrong"), "seed {seed}: {said:?}");
        };
        loads.push(Load::new(begin, right));
    }
    let down = Down::new(shape, Generation::Fugaku.description().board);
    let mut broken = Broken { place: &net.place, links: &links, down };
    let mut random = Random(seed);
    for _ in 0..rounds {
        for _ in 0..CHANGES {
            broken.apply(random.change(12, links.len()));
            sleep(Duration::from_millis(random.below(300)));
            loads.iter_mut().for_each(|load| load.look_after(false));
        }
        broken.down.repairs().into_iter().for_each(|change| broken.apply(change));
        // The longest time for a stream to notice that it can continue.
        for _ in 0..10 {
            sleep(Duration::from_secs(1));
            loads.iter_mut().for_each(|load| load.look_after(true));
        }
        assert!(puts.runs(), "seed {seed}: {:?}", puts.end(LONG));
    }
    for load in &mut loads {
        load.end();
    }
    net.shell(0, &format!("touch {STOP}"));
    let said = puts.end(LONG).ok();
    assert_eq!(said.lines().filter(|line| line.ends_with(" 0 wrong")).count(), 3, "{said}");
    eprintln!("seed {seed}: {:?} loads; {said}", loads.iter().map(|l| l.times).collect::<Vec<_>>());
    check_counters(net, seed);
}

/// Packets were lost only on links that were down, and nothing else was wrong.
fn check_counters(net: &Net, seed: u64) {
    let counters = LINUX.map(|node| net.counters(node)["counters"].clone());
    let count = |of: &serde_json::Value, name: &str| of[name].as_u64().unwrap();
    for of in &counters {
        for name in ["malformed", "spoofed", "misdirected", "oversized"] {
            assert_eq!(count(of, name), 0, "seed {seed}: {of}");
        }
    }
    // A frame that is fetched after its sender's timeout may have been replaced by another one,
    // which the checksum detects.
    let [damaged, late] = ["damaged", "rendezvous_timed_out"]
        .map(|name| counters.iter().map(|of| count(of, name)).sum::<u64>());
    assert!(damaged <= late, "seed {seed}: {counters:?}");
}
