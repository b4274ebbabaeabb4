//! Many concurrent uTofu processes on a Linux node, with `tofud`: C programs (see
//! `programs/processes.c`), built as a user would build them and copied to the nodes with their
//! libraries.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tofu_c_tests::{have, libraries, run};
use tofu_linux_tests::{Image, MOMENT, PATIENCE, Place, Said, skip, wait_for};

/// The folder of all files in a node.
const THERE: &str = "/tmp/utofu";

/// A machine of two nodes that have the programs; or `None`, after the reason was printed.
fn machine() -> Option<Place> {
    if !have("gcc") {
        skip("there is no gcc");
        return None;
    }
    let place = Place::new(Image::Default)?;
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = libraries().join("libtofucom.so");
    let folder = place.path().join("utofu");
    fs::create_dir(&folder).unwrap();
    let program = folder.join("processes");
    let waits = "../../guest-lib/utofu/c/tests/wait.c";
    for (source, program) in
        [("programs/processes.c", program.clone()), (waits, folder.join("wait"))]
    {
        run(Command::new("gcc")
            .args(["-Wall", "-Wextra", "-Werror", "-O2", "-DONE_PROCESS", "-o"])
            .arg(&program)
            .arg(here.join(source))
            .arg("-I")
            .arg(here.join("../../guest-lib/utofu/c/include"))
            .arg(&library));
    }
    // A node does not have a C library.
    let list =
        run(Command::new("ldd").arg(&program).env("LD_LIBRARY_PATH", library.parent().unwrap()));
    let mut libraries: Vec<_> = list
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect();
    libraries.push(library);
    for library in libraries {
        fs::copy(&library, folder.join(library.file_name().unwrap())).unwrap();
    }
    place.up(&["--memory", "768MiB", "--driver", "vfio"]);
    for node in 0..2 {
        place.run(&["cp", folder.to_str().unwrap(), &format!("{node}:/tmp")]).ok();
    }
    Some(place)
}

/// The command that runs the program on a node.
fn processes<'a>(node: &'a str, args: &[&'a str]) -> Vec<&'a str> {
    [&started(node, "/tmp/utofu/processes"), args].concat()
}

/// The command that runs a program on a node.
fn started<'a>(node: &'a str, program: &'a str) -> [&'a str; 7] {
    let loader = "/tmp/utofu/ld-linux-x86-64.so.2";
    ["exec", node, "--", loader, "--library-path", THERE, program]
}

/// Threads sleep by interrupts of queues, which this process has alone or through `tofud`.
fn by_interrupt(place: &Place) {
    assert_eq!(place.run(&started("0", "/tmp/utofu/wait")).ok(), "ok\n");
}

/// Runs the program on both nodes at the same time.
#[track_caller]
fn on_both(place: &Place, args: &[&str], time: Duration) -> [String; 2] {
    let start = |node| place.start(&processes(node, &[&["node", node], args].concat()));
    let running = ["0", "1"].map(start);
    running.map(|program| program.end(time).ok())
}

/// The processes that a program lists, each with the rounds that it did.
fn rounds(out: &str) -> BTreeSet<(u32, u64)> {
    let line = |line: &str| {
        let (process, rounds) = line.strip_prefix("process ")?.split_once(": ")?;
        Some((process.parse().ok()?, rounds.strip_suffix(" rounds")?.parse().ok()?))
    };
    out.lines().filter_map(line).collect()
}

/// Returns true if a program that uses VFIO by itself gets the device.
fn others_have_it(place: &Place) -> Said {
    place.exec("0", &["tofu-guest", "selftest"])
}

#[test]
fn many_processes() {
    let Some(place) = machine() else { return };
    that_nobody_counted(&place);
    by_interrupt(&place);
    of_two_nodes(&place);
    without_their_broker(&place);
    place.run(&["down"]).ok();
    place.is_clean();
}

