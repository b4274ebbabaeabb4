//! Linux nodes in modelled time: time stops at the requested time, and while a debugger holds a
//! node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use std::{fs, thread};

use rustix::process::Signal;
use serde_json::Value;
use tofu_c_tests::have;
use tofu_linux_tests::{Image, Place, Running, interrupt, net, signal, skip, sorted, wait_for};

/// Nodes in modelled time boot slowly on a busy host.
const BOOT: Duration = Duration::from_secs(400);
const LONG: Duration = Duration::from_secs(200);

/// Two nodes with one link between them. With two, a SYN may come over the first that is up again,
/// and its answer be lost on the other.
const SHAPE: &str = "1x1x1x2x1x1";

/// A unit of twelve nodes.
const UNIT: &str = "1x1x1x2x3x2";

/// A machine of two nodes, which no driver has.
fn up(place: &Place, more: &[&str]) {
    up_as(place, SHAPE, more);
}

/// A machine whose nodes no driver has.
fn up_as(place: &Place, shape: &str, more: &[&str]) {
    let image = ["--image", Image::Default.name(), "--driver", "vfio", "--shape", shape];
    // Slow processors, whose programs execute less while they wait.
    let up = ["up", "--linux", "--detach", "--time", "modelled", "--ns-per-instruction", "1"];
    place.run_for(&[&up[..], &image, more].concat(), BOOT, b"").ok();
}

/// Runs a program on both nodes, which exchange messages `count` times.
fn talk(count: &str) -> Vec<&str> {
    let talk = ["exec", "--all", "--", "pingpong", "shape=1x1x1x2x1x1", "nodes=2", "wait=poll"];
    [&talk[..], &["max=8", count]].concat()
}

fn time(place: &Place) -> Value {
    place.run(&["time", "--json"]).json()["time"].take()
}

/// Traces the Puts of both nodes from now on.
fn begin_trace(place: &Place) -> Running {
    let trace = place.start(&["trace", "--kind", "put", "--json"]);
    // It has told the machine by then.
    thread::sleep(Duration::from_secs(2));
    trace
}

/// Ends a trace. Returns its commands, a line each.
fn traced(trace: Running) -> Vec<String> {
    interrupt(trace.id());
    trace.end(LONG).ok().lines().map(ToOwned::to_owned).collect()
}

/// Waits until time stands still. Returns where, and what can be seen of the machine then.
fn state(place: &Place) -> (u64, String, Vec<String>) {
    wait_for("time to stand still", LONG, || time(place)["stands"].is_object());
    let time = time(place);
    let stands = &time["stands"];
    let mut seen = Vec::new();
    for guest in time["guests"].as_array().unwrap() {
        let counts = ["accesses", "commands"].map(|of| guest[of].as_u64().unwrap());
        seen.push(format!("{counts:?}"));
    }
    for node in 0..seen.len() {
        let node = &node.to_string();
        let mut device = place.run(&["inspect", node, "device", "--json"]).json();
        // Looking at registers counts there.
        device["tree"]["rules"].take();
        seen.push(device.to_string());
        if have("gdb") {
            let registers = ["gdb", node, "--", "-batch", "-ex", "info registers"];
            let said = place.run(&registers).ok();
            assert!(said.contains("rip "), "{said}");
            seen.push(said);
        }
    }
    (stands["ps"].as_u64().unwrap(), stands["text"].as_str().unwrap().to_owned(), seen)
}

/// Compares what was seen at two stops.
#[track_caller]
fn is_same(one: &(u64, String, Vec<String>), other: &(u64, String, Vec<String>)) {
    assert_eq!((one.0, &one.1), (other.0, &other.1));
    for (one, other) in one.2.iter().zip(&other.2) {
        assert_eq!(one, other);
    }
}

