//! The kernel driver `tofu.ko` in Linux nodes: its own C tests (`guest-lib/kernel/tests`), run
//! from outside, between two nodes and while the driver comes and goes. The image with the driver
//! takes minutes to make, so these tests only run where it has been made.

use std::path::Path;
use std::process::Command;

use tofu_linux_tests::{Image, PATIENCE, Place, skip};

const IMAGE: &str = "driver";

/// A machine of two nodes with the driver and the C programs in /tmp; or `None`, after it was
/// said why not.
fn machine(test: &str) -> Option<Place> {
    if Command::new("gcc").arg("--version").output().is_err() {
        skip(test, "there is no gcc");
        return None;
    }
    let place = Place::new(test, Image::Default)?;
    let images = place.run(&["image", "ls", "--json"]).json();
    let images = images.as_array().unwrap();
    if !images.iter().any(|image| image["name"] == IMAGE) {
        skip(test, "no image with the driver: `tofu image build --kernel-driver` makes one");
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-lib/kernel/tests");
    place.up(&["--image", IMAGE, "--memory", "512MiB"]);
    for program in ["ioctls", "users", "memory", "races", "put"] {
        let path = place.file(program);
        let output = Command::new("gcc")
            .args(["-static", "-pthread", "-Wall", "-Wextra", "-Werror", "-O2", "-o", &path])
            .arg(source.join(program).with_extension("c"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for node in 0..2 {
            place.run(&["cp", &path, &format!("{node}:/tmp")]).ok();
        }
    }
    Some(place)
}

/// Runs a C test on a node: it succeeds, and says how many things it has looked at.
#[track_caller]
fn passes(place: &Place, node: &str, command: &[&str]) {
    let said = place.run_for(&[&["exec", node, "--"], command].concat(), PATIENCE, b"");
    assert!(said.code == Some(0) && said.out.contains("\n1.."), "{said:?}");
    assert!(!said.out.contains("not ok"), "{said:?}");
}

/// The kernel has not complained.
#[track_caller]
fn is_well(place: &Place, node: &str) {
    let log = place.exec(node, &["dmesg"]).ok();
    for sign in ["BUG:", "WARNING:", "Oops", "Call Trace", "does not stop", "DMAR: [DMA"] {
        assert!(!log.contains(sign), "{sign}: {log}");
    }
}

#[test]
fn the_driver_and_its_tests() {
    let Some(place) = machine("the_driver_and_its_tests") else { return };
    let position = |node| place.exec(node, &["cat", "/proc/tofu/position"]).ok();
    assert_ne!(position("0"), position("1"));
    assert_eq!(position("0").split_whitespace().count(), 6);

    passes(&place, "0", &["/tmp/ioctls"]);
    passes(&place, "0", &["/tmp/users"]);
    passes(&place, "0", &["/tmp/memory"]);
    passes(&place, "0", &["/tmp/races", "5"]);

    // A Put between two nodes, of a length that is no multiple of anything.
    let (bytes, seed) = ("1000003", "7");
    let mut receiver =
        place.start(&["exec", "1", "--", "/tmp/put", "receive", "2", "3", bytes, seed]);
    assert_eq!(receiver.line(), "ready\n");
    let to = position("1");
    let mut send = vec!["/tmp/put", "send", "2", "3", bytes, seed];
    send.extend(to.split_whitespace());
    passes(&place, "0", &send);
    let out = receiver.end(PATIENCE).ok();
    assert!(out.contains("ok 2 1000003 bytes as sent"), "{out}");

    // Loading and unloading, also while a queue is open and mapped.
    let script = "for i in $(seq 20); do \
                      /tmp/races 60 $i >/dev/null 2>&1 & sleep 0.2; \
                      rmmod tofu || exit 1; [ -e /proc/tofu ] && exit 2; \
                      kill -9 $! 2>/dev/null; wait; \
                      modprobe tofu || insmod /lib/modules/*/kernel/tofu/tofu.ko || exit 3; \
                      cat /proc/tofu/position >/dev/null || exit 4; \
                  done";
    place.exec("0", &["sh", "-c", script]).ok();
    passes(&place, "0", &["/tmp/users"]);
    for node in ["0", "1"] {
        is_well(&place, node);
    }
    place.run(&["down"]).ok();
    place.is_clean();
}
