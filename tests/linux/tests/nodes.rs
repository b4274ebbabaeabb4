//! Linux nodes and their devices: discovery, use, and faults.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tofu_c_tests::have;
use tofu_linux_tests::{Image, MOMENT, PATIENCE, Place, Running, interrupt, kill, skip, wait_for};

/// A program that has lost its peer must notice within this time, on a busy host.
const NOTICED: Duration = Duration::from_secs(30);

/// The one device that `tofu-guest ls` shows on a node.
#[track_caller]
fn device(place: &Place, node: &str) -> Value {
    let devices = place.exec(node, &["tofu-guest", "ls", "--json"]).json();
    assert_eq!(devices.as_array().map(Vec::len), Some(1), "{devices}");
    devices[0].clone()
}

/// The self-test of a node's device passes.
#[track_caller]
fn self_test(place: &Place, node: &str) {
    let result = place.exec(node, &["tofu-guest", "selftest", "--json"]).json();
    let checks = result["checks"].as_array().unwrap();
    assert!(checks.len() >= 18 && checks.iter().all(|check| check["ok"] == true), "{result}");
    assert_eq!(result["ok"], true, "{result}");
}

/// The packets that a node's TNI 0 has sent; nothing if no program has the device.
fn sent(place: &Place, node: &str) -> u64 {
    let said = place.exec(node, &["tofu-guest", "counters", "--json"]);
    let counters: Value = serde_json::from_str(&said.out).unwrap_or_default();
    counters["TNI 0"]["NUM_SEND_TLP"].as_u64().unwrap_or(0)
}

/// Node 0 sends to node 1 without end; returns the two programs when they run.
#[track_caller]
fn traffic(place: &Place) -> [Running; 2] {
    // Minutes of 8 bytes each.
    let start = |node| place.start(&["exec", node, "--", "puts", "nodes=2", "count=4000000"]);
    let mut programs = [start("0"), start("1")];
    let end = Instant::now() + PATIENCE;
    let mut before = 0;
    loop {
        let now = sent(place, "0");
        if now > before && before > 2000 {
            return programs;
        }
        before = now;
        let stopped = programs.iter_mut().position(|program| !program.runs());
        if let Some(node) = stopped {
            panic!("node {node}: {:?}", programs.into_iter().nth(node).map(|p| p.end(MOMENT)));
        }
        assert!(Instant::now() < end, "nothing was sent within {PATIENCE:?}");
    }
}

/// Ends the receiver of [`traffic`], which waits for what does not come any more.
#[track_caller]
fn end_receiver(place: &Place, receiver: Running) {
    place.exec("1", &["killall", "puts"]).ok();
    assert_eq!(receiver.end(MOMENT).code, Some(128 + 15));
}

#[test]
fn two_nodes() {
    let Some(place) = Place::new(Image::Default) else { return };
    place.up(&["--name", "two", "--driver", "vfio"]);
    devices(&place);
    a_device_is_taken_away_in_mid_traffic(&place);
    commands_files_and_the_console(&place);
    no_silent_waits(&place);
    commands_on_a_terminal(&place);
    a_debugger_in_a_kernel(&place);
    place.run(&["down", "two"]).ok();
    assert_eq!(place.ps(), json!([]));
    place.is_clean();
}