#[test]
fn a_replay_stops_at_the_same_state() {
    let Some(place) = Place::new(Image::Default) else { return };
    let record = place.file("input.jsonl");
    up(&place, &["--record", &record]);
    let before = time(&place)["guests"][0]["commands"].as_u64().unwrap();
    let trace = begin_trace(&place);
    let recorded = place.run_for(&talk("count=100"), LONG, b"").ok();
    let first_trace = traced(trace);
    let after = time(&place)["guests"][0]["commands"].as_u64().unwrap();
    place.run(&["down"]).ok();
    // In the middle of it.
    let number = (before + after) / 2;
    assert!(number > before + 10, "{before} to {after}");

    let until = format!("node 0 command {number}");
    up(&place, &["--replay", &record, "--until", &until]);
    let first = state(&place);
    let (at, text, seen) = &first;
    assert!(text.contains(&format!("as node 0 has started command {number} at ")), "{text}");
    assert!(seen[0].ends_with(&format!(", {number}]")), "{seen:?}");
    // Inspection does not change the state.
    is_same(&state(&place), &first);
    place.run(&["down"]).ok();

    // One steps back by running again, and forward from there.
    let sooner = at - 1_000_000_000;
    up(&place, &["--replay", &record, "--until", &format!("{sooner}ps")]);
    let (stands, why, before) = state(&place);
    assert_eq!(stands, sooner);
    assert!(why.starts_with("modelled time stands still at ") && !why.contains("node"), "{why}");
    assert_ne!(before, *seen);
    let error = place.run(&["time", "--until", "1us"]).error();
    assert!(error.contains("ms already"), "{error}");
    place.run_for(&["time", "--until", &format!("{at}ps")], LONG, b"").ok();
    let (stands, _, again) = state(&place);
    is_same(&(stands, text.clone(), again), &first);
    // And to the end of the program, with the same commands at the same times.
    let trace = begin_trace(&place);
    place.run(&["time", "--go-on"]).ok();
    assert_eq!(place.run_for(&talk("count=100"), LONG, b"").ok(), recorded);
    let rest = traced(trace);
    assert!(rest.len() > 50, "{rest:?}");
    assert!(first_trace.ends_with(&rest), "{:?}\n{:?}", first_trace.last(), rest.last());
    place.run(&["down"]).ok();
    place.is_clean();
}

/// Twelve nodes exchange messages, sum numbers, ping and send a stream. Then they show their
/// clocks, interrupts and logs. These must be the same in replays, one of them on a busy host and
/// with a QEMU that does not run for a while, with devices and registers in the same state at the
/// end.
#[test]
fn unit_runs_the_same_on_a_busy_host() {
    if !net::long() {
        return;
    }
    let Some(place) = Place::new(Image::Default) else { return };
    let all = |program: &str| {
        let guest = format!("{program} shape={UNIT} nodes=12 wait=poll");
        let words = guest.split(' ').map(ToOwned::to_owned);
        ["exec", "--all", "--"].map(ToOwned::to_owned).into_iter().chain(words).collect::<Vec<_>>()
    };
    let shell = |node: &str, line: &str| {
        ["exec", node, "--", "sh", "-c", line].map(ToOwned::to_owned).to_vec()
    };
    let commands = [
        all("pingpong max=8 count=10"),
        all("allreduce rounds=10"),
        shell("0", "ping -c 3 -i 0.01 n11"),
        shell("11", "nc -l -p 5000 > /tmp/got & sleep 0.01"),
        shell("0", "head -c 65536 /dev/urandom | nc n11 5000"),
        shell("--all", "cat /proc/uptime /proc/interrupts /proc/net/snmp; md5sum /tmp/got; dmesg"),
    ];
    let said = || {
        let run = |words: &Vec<String>| {
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            // The host decides in which order nodes' lines are printed.
            sorted(&place.run_for(&words, 2 * LONG, b"").ok())
        };
        commands.iter().map(run).collect::<Vec<_>>()
    };
    let record = place.file("input.jsonl");
    up_as(&place, UNIT, &["--record", &record]);
    let recorded = said();
    assert!(recorded[2].iter().any(|line| line.contains(" 0% packet loss")), "{recorded:?}");
    let end = time(&place)["modelled_ns"].as_u64().unwrap() / 1000 + 1;
    place.run(&["down"]).ok();

    let mut ends = Vec::new();
    for busy in [false, true] {
        let stop = Arc::new(AtomicBool::new(false));
        let load: Vec<_> = (0..if busy { 4 } else { 0 })
            .map(|_| {
                let stop = Arc::clone(&stop);
                thread::spawn(move || while !stop.load(Relaxed) {})
            })
            .collect();
        up_as(&place, UNIT, &["--replay", &record, "--until", &format!("{end}us")]);
        if busy {
            let qemu = place.node(7)["pid"].as_u64().unwrap();
            signal(qemu, Signal::STOP);
            thread::sleep(Duration::from_secs(2));
            signal(qemu, Signal::CONT);
        }
        for (again, first) in said().iter().zip(&recorded) {
            assert_eq!(again, first);
        }
        ends.push(state(&place));
        stop.store(true, Relaxed);
        load.into_iter().for_each(|thread| thread.join().unwrap());
        place.run(&["down"]).ok();
    }
    is_same(&ends[0], &ends[1]);
    place.is_clean();
}

