//! Small guests that misbehave.

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

/// Returns true if a line names the function and a line of its source.
fn names(line: &str, function: &str) -> bool {
    line.contains("    at 0x")
        && line.contains(&format!(" {function} ("))
        && line.contains("vmmtest.rs:")
}

#[test]
fn stuck_guest_names_its_function() {
    let place = Place::new();
    if !place.can_boot("stuck_guest_names_its_function") {
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

#[test]
fn guests_of_tnw_verify_what_they_send() {
    let place = Place::new();
    if !place.can_boot("guests_of_tnw_verify_what_they_send") {
        return;
    }
    let run = |shape: &str, guest: &str, args: &str| {
        let machine = ["up", "--generation", "tnw", "--shape", shape, "--timeout", "300s"];
        place.run(&[&machine[..], &["--guest", guest, "--args", args]].concat()).ok()
    };
    let out = run("2x2x1", "tnw-allpairs", "rounds=1");
    // Each guest prints it once, and the table at the end repeats it.
    let verified = "4 neighbours, 8 channels: Pput and Nget verified 1 times";
    assert_eq!(out.matches(verified).count(), 2 * 4, "{out}");
    let out = run("2x1x1", "tnw-pingpong", "rounds=2");
    assert!(out.contains("65536 bytes by Nget: "), "{out}");
    let out = run("2x2x2", "tnw-bench", "count=2 max=1024 pput=256 json=1");
    for (name, rows) in [
        ("tnw-bench Pput latency", 2),
        ("tnw-bench Pput bandwidth", 3 * 2),
        ("tnw-bench Nget latency", 4),
        ("tnw-bench Nget bandwidth", 3 * 4),
    ] {
        let program = format!("{{\"program\":\"{name}\",");
        let line = out.lines().find_map(|line| Some(&line[line.find(&program)?..]));
        let table: serde_json::Value = serde_json::from_str(line.expect(&out)).unwrap();
        assert_eq!(table["rows"].as_array().unwrap().len(), rows, "{name}");
    }
}

/// The checksum that `tnw-lbm` says.
fn checksum(out: &str) -> &str {
    let line = out.lines().find(|line| line.contains("as on one node to the last bit"));
    line.expect(out).rsplit(' ').next().unwrap()
}

#[test]
fn fluid_on_16_nodes_equals_that_on_one() {
    let place = Place::new();
    if !place.can_boot("fluid_on_16_nodes_equals_that_on_one") {
        return;
    }
    let run = |shape: &str, args: &str| {
        let machine = ["up", "--generation", "tnw", "--shape", shape, "--timeout", "300s"];
        let args = ["--guest", "tnw-lbm", "--args", args];
        let out = place.run(&[&machine[..], &args].concat()).ok();
        checksum(&out).to_owned()
    };
    // Blocks of unequal sizes.
    let alone = run("1x1x1", "nx=45 ny=38 steps=20");
    for (shape, args) in [
        ("4x2x2", "nx=45 ny=38 steps=20"),
        ("16x1x1", "nx=45 ny=38 steps=20 how=pput"),
        ("1x3x2", "nx=45 ny=38 steps=20"),
    ] {
        assert_eq!(run(shape, args), alone, "{shape}");
    }
    assert_ne!(run("1x1x1", "nx=45 ny=38 steps=21"), alone);
    let machine = ["up", "--generation", "tnw", "--shape", "1x3x3", "--guest", "tnw-lbm"];
    let said = place.run(&machine);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.out.contains("no ring goes through 3 times 3 nodes"), "{said:?}");
}
