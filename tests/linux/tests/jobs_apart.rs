//! Jobs that share nodes, each as a separate user. None reaches what belongs to another, regardless
//! of what it writes, with the kernel driver as well as with VFIO, where `tofud` keeps them apart.

use tofu_linux_tests::sdk::{Sdk, has_compiler};
use tofu_linux_tests::{Image, PATIENCE, Place, Running, driver, interrupt, kill, wait_for};

/// The first user ID of jobs.
const USERS: u32 = 1 << 30;
/// Subnets are on X, Y and Z.
const SHAPE: &str = "2x1x1x1x1x1";

#[test]
fn jobs_on_shared_nodes_are_isolated() {
    if !has_compiler() {
        return;
    }
    let Some(place) = driver::place() else { return };
    let image = driver::image();
    are_apart(&place, &["--driver", "tofu", "--image", &image]);
    end(&place);
}

#[test]
fn vfio_jobs_on_shared_nodes_are_isolated() {
    if !has_compiler() {
        return;
    }
    let Some(place) = Place::new(Image::Default) else { return };
    let sdk = are_apart(&place, &["--driver", "vfio"]);
    // Root has no limits except those that it sets itself.
    keeps_to_its_subnet(&place, &sdk, &["--root"]);
    end(&place);
}

fn end(place: &Place) {
    place.run(&["down"]).ok();
    place.is_clean();
}

fn are_apart(place: &Place, options: &[&str]) -> Sdk {
    let sdk = Sdk::new(place);
    sdk.compile("programs/apart.c", &["-ltofucom"]);
    place.up(&[&["--shape", SHAPE], options].concat());
    users_are_jobs(place, &sdk);
    what_is_left_of_a_killed_job_goes(place, &sdk);
    keeps_to_its_subnet(place, &sdk, &[]);
    // A program that guesses finds the memory of another rank of its job,
    let mut both = start(place, &sdk, &["./apart", "both"]);
    let line = loop {
        let line = both.line();
        if line.ends_with(" reached\n") {
            break line;
        }
    };
    let reached: i32 = line.split(' ').next().unwrap().parse().unwrap();
    assert!(reached > 0, "{line}");
    over(place, true);
    let said = both.end(PATIENCE);
    assert!(said.out.contains("touched\n") && !said.out.contains("untouched"), "{said:?}");
    over(place, false);
    // but not that of another job, and gets no queues where that job has them all.
    for (program, ranks) in [("victim", "2"), ("placed", "6")] {
        let run = ["run", "-n", ranks, "--no-prefix", "./apart", program];
        let mut victim = Running::start(sdk.command(place, &run), b"");
        let mut all_say = |wanted: &str| {
            for _ in 0..ranks.parse::<u32>().unwrap() {
                assert_eq!(victim.line(), wanted);
            }
        };
        all_say("ready\n");
        let said = start(place, &sdk, &["./apart", "stranger"]).end(PATIENCE);
        match program {
            "victim" => assert_eq!(said.ok(), "0 reached\n0 reached\n"),
            _ => assert!(said.code == Some(1) && said.err.contains(": -6\n"), "{said:?}"),
        }
        over(place, true);
        all_say("untouched\n");
        victim.end(PATIENCE).ok();
        over(place, false);
    }
    gates_are_apart(place, &sdk);
    sdk
}

/// A job of one node reaches that node and no other, by any queue or gate.
fn keeps_to_its_subnet(place: &Place, sdk: &Sdk, options: &[&str]) {
    let run = [&["run", "-n", "1", "--no-prefix"], options, &["./apart", "outside"]].concat();
    let said = Running::start(sdk.command(place, &run), b"").end(PATIENCE).ok();
    assert_eq!(said, "inside 66, outside 66 refused, 0 not, 0 gates\n");
}

/// Barrier gates that another job links to and signals are not affected.
fn gates_are_apart(place: &Place, sdk: &Sdk) {
    let mut victim = start(place, sdk, &["./apart", "sums"]);
    assert_eq!([victim.line(), victim.line()], ["ready\n", "ready\n"]);
    place.exec_all(&["touch", "/tmp/start"]);
    assert_eq!([victim.line(), victim.line()], ["sums\n", "sums\n"]);
    let said = start(place, sdk, &["./apart", "meddler"]).end(PATIENCE).ok();
    for line in said.lines() {
        let (started, ended) = line.split_once(" started, ").unwrap();
        assert!(started.parse::<u32>().unwrap() > 50, "{said}");
        assert_eq!(ended, "0 ended");
    }
    over(place, true);
    assert_eq!([victim.line(), victim.line()], ["untouched\n", "untouched\n"]);
    victim.end(PATIENCE).ok();
}

/// A `tofu run` that is killed by force leaves its user's rights, a folder and processes behind.
/// The next one removes these, but not those of a running job.
fn what_is_left_of_a_killed_job_goes(place: &Place, sdk: &Sdk) {
    let script = "setsid sleep $LONG >/dev/null 2>&1 & echo on; exec sleep 600";
    let run = ["run", "-n", "2", "--no-prefix", "--env", "LONG=54321", "--", "sh", "-c", script];
    let job = || Running::start(sdk.command(place, &run), b"");
    let look = "ls -d /tmp/tofu-run-* /run/tofu/subnets/* 2>/dev/null; \
                for file in $(grep -ls 5432[1] /proc/[0-9]*/cmdline); do echo process; done; true";
    let left = || place.exec_all(&["sh", "-c", look]);
    assert_eq!(left(), [""; 0]);
    let (killed, goes_on) = (job(), job());
    wait_for("two jobs", PATIENCE, || {
        left().iter().filter(|line| line.ends_with("process")).count() == 4
    });
    let both = left();
    kill(killed.id());
    wait_for("the job to be over", PATIENCE, || place.ps()[0]["jobs"][1].is_null());
    assert_eq!(left(), both);
    place.run(&["run", "-n", "2", "true"]).ok();
    let one = left();
    assert_eq!(2 * one.len(), both.len(), "{both:?} {one:?}");
    interrupt(goes_on.id());
    assert_eq!(goes_on.end(PATIENCE).code, Some(130));
    assert_eq!(left(), [""; 0]);
}

fn start(place: &Place, sdk: &Sdk, program: &[&str]) -> Running {
    let run = ["run", "-n", "2", "--no-prefix"];
    Running::start(sdk.command(place, &[&run[..], program].concat()), b"")
}

/// Tells the victims that the test is over, or revokes that.
fn over(place: &Place, on: bool) {
    place.exec_all(&[if on { "touch" } else { "rm" }, "/tmp/over"]);
}

/// Each job runs as a separate user on all of its nodes, unless told otherwise.
fn users_are_jobs(place: &Place, sdk: &Sdk) {
    let user = |options: &[&str]| {
        let run = [&["run", "--no-prefix"], options, &["--", "sh", "-c", "touch new && id -u"]];
        let out = Running::start(sdk.command(place, &run.concat()), b"").end(PATIENCE).ok();
        let users: Vec<u32> = out.lines().map(|line| line.parse().unwrap()).collect();
        assert!(users.len() == 2 && users[0] == users[1], "{out}");
        users[0]
    };
    let (one, other) = (user(&[]), user(&[]));
    assert!(one > USERS && other > one, "{one} {other}");
    assert_eq!(user(&["--root"]), 0);
}
