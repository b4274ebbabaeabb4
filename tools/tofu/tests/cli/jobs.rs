//! `pjsub`, `pjstat`, `pjdel`, `pjwait` and `mpiexec`, with scripts as users of Fugaku write them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tofu_c_tests::{have, libraries};
use tofu_linux_tests::Said;

use crate::tofu::{Place, wait_for};

/// A program of ranks, without MPI.
const PROGRAM: &str = "#!/bin/sh\necho \"rank $TOFU_RANK of $TOFU_SIZE\" \"$@\"\n\
                       echo \"err $TOFU_RANK\" >&2\n";

/// A spool, and a folder for jobs.
struct Site {
    place: Place,
}

impl Site {
    fn new() -> Self {
        let site = Self { place: Place::new() };
        fs::create_dir(site.work()).unwrap();
        site.program("a.out", PROGRAM);
        site
    }

    fn work(&self) -> PathBuf {
        self.place.path().join("work")
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.work().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.place.command(args);
        command.current_dir(self.work()).env("TOFU_LIBRARIES", libraries());
        command.env("TOFU_SPOOL", self.place.path().join("spool"));
        command
    }

    fn run(&self, args: &[&str]) -> Said {
        self.place.run_command(self.command(args))
    }

    /// Submits a script, waits for its end and returns its number.
    #[track_caller]
    fn submit(&self, name: &str, script: &str, options: &[&str]) -> String {
        fs::write(self.work().join(name), script).unwrap();
        let said = self.run(&[&["pjsub", "-z", "jid"], options, &[name]].concat());
        assert_eq!(said.code, Some(0), "{name}: {said:?}");
        let id = said.out.trim().to_owned();
        self.run(&["pjwait", &id]).ok();
        id
    }

    #[track_caller]
    fn read(&self, name: impl AsRef<Path>) -> String {
        let path = self.work().join(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // The process that runs jobs ends with the last one.
        let _ = self.run(&["pjdel", "1-999"]);
        let end = Instant::now() + Duration::from_secs(20);
        while !self.place.processes().is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn job_runs_with_its_shape_and_files() {
    let site = Site::new();
    let script = "#!/bin/sh\n#PJM -L \"node=2x2,rscgrp=small,elapse=5:00\" # four\n\
                  #PJM --mpi \"max-proc-per-node=2\"\n#PJM -g hp1\n#PJM -x A=7 -S\n\
                  [[ -n $PJM_JOBID ]] && echo job $PJM_JOBID $PJM_NODE $PJM_NODE_X $PJM_NODE_Y $A\n\
                  echo $PJM_MPI_PROC $PJM_O_WORKDIR\nmpiexec ./a.out x\nmpiexec -n 1 ./a.out y\n\
                  echo end $? >&2\n";
    fs::write(site.work().join("job.sh"), script).unwrap();
    let said = site.run(&["pjsub", "job.sh"]);
    assert_eq!(said.out, "[INFO] PJM 0000 pjsub Job 1 submitted.\n", "{said:?}");
    assert_eq!(said.err, "[INFO] PJM 0099 pjsub Ignored: job.sh line 4: -g hp1.\n");
    let waited = site.run(&["pjwait", "1"]).ok();
    assert!(waited.lines().nth(1).unwrap().starts_with("1       EXT"), "{waited}");
    let work = site.work();
    let expected = format!("job 1 4 2 2 7\n8 {}\n", work.display());
    assert_eq!(site.read("job.sh.1.out"), expected);
    assert_eq!(site.read("job.sh.1.err"), "end 0\n");
    for rank in 0..8 {
        let name = format!("output.1/0/1/stdout.1.{rank}");
        assert_eq!(site.read(name), format!("rank {rank} of 8 x\n"));
        assert_eq!(site.read(format!("output.1/0/1/stderr.1.{rank}")), format!("err {rank}\n"));
    }
    assert_eq!(site.read("output.1/0/2/stdout.2.0"), "rank 0 of 1 y\n");
    let statistics = site.read("job.sh.1.stats");
    for line in
        [" NODE NUM (REQUIRE)        : 4:2x2", " PJM CODE                  : 0", " MPI SHAPE"]
    {
        assert!(statistics.contains(line), "{statistics}");
    }
    let history = site.run(&["pjstat", "-H", "--choose=jid,st,nnumr,ec", "--data"]).ok();
    assert_eq!(history, "JOB_ID,ST,NODE_REQUIRE,EC\n1,EXT,4:2x2,0\n");
}

#[test]
fn elapse_limit_ends_all_processes() {
    let site = Site::new();
    let script =
        "#PJM -L elapse=2,node=2 -j -s\nsetsid sleep 1000 &\nmpiexec sleep 1000\necho no\n";
    let id = site.submit("long.sh", script, &[]);
    assert!(site.read(format!("long.sh.{id}.out")).contains("the elapse limit is over"));
    let statistics = site.read(format!("long.sh.{id}.stats"));
    assert!(statistics.contains("PJM CODE                  : 11"), "{statistics}");
    assert!(statistics.contains("ELAPSE LIMIT EXCEEDED"), "{statistics}");
    let mark = format!("TOFU_PJM_JOB={}/spool/jobs/{id}\0", site.place.path().display());
    let left = fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&mark)
    });
    assert_eq!(left.count(), 0);
}

