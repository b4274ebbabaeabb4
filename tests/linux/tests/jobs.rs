//! `tofu run`: jobs of C programs on Linux nodes, with and without MPI, and how they end.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tofu_linux_tests::sdk::{Sdk, has_compiler};
use tofu_linux_tests::{Image, MOMENT, PATIENCE, Place, Running, Said, interrupt, kill, sorted};

/// A place with programs and everything to compile them.
struct Job {
    place: Place,
    sdk: Sdk,
}

impl Job {
    /// A place, what `tofu sdk` writes, and the C programs compiled with it.
    fn new(place: Place) -> Self {
        let sdk = Sdk::new(&place);
        for source in ["programs/ranks.c", "../../guest-lib/utofu/examples/run/ring.c"] {
            sdk.compile(source, &["-ltofucom", "-ltofutop"]);
        }
        Self { place, sdk }
    }

    fn command(&self, args: &[&str]) -> Command {
        self.sdk.command(&self.place, args)
    }

    fn start(&self, args: &[&str], input: &[u8]) -> Running {
        Running::start(self.command(args), input)
    }

    #[track_caller]
    fn run(&self, args: &[&str]) -> Said {
        self.start(&[&["run"], args].concat(), b"").end(PATIENCE)
    }

    /// Submits a job script from a folder and waits for its end. Returns its number.
    #[track_caller]
    fn batch(&self, folder: &Path, args: &[&str]) -> String {
        let run = |args: &[&str]| {
            let mut command = self.command(args);
            command.current_dir(folder).env("TOFU_SPOOL", self.place.path().join("spool"));
            Running::start(command, b"").end(2 * PATIENCE).ok()
        };
        let number = run(&[&["pjsub", "-z", "jid"], args].concat());
        run(&["pjwait", number.trim()]);
        number.trim().to_owned()
    }

    /// Nothing of any job is left on a node.
    #[track_caller]
    fn nodes_are_clean(&self) {
        let look = "ls /tmp; grep -l TOFU_JOB= /proc/[0-9]*/environ 2>/dev/null; true";
        let lines = self.place.exec_all(&["sh", "-c", look]);
        assert!(lines.is_empty(), "{lines:?}");
    }
}

#[test]
fn jobs_on_two_nodes() {
    if !has_compiler() {
        return;
    }
    let Some(place) = Place::new(Image::Default) else { return };
    let job = Job::new(place);
    job.place.up(&["--name", "two", "--driver", "vfio"]);
    examples(&job);
    jobs_and_their_ends(&job);
    job.place.run(&["down"]).ok();
    job.place.is_clean();
}

/// The C examples give the same results on two nodes as anywhere else.
fn examples(job: &Job) {
    for (name, ranks, expected) in [
        ("counter", "2", &["0: counter 2000, each number drawn once: yes"][..]),
        ("lock", "2", &["0: counter 400 of 400, lock free"]),
        ("pingpong", "2", &["0: 1000 rounds of 4096 bytes, first byte 208"]),
        ("striping", "2", &["1: 12582912 bytes over 6 TNIs, 0 wrong"]),
        ("stride", "2", &["0: 2 ranks, halo columns of 300 rows, 0 wrong"]),
        ("piggyback", "2", &["0: 128 of 128 letters as they were written"]),
        ("prepared", "2", &["0: 100 rounds of 192 bytes of descriptors, 0 wrong"]),
        ("sizes", "2", &["0: 22 sizes up to 16777215 bytes, 22 as they were sent"]),
        ("threads", "2", &["0: 2 ranks of 4 threads: each number drawn once"]),
        ("split", "2", &["0: 40000000 bytes in 3 pieces"]),
        (
            "ring_put",
            "2",
            &[
                r#"0: rank 0: "hello from rank 1", edata 1"#,
                r#"1: rank 1: "hello from rank 0", edata 0"#,
            ],
        ),
        (
            "ring_get",
            "2",
            &["0: rank 0: 100000 bytes of 'B', 0 wrong", "1: rank 1: 100000 bytes of 'A', 0 wrong"],
        ),
        (
            "many_vcqs",
            "2",
            &["0: rank 0: 6 TNIs, 96 completions", "1: rank 1: 96 of 96 numbers at the right VCQ"],
        ),
    ] {
        let source = format!("../../guest-lib/utofu/examples/c/{name}.c");
        job.sdk.compile(&source, &["-ltofucom", "-ltofutop", "-lpthread"]);
        let out = job.run(&["-n", ranks, &format!("./{name}")]).ok();
        assert_eq!(sorted(&out), expected, "{name}");
    }
    let said = job.run(&["-n", "4", "./counter"]);
    assert!(said.err.contains("this program is for one rank on each node"), "{said:?}");
    job.nodes_are_clean();
}

