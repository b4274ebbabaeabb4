//! The kernel driver `tofu.ko` in Linux nodes: its own C tests (`guest-lib/kernel/tests`), run
//! from outside, between two nodes and while the driver comes and goes. The image with the driver
//! takes minutes to make, so these tests only run where it has been made.

use tofu_linux_tests::driver::{self, IMAGE, is_well, passes};
use tofu_linux_tests::{PATIENCE, Place};

/// A machine of two nodes with the driver and the C programs in /tmp; or `None`, after it was
/// said why not.
fn machine(test: &str) -> Option<Place> {
    let place = driver::place(test)?;
    place.up(&["--image", IMAGE, "--memory", "512MiB"]);
    driver::programs(&place, &["ioctls", "users", "memory", "races", "put"], &["0", "1"]);
    Some(place)
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
