//! The kernel driver `tofu.ko` in Linux nodes: its own C tests (`guest-lib/kernel/tests`), uTofu
//! programs on it, and a program that knows only the public interface; between two nodes, and while
//! the driver is loaded and unloaded. The image with the driver takes minutes to make, so these
//! tests only run where it has been made.

use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tofu_abi::Generation;
use tofu_c_tests::{have, run};
use tofu_linux_tests::driver::{
    self, LOAD, Nodes, SHAPE, TRACING, checks_its_heap, first_put, image, is_well, learners_driver,
    passed, passes,
};
use tofu_linux_tests::{MOMENT, PATIENCE, Place, Running, skip, sorted, wait_for};

/// Longer than the driver takes to find out that the device has changed.
const UNSEEN: Duration = Duration::from_secs(3);

/// Starts to trace the driver's events; `false`, after a message, if the kernel cannot.
fn trace(nodes: &Nodes) -> bool {
    let script = format!("{TRACING} && [ -e events/tofu ] || exit 9; echo 1 >events/tofu/enable");
    let said = nodes.place.exec("0", &["sh", "-c", &script]);
    if said.code == Some(9) {
        skip("the image's kernel has no tracepoints");
        return false;
    }
    said.ok();
    true
}

/// The exceptions of gates that the test of barriers has caused are in the trace.
fn gate_faults_are_traced(nodes: &Nodes) {
    let script = format!("{TRACING}; grep tofu_gate_fault trace; echo 0 >events/tofu/enable");
    let faults = nodes.place.exec("0", &["sh", "-c", &script]).ok();
    // A signal of another round.
    assert!(faults.contains("channel=tni1bch6 requests=0x10\n"), "{faults}");
    assert!(
        faults.lines().all(|line| line.contains(" channel=tni") && line.contains(" requests=0x"))
    );
}

/// The device without an IOMMU, which the kernel can be told to leave out for a group of devices.
fn without_an_iommu(nodes: &Nodes) {
    let with_group = |kind: &str, then: &str| {
        let script = format!(
            "rmmod tofu || exit 1; \
             for device in /sys/bus/pci/devices/*; do \
                 [ $(cat $device/vendor) = 0x10cf ] && echo {kind} >$device/iommu_group/type; \
             done; \
             {LOAD} || exit 3; {then}"
        );
        nodes.place.run_for(&["exec", "0", "--", "sh", "-c", &script], PATIENCE, b"")
    };
    passed(&with_group("identity", "exec /tmp/contiguous"));
    with_group("DMA", "true").ok();
}

/// libtofucom chooses the driver by itself: the programs are those for every node.
fn utofu_programs(nodes: &Nodes) {
    for (name, expected) in [
        ("counter", &["0: counter 2000, each number drawn once: yes"][..]),
        ("pingpong", &["0: 1000 rounds of 4096 bytes, first byte 208"]),
        ("striping", &["1: 12582912 bytes over 6 TNIs, 0 wrong"]),
        ("stride", &["0: 2 ranks, halo columns of 300 rows, 0 wrong"]),
        ("piggyback", &["0: 128 of 128 letters as they were written"]),
        ("prepared", &["0: 100 rounds of 192 bytes of descriptors, 0 wrong"]),
        ("sizes", &["0: 22 sizes up to 16777215 bytes, 22 as they were sent"]),
        ("threads", &["0: 2 ranks of 4 threads: each number drawn once"]),
    ] {
        let source = format!("../../guest-lib/utofu/examples/c/{name}.c");
        nodes.sdk.compile(&source, &["-ltofucom", "-ltofutop", "-lpthread"]);
        assert_eq!(nodes.job(&["-n", "2", &format!("./{name}")], PATIENCE), expected, "{name}");
    }
    // Many processes: uncounted ones, as many as there are queues; then those of two nodes, where
    // one is killed repeatedly in the middle of large Puts.
    nodes.sdk.compile("programs/processes.c", &["-ltofucom"]);
    let job = ["-n", "1", "--no-prefix", "./processes", "many", "11", "20"];
    let mut expected: Vec<_> = (0..11).map(|n| format!("process {n}: 20 rounds")).collect();
    expected.sort_unstable();
    assert_eq!(nodes.job(&job, PATIENCE), expected);
    let job = ["-n", "2", "--env", "AXIS=3", "./processes", "node", "rank", "6", "4", "0", "8"];
    let out = nodes.job(&job, 2 * PATIENCE);
    assert!(out.contains(&"0: killed 8 times".to_owned()), "{out:?}");
    assert_eq!(out.len(), 10, "one line, and one for each of nine processes: {out:?}");
}