/// Must come last, because it leaves only one node.
fn jobs_and_their_ends(job: &Job) {
    // Put and notice from rank to rank: a rank a node, then two on each.
    let out = job.run(&["-n", "2", "./ring"]).ok();
    let expected = ["0: rank 0 of 2: hello from rank 1", "1: rank 1 of 2: hello from rank 0"];
    assert_eq!(sorted(&out), expected);
    let out = job.run(&["-n", "4", "./ring"]).ok();
    let line =
        |rank: usize| format!("{rank}: rank {rank} of 4: hello from rank {}", (rank + 3) % 4);
    assert_eq!(sorted(&out), (0..4).map(line).collect::<Vec<_>>());
    libraries_stay(job);

    environments(job);

    // Input goes to the first rank. A last line need not end with a newline.
    let said = job.start(&["run", "./ranks", "input"], b"one\ntwo\n").end(PATIENCE);
    let expected =
        ["0: end without a newline", "0: got one", "0: got two", "1: end without a newline"];
    assert_eq!(sorted(&said.ok()), expected);

    // Files, scripts, and programs of the nodes.
    fs::write(job.place.path().join("data"), "what was copied\n").unwrap();
    let out = job.run(&["-n", "1", "--copy", "data", "./ranks", "file", "data"]).ok();
    assert_eq!(out, "0: what was copied\n");
    fs::write(job.place.path().join("script"), "#!/bin/sh\necho $TOFU_RANK $1 $(cat data)\n")
        .unwrap();
    let out = job.run(&["--copy", "data", "./script", "-x"]).ok();
    assert_eq!(sorted(&out), ["0: 0 -x what was copied", "1: 1 -x what was copied"]);
    assert_eq!(sorted(&job.run(&["hostname"]).ok()), ["0: t-0-0-0-0-0-0", "1: t-1-0-0-0-0-0"]);

    files_come_back(job);

    script_on_machine(job);

    failures(job);

    // Ctrl-C also ends children that have left their rank's process group.
    let mut running = job.start(&["run", "./ranks", "wait"], b"");
    let lines = [running.line(), running.line()];
    assert!(lines.iter().all(|line| line.ends_with(": on\n")), "{lines:?}");
    interrupt(running.id());
    assert_eq!(running.end(MOMENT).code, Some(130));
    job.nodes_are_clean();

    // Jobs that do not fit this machine.
    let error = job.run(&["-n", "97", "./ring"]).error();
    assert!(error.contains("97 ranks are too many: the machine has 2 Linux nodes"), "{error}");
    let error = job.run(&["--map", "4x3", "./ring"]).error();
    assert!(error.contains("4x3"), "{error}");
    let error = job.run(&["--machine", "other", "./ring"]).error();
    assert!(error.contains("no machine other is running"), "{error}");
    // Nor do ranks with MPI find each other without an interface.
    job.place.exec("0", &["ip", "link", "set", "tofu0", "down"]).ok();
    let error = job.run(&["--mpi", "./ring"]).error();
    assert!(error.contains("--net lan"), "{error}");
    job.place.exec("0", &["ip", "link", "set", "tofu0", "up"]).ok();
    job.nodes_are_clean();

    // A node dies under its rank; the next job runs without it.
    let mut running = job.start(&["run", "--grace", "100ms", "./ranks", "wait"], b"");
    let lines = [running.line(), running.line()];
    assert!(lines.iter().all(|line| line.ends_with(": on\n")), "{lines:?}");
    kill(job.place.node(1)["pid"].as_u64().unwrap());
    let said = running.end(MOMENT);
    assert_eq!(said.code, Some(126), "{said:?}");
    let expected = "rank 1 on node (1,0,0,0,0,0) has not run to its end: the node has stopped\n";
    assert!(said.err.contains(expected), "{said:?}");
    assert_eq!(sorted(&job.run(&["-n", "2", "./ring"]).ok()).len(), 2);
}

