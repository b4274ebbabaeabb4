//! `tofu run --local`.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tofu_c_tests::{have, libraries, run};
use tofu_linux_tests::{Said, kill, signal};

use crate::tofu::Place;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

fn guest_lib(path: &str) -> PathBuf {
    Path::new(HERE).join("../../guest-lib").join(path)
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
        run(Command::new("gcc")
            .args(["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror"])
            .args(["-pthread", "-o"])
            .args([&program, source])
            .args(
                ["utofu/c/include", "jtofu/c/include", "utofu/examples/c", "utofu/examples/run"]
                    .map(|folder| format!("-I{}", guest_lib(folder).display())),
            )
            .arg(format!("-L{}", libraries().display()))
            .args(["-ltofucom", "-ltofutop"]));
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
        self.place.run_command(self.command(args))
    }

    /// The output, in the order of ranks.
    #[track_caller]
    fn lines(&self, args: &[&str]) -> Vec<String> {
        let mut lines: Vec<_> = self.run(args).ok().lines().map(str::to_owned).collect();
        lines.sort_by_key(|line| line.split(':').next().and_then(|rank| rank.parse::<u32>().ok()));
        lines
    }

    /// Starts a job whose ranks print something first.
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
fn examples_run_over_modelled_links() {
    let jobs = Jobs::new();
    for (name, job, expected) in [
        ("counter.c", "3", "0: counter 3000, each number drawn once: yes"),
        ("striping.c", "2", "1: 12582912 bytes over 6 TNIs, 0 wrong"),
    ] {
        let Some(program) = jobs.example(name) else { return };
        let lines = jobs.lines(&["--links", "modelled", "-n", job, &program]);
        assert_eq!(lines, [expected], "{name}");
    }
    let said = jobs.run(&["--links", "slow", "-n", "1", "true"]);
    assert!(said.err.contains("invalid value 'slow' for '--links <LINKS>'"), "{said:?}");
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

/// The tests of the C API need two processes, in the sense of uTofu, in one program: rank 0 gets
/// rank 1's node, too.
#[test]
fn c_api_works_over_a_socket() {
    let jobs = Jobs::new();
    let both = r#"test $TOFU_RANK = 1 && exit
        TOFU_LOCAL_SOCKET=$TOFU_LOCAL_SOCKET,${TOFU_LOCAL_SOCKET%-0}-1 exec "$0""#;
    for name in ["functions.c", "garbage.c", "threads.c", "wait.c"] {
        let Some(program) = jobs.compile(&guest_lib("utofu/c/tests").join(name)) else { return };
        let said = jobs.lines(&["-n", "2", "--", "sh", "-c", both, &program]);
        assert_eq!(said, ["0: ok"], "{name}");
    }
}

#[test]
fn memory_is_reached_anywhere_in_a_process() {
    let jobs = Jobs::new();
    let Some(program) = jobs.own("memory.c") else { return };
    assert_eq!(jobs.lines(&["-n", "2", &program]), ["1: after the fork"]);
}

#[test]
fn words_are_whole_and_atomics_exact() {
    let jobs = Jobs::new();
    let Some(program) = jobs.own("words.c") else { return };
    assert_eq!(jobs.lines(&["-n", "4", &program]), ["0: sum 9000 of 9000, no torn word"]);
}

#[test]
fn early_put_is_dropped_without_a_fault() {
    let jobs = Jobs::new();
    let Some(program) = jobs.own("early.c") else { return };
    assert_eq!(jobs.lines(&["-n", "2", &program]), ["0: 50 early Puts", "0: answered"]);
}

#[test]
fn killed_rank_hurts_no_other() {
    let jobs = Jobs::new();
    let Some(program) = jobs.own("dies.c") else { return };
    let said = jobs.run(&["-n", "3", "--grace", "60s", &program]);
    assert_eq!(said.code, Some(137), "{said:?}");
    assert_eq!(said.out, "0: success, then an error, then success\n", "{said:?}");
    assert!(said.err.contains("rank 1") && said.err.contains("SIGKILL"), "{said:?}");
}

/// A child does not have a node, and does not wait for its parent's.
#[test]
fn forked_rank_keeps_its_queue() {
    let jobs = Jobs::new();
    let Some(program) = jobs.own("fork.c") else { return };
    for ppn in ["1", "2"] {
        // UTOFU_ERR_NOT_AVAILABLE.
        let said = jobs.lines(&["-n", "2", "--ppn", ppn, &program, "-7"]);
        assert_eq!(said, ["0: ok", "1: ok"], "{ppn} a node");
    }
}

/// The interrupts of its queues wake each rank of a node.
#[test]
fn ranks_of_a_node_sleep() {
    let jobs = Jobs::new();
    let Some(program) = jobs.own("asleep.c") else { return };
    for ppn in ["1", "2", "3"] {
        let said = jobs.lines(&["-n", "6", "--ppn", ppn, &program]);
        assert_eq!(said, (0..6).map(|rank| format!("{rank}: woken")).collect::<Vec<_>>(), "{ppn}");
    }
}

#[test]
fn ranks_share_nodes() {
    let jobs = Jobs::new();
    let Some(ring) = jobs.compile(&guest_lib("utofu/examples/run/ring.c")) else { return };
    for ppn in ["2", "3", "4"] {
        let line =
            |rank: u32| format!("{rank}: rank {rank} of 8: hello from rank {}", (rank + 7) % 8);
        let expected: Vec<_> = (0..8).map(line).collect();
        assert_eq!(jobs.lines(&["-n", "8", "--ppn", ppn, &ring]), expected, "{ppn} a node");
    }
    let script = "echo $TOFU_LOCAL_RANK of $TOFU_PPN";
    let said = jobs.lines(&["--map", "2", "--ppn", "2", "--", "sh", "-c", script]);
    assert_eq!(said, ["0: 0 of 2", "1: 1 of 2", "2: 0 of 2", "3: 1 of 2"]);
    // They share barrier gates as well: a process that requests all gates gets none that belong to
    // another one.
    let barriers = Path::new(HERE).join("../../tests/linux/programs/barriers.c");
    let barriers = jobs.compile(&barriers).unwrap();
    let line = |rank: u32| format!("{rank}: 6 ranks: 60 rounds right, gates ran out and came back");
    let said = jobs.lines(&["-n", "6", "--ppn", "2", &barriers, "groups"]);
    assert_eq!(said, (0..6).map(line).collect::<Vec<_>>());
}

/// Two ranks of each node count in the same System V memory, and not in the other node's. Nothing
/// of it is left on the host.
#[test]
fn nodes_have_their_own_system_v_ipc() {
    let jobs = Jobs::new();
    let Some(program) = jobs.own("ipc.c") else { return };
    let said = jobs.run(&["-n", "4", "--ppn", "2", &program]);
    if said.err.contains("nodes share the host's System V IPC") {
        eprintln!("SKIP nodes_have_their_own_system_v_ipc: this host permits no namespaces");
        return;
    }
    let mut lines: Vec<_> = said.ok().lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["0: 2", "1: 2", "2: 2", "3: 2"]);
    let memory = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
    let key = 0x746f_6675.to_string();
    assert!(!memory.contains(&key), "{memory}");
}

