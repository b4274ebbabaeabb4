//! Several jobs on one machine: each has nodes for itself, and others wait for them.

use serde_json::Value;
use tofu_linux_tests::{Image, MOMENT, PATIENCE, Place, Running, interrupt, kill, wait_for};

/// A job's program that says so when it runs, and then does nothing.
const SLEEP: [&str; 4] = ["--", "sh", "-c", "echo on; sleep 600"];

/// A job with its own nodes.
fn start(place: &Place, options: &[&str]) -> Running {
    place.start(&[&["run", "--grace", "100ms"], options, &SLEEP].concat())
}

/// The next event of this kind that a job with `--json` reports.
#[track_caller]
fn event(running: &mut Running, wanted: &str) -> Value {
    loop {
        let event: Value = serde_json::from_str(&running.line()).unwrap();
        if event["event"] == wanted {
            return event;
        }
    }
}

/// The jobs of the only machine.
#[track_caller]
fn jobs(place: &Place) -> Vec<Value> {
    place.ps()[0]["jobs"].as_array().unwrap().clone()
}

/// Waits until there are this many jobs in all.
#[track_caller]
fn wait_for_jobs(place: &Place, number: usize) -> Vec<Value> {
    wait_for("jobs", PATIENCE, || jobs(place).len() == number);
    jobs(place)
}

#[test]
fn jobs_have_nodes_of_their_own_or_wait() {
    let Some(place) = Place::new(Image::Default) else {
        return;
    };
    // Two boards of two nodes.
    place.up(&["--name", "four", "--shape", "2x1x1x1x1x2", "--driver", "vfio"]);
    nodes_are_taken_in_turn(&place);
    a_job_goes_on_without_a_board(&place);
    place.run(&["down"]).ok();
    place.is_clean();
}

/// The error of a job that does not start.
fn refused(place: &Place, options: &[&str]) -> String {
    place.run(&[&["run"], options, &["hostname"]].concat()).error()
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

    // Jobs that do not want to wait, with nodes for themselves or not, and jobs that would wait for
    // ever.
    let error = refused(place, &["--no-wait", "--shape", "2"]);
    assert!(error.contains("the job needs 2 nodes, and 0 are free; job "), "{error}");
    let error = refused(place, &["--no-wait"]);
    assert!(error.contains("and 0 are free"), "{error}");
    let error = refused(place, &["--shape", "3x2"]);
    assert!(error.contains("a map of 3x2 needs 6 nodes"), "{error}");
    let error = refused(place, &["--machine", "four", "--shape", "unit"]);
    assert!(error.contains("--machine four is running"), "{error}");

    // First come, first served. A job that leaves the queue does not hold up the others.
    let mut all = start(place, &["--json", "--shape", "4"]);
    let why = event(&mut all, "queued")["text"].to_string();
    assert!(why.contains("waiting for nodes: the job needs 4 nodes, and 0 are free"), "{why}");
    let mut patient = place.start(&["run", "--json", "--shape", "1", "hostname"]);
    assert_eq!(event(&mut patient, "queued")["before"], 1);
    let waiting = wait_for_jobs(place, 4);
    let states: Vec<_> = waiting.iter().map(|job| &job["state"]).collect();
    assert_eq!(states, ["running", "running", "queued", "queued"]);
    let error = refused(place, &["--no-wait", "--shape", "1"]);
    assert!(error.contains("2 jobs before this one wait for nodes"), "{error}");
    let mut leaves = start(place, &["--json", "--shape", "2"]);
    let why = event(&mut leaves, "queued")["text"].clone();
    assert_eq!(why, "waiting for nodes: 2 jobs are before this one");
    interrupt(leaves.id());
    assert_eq!(leaves.end(MOMENT).code, Some(130));
    wait_for_jobs(place, 4);
    // However a job ends, its nodes are free.
    kill(one.id());
    interrupt(two.id());
    assert_eq!(two.end(MOMENT).code, Some(130));
    event(&mut all, "nodes");
    let mut ranks: Vec<_> = (0..4).map(|_| event(&mut all, "line")["rank"].clone()).collect();
    ranks.sort_unstable_by_key(Value::as_u64);
    assert_eq!(ranks, [0, 1, 2, 3]);
    interrupt(all.id());
    assert_eq!(all.end(MOMENT).code, Some(130));
    event(&mut patient, "nodes");
    patient.end(PATIENCE).ok();
    wait_for_jobs(place, 0);
    nodes_are_shared(place);
}