/// The first rank that fails decides the exit code. The others are ended, by force if necessary.
fn failures(job: &Job) {
    let said = job.run(&["--grace", "100ms", "./ranks", "code"]);
    assert_eq!(said.code, Some(7), "{said:?}");
    assert!(
        said.err.starts_with("tofu: rank 1 on node (1,0,0,0,0,0) has failed with exit code 7\n")
    );
    let said = job.run(&["--grace", "100ms", "./ranks", "signal"]);
    assert_eq!(said.code, Some(128 + 11), "{said:?}");
    assert!(said.err.contains("rank 1 on node (1,0,0,0,0,0) was ended by signal 11 (SIGSEGV)\n"));
    let said = job.run(&["--grace", "100ms", "./ranks", "stubborn"]);
    assert_eq!(said.code, Some(3), "{said:?}");
    let said = job.run(&["nosuch"]);
    assert_eq!(said.code, Some(127), "{said:?}");
    let said = job.run(&["--timeout", "500ms", "./ranks", "wait"]);
    assert_eq!(said.code, Some(124), "{said:?}");
    assert!(said.err.contains("2 ranks still run after 0.5 s"), "{said:?}");
    job.nodes_are_clean();
}

/// Files that ranks write are copied back: by node, or to the folder that is also theirs.
fn files_come_back(job: &Job) {
    let write = "mkdir -p deep; echo $TOFU_RANK > deep/$TOFU_RANK; echo old >> data";
    job.run(&["-n", "3", "--copy", "data", "--out", "out", "--", "sh", "-c", write]).ok();
    let read = |path: &str| fs::read_to_string(job.place.path().join(path)).unwrap_or_default();
    assert_eq!(read("out/t-0-0-0-0-0-0/deep/0"), "0\n");
    assert_eq!(read("out/t-0-0-0-0-0-0/deep/1"), "1\n");
    assert_eq!(read("out/t-1-0-0-0-0-0/deep/2"), "2\n");
    assert_eq!(read("out/t-1-0-0-0-0-0/data"), "what was copied\nold\n");
    let shared = job.place.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::write(shared.join("given"), "given\n").unwrap();
    let before = fs::metadata(shared.join("given")).unwrap().modified().unwrap();
    let make = "cat given; echo $TOFU_RANK > of-$TOFU_RANK; exit 3";
    let said = job.run(&["-n", "2", "--cwd", "shared", "--grace", "5s", "--", "sh", "-c", make]);
    assert_eq!((said.code, said.out.matches("given").count()), (Some(3), 2), "{said:?}");
    assert_eq!((read("shared/of-0"), read("shared/of-1")), ("0\n".into(), "1\n".into()));
    // Unchanged files are left alone.
    let after = fs::metadata(shared.join("given")).unwrap().modified().unwrap();
    assert_eq!(before, after);
    let said = job.run(&["-n", "2", "--cwd", "shared", "--", "sh", "-c", "cat of-*; date > now"]);
    let several = "tofu: now was written on several nodes; the last one's is kept\n";
    assert_eq!(said.err, several, "{said:?}");
    assert_eq!(sorted(&said.ok()), ["0: 0", "0: 1", "1: 0", "1: 1"]);
}