/// A program that waits for others says so. A program whose wait never succeeds ends, or can be
/// ended.
fn no_silent_waits(place: &Place) {
    // A program whose peers do not run. The time must suffice for it to begin on a busy host.
    let waits = place.run(&["exec", "--timeout", "12", "0", "--", "allpairs"]);
    assert_eq!(waits.code, Some(124), "{waits:?}");
    assert!(waits.err.contains("waiting for 1 of 1 other nodes: (1,0,0,0,0,0)\n"), "{waits:?}");
    let waits = place.run(&["exec", "--timeout", "12s", "1", "--", "allpairs"]);
    let expected = "waiting for node (0,0,0,0,0,0), where no program has started\n";
    assert!(waits.err.contains(expected), "{waits:?}");

    // One program fails while the other would keep running.
    place.run(&["link", "down", "0", "1"]).ok();
    let said = place.start(&["exec", "--all", "--", "allpairs"]).end(MOMENT);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("has failed with exit code 1\n"), "{said:?}");
    place.run(&["link", "up", "0", "1"]).ok();
    let unequal = "case $(hostname) in t-1*) exit 5;; *) exec sleep 100;; esac";
    let said = place.start(&["exec", "--all", "--grace", "100ms", "--", "sh", "-c", unequal]);
    assert_eq!(said.end(MOMENT).code, Some(5));

    // A node that stands still.
    place.run(&["pause", "1"]).ok();
    let said = place.run(&["exec", "--timeout", "7", "1", "--", "true"]);
    assert_eq!(said.code, Some(124), "{said:?}");
    assert!(said.err.contains("tofu: node 1 does not answer"), "{said:?}");
    let mut hangs = place.start(&["exec", "1", "--", "true"]);
    let begun = Instant::now();
    while hangs.runs() && begun.elapsed() < MOMENT {
        // Longer than the time within which signals count as the same Ctrl-C, unless the host is
        // busy.
        std::thread::sleep(Duration::from_millis(700));
        interrupt(hangs.id());
    }
    assert_eq!(hangs.end(MOMENT).code, Some(130));
    let said = place.run(&["exec", "--all", "--timeout", "1", "--", "sleep", "100"]);
    assert_eq!(said.code, Some(124), "{said:?}");
    assert!(said.err.contains("does not end, though it was killed\n"), "{said:?}");
    place.run(&["resume", "1"]).ok();
    place.all_pairs(2, 1);
}

/// `tofu exec -t`, and the user's terminal after it.
fn commands_on_a_terminal(place: &Place) {
    if !have("script") {
        return skip("there is no script(1)");
    }
    let tofu = tofu_linux_tests::tofu();
    let on_node = format!("{} exec -t 0 -- sh -c 'tty; stty size; exit 7'", tofu.display());
    let here = format!("stty rows 33 cols 77; {on_node}; echo code $?; stty -a; exit 7");
    let mut command = std::process::Command::new("script");
    command.args(["-qec", &here, "/dev/null"]);
    // The environment that commands of this place have.
    for (name, value) in place.command(&[]).get_envs() {
        value.map(|value| command.env(name, value));
    }
    let said = Running::start(command, b"").end(MOMENT);
    assert_eq!(said.code, Some(7), "{said:?}");
    for expected in ["/dev/pts/", "33 77\r\n", "code 7\r\n", " icanon", " echo "] {
        assert!(said.out.contains(expected), "{expected:?} is missing: {said:?}");
    }
    let error = place.run(&["exec", "-t", "0", "--", "true"]).error();
    assert!(error.contains("are not a terminal"), "{error}");
}

/// `tofu gdb`: names of functions of kernel and modules, and a node that keeps running afterwards.
fn a_debugger_in_a_kernel(place: &Place) {
    let error = place.run(&["gdb", "2"]).error();
    assert!(error.contains("node 2: the machine two has no such node"), "{error}");
    let error = place.run(&["gdb", "0", "--gdb", "/no/gdb"]).error();
    assert!(error.contains("cannot run /no/gdb: No such file"), "{error}");
    let files = || -> Vec<String> {
        let folder = std::fs::read_dir(place.path().join("tofu/two")).unwrap();
        let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("gdb-")).collect()
    };
    let goes_on = || {
        place.exec("0", &["true"]).ok();
        assert_eq!(files(), [""; 0]);
    };
    goes_on();
    if !have("gdb") {
        return skip("there is no gdb");
    }
    // A function of a module, and one of the kernel that is called all the time.
    let script = "grep -m 1 ' t .*\\[' /proc/kallsyms";
    let line = place.exec("0", &["sh", "-c", script]).ok();
    let mut words = line.split_ascii_whitespace();
    let (address, name) = (words.next().unwrap().to_owned(), words.nth(1).unwrap().to_owned());
    let reads = "while :; do cat /proc/uptime; done >/dev/null";
    let reader = place.start(&["exec", "0", "--", "sh", "-c", reads]);
    let symbol = format!("info symbol 0x{address}");
    let commands = ["break *vfs_read", "continue", "backtrace 2", "delete", &symbol];
    let args: Vec<_> = commands.iter().flat_map(|command| ["-ex", command]).collect();
    let said = place.run(&[&["gdb", "0", "--", "-batch"], &args[..]].concat());
    assert_eq!(said.code, Some(0), "{said:?}");
    let expected = ["Breakpoint 1, ", " in vfs_read ()", &format!("{name} in section")];
    assert!(expected.iter().all(|text| said.out.contains(text)), "{said:?}");
    goes_on();
    // One debugger at a time; one that is killed releases the node as well.
    let holds = place.start(&["gdb", "0", "--", "-ex", "continue"]);
    let socket = || files().iter().any(|file| file.ends_with(".sock"));
    wait_for("the debugger", PATIENCE, socket);
    let error = place.run(&["gdb", "0"]).error();
    assert!(error.contains("node 0: another tofu gdb holds it"), "{error}");
    tofu_linux_tests::signal(holds.id(), Signal::TERM);
    assert_eq!(holds.end(PATIENCE).code, Some(1));
    goes_on();
    interrupt(reader.id());
    reader.end(MOMENT);
}