#[test]
fn jobs_wait_in_turn_and_are_cancelled() {
    let site = Site::new();
    let script = "#PJM -N first\ntouch runs\nsleep 1000\n";
    fs::write(site.work().join("a.sh"), script).unwrap();
    fs::write(site.work().join("b.sh"), "echo b\n").unwrap();
    site.run(&["pjsub", "a.sh"]).ok();
    site.run(&["pjsub", "b.sh"]).ok();
    wait_for("the first job", || site.work().join("runs").exists());
    let states = || site.run(&["pjstat", "--choose=jid,jnam,st", "--data"]).ok();
    assert_eq!(states(), "JOB_ID,JOB_NAME,ST\n1,first,RUN\n2,b.sh,QUE\n");
    let listed = site.run(&["pjstat"]).ok();
    assert!(listed.starts_with("JOB_ID  JOB_NAME  MD  ST"), "{listed}");
    assert!(site.run(&["pjstat", "--summary"]).ok().contains("RUNING"));
    let said = site.run(&["pjdel", "1"]).ok();
    assert_eq!(said, "[INFO] PJM 0100 pjdel Accepted job 1.\n");
    let waited = site.run(&["pjwait", "1-2"]).ok();
    let rows: Vec<Vec<_>> =
        waited.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((rows[0][1], rows[0][4], rows[1][1]), ("CCL", "1", "EXT"));
    assert_eq!(site.read("b.sh.2.out"), "b\n");
    let said = site.run(&["pjdel", "2"]);
    assert_eq!((said.code, &*said.err), (Some(1), "[ERR.] PJM 0099 pjdel Job 2 has ended.\n"));
}

#[test]
fn bulk_and_step_jobs_have_their_numbers() {
    let site = Site::new();
    let script = "#PJM -j\necho $PJM_BULKNUM $PJM_SUBJOBID\n";
    let id = site.submit("bulk.sh", script, &["--bulk", "--sparam", "3-5"]);
    for number in 3..=5 {
        let name = format!("bulk.sh.{id}[{number}].out");
        assert_eq!(site.read(name), format!("{number} {id}[{number}]\n"));
    }
    fs::write(site.work().join("s0.sh"), "echo $PJM_STEPNUM; exit 3\n").unwrap();
    fs::write(site.work().join("s1.sh"), "echo $PJM_STEPNUM\n").unwrap();
    let said = site.run(&["pjsub", "--step", "--sparam", "sd=ec!=0:all", "s0.sh,s1.sh,s1.sh"]).ok();
    assert_eq!(
        said,
        "[INFO] PJM 0000 pjsub Job 2_0 submitted.\n[INFO] PJM 0000 pjsub Job 2_1 submitted.\n\
         [INFO] PJM 0000 pjsub Job 2_2 submitted.\n"
    );
    site.run(&["pjwait", "2"]).ok();
    assert_eq!(site.read("s0.sh.2_0.out"), "0\n");
    let history = site.run(&["pjstat", "-H", "--choose=jid,st,pc", "--data", "2"]).ok();
    assert_eq!(history, "JOB_ID,ST,PC\n2_0,EXT,0\n2_1,CCL,6\n2_2,CCL,6\n");
    let said = site.run(&["pjsub", "--step", "--sparam", "jid=2", "s1.sh"]);
    assert!(said.err.contains("jid=2: there is no such step job"), "{said:?}");
}