/// Two nodes of 48 ranks: the cores of Fugaku, each rank with its own control queue.
#[test]
fn every_core_has_a_rank() {
    let jobs = Jobs::new();
    let Some(program) = jobs.own("all_cores.c") else { return };
    let args = ["-n", "96", "--ppn", "48", "--grace", "60s", &program];
    let line = |rank: u32| format!("{rank}: all pairs");
    assert_eq!(jobs.lines(&args), (0..96).map(line).collect::<Vec<_>>());
    let said = jobs.run(&[&args[..], &["without"]].concat());
    let right = said.out.lines().filter(|line| line.ends_with(": all pairs")).count();
    assert_eq!((said.code, right), (Some(137), 95), "{said:?}");
}

/// FX10 has 16 cores and eight queues for ranks, so ranks share them.
#[test]
fn ranks_share_control_queues() {
    let jobs = Jobs::new();
    let Some(program) = jobs.own("all_cores.c") else { return };
    let fx10 = ["--generation", "fx10", "--grace", "60s"];
    for (ppn, ranks) in [("9", 9), ("12", 20), ("16", 32)] {
        let count = ranks.to_string();
        let args = [&fx10[..], &["-n", &count, "--ppn", ppn, &program]].concat();
        let line = |rank: u32| format!("{rank}: all pairs");
        assert_eq!(jobs.lines(&args), (0..ranks).map(line).collect::<Vec<_>>(), "{ppn} a node");
    }
    // Rank 9 shares the queue of rank 1, which is killed.
    let args = [&fx10[..], &["-n", "16", "--ppn", "16", &program, "without"]].concat();
    let said = jobs.run(&args);
    let right = said.out.lines().filter(|line| line.ends_with(": all pairs")).count();
    assert_eq!((said.code, right), (Some(137), 15), "{said:?}");
    let said = jobs.run(&[&fx10[..], &["-n", "17", "--ppn", "17", &program]].concat());
    assert!(said.err.contains("--ppn 17: a node has 1 to 16 ranks (PRIMEHPC FX10)"), "{said:?}");
}

/// One of two ranks of a queue is killed while it posts.
#[test]
fn rank_outlives_the_other_of_its_queue() {
    let jobs = Jobs::new();
    let Some(program) = jobs.own("halves.c") else { return };
    let args = ["--generation", "fx10", "-n", "9", "--ppn", "9", "--grace", "60s", &program];
    let said = jobs.run(&args);
    assert_eq!(said.code, Some(137), "{said:?}");
    let expected = "0: 7 of 9 have a channel\n0: 1000 rounds without rank 8\n";
    assert_eq!(said.out, expected, "{said:?}");
}