/// The devices according to the machine, the kernel and programs.
fn devices(place: &Place) {
    let ps = place.ps();
    assert_eq!(ps[0]["shape"], "2x1x1x1x1x1");
    for (index, node) in ["0", "1"].into_iter().enumerate() {
        let own = &ps[0]["nodes"][index];
        assert_eq!((&own["state"], &own["vmm"]), (&json!("ready"), &json!("qemu")));
        // According to the device's registers, as read by the machine.
        assert_eq!(own["at"], json!([index, 0, 0, 0, 0, 0]));
        let device = device(place, node);
        assert_eq!(device["coords"], own["at"], "{device}");
        assert!(device["iommu_group"].is_number(), "{device}");
        // Its IOMMU maps ranges, and memory consists of some: registering is a message for each.
        let large = "/sys/kernel/mm/transparent_hugepage/hugepages-256kB/enabled";
        let of_iommu = format!("ls /sys/class/iommu | grep -v dmar; cat {large}");
        let said = place.exec(node, &["sh", "-c", &of_iommu]).ok();
        assert!(said.contains("0000:00:") && said.contains("[always]"), "{said}");
        // As the kernel has it.
        let path = format!("/sys/bus/pci/devices/{}", device["device"].as_str().unwrap());
        let of_kernel = format!("cd {path}; cat vendor device class");
        let said = place.exec(node, &["sh", "-c", &of_kernel]).ok();
        assert_eq!(said, "0x10cf\n0x1ccd\n0x028000\n");
    }
    for _ in 0..2 {
        place.exec_all(&["tofu-guest", "bind"]);
        assert_eq!(device(place, "0")["driver"], "vfio-pci");
        place.all_pairs(2, 5);
        place.exec_all(&["tofu-guest", "unbind"]);
        assert_eq!(device(place, "1")["driver"], Value::Null);
    }
    // Programs bind it themselves.
    place.all_pairs(2, 1);
    // No notice is lost, although QEMU's writes of registers may arrive late.
    place.exec_all(&["stream", "max=64", "bytes=1280000"]);
    self_test(place, "1");
}

#[test]
fn linux_and_bare_nodes_on_one_torus() {
    let Some(place) = Place::new(Image::Default) else { return };
    if place.doctor()["can_run"] != true {
        return skip("bare guests need KVM, which this host does not have");
    }
    let file = place.file("machine.toml");
    let text = "shape = \"2x2x1x1x1x1\"\nguest = \"allpairs\"\nargs = \"rounds=3\"\n\
                [[node]]\nat = [0, 1, 0, 0, 0, 0]\nlinux = true\n\
                [[node]]\nat = [1, 0, 0, 0, 0, 0]\nlinux = true\n";
    std::fs::write(&file, text).unwrap();
    let out = place.run(&["up", "--json", "-c", &file]).ok();
    let events: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| events.iter().filter(|event| event["event"] == kind).collect::<Vec<_>>();
    let lines = of("line");
    let verified = |line: &Value| {
        let text = line["text"].as_str().unwrap();
        text.starts_with("3 peers: put, get and atomic verified 3 times, ")
    };
    assert_eq!(lines.iter().filter(|line| verified(line)).count(), 4, "{out}");
    // One node prints the sum over all.
    let sum = |line: &&&Value| line["text"].as_str().unwrap().contains(" nodes by ");
    let sums: Vec<_> = lines.iter().filter(sum).collect();
    assert!(sums.len() == 1 && sums[0]["text"].as_str().unwrap().contains(": sum 10, "), "{out}");
    let ended = of("ended");
    assert!(ended.len() == 4 && ended.iter().all(|node| node["code"] == 0), "{out}");
    let summary = of("summary");
    assert_eq!((&summary[0]["ok"], &summary[0]["succeeded"]), (&json!(true), &json!(4)), "{out}");
    place.is_clean();
}