/// The library's own tests, in which both processes are one process of node 0 here. They print the
/// same as on a machine inside the process, which runs on this host.
fn utofu_tests(nodes: &Nodes) {
    for (name, args) in [
        ("abi", &[][..]),
        ("functions", &[]),
        ("codes", &[]),
        ("garbage", &[]),
        ("threads", &[]),
        ("model", &["3000"]),
    ] {
        utofu_test(nodes, name);
        let program = format!("./{name}");
        let mut command = nodes.sdk.here(&program);
        command.args(args).env("TOFU_PROVIDER", "inproc").env("TOFU_SHAPE", SHAPE);
        if name == "codes" {
            // As in a job, so that it does not access nodes outside of its subnet.
            command.env("TOFU_SUBNET", "");
        }
        let expected = Running::start(command, b"").end(PATIENCE).ok();
        let job = [&["-n", "1", "--no-prefix", &program], args].concat();
        let out = nodes.job(&job, 2 * PATIENCE);
        assert_eq!(out, sorted(&expected), "{name}");
    }
    // The kernel driver gives no interrupts, which is reported immediately.
    utofu_test(nodes, "wait");
    assert_eq!(nodes.job(&["-n", "1", "--no-prefix", "./wait"], PATIENCE), ["no interrupts"]);
    // Arbitrary calls, of all functions. The program checks memory and return codes.
    utofu_test(nodes, "anything");
    let lines = nodes.job(&["-n", "1", "--no-prefix", "./anything", "5000"], 2 * PATIENCE);
    let mut functions: Vec<_> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
    functions.dedup();
    assert_eq!(functions.len(), 65, "{functions:?}");
}

fn utofu_test(nodes: &Nodes, name: &str) {
    let source = format!("../../guest-lib/utofu/c/tests/{name}.c");
    let flags = ["-DONE_PROCESS", "-ltofucom", "-ltofutop", "-lpthread"];
    nodes.sdk.compile(&source, &flags);
}

/// Barriers and reductions of groups, two processes on each node; all gates are used up, and become
/// free when their processes are killed in the middle of a round.
fn utofu_barriers(nodes: &Nodes) {
    nodes.sdk.compile("programs/barriers.c", &["-ltofucom", "-ltofutop"]);
    let groups = "4 ranks: 60 rounds right, gates ran out and came back";
    let expected: Vec<_> = (0..4).map(|rank| format!("{rank}: {groups}")).collect();
    assert_eq!(nodes.job(&["-n", "4", "./barriers", "groups"], PATIENCE), expected);
    let hold = nodes.sdk.command(&nodes.place, &["run", "-n", "4", "./barriers", "hold"]);
    assert_eq!(Running::start(hold, b"").end(PATIENCE).code, Some(128 + 9));
    let expected: Vec<_> = (0..4).map(|rank| format!("{rank}: took all and met")).collect();
    assert_eq!(nodes.job(&["-n", "4", "./barriers", "take"], PATIENCE), expected);
}

/// A process gets the reset of its device from its next polls, and starts over; tofu0 recovers by
/// itself. A forked child has its own queues.
fn utofu_resets_and_forks(nodes: &Nodes) {
    let waits = nodes.sdk.command(&nodes.place, &["run", "-n", "2", "./barriers", "reset"]);
    let mut waits = Running::start(waits, b"");
    assert_eq!(waits.line(), "0: waits\n");
    let reset = "sleep 1; echo 1 | tee /sys/bus/pci/drivers/tofu/*:*/reset";
    nodes.place.exec("0", &["sh", "-c", reset]).ok();
    starts_over(waits);
    utofu_test(nodes, "fork");
    assert_eq!(nodes.job(&["-n", "1", "--no-prefix", "./fork", "-7"], PATIENCE), ["ok"]);
    assert_eq!(nodes.job(&["-n", "1", "--no-prefix", "./fork"], PATIENCE), ["ok"]);
}

/// The job `barriers reset` has found out that it has lost its queue, and got another one.
fn starts_over(waits: Running) {
    let said = waits.end(PATIENCE).ok();
    assert_eq!(said, "0: waits\n0: lost its queue and barrier, and has others\n");
}

