//! Barrier gates of processes on Linux nodes, with `tofud`: a C program (see
//! `programs/barriers.c`), run as a job on three nodes.

use std::fs;

use tofu_linux_tests::sdk::{Sdk, has_compiler};
use tofu_linux_tests::{Image, PATIENCE, Place, Running, skip, sorted, wait_for};

/// A line of each of `ranks` ranks.
fn of_each(ranks: usize, line: &str) -> Vec<String> {
    (0..ranks).map(|rank| format!("{rank}: {line}")).collect()
}

#[test]
fn gates_of_processes_on_three_nodes() {
    if !has_compiler() {
        return;
    }
    let Some(place) = Place::new(Image::Default) else { return };
    let sdk = Sdk::new(&place);
    sdk.compile("programs/barriers.c", &["-ltofucom", "-ltofutop"]);
    place.up(&["--shape", "3x1x1x1x1x1", "--driver", "vfio"]);
    let start = |ranks: &str, part: &str| {
        let args = ["run", "-n", ranks, "./barriers", part];
        Running::start(sdk.command(&place, &args), b"")
    };

    // Two processes a node.
    let out = start("6", "groups").end(PATIENCE).ok();
    let line = "6 ranks: 60 rounds right, gates ran out and came back";
    assert_eq!(sorted(&out), of_each(6, line));

    // All gates belong to processes that are killed in the middle of a round.
    let killed = start("6", "hold").end(PATIENCE);
    assert_eq!(killed.code, Some(128 + 9), "{killed:?}");
    let out = start("6", "take").end(PATIENCE).ok();
    assert_eq!(sorted(&out), of_each(6, "took all and met"));

    // A node's gates keep working while its processor is paused.
    let mut job = start("3", "stopped");
    assert_eq!(job.line(), "1: started\n");
    let qemu = place.node(1)["pid"].as_u64().unwrap();
    place.run(&["pause", "1"]).ok();
    wait_for("QEMU to stop", PATIENCE, || {
        let stat = fs::read_to_string(format!("/proc/{qemu}/stat")).unwrap();
        stat.rsplit(')').next().unwrap().trim_start().starts_with('T')
    });
    for node in ["0", "2"] {
        place.exec(node, &["touch", "/tmp/go"]).ok();
    }
    let seen: String = (0..4).map(|_| job.line()).collect();
    assert_eq!(sorted(&seen), ["0: 60 sums", "0: met", "2: 60 sums", "2: met"]);
    place.run(&["resume", "1"]).ok();
    assert_eq!(job.line(), "1: over\n");
    job.end(PATIENCE).ok();

    place.run(&["down"]).ok();
    place.is_clean();
}

/// The same with a small guest in KVM, held between two instructions.
#[test]
fn gates_of_a_paused_guest() {
    let place = Place::empty();
    let doctor = place.doctor();
    if doctor["can_run"] != true {
        skip(&format!("no KVM: {}", doctor["kvm"]["problem"]));
        return;
    }
    let shape = ["--name", "three", "--shape", "3x1x1x1x1x1", "--timeout", "140s"];
    let guest = ["--guest", "barrier", "--args", "through=12"];
    let mut machine = place.start(&[&["up"], &shape[..], &guest].concat());
    let is_node = |line: &str, node: u32| line.contains(&format!("{node},0,0,0,0,0"));
    let sums = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "sums")?;
        words[at - 1].parse::<u64>().ok()
    };
    let mut until = |what: &str, found: &mut dyn FnMut(&str) -> bool| {
        // More lines than there are in all.
        for _ in 0..2000 {
            if found(&machine.line()) {
                return;
            }
        }
        panic!("no line of {what}");
    };
    until("the relay", &mut |line| is_node(line, 1) && line.contains("relays"));
    place.run(&["pause", "1"]).ok();
    // Earlier output may still be on its way. Lines of node 1 end, those of the others do not.
    let mut quiet = 0;
    let mut greatest = 0;
    until("the others alone", &mut |line| {
        quiet = if is_node(line, 1) { 0 } else { quiet + 1 };
        greatest = greatest.max(sums(line).unwrap_or(0));
        quiet >= 20
    });
    until("further sums", &mut |line| sums(line).is_some_and(|sums| sums > greatest));
    place.run(&["resume", "1"]).ok();
    until("the relay again", &mut |line| is_node(line, 1) && line.contains("relays"));
    machine.end(PATIENCE).ok();
    place.is_clean();
}
