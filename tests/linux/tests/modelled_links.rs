//! Two Linux nodes on a modelled link. One lane is dead, the other one has bit errors, and DLLPs
//! are lost. uTofu processes and IP work as over any other link, and counters show the events.

use tofu_linux_tests::net::streams;
use tofu_linux_tests::sdk::{Sdk, has_compiler};
use tofu_linux_tests::{Image, PATIENCE, Place, Running, sorted};

/// The one link, by the port at both of its ends.
const PORT: &str = "A";

/// The counters of this name of both nodes' ports, and of the kernel's interfaces, if they have it.
#[track_caller]
fn counted(place: &Place, name: &str) -> [u64; 2] {
    let said = place.run(&["stats", "--json"]).json();
    [0, 1].map(|node| {
        let ports = said["nodes"][node]["ports"].as_array().unwrap();
        ports.iter().map(|port| port[name].as_u64().unwrap_or_else(|| panic!("{port}"))).sum()
    })
}

/// Six processes put to each other, round by round, and check each byte.
fn processes(place: &Place, sdk: &Sdk) {
    sdk.compile("programs/processes.c", &["-ltofucom"]);
    let job = ["-n", "2", "--no-prefix", "--env", "AXIS=3", "./processes"];
    let rounds = ["node", "rank", "4", "2", "20"];
    let run = sdk.command(place, &[&["run"], &job[..], &rounds].concat());
    let lines = sorted(&Running::start(run, b"").end(PATIENCE).ok());
    let expected: Vec<_> = (0..6).map(|process| format!("process {process}: 20 rounds")).collect();
    assert_eq!(lines, expected);
}

/// Long packets by ping, and a stream each way by TCP.
fn ip(place: &Place) {
    let other = "t-0-0-0-1-0-0";
    let said = place.shell(0, &format!("ping -c 5 -i 0.2 -w 20 -s 8000 {other}"));
    assert!(said.contains(" 0% packet loss"), "{said}");
    streams(place, 0, (1, other), 4);
    streams(place, 1, (0, "t-0-0-0-0-0-0"), 4);
}

#[test]
fn link_errors_show_only_in_their_counters() {
    if !has_compiler() {
        return;
    }
    let Some(place) = Place::new(Image::Default) else { return };
    let sdk = Sdk::new(&place);
    place.up(&["--links", "modelled", "--shape", "1x1x1x2x1x1"]);
    for name in ["FRAME_LCRC_ERROR_COUNT", "SLICE1_FCS_ERROR_COUNT"] {
        assert_eq!(counted(&place, name), [0, 0], "{name}");
    }
    let errors = ["--ber", "1e-5", "--lane", "1", "--dead", "0", "--dllp-loss", "0.01"];
    place.run(&[&["link", "errors", "0", PORT][..], &errors].concat()).ok();
    processes(&place, &sdk);
    ip(&place);
    for name in [
        "FRAME_LCRC_ERROR_COUNT",
        "SLICE1_FCS_ERROR_COUNT",
        "ACK_NACK_TIME_OUT_COUNT",
        "NUM_SEND_DLLP",
    ] {
        assert!(counted(&place, name).iter().all(|count| *count > 0), "{name}");
    }
    let links = place.run(&["link", "ls", "--down"]).ok();
    assert!(!links.contains(PORT), "the link is up: {links}");
    place.run(&["down"]).ok();
    place.is_clean();
}
