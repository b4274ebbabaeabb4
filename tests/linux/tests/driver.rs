//! The kernel driver `tofu.ko` in Linux nodes: its own C tests (`guest-lib/kernel/tests`), uTofu
//! programs on it, and a program that knows the public interface alone; between two nodes, and
//! while the driver comes and goes. The image with the driver takes minutes to make, so these tests
//! only run where it has been made.

use std::time::Duration;

use tofu_linux_tests::driver::{self, image, is_well, passed, passes};
use tofu_linux_tests::sdk::{Sdk, has_compiler};
use tofu_linux_tests::{PATIENCE, Place, Running};

/// C programs that need no library.
const PROGRAMS: [&str; 7] = ["ioctls", "users", "memory", "races", "put", "barrier", "foreign"];

/// Two nodes with the driver.
struct Nodes {
    place: Place,
    sdk: Sdk,
}

/// A machine of two nodes with the driver and the C programs in /tmp; or `None`, after it was
/// said why not.
fn machine(test: &str) -> Option<Nodes> {
    if !has_compiler(test) {
        return None;
    }
    let place = driver::place(test)?;
    let sdk = Sdk::new(&place);
    place.up(&["--image", &image(), "--memory", "768MiB"]);
    driver::programs(&place, &PROGRAMS, &["0", "1"]);
    Some(Nodes { place, sdk })
}