/// Sets D to the folder of the device of a node.
const FOLDER: &str = "D=$(readlink -f /sys/bus/pci/drivers/tofu/*:*)";
/// Functions that write a byte of the configuration: of Power Management's control, and of PCI
/// Express's device control.
const CONFIGURE: &str = "put() { printf \"$2\" | \
                             dd of=$D/config bs=1 seek=$1 count=1 conv=notrunc; }; \
                         power() { put 68 $1; }; flr() { put 89 '\\250'; }";

/// Changes of the device without the kernel's knowledge are detected: a process finds that its
/// queue is lost, `health` has the state, and afterwards everything works again. None of them
/// leaves a process waiting.
#[test]
fn changes_that_nothing_tells_of_are_found() {
    let Some(nodes) = Nodes::boot(Generation::Fugaku) else { return };
    let place = &nodes.place;
    nodes.sdk.compile("programs/barriers.c", &["-ltofucom", "-ltofutop"]);
    place.shell(0, "mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null; true");
    let health = || place.shell(0, "head -n 2 /sys/kernel/debug/tofu/health");
    let is_gone = || health() == "state failed\ndevice no answer\n";
    driver::programs(place, &["net"], &["0"]);
    let devlink = || place.shell(0, "/tmp/net health | head -n 4");
    let has_reported = || {
        let said = devlink();
        said.starts_with("healthy 0\nreports ") && said.ends_with(&health())
    };
    let fault = |faults| place.run(&["fault", "device", "0", faults]).ok();
    let configure = |script| place.shell(0, &format!("{FOLDER}; {CONFIGURE}; {script}"));
    for change in ["gone", "removed", "D3hot", "flr"] {
        // Memory that a device keeps when it is gone counts as leaked.
        if ["gone", "removed"].contains(&change) && image().contains("debug") {
            continue;
        }
        // A process that lives through a removal does not find the new device.
        let waits = (change != "removed").then(|| {
            let waits = nodes.sdk.command(place, &["run", "-n", "2", "./barriers", "reset"]);
            let mut waits = Running::start(waits, b"");
            assert_eq!(waits.line(), "0: waits\n");
            waits
        });
        match change {
            "flr" => drop(configure("flr")),
            "D3hot" => {
                configure(r"power '\3'");
                wait_for("health to say that the device is gone", MOMENT, is_gone);
                thread::sleep(UNSEEN);
                assert!(has_reported(), "{}", devlink());
                configure(r"power '\0'");
            }
            _ => {
                fault("gone");
                wait_for("health to say that the device is gone", MOMENT, is_gone);
                thread::sleep(UNSEEN);
                assert!(has_reported(), "{}", devlink());
                if change == "removed" {
                    place.shell(0, &format!("{FOLDER}; echo 1 >$D/remove; [ ! -e /proc/tofu ]"));
                }
                fault("off");
                place.shell(0, "[ -e /proc/tofu ] || echo 1 >/sys/bus/pci/rescan");
            }
        }
        if let Some(waits) = waits {
            starts_over(waits);
        }
        wait_for("health", MOMENT, || health().starts_with("state ok\n"));
        place.exec("0", &["tofu-guest", "exercise"]).ok();
        let answers = || place.exec("0", &["ping", "-c1", "-W2", "n1"]).code == Some(0);
        wait_for("tofu0", MOMENT, answers);
    }
    // Of the last device: low power, and the reset.
    assert!(devlink().starts_with("healthy 1\nreports 2\n"), "{}", devlink());
    spoilt_packets_are_counted(place);
    no_device_keeps_memory(&nodes);
    is_well(place, "0");
    grammar_with_lies(&nodes);
    place.run(&["down"]).ok();
    place.is_clean();
}

/// Loads the module that takes the device of node 0 away as if it were pulled out.
const PULL_OUT: &str = "insmod /tmp/pull_out.ko 2>/dev/null; [ ! -e /proc/tofu ]";
/// The pages that a kernel keeps pinned.
const PINNED: &str = "awk '/nr_foll_pin_acquired/ { n += $2 } /nr_foll_pin_released/ { n -= $2 } \
                      END { print n + 0 }' /proc/vmstat";

/// Neither a device that was gone, nor one that was pulled out.
fn no_device_keeps_memory(nodes: &Nodes) {
    device_that_returns_gives_memory_back(nodes);
    pulled_out_device_keeps_nothing(nodes);
}

