//! Jobs that share nodes with the kernel driver, as users of their own: none reaches what is
//! another's, whatever it writes.

use tofu_linux_tests::sdk::{Sdk, has_compiler};
use tofu_linux_tests::{PATIENCE, Place, Running, driver};

/// The first of the users that jobs are.
const USERS: u32 = 1 << 30;

#[test]
fn jobs_on_the_same_nodes_do_not_reach_each_other() {
    const TEST: &str = "jobs_on_the_same_nodes_do_not_reach_each_other";
    if !has_compiler(TEST) {
        return;
    }
    let Some(place) = driver::place(TEST) else { return };
    let sdk = Sdk::new(&place);
    sdk.compile("programs/apart.c", &["-ltofucom"]);
    let image = driver::image();
    place.up(&["--shape", driver::SHAPE, "--driver", "tofu", "--image", &image]);
    users_are_jobs(&place, &sdk);
    // A program of one job that guesses finds the memory of another rank,
    let mut both = start(&place, &sdk, &["./apart", "both"]);
    let line = loop {
        let line = both.line();
        if line.ends_with(" reached\n") {
            break line;
        }
    };
    let reached: i32 = line.split(' ').next().unwrap().parse().unwrap();
    assert!(reached > 0, "{line}");
    over(&place, true);
    let said = both.end(PATIENCE);
    assert!(said.out.contains("touched\n") && !said.out.contains("untouched"), "{said:?}");
    over(&place, false);
    // but not that of another job.
    let mut victim = start(&place, &sdk, &["./apart", "victim"]);
    assert_eq!([victim.line(), victim.line()], ["ready\n", "ready\n"]);
    let said = start(&place, &sdk, &["./apart", "stranger"]).end(PATIENCE);
    assert_eq!(said.ok(), "0 reached\n0 reached\n");
    over(&place, true);
    assert_eq!([victim.line(), victim.line()], ["untouched\n", "untouched\n"]);
    victim.end(PATIENCE).ok();
    place.run(&["down"]).ok();
    place.is_clean();
}

fn start(place: &Place, sdk: &Sdk, program: &[&str]) -> Running {
    let run = ["run", "-n", "2", "--no-prefix"];
    Running::start(sdk.command(place, &[&run[..], program].concat()), b"")
}

/// Tells the victims that it is over, or takes that back.
fn over(place: &Place, on: bool) {
    place.exec_all(&[if on { "touch" } else { "rm" }, "/tmp/over"]);
}

/// Each job is a user of its own, on all of its nodes, unless it is not to be.
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