fn that_nobody_counted(place: &Place) {
    // One process, and as many as there are queues on all TNIs, started at once.
    for count in ["1", "8", "11", "2"] {
        let out = place.run(&processes("0", &["many", count, "20"])).ok();
        let expected = (0..count.parse().unwrap()).map(|process| (process, 20)).collect();
        assert_eq!(rounds(&out), expected, "{out}");
    }
    let said = place.run(&processes("0", &["many", "12", "1"]));
    assert_eq!(said.code, Some(1), "{said:?}");
    let text = "UTOFU_ERR_FULL: Tofu device: no control queue is free on all TNIs";
    assert!(said.err.contains(text), "{said:?}");
    // A queue belongs to its process, no matter which process has inherited the descriptors.
    // Another process keeps the device open during that.
    let mut other = place.start(&processes("0", &["orphan", "/tmp/go"]));
    assert_eq!(other.line(), "ready\n");
    place.run(&processes("0", &["heir", "/tmp/go"])).ok();
    let out = place.run(&processes("0", &["many", "10", "2"])).ok();
    assert_eq!(rounds(&out).len(), 10, "{out}");
    place.exec("0", &["touch", "/tmp/go"]).ok();
    other.end(PATIENCE).ok();
    // They have left nothing behind.
    others_have_it(place).ok();
    place.exec("0", &["rm", "/tmp/go"]).ok();
}

fn of_two_nodes(place: &Place) {
    let out = on_both(place, &["8", "4", "40"], PATIENCE).concat();
    assert_eq!(rounds(&out), (0..12).map(|process| (process, 40)).collect(), "{out}");
    // The first of twelve is killed again and again in the middle of large Puts.
    let out = on_both(place, &["8", "4", "0", "8"], 2 * PATIENCE);
    assert!(out[0].contains("killed 8 times\n"), "{out:?}");
    let out = rounds(&out.concat());
    let all: BTreeSet<_> = out.iter().map(|(process, _)| *process).collect();
    assert_eq!(all, (1..12).collect(), "{out:?}");
    let counts: BTreeSet<_> = out.iter().map(|(_, rounds)| *rounds).collect();
    assert_eq!(counts.len(), 1, "{out:?}");
    others_have_it(place).ok();
}

/// It is killed, and comes back.
fn without_their_broker(place: &Place) {
    let mut program = place.start(&processes("0", &["orphan", "/tmp/go"]));
    assert_eq!(program.line(), "ready\n");
    let refused = others_have_it(place);
    assert!(refused.code != Some(0) && refused.err.contains("in use"), "{refused:?}");
    let old = place.exec("0", &["pidof", "tofud"]).ok();
    place.exec("0", &["kill", "-9", old.trim()]).ok();
    wait_for("a new tofud", MOMENT, || {
        let new = place.exec("0", &["pidof", "tofud"]);
        new.code == Some(0) && new.out != old
    });
    // The process keeps its queues; others get none until it ends.
    let said = place.run(&processes("0", &["many", "1", "1"]));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("in use by another process"), "{said:?}");
    place.exec("0", &["touch", "/tmp/go"]).ok();
    let out = program.end(PATIENCE).ok();
    let gone = "utofu_create_vcq: UTOFU_ERR_OUT_OF_RESOURCE: control queue 1: tofud, which knows \
                who has it, is gone";
    assert_eq!(out, format!("ready\nputs\nfurther queue: {gone}\n"));
    let out = place.run(&processes("0", &["many", "8", "3"])).ok();
    assert_eq!(rounds(&out).len(), 8, "{out}");
    // Further queues are available while the broker runs.
    let out = place.run(&processes("0", &["orphan", "/tmp/go"])).ok();
    assert_eq!(out, "ready\nputs\nfurther queue: yes\n");
    // No program needs a broker once the broker and the network have released the device.
    others_have_it(place).ok();
    place.exec("0", &["sh", "-c", "rm /run/tofu/*.sock; killall tofu-net"]).ok();
    let out = place.run(&processes("0", &["many", "1", "3"])).ok();
    assert_eq!(rounds(&out).len(), 1, "{out}");
    by_interrupt(place);
}
