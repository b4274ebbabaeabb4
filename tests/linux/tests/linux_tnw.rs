//! Linux nodes with devices of TNW: the device itself, programs that use it by VFIO, and jobs of C
//! programs with `tnw.h`.

use serde_json::json;
use tofu_linux_tests::sdk::{Sdk, has_compiler};
use tofu_linux_tests::{Image, MOMENT, PATIENCE, Place, Running, interrupt, wait_for};

const NODES: usize = 2;

/// The device of a node by the kernel and the tools. It is not shared, and no IP interface is
/// on it.
fn device(place: &Place, node: usize) {
    let name = node.to_string();
    let shown = place.exec(&name, &["tofu-guest", "show", "--json"]).json();
    assert_eq!(shown["generation"], "tnw");
    assert_eq!((&shown["coords"], &shown["shape"]), (&json!([node, 0, 0]), &json!([2, 1, 1])));
    let links = shown["links"].as_array().unwrap();
    let names: Vec<_> = links.iter().map(|link| link["link"].as_str().unwrap()).collect();
    assert_eq!(names, ["X-", "X+"], "{shown}");
    let bdf = shown["device"].as_str().unwrap();
    let listed = place.exec(&name, &["tofu-guest", "ls", "--json"]).json();
    assert_eq!((&listed[0]["device"], &listed[0]["coords"]), (&json!(bdf), &shown["coords"]));
    let path = format!("/sys/bus/pci/devices/{bdf}");
    let shell = |line: &str| place.exec(&name, &["sh", "-c", line]);
    assert_eq!(
        shell(&format!("cd {path}; cat vendor device class")).ok(),
        "0x10cf\n0x1cce\n0x028000\n"
    );
    assert_ne!(shell("pidof tofud tofu-net").code, Some(0));
    assert_ne!(shell("test -e /sys/class/net/tofu0").code, Some(0));
    let error = place.exec(&name, &["tofu-guest", "selftest"]);
    assert!(error.code == Some(2) && error.err.contains("tnw-allpairs"), "{error:?}");
}

/// Every neighbour on every channel, by stores and by fetching.
#[track_caller]
fn all_pairs(place: &Place) {
    let lines = place.exec_all(&["tnw-allpairs"]);
    let verified = "2 neighbours, 8 channels: Pput and Nget verified 1 times";
    assert_eq!(lines.len(), NODES, "{lines:?}");
    assert!(lines.iter().all(|line| line.contains(verified)), "{lines:?}");
}

fn programs(place: &Place) {
    all_pairs(place);
    for windows in ["windows=memory", "windows=registers"] {
        let lines = place.exec_all(&["tnw-pingpong", "rounds=3", windows]);
        assert!(lines.iter().any(|line| line.contains("65536 bytes by Nget: ")), "{lines:?}");
    }
    for how in ["how=nget", "how=pput"] {
        let lines = place.exec_all(&["tnw-lbm", "nx=16", "ny=16", "steps=5", how]);
        assert!(
            lines.iter().any(|line| line.contains("as on one node to the last bit")),
            "{lines:?}"
        );
    }
}

/// The counters of the links, read from outside and from inside while programs run, which are then
/// ended by force.
#[track_caller]
fn counted(place: &Place) {
    let running = place.start(&["exec", "--all", "--", "tnw-pingpong", "rounds=1000000"]);
    let outside = |node: usize| -> u64 {
        let stats = place.run(&["stats", "--json"]).json();
        let links = stats["nodes"][node]["links"].as_array().unwrap();
        links.iter().map(|link| link["SENT"].as_u64().unwrap()).sum()
    };
    for node in 0..NODES {
        wait_for("packets, from outside", PATIENCE, || outside(node) > 0);
        let inside = ["tofu-guest", "counters", "--all", "--json"];
        let inside = place.exec(&node.to_string(), &inside).json();
        let sent = ["X-", "X+"].map(|link| inside[format!("link {link}")]["SENT"].as_u64());
        assert!(sent.iter().flatten().sum::<u64>() > 0, "{inside}");
    }
    interrupt(running.id());
    let said = running.end(MOMENT);
    assert_ne!(said.code, Some(0), "{said:?}");
}

/// One program at a time has the device; a program that waits for its neighbour still has it.
fn one_at_a_time(place: &Place) {
    let first = place.start(&["exec", "0", "--", "tnw-allpairs"]);
    wait_for("the program has the device", MOMENT, || {
        let shown = place.exec("0", &["tofu-guest", "show", "--json"]);
        // The registers do not answer while the program's VFIO resets the device.
        shown.code == Some(0) && shown.json()["enabled"] == true
    });
    let second = place.exec("0", &["tnw-allpairs"]);
    let refused = second.out.contains("FAILED: ") && second.out.contains("in use");
    assert!(second.code == Some(1) && refused, "{second:?}");
    place.exec("1", &["tnw-allpairs"]).ok();
    first.end(PATIENCE).ok();
}

/// C programs, with which libtnw is copied.
fn jobs(place: &Place) {
    let sdk = Sdk::new(place);
    let run = |args: &[&str]| -> Running {
        Running::start(sdk.command(place, &[&["run"], args].concat()), b"")
    };
    for (name, expected) in
        [("shift", &["0: 0,0,0: 1,0,0 is at x-", "1: 1,0,0: 0,0,0 is at x-"][..]), ("stream", &[])]
    {
        sdk.compile(&format!("../../guest-lib/tnw/examples/c/{name}.c"), &["-ltnw"]);
        let out = run(&["-n", "2", &format!("./{name}")]).end(PATIENCE).ok();
        let mut lines: Vec<_> = out.lines().collect();
        lines.sort_unstable();
        assert!(lines.len() >= NODES && lines.starts_with(expected), "{lines:?}");
    }
    let error = run(&["--ppn", "2", "./shift"]).end(MOMENT).error();
    assert!(error.contains("a node has 1 to 1 ranks (TNW)"), "{error}");
}

/// The kinds of windows, from the bits of FEATURES.
#[track_caller]
fn features(place: &Place) -> String {
    let registers = place.exec("0", &["tofu-guest", "regs", "--json"]).json();
    registers["NWP"]["FEATURES"].as_str().unwrap().to_owned()
}

#[test]
fn nodes_of_tnw() {
    let Some(place) = Place::new(Image::Default) else { return };
    let up = ["--generation", "tnw", "--shape", "2x1x1", "--doorbell"];
    place.up(&[&up[..], &["trapped"]].concat());
    let ps = place.ps();
    assert_eq!(ps[0]["generation"], "tnw", "{ps}");
    (0..NODES).for_each(|node| device(&place, node));
    programs(&place);
    counted(&place);
    all_pairs(&place);
    // Packets that a link loses or damages are sent again.
    place.run(&["fault", "set", "loss=2%,corrupt=2%,seed=3"]).ok();
    all_pairs(&place);
    place.run(&["fault", "off"]).ok();
    one_at_a_time(&place);
    if has_compiler() {
        jobs(&place);
    }
    assert_eq!(features(&place), "0x0");
    place.run(&["down"]).ok();
    place.is_clean();

    // The same by stores to memory that QEMU maps.
    place.up(&[&up[..], &["polled"]].concat());
    assert_eq!(features(&place), "0x3");
    programs(&place);
    place.run(&["down"]).ok();
    place.is_clean();
}
