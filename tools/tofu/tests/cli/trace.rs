//! `tofu trace`: text, files for Perfetto, and how it ends.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;
use tofu_linux_tests::interrupt;

use crate::tofu::{Place, Process, wait_for};

/// A machine whose node 0 puts to node 1 until it is ended.
pub(crate) fn putting(place: &Place) -> Process {
    let up = ["up", "--shape", "1x1x1x2x1x1", "--json", "--guest", "puts", "--args"];
    let (machine, _) = place.start(&[&up[..], &["count=100000000 max=8"]].concat());
    place.wait_for_machine();
    // The first Put may take some time to come.
    place.run(&["trace", "--count", "1"]).ok();
    machine
}

/// Begin, end, and name.
type Span = (f64, f64, String);

/// Spans of each thread of each node, by begin.
fn spans(events: &[Value]) -> BTreeMap<(u64, u64), Vec<Span>> {
    let mut spans: BTreeMap<_, Vec<Span>> = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let at = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        let (ts, dur) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
        let name = event["name"].as_str().unwrap().to_owned();
        spans.entry(at).or_default().push((ts, ts + dur, name));
    }
    for of in spans.values_mut() {
        // Of two that begin at the same time the longer one is the outer one.
        of.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
    }
    spans
}

#[test]
fn running_machine_is_traced() {
    let place = Place::new();
    if !place.can_boot("running_machine_is_traced") {
        return;
    }
    let mut machine = putting(&place);
    let said =
        place.run(&["trace", "0", "--kind", "put", "--queue", "0,1,2,3,4,5", "--count", "20"]);
    assert!(said.err.contains("20 commands, 0 failed"), "{said:?}");
    let lines: Vec<_> = said.out.lines().collect();
    let shown = |line: &&str| {
        line.contains(" node 0 TNI 0 CQ ")
            && line.contains(": Put")
            && line.contains(" to node 1 TNI ")
            && line.contains(" by A, ")
            && line.ends_with("0x00 SUCCESS")
    };
    assert!(lines.len() == 20 && lines.iter().all(shown), "{lines:#?}");
    // Node 1 only waits, and nothing fails.
    let none = place.run(&["trace", "--result", "failed", "--seconds", "1"]);
    assert!(none.out.is_empty() && none.err.contains("0 commands"), "{none:?}");
    let json = place.run(&["trace", "--json", "--count", "3"]);
    for line in json.out.lines() {
        let command: Value = serde_json::from_str(line).unwrap();
        assert_eq!((&command["node"], &command["result"]), (&0.into(), &"0x00 SUCCESS".into()));
    }

    let path = place.path().join("trace.json");
    let file = path.to_str().unwrap();
    place.run(&["trace", "-w", file, "--count", "300"]).ok();
    let events: Vec<Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let spans = spans(&events);
    let mut puts = 0;
    for (thread, spans) in &spans {
        let mut open: Vec<(f64, f64)> = Vec::new();
        for (begin, end, name) in spans {
            // Times are in microseconds, and rounded to parts of a nanosecond.
            open.retain(|outer| outer.1 > *begin + 0.0005);
            let nests = open.last().is_none_or(|outer| *end <= outer.1 + 0.001);
            assert!(nests, "{name} of {thread:?}: {begin} to {end} in {open:?}");
            open.push((*begin, *end));
            puts += u32::from(name.starts_with("Put"));
        }
    }
    assert_eq!(puts, 300);
    assert!(spans.keys().any(|(node, _)| *node == 1), "the target's work");
    for (ph, least) in [("s", 300), ("f", 300), ("M", 4)] {
        assert!(events.iter().filter(|event| event["ph"] == ph).count() >= least, "{ph}");
    }

    // A full disk ends it, and the machine keeps running.
    let error = place.run(&["trace", "-w", "/dev/full", "--seconds", "60"]).error();
    assert!(error.contains("cannot write /dev/full: No space left"), "{error}");
    place.run(&["trace", "--count", "1"]).ok();

    // The machine ends first: one line, and a complete file.
    std::fs::remove_file(&path).unwrap();
    let mut trace = place.command(&["trace", "-w", file]);
    let mut trace = trace.stderr(Stdio::piped()).spawn().unwrap();
    let written = || std::fs::metadata(&path).is_ok_and(|found| found.len() > 4096);
    wait_for("some commands", || written() || trace.try_wait().unwrap().is_some());
    interrupt(machine.id());
    machine.wait();
    assert_eq!(trace.wait().unwrap().code(), Some(2));
    let said = io::read_to_string(trace.stderr.take().unwrap()).unwrap();
    assert!(said.lines().count() == 2 && said.contains("the machine has ended"), "{said}");
    serde_json::from_slice::<Vec<Value>>(&std::fs::read(&path).unwrap()).unwrap();
}

#[test]
fn flight_recorder_keeps_the_first_failure() {
    let place = Place::new();
    if !place.can_boot("flight_recorder_keeps_the_first_failure") {
        return;
    }
    let _machine = putting(&place);
    let path = place.path().join("flight.json");
    let mut flight = place.command(&["trace", "--last", "10s", "-w", path.to_str().unwrap()]);
    let mut flight = flight.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(flight.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.starts_with("tracing"), "{line}");
    // Some commands, then one that fails, after which the guest gives up.
    place.run(&["trace", "--count", "100"]).ok();
    place.run(&["link", "down", "0", "A"]).ok();
    let said = io::read_to_string(said).unwrap();
    assert_eq!(flight.wait().unwrap().code(), Some(0), "{said}");
    let failed = said.contains("a command has failed: node 0 TNI ");
    assert!(failed || said.contains("node 0 has ended: "), "{said}");
    assert!(said.contains(" commands are written; "), "{said}");
    let events: Vec<Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let puts = events.iter().filter(|event| {
        event["ph"] == "X" && event["name"].as_str().is_some_and(|name| name.starts_with("Put"))
    });
    let puts = puts.count();
    assert!(puts > 50, "{puts}");
}

#[test]
fn impossible_traces_are_refused() {
    let place = Place::new();
    let error = place.run(&["trace", "-w", "x"]).error();
    assert!(error.contains("no machine is running"), "{error}");
    let (_machine, _) = place.start(&["serve", "--shape", "2x1x1x1x1x1", "--json"]);
    for (args, expected) in [
        (&["2"][..], "node 2: the machine 2x1x1x1x1x1 has no such node"),
        (&["--queue", "6"], "queue \"6\": a queue is TNI/CQ, such as 0/3"),
        (&["--kind", "puts"], "kind \"puts\": kinds are put, get, atomic"),
        (&["--result", "bad"], "result \"bad\": results are success, failed"),
        (&["-w", "/no/such/x"], "cannot write /no/such/x: No such file"),
    ] {
        let error = place.run(&[&["trace"][..], args].concat()).error();
        assert!(error.contains(expected), "{error}");
    }
    let said = place.run(&["trace", "--seconds", "1"]);
    assert!(said.code == Some(0) && said.err.contains("0 commands, 0 failed"), "{said:?}");
}