#[test]
fn monitor_is_killed_in_mid_traffic() {
    let Some(place) = Place::new(Image::Default) else { return };
    place.up(&["--shape", "3x1x1x1x1x1", "--driver", "vfio", "--fail-with-guest"]);
    place.all_pairs(3, 1);

    // The one that is sent to.
    let programs = traffic(&place);
    kill(place.node(1)["pid"].as_u64().unwrap());
    let [sender, receiver] = programs;
    let said = sender.end(NOTICED);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!((said.out + &said.err).contains("FAILED: a Put ended with result code"));
    let said = receiver.end(MOMENT);
    assert!(
        said.code == Some(126) && said.err.contains("node 1: the node has stopped"),
        "{said:?}"
    );
    wait_for("node 1 to be off", MOMENT, || place.node(1)["state"] == "off");
    let error = place.exec("1", &["true"]).error();
    assert!(error.ends_with("the node is not up"), "{error}");
    wait_for("node 1 to be down", MOMENT, || place.node(1)["down"] == true);
    for node in ["0", "2"] {
        self_test(&place, node);
    }
    place.run(&["restart", "1"]).ok();
    wait_for("node 1 to be repaired", MOMENT, || place.node(1)["down"] == false);
    assert_eq!(device(&place, "1")["coords"], json!([1, 0, 0, 0, 0, 0]));
    place.all_pairs(3, 3);

    // A node that takes no part in the others' traffic fails and is repaired, which does not affect
    // them.
    let mut programs = traffic(&place);
    place.run(&["node", "down", "2"]).ok();
    let node = place.node(2);
    assert_eq!((&node["state"], &node["down"]), (&json!("off"), &json!(true)), "{node}");
    assert_eq!(place.run(&["link", "ls", "--down"]).ok().lines().count(), 2);
    let before = sent(&place, "0");
    place.run(&["node", "up", "2"]).ok();
    let node = place.node(2);
    assert_eq!((&node["state"], &node["down"]), (&json!("ready"), &json!(false)), "{node}");
    self_test(&place, "2");
    assert!(sent(&place, "0") > before);
    assert!(programs.iter_mut().all(Running::runs));
    for node in ["0", "1"] {
        place.exec(node, &["killall", "puts"]).ok();
    }
    for program in programs {
        assert_eq!(program.end(MOMENT).code, Some(128 + 15));
    }
    place.all_pairs(3, 1);
    place.run(&["down"]).ok();
    place.is_clean();
}

fn a_device_is_taken_away_in_mid_traffic(place: &Place) {
    // Reset of the device of the receiving program.
    let [sender, receiver] = traffic(place);
    place.exec("1", &["tofu-guest", "reset"]).ok();
    let said = receiver.end(NOTICED);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!((said.out + &said.err).contains("FAILED: the device was reset"));
    let said = sender.end(NOTICED);
    assert_eq!(said.code, Some(1), "{said:?}");
    self_test(place, "1");
    place.all_pairs(2, 3);

    // Reset of the one that sends.
    let [sender, receiver] = traffic(place);
    place.exec("0", &["tofu-guest", "reset"]).ok();
    assert_eq!(sender.end(NOTICED).code, Some(1));
    end_receiver(place, receiver);
    self_test(place, "0");

    // Unbound while the program uses it: the program releases it.
    let [sender, receiver] = traffic(place);
    let start = Instant::now();
    place.exec("1", &["tofu-guest", "unbind"]).ok();
    assert!(start.elapsed() < NOTICED);
    let said = receiver.end(NOTICED);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!((said.out + &said.err).contains("is being taken away"));
    assert_eq!(sender.end(NOTICED).code, Some(1));
    assert_eq!(device(place, "1")["driver"], Value::Null);
    place.exec("1", &["tofu-guest", "bind"]).ok();
    self_test(place, "1");
    place.all_pairs(2, 3);

    // A program is killed, at either end.
    for node in ["1", "0"] {
        let [sender, receiver] = traffic(place);
        place.exec(node, &["killall", "-9", "puts"]).ok();
        let (killed, other) = if node == "0" { (sender, receiver) } else { (receiver, sender) };
        assert_eq!(killed.end(MOMENT).code, Some(128 + 9));
        if node == "1" {
            assert_eq!(other.end(NOTICED).code, Some(1));
        } else {
            end_receiver(place, other);
        }
        self_test(place, node);
        place.all_pairs(2, 3);
    }
}