/// Both ranks of a queue sleep until the command wakes them.
#[test]
fn ranks_of_a_shared_queue_sleep() {
    let jobs = Jobs::new();
    let Some(program) = jobs.own("sleepers.c") else { return };
    let args = ["--generation", "fx10", "-n", "9", "--ppn", "9", &program];
    assert_eq!(jobs.lines(&args), ["0: ok", "8: ok"]);
}

#[test]
fn killed_rank_leaves_its_node_usable() {
    let jobs = Jobs::new();
    let Some(program) = jobs.own("shared.c") else { return };
    let said = jobs.run(&["-n", "4", "--ppn", "2", "--grace", "60s", &program]);
    assert_eq!(said.code, Some(137), "{said:?}");
    assert_eq!(said.out, "0: 500 rounds without rank 1\n", "{said:?}");
}

#[test]
fn ranks_of_mpi_find_each_other() {
    let jobs = Jobs::new();
    let Some(program) = jobs.own("pmi.c") else { return };
    let line = |rank: u32| {
        let (local, of, next) = (rank % 2, if rank == 4 { 1 } else { 2 }, (rank + 1) % 5);
        format!("{rank}: {local} of {of} on (vector,(0,2,2),(2,1,1)) has card-{next}")
    };
    let said = jobs.lines(&["--mpi", "-n", "5", "--ppn", "2", &program]);
    assert_eq!(said, (0..5).map(line).collect::<Vec<_>>());
    let said = jobs.run(&["--mpi", "-n", "3", &program, "9"]);
    assert_eq!(said.code, Some(9), "{said:?}");
    assert!(said.err.contains("has aborted the job with code 9"), "{said:?}");
}

/// As many as a job of 96 nodes with 4 each, in the place of its torus.
#[test]
fn hundreds_of_ranks_are_one_job() {
    let jobs = Jobs::new();
    let print = "echo $TOFU_RANK: of $TOFU_SIZE";
    let args = ["-n", "384", "--map", "8x12", "--ppn", "4", "--no-prefix", "sh", "-c", print];
    let expected: Vec<_> = (0..384).map(|rank| format!("{rank}: of 384")).collect();
    assert_eq!(jobs.lines(&args), expected);
    // A limit that is too low for them is named.
    let command = jobs.command(&["-n", "384", "true"]);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 300 && exec \"$0\" \"$@\""]).arg(command.get_program());
    limited.args(command.get_args());
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let said = jobs.place.run_command(limited);
    assert_eq!(said.code, Some(2), "{said:?}");
    // A server of a node may have met the limit as well, and warned of it.
    let error = said.err.lines().last().unwrap_or_default();
    assert!(error.contains("-n 384: too many ranks for the 300 files"), "{said:?}");
}

/// A rank does not wait for the process manager, so that either can be the first to tell.
#[test]
fn aborts_are_reported_in_any_order() {
    let jobs = Jobs::new();
    let program = |order: &str| {
        let connect = "exec 3<>/dev/tcp/${PMI_PORT%:*}/${PMI_PORT#*:}; \
                       abort() { echo cmd=initack pmiid=1; echo cmd=abort exitcode=7; }";
        let rank = format!("{connect}\n[ $PMI_RANK = 1 ] || exec sleep 60\n{order}\nexit 3");
        jobs.run(&["--mpi", "-n", "2", "--grace", "2s", "bash", "-c", &rank])
    };
    let aborted = "tofu: rank 1 at (0,0,0,1,0,0) has aborted the job with code 7\n";
    for order in ["abort >&3; sleep 0.3", "(sleep 0.3; abort >&3) >/dev/null 2>&1 &"] {
        let said = program(order);
        assert_eq!((said.code, said.err.as_str()), (Some(7), aborted), "{order}");
    }
    // Exit codes have eight bits, of which none is set here.
    let last = "[ $PMI_RANK = 1 ] || exit 0; exec 3<>/dev/tcp/${PMI_PORT%:*}/${PMI_PORT#*:}; \
                echo cmd=initack pmiid=1 >&3; read line <&3; \
                (sleep 0.3; echo cmd=abort exitcode=256 >&3) >/dev/null 2>&1 & exit 0";
    let said = jobs.run(&["--mpi", "-n", "2", "bash", "-c", last]);
    let aborted = "tofu: rank 1 at (0,0,0,1,0,0) has aborted the job with code 256\n";
    assert_eq!((said.code, said.err.as_str()), (Some(1), aborted));
    // One that does not abort has failed.
    let said = program(":");
    let failed = "tofu: rank 1 at (0,0,0,1,0,0) has failed with exit code 3\n";
    assert_eq!((said.code, said.err.as_str()), (Some(3), failed));
}

