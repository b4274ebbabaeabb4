//! Linux nodes under QEMU.
//!
//! They need an image and QEMU, which `tofu image build` puts into the cache.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tofu_c_tests::{have, run};
use tofu_linux_tests::{interrupt, janitor, kill, signal};
use tofu_sandbox::Support;

use crate::tofu::{Place, wait_for};

/// Returns true if Linux nodes can run without anything being fetched first; if not, prints that.
fn can_run(place: &Place, test: &str) -> bool {
    let doctor = place.run(&["doctor", "--json"]);
    let doctor: Value = serde_json::from_str(&doctor.out).unwrap_or_default();
    let images = doctor["linux"]["images"].as_array();
    let image = images.is_some_and(|images| images.iter().any(|image| image == "default"));
    let qemu = !doctor["linux"]["qemu"].is_null();
    if !image || !qemu {
        eprintln!("SKIP {test}: no QEMU or no default image in the cache: run tofu image build");
    }
    image && qemu
}

fn detached(place: &Place, args: &[&str]) -> String {
    place.run(&[&["up", "--linux", "--detach"], args].concat()).ok()
}

fn pid(value: &Value) -> u64 {
    value["pid"].as_u64().unwrap()
}

#[test]
fn machine_works_from_up_to_down() {
    let place = Place::new();
    if !can_run(&place, "machine_works_from_up_to_down") {
        return;
    }
    // The least memory that is allowed is enough.
    let error = place.run(&["up", "--linux", "--memory", "80MiB"]).error();
    assert!(error.contains("80MiB of memory are too little for a Linux node with this"), "{error}");
    let least = error.split("give ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let out = detached(&place, &["--name", "one", "--net", "lan", "--memory", least]);
    assert!(out.contains("machine one is ready after "), "{out}");
    let error = place.run(&["up", "--linux", "--name", "one"]).error();
    assert!(error.contains("the name one is taken"), "{error}");

    let ps = place.ps();
    assert_eq!(ps[0]["shape"], "2x1x1x1x1x1");
    let nodes = ps[0]["nodes"].as_array().unwrap();
    assert!(nodes.iter().all(|node| node["state"] == "ready" && node["vmm"] == "qemu"), "{ps}");

    let bytes: Vec<u8> = (0..1_000_000u32).map(|n| (n * 7 / 3) as u8).collect();
    programs(&place, &bytes);

    // The device, and the other node over the Ethernet.
    let devices = place.run(&["exec", "1", "--", "sh", "-c", "cat /sys/bus/pci/devices/*/vendor"]);
    assert!(devices.ok().contains("0x10cf"));
    place.run(&["exec", "0", "--", "ping", "-c", "1", "-W", "10", "10.84.0.2"]).ok();

    // Files.
    let file = place.path().join("file");
    std::fs::write(&file, &bytes).unwrap();
    place.run(&["cp", file.to_str().unwrap(), "1:/tmp/copy"]).ok();
    let back = place.path().join("back");
    place.run(&["cp", "1:/tmp/copy", back.to_str().unwrap()]).ok();
    assert_eq!(std::fs::read(&back).unwrap(), bytes);
    let error = place.run(&["cp", "1:/no/file", back.to_str().unwrap()]).error();
    assert!(error.contains("node 1: cannot read /no/file"), "{error}");
    assert_eq!(std::fs::read(&back).unwrap(), bytes);
    let error = place.run(&["cp", file.to_str().unwrap(), "1:/no/folder/x"]).error();
    assert!(error.contains("node 1: there is no folder /no/folder"), "{error}");

    // The console, before and after something is typed.
    place.run_with(&["console", "0"], b"\necho typed-$((40+2))\n");
    wait_for("the console to answer", || place.run(&["console", "0"]).ok().contains("typed-42"));
    // The firmware's reset, its clearing of the screen and the shell's questions are filtered out.
    let console = place.run(&["console", "0"]).ok();
    for sequence in ["\u{1b}c", "\u{1b}[?7l", "\u{1b}[2J", "\u{1b}[6n"] {
        assert!(!console.contains(sequence), "{console:?}");
    }

    // Nodes whose processors were stopped, and nodes whose guest is silent for another reason.
    place.run(&["pause", "1"]).ok();
    let monitor = pid(&place.ps()[0]["nodes"][0]);
    signal(monitor, Signal::STOP);
    let ps = place.ps();
    signal(monitor, Signal::CONT);
    let states = [0, 1].map(|node: usize| ps[0]["nodes"][node]["state"].clone());
    assert_eq!(states, ["not answering", "paused"]);
    place.run(&["resume", "1"]).ok();
    wait_for("both to answer", || {
        let ps = place.ps();
        ps[0]["nodes"].as_array().is_some_and(|nodes| nodes.iter().all(|n| n["state"] == "ready"))
    });

    // A monitor that is killed takes only its node with it.
    kill(pid(&place.ps()[0]["nodes"][0]));
    wait_for("node 0 to be off", || place.ps()[0]["nodes"][0]["state"] == "off");
    let error = place.run(&["exec", "0", "--", "true"]).error();
    assert!(error.ends_with("the node is not up"), "{error}");
    assert_eq!(place.run(&["exec", "1", "--", "hostname"]).ok(), "t-1-0-0-0-0-0\n");
    place.run(&["restart", "0"]).ok();
    assert_eq!(place.run(&["exec", "0", "--", "hostname"]).ok(), "t-0-0-0-0-0-0\n");

    place.run(&["down", "one"]).ok();
    place.is_clean();
}

/// A program's streams, code and input, under each name of a node.
fn programs(place: &Place, bytes: &[u8]) {
    let said = place.run(&["exec", "0", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((said.out.as_str(), said.err.as_str(), said.code), ("out\n", "err\n", Some(7)));
    for node in ["1", "1,0,0,0,0,0", "t-1-0-0-0-0-0", "one/1"] {
        assert_eq!(place.run(&["exec", node, "--", "hostname"]).ok(), "t-1-0-0-0-0-0\n");
    }
    let said =
        place.run_with(&["exec", "0", "--", "sh", "-c", "cat > /tmp/in; wc -c < /tmp/in"], bytes);
    assert_eq!(said.ok().trim(), "1000000");
    let said = place.run(&["exec", "0", "--", "nosuch"]);
    assert_eq!(said.code, Some(127));
    assert!(said.err.starts_with("tofu: node 0: cannot run nosuch: "), "{}", said.err);
    let error = place.run(&["exec", "2", "--", "true"]).error();
    assert!(error.contains("node 2: the machine one has no such node"), "{error}");
    let said = place.run(&["exec", "--all", "--", "sh", "-c", "cat /proc/cmdline; exit 3"]);
    assert_eq!(said.code, Some(3));
    let mut lines: Vec<_> = said.out.lines().collect();
    lines.sort_unstable();
    assert!(lines[0].starts_with("(0,0,0,0,0,0) ") && lines[0].contains("tofu.nodes=2"));
    assert!(lines[1].starts_with("(1,0,0,0,0,0) ") && lines[1].contains("tofu.name=t-1-0"));
}

/// The content of a file that passes for a kernel.
fn bz_image() -> Vec<u8> {
    let mut file = vec![0; 1025];
    file[0x1f1] = 1;
    file[0x202..0x206].copy_from_slice(b"HdrS");
    file[0x206..0x208].copy_from_slice(&0x20f_u16.to_le_bytes());
    file[0x236] = 1;
    file[0x24c] = 1;
    file
}

/// The rights of a stand-in for QEMU, and its user.
fn stand_in(place: &Place, more: &[&str]) -> String {
    let file = |name: &str| place.path().join(name);
    fs::write(file("kernel"), bz_image()).unwrap();
    fs::write(file("initrd"), "x").unwrap();
    fs::write(file("secret"), "x").unwrap();
    let [kernel, initrd] = ["kernel", "initrd"].map(|name| file(name).display().to_string());
    let args = ["up", "--linux", "--vmm", "qemu", "--shape", "1x1x1x1x1x1", "--name", "one"];
    let kit = ["--kernel", &kernel, "--initrd", &initrd];
    let tofu = place.command(&[&args[..], &kit, more].concat());
    // A descriptor of the caller's, too.
    let mut command = Command::new("sh");
    command.args(["-c", "exec 9>/dev/null; exec \"$@\"", "sh"]);
    command.arg(tofu.get_program()).args(tofu.get_args());
    command.envs(tofu.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("TOFU_QEMU", file("monitor")).env("TOFU_CACHE", file("cache"));
    command.env("QEMU_CONTROL", file("tofu/one/control")).env("QEMU_SECRET", file("secret"));
    command.env("TOFU_TEST_SECRET", "x");
    let error = place.run_command(command).error();
    let said = error.split("allowed:").nth(1).and_then(|said| said.split('.').next());
    said.unwrap_or_else(|| panic!("{error}")).to_owned()
}

/// QEMU reaches no files or processes of the host and of the user.
#[test]
fn replaced_qemu_is_noticed() {
    let test = "replaced_qemu_is_noticed";
    let place = Place::new();
    if !have("cc") {
        eprintln!("SKIP {test}: no cc");
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/programs/monitor.c");
    run(Command::new("cc").arg("-o").arg(place.path().join("monitor")).arg(source));
    // Without a sandbox all of this is possible, which shows that the test itself works.
    let free = stand_in(&place, &["--no-sandbox"]);
    for able in [" control", " read", " write", " run", " udp", " signal", " environment"] {
        assert!(free.contains(able), "{free}");
    }
    let support = Support::probe();
    if let Err(reason) = support.seccomp.map(drop).and(support.landlock.map(drop)) {
        eprintln!("SKIP {test}: {reason}");
        return;
    }
    assert_eq!(stand_in(&place, &[]), "");
    place.is_clean();
}

#[test]
fn killed_processes_leave_nothing() {
    let place = Place::new();
    if !can_run(&place, "killed_processes_leave_nothing") {
        return;
    }
    // The machine's process.
    detached(&place, &[]);
    let machine = pid(&place.ps()[0]);
    assert!(!place.processes().is_empty());
    kill(machine);
    place.is_clean();
    // Its janitor, and then it.
    detached(&place, &[]);
    let machine = pid(&place.ps()[0]);
    kill(janitor(machine));
    assert_eq!(place.run(&["exec", "0", "--", "echo", "on"]).ok(), "on\n");
    kill(machine);
    wait_for("the monitors to die", || place.processes().iter().all(|p| !p.contains("qemu")));
    assert_eq!(place.run(&["ps"]).ok(), "no machine is running\n");
    place.is_clean();
}

#[test]
fn ctrl_c_while_it_boots() {
    let place = Place::new();
    if !can_run(&place, "ctrl_c_while_it_boots") {
        return;
    }
    let (mut process, machine) = place.start(&["up", "--linux", "--json"]);
    assert_eq!((&machine["event"], &machine["vms"]), (&"machine".into(), &2.into()));
    wait_for("a monitor to run", || {
        place.ps()[0]["nodes"].as_array().is_some_and(|n| n.iter().any(|n| n["state"] == "booting"))
    });
    interrupt(process.id());
    assert_eq!(process.wait(), Some(130));
    place.is_clean();
}

#[test]
fn node_that_does_not_boot_is_reported() {
    let place = Place::new();
    if !can_run(&place, "node_that_does_not_boot_is_reported") {
        return;
    }
    // A kernel that panics, and says so.
    let error = place.run(&["up", "--linux", "--append", "rdinit=/no/init root=none"]).error();
    assert!(error.contains("the last lines of its console: "), "{error}");
    assert!(error.contains("Kernel panic"), "{error}");
    place.is_clean();
    let start = std::time::Instant::now();
    let error = place.run(&["up", "--linux", "--boot-timeout", "500ms"]).error();
    assert!(error.contains("did not come up within 0.5 s; "), "{error}");
    assert!(start.elapsed() < Duration::from_secs(60));
    place.is_clean();
}
