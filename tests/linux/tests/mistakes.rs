//! Mistakes of users and deficiencies of hosts: each gives one clear line and exit code 2, and
//! leaves nothing behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use tofu_linux_tests::{Image, MOMENT, Place, Running, Said};

fn up(place: &Place, args: &[&str]) -> Said {
    place.run(&[&["up", "--linux"], args].concat())
}

#[test]
fn kernels_and_images() {
    let Some(place) = Place::new(Image::Default) else { return };
    let text = place.file("text");
    fs::write(&text, "not a kernel").unwrap();
    let folder = place.file("folder");
    fs::create_dir(&folder).unwrap();
    let cases: [(&[&str], &[&str]); 9] = [
        (&["--kernel", "/no/kernel"], &["kernel /no/kernel", "No such file"]),
        (&["--kernel", &text], &[&text, "neither a bzImage nor"]),
        // A program, but no kernel.
        (&["--kernel", "/proc/self/exe"], &["/proc/self/exe"]),
        (&["--kernel", &folder], &[&folder]),
        (&["--initrd", "/no/initrd"], &["initrd /no/initrd", "No such file"]),
        (&["--initrd", &folder], &[&folder, "it is a folder"]),
        (&["--image", "nosuch"], &["image nosuch", "tofu image build"]),
        (&["--image", "../x"], &["../x"]),
        (&["--guest", "/no/program"], &["guest /no/program", "No such file"]),
    ];
    for (args, expected) in cases {
        let error = up(&place, args).error();
        let all = expected.iter().all(|text| error.contains(text));
        assert!(all, "{args:?}: {error}");
    }
    place.is_clean();
}

#[test]
fn qemu() {
    let place = Place::empty();
    let fake = place.file("qemu-system-x86_64");
    let with = |script: &str| {
        fs::write(&fake, script).unwrap();
        fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = place.command(&["up", "--linux"]);
        command.env("TOFU_QEMU", &fake).env("TOFU_CACHE", place.path().join("cache"));
        Running::start(command, b"").end(Duration::from_secs(60)).error()
    };
    let error = with("#!/bin/sh\necho 'QEMU emulator version 7.2.22 (Debian 1:7.2)'\n");
    let all = [fake.as_str(), "7.2.22", "10.1"].iter().all(|text| error.contains(text));
    assert!(all, "{error}");
    // A recent enough version, but built without the device.
    let error = with("#!/bin/sh\n[ \"$1\" = --version ] && echo 'QEMU emulator version 10.2.0'\n");
    assert!(error.contains(&fake) && error.contains("vfio-user"), "{error}");
    let error = with("#!/bin/sh\necho 'something else' >&2; exit 1\n");
    assert!(error.contains(&fake), "{error}");
    fs::remove_file(&fake).unwrap();
    let mut command = place.command(&["up", "--linux"]);
    command.env("TOFU_QEMU", &fake).env("TOFU_CACHE", place.path().join("cache"));
    let error = Running::start(command, b"").end(MOMENT).error();
    assert!(error.contains(&fake), "{error}");
    // Mistakes of a user are reported before a QEMU is searched for, or fetched.
    for (args, expected) in [
        (&["--driver", "tofu"][..], "--driver tofu: there is no image with tofu.ko"),
        (&["--image", "none"], "image none: there is none"),
        (&["--kernel", "/no/kernel"], "kernel /no/kernel: cannot read it"),
    ] {
        for arch in ["x86-64", "arm64"] {
            let mut command = place.command(&[&["up", "--linux", "--arch", arch], args].concat());
            command.env("TOFU_QEMU", &fake).env("TOFU_QEMU_ARM64", &fake);
            command.env("TOFU_CACHE", place.path().join("cache"));
            let error = Running::start(command, b"").end(MOMENT).error();
            assert!(error.contains(expected), "{arch}: {error}");
        }
    }
    place.is_clean();
}

#[test]
fn sockets_and_names() {
    let place = Place::empty();
    let sockets = place.file("sockets");
    fs::create_dir(&sockets).unwrap();
    let arguments = ["serve", "--shape", "1x1x1x1x1x1", "--json", "--socket-dir", &sockets];
    let mut first = place.start(&arguments);
    first.line();
    let error = place.run(&arguments).error();
    assert!(error.contains("node-0-0-0-0-0-0.sock") && error.contains("in use"), "{error}");
    let error = place.run(&["serve", "--name", "tofu"]).error();
    assert!(error.contains("the name tofu is taken"), "{error}");
    let error = place.run(&["exec", "0", "--", "true"]).error();
    assert!(error.contains("not a Linux node"), "{error}");
    let error = place.run(&["exec", "7", "--", "true"]).error();
    assert!(error.contains("node 7") && error.contains("no such node"), "{error}");
    let error = place.run(&["restart", "other/0"]).error();
    assert!(error.contains("no machine other is running"), "{error}");
    place.run(&["down"]).ok();
    assert_eq!(first.end(MOMENT).code, Some(0));
    let error = place.run(&["console", "0"]).error();
    assert!(error.contains("no machine is running"), "{error}");
    place.is_clean();
    assert_eq!(fs::read_dir(&sockets).unwrap().count(), 0);
}

#[test]
fn nodes_that_never_boot() {
    let Some(place) = Place::new(Image::Default) else { return };
    // A kernel that panics, and says so.
    let error = up(&place, &["--append", "rdinit=/no/init root=none"]).error();
    assert!(error.contains("the last lines of its console: "), "{error}");
    assert!(error.contains("Kernel panic"), "{error}");
    place.is_clean();
    // A kernel that keeps running without our agent. Its last output is shown; a busy host needs
    // longer to get that far.
    let init = "rdinit=/bin/busybox -- sh -c \"echo here I sit; exec /bin/busybox sleep 100\"";
    let sits = [15, 60].into_iter().any(|seconds| {
        let timeout = format!("{seconds}s");
        let options = ["--shape", "1x1x1x1x1x1", "--append", init, "--boot-timeout", &timeout];
        let start = Instant::now();
        let error = up(&place, &options).error();
        assert!(error.contains(&format!("did not come up within {seconds} s")), "{error}");
        assert!(start.elapsed() < Duration::from_secs(seconds + 45));
        place.is_clean();
        error.ends_with("here I sit")
    });
    assert!(sits, "the last lines of its console are not there");
    // An invalid initrd.
    let initrd = place.file("initrd");
    fs::write(&initrd, "no archive").unwrap();
    let error = up(&place, &["--shape", "1x1x1x1x1x1", "--initrd", &initrd]).error();
    assert!(error.contains("Kernel panic"), "{error}");
    place.is_clean();
}
