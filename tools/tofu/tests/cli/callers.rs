//! Effects of a command on its caller: the descriptors that it keeps, and what it returns
//! if its output is not read.

use std::fs;
use std::io::{self, Read};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tofu_linux_tests::signal;

use crate::tofu::Place;

/// Small guests that run until they are ended.
const ENDLESS: [&str; 9] = [
    "up",
    "--shape",
    "2x1x1x1x1x1",
    "--timeout",
    "120s",
    "--guest",
    "ping",
    "--args",
    "count=1000000",
];

/// Runs a command whose output goes to a pipe without a reader.
fn unread(place: &Place, args: &[&str]) -> Option<i32> {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    place.command(args).stdout(writer).stdin(Stdio::null()).status().unwrap().code()
}

#[test]
fn output_that_is_not_read_is_no_success() {
    let place = Place::new();
    for args in [&["topo", "--shape", "half-rack", "--json"][..], &["doctor"], &["guest", "ls"]] {
        assert_eq!(unread(&place, args), Some(141), "{args:?}");
    }
    if !place.can_boot("output_that_is_not_read_is_no_success") {
        return;
    }
    assert_eq!(unread(&place, &ENDLESS), Some(141));
    place.is_clean();
    // A pipeline has its reader's code, so what was to stay is there.
    assert_eq!(unread(&place, &[&ENDLESS[..], &["--detach"]].concat()), Some(0));
    place.wait_for_machine();
    place.run(&["down"]).ok();
    place.is_clean();
}

/// The exit code of a command that a shell starts.
fn by_shell(place: &Place, script: &str, args: &[&str]) -> Option<i32> {
    let tofu = place.command(args);
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(tofu.get_program()).args(tofu.get_args());
    command.envs(tofu.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.output().unwrap().status.code()
}

#[test]
fn small_address_space_suffices() {
    let place = Place::new();
    let limited = r#"ulimit -v 100000; exec "$@""#;
    for args in [&["--version"][..], &["up", "--help"], &["topo"]] {
        assert_eq!(by_shell(&place, limited, args), Some(0), "{args:?}");
    }
}

#[test]
fn output_without_room_is_an_error() {
    let place = Place::new();
    for args in [&["--help"][..], &["--version"], &["help", "up"], &["topo"]] {
        assert_eq!(by_shell(&place, "exec \"$@\" >/dev/full", args), Some(2), "{args:?}");
    }
    for args in [&["topo", "--shape", "none"][..], &["nothing"]] {
        assert_eq!(by_shell(&place, "exec \"$@\" 2>/dev/full", args), Some(2), "{args:?}");
    }
    let picture = place.path().join("picture.svg");
    let args = ["topo", "--shape", "half-rack", "--svg", picture.to_str().unwrap()];
    assert_eq!(by_shell(&place, "ulimit -f 1; exec \"$@\"", &args), Some(2));
}

#[test]
fn detached_machine_keeps_nothing_of_caller() {
    let place = Place::new();
    if !place.can_boot("detached_machine_keeps_nothing_of_caller") {
        return;
    }
    // Two descriptors more than a program expects: a file, and a pipe that is its output, too.
    let file = place.path().join("callers");
    let (mut reader, writer) = io::pipe().unwrap();
    let up = place.command(&[&ENDLESS[..], &["--detach"]].concat());
    let mut command = Command::new("sh");
    command.args(["-c", "exec 7>\"$1\" 8>&1; shift; exec \"$@\"", "sh"]).arg(&file);
    command.arg(up.get_program()).args(up.get_args());
    command.envs(up.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stderr(writer.try_clone().unwrap()).stdout(writer).stdin(Stdio::null());
    let mut child = command.spawn().unwrap();
    drop(command);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    // Ends only if no process has it any more.
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    assert!(said.contains("is ready after"), "{said}");
    let processes: Vec<_> = fs::read_dir("/proc").unwrap().flatten().collect();
    for fd in processes.iter().flat_map(|process| fs::read_dir(process.path().join("fd"))) {
        let has = fd.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == file));
        assert!(!has, "a process has kept {}", file.display());
    }
    let machine = place.ps()[0]["pid"].as_u64().unwrap();
    signal(machine, Signal::TERM);
    place.is_clean();
}