impl Nodes {
    fn position(&self, node: &str) -> Vec<String> {
        let text = self.place.exec(node, &["cat", "/proc/tofu/position"]).ok();
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Starts one of the C programs on a node.
    fn start(&self, node: &str, command: &[&str]) -> Running {
        let program = format!("/tmp/{}", command[0]);
        self.place.start(&[&["exec", node, "--", &program], &command[1..]].concat())
    }

    /// Runs a uTofu program as a job, and returns its lines in order.
    #[track_caller]
    fn job(&self, args: &[&str], time: Duration) -> Vec<String> {
        let command = self.sdk.command(&self.place, &[&["run"], args].concat());
        let out = Running::start(command, b"").end(time).ok();
        let mut lines: Vec<_> = out.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    }
}

/// A Put between two nodes without a library, of a length that is no multiple of anything.
fn puts(nodes: &Nodes) {
    let common = ["2", "3", "1000003", "7"];
    let mut receiver = nodes.start("1", &[&["put", "receive"], &common[..]].concat());
    assert_eq!(receiver.line(), "ready\n");
    let to = nodes.position("1");
    let to: Vec<_> = to.iter().map(String::as_str).collect();
    passed(&nodes.start("0", &[&["put", "send"], &common[..], &to].concat()).end(PATIENCE));
    let out = receiver.end(PATIENCE).ok();
    assert!(out.contains("ok 2 1000003 bytes as sent"), "{out}");
}

/// A program that somebody else could have written, between two nodes and on one.
fn foreign_program(nodes: &Nodes) {
    for (server, queue, bytes) in [("1", "4", "3000001"), ("1", "4", "100"), ("0", "7", "70000")] {
        let mut serving = nodes.start(server, &["foreign", "serve", "2", queue, bytes]);
        let line = serving.line();
        let address = line.trim().strip_prefix("ADDRESS ").expect(&line);
        let to = nodes.position(server);
        let to: Vec<_> = to.iter().map(String::as_str).collect();
        let command = [&["foreign", "send", "2", "5", bytes], &to[..], &[address]].concat();
        assert_eq!(nodes.start("0", &command).end(PATIENCE).ok(), "ok\n");
        assert_eq!(serving.end(PATIENCE).ok(), format!("{line}ok\n"));
    }
}

/// Rounds of a barrier between two nodes, without a library.
fn barriers(nodes: &Nodes) {
    let go = nodes.place.path().join("go");
    let go = go.to_str().unwrap();
    let members = [("0", "1"), ("1", "0")].map(|(me, other)| {
        let to = nodes.position(other);
        let to: Vec<_> = to.iter().map(String::as_str).collect();
        nodes.start(me, &[&["barrier", "meet", me, "200"], &to[..]].concat())
    });
    let members = members.map(|mut member| {
        assert_eq!(member.line(), "ready\n");
        member
    });
    // Both have their gates.
    std::fs::write(go, "").unwrap();
    for node in ["0", "1"] {
        nodes.place.run(&["cp", go, &format!("{node}:/tmp/go")]).ok();
    }
    members.into_iter().for_each(|member| passed(&member.end(PATIENCE)));
}

/// libtofucom takes the driver by itself: programs as on every node.
fn utofu_programs(nodes: &Nodes) {
    for (name, expected) in [
        ("counter", &["0: counter 2000, each number drawn once: yes"][..]),
        ("pingpong", &["0: 1000 rounds of 4096 bytes, first byte 208"]),
        ("striping", &["1: 12582912 bytes over 6 TNIs, 0 wrong"]),
        ("stride", &["0: 2 ranks, halo columns of 300 rows, 0 wrong"]),
        ("piggyback", &["0: 128 of 128 letters as they were written"]),
        ("prepared", &["0: 100 rounds of 192 bytes of descriptors, 0 wrong"]),
        ("sizes", &["0: 22 sizes up to 16777215 bytes, 22 as they were sent"]),
        ("threads", &["0: 2 ranks of 4 threads: each number drawn once"]),
    ] {
        let source = format!("../../guest-lib/utofu/examples/c/{name}.c");
        nodes.sdk.compile(&source, &["-ltofucom", "-ltofutop", "-lpthread"]);
        assert_eq!(nodes.job(&["-n", "2", &format!("./{name}")], PATIENCE), expected, "{name}");
    }
    // Many processes: those that nobody has counted, as many as there are queues; then those of two
    // nodes, of which one is killed again and again in the middle of large Puts.
    nodes.sdk.compile("programs/processes.c", &["-ltofucom"]);
    let job = ["-n", "1", "--no-prefix", "./processes", "many", "11", "20"];
    let mut expected: Vec<_> = (0..11).map(|n| format!("process {n}: 20 rounds")).collect();
    expected.sort_unstable();
    assert_eq!(nodes.job(&job, PATIENCE), expected);
    let job = ["-n", "2", "./processes", "node", "rank", "6", "4", "0", "20"];
    let out = nodes.job(&job, 2 * PATIENCE);
    assert!(out.contains(&"0: killed 20 times".to_owned()), "{out:?}");
    assert_eq!(out.len(), 10, "one line, and one for each of nine processes: {out:?}");
}

/// Loading and unloading, also while queues are open and mapped and Puts are under way.
fn comes_and_goes(nodes: &Nodes, times: u32) {
    let script = format!(
        "for i in $(seq {times}); do \
             /tmp/races 60 $i >/dev/null 2>&1 & sleep 0.$((1 + i % 4)); \
             rmmod tofu || exit 1; [ -e /proc/tofu ] && exit 2; \
             kill -9 $! 2>/dev/null; wait; \
             modprobe tofu || insmod /lib/modules/*/kernel/tofu/tofu.ko || exit 3; \
             cat /proc/tofu/position >/dev/null || exit 4; \
         done"
    );
    let command = ["exec", "0", "--", "sh", "-c", &script];
    nodes.place.run_for(&command, 4 * PATIENCE, b"").ok();
}

#[test]
fn the_driver_and_its_tests() {
    let Some(nodes) = machine("the_driver_and_its_tests") else { return };
    assert_ne!(nodes.position("0"), nodes.position("1"));
    assert_eq!(nodes.position("0").len(), 6);

    for test in ["ioctls", "users", "memory", "barrier"] {
        passes(&nodes.place, "0", &[&format!("/tmp/{test}")]);
    }
    passes(&nodes.place, "0", &["/tmp/races", "5"]);
    puts(&nodes);
    barriers(&nodes);
    foreign_program(&nodes);
    utofu_programs(&nodes);
    let times = if std::env::var_os("TOFU_LONG").is_some() { 100 } else { 10 };
    comes_and_goes(&nodes, times);
    passes(&nodes.place, "0", &["/tmp/users"]);
    foreign_program(&nodes);
    for node in ["0", "1"] {
        is_well(&nodes.place, node);
    }
    nodes.place.run(&["down"]).ok();
    nodes.place.is_clean();
}
