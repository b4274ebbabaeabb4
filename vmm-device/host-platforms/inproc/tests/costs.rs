//! The cost of a Put over direct links in instructions and allocations, and of a traced one and of
//! a frame of IP over Tofu in instructions, so that none of them grows unnoticed.
//!
//! The tests run this program under Valgrind with two numbers of Puts or frames; the difference is
//! due to these alone, whatever the host does meanwhile. Instructions depend on the compiler, so
//! with another one they are not counted, and the numbers here must be measured again.

use std::process::Command;
use std::sync::Arc;

use tofu_abi::topology::Shape;
use tofu_abi::{Coords, TniId};
use tofu_driver::{Device, PacketConfig};
use tofu_inproc::{InProcess, Pair};
use tofu_ipotofu::{Config, Link};
use tofu_machine::{Machine, MachineConfig};

/// The compiler of the counts. The profile is that of tests.
const COMPILER: &str = "1.95.";
/// Instructions of commands of this many bytes, measured with that compiler in `ci/test`.
/// Optimised, a Put of 8 bytes takes 6306. In tests, inlining changes with the size of crates and
/// with what is compiled together, and so do these numbers. The last one is for a Put of which 64
/// share a doorbell.
const MEASURED: [(What, u32, f64); 6] = [
    (What::Put, 8, 14_690.0),
    (What::Put, 4096, 15_090.0),
    (What::Get, 8, 14_840.0),
    (What::Piggyback, 8, 14_590.0),
    (What::Add, 8, 13_550.0),
    (What::SharedPut, 8, 12_550.0),
];
/// Commands that share a doorbell.
const SHARED: u32 = 64;
/// By how much it may be more.
const MARGIN: f64 = 0.03;

/// The number of additional instructions of a traced one: four records, each with a look at the
/// processor's counter.
const TRACED: f64 = 1_560.0;
/// By how much that may be more: it is a difference, so what is inlined weighs more.
const TRACED_MARGIN: f64 = 0.1;

/// Instructions of a frame of this many bytes from one node to another, the devices' among them.
const FRAMES: [(u32, f64); 3] = [(60, 19_440.0), (1514, 23_640.0), (9014, 333_530.0)];

/// Tells the test to do something else instead.
const ASKED: &str = "TOFU_COST";

/// This program's modes under Valgrind.
#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Put,
    TracedPut,
    Frame,
    Get,
    Piggyback,
    Add,
    SharedPut,
}

impl What {
    const ALL: [Self; 7] = [
        Self::Put,
        Self::TracedPut,
        Self::Frame,
        Self::Get,
        Self::Piggyback,
        Self::Add,
        Self::SharedPut,
    ];
}

/// The count of a tool of Valgrind for so many Puts or frames of so many bytes, after these words
/// of what it prints.
fn count(tool: &[&str], words: &str, what: What, [bytes, times]: [u32; 2]) -> u64 {
    let itself = std::env::current_exe().expect("a program knows where it is");
    let output = Command::new("valgrind")
        .args(tool)
        .arg(itself)
        .args(["--exact", "work_for_valgrind", "--test-threads", "1"])
        .env(ASKED, format!("{} {bytes} {times}", what as u32))
        .output()
        .expect("it was there a moment ago");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let count = said
        .lines()
        .find_map(|line| line.split_once(words))
        .map(|(_, rest)| rest.trim_start().split(' ').next().unwrap_or_default().replace(',', ""));
    count.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no count: {said}"))
}

/// Instructions of a Put or frame of so many bytes.
fn instructions(what: What, bytes: u32) -> f64 {
    let tool = ["--tool=callgrind", "--callgrind-out-file=/dev/null"];
    let all = |times| count(&tool, "Collected :", what, [bytes, times * SHARED]);
    (all(48) - all(16)) as f64 / f64::from(32 * SHARED)
}

/// Whether there is a Valgrind, for programs like this one.
fn valgrind() -> Result<(), &'static str> {
    let itself = std::env::current_exe().expect("a program knows where it is");
    let mut command = Command::new("valgrind");
    let output = command.arg("--tool=none").arg(itself).arg("--list").output();
    match output.map_err(|_| "there is no valgrind")?.status.success() {
        true => Ok(()),
        false => Err("valgrind is for other processors"),
    }
}