#[test]
fn ranks_go_where_the_job_says() {
    let site = Site::new();
    site.program("where.sh", "#!/bin/sh\necho $TOFU_RANK $TOFU_LOCAL_RANK $TOFU_PPN\n");
    let script = "#PJM -L node=2\n#PJM --mpi proc=4,rank-map-bynode -j\n\
                  mpiexec -of %n.out -oferr /dev/null ./where.sh\nsort job.sh.out\n\
                  printf '(1)\\n(0)\\n(1)\\n' > places\n\
                  mpiexec -vcoordfile <(cat places) -stdout-proc p/%/1000R/o ./where.sh\n\
                  cat p/0/o.2.0 p/0/o.2.1 p/0/o.2.2\n";
    let id = site.submit("job.sh", script, &[]);
    let expected = "0 0 2\n1 0 2\n2 1 2\n3 1 2\n0 0 2\n1 0 2\n2 1 2\n";
    assert_eq!(site.read(format!("job.sh.{id}.out")), expected);
}

#[test]
fn mistakes_are_one_line() {
    let site = Site::new();
    let write = |text: &str| fs::write(site.work().join("job.sh"), text).unwrap();
    for (script, expected) in [
        (
            "#!/bin/sh\n\n#PJM -L node=0\n",
            "[ERR.] PJM 0099 pjsub job.sh line 3: -L node=0: must be",
        ),
        ("#PJM -L node=9999\n", "PJM 0057 pjsub job.sh line 1: -L node=9999: must be up to 4608"),
        ("#PJM --mpi proc=9216\n", "--mpi proc=9216 is greater than the upper limit (4608)"),
        ("#PJM -L nodes=2\n", "no such resource; did you mean node?"),
        ("#PJM --rsc-lst node=2\n", "--rsc-lst: no such option; did you mean --rsc-list?"),
        ("#PJM -L 'node=2\n", "job.sh line 1: a quote is not closed"),
    ] {
        write(script);
        let said = site.run(&["pjsub", "job.sh"]);
        assert_eq!((said.code, said.out.as_str()), (Some(1), ""), "{said:?}");
        assert!(said.err.contains(expected) && said.err.lines().count() == 1, "{said:?}");
    }
    let said = site.run(&["pjsub", "none.sh"]);
    assert!(said.err.contains("PJM 0099 pjsub none.sh: cannot read it"), "{said:?}");
    let said = site.run(&["pjstat", "r1"]);
    assert_eq!((said.code, &*said.err), (Some(1), "[ERR.] PJM 0211 pjstat Invalid jobid: r1.\n"));
    let error = site.run(&["mpiexec", "-vcoordfile", "none", "./a.out"]).error();
    assert!(error.contains("cannot read none"), "{error}");
    assert!(site.run(&["mpiexec", "-n", "2"]).error().contains("no program named"));
    // Nothing of it is in the queue.
    assert_eq!(site.run(&["pjstat"]).ok().lines().count(), 1);
}

