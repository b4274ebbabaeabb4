//! Several jobs on one machine: each has nodes for itself, and others wait for them.

use serde_json::{Value, json};
use tofu_linux_tests::{Image, MOMENT, PATIENCE, Place, Running, interrupt, kill, wait_for};

/// A job's program that says so when it runs, and then does nothing.
const SLEEP: [&str; 4] = ["--", "sh", "-c", "echo on; sleep 600"];

/// A job with nodes of its own.
fn start(place: &Place, options: &[&str]) -> Running {
    place.start(&[&["run", "--grace", "100ms"], options, &SLEEP].concat())
}

/// The jobs of the only machine.
#[track_caller]
fn jobs(place: &Place) -> Vec<Value> {
    place.ps()[0]["jobs"].as_array().unwrap().clone()
}

/// Waits until there are so many jobs in all.
#[track_caller]
fn wait_for_jobs(place: &Place, number: usize) -> Vec<Value> {
    wait_for("jobs", PATIENCE, || jobs(place).len() == number);
    jobs(place)
}

#[test]
fn jobs_have_nodes_of_their_own_or_wait() {
    let Some(place) = Place::new("jobs_have_nodes_of_their_own_or_wait", Image::Default) else {
        return;
    };
    // Two boards of two nodes.
    place.up(&["--name", "four", "--shape", "2x1x1x1x1x2", "--driver", "vfio"]);
    nodes_are_taken_in_turn(&place);
    place.run(&["down"]).ok();
    place.is_clean();
}

fn nodes_are_taken_in_turn(place: &Place) {
    let mut one = start(place, &["--shape", "2"]);
    let mut two = start(place, &["--shape", "2x1"]);
    for running in [&mut one, &mut two] {
        let mut lines = [running.line(), running.line()];
        lines.sort_unstable();
        assert_eq!(lines, ["0: on\n", "1: on\n"]);
    }
    let both = wait_for_jobs(place, 2);
    let nodes = both.iter().flat_map(|job| job["nodes"].as_array().unwrap());
    let mut nodes: Vec<_> = nodes.map(|node| node.as_u64().unwrap()).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, [0, 1, 2, 3], "{both:?}");
    let seen = |field: &str| both.iter().map(|job| job[field].clone()).collect::<Vec<_>>();
    assert_eq!(seen("alone"), [true, true]);
    assert!(seen("shape").contains(&"2".into()) && seen("shape").contains(&"2x1".into()));
    assert!(seen("pid").contains(&one.id().into()), "{both:?}");
    let topo = place.run(&["topo", "--machine", "--json"]).json();
    assert_eq!(topo["jobs"].as_array().map(Vec::len), Some(2), "{topo}");

    // Who does not want to wait, with nodes for itself or not; who would wait for ever.
    let refused =
        |options: &[&str]| place.run(&[&["run"], options, &["hostname"]].concat()).error();
    let error = refused(&["--no-wait", "--shape", "2"]);
    assert!(error.contains("the job needs 2 nodes, and 0 are free; job "), "{error}");
    let error = refused(&["--no-wait"]);
    assert!(error.contains("and 0 are free"), "{error}");
    let error = refused(&["--shape", "3x2"]);
    assert!(error.contains("a map of 3x2 needs 6 nodes"), "{error}");
    let error = refused(&["--machine", "four", "--shape", "unit"]);
    assert!(error.contains("--machine four runs"), "{error}");

    // First come, first served; who leaves the queue is not waited for.
    let mut all = start(place, &["--shape", "4"]);
    wait_for_jobs(place, 3);
    let patient = place.start(&["run", "--json", "--shape", "1", "hostname"]);
    let waiting = wait_for_jobs(place, 4);
    let states: Vec<_> = waiting.iter().map(|job| &job["state"]).collect();
    assert_eq!(states, ["running", "running", "queued", "queued"]);
    let error = refused(&["--no-wait", "--shape", "1"]);
    assert!(error.contains("2 jobs before this one wait for nodes"), "{error}");
    let leaves = start(place, &["--shape", "2"]);
    wait_for_jobs(place, 5);
    interrupt(leaves.id());
    let said = leaves.end(MOMENT);
    assert_eq!(said.code, Some(130), "{said:?}");
    assert!(said.err.contains("waiting for nodes: 2 jobs are before this one\n"), "{said:?}");
    wait_for_jobs(place, 4);
    // However a job ends, its nodes are free.
    kill(one.id());
    interrupt(two.id());
    assert_eq!(two.end(MOMENT).code, Some(130));
    let mut lines: Vec<_> = (0..4).map(|_| all.line()).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0: on\n", "1: on\n", "2: on\n", "3: on\n"]);
    interrupt(all.id());
    let said = all.end(MOMENT);
    assert!(said.err.contains("waiting for nodes: the job needs 4 nodes, and 0 are"), "{said:?}");
    assert!(said.err.contains(" has its nodes after "), "{said:?}");
    let out = patient.end(PATIENCE).ok();
    let events: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&events[0]["event"], &events[0]["before"]), (&"queued".into(), &json!(1)), "{out}");
    assert!(events.iter().any(|event| event["event"] == "nodes"), "{out}");
    wait_for_jobs(place, 0);
    // Jobs that share nodes run at once.
    let mut sharing = start(place, &["-n", "4"]);
    sharing.line();
    let out = place.run(&["run", "--no-wait", "-n", "4", "hostname"]).ok();
    assert_eq!(out.lines().count(), 4, "{out}");
    let error = refused(&["--no-wait", "--shape", "1"]);
    assert!(error.contains("(sh -c echo on; sleep 600) has 4 nodes"), "{error}");
    interrupt(sharing.id());
    assert_eq!(sharing.end(MOMENT).code, Some(130));
}