#[test]
fn provider_works_without_libfabric() {
    let jobs = Jobs::new();
    let Some(program) = jobs.own("fi.c") else { return };
    let provider = libraries().join("libtofu_fi.so");
    let files = ["a", "b"].map(|name| jobs.programs.path().join(name));
    let [provider, a, b] = [&provider, &files[0], &files[1]].map(|path| path.to_str().unwrap());
    let said = jobs.lines(&["-n", "2", &program, provider, a, b]);
    assert_eq!(said, ["0: good", "1: good"]);
    // Outside a job it says nothing, and at once.
    let start = Instant::now();
    let mut alone = Command::new(&program);
    let said = alone.args([provider, a, b]).output().unwrap();
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!((&*said.stdout, &*said.stderr), (&b"no device\n"[..], &b""[..]));
}

/// Long messages take four interfaces to a node with other A, B and C, and small ones one. If a
/// link on one of the paths is down, Gets take the default path.
#[test]
fn provider_takes_several_interfaces() {
    let jobs = Jobs::new();
    let Some(program) = jobs.own("fi.c") else { return };
    let provider = libraries().join("libtofu_fi.so");
    let tofu = env!("CARGO_BIN_EXE_tofu");
    let path = |name: &str| jobs.programs.path().join(name).to_str().unwrap().to_owned();
    let counters = path("counters");
    let (look, cut) =
        (format!("{tofu} stats --json >{counters}"), format!("{tofu} link down --alone 1 A"));
    for (most, dead, expected) in
        [("6", false, 4), ("2", false, 2), ("1", false, 1), ("6", true, 4)]
    {
        let [a, b] = [path("a"), path("b")];
        let mut command = jobs.command(&["-n", "12", "--shape", "unit", &program]);
        let before = if dead { &*cut } else { "true" };
        command.args([provider.to_str().unwrap(), &a, &b, "4", before, &look]);
        command.env("FI_TOFU_TNIS", most);
        let said = jobs.place.run_command(command).ok();
        assert_eq!(said.matches("good").count(), 2, "{said}");
        let all: Value = serde_json::from_slice(&std::fs::read(&counters).unwrap()).unwrap();
        let nodes = all["nodes"].as_array().unwrap();
        let tnis = nodes[0]["tnis"].as_array().unwrap().iter();
        let sent: Vec<u64> = tnis.map(|tni| tni["BYTE_SEND_TLP"].as_u64().unwrap()).collect();
        let lost = nodes.iter().flat_map(|node| node["ports"].as_array().unwrap());
        let lost: u64 = lost.map(|port| port["NUM_TX_DISCARD_NORMAL_TLP"].as_u64().unwrap()).sum();
        let [a, b] = [&a, &b].map(std::fs::remove_file);
        a.and(b).unwrap();
        assert_eq!(lost > 0, dead);
        let used = sent.iter().filter(|bytes| **bytes > 0).count();
        assert_eq!(used, expected, "{sent:?}");
        // Each has its share of long messages.
        let most = sent.iter().max().unwrap();
        assert!(sent[..used].iter().all(|bytes| bytes * 2 > *most), "{sent:?}");
    }
}

