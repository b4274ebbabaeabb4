//! Machines on modelled links.

use std::io::{BufRead, BufReader};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use crate::tofu::Place;

/// Runs guests on modelled links.
fn up(place: &Place, shape: &str, guest: &str, args: &str) -> String {
    let up = ["up", "--links", "modelled", "--json", "--timeout", "120s", "--shape", shape];
    place.run(&[&up[..], &["--guest", guest, "--args", args]].concat()).ok()
}

#[test]
fn shipped_guests_run_on_modelled_links() {
    let place = Place::new();
    if !place.can_boot("shipped_guests_run_on_modelled_links") {
        return;
    }
    up(&place, "unit", "allpairs", "");
    up(&place, "unit", "barrier", "");
    for guest in ["stream", "ring", "allreduce"] {
        up(&place, "1x1x1x2x1x2", guest, "");
    }
    up(&place, "1x1x1x2x1x1", "httpd", "verify=1");
    up(&place, "1x1x1x2x1x1", "tcpbench", "verify=1 bytes=500000 count=20 mtu=9000");
}

#[test]
fn modelled_links_survive_faults_and_errors() {
    let place = Place::new();
    if !place.can_boot("modelled_links_survive_faults_and_errors") {
        return;
    }
    let up = ["up", "--links", "modelled", "--shape", "1x1x1x2x1x1", "--json", "--timeout", "120s"];
    let faults = ["--faults", "loss=1%,duplicate=1%,reorder=2%,corrupt=1%,seed=7"];
    let guest = ["--guest", "tcpbench", "--args", "verify=1 bytes=500000 count=50"];
    let (mut machine, _) = place.start(&[&up[..], &faults, &guest].concat());
    place.wait_for_machine();
    place.run(&["link", "errors", "0", "A", "--ber", "1e-6", "--dllp-loss", "0.1"]).ok();
    machine.ok();
}

#[test]
fn failed_link_is_an_event() {
    let place = Place::new();
    if !place.can_boot("failed_link_is_an_event") {
        return;
    }
    let up = ["up", "--links", "modelled", "--shape", "1x1x1x2x1x1", "--json", "--timeout", "300s"];
    let guest = ["--guest", "ping", "--args", "count=300000 size=56 tries=100"];
    let (mut machine, _) = place.start(&[&up[..], &guest].concat());
    place.wait_for_machine();
    let mut events = place.command(&["events", "--json"]);
    let mut events = events.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(events.stdout.take().unwrap()).lines().map(Result::unwrap);
    let (sender, failures) = channel();
    let reader = thread::spawn(move || {
        lines.filter(|line| line.contains("link_failed")).for_each(|line| drop(sender.send(line)));
    });
    // It is not known when the other command has begun to listen, so the link may have to fail
    // again.
    let failed = (0..60).find_map(|_| {
        place.run(&["link", "errors", "0", "A"]).ok();
        place.run(&["link", "up", "0", "A"]).ok();
        place.run(&["link", "errors", "0", "A", "--ber", "1"]).ok();
        failures.recv_timeout(Duration::from_secs(1)).ok()
    });
    let event: serde_json::Value = serde_json::from_str(&failed.unwrap()).unwrap();
    // Whichever end has noticed it first.
    assert_eq!(event["event"], "link_failed", "{event}");
    assert_eq!(event["port"], "A");
    assert_eq!(event["at"].as_array().map(Vec::len), Some(6));
    let links = place.run(&["link", "ls", "--down"]).ok();
    assert!(links.contains('A'), "{links}");
    // It can be taken up again once it has no more errors.
    place.run(&["link", "errors", "0", "A"]).ok();
    place.run(&["link", "up", "0", "A"]).ok();
    place.run(&["down"]).ok();
    machine.wait();
    reader.join().unwrap();
    events.wait().unwrap();
}

#[test]
fn links_are_direct_or_modelled() {
    let place = Place::new();
    let error = place.run(&["up", "--links", "slow"]).error();
    assert!(error.contains("'slow'") && error.contains("--links"), "{error}");
}

#[test]
fn modelled_links_can_have_errors() {
    let place = Place::new();
    let file = place.path().join("machine.toml");
    std::fs::write(&file, "shape = \"1x1x1x2x1x1\"\nlinks = \"modelled\"\n").unwrap();
    let (mut machine, _) = place.start(&["serve", "--json", "-c", file.to_str().unwrap()]);
    let errors = |args: &[&str]| place.run(&[&["link", "errors", "0", "A"], args].concat());
    errors(&["--ber", "1e-7", "--lane", "1", "--dllp-loss", "0.001"]).ok();
    errors(&["--dead", "0"]).ok();
    errors(&[]).ok();
    for (args, expected) in [
        (&["--ber", "2"][..], "a rate from 0 to 1, such as 1e-7"),
        (&["--ber", "0.1", "--lane", "2"], "lane 2 does not exist: links have 0 to 1"),
        (&["--dead", "9"], "lane 9 does not exist: links have 0 to 1"),
        (&["--lane", "1"], "--ber"),
    ] {
        let error = errors(args).error();
        assert!(error.contains(expected), "{args:?}: {error}");
    }
    place.run(&["fault", "set", "loss=1%"]).ok();
    place.run(&["link", "down", "0", "A"]).ok();
    assert!(place.run(&["fault", "show"]).ok().contains("loss=1%"));
    place.run(&["down"]).ok();
    machine.ok();
    let (mut machine, _) = place.start(&["serve", "--json", "--shape", "1x1x1x2x1x1"]);
    let error = errors(&["--dllp-loss", "0.5"]).error();
    assert!(error.contains("the machine's links are direct"), "{error}");
    place.run(&["down"]).ok();
    machine.ok();
}
