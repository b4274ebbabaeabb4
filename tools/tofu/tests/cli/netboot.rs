//! Small guests that are fetched over the torus.

use std::fs;

use serde_json::{Value, json};
use tofu_linux_tests::Said;

use crate::tofu::Place;

/// The events of a run.
fn events(said: &Said) -> Vec<Value> {
    said.out.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

fn with<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["event"] == kind).collect()
}

fn up(place: &Place, args: &[&str]) -> Said {
    place.run(&[&["up", "--json", "--boot", "tofu"], args].concat())
}

#[test]
fn unit_boots_over_the_network() {
    let place = Place::new();
    if !place.can_boot("unit_boots_over_the_network") {
        return;
    }
    // 12 nodes at once, and the server on one more.
    let shape = ["--shape", "1x1x2x2x3x2", "--nodes", "12"];
    let said = up(&place, &[&shape[..], &["--guest", "allpairs"]].concat());
    let events = events(&said);
    assert_eq!(said.code, Some(0), "{said:?}");
    let verified = |event: &&&Value| {
        event["text"].as_str().is_some_and(|text| text.starts_with("11 peers: put, get and atomic"))
    };
    assert_eq!(with(&events, "line").iter().filter(verified).count(), 12);
    let starting =
        |event: &&&Value| event["stage"] == "starting" && event["detail"]["seconds"].is_number();
    assert_eq!(with(&events, "netboot").iter().filter(starting).count(), 12);
    let notes = with(&events, "note");
    let note = |event: &&Value| {
        event["text"].as_str().is_some_and(|text| text.starts_with("boot: 12 nodes over the torus"))
    };
    assert_eq!(notes.into_iter().filter(note).count(), 1);
}

/// Four compute nodes, whose boot server and gateway are I/O nodes.
#[test]
fn io_nodes_serve_compute_nodes() {
    let place = Place::new();
    if !place.can_boot("io_nodes_serve_compute_nodes") {
        return;
    }
    let shape = ["--generation", "k", "--shape", "2x1x2x1x1x2", "--io-nodes"];
    let more = ["--gateway", "--tap", "off", "--guest", "allpairs", "--timeout", "600s"];
    let said = up(&place, &[&shape[..], &more].concat());
    assert_eq!(said.code, Some(0), "{said:?}");
    let events = events(&said);
    let lines = with(&events, "line");
    let verified = lines.iter().filter(|event| {
        event["text"].as_str().is_some_and(|text| text.starts_with("3 peers: put"))
    });
    let mut at: Vec<_> = verified.map(|event| event["node"].clone()).collect();
    at.sort_by_key(Value::to_string);
    let compute = [[0, 0, 1, 0, 0, 0], [0, 0, 1, 0, 0, 1], [1, 0, 1, 0, 0, 0], [1, 0, 1, 0, 0, 1]];
    assert_eq!(at, compute.map(|at| json!(at)), "{said:?}");
}

/// Eleven nodes at once, over links of which some are dead, and all others lose, duplicate, reorder
/// and damage packets; and two nodes over worse links.
#[test]
fn nodes_boot_over_bad_links() {
    let place = Place::new();
    if !place.can_boot("nodes_boot_over_bad_links") {
        return;
    }
    let file = place.path().join("bad.toml");
    // The server, on the last node, keeps two of its four links, and so does node 0.
    let (server, first) = ("0, 0, 0, 1, 2, 1", "0, 0, 0, 0, 0, 0");
    let dead = [(server, "A"), (server, "B+"), (first, "A"), (first, "C")];
    let links =
        dead.map(|(at, port)| format!("[[link]]\nat = [{at}]\nport = \"{port}\"\ndown = true\n"));
    fs::write(&file, format!("shape = \"unit\"\n{}", links.concat())).unwrap();
    let file = file.to_str().unwrap();
    let unit = ["-c", file, "--nodes", "11"];
    for faults in [
        "loss=1%,duplicate=2%,reorder=2%,corrupt=0.5%,seed=5",
        "loss=5%,duplicate=5%,reorder=5%,corrupt=1%,seed=5",
    ] {
        let more = ["--guest", "hello", "--timeout", "150s", "--faults", faults];
        let said = up(&place, &[&unit[..], &more].concat());
        assert_eq!(said.code, Some(0), "{said:?}");
        let events = events(&said);
        let runs = |event: &&&Value| {
            event["text"].as_str().is_some_and(|text| text.starts_with("I am node"))
        };
        assert_eq!(with(&events, "line").iter().filter(runs).count(), 11, "{events:?}");
    }
}