/// A job script's ranks run on the machine's nodes: programs of the host with its libraries,
/// although `mpiexec` serves MPI, also several of them, behind tools of the site and in scripts.
fn script_on_machine(job: &Job) {
    let folder = job.place.path().join("batch");
    fs::create_dir(&folder).unwrap();
    fs::copy(job.place.path().join("ring"), folder.join("ring")).unwrap();
    let rank = "#!/bin/sh\nnumactl -C $TOFU_RANK echo $PJM_JOBNAME $A\n";
    fs::write(folder.join("rank.sh"), rank).unwrap();
    fs::create_dir(folder.join("deep")).unwrap();
    fs::copy(job.place.path().join("ring"), folder.join("deep/ring")).unwrap();
    let starter = folder.join("starter.sh");
    fs::write(&starter, "#!/bin/sh\nenv A=3 ./ring\n").unwrap();
    fs::set_permissions(&starter, fs::Permissions::from_mode(0o755)).unwrap();
    let script = "#!/bin/bash\n#PJM -L node=2 -N two\n#PJM -x A=1\n\
                  mpiexec -of ring.out ./ring\nmpiexec -of wrapped.out numactl -C 0 ./ring\n\
                  export A=2\nmpiexec -of script.out sh ./rank.sh\n\
                  mpiexec -of several.out -n 1 ./ring : -n 1 ./deep/ring\n\
                  mpiexec -of shell.out sh -c 'cd deep && exec ./ring'\n\
                  mpiexec -of starter.out ./starter.sh\n";
    fs::write(folder.join("job.sh"), script).unwrap();
    let number = job.batch(&folder, &["--machine", "two", "job.sh"]);
    let read = |name: &str| {
        let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
        sorted(&text).join("|")
    };
    let said = read(&format!("two.{number}.err"));
    let ring = "rank 0 of 2: hello from rank 1|rank 1 of 2: hello from rank 0";
    for name in ["ring", "wrapped", "several", "shell", "starter"] {
        assert_eq!(read(&format!("{name}.out")), ring, "{name}: {said}");
    }
    let told = "numactl: ignored; echo runs without it";
    assert_eq!(read("script.out"), format!("{told}|{told}|two 2|two 2"), "{said}");
    assert!(said.contains("mpiexec: ignored: numactl"), "{said}");
    job.nodes_are_clean();
}

/// Ranks have their numbers, and the variables of the job.
fn environments(job: &Job) {
    let environment = ["--env", "GIVEN=x y", "./ranks", "environment"];
    let said = job.run(&[&["-n", "3"], environment.as_slice()].concat());
    assert_eq!(sorted(&said.err), ["0: also", "1: also", "2: also"], "{said:?}");
    let expected = ["0: 0 3 0 2 x y map", "1: 1 3 1 2 x y map", "2: 2 3 0 2 x y map"];
    assert_eq!(sorted(&said.ok()), expected);
    let said = job.run(&[&["--no-prefix"], environment.as_slice()].concat());
    assert_eq!(sorted(&said.ok()), ["0 2 0 1 x y map", "1 2 0 1 x y map"]);
    // Settings of uTofu are passed on, unless others are named; no other variables are.
    let script = "echo $UTOFU_SPLIT_PUTS$UTOFU_AVOID_DEAD_LINKS$GIVEN";
    let args = ["run", "-n", "1", "--env", "UTOFU_SPLIT_PUTS=7", "--", "sh", "-c", script];
    let mut command = job.command(&args);
    command.envs([("UTOFU_SPLIT_PUTS", "1"), ("UTOFU_AVOID_DEAD_LINKS", "0"), ("GIVEN", "2")]);
    assert_eq!(Running::start(command, b"").end(PATIENCE).ok(), "0: 70\n");
    let out = job.run(&[&["--json", "--map", "2", "--ppn", "1"], environment.as_slice()].concat());
    let out = out.ok();
    let events: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| events.iter().filter(|event| event["event"] == kind).count();
    assert_eq!((of("line"), of("ended"), of("summary")), (4, 2, 1), "{out}");
    assert_eq!(events.last().unwrap()["code"], 0, "{out}");
}