/// A machine without input from outside needs no record to run again.
#[test]
fn programs_at_boot_print_the_same_in_each_run() {
    if !net::long() {
        return;
    }
    let Some(place) = Place::new(Image::Default) else { return };
    let up = ["up", "--linux", "--time", "modelled", "--driver", "vfio", "--shape", SHAPE];
    let guest = ["--guest", "pingpong", "--args", "wait=poll max=64 count=200", "--json"];
    let run = || {
        let said = place.run_for(&[&up[..], &guest].concat(), BOOT, b"").ok();
        let mut lines = sorted(&said);
        lines.retain(|line| line.contains(r#""event":"line""#));
        lines
    };
    let (first, second) = (run(), run());
    assert!(first.iter().any(|line| line.contains(" 64 ")), "{first:?}");
    assert_eq!(first, second);
    place.is_clean();
}

#[test]
fn a_run_ends_where_time_is_to_stop() {
    let Some(place) = Place::new(Image::Default) else { return };
    let run = ["run", "--time", "modelled", "--image", Image::Default.name(), "--until"];
    let ends = |until: &str, program: &[&str]| {
        let said = place.run_for(&[&run[..], &[until, "-n", "1"], program].concat(), BOOT, b"");
        assert_eq!(said.code, Some(125), "{said:?}");
        said
    };
    // While it boots, and while the program runs.
    let said = ends("10ms", &["true"]);
    assert!(said.err.contains("stands still at 10 ms; the run ends here (--until)"), "{said:?}");
    // The guest's timer ticks every ten instructions.
    let clock = "dmesg | grep -o '[0-9.]* MHz counter'; sleep 10000";
    let fast = ["--root", "sh", "-c", clock];
    let said = ends("100s", &fast);
    assert_eq!(said.out, "0: 333.333333 MHz counter\n");
    assert!(said.err.contains("stands still at 100000 ms; the run ends here"), "{said:?}");
    assert!(said.err.contains("modelled time 100.000000 s, "), "{said:?}");
    let said = place.run(&[&run[..], &["soon", "true"]].concat());
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("such as 250ms, 1.5s or"), "{said:?}");
    place.is_clean();
}

/// Starts a debugger that has node 0 at once and writes `attached`, waits for `go`, and holds the
/// node in the middle of a program that polls. Then it writes `held`, and lets go 10 s later.
fn hold_in_program(place: &Place, [attached, go, held]: [&str; 3]) -> Running {
    let waits = format!("shell touch {attached}; until test -e {go}; do sleep 0.1; done");
    let holds = format!("shell touch {held}; sleep 10");
    // A tick of the kernel that a program has, about 1000 rounds after the one before.
    let stop = ["break account_user_time", "ignore 1 5", "continue"];
    let commands = [&[&*waits][..], &stop, &[&*holds, "delete", "backtrace"]].concat();
    let commands = commands.into_iter().flat_map(|command| ["-ex", command]);
    let words: Vec<_> = ["gdb", "0", "--", "-batch"].into_iter().chain(commands).collect();
    place.start(&words)
}

/// A debugger holds one node for 10 s of the host. No time passes on the other one, either,
/// although their programs wait for each other.
#[test]
fn a_debugger_stops_time_for_all() {
    if !have("gdb") {
        return skip("there is no gdb");
    }
    let Some(place) = Place::new(Image::Default) else { return };
    up(&place, &[]);
    let alone = place.run_for(&talk("count=100"), LONG, b"").ok();
    let commands = |time: &Value| time["guests"][0]["commands"].as_u64().unwrap();
    let before = commands(&time(&place));
    let [attached, go, held] = ["attached", "go", "held"].map(|name| place.file(name));
    let gdb = hold_in_program(&place, [&attached, &go, &held]);
    wait_for("gdb to have the node", LONG, || fs::exists(&attached).unwrap());
    let mut under = Running::start(place.command(&talk("count=8000")), b"");
    fs::write(&go, "").unwrap();
    wait_for("gdb to hold the node", 2 * LONG, || fs::exists(&held).unwrap());
    let stopped = time(&place);
    // In the middle of the program.
    let done = commands(&stopped) - before;
    assert!((100..8000).contains(&done), "{done}");
    thread::sleep(Duration::from_secs(8));
    assert_eq!(time(&place)["modelled_ns"], stopped["modelled_ns"]);
    let ready = place.ps()[0]["nodes"].as_array().unwrap().iter().all(|n| n["state"] == "ready");
    assert!(ready && under.runs());
    let said = gdb.end(2 * LONG).ok();
    assert!(said.contains("Breakpoint 1, ") && said.contains("#0"), "{said}");
    let said = under.end(2 * LONG).ok();
    let longest = |said: &str| {
        let row = said.lines().filter_map(|line| line.split_once(") ")).next_back().unwrap().1;
        row.split_whitespace().next_back().unwrap().parse::<f64>().unwrap()
    };
    // Rounds take as long as those of a machine without a debugger.
    assert!(longest(&said) < longest(&alone) + 1.0, "{said}\n{alone}");
    let dates = place.exec_all(&["date", "+%s"]);
    let dates: Vec<_> = dates.iter().filter_map(|line| line.split_once(") ")).collect();
    assert!(dates.len() == 2 && dates[0].1 == dates[1].1, "{dates:?}");
    for node in [0, 1] {
        let log = place.shell(node, "dmesg").to_lowercase();
        for bad in ["timed out", "timeout", "hung", "stall", "lockup", "unstable"] {
            assert!(!log.contains(bad), "{log}");
        }
    }
    waiting_programs_need_few_timers(&place);
    link_that_fails_costs_what_tcp_waits(&place);
    faults_lose_packets_and_let_go(&place);
    assert_eq!(time(&place)["late"], 0);
    place.run(&["down"]).ok();
    place.is_clean();
}

/// A program sleeps for 100 s of its clock. Each timer of its node costs the host as much as work
/// does, and their number is the same on every host: 530 when this was written. It was 5200 when
/// the agent polled programs and the kernel watched itself.
fn waiting_programs_need_few_timers(place: &Place) {
    let count = "grep ' timer$' /proc/interrupts";
    let said = place.shell(0, &format!("{count}; sleep 100; {count}"));
    let numbers = said.lines().map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>());
    let numbers: Vec<u64> = numbers.map(Result::unwrap).collect();
    let [before, after] = numbers[..] else { panic!("{said}") };
    assert!(after - before < 1000, "{said}");
}

