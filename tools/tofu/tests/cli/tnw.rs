//! The output of commands for a running machine of TNW.

use serde_json::Value;

use crate::capture::{counts_of, dissected, read};
use crate::tofu::{Place, wait_for};

const UP: [&str; 8] =
    ["up", "--generation", "tnw", "--shape", "2x1x1", "--json", "--guest", "tnw-pingpong"];

/// The sum of a counter over all links of a node.
fn of_links(stats: &Value, node: usize, name: &str) -> u64 {
    let links = stats["nodes"][node]["links"].as_array().unwrap();
    links.iter().map(|link| link[name].as_u64().unwrap_or_else(|| panic!("{link}"))).sum()
}

/// Wrong bits of a link are found by the CRC. Its device has no other codes.
fn wrong_bits(place: &Place, found: impl Fn() -> u64) {
    let errors = |more: &[&str]| place.run(&[&["link", "errors", "0", "X+"], more].concat());
    let before = found();
    errors(&["--ber", "1e-4"]).ok();
    wait_for("wrong check sequences", || found() > before);
    errors(&[]).ok();
    for more in [["--dead", "0"], ["--dllp-loss", "0.1"]] {
        assert!(errors(&more).error().contains("links of TNW have bit errors only"));
    }
    let ecc = place.run(&["fault", "ecc", "0", "--where", "router", "--fatal"]).error();
    assert!(ecc.contains("no error-correcting codes"), "{ecc}");
}

#[test]
fn tnw_machine_is_seen_from_outside() {
    let place = Place::new();
    if !place.can_boot("tnw_machine_is_seen_from_outside") {
        return;
    }
    let rounds = ["--args", "rounds=300000", "--timeout", "600s"];
    let (mut machine, _) = place.start(&[&UP[..], &rounds].concat());
    place.wait_for_machine();
    let json = |args: &[&str]| -> Value { serde_json::from_str(&place.run(args).ok()).unwrap() };
    let stats = || json(&["stats", "--json"]);
    wait_for("packets", || {
        // Its devices come a moment after its socket.
        let Ok(stats) = serde_json::from_str::<Value>(&place.run(&["stats", "--json"]).out) else {
            return false;
        };
        stats["nodes"].as_array().map(Vec::len) == Some(2) && of_links(&stats, 0, "SENT") > 10
    });
    assert!(of_links(&stats(), 1, "RECEIVED") > 0);
    let overview = place.run(&["stats"]).ok();
    assert!(overview.contains("NACKs"), "{overview}");
    let one = place.run(&["stats", "0"]).ok();
    assert!(one.contains("link X+, to (1,0,0,0,0,0)") && one.contains("MESSAGES_SENT"), "{one}");

    // Packets are lost from now on, and sent again.
    place.run(&["fault", "set", "loss=20%,seed=3"]).ok();
    wait_for("time-outs", || {
        let stats = stats();
        of_links(&stats, 0, "TIMEOUTS") + of_links(&stats, 1, "TIMEOUTS") > 0
    });
    let shown = place.run(&["fault", "show"]).ok();
    assert!(shown.contains("loss=20%"), "{shown}");
    place.run(&["fault", "off"]).ok();
    wrong_bits(&place, || of_links(&stats(), 1, "CRC_ERRORS"));

    // A link that is down is silent; messages wait for it.
    place.run(&["link", "down", "0", "X+"]).ok();
    let path = place.path().join("down.pcapng");
    let capture = ["capture", "0", "-w", path.to_str().unwrap(), "--seconds", "2"];
    place.run(&capture).ok();
    place.run(&["link", "up", "0", "X+"]).ok();
    let sent = of_links(&stats(), 0, "SENT") + of_links(&stats(), 1, "SENT");
    wait_for("packets after the link is up", || {
        let stats = stats();
        of_links(&stats, 0, "SENT") + of_links(&stats, 1, "SENT") > sent
    });
    let text = place.run(&["capture", "0", "--on", "X+", "--kind", "data", "--count", "3"]).ok();
    assert!(text.lines().count() == 3 && text.contains("channel 0, packet "), "{text}");
    let error = place.run(&["capture", "0", "--on", "tni0"]).error();
    assert!(error.contains("it has ports X- to Z+"), "{error}");
    let registers = place.run(&["regs", "0"]).ok();
    assert!(registers.contains("link X+ channel 0"), "{registers}");
    let map = place.run(&["ps"]).ok();
    assert!(map.contains("tnw"), "{map}");
    place.run(&["down"]).ok();
    machine.wait();
    let capture = read(&path);
    assert_eq!(capture.names.len(), 6);
}

#[test]
fn packets_of_tnw_are_dissected() {
    let place = Place::new();
    if !place.can_boot("packets_of_tnw_are_dissected") {
        return;
    }
    let path = place.path().join("tnw.pcapng");
    let capture = format!("0={}", path.display());
    let faults = ["--faults", "corrupt=5%,seed=2", "--args", "rounds=2"];
    place.run(&[&UP[..], &faults, &["--capture", &capture]].concat()).ok();
    let capture = read(&path);
    assert_eq!(capture.names, ["port-X-", "port-X+", "port-Y-", "port-Y+", "port-Z-", "port-Z+"]);
    assert_eq!(capture.dropped, 0);
    // Data packets and commands at the link to the other node, and nothing at others.
    let kinds = counts_of(&capture);
    for kind in [11, 12, 13, 14, 15] {
        assert!(kinds.contains_key(&(1, kind)), "{kinds:?}");
    }
    assert!(kinds.keys().all(|(interface, _)| *interface <= 1), "{kinds:?}");
    dissected("packets_of_tnw_are_dissected", &path, |count| {
        assert_eq!(count("tofu.machine == 16"), capture.packets.len());
        let data: usize = kinds.iter().filter(|((_, kind), _)| *kind == 11).map(|(_, n)| n).sum();
        assert_eq!(count("tofu.tnw.channel == 0 && tofu.tnw.data"), data);
        assert!(count("tofu.tnw.last == 1") > 0 && count("tofu.tnw.offset == 63") > 0);
        assert!(count("tofu.kind == 14 && tofu.tnw.crc.good == 1") > 0);
        assert_eq!(count("_ws.malformed || tofu.short"), 0);
    });
}
