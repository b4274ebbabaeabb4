//! IP between bare guests over a network that loses, duplicates, reorders and damages packets, and
//! whose links go down and up. Delivered data is correct, and TCP completes.

use crate::tofu::Place;

/// Runs a pair of guests, which compare all data; returns what they printed.
fn pair(place: &Place, guest: &str, args: &str, faults: &str) -> String {
    let up = ["up", "--shape", "1x1x1x2x1x1", "--json", "--timeout", "120s", "--guest", guest];
    place.run(&[&up[..], &["--args", args, "--faults", faults]].concat()).ok()
}

#[test]
fn every_fault_alone_is_survived() {
    let place = Place::new();
    if !place.can_boot("every_fault_alone_is_survived") {
        return;
    }
    for fault in ["loss", "duplicate", "reorder", "corrupt", "undetected"] {
        pair(&place, "httpd", "verify=1", &format!("{fault}=5%,seed=1"));
    }
}

#[test]
fn all_faults_together_are_survived() {
    let place = Place::new();
    if !place.can_boot("all_faults_together_are_survived") {
        return;
    }
    let faults = "loss=1%,duplicate=1%,reorder=2%,corrupt=1%,undetected=1%,seed=7";
    pair(&place, "tcpbench", "verify=1 bytes=500000 count=50", faults);
    // Frames in several fragments, each of which can get lost.
    pair(&place, "tcpbench", "verify=1 bytes=500000 count=50 mtu=9000", faults);
    pair(&place, "ping", "verify=1 count=5 tries=10", faults);
}

#[test]
fn guests_find_undetected_damage() {
    let place = Place::new();
    if !place.can_boot("guests_find_undetected_damage") {
        return;
    }
    // Without its own checks, the stack hands damaged data to the program, which compares it.
    let up = ["up", "--shape", "1x1x1x2x1x1", "--guest", "httpd", "--timeout", "20s"];
    let said = place.run(&[&up[..], &["--faults", "undetected=20%"]].concat());
    assert_eq!(said.code, Some(1), "{said:?}");
}

#[test]
fn guests_name_the_awaited_and_end_soon() {
    let place = Place::new();
    if !place.can_boot("guests_name_the_awaited_and_end_soon") {
        return;
    }
    let file = place.path().join("machine.toml");
    let text = "shape = \"1x1x1x2x1x1\"\n[[link]]\nat = [0, 0, 0, 0, 0, 0]\nport = \"A\"\n\
                down = true\n";
    std::fs::write(&file, text).unwrap();
    let started = std::time::Instant::now();
    let up = ["up", "-c", file.to_str().unwrap(), "--timeout", "100", "--grace", "4"];
    let said = place.run(&up);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(started.elapsed().as_secs() < 60, "{said:?}");
    for expected in [
        "waiting for 1 of 1 other nodes: (0,0,0,1,0,0)",
        "stopped: another guest failed 4 s before",
    ] {
        assert!(said.out.contains(expected), "{expected:?} is missing: {said:?}");
    }
}

#[test]
fn links_go_down_and_up_under_a_connection() {
    let place = Place::new();
    if !place.can_boot("links_go_down_and_up_under_a_connection") {
        return;
    }
    let (mut machine, _) = place.start(&[
        "up",
        "--name",
        "tcp",
        "--shape",
        "unit",
        "--json",
        "--timeout",
        "120s",
        "--guest",
        "tcpbench",
        "--args",
        "bytes=16000000 peer=2",
    ]);
    place.wait_for_machine();
    // It may have ended by now.
    let set = |state: &str, port: &str| place.run(&["link", state, "0", port]).code == Some(0);
    // From node 0 to its neighbour on B there is always a way left.
    let mut changes = 0;
    while place.ps().as_array().is_some_and(|machines| !machines.is_empty()) {
        for port in ["B+", "A", "C"] {
            changes += u32::from(set("down", port));
            set("up", port);
        }
    }
    machine.ok();
    assert!(changes >= 3, "{changes}");
}