/// Runs gcc with a source.
fn gcc(source: &[u8], args: &[&OsStr]) {
    let mut gcc = Command::new("gcc");
    gcc.args(["-x", "c", "-", "-x", "none", "-Wl,--no-as-needed"]).args(args).stdin(Stdio::piped());
    let mut child = gcc.spawn().unwrap();
    child.stdin.take().unwrap().write_all(source).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_way_of_mpi_messages_is_said() {
    let jobs = Jobs::new();
    if jobs.own("pmi.c").is_none() {
        return;
    }
    let folder = jobs.programs.path();
    let (mpi, fabric) = (folder.join("libmpich.so.12"), folder.join("libfabric.so.1"));
    let linked = folder.join("linked");
    let library = |path: &Path, with: Option<&Path>| {
        let name = format!("-Wl,-soname,{}", path.file_name().unwrap().to_str().unwrap());
        let args = [OsStr::new("-shared"), OsStr::new(&name), OsStr::new("-o"), path.as_os_str()];
        let args: Vec<_> = args.into_iter().chain(with.map(Path::as_os_str)).collect();
        gcc(b"", &args);
    };
    library(&mpi, None);
    let source = b"#include <stdio.h>\n#include <stdlib.h>\n\
        int main(void) { const char *p = getenv(\"FI_PROVIDER\");\
        const char *at = getenv(\"FI_PROVIDER_PATH\");\
        char path[4096]; snprintf(path, sizeof path, \"%s/libtofu-fi.so\", at ? at : \"\");\
        FILE *f = fopen(path, \"r\"); puts(p ? p : \"none\"); return at && !f; }";
    gcc(source, &[mpi.as_os_str(), OsStr::new("-o"), linked.as_os_str()]);
    let path = format!("LD_LIBRARY_PATH={}", folder.display());
    let args = ["-n", "2", "--env", &path, linked.to_str().unwrap()];
    let run = |options: &[&str]| {
        let said = jobs.run(&[options, args.as_slice()].concat());
        assert_eq!(said.code, Some(0), "{said:?}");
        assert_eq!(said.err.lines().count(), 1, "{said:?}");
        said
    };
    let said = run(&[]);
    assert!(said.err.contains("is linked with libmpich.so.12, and there is no --mpi"), "{said:?}");
    let said = run(&["--mpi"]);
    assert!(said.err.contains("TCP: libmpich.so.12 does not use libfabric"), "{said:?}");
    assert!(said.out.contains("none"), "{said:?}");
    library(&fabric, None);
    library(&mpi, Some(&fabric));
    let said = run(&["--mpi"]);
    assert!(said.err.contains("go over Tofu, by libfabric of libmpich.so.12"), "{said:?}");
    assert!(said.out.contains("0: tofu") && said.out.contains("1: tofu"), "{said:?}");
    // What the user chooses counts.
    let mut command = jobs.command(&[&["--mpi"], args.as_slice()].concat());
    command.env("FI_PROVIDER", "tcp");
    let said = jobs.place.run_command(command);
    assert!(said.out.contains("0: tcp") && said.err.is_empty(), "{said:?}");
}

/// Compiles a program of `tests/cli/programs` by a compiler for MPI; `None` without it.
fn mpi_program(test: &str, jobs: &Jobs, mpicc: &str, name: &str) -> Option<String> {
    let program = jobs.programs.path().join(name).into_os_string().into_string().unwrap();
    let source = Path::new(HERE).join("tests/cli/programs").join(format!("{name}.c"));
    let compiled = Command::new(mpicc).arg(source).args(["-o", &program]).output();
    if !compiled.is_ok_and(|compiled| compiled.status.success()) {
        eprintln!("SKIP {test}: no {mpicc}");
        return None;
    }
    Some(program)
}

/// Compiles one by the host's Open MPI; `None` without it, or without libpmix.
fn openmpi(test: &str, jobs: &Jobs) -> Option<String> {
    let program = mpi_program(test, jobs, "mpicc.openmpi", "mpi")?;
    let said = jobs.run(&["--mpi", "-n", "2", "--env", "FI_PROVIDER=tcp", &program]);
    if said.err.contains("libpmix.so.2: cannot open") {
        eprintln!("SKIP {test}: no libpmix2");
        return None;
    }
    said.ok();
    Some(program)
}

#[test]
fn open_mpi_starts_by_pmix() {
    let jobs = Jobs::new();
    let Some(program) = openmpi("open_mpi_starts_by_pmix", &jobs) else { return };
    let files = jobs.programs.path().join("files");
    std::fs::create_dir(&files).unwrap();
    let run = |more: &[&str]| {
        let mut command = jobs.command(&[&["--mpi", "-n", "3", "--ppn", "2"], more].concat());
        jobs.place.run_command({
            command.env("TMPDIR", &files);
            command
        })
    };
    let line = |rank: u32| {
        let (local, of) = (rank % 2, if rank == 2 { 1 } else { 2 });
        format!("{rank}: {local} of {of} on node, 0 wrong, sum 6")
    };
    let right = |said: &Said| {
        let mut lines: Vec<_> = said.out.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, (0..3).map(line).collect::<Vec<_>>(), "{said:?}");
    };
    // Over TCP, as the user has chosen; then over Tofu, if this Open MPI has libfabric.
    let said = run(&["--env", "FI_PROVIDER=tcp", "--env", "OMPI_MCA_mtl=^ofi", &program]);
    right(&said);
    assert_eq!(said.err, "", "{said:?}");
    let said = run(&[&program]);
    right(&said);
    assert!(said.err.starts_with("tofu: MPI's messages go over "), "{said:?}");
    if said.err.contains("does not use libfabric") {
        eprintln!("SKIP open_mpi_starts_by_pmix: no libfabric in Open MPI");
    } else {
        assert!(said.err.contains("go over Tofu, by libfabric of libmpi.so.40"), "{said:?}");
        let said = run(&["--env", "OMPI_MCA_mtl_base_verbose=10", &program]);
        assert!(said.err.contains("mtl:ofi:provider: tofu"), "{said:?}");
    }
    let said = run(&[&program, "7"]);
    assert_eq!(said.code, Some(7), "{said:?}");
    assert!(said.err.contains("tofu: rank 2 at"), "{said:?}");
    assert!(said.err.contains("has aborted the job with code 7"), "{said:?}");
    let left: Vec<_> =
        std::fs::read_dir(&files).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Runs collectives with and without gates.
fn collectives(test: &str, jobs: &Jobs, mpicc: &str) {
    let Some(program) = mpi_program(test, jobs, mpicc, "gates") else { return };
    let run = |more: &[&str]| {
        let say = ["--mpi", "-n", "5", "--env", "TOFU_MPI_GATES=1"];
        let said = jobs.run(&[&say[..], more, &[&program]].concat());
        let right = said.out.lines().filter(|line| line.ends_with(": 0 wrong")).count();
        assert_eq!((said.code, right), (Some(0), 5), "{said:?}");
        said.err
    };
    let preload = ["--env", "LD_PRELOAD=libtofu_mpi_gates.so"];
    assert!(!run(&[]).contains("gates"));
    let said = run(&preload);
    assert!(said.contains("0: libtofu_mpi_gates: 73 collectives over barrier gates"), "{said}");
    // Some ranks have no device: none uses gates.
    let said =
        run(&[&preload[..], &["--env", "TOFU_PROVIDER=none", "--env", "FI_PROVIDER=tcp"]].concat());
    assert!(said.contains("libtofu_mpi_gates: no barrier gates"), "{said}");
}

#[test]
fn collectives_of_open_mpi_use_gates() {
    let (test, jobs) = ("collectives_of_open_mpi_use_gates", Jobs::new());
    if openmpi(test, &jobs).is_some() {
        collectives(test, &jobs, "mpicc.openmpi");
    }
}

#[test]
fn collectives_of_mpich_use_gates() {
    collectives("collectives_of_mpich_use_gates", &Jobs::new(), "mpicc.mpich");
}

#[test]
fn mpi_that_is_loaded_later_can_be_named() {
    let test = "mpi_that_is_loaded_later_can_be_named";
    let jobs = Jobs::new();
    let Some(program) = openmpi(test, &jobs) else { return };
    let needed = run(Command::new("ldd").arg(&program));
    let line = needed.lines().find(|line| line.trim_start().starts_with("libmpi.so.40")).unwrap();
    let library = line.split_whitespace().nth(2).unwrap();
    let start = |library: &str| {
        let mut command = jobs.command(&["--mpi", "-n", "2", "sh", "-c", &program]);
        command.env("TOFU_MPI_LIBRARY", library);
        jobs.place.run_command(command)
    };
    let said = start(library);
    assert!(said.err.contains("MPI's messages go over "), "{said:?}");
    assert!(said.out.contains("0: 0 of 1 on node, 0 wrong, sum 3"), "{said:?}");
    let error = start("/bin/sh").error();
    assert!(error.contains("TOFU_MPI_LIBRARY=/bin/sh: not libmpi.so.40"), "{error}");
    let error = start("/nowhere/libmpi.so.40").error();
    assert!(error.contains("TOFU_MPI_LIBRARY=/nowhere/libmpi.so.40: "), "{error}");
    // A process manager for this one is missing.
    let fake = jobs.programs.path().join("libpmix.so.2");
    gcc(b"", &[OsStr::new("-shared"), OsStr::new("-o"), fake.as_os_str()]);
    let mut command = jobs.command(&["--mpi", "-n", "2", &program]);
    command.env("LD_LIBRARY_PATH", jobs.programs.path());
    let error = jobs.place.run_command(command).error();
    assert!(error.contains("Open MPI's ranks need a PMIx server"), "{error}");
    assert!(error.contains("has no PMIx_server_init"), "{error}");
}

#[test]
fn ranks_work_where_they_are_told_to() {
    let jobs = Jobs::new();
    let folder = jobs.programs.path();
    let (out, shared) = (folder.join("out"), folder.join("shared"));
    std::fs::create_dir(&shared).unwrap();
    let script = ["sh", "-c", "echo $TOFU_RANK > of-$TOFU_RANK"];
    let more = ["-n", "3", "--ppn", "2", "--out", out.to_str().unwrap(), "--"];
    jobs.run(&[&more[..], &script].concat()).ok();
    let read = |path: &str| std::fs::read_to_string(folder.join(path)).unwrap_or_default();
    assert_eq!(read("out/t-0-0-0-0-0-0/of-0"), "0\n");
    assert_eq!(read("out/t-0-0-0-0-0-0/of-1"), "1\n");
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 2);
    let more = ["-n", "2", "--cwd", shared.to_str().unwrap(), "--"];
    jobs.run(&[&more[..], &script].concat()).ok();
    assert_eq!(jobs.lines(&[&more[..], &["cat", "of-1"]].concat()), ["0: 1", "1: 1"]);
}