/// All memory is free when a device was pulled out, also that of the kernel's queues and of a
/// process that lives on, though no queue was seen to stop. The next device works.
fn pulled_out_device_keeps_nothing(nodes: &Nodes) {
    let place = &nodes.place;
    let module = place.file("pull_out.ko");
    std::fs::write(&module, driver::module(place, "programs/pull_out")).unwrap();
    place.run(&["cp", &module, "0:/tmp"]).ok();
    place.shell(0, "dmesg -c >/dev/null");
    let pinned = place.shell(0, PINNED);
    let mut process = nodes.start("0", &["put", "receive", "2", "1", "1000003", "7"]);
    assert_eq!(process.line(), "ready\n");
    wait_for("pinned pages", MOMENT, || place.shell(0, PINNED) != pinned);
    place.run(&["fault", "device", "0", "stuck"]).ok();
    place.shell(0, PULL_OUT);
    wait_for("pages as before", MOMENT, || place.shell(0, PINNED) == pinned);
    let log = place.shell(0, "dmesg");
    assert!(!log.contains("lost") && !log.contains("does not stop"), "{log}");
    place.shell(0, "killall put 2>/dev/null; true");
    process.end(PATIENCE);
    place.run(&["fault", "device", "0", "off"]).ok();
    place.shell(0, "echo 1 >/sys/bus/pci/rescan");
    nodes.puts();
}

/// A queue that was closed while the device was gone keeps its memory, as the device might use it,
/// until the device is back and was reset.
fn device_that_returns_gives_memory_back(nodes: &Nodes) {
    let place = &nodes.place;
    let (before, pinned) = (place.shell(0, PINNED), || place.shell(0, PINNED));
    let mut process = nodes.start("0", &["put", "receive", "2", "1", "1000003", "7"]);
    assert_eq!(process.line(), "ready\n");
    wait_for("pinned pages", MOMENT, || pinned() != before);
    place.run(&["fault", "device", "0", "gone"]).ok();
    let health = || place.shell(0, "head -n 1 /sys/kernel/debug/tofu/health");
    wait_for("health to say that the device is gone", MOMENT, || health() == "state failed\n");
    // Otherwise it could be back before the driver resets it.
    thread::sleep(UNSEEN);
    // The signal of its queue has ended it, or else this does.
    place.shell(0, "killall put 2>/dev/null; true");
    process.end(PATIENCE);
    assert_ne!(pinned(), before);
    place.run(&["fault", "device", "0", "off"]).ok();
    wait_for("pages as before", MOMENT, || pinned() == before);
    wait_for("health", MOMENT, || health() == "state ok\n");
    nodes.puts();
}

/// `utofu-perf` between the nodes prints all requested figures.
fn utofu_perf(nodes: &Nodes) {
    let built = std::env::current_exe().unwrap();
    let program: PathBuf = built.ancestors().nth(2).unwrap().join("utofu-perf");
    if !program.is_file() {
        return skip("no utofu-perf: `cargo build -p tofu-utofu-perf` makes it");
    }
    std::fs::copy(program, nodes.place.path().join("utofu-perf")).unwrap();
    let between = [nodes.position("0"), nodes.position("1")].concat().join(",");
    let sizes = ["--sizes=8,65536", "--regions=4096,1048576"];
    let options =
        [&["--tnis=2", "--time=10", "--json", "--between", &between], &sizes[..]].concat();
    let tests = ["latency", "put", "get", "bandwidth", "rate", "registration"];
    let job = [&["run", "-n", "2", "--no-prefix", "./utofu-perf"], &options[..], &tests].concat();
    let command = nodes.sdk.command(&nodes.place, &job);
    let report: Value = Running::start(command, b"").end(PATIENCE).json();
    let rows = report["results"].as_array().unwrap();
    for test in ["latency", "put", "get", "bandwidth", "rate", "register", "deregister"] {
        let rows: Vec<_> = rows.iter().filter(|row| row["test"] == test).collect();
        assert!(!rows.is_empty(), "{test}: {report}");
        for row in rows {
            let figures = ["p50_us", "mb_per_s", "million_per_s"];
            let figure = figures.iter().find_map(|name| row[name].as_f64());
            assert!(figure.is_some_and(|value| value > 0.0), "{row}");
        }
    }
}

/// The fuzzer with a grammar, for `TOFU_FUZZ_SECONDS`, by `TOFU_FUZZ_SEED`.
fn grammar(nodes: &Nodes, more: &[&str]) {
    let setting = |name, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let (seconds, seed) = (setting("TOFU_FUZZ_SECONDS", "8"), setting("TOFU_FUZZ_SEED", "1"));
    let time = PATIENCE + Duration::from_secs(seconds.parse::<u64>().unwrap());
    let command = [&["exec", "0", "--", "/tmp/grammar", &seconds, &seed], more].concat();
    passed(&nodes.place.run_for(&command, time, b""));
}