fn commands_files_and_the_console(place: &Place) {
    // The output streams, the input and the exit code are the program's own.
    let said = place.exec("0", &["sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((said.out.as_str(), said.err.as_str(), said.code), ("out\n", "err\n", Some(7)));
    let said = place.exec("0", &["sh", "-c", "kill -9 $$"]);
    assert_eq!(said.code, Some(128 + 9));
    assert_eq!(place.exec("0", &["nosuch"]).code, Some(127));
    assert_eq!(place.exec("0", &["/etc/passwd"]).code, Some(126));
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
    let said = place.run_with(&["exec", "0", "--", "sha256sum"], &bytes);
    let sum = said.ok();
    // A signal to the command is passed to the program.
    let mut sleeper = place.start(&[
        "exec",
        "0",
        "--",
        "sh",
        "-c",
        "trap 'exit 42' INT; echo on; sleep 60 & wait",
    ]);
    assert_eq!(sleeper.line(), "on\n");
    tofu_linux_tests::interrupt(sleeper.id());
    assert_eq!(sleeper.end(MOMENT).code, Some(42));
    // If the command dies, so does the program.
    let mut sleeper = place.start(&["exec", "0", "--", "sh", "-c", "echo on; exec sleep 12345"]);
    assert_eq!(sleeper.line(), "on\n");
    kill(sleeper.id());
    let gone = || place.exec("0", &["sh", "-c", "! pgrep -f 'sleep 1234[5]'"]).code == Some(0);
    wait_for("the program to die", MOMENT, gone);

    // A folder with a file of some size, an empty one, a program and a link, copied there and back.
    let folder = place.path().join("folder");
    std::fs::create_dir_all(folder.join("deep/er")).unwrap();
    std::fs::write(folder.join("data"), &bytes).unwrap();
    std::fs::write(folder.join("deep/er/empty"), "").unwrap();
    std::fs::write(folder.join("deep/program"), "#!/bin/sh\necho I run; exit 3\n").unwrap();
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode(0o750);
    std::fs::set_permissions(folder.join("deep/program"), mode).unwrap();
    std::os::unix::fs::symlink("deep/program", folder.join("link")).unwrap();
    place.run(&["cp", folder.to_str().unwrap(), "0:/tmp"]).ok();
    let said = place.exec("0", &["sh", "-c", "sha256sum < /tmp/folder/data; /tmp/folder/link"]);
    assert_eq!((said.out, said.code), (format!("{sum}I run\n"), Some(3)));
    let back = place.path().join("back");
    place.run(&["cp", "0:/tmp/folder", back.to_str().unwrap()]).ok();
    assert_eq!(std::fs::read(back.join("data")).unwrap(), bytes);
    assert_eq!(std::fs::read(back.join("deep/er/empty")).unwrap(), b"");
    let program = back.join("deep/program").metadata().unwrap();
    assert_eq!(program.permissions().mode() & 0o777, 0o750);
    assert_eq!(std::fs::read_link(back.join("link")).unwrap().to_str(), Some("deep/program"));
    let error = place.run(&["cp", "0:/no/file", back.to_str().unwrap()]).error();
    assert!(error.contains("/no/file"), "{error}");

    // A console, before and after something is typed.
    place.run_with(&["console", "two/0"], b"\necho typed-$((40+2))\n").ok();
    let answered = || place.run(&["console", "0"]).ok().contains("typed-42");
    wait_for("the console to answer", MOMENT, answered);

    // A guest that switches itself off is off, and comes back.
    // The machine may be gone before it has said how that ended.
    let _ = place.exec("0", &["poweroff"]);
    wait_for("the node to be off", MOMENT, || place.node(0)["state"] == "off");
    place.run(&["restart", "0"]).ok();
    assert_eq!(place.exec("0", &["ls", "/tmp/folder"]).code, Some(1));
}