#[test]
fn commands_have_their_own_names() {
    let site = Site::new();
    for name in ["pjstat", "mpiexec"] {
        symlink(env!("CARGO_BIN_EXE_tofu"), site.work().join(name)).unwrap();
    }
    let run = |name: &str, args: &[&str]| {
        let mut command = Command::new(site.work().join(name));
        command.args(args).current_dir(site.work()).env("XDG_RUNTIME_DIR", site.place.path());
        command.env("TOFU_SPOOL", site.place.path().join("spool"));
        command.env("TOFU_LIBRARIES", libraries());
        site.place.run_command(command).ok()
    };
    assert!(run("pjstat", &[]).starts_with("JOB_ID"));
    assert_eq!(run("mpiexec", &["-n", "1", "-x", "A=1", "printenv", "A"]), "1\n");
    let commands = "pjsub pjstat pjdel pjwait pjhold pjrls pjalter pjshowrsc pjacl mpiexec";
    for command in commands.split(' ') {
        let help = site.run(&[command, "--help"]).ok();
        assert!(help.contains("Examples:"), "{help}");
    }
}

#[test]
fn held_jobs_wait_and_are_changed() {
    let site = Site::new();
    fs::write(site.work().join("a.sh"), "touch runs\nsleep 1000\n").unwrap();
    fs::write(site.work().join("b.sh"), "echo b\n").unwrap();
    site.run(&["pjsub", "a.sh"]).ok();
    site.run(&["pjsub", "-L", "elapse=5:00", "b.sh"]).ok();
    let said = site.run(&["pjhold", "2"]).ok();
    assert_eq!(said, "[INFO] PJM 0100 pjhold Accepted job 2.\n");
    wait_for("the first job", || site.work().join("runs").exists());
    let said = site.run(&["pjhold", "1"]);
    assert_eq!(
        (said.code, &*said.err),
        (Some(1), "[ERR.] PJM 0099 pjhold Job 1 is in state RUN.\n")
    );
    let said = site.run(&["pjalter", "-L", "elapse=10:00,rscgrp=large,freq=2000", "2"]);
    assert_eq!(said.err, "[INFO] PJM 0099 pjalter Ignored: freq=2000.\n");
    let list = |options: &[&str]| {
        let columns = ["pjstat", "--choose=jid,st,elpl,rscg", "--data"];
        site.run(&[&columns, options].concat()).ok().lines().skip(1).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(list(&[]), "1,RUN,-,- 2,HLD,0000:10:00,large");
    assert_eq!(list(&["--filter", "st=HLD", "--delimiter=;"]), "2;HLD;0000:10:00;large");
    assert_eq!(list(&["--rscgrp", "large"]), "2,HLD,0000:10:00,large");
    assert_eq!(list(&["--sort", "st", "-l"]), "2,HLD,0000:10:00,large 1,RUN,-,-");
    site.run(&["pjdel", "1"]).ok();
    site.run(&["pjwait", "1"]).ok();
    assert_eq!(list(&[]), "2,HLD,0000:10:00,large");
    site.run(&["pjrls", "2"]).ok();
    site.run(&["pjwait", "2"]).ok();
    assert_eq!(site.read("b.sh.2.out"), "b\n");
    assert!(site.run(&["pjstat", "--rsc", "-b"]).ok().contains("[ENABLE,START]"));
    assert!(site.run(&["pjstat", "--limit"]).ok().contains("4608"));
    assert!(site.run(&["pjshowrsc", "--rg", "x"]).ok().contains("rscunit_ft01  x"));
    assert!(site.run(&["pjacl"]).ok().contains("node: 1 to 4608"));
}

#[test]
fn interactive_jobs_run_at_the_terminal() {
    let site = Site::new();
    let script = "#PJM -L node=2\necho $PJM_ENVIRONMENT $PJM_NODE $1\nmpiexec ./a.out x\nexit 7\n";
    fs::write(site.work().join("i.sh"), script).unwrap();
    let said = site.run(&["pjsub", "--interact", "--sparam", "wait-time=60", "i.sh", "arg"]);
    assert_eq!(said.code, Some(7), "{said:?}");
    let mut lines: Vec<_> = said.out.lines().collect();
    assert_eq!(lines.remove(0), "[INFO] PJM 0000 pjsub Job 1 submitted.");
    assert_eq!(lines.remove(0), "INTERACT 2 arg");
    lines.sort_unstable();
    assert_eq!(lines, ["rank 0 of 2 x", "rank 1 of 2 x"]);
    assert!(said.err.contains("PJM 0082 pjsub Interactive job 1 started."), "{said:?}");
    let history = site.run(&["pjstat", "-H", "--choose=jid,st,ec", "--data"]).ok();
    assert_eq!(history, "JOB_ID,ST,EC\n1,EXT,7\n");
    // A shell, which the elapse limit ends.
    let mut command = site.command(&["pjsub", "--interact", "-L", "elapse=1"]);
    command.env("SHELL", "/bin/sh");
    fs::write(site.work().join("input"), "sleep 1000\n").unwrap();
    command.stdin(fs::File::open(site.work().join("input")).unwrap());
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    assert!(site.run(&["pjstat", "-H", "-v", "2"]).ok().contains("ELAPSE LIMIT EXCEEDED"));
    // Another job has the turn.
    fs::write(site.work().join("a.sh"), "sleep 1000\n").unwrap();
    site.run(&["pjsub", "a.sh"]).ok();
    let said = site.run(&["pjsub", "--interact", "--sparam", "wait-time=1"]);
    assert!(said.err.contains("job 4 has waited for 1 s"), "{said:?}");
}

#[test]
fn several_programs_are_one_job() {
    let site = Site::new();
    site.program("b.out", &PROGRAM.replace("rank", "other"));
    let said =
        site.run(&["mpiexec", "-n", "1", "./a.out", "x", ":", "-n", "2", "./b.out", "y"]).ok();
    let mut lines: Vec<_> = said.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["other 1 of 3 y", "other 2 of 3 y", "rank 0 of 3 x"]);
    fs::write(site.work().join("app"), "# two\n-n 2 ./a.out 'a b'\n-np 1 ./b.out\n").unwrap();
    let said = site.run(&["mpiexec", "--app", "app"]).ok();
    let mut lines: Vec<_> = said.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["other 2 of 3", "rank 0 of 3 a b", "rank 1 of 3 a b"]);
}

