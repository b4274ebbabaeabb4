//! `tofu run --local`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::tofu::{Place, Said, signal};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Where cargo leaves the shared libraries: beside the tests.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

fn guest_lib(path: &str) -> PathBuf {
    Path::new(HERE).join("../../guest-lib").join(path)
}

fn have(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// A place for jobs, and for programs.
struct Jobs {
    place: Place,
    programs: TempDir,
}

impl Jobs {
    fn new() -> Self {
        Self { place: Place::new(), programs: tempfile::tempdir().unwrap() }
    }

    /// Compiles a program; `None` without a compiler.
    fn compile(&self, source: &Path) -> Option<String> {
        if !have("gcc") {
            eprintln!("SKIP {}: no gcc", source.display());
            return None;
        }
        let program = self.programs.path().join(source.file_stem().unwrap());
        let output = Command::new("gcc")
            .args(["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror"])
            .args(["-pthread", "-o"])
            .args([&program, source])
            .args(
                ["utofu/c/include", "jtofu/c/include", "utofu/examples/c"]
                    .map(|folder| format!("-I{}", guest_lib(folder).display())),
            )
            .arg(format!("-L{}", libraries().display()))
            .args(["-ltofucom", "-ltofutop"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(program.to_str().unwrap().to_owned())
    }

    fn example(&self, name: &str) -> Option<String> {
        self.compile(&guest_lib("utofu/examples/c").join(name))
    }

    fn own(&self, name: &str) -> Option<String> {
        self.compile(&Path::new(HERE).join("tests/cli/programs").join(name))
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.place.command(&["run", "--local", "--timeout", "120s"]);
        command.args(args).env("TOFU_LIBRARIES", libraries());
        command
    }

    fn run(&self, args: &[&str]) -> Said {
        let output = self.command(args).stdin(Stdio::null()).output().unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        Said { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// The output, in the order of ranks.
    #[track_caller]
    fn lines(&self, args: &[&str]) -> Vec<String> {
        let mut lines: Vec<_> = self.run(args).ok().lines().map(str::to_owned).collect();
        lines.sort_by_key(|line| line.split(':').next().and_then(|rank| rank.parse::<u32>().ok()));
        lines
    }

    /// Starts a job whose ranks say something first.
    fn start(&self, args: &[&str], ranks: usize) -> Job {
        let child = self.command(args).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let said: Vec<_> = output.lines().take(ranks).map(Result::unwrap).collect();
        assert_eq!(said.len(), ranks, "{said:?}");
        Job(child)
    }

    /// Nothing is left of a job whose programs have this place in their arguments.
    #[track_caller]
    fn is_clean(&self, job: u32) {
        self.place.is_clean();
        let end = Instant::now() + Duration::from_secs(10);
        let sockets = || std::fs::read_to_string("/proc/net/unix").unwrap();
        while sockets().contains(&format!("@tofu-run-{job}-")) {
            assert!(Instant::now() < end, "sockets are left");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A job that runs, until it is dropped.
struct Job(Child);

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn examples_run_as_processes() {
    let jobs = Jobs::new();
    for (name, job, expected) in [
        ("counter.c", "4", "0: counter 4000, each number drawn once: yes"),
        ("lock.c", "3", "0: counter 600 of 600, lock free"),
        ("pingpong.c", "2", "0: 1000 rounds of 4096 bytes, first byte 208"),
        ("striping.c", "2", "1: 12582912 bytes over 6 TNIs, 0 wrong"),
        ("relay.c", "12", "11: rank 11 has it: through 12 ranks, 10 of which did nothing"),
        ("stride.c", "5", "0: 5 ranks, halo columns of 300 rows, 0 wrong"),
        ("piggyback.c", "4", "0: 512 of 512 letters as they were written"),
        ("prepared.c", "4", "0: 100 rounds of 192 bytes of descriptors, 0 wrong"),
        ("sizes.c", "2", "0: 22 sizes up to 16777215 bytes, 22 as they were sent"),
        ("threads.c", "2", "0: 2 ranks of 4 threads: each number drawn once"),
        ("split.c", "2", "0: 40000000 bytes in 3 pieces"),
    ] {
        let Some(program) = jobs.example(name) else { return };
        assert_eq!(jobs.lines(&["-n", job, &program]), [expected], "{name}");
    }
    let program = jobs.example("ring_put.c").unwrap();
    let line = |rank: u32| {
        let from = (rank + 11) % 12;
        format!("{rank}: rank {rank}: \"hello from rank {from}\", edata {from}")
    };
    assert_eq!(jobs.lines(&["-n", "12", &program]), (0..12).map(line).collect::<Vec<_>>());
    let program = jobs.example("ring_get.c").unwrap();
    let line = |(rank, letter)| format!("{rank}: rank {rank}: 100000 bytes of '{letter}', 0 wrong");
    let expected: Vec<_> = (0..4).zip(["D", "A", "B", "C"]).map(line).collect();
    assert_eq!(jobs.lines(&["-n", "4", &program]), expected);
    let program = jobs.example("many_vcqs.c").unwrap();
    let expected =
        ["0: rank 0: 6 TNIs, 96 completions", "1: rank 1: 96 of 96 numbers at the right VCQ"];
    assert_eq!(jobs.lines(&["-n", "2", &program]), expected);
    let program = jobs.example("torus.c").unwrap();
    let expected = [
        "0: rank 0: left 3 right 1 below 8 above 4",
        "0: 48 of 48 numbers from the right neighbour",
    ];
    assert_eq!(jobs.lines(&["--map", "4x3", &program]), expected);
}

/// The tests of the C API want two processes, in the sense of uTofu, in one program: rank 0 gets
/// rank 1's node, too.
#[test]
fn the_c_api_does_the_same_over_a_socket() {
    let jobs = Jobs::new();
    let both = r#"test $TOFU_RANK = 1 && exit
        TOFU_LOCAL_SOCKET=$TOFU_LOCAL_SOCKET,${TOFU_LOCAL_SOCKET%-0}-1 exec "$0""#;
    for name in ["functions.c", "garbage.c", "threads.c"] {
        let Some(program) = jobs.compile(&guest_lib("utofu/c/tests").join(name)) else { return };
        let said = jobs.lines(&["-n", "2", "--", "sh", "-c", both, &program]);
        assert_eq!(said, ["0: ok"], "{name}");
    }
}

#[test]
fn memory_is_reached_wherever_a_process_has_it() {
    let jobs = Jobs::new();
    let Some(program) = jobs.own("memory.c") else { return };
    assert_eq!(jobs.lines(&["-n", "2", &program]), ["1: after the fork"]);
}

#[test]
fn words_are_not_torn_and_atomic_commands_lose_nothing() {
    let jobs = Jobs::new();
    let Some(program) = jobs.own("words.c") else { return };
    assert_eq!(jobs.lines(&["-n", "4", &program]), ["0: sum 9000 of 9000, no torn word"]);
}

#[test]
fn a_rank_that_is_killed_hurts_no_other() {
    let jobs = Jobs::new();
    let Some(program) = jobs.own("dies.c") else { return };
    let said = jobs.run(&["-n", "3", "--grace", "60s", &program]);
    assert_eq!(said.code, Some(137), "{said:?}");
    assert_eq!(said.out, "0: success, then -128, then success\n", "{said:?}");
    assert!(said.err.contains("rank 1") && said.err.contains("SIGKILL"), "{said:?}");
}

#[test]
fn python_needs_no_more_than_the_library() {
    if !have("python3") {
        eprintln!("SKIP python_needs_no_more_than_the_library: no python3");
        return;
    }
    let program = guest_lib("utofu/examples/python/ring.py");
    let lines = Jobs::new().lines(&["-n", "3", "python3", program.to_str().unwrap()]);
    assert_eq!(lines, ["0: rank 0 has 102", "1: rank 1 has 100", "2: rank 2 has 101"]);
}

#[test]
fn ranks_know_who_they_are_and_rank_0_has_the_input() {
    let jobs = Jobs::new();
    let script = "echo $TOFU_RANK of $TOFU_SIZE, $TOFU_PPN on a node, $MINE; cat";
    let args = ["run", "--local", "-n", "2", "--env", "MINE=mine", "--", "sh", "-c", script];
    let said = jobs.place.run_with(&args, b"some\ntext").ok();
    let mut lines: Vec<_> = said.lines().collect();
    lines.sort_unstable();
    let expected =
        ["0: 0 of 2, 1 on a node, mine", "0: some", "0: text", "1: 1 of 2, 1 on a node, mine"];
    assert_eq!(lines, expected);
    let said = jobs.run(&["-n", "3", "--", "sh", "-c", "exit $((TOFU_RANK * 7 % 13))"]);
    assert!(matches!(said.code, Some(1 | 7)), "{said:?}");
}

#[test]
fn nothing_is_left_however_a_job_ends() {
    let jobs = Jobs::new();
    let marker = jobs.place.path().join("marker");
    std::fs::write(&marker, "").unwrap();
    let marker = marker.display();
    // Processes that ranks have started count, too.
    let script = format!("tail -f {marker} & echo here; exec tail -f {marker}");
    let args = ["-n", "3", "--", "sh", "-c", &script];
    for (how, code) in [("INT", Some(130)), ("TERM", Some(143)), ("KILL", None)] {
        let mut job = jobs.start(&args, 3);
        let pid = job.0.id();
        signal(pid.into(), how);
        assert_eq!(job.0.wait().unwrap().code(), code, "{how}");
        jobs.is_clean(pid);
    }
    // Ranks end even if the one that tidies up is killed as well.
    let script = format!("echo here; exec tail -f {marker}");
    let mut job = jobs.start(&["-n", "3", "--", "sh", "-c", &script], 3);
    let pid = job.0.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let janitor = children.split_whitespace().next().unwrap();
    signal(janitor.parse().unwrap(), "KILL");
    signal(pid.into(), "KILL");
    assert_eq!(job.0.wait().unwrap().code(), None);
    jobs.is_clean(pid);
}

#[test]
fn mistakes_are_one_line() {
    let jobs = Jobs::new();
    let here = Path::new(HERE).join("Cargo.toml");
    for (args, expected) in [
        (&["-n", "0", "true"][..], "-n 0: a job has one rank or more"),
        (&["-n", "1000", "true"], "1000 nodes are too many: with --local a job has up to 256"),
        (&["-n", "3", "--shape", "1x1x1x2x1x1", "true"], "has 2 nodes, and the job needs 3"),
        (&["--ppn", "2", "true"], "--ppn: with --local each rank has a node of its own"),
        (&["--copy", "Cargo.toml", "true"], "--copy is for ranks on nodes"),
        (&["no-such-program"], "there is no program no-such-program"),
        (&["./no-such-program"], "cannot run ./no-such-program"),
        (&[here.to_str().unwrap()], "it is not executable"),
        (&["/"], "it is not a file"),
    ] {
        let error = jobs.run(args).error();
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}