/// Jobs share nodes only if there are not enough for all.
fn nodes_are_shared(place: &Place) {
    let half = [(); 2].map(|()| {
        let mut job = start(place, &["-n", "2"]);
        job.line();
        job
    });
    let nodes: Vec<_> = jobs(place).iter().map(|job| job["nodes"].clone()).collect();
    let shared = |node| nodes[1].as_array().unwrap().contains(node);
    assert!(!nodes[0].as_array().unwrap().iter().any(shared), "{nodes:?}");
    let out = place.run(&["run", "--no-wait", "-n", "4", "hostname"]).ok();
    assert_eq!(out.lines().count(), 4, "{out}");
    let error = refused(place, &["--no-wait", "--shape", "1"]);
    assert!(error.contains("(sh -c echo on; sleep 600) has 2 nodes, job "), "{error}");
    for job in half {
        interrupt(job.id());
        assert_eq!(job.end(MOMENT).code, Some(130));
    }
}

/// Must come last, because it leaves a board down.
fn a_job_goes_on_without_a_board(place: &Place) {
    // A job that fails by itself is not restarted.
    let said = place.run(&["run", "--restart", "2", "--", "sh", "-c", "exit 7"]);
    assert_eq!(said.code, Some(7), "{said:?}");
    let why = "the job is not restarted: its nodes work, so that it has failed by itself\n";
    assert!(said.err.ends_with(why), "{said:?}");
    // The files that it has written on the remaining nodes are there again.
    std::fs::create_dir(place.path().join("cwd")).unwrap();
    let cwd = place.file("cwd");
    // The board fails when all have printed a line: their files are there by then.
    let program = "found=$(ls); touch step-$TOFU_RANK; echo $TOFU_RESTART $TOFU_SIZE $found; \
                   sleep 600";
    let options = ["run", "--json", "--restart", "1", "--shape", "4", "--cwd", &cwd];
    let mut running = place.start(&[&options[..], &["--", "sh", "-c", program]].concat());
    let mut event = |wanted: &str| event(&mut running, wanted);
    for _ in 0..4 {
        assert_eq!(event("line")["text"], "0 4");
    }
    // A board is two nodes on C.
    place.run(&["board", "down", "0,0,0,0,0,0"]).ok();
    assert!(event("node_lost")["node"].as_str().unwrap().starts_with("(0,0,0,0,0,"));
    let restart = event("restart");
    let [shape, lost, ranks] = ["shape", "lost", "ranks"].map(|field| &restart[field]);
    assert_eq!((shape, lost.as_array().unwrap().len(), ranks), (&"2".into(), 2, &2.into()));
    for _ in 0..2 {
        let line = event("line")["text"].as_str().unwrap().to_owned();
        assert!(line.starts_with("1 2 step-") && line.matches("step-").count() == 2, "{line}");
    }
    let job = &jobs(place)[0];
    assert_eq!((&job["shape"], &job["nodes"].as_array().unwrap().len()), (&"2".into(), &2));
    // The next one is one too many.
    place.run(&["board", "down", "1,0,0,0,0,0"]).ok();
    let detail = event("not_restarted")["detail"].as_str().unwrap().to_owned();
    assert_eq!(detail, "it was restarted once, and --restart allows no more");
    let said = running.end(MOMENT);
    assert_eq!(said.code, Some(126), "{said:?}");
    wait_for_jobs(place, 0);
}