/// Scripts written like those that are public, and what one of their outputs has.
#[test]
fn public_forms_of_scripts_run() {
    let cases: Vec<_> = include_str!("jobs/forms.txt").split("\n=== ").skip(1).collect();
    assert!(cases.len() >= 246, "{}", cases.len());
    // A spool runs its jobs one after another.
    std::thread::scope(|scope| {
        for cases in cases.chunks(cases.len().div_ceil(3)) {
            scope.spawn(|| run_forms(cases));
        }
    });
}

fn run_forms(cases: &[&str]) {
    let site = Site::new();
    for case in cases {
        let (head, script) = case.split_once('\n').unwrap();
        let mut head = head.split(" | ");
        let (name, expected) = (head.next().unwrap(), head.next().unwrap());
        let shell = script.strip_prefix("#!").and_then(|line| line.split_whitespace().next());
        let mut tools = head.next().unwrap_or_default().split(' ').filter(|tool| !tool.is_empty());
        let lacks = tools.find(|tool| !have(tool));
        if let Some(lacks) = lacks.or(shell.filter(|shell| !Path::new(shell).exists())) {
            eprintln!("SKIP public_forms_of_scripts_run: of {name}: there is no {lacks}");
            continue;
        }
        let file = format!("{name}.sh");
        fs::write(site.work().join(&file), script).unwrap();
        let said = site.run(&["pjsub", "-z", "jid", "-L", "elapse=120", "-o", name, "-j", &file]);
        assert_eq!(said.code, Some(0), "{name}: {said:?}");
        site.run(&["pjwait", said.out.trim()]).ok();
        let out = site.read(name);
        assert!(out.contains(expected), "{name}: {expected:?} is not in\n{out}");
    }
}