fn says(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns true if instructions can be counted here. If not, says that the test is skipped.
fn counts(test: &str) -> bool {
    let compiler = says("rustc").unwrap_or_default();
    let why = if !cfg!(target_arch = "x86_64") {
        "counts are of x86-64".into()
    } else if let Err(why) = valgrind() {
        why.into()
    } else if !compiler.starts_with(&format!("rustc {COMPILER}")) {
        format!("counts are of Rust {COMPILER}x, not of {}", compiler.trim())
    } else {
        return true;
    };
    eprintln!("SKIP {test}: {why}");
    false
}

/// Does nothing unless this program asks itself for Puts or frames.
#[test]
fn work_for_valgrind() {
    let Ok(asked) = std::env::var(ASKED) else { return };
    let mut numbers = asked.split(' ').map(|n| n.parse::<u32>().expect("a number"));
    let mut number = || numbers.next().expect("three numbers");
    let (what, bytes, times) = (What::ALL[number() as usize], number(), number());
    match what {
        What::Frame => frames(bytes, times),
        what => commands(what, bytes, times),
    }
}

fn commands(what: What, bytes: u32, times: u32) {
    let mut pair = Pair::new().expect("two nodes");
    let order = match what {
        What::Get => pair.get(bytes),
        What::Piggyback => pair.piggyback(),
        What::Add => pair.add(),
        _ => pair.put(bytes),
    };
    let traced = what == What::TracedPut;
    let _trace = traced.then(|| pair.network().trace().expect("a trace"));
    let at_once = if what == What::SharedPut { SHARED } else { 1 };
    for _ in 0..times / at_once {
        pair.run_many(&order, at_once as usize).expect("the command succeeds");
    }
}

/// Sends frames from one node to another, which takes them one by one.
fn frames(bytes: u32, times: u32) {
    let shape = Shape::new([1, 1, 1, 2, 1, 1]).expect("two nodes");
    let machine = Arc::new(Machine::new(MachineConfig::new(shape)).expect("a machine"));
    let node = |at| {
        let platform = InProcess::attach(&machine, at, 64 << 20).expect("memory");
        let device = Device::probe(platform).expect("a device");
        let packets = PacketConfig { interrupts: false, ..PacketConfig::new(TniId::ALL[0]) };
        let config = Config { mtu: 9000, offload: true, ..Config::new(shape) };
        Link::open(&device, config, &packets).expect("a link")
    };
    let mut nodes = [Coords::new(0, 0, 0, 0, 0, 0), Coords::new(0, 0, 0, 1, 0, 0)].map(node);
    let [from, to] = &mut nodes;
    let mut frame = [&to.mac()[..], &from.mac(), &[0x88, 0xb5]].concat();
    frame.resize(bytes as usize, 7);
    let mut buf = vec![0; 1 << 14];
    for _ in 0..times {
        from.send(&frame).expect("there is room");
        from.flush();
        while machine.run_turn() {}
        assert_eq!(to.recv(&mut buf), Some(frame.len()));
        from.flush();
    }
}

#[test]
fn direct_put_allocates_nothing() {
    let test = "direct_put_allocates_nothing";
    if let Err(why) = valgrind() {
        eprintln!("SKIP {test}: {why}");
        return;
    }
    let allocations = |puts| count(&["--tool=memcheck"], "total heap usage:", What::Put, [8, puts]);
    let more = allocations(1500).abs_diff(allocations(500));
    eprintln!("{more} allocations more for 1000 Puts more");
    // Some of the test's own, of which it has the one time more than the other.
    assert!(more < 100, "{more} allocations for 1000 Puts");
}

/// Asserts that a Put or frame takes no more instructions than it did, and a margin.
fn is_no_more(what: &str, bytes: u32, each: f64, measured: f64) {
    eprintln!("{bytes} bytes: {each:.0} instructions a {what}, {measured} when it was measured");
    assert!(each <= measured * (1.0 + MARGIN), "{bytes} bytes: {each}, more than {measured}");
}

#[test]
fn direct_commands_cost_no_more() {
    if !counts("direct_commands_cost_no_more") {
        return;
    }
    for (what, bytes, measured) in MEASURED {
        is_no_more(&format!("{what:?}"), bytes, instructions(what, bytes), measured);
    }
}

#[test]
fn trace_of_put_costs_no_more() {
    if !counts("trace_of_put_costs_no_more") {
        return;
    }
    let more = instructions(What::TracedPut, 8) - instructions(What::Put, 8);
    eprintln!("traced: {more:.0} more, {TRACED} when it was measured");
    assert!(more <= TRACED * (1.0 + TRACED_MARGIN), "traced: {more}, more than {TRACED}");
}

#[test]
fn ip_frame_costs_no_more() {
    if !counts("ip_frame_costs_no_more") {
        return;
    }
    for (bytes, measured) in FRAMES {
        is_no_more("frame", bytes, instructions(What::Frame, bytes), measured);
    }
}
