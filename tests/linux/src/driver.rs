//! Machines whose nodes have the kernel driver `tofu.ko`, and its C tests in them.

use std::path::Path;
use std::process::Command;

use crate::{Image, PATIENCE, Place, Said, skip};

/// Name of the image with the driver, and of its kernel. It takes minutes to make, so that tests
/// only run where it has been made. `TOFU_DRIVER_IMAGE` names another one, such as one whose kernel
/// looks after itself.
pub fn image() -> String {
    std::env::var("TOFU_DRIVER_IMAGE").unwrap_or_else(|_| "driver-cloud".into())
}

/// Words for a node's kernel that has it look after its heap: freed memory is poisoned and cleared,
/// objects have red zones, and some of them a page of their own. Debian's kernel has all of that.
pub const CHECKS: &str = "slab_debug=FZP init_on_free=1 kfence.sample_interval=10";

/// Goes to the folder of tracing, in a shell of a node.
pub const TRACING: &str =
    "cd /sys/kernel/tracing && { [ -e events ] || { mount -t tracefs trace . && cd .; }; }";

/// A place for a machine with that image; or `None`, after it was said why not.
pub fn place(test: &str) -> Option<Place> {
    if Command::new("gcc").arg("--version").output().is_err() {
        skip(test, "there is no gcc");
        return None;
    }
    let place = Place::new(test, Image::Default)?;
    let images = place.run(&["image", "ls", "--json"]).json();
    let images = images.as_array().unwrap();
    if !images.iter().any(|found| found["name"] == image().as_str()) {
        let name = image();
        skip(test, &format!("no image {name}: `tofu image build --kernel {name}` makes it"));
        return None;
    }
    Some(place)
}

/// Compiles C tests of the driver (`guest-lib/kernel/tests`) and puts them into /tmp of nodes.
#[track_caller]
pub fn programs(place: &Place, names: &[&str], nodes: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-lib/kernel/tests");
    for name in names {
        let path = place.file(name);
        let output = Command::new("gcc")
            .args(["-static", "-pthread", "-Wall", "-Wextra", "-Werror", "-O2", "-o", &path])
            .arg(source.join(name).with_extension("c"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for node in nodes {
            place.run(&["cp", &path, &format!("{node}:/tmp")]).ok();
        }
    }
}

/// Runs a C test on a node: it succeeds, and says how many things it has looked at.
#[track_caller]
pub fn passes(place: &Place, node: &str, command: &[&str]) {
    passed(&place.run_for(&[&["exec", node, "--"], command].concat(), PATIENCE, b""));
}

/// A C test has succeeded, and said how many things it has looked at.
#[track_caller]
pub fn passed(said: &Said) {
    assert!(said.code == Some(0) && said.out.contains("\n1.."), "{said:?}");
    assert!(!said.out.contains("not ok"), "{said:?}");
}

/// The kernel has not complained; nor has it lost memory, if it looks for that.
#[track_caller]
pub fn is_well(place: &Place, node: &str) {
    let log = place.exec(node, &["dmesg"]).ok();
    // The heap's own checks say "BUG kmalloc-64 (...)".
    let signs = [
        "BUG:",
        "] BUG ",
        "WARNING:",
        "Oops",
        "Call Trace",
        "INFO: task",
        "does not stop",
        "tofu: unknown parameter",
    ];
    for sign in signs.iter().chain(&["DMAR: [DMA"]) {
        assert!(!log.contains(sign), "{sign}: {log}");
    }
    // What is lost is told once it has been so for some seconds.
    let script = "mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null; \
                  leaks=/sys/kernel/debug/kmemleak; [ -e $leaks ] || exit 0; \
                  echo scan >$leaks; sleep 6; echo scan >$leaks; cat $leaks";
    let leaks = place.exec(node, &["sh", "-c", script]).ok();
    assert!(!leaks.contains("tofu"), "{leaks}");
}

/// The kernel of a node that was started with [`CHECKS`] has understood them.
#[track_caller]
pub fn checks_its_heap(place: &Place, node: &str) {
    let script = "cd /sys/kernel/slab/kmalloc-64 && cat poison red_zone";
    assert_eq!(place.exec(node, &["sh", "-c", script]).ok(), "1\n1\n");
}