/// A packet that has met wrong bits in a router's memory is counted by health where it arrives: the
/// first one that a node sends or gets.
fn spoilt_packets_are_counted(place: &Place) {
    let spoilt = || {
        let at = |node| place.shell(node, "grep nullified_packets /sys/kernel/debug/tofu/health");
        [at(0), at(1)].concat().matches("nullified_packets 1\n").count()
    };
    assert_eq!(spoilt(), 0);
    place.run(&["fault", "ecc", "0", "--where", "router", "--fatal"]).ok();
    wait_for("the packet", MOMENT, || {
        place.exec("0", &["ping", "-c1", "-W2", "n1"]);
        spoilt() == 1
    });
}

/// The same with a device whose registers read wrong: the driver may lose queues to it, but the
/// kernel lives, and no call waits for ever.
fn grammar_with_lies(nodes: &Nodes) {
    nodes.place.run(&["fault", "device", "0", "register-lies=2%,seed=1"]).ok();
    grammar(nodes, &["lies"]);
    nodes.place.run(&["fault", "device", "0", "off"]).ok();
    let log = nodes.place.shell(0, "dmesg");
    for sign in ["BUG:", "kernel BUG", "WARNING:", "Oops", "Call Trace", "INFO: task"] {
        assert!(!log.contains(sign), "{sign}: {log}");
    }
}

/// Both for long (`ci/test --tier driver-fuzz`).
#[test]
#[ignore = "it runs for TOFU_FUZZ_SECONDS, by the tier driver-fuzz"]
fn fuzz_for_long() {
    let Some(nodes) = Nodes::boot(Generation::Fugaku) else { return };
    grammar(&nodes, &[]);
    is_well(&nodes.place, "0");
    grammar_with_lies(&nodes);
    nodes.place.run(&["down"]).ok();
}

/// Loading and unloading, also while queues are open and mapped and Puts are in flight; `times`
/// times in all, half of them on each node, because both mostly wait.
fn comes_and_goes(nodes: &Nodes, times: u32) {
    let start = Instant::now();
    let each = times / 2;
    let loops = ["0", "1"].map(|node| {
        let script = format!(
            "for i in $(seq {each}); do \
                 /tmp/races 60 $i{node} >/dev/null 2>&1 & sleep 0.0$((3 + i % 7)); \
                 rmmod tofu || exit 1; [ -e /proc/tofu ] && exit 2; \
                 kill -9 $! 2>/dev/null; wait; \
                 {LOAD} || exit 3; \
                 cat /proc/tofu/position >/dev/null || exit 4; \
             done"
        );
        nodes.place.start(&["exec", node, "--", "sh", "-c", &script])
    });
    for running in loops {
        running.end(8 * PATIENCE).ok();
    }
    eprintln!("{times} times unloaded and loaded in {:.1} s", start.elapsed().as_secs_f32());
}

