//! Linux nodes that fetch their kernels over the torus.

use tofu_linux_tests::{Image, MOMENT, PATIENCE, Place, wait_for};

/// Two nodes boot at once and work together; then one boots again.
#[test]
fn linux_comes_over_the_torus() {
    let Some(place) = Place::new(Image::Default) else { return };
    place.up(&["--boot", "tofu"]);
    let ps = place.ps();
    // The third node is the boot server.
    assert_eq!(
        (&ps[0]["shape"], ps[0]["nodes"].as_array().map(Vec::len)),
        (&"3x1x1x1x1x1".into(), Some(2))
    );
    for node in ["0", "1"] {
        // The kernel's command line is the one for this node.
        let line = place.exec(node, &["cat", "/proc/cmdline"]).ok();
        assert!(line.contains(&format!("tofu.name=t-{node}-0-0-0-0-0 ")), "{line}");
        // The firmware was there before it.
        let log = place.path().join(format!("tofu/tofu/console-{node}-0-0-0-0-0.log"));
        let console = std::fs::read_to_string(&log).unwrap();
        assert!(console.contains("boot: ") && console.contains(" KiB in "), "{console}");
    }
    place.all_pairs(2, 2);

    let before = place.exec("1", &["cat", "/proc/sys/kernel/random/boot_id"]).ok();
    place.run(&["restart", "1"]).ok();
    wait_for("the node to come back", PATIENCE, || {
        let said = place.exec("1", &["cat", "/proc/sys/kernel/random/boot_id"]);
        said.code == Some(0) && said.out != before
    });
    place.run_for(&["down"], MOMENT, b"").ok();
    place.is_clean();
}

/// A kernel that differs from the one that the server has announced is not started.
#[test]
fn changed_kernel_is_not_started() {
    let Some(place) = Place::new(Image::Default) else { return };
    let said = place.run(&["up", "--linux", "--boot", "tofu", "--boot-fault", "corrupt"]);
    let error = said.error();
    assert!(error.contains("the kernel has another SHA-256"), "{error}");
    place.is_clean();
}
