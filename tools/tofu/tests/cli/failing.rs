//! Nodes and boards that fail.

#[path = "../../../../tests/tests/soak/schedule.rs"]
pub(crate) mod schedule;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};
use tofu_abi::Generation;
use tofu_abi::topology::Shape;
use tofu_fabric::Link;

use crate::tofu::{Place, wait_for};
use schedule::{Change, Down, Random};

/// The nodes according to `tofu ps`: whether they are down, and their states.
fn nodes(place: &Place) -> Vec<(bool, String)> {
    let ps = place.ps();
    let nodes = ps[0]["nodes"].as_array().cloned().unwrap_or_default();
    let of =
        |node: &Value| (node["down"].as_bool().unwrap(), node["state"].as_str().unwrap().into());
    nodes.iter().map(of).collect()
}

fn links_down(place: &Place) -> usize {
    place.run(&["link", "ls", "--down"]).ok().lines().count()
}

#[test]
fn served_boards_fail_and_return_with_links() {
    let place = Place::new();
    let (mut machine, _) = place.start(&["serve", "--json", "--shape", "1x1x1x2x3x2"]);
    let boards = place.run(&["board", "ls"]).ok();
    assert_eq!(boards.lines().count(), 7, "{boards}");
    assert!(boards.contains("(0,0,0,1,2,0)  10 11  up"), "{boards}");
    place.run(&["link", "down", "0", "A"]).ok();
    assert_eq!(links_down(&place), 1);
    // Each of its two nodes has a link on A and two on B, and one on C joins them.
    place.run(&["board", "down", "1"]).ok();
    assert_eq!(links_down(&place), 7);
    let down: Vec<_> = nodes(&place).iter().map(|(down, _)| *down).collect();
    assert_eq!(down.iter().position(|down| *down), Some(0));
    assert_eq!(down.iter().filter(|down| **down).count(), 2);
    assert!(place.run(&["ps"]).ok().contains("waiting, down"));
    let listed = place.run(&["board", "ls", "--down", "--json"]).ok();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed, json!([{ "first": [0, 0, 0, 0, 0, 0], "nodes": [0, 1], "down": 2 }]));
    // A link of a node that is down stays down; so does one that was down before.
    place.run(&["link", "up", "1", "A"]).ok();
    place.run(&["node", "up", "t-0-0-0-0-0-1"]).ok();
    assert_eq!(links_down(&place), 4);
    assert!(place.run(&["board", "ls"]).ok().contains("0 1    1 of 2 down"));
    place.run(&["board", "up", "0"]).ok();
    assert_eq!(links_down(&place), 1);
    for (args, expected) in [
        (["node", "down", "12"], "node 12: the machine 1x1x1x2x3x2 has no such node"),
        (["node", "up", "north"], "tofu: node north: not a node; give an index"),
        (["board", "up", "north"], "any of its nodes: node north: not a node; give an index"),
        (["board", "up", "12"], "any of its nodes: node 12: the machine 1x1x1x2x3x2 has no"),
        (["board", "down", "other/0"], "no machine other is running"),
    ] {
        let error = place.run(&args).error();
        assert!(error.contains(expected), "{args:?}: {error}");
    }
    let error = place.run(&["node", "down", "0", "tofu/1"]).error();
    assert!(error.contains("all nodes of a command are of one machine"), "{error}");
    assert_eq!(links_down(&place), 1, "and nothing has changed");
    place.run(&["down"]).ok();
    machine.ok();
}