#[test]
fn netbooted_guest_finds_the_usual() {
    let place = Place::new();
    if !place.can_boot("netbooted_guest_finds_the_usual") {
        return;
    }
    // `puts` takes interrupts, a clock and arguments.
    let shape = ["--shape", "3x1x1x1x1x1", "--nodes", "2", "--guest", "puts", "--args", "count=20"];
    let lines = |said: &Said| -> Vec<(Value, String)> {
        let events = events(said);
        let lines = with(&events, "line").into_iter().map(|event| {
            // Except for the firmware's lines, and times.
            let text = event["text"].as_str().unwrap_or_default();
            let words =
                text.split_whitespace().filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
            (event["node"].clone(), words.collect::<Vec<_>>().join(" "))
        });
        let mut lines: Vec<_> = lines.filter(|(_, text)| !text.starts_with("boot:")).collect();
        lines.sort_by_key(|(node, _)| node.to_string());
        lines
    };
    let fetched = up(&place, &shape);
    assert_eq!(fetched.code, Some(0), "{fetched:?}");
    let given = place.run(&[&["up", "--json"], &shape[..]].concat());
    assert_eq!(given.code, Some(0), "{given:?}");
    assert!(!lines(&given).is_empty());
    assert_eq!(lines(&fetched), lines(&given));
}

#[test]
fn unbootable_images_are_refused() {
    let place = Place::new();
    if !place.can_boot("unbootable_images_are_refused") {
        return;
    }
    let pair = ["--shape", "2x1x1x1x1x1", "--guest", "hello"];
    let cases: [(&[&str], &str); 3] = [
        (&["--boot-fault", "corrupt"], "the kernel has another SHA-256"),
        (&["--boot-fault", "silent", "--boot-patience", "1s"], "has not answered for 1."),
        (&["--memory", "6MiB"], "give "),
    ];
    for (args, expected) in cases {
        let said = up(&place, &[&pair[..], args].concat());
        let events = events(&said);
        assert_eq!(said.code, Some(1), "{said:?}");
        // The firmware has ended, and reports why; the guest has not run.
        let ended = with(&events, "ended");
        assert_eq!((ended.len(), &ended[0]["code"]), (1, &json!(1)), "{said:?}");
        let lines = with(&events, "line");
        let text = |event: &Value| event["text"].as_str().unwrap_or_default().to_owned();
        let why =
            |event: &&Value| text(event).starts_with("FAILED: ") && text(event).contains(expected);
        assert!(lines.iter().any(why), "{said:?}");
        assert!(lines.iter().all(|event| !text(event).starts_with("I am node")), "{said:?}");
    }
}

#[test]
fn mistakes_are_named() {
    let place = Place::new();
    let error = |args: &[&str]| up(&place, args).error();
    let text = error(&["--boot-server", "1,2"]);
    assert!(text.contains("coordinates such as 0,0,0,0,0,0"), "{text}");
    let text = error(&["--boot-server", "9,0,0,0,0,0"]);
    assert!(text.contains("boot server at (9,0,0,0,0,0): the shape 1x1x1x2x3x2 has no"), "{text}");
    let text = error(&["--shape", "1x1x1x1x1x1"]);
    assert!(text.contains("a boot server on a separate node"), "{text}");
}