/// Without options, nodes get the driver where an image with it exists. They run the same programs
/// as nodes without it, including programs that use the device by VFIO. `--driver` overrides the
/// choice.
#[test]
fn nodes_get_the_driver_by_themselves() {
    let Some(place) = driver::place() else { return };
    let image = image();
    if !["driver-cloud", "driver-generic", "driver"].contains(&image.as_str()) {
        return skip(&format!("image {image} is only taken if it is named"));
    }
    place.up(&[]);
    let has_driver = |node| place.exec(node, &["test", "-e", "/proc/tofu"]).code == Some(0);
    assert!(has_driver("0") && has_driver("1"));
    let answers = || place.exec("0", &["ping", "-c1", "-W2", "10.1.0.1"]).code == Some(0);
    wait_for("tofu0", MOMENT, answers);
    // The driver lends the device, and gets it back.
    place.all_pairs(2, 2);
    place.exec("1", &["tofu-guest", "selftest"]).ok();
    wait_for("the driver", MOMENT, || has_driver("0") && has_driver("1"));
    wait_for("tofu0 again", MOMENT, answers);
    // Not under a process that uses it.
    let hold = "exec 3<>/proc/tofu/dev/tni2cq3; echo on; exec sleep 1000";
    let mut holder = place.start(&["exec", "1", "--", "sh", "-c", hold]);
    assert_eq!(holder.line(), "on\n");
    let said = place.exec("1", &["tofu-guest", "selftest"]);
    assert_ne!(said.code, Some(0), "{said:?}");
    assert!(said.err.contains("belongs to the driver tofu"), "{said:?}");
    place.exec("1", &["killall", "sleep"]).ok();
    holder.end(MOMENT);
    place.exec("1", &["tofu-guest", "selftest"]).ok();
    // One that is killed has had it.
    let killed = "puts nodes=2 count=4000000 & sleep 2; kill -9 $!";
    place.exec("0", &["sh", "-c", killed]).ok();
    wait_for("the driver", MOMENT, || has_driver("0") && has_driver("1"));
    wait_for("tofu0 once more", MOMENT, answers);
    // Nor is it lost if the process that lends it is killed and replaced.
    let killed = "puts nodes=2 count=4000000 & sleep 2; [ ! -e /proc/tofu ] || exit 3; \
                  killall -9 tofud; sleep 3; [ ! -e /proc/tofu ] || exit 4; kill -9 $!";
    place.exec("0", &["sh", "-c", killed]).ok();
    wait_for("the driver", MOMENT, || has_driver("0") && has_driver("1"));
    wait_for("tofu0 after that", MOMENT, answers);
    place.exec("0", &["tofu-guest", "selftest"]).ok();
    wait_for("the driver", MOMENT, || has_driver("0"));
    for node in ["0", "1"] {
        is_well(&place, node);
    }
    place.run(&["down"]).ok();

    let one = ["--shape", "1x1x1x1x1x1", "--driver"];
    place.up(&[&one[..], &["vfio", "--image", &image]].concat());
    assert!(!has_driver("0"));
    place.exec("0", &["tofu-guest", "selftest"]).ok();
    place.run(&["down"]).ok();
    let wrong = [&["up", "--linux"], &one[..], &["tofu", "--image", "default"]].concat();
    let error = place.run(&wrong).error();
    let expected = "--driver tofu: image default has no tofu.ko; `tofu image build --name default \
                    --kernel driver-cloud` makes it with one";
    assert!(error.contains(expected), "{error}");
    place.is_clean();
}

/// Programs in C and C++ can include the header and nothing else.
#[test]
fn header_compiles_alone() {
    let header = "../../guest-lib/kernel/include/uapi/tof.h";
    for (compiler, language, standard) in [("gcc", "c", "-std=c99"), ("g++", "c++", "-std=c++11")] {
        let flags = ["-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x"];
        if have(compiler) {
            run(Command::new(compiler).arg(standard).args(flags).args([language, header]));
        } else {
            skip(&format!("there is no {compiler}"));
        }
    }
}

#[test]
fn driver_passes_its_tests() {
    let Some(nodes) = Nodes::boot(Generation::Fugaku) else { return };
    assert_ne!(nodes.position("0"), nodes.position("1"));
    assert_eq!(nodes.position("0").len(), 6);

    let traced = trace(&nodes);
    let limit = nodes.job(&["-n", "1", "--no-prefix", "sh", "-c", "ulimit -l"], PATIENCE);
    assert_eq!(limit, ["unlimited"], "jobs register what there is");
    for test in ["ioctls", "users", "rights", "limits", "memory", "barrier", "reset"] {
        passes(&nodes.place, "0", &[&format!("/tmp/{test}")]);
    }
    if traced {
        gate_faults_are_traced(&nodes);
    }
    passes(&nodes.place, "0", &["/tmp/races", "5"]);
    grammar(&nodes, &[]);
    nodes.puts();
    nodes.barriers();
    nodes.foreign_program();
    utofu_programs(&nodes);
    utofu_tests(&nodes);
    utofu_barriers(&nodes);
    utofu_resets_and_forks(&nodes);
    utofu_perf(&nodes);
    let times = if std::env::var_os("TOFU_LONG").is_some() { 1000 } else { 16 };
    comes_and_goes(&nodes, times);
    without_an_iommu(&nodes);
    learners_driver(&nodes.place, "1", &first_put(&nodes.place));
    passes(&nodes.place, "0", &["/tmp/users"]);
    nodes.foreign_program();
    for node in ["0", "1"] {
        is_well(&nodes.place, node);
        checks_its_heap(&nodes.place, node);
    }
    nodes.place.run(&["down"]).ok();
    nodes.place.is_clean();
}
