//! Small guests that do what they should not.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tofu::Place;

/// The guest that tests the monitor, built if necessary.
fn vmmtest() -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vmm-device/vmm/guests");
    // Where the monitor's own tests build it, too.
    let this = std::env::current_exe().unwrap();
    let target = this.ancestors().nth(2).unwrap().join("vmm-guests");
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(sources)
        .args(["build", "--release", "--quiet", "--target-dir"])
        .arg(&target)
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .status()
        .unwrap();
    assert!(status.success());
    target.join("release/vmmtest")
}

/// Whether a line names the function and a line of its source.
fn names(line: &str, function: &str) -> bool {
    line.contains("    at 0x")
        && line.contains(&format!(" {function} ("))
        && line.contains("vmmtest.rs:")
}

#[test]
fn a_guest_that_cannot_go_on_or_hangs_says_in_which_function() {
    let place = Place::new();
    if !place.can_boot("a_guest_that_cannot_go_on_or_hangs_says_in_which_function") {
        return;
    }
    let guest = vmmtest();
    let run = |test: &str, time: &str| {
        let guest = guest.to_str().unwrap();
        let args = ["up", "--shape", "1x1x1x1x1x1", "--guest", guest, "--args", test];
        let said = place.run(&[&args[..], &["--timeout", time]].concat());
        assert_eq!(said.code, Some(1), "{said:?}");
        said
    };
    for (test, what, function) in [
        ("test=null", "cr2=0x10 ", "null"),
        ("test=panic", "told to", "main"),
        ("test=page-fault", "cr2=0x201238", "page_fault"),
        ("test=stack-overflow", "page fault", "overflow"),
    ] {
        let said = run(test, "60s");
        let told = said.out.lines().position(|line| line.contains(what)).expect(&said.out);
        let mut frames = said.out.lines().skip(told + 1).filter(|line| line.contains("    at 0x"));
        // Functions of the library may be further in.
        assert!(frames.any(|line| names(line, function)), "{test}: {}", said.out);
    }
    let said = run("test=hang", "1s");
    let found = said.out.lines().any(|line| names(line, "hang"));
    assert!(found && said.out.contains("still running after 1 s"), "{said:?}");
}