/// The files that `tofu sdk` writes are enough to compile its examples and run them.
#[test]
fn sdk_has_examples() {
    if !have("make") || !have("gcc") {
        eprintln!("SKIP sdk_has_examples: no make, or no gcc");
        return;
    }
    let jobs = Jobs::new();
    let sdk = jobs.programs.path().join("sdk");
    let mut write = jobs.place.command(&["sdk", sdk.to_str().unwrap()]);
    run(write.env("TOFU_LIBRARIES", libraries()));
    run(Command::new("make").arg("-C").arg(sdk.join("examples")));
    let ring = sdk.join("examples/ring");
    let expected = ["0: rank 0 of 2: hello from rank 1", "1: rank 1 of 2: hello from rank 0"];
    assert_eq!(jobs.lines(&["-n", "2", ring.to_str().unwrap()]), expected);

    // Among numbers of ranks that are a power of two and not.
    let gather = sdk.join("examples/gather");
    for ranks in ["4", "7"] {
        let lines = jobs.lines(&["-n", ranks, gather.to_str().unwrap(), "2"]);
        let names: Vec<_> = lines.iter().filter_map(|line| line.split(' ').nth(1)).collect();
        assert_eq!(names, ["all-1", "all-6", "ring", "doubling", "sum"], "{lines:?}");
    }

    // MPI libraries and programs load them from there.
    assert!(sdk.join("lib/libtofu-fi.so").is_file());
    assert!(sdk.join("lib/libtofu_mpi_gates.so").is_file());
    // Ranks load their nodes' devices from there, and say so if they cannot.
    let local = sdk.join("lib/libtofulocal.so");
    let start = || {
        let mut command = jobs.command(&["-n", "2", ring.to_str().unwrap()]);
        // Cargo's has the library, too.
        command.env("TOFU_LIBRARIES", sdk.join("lib")).env_remove("LD_LIBRARY_PATH");
        jobs.place.run_command(command)
    };
    start().ok();
    std::fs::remove_file(&local).unwrap();
    let said = start();
    assert!(said.err.contains("libtofulocal.so is needed"), "{said:?}");
    let mut write = jobs.place.command(&["sdk", jobs.programs.path().to_str().unwrap()]);
    write.env("TOFU_LIBRARIES", sdk.join("lib"));
    let error = jobs.place.run_command(write).error();
    assert!(error.contains("libtofulocal.so is not in"), "{error}");
}