/// Packets are lost by a fault, which is then taken away.
fn faults_lose_packets_and_let_go(place: &Place) {
    let ping = || place.exec("0", &["ping", "-c", "2", "-W", "1", "t-0-0-0-1-0-0"]);
    place.run(&["fault", "set", "loss=100%"]).ok();
    let said = ping();
    assert!(said.out.contains(" 100% packet loss"), "{said:?}");
    let report = place.run(&["fault", "show", "--json"]).json();
    assert!(report["lost"].as_u64().unwrap() > 0, "{report}");
    place.run(&["fault", "off"]).ok();
    assert!(ping().out.contains(" 0% packet loss"));
}

/// A connection is begun while the link between two nodes is down. TCP tries again after whole
/// seconds of the guest's clock, however long the host has taken.
fn link_that_fails_costs_what_tcp_waits(place: &Place) {
    // When Linux sends a SYN again, in seconds after the first one. Its timers are up to an eighth
    // late.
    const TRIES: [f64; 10] = [1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 11.0, 19.0, 35.0, 67.0];
    place.shell(1, "nc -l -p 5000 > /tmp/got & sleep 0.1");
    place.run(&["link", "down", "0", "A"]).ok();
    let uptime = "cut -d ' ' -f 1 /proc/uptime";
    let connect = format!("{uptime}; echo hello | nc -w 100 t-0-0-0-1-0-0 5000; {uptime}");
    let connects = place.start(&["exec", "0", "--", "sh", "-c", &connect]);
    // To port 5000, in the state SYN_SENT.
    let tries = || place.shell(0, "cat /proc/net/tcp").contains(":1388 02 ");
    wait_for("the connection to be tried", LONG, tries);
    let counters = place.run(&["stats", "0", "--json"]).json().to_string();
    assert!(counters.contains("NUM_TX_DISCARD_SYSTEM_TLP"), "{counters}");
    place.run(&["link", "up", "0", "A"]).ok();
    let said = connects.end(LONG).ok();
    let times: Vec<f64> = said.lines().map(|line| line.parse().unwrap()).collect();
    let [before, after] = times[..] else { panic!("{said}") };
    let took = after - before;
    let tried = |after: &f64| (*after..*after * 1.125 + 0.4).contains(&took);
    assert!(TRIES.iter().any(tried), "{said}");
    assert_eq!(place.shell(1, "cat /tmp/got").trim(), "hello");
}