#[test]
fn tcp_streams_survive_any_single_board() {
    let place = Place::new();
    if !place.can_boot("tcp_streams_survive_any_single_board") {
        return;
    }
    let up = ["up", "--shape", "unit", "--json", "--timeout", "600s"];
    // The default path there leads over boards 1 and 4, and back over 3 and 0.
    let guest = ["--guest", "tcpbench", "--args", "verify=1 peer=9 bytes=300000000 count=1000"];
    let (mut machine, _) = place.start(&[&up[..], &guest].concat());
    place.wait_for_machine();
    wait_for("the others to have nothing to do", || {
        let nodes = nodes(&place);
        let ended = nodes.iter().filter(|(_, state)| state == "ended").count();
        nodes.len() == 12 && ended >= 10
    });
    // Each board without an end of the streams fails and is repaired, as long as there are streams.
    let mut failed = 0;
    'streams: for _ in 0..20 {
        for board in ["3", "5", "7", "11"] {
            let running = nodes(&place).iter().any(|(_, state)| state == "running");
            if !running || place.run(&["board", "down", board]).code != Some(0) {
                break 'streams;
            }
            failed += 1;
            // Long enough for a retransmission, and for the failure to be noticed.
            std::thread::sleep(std::time::Duration::from_millis(300));
            if place.run(&["board", "up", board]).code != Some(0) {
                break 'streams;
            }
        }
    }
    assert!(failed > 0, "the streams ended before any board failed");
    assert_eq!(machine.wait(), Some(0), "both ways were right to the last byte");
    place.is_clean();
}

#[test]
fn small_guests_end_with_their_board() {
    let place = Place::new();
    if !place.can_boot("small_guests_end_with_their_board") {
        return;
    }
    // Boards of the K computer have four nodes.
    let up = ["up", "--generation", "k", "--shape", "unit", "--json", "--timeout", "300s"];
    // Guests that do not need each other, and never end by themselves.
    let guest = ["--guest", "httpd", "--args", "count=0 forever=1"];
    let (mut machine, _) = place.start(&[&up[..], &guest].concat());
    place.wait_for_machine();
    wait_for("all to run", || {
        let nodes = nodes(&place);
        nodes.len() == 12 && nodes.iter().all(|(_, state)| state == "running")
    });
    place.run(&["board", "down", "0,0,0,1,2,1", "--keep-guests"]).ok();
    let found = nodes(&place);
    let kept: Vec<_> = (0..).zip(&found).filter(|(_, (down, _))| *down).collect();
    assert_eq!(kept.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [4, 5, 10, 11]);
    assert!(kept.iter().all(|(_, (_, state))| state == "running"), "{found:?}");
    place.run(&["board", "up", "11"]).ok();
    place.run(&["board", "down", "0"]).ok();
    let found = nodes(&place);
    let ended: Vec<_> = (0..).zip(&found).filter(|(_, (down, _))| *down).collect();
    assert_eq!(ended.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0, 1, 6, 7]);
    assert!(ended.iter().all(|(_, (_, state))| state == "ended"), "{found:?}");
    // Repaired nodes boot, each time.
    for _ in 0..3 {
        place.run(&["board", "up", "0"]).ok();
        let found = nodes(&place);
        assert!(found.iter().all(|(down, state)| !down && state == "running"), "{found:?}");
        assert_eq!(links_down(&place), 0);
        place.run(&["board", "down", "0"]).ok();
    }
    place.run(&["down"]).ok();
    assert_eq!(machine.wait(), Some(0), "it was taken down");
    place.is_clean();
}

/// A guest that crashes at once: with no exceptions to go to, it meets one.
fn crashing() -> Vec<u8> {
    // push 0; push 0; lidt [rsp]; ud2
    const CODE: [u8; 10] = [0x6a, 0, 0x6a, 0, 0x0f, 0x01, 0x1c, 0x24, 0x0f, 0x0b];
    const AT: u64 = 2 << 20;
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    // An executable for x86-64 with a program header, and no sections.
    elf.extend([2u8, 0, 62, 0, 1, 0, 0, 0]);
    elf.extend([AT, 64, 0].map(u64::to_le_bytes).concat());
    elf.extend([0u8, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0, 0, 0, 0, 0]);
    // To be loaded, to read and execute: offset, addresses, sizes, alignment.
    elf.extend([1u8, 0, 0, 0, 5, 0, 0, 0]);
    let size = CODE.len() as u64;
    elf.extend([120, AT, AT, size, size, 4096].map(u64::to_le_bytes).concat());
    elf.extend(CODE);
    elf
}