/// The same for TNW: processes whose nodes are neighbours on a torus of three axes.
#[test]
fn sdk_has_examples_for_tnw() {
    if !have("make") || !have("gcc") {
        eprintln!("SKIP sdk_has_examples_for_tnw: no make, or no gcc");
        return;
    }
    let jobs = Jobs::new();
    let sdk = jobs.programs.path().join("sdk");
    let mut write = jobs.place.command(&["sdk", sdk.to_str().unwrap()]);
    run(write.env("TOFU_LIBRARIES", libraries()));
    let examples = sdk.join("examples/tnw");
    run(Command::new("make").arg("-C").arg(&examples));
    let program = |name| examples.join(name).to_str().unwrap().to_owned();
    let lines = |args: &[&str], name| {
        let program = program(name);
        let args = [&["--generation", "tnw", "--no-prefix"], args, &[program.as_str()]].concat();
        let mut lines = jobs.lines(&args);
        lines.sort_unstable();
        lines
    };
    let shifted = |lens: [u8; 3]| {
        let [x, y, z] = lens;
        let places = (0..x).flat_map(|x| (0..y).flat_map(move |y| (0..z).map(move |z| [x, y, z])));
        let mut lines = Vec::new();
        for at in places {
            for (axis, name) in
                ["x", "y", "z"].into_iter().enumerate().filter(|(n, _)| lens[*n] > 1)
            {
                let mut from = at;
                from[axis] = (at[axis] + lens[axis] - 1) % lens[axis];
                let [to, from] = [at, from].map(|at| at.map(|c| c.to_string()).join(","));
                lines.push(format!("{to}: {from} is at {name}-"));
            }
        }
        lines.sort_unstable();
        lines
    };
    // A row of this many nodes, or the requested torus.
    assert_eq!(lines(&["-n", "3"], "shift"), shifted([3, 1, 1]));
    assert_eq!(lines(&["--map", "2x2x2"], "shift"), shifted([2, 2, 2]));
    for (at, line) in lines(&["-n", "2"], "stream").into_iter().enumerate() {
        let from = 1 - at;
        let said =
            format!("{at}: 64 pieces of 65536 bytes from {from}, 0 wrong, 32768 packets sent, ");
        // Some are sent again if a busy host delays the other process.
        assert!(line.starts_with(&said), "{line}");
    }
    for (args, why) in [
        (&["--ppn", "2"][..], "--ppn 2: a node has 1 to 1 ranks (TNW)"),
        (&["--shape", "unit"], "TNW"),
    ] {
        let args = [&["--generation", "tnw", "-n", "2"], args, &["true"]].concat();
        let said = jobs.run(&args);
        assert_eq!(said.code, Some(2), "{}", said.err);
        assert!(said.err.contains(why), "{}", said.err);
    }
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
fn ranks_have_numbers_and_rank_0_the_input() {
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
fn ended_job_leaves_nothing() {
    let jobs = Jobs::new();
    let marker = jobs.place.path().join("marker");
    std::fs::write(&marker, "").unwrap();
    let marker = marker.display();
    // Processes that ranks have started count, too.
    let script = format!("tail -f {marker} & echo here; exec tail -f {marker}");
    let args = ["-n", "3", "--", "sh", "-c", &script];
    for (how, code) in [(Signal::INT, Some(130)), (Signal::TERM, Some(143)), (Signal::KILL, None)] {
        let mut job = jobs.start(&args, 3);
        let pid = job.0.id();
        signal(pid.into(), how);
        assert_eq!(job.0.wait().unwrap().code(), code, "{how:?}");
        jobs.is_clean(pid);
    }
    // The machine of a run has a control socket, through which other commands show and end it.
    let mut job = jobs.start(&args, 3);
    let ps = jobs.place.ps();
    let nodes = ps[0]["nodes"].as_array().unwrap();
    assert!(nodes.len() == 3 && nodes.iter().all(|node| node["kind"] == "served"), "{ps}");
    assert_eq!(ps[0]["pid"], job.0.id());
    jobs.place.run(&["link", "ls"]).ok();
    jobs.place.run(&["down"]).ok();
    assert_eq!(job.0.wait().unwrap().code(), Some(143));
    jobs.is_clean(job.0.id());
    // Ranks end even if the janitor is killed as well.
    let script = format!("echo here; exec tail -f {marker}");
    let mut job = jobs.start(&["-n", "3", "--", "sh", "-c", &script], 3);
    let pid = job.0.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let janitor = children.split_whitespace().next().unwrap();
    kill(janitor.parse().unwrap());
    kill(pid.into());
    assert_eq!(job.0.wait().unwrap().code(), None);
    // The next command that sees the folder removes it.
    assert_eq!(jobs.place.run(&["ps"]).ok(), "no machine is running\n");
    jobs.is_clean(pid);
}

/// The only remaining way to a neighbour is the longer one around the ring.
#[test]
fn barriers_and_reductions_avoid_dead_links() {
    let jobs = Jobs::new();
    let Some(program) = jobs.own("detour.c") else { return };
    let folder = jobs.programs.path();
    let news = folder.join("news");
    let to_news = format!("TOFU_LINKS={}", news.display());
    let ring = "1x1x1x1x3x1";
    let args = ["--shape", ring, "-n", "2", "--env", &to_news, &program, folder.to_str().unwrap()];
    let child = jobs.command(&args).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut job = Job(child.unwrap());
    let mut lines = BufReader::new(job.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut next = || {
        let mut lines: Vec<_> = lines.by_ref().take(2).collect();
        lines.sort_unstable();
        lines
    };
    assert_eq!(next(), ["0: sum 3", "1: sum 3"]);
    jobs.place.run(&["link", "down", "0", "B+"]).ok();
    std::fs::write(&news, format!("shape {ring} torus \n0 0 0 0 0 0 B+\n")).unwrap();
    std::fs::write(folder.join("go"), "").unwrap();
    assert_eq!(
        next(),
        ["0: sum 3, the same to the last bit", "1: sum 3, the same to the last bit"]
    );
    assert_eq!(job.0.wait().unwrap().code(), Some(0));
}

#[test]
fn mistakes_are_one_line() {
    let jobs = Jobs::new();
    let here = Path::new(HERE).join("Cargo.toml");
    for (args, expected) in [
        (&["-n", "0", "true"][..], "-n 0: a job has one rank or more"),
        (&["-n", "5000", "true"], "5000 nodes are too many: with --local a job has up to 4608"),
        (&["-n", "3", "--shape", "1x1x1x2x1x1", "true"], "has 2 nodes, and the job needs 3"),
        (&["--ppn", "49", "true"], "--ppn 49: a node has 1 to 48 ranks"),
        (&["--map", "200", "--ppn", "40", "true"], "8000 ranks: with --local a job has up to 4608"),
        (&["--copy", "Cargo.toml", "true"], "--copy is for ranks on nodes"),
        (&["--cwd", "no-such-folder", "true"], "--cwd no-such-folder: cannot read it"),
        (&["no-such-program"], "there is no program no-such-program"),
        (&["./no-such-program"], "cannot run ./no-such-program"),
        (&[here.to_str().unwrap()], "it is not executable"),
        (&["/"], "it is not a file"),
    ] {
        let error = jobs.run(args).error();
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}