/// Libraries that a job has copied stay for the next one, until jobs bring others. Two of these
/// bring the same libraries at the same time.
fn libraries_stay(job: &Job) {
    let sets = || {
        let names = job.place.exec("0", &["ls", "-1", "/run/tofu-libraries"]).ok();
        names.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let before = sets();
    // The host's and ours.
    assert_eq!(before.len(), 2, "{before:?}");
    job.run(&["-n", "1", "./ring"]).ok();
    assert_eq!(sets(), before);
    let library = job.place.path().join("libraries/libtofutop.so");
    // The loader ignores what follows.
    let mut library = fs::File::options().append(true).open(library).unwrap();
    library.write_all(b"another one").unwrap();
    let both = [(); 2].map(|()| job.start(&["run", "-n", "2", "./ranks", "environment"], b""));
    for running in both {
        running.end(PATIENCE).ok();
    }
    let after = sets();
    assert_eq!(after.len(), 2, "{after:?}");
    assert_eq!(after.iter().filter(|set| before.contains(set)).count(), 1, "{after:?}");
}

#[test]
fn run_makes_its_own_machine() {
    if !has_compiler() {
        return;
    }
    let Some(place) = Place::new(Image::Default) else { return };
    let job = Job::new(place);
    let said = job.run(&["-n", "2", "./ring"]);
    assert!(
        said.err.starts_with("tofu: starting a machine 2x1x1x1x1x1 of Linux nodes"),
        "{said:?}"
    );
    assert_eq!(sorted(&said.ok()).len(), 2);
    assert_eq!(job.place.ps(), json!([]));
    job.place.is_clean();

    // While it boots.
    let running = job.start(&["run", "-n", "2", "./ring"], b"");
    tofu_linux_tests::wait_for("the machine", MOMENT, || job.place.ps() != json!([]));
    interrupt(running.id());
    let said = running.end(MOMENT);
    assert_eq!((said.code, said.out.as_str()), (Some(130), ""), "{said:?}");
    job.place.is_clean();

    // By force, in the middle.
    let mut running = job.start(&["run", "-n", "2", "./ranks", "wait"], b"");
    running.line();
    kill(running.id());
    assert_eq!(running.end(MOMENT).code, None);
    job.place.is_clean();
}

/// A job script's ranks in modelled time: they find each other by the process manager, over tofu0,
/// and send by uTofu. Their clocks are those of processors like Fugaku's.
#[test]
fn job_script_in_modelled_time() {
    if !has_compiler() {
        return;
    }
    let Some(place) = Place::new(Image::Default) else { return };
    let job = Job::new(place);
    job.sdk.compile("programs/pmi_ring.c", &["-ltofucom", "-ltofutop"]);
    let folder = job.place.path();
    let script = "#!/bin/bash\n#PJM -L node=2 -N timed -j\nmpiexec -of ring.out ./pmi_ring\n";
    fs::write(folder.join("job.sh"), script).unwrap();
    let number = job.batch(folder, &["--time", "modelled", "job.sh"]);
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let said = read(&format!("timed.{number}.out"));
    let out = read("ring.out");
    for rank in 0..2 {
        let expected = format!("rank {rank} of 2: hello from rank {}\n", 1 - rank);
        assert!(out.contains(&expected), "{out}\n{said}");
        assert!(out.contains(&format!("has card-{rank}\n")), "{out}\n{said}");
    }
    assert!(said.contains("0.3 ns an instruction; nothing was late"), "{said}");
    job.place.is_clean();
}

#[test]
fn mpi_and_utofu_in_one_program() {
    if !has_compiler() {
        return;
    }
    let Some(place) = Place::new(Image::Default) else { return };
    let job = Job::new(place);
    if !job.sdk.add_mpi(&job.place) {
        return;
    }
    job.sdk.compile_mpi("../../guest-lib/utofu/examples/run/mpi_put.c", &["-ltofucom"]);
    job.sdk.compile_mpi("programs/mpi_abort.c", &[]);
    let lan = ["--net", "lan", "--memory", "512MiB"];
    job.place.up(&[&["--image", "mpich"], lan.as_slice()].concat());
    for (ranks, numbers) in [("2", 4), ("4", 16)] {
        let out = job.run(&["--mpi", "-n", ranks, "./mpi_put"]).ok();
        assert_eq!(out, format!("0: {ranks} ranks have put {numbers} numbers, 0 wrong\n"));
    }
    // Without --mpi each rank is alone, and a message says why.
    let said = job.run(&["-n", "2", "./mpi_put"]);
    assert_eq!(said.err.matches("is linked with libmpich.so.12, and there is no --mpi").count(), 1);
    let said = job.run(&["--mpi", "-n", "4", "./mpi_abort"]);
    assert_eq!(said.code, Some(9), "{said:?}");
    assert!(
        said.err.contains("tofu: rank 1 on node (0,0,0,0,0,0) has aborted the job with code 9")
    );
    job.sdk.compile_mpi_cxx("programs/mpi_cxx.cc");
    let mut cxx = vec!["./mpi_cxx"];
    if job.sdk.build_with_cmake("programs/mpi_cmake") {
        cxx.push("build/by_cmake_cxx");
        assert_eq!(job.run(&["--mpi", "-n", "2", "build/by_cmake_c"]).code, Some(9));
    }
    for program in cxx {
        assert_eq!(job.run(&["--mpi", "-n", "2", program]).ok(), "0: the sum is 3\n");
    }
    job.nodes_are_clean();
    job.place.run(&["down"]).ok();
    job.place.is_clean();
}

#[test]
fn mistakes() {
    if !has_compiler() {
        return;
    }
    let job = Job::new(Place::empty());
    fs::write(job.place.path().join("text"), "neither program nor script").unwrap();
    let cases: [(&[&str], &str); 13] = [
        (&["--cwd", "nosuch", "./ring"], "--cwd nosuch: cannot read it"),
        (&["./nosuch"], "cannot run ./nosuch: No such file"),
        (&["./text"], "cannot run ./text: it is neither an ELF program of 64 bits nor a script"),
        (&["."], "cannot run .: it is a folder"),
        (&["-n", "0", "./ring"], "-n 0: a job has one rank or more"),
        (&["-n", "9999", "./ring"], "-n 9999: a machine that is started for a run has up to 12"),
        (&["--ppn", "49", "./ring"], "--ppn 49: a node has 1 to 48 ranks"),
        (&["--map", "4x3", "-n", "577", "./ring"], "-n 577: a map of 4x3"),
        (&["--map", "4x", "./ring"], "invalid value '4x' for '--map"),
        (&["--machine", "other", "./ring"], "no machine is running"),
        (&["--env", "NOT_SET_HERE", "./ring"], "NOT_SET_HERE has no value here"),
        (&["--copy", "nosuch", "./ring"], "--copy nosuch: cannot read it"),
        (&["--libs", "host", "ring"], "ring is a program of the nodes; write ./ring"),
    ];
    for (args, expected) in cases {
        let error = job.run(args).error();
        assert!(error.contains(expected), "{args:?}: {error}");
    }
    let mut command = job.command(&["run", "./ring"]);
    command.env("TOFU_LIBRARIES", job.place.path());
    let error = Running::start(command, b"").end(MOMENT).error();
    assert!(error.contains("libtofucom.so") && error.contains("cargo build"), "{error}");
    job.place.is_clean();
}