#[test]
fn failed_node_leaves_the_others_running() {
    let place = Place::new();
    if !place.can_boot("failed_node_leaves_the_others_running") {
        return;
    }
    std::fs::write(place.path().join("crash.elf"), crashing()).unwrap();
    let machine = "shape = \"1x1x1x2x1x2\"\nguest = \"httpd\"\nargs = \"count=0 forever=1\"\n\
                   timeout = \"300s\"\n[[node]]\nat = [0, 0, 0, 0, 0, 1]\nargs = \"\"\n\
                   guest = \"./crash.elf\"\n";
    let file = place.path().join("machine.toml");
    std::fs::write(&file, machine).unwrap();
    let file = file.to_str().unwrap();
    let up = ["up", "--json", "-c", file, "--fail-with-guest", "--grace", "1ms"];
    let (mut machine, _) = place.start(&up);
    place.wait_for_machine();
    let is_as_it_should = || {
        let nodes = nodes(&place);
        let is = |(node, (down, state)): (usize, &(bool, String))| match node {
            1 => *down && state == "ended",
            _ => !down && state == "running",
        };
        nodes.len() == 4 && nodes.iter().enumerate().all(is)
    };
    wait_for("its node to be down", is_as_it_should);
    // It boots again, and crashes again.
    place.run(&["node", "up", "1"]).ok();
    wait_for("its node to be down again", is_as_it_should);
    place.run(&["down"]).ok();
    assert_eq!(machine.wait(), Some(0), "it was taken down");
    place.is_clean();
}

/// A machine of small guests that put to each other, and its elements that are down.
struct Soak<'a> {
    place: &'a Place,
    cables: Vec<Link>,
    down: Down,
}

impl Soak<'_> {
    fn apply(&mut self, change: Change) {
        let keep = "--keep-guests";
        let (what, node, more, up) = match change {
            Change::Link(index, up) => {
                let Link { from, port, .. } = self.cables[index];
                ("link", self.down.node(from), Some(port.name()), up)
            }
            Change::Node(node, up) => ("node", node, (!up).then_some(keep), up),
            Change::Board(node, up) => ("board", node, (!up).then_some(keep), up),
        };
        let (state, node) = (if up { "up" } else { "down" }, node.to_string());
        let args: Vec<_> = [what, state, &node].into_iter().chain(more).collect();
        self.place.run(&args).ok();
        self.down.note(change);
    }
}

/// A random schedule of failures and repairs under guests that look at every byte.
fn soak(place: &Place, name: &str, seed: u64, changes: u32) {
    let shape: Shape = name.parse().unwrap();
    let nodes = shape.nodes();
    let args = format!("seed={seed} lossy=1 calm=10");
    let up = ["up", "--shape", name, "--timeout", "7200s", "--guest", "soak", "--args", &args];
    let machine = place.command(&up).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut machine = machine.unwrap();
    let mut lines = BufReader::new(machine.stdout.take().unwrap()).lines().map(Result::unwrap);
    let ready = lines.by_ref().filter(|line| line.contains("soaking")).take(nodes as usize).count();
    assert_eq!(ready, nodes as usize, "seed {seed}: they do not start");
    let down = Down::new(shape, Generation::Fugaku.description().board);
    let mut soak = Soak { place, cables: Link::all(&shape).collect(), down };
    let mut random = Random(seed);
    for _ in 0..changes {
        let change = random.change(nodes, soak.cables.len());
        soak.apply(change);
        // Guests that no longer lose anything conclude that everything is repaired.
        if soak.down.repairs().is_empty() {
            soak.apply(Change::Link(0, false));
        }
    }
    soak.down.repairs().into_iter().for_each(|change| soak.apply(change));
    assert!(soak.down.repairs().is_empty());
    let said: Vec<_> = lines.collect();
    assert_eq!(machine.wait().unwrap().code(), Some(0), "seed {seed}: {said:#?}");
    let all = |line: &String| line.starts_with(&format!("all {nodes} guests succeeded"));
    assert!(said.iter().any(all), "seed {seed}: {said:#?}");
    place.is_clean();
}

/// `TOFU_LONG` takes about an hour, half of the machines having 48 nodes.
#[test]
fn small_guests_lose_nothing_unreported() {
    let place = Place::new();
    if !place.can_boot("small_guests_lose_nothing_unreported") {
        return;
    }
    match std::env::var_os("TOFU_LONG") {
        Some(_) => (1..=20).for_each(|seed| {
            let name = if seed % 2 == 0 { "shelf" } else { "unit" };
            soak(&place, name, seed, 2000);
        }),
        None => soak(&place, "unit", 0, 60),
    }
}
