//! One line for each mistake.

use crate::tofu::Place;

#[test]
fn without_a_machine() {
    let place = Place::new();
    for args in [
        &["exec", "0", "--", "true"][..],
        &["exec", "--all", "--", "true"],
        &["console", "0"],
        &["cp", "/etc/passwd", "0:/tmp"],
        &["restart", "0"],
        &["down"],
        &["down", "other"],
    ] {
        let error = place.run(args).error();
        assert!(error.starts_with("tofu: no machine is running; "), "{args:?}: {error}");
    }
    assert_eq!(place.run(&["ps"]).ok(), "no machine is running\n");
    assert_eq!(place.run(&["ps", "--json"]).ok(), "[]\n");
}

#[test]
fn words_that_mean_nothing() {
    let place = Place::new();
    let cases: [(&[&str], &str); 16] = [
        (&["exec", "first", "--", "true"], "node first: not a node; give an index such as 0"),
        (&["exec", "0,0", "--", "true"], "node 0,0: not a node"),
        (&["exec", "2a/0", "--", "true"], "node 2a/0: a machine's name is 1 to 32 letters"),
        (&["exec", "0"], "<CMD>"),
        (&["cp", "a", "b"], "neither a nor b is on a node; write NODE:PATH"),
        (&["cp", "0:a", "1:b"], "both are on nodes"),
        (&["cp", "0:/", "b"], "does not end in a name"),
        (&["cp", "/no/such/file", "0:/tmp"], "cannot read /no/such/file: No such file"),
        (&["up", "--linux", "--guest", "puts", "--detach"], "every Linux node runs a program to"),
        (&["ps", "--log", "device=loud"], "a level is off, error, warn, info, debug or trace"),
        (&["up", "--net", "lan"], "--net is for machines with Linux nodes"),
        (&["up", "--linux", "--cpus", "17"], "a whole number of processors from 1 to 16"),
        (&["up", "--linux", "--name", "a/b"], "1 to 32 letters, digits, - and _"),
        (&["up", "--linux", "--memory", "64MiB"], "64MiB of memory are too little"),
        (&["up", "--memory", "2MiB"], "2MiB of memory are too little for the guest allpairs; give"),
        (&["up", "--guest", "helo"], "there is no such guest; did you mean hello; `tofu guest ls`"),
    ];
    for (args, expected) in cases {
        let error = place.run(args).error();
        assert!(error.contains(expected), "{args:?}: {error}");
    }
    place.is_clean();
}

#[test]
fn files_of_the_wrong_kind() {
    let place = Place::new();
    let up = |args: &[&str]| place.run(&[&["up", "--linux"], args].concat()).error();
    let error = up(&["--kernel", "/etc/passwd"]);
    let words =
        if cfg!(target_arch = "aarch64") { "no kernel for" } else { "neither a bzImage nor" };
    assert!(error.contains("/etc/passwd") && error.contains(words), "{error}");
    let error = up(&["--kernel", "/no/kernel"]);
    assert!(error.contains("kernel /no/kernel: cannot read it: No such file"), "{error}");
    let error = up(&["--initrd", "/dev/null"]);
    assert!(error.contains("initrd /dev/null: cannot read it: it is a device"), "{error}");
    let error = up(&["--guest", "/no/program"]);
    assert!(error.contains("guest /no/program: cannot read it"), "{error}");
    place.is_clean();
}

#[test]
fn invalid_qemu_is_refused() {
    let place = Place::new();
    let cache = tempfile::tempdir().unwrap();
    let mut command = place.command(&["up", "--linux"]);
    command.env("TOFU_QEMU", "/bin/true").env("TOFU_QEMU_ARM64", "/bin/true");
    command.env("TOFU_CACHE", cache.path());
    let output = command.output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.starts_with("tofu: ") && error.contains("/bin/true"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    place.is_clean();
}

#[test]
fn images_that_are_not_there() {
    let place = Place::new();
    let cache = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let output = place.command(args).env("TOFU_CACHE", cache.path()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, error) = run(&["image", "rm", "nosuch"]);
    assert!(code == Some(2) && error.contains("nosuch"), "{error}");
    let (code, error) = run(&["image", "build", "--with", "No Package"]);
    assert!(code == Some(2) && error.contains("No Package"), "{error}");
    let (code, error) = run(&["image", "build", "--kernel", "fastest"]);
    assert!(code == Some(2) && error.contains("fastest"), "{error}");
    let (code, _) = run(&["image", "ls"]);
    assert_eq!(code, Some(0));
}

#[test]
fn missing_run_directory_is_refused() {
    let place = Place::new();
    for command in [&["ps"][..], &["up"], &["serve"]] {
        let mut command = place.command(command);
        command.env("XDG_RUNTIME_DIR", "/no/such/folder");
        let error = place.run_command(command).error();
        let expected = "XDG_RUNTIME_DIR=/no/such/folder: there is no such folder";
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn foreign_run_directory_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let base = place.path().join("tofu");
    std::fs::create_dir(&base).unwrap();
    std::fs::set_permissions(&base, std::fs::Permissions::from_mode(0o777)).unwrap();
    let error = place.run(&["ps"]).error();
    assert!(error.contains("must be a directory of yours with mode 0700"), "{error}");
}
