//! The process that runs the jobs of a spool, one after another.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, WaitStatus};

use crate::environment::{BEFORE, COMPILERS, FUNCTION, MARK, SPOOL};
use crate::key::{Key, Part};
use crate::record::{Ending, Record, State, code, now};
use crate::request::Model;
use crate::spool::{Locked, Spool, bash};
use crate::statistics;
use crate::steps::Without;
use crate::{processes, record};

/// The poll interval for a running job.
const PAUSE: Duration = Duration::from_millis(20);
/// The file with the names of a job's nodes, beside its script.
const NODES: &str = ".nodes";
/// The file that bash reads before the script, beside it.
const PLACED: &str = ".placed";
/// The longest first line of a script that is read, in bytes.
const MOST_FIRST: usize = 1 << 10;

/// Runs the jobs of a spool until there is none left.
///
/// # Errors
///
/// If the spool cannot be read or written.
pub fn run(folder: &Path) -> anyhow::Result<()> {
    let spool = Spool::at(folder)?;
    let Some(lock) = spool.become_runner()? else { return Ok(()) };
    // Signals of the terminal in which a job was submitted are not for it, and processes whose
    // parents have ended become our children.
    rustix::process::setsid()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    {
        let locked = spool.lock()?;
        let mut records = locked.records()?;
        for key in locked.mourn(&mut records)? {
            processes::end(&mark(&spool, key), Signal::TERM, &mut || {});
        }
        locked.forget(&records);
    }
    loop {
        let locked = spool.lock()?;
        let mut records = locked.records()?;
        drop_dependents(&locked, &mut records)?;
        let Some(record) = next(&records) else {
            // A later pjsub finds no process that runs jobs, and starts one.
            drop(lock);
            return Ok(());
        };
        let mut record = record.clone();
        record.state = State::Run;
        record.started = Some(now());
        locked.write(&record)?;
        drop(locked);
        run_job(&spool, &mut record);
        let locked = spool.lock()?;
        locked.write(&record)?;
        // Nothing is left to cancel.
        let _ = fs::remove_file(spool.cancel_mark(record.key));
        let written = statistics::write(&record);
        if let Err(error) = written {
            eprintln!("job {}: {error:#}", record.key);
        }
    }
}

/// Returns the next job to run.
fn next(records: &[Record]) -> Option<&Record> {
    let waiting = || records.iter().filter(|record| record.state == State::Que);
    let first = waiting().next()?;
    match first.key.part {
        // Steps run in the order of their numbers.
        Part::Step(_) => {
            waiting().filter(|record| record.key.id == first.key.id).min_by_key(|record| record.key)
        }
        _ => Some(first),
    }
}

/// Cancels steps whose conditions on earlier steps hold.
fn drop_dependents(locked: &Locked<'_>, records: &mut [Record]) -> anyhow::Result<()> {
    loop {
        let Some((key, without)) = records.iter().find_map(|record| dropped(record, records))
        else {
            return Ok(());
        };
        for record in records.iter_mut().filter(|record| {
            let later = record.key.id == key.id && record.key > key;
            let also = match without {
                Without::One => false,
                Without::After => later && depends(record, key),
                Without::All => later,
            };
            record.state == State::Que && (record.key == key || also)
        }) {
            record.state = State::Ccl;
            record.ended = Some(now());
            record.ending = Ending { manager: code::DEPENDENCY, ..Ending::default() };
            locked.write(record)?;
        }
    }
}

fn depends(record: &Record, on: Key) -> bool {
    let Model::Step { dependencies, .. } = &record.request.model else { return false };
    let Part::Step(number) = on.part else { return false };
    dependencies
        .iter()
        .any(|dependency| dependency.steps.is_empty() || dependency.steps.contains(&number))
}

/// Returns whether a waiting step is not to be run.
fn dropped(record: &Record, records: &[Record]) -> Option<(Key, Without)> {
    let Model::Step { dependencies, .. } = &record.request.model else { return None };
    if record.state != State::Que {
        return None;
    }
    let before = records.iter().filter(|other| {
        other.key.id == record.key.id && other.key < record.key && other.state.is_over()
    });
    let before: Vec<_> = before.collect();
    let last = before.iter().max_by_key(|other| other.key);
    let holds = dependencies.iter().find(|dependency| {
        let judged = before.iter().filter(|other| match other.key.part {
            Part::Step(number) if !dependency.steps.is_empty() => {
                dependency.steps.contains(&number)
            }
            _ => last.is_some_and(|last| last.key == other.key),
        });
        judged.into_iter().any(|other| dependency.holds(other.ending.exit, other.ending.manager))
    });
    holds.map(|dependency| (record.key, dependency.without))
}

fn mark(spool: &Spool, key: Key) -> String {
    format!("{}/jobs/{key}", spool.folder().display())
}

fn run_job(spool: &Spool, record: &mut Record) {
    let before = processes::processor_time();
    let mark = mark(spool, record.key);
    let (state, ending) = match start(spool, record) {
        Ok(pid) => watch(spool, record, pid, &mark),
        Err(Failure { manager, why }) => {
            let ending = Ending { manager, detail: Some(why), ..Ending::default() };
            (State::Ext, ending)
        }
    };
    let after = processes::processor_time();
    record.processor = Some((after.0 - before.0, after.1 - before.1));
    record.state = state;
    record.ending = ending;
    record.ended = Some(now());
}

/// The reason why a job has not begun.
struct Failure {
    manager: i32,
    why: String,
}

fn start(spool: &Spool, record: &Record) -> Result<Pid, Failure> {
    let fails =
        |manager| move |error: anyhow::Error| Failure { manager, why: format!("{error:#}") };
    let files = record.files();
    let folder = Path::new(&record.folder);
    let open = |name: &str| -> anyhow::Result<File> {
        let path = folder.join(name);
        let file = File::create(&path);
        file.with_context(|| format!("cannot write {}", path.display()))
    };
    let out = open(&files.out).map_err(fails(code::FILES))?;
    let err = match &files.err {
        Some(name) if *name != files.out => open(name),
        _ => out.try_clone().map_err(Into::into),
    };
    let err = err.map_err(fails(code::FILES))?;
    let to_err = err.try_clone().map_err(|error| fails(code::FILES)(error.into()))?;
    let script = spool.script(record.key, &record.script);
    let mut command = interpreter(&script).map_err(fails(code::SHELL))?;
    command.arg(&script).args(&record.arguments);
    equip(&mut command, spool, record).map_err(fails(code::FILES))?;
    command.stdin(Stdio::null()).stdout(out).stderr(err);
    match command.spawn() {
        Ok(child) => Ok(Pid::from_child(&child)),
        Err(error) => {
            let why = format!("cannot run {}: {error}", command.get_program().display());
            // Its reader looks there first.
            let _ = io::Write::write_all(&mut &to_err, format!("{why}\n").as_bytes());
            Err(Failure { manager: code::SHELL, why })
        }
    }
}

/// Gives a command the folder and the variables of a job.
///
/// # Errors
///
/// If the spool cannot be written.
pub(crate) fn equip(command: &mut Command, spool: &Spool, record: &Record) -> anyhow::Result<()> {
    command.current_dir(&record.folder).env_clear();
    // The spool has our commands in bin.
    command.env(COMPILERS, spool.folder());
    command.envs(record.environment.iter().map(|(name, value)| (name, value)));
    command.envs(record.variables());
    // Variables set by -x take precedence.
    command.envs(record.request.variables.iter().map(|(name, value)| (name, value)));
    command.env(MARK, mark(spool, record.key)).env(SPOOL, spool.folder());
    let nodes = spool.script(record.key, NODES);
    let names = (0..record.request.nodes.count()).map(|node| format!("node{node}\n"));
    fs::write(&nodes, names.collect::<String>())
        .with_context(|| format!("cannot write {}", nodes.display()))?;
    command.env("PJM_O_NODEINF", &nodes);
    let path = record.environment.iter().find(|(name, _)| name == "PATH");
    let path = path.map_or("/usr/bin:/bin", |(_, path)| path);
    // The substitutes for tools of the site must not hide those of this host.
    let [own, site] = spool.commands()?;
    command.env("PATH", format!("{}:{path}:{}", own.display(), site.display()));
    command.envs(functions(&own, &site, path));
    let script = fs::read(spool.script(record.key, &record.script)).unwrap_or_default();
    let placed = placed(&String::from_utf8_lossy(&script), &[own, site]);
    let given = record.environment.iter().chain(&record.request.variables);
    if !placed.is_empty() && !given.clone().any(|(name, _)| name == BEFORE) {
        let file = spool.script(record.key, PLACED);
        fs::write(&file, placed).with_context(|| format!("cannot write {}", file.display()))?;
        command.env(BEFORE, file);
    }
    // The name that Intel MPI has for it.
    command.env("I_MPI_HYDRA_HOST_FILE", nodes);
    Ok(())
}

/// Returns functions of bash that find a job's commands when a script has replaced its `PATH`, as
/// login shells do, and scripts that list all folders of a real system. Commands in folders that
/// the script has added take precedence. `own` has the job's commands, `site` the substitutes for
/// tools of the site, and `path` is the `PATH` of the job's user, whose `mpiexec` must not be used
/// for jobs.
fn functions(own: &Path, site: &Path, path: &str) -> Vec<(String, String)> {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
    let [own, site] = [own, site].map(|folder| quoted(&folder.display().to_string()));
    let path = quoted(&format!(":{path}:"));
    let launcher = |name: &str| {
        format!(
            "() {{ local own={own} found; found=$(type -P {name}) || found=\n\
             case {path} in *\":${{found%/*}}:\"*) found=; esac\n\
             \"${{found:-$own/{name}}}\" \"$@\"; }}"
        )
    };
    let others = format!(
        "() {{ local folder\nfor folder in {own} {site}; do\n\
         if [ -x \"$folder/$1\" ]; then \"$folder/$1\" \"${{@:2}}\"; return; fi\ndone\n\
         echo \"$0: line ${{BASH_LINENO[0]}}: $1: command not found\" >&2\nreturn 127; }}"
    );
    let function = |name: &str, text| (format!("{FUNCTION}{name}%%"), text);
    let mut functions: Vec<_> =
        ["mpiexec", "mpirun"].map(|name| function(name, launcher(name))).into();
    // Bash calls it for a command that it does not find.
    functions.push(function("command_not_found_handle", others));
    functions
}

/// Returns functions of bash for a job's commands, in these folders, that a script calls by places
/// that this host does not have, such as `/usr/bin/llio_transfer`.
fn placed(script: &str, folders: &[PathBuf; 2]) -> String {
    let words =
        script.split(|letter: char| letter.is_whitespace() || "\"'`=;|&()<>".contains(letter));
    let usual = |letter: char| letter.is_ascii_alphanumeric() || "/._+-".contains(letter);
    let places: BTreeSet<_> = words.filter(|word| word.starts_with('/')).collect();
    let missing = places.into_iter().filter(|place| {
        let name = place.rsplit('/').next().unwrap_or_default();
        let is_ours = !name.is_empty() && folders.iter().any(|folder| folder.join(name).exists());
        is_ours && place.chars().all(usual) && !Path::new(place).exists()
    });
    missing.map(|place| format!("function {place} {{ \"${{FUNCNAME##*/}}\" \"$@\"; }}\n")).collect()
}

/// Returns the command that runs a script. `/bin/sh` on Fugaku is bash.
pub(crate) fn interpreter(script: &Path) -> anyhow::Result<Command> {
    let text = fs::read(script).with_context(|| format!("cannot read {}", script.display()))?;
    let first = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let first = String::from_utf8_lossy(&first[..first.len().min(MOST_FIRST)]).into_owned();
    let words = first.strip_prefix("#!").map(|rest| rest.split_whitespace().collect::<Vec<_>>());
    Ok(match (words.as_deref(), bash()) {
        (None | Some([]), Some(bash)) => Command::new(bash),
        (None | Some([]), None) => Command::new("/bin/sh"),
        // Not with --posix: then a file of the site that . cannot find would end the script.
        (Some(["/bin/sh" | "/usr/bin/sh", options @ ..]), Some(bash)) => {
            let mut command = Command::new(bash);
            command.args(options);
            command
        }
        (Some([program, options @ ..]), _) => {
            let there = Path::new(program);
            // Shells that have other places here.
            let elsewhere = ["/bin", "/usr/bin", "/usr/local/bin"].into_iter();
            let name = there.file_name().unwrap_or_default();
            let elsewhere = elsewhere.map(|folder| Path::new(folder).join(name));
            let found =
                if there.exists() { None } else { elsewhere.into_iter().find(|p| p.exists()) };
            let mut command = Command::new(found.unwrap_or_else(|| PathBuf::from(program)));
            command.args(options);
            command
        }
    })
}

/// Waits for the end of a job's script, and then of all of its processes.
fn watch(spool: &Spool, record: &Record, script: Pid, mark: &str) -> (State, Ending) {
    let limit = record.request.elapse.map(Duration::from_secs);
    let until = limit.and_then(|limit| Instant::now().checked_add(limit));
    let cancel = spool.cancel_mark(record.key);
    let mut status: Option<WaitStatus> = None;
    let (state, manager, signal) = loop {
        if let Some(ended) = processes::reap(script) {
            status = Some(ended);
            break (State::Ext, code::COMPLETED, Signal::TERM);
        }
        if cancel.exists() {
            break (State::Ccl, code::CANCELLED, Signal::TERM);
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            break (State::Ext, code::ELAPSED, Signal::XCPU);
        }
        sleep(PAUSE);
    };
    processes::end(mark, signal, &mut || {
        if let Some(ended) = processes::reap(script) {
            status = Some(ended);
        }
    });
    let signal = status.and_then(WaitStatus::terminating_signal).unwrap_or(0);
    let exit = status.and_then(WaitStatus::exit_status).unwrap_or(128 + signal);
    if manager == code::ELAPSED {
        complain(record, "the elapse limit is over");
    }
    (state, Ending { exit, signal, manager, detail: None })
}

/// Writes a line to a job's standard error.
fn complain(record: &Record, text: &str) {
    let files = record.files();
    let name = files.err.unwrap_or(files.out);
    let file = File::options().append(true).open(Path::new(&record.folder).join(name));
    let seconds = record.request.elapse.unwrap_or_default();
    let line = format!("[ERR.] PJM 0099 job {}: {text} ({})\n", record.key, record::span(seconds));
    // The job has ended, and its statistics say so, too.
    let _ = file.and_then(|mut file| io::Write::write_all(&mut file, line.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;
    use crate::request::Request;
    use crate::steps::Dependency;

    fn step(number: u32, state: State, exit: i32, condition: Option<&str>) -> Record {
        let read = |text| Dependency::read(text).unwrap();
        let dependencies = condition.and_then(read).into_iter().collect();
        let model = Model::Step { job: None, number: None, dependencies, named: None };
        let mut record = record(Part::Step(number), Request { model, ..Request::default() });
        record.state = state;
        record.ending.exit = exit;
        record
    }

    #[test]
    fn steps_run_in_order_unless_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::at(folder.path()).unwrap();
        let locked = spool.lock().unwrap();
        let states = |mut records: Vec<Record>| {
            drop_dependents(&locked, &mut records).unwrap();
            records.iter().map(|record| record.state.text()).collect::<Vec<_>>()
        };
        let (over, waits) = (State::Ext, State::Que);
        let condition = |text| {
            vec![step(0, over, 3, None), step(1, waits, 0, Some(text)), step(2, waits, 0, None)]
        };
        assert_eq!(states(condition("ec!=0")), ["EXT", "CCL", "QUE"]);
        assert_eq!(states(condition("ec!=0:all")), ["EXT", "CCL", "CCL"]);
        assert_eq!(states(condition("ec==0")), ["EXT", "QUE", "QUE"]);
        assert_eq!(states(condition("ec==3:one:1")), ["EXT", "QUE", "QUE"]);
        let mut chain = condition("ec!=0:after:0");
        chain[2] = step(2, waits, 0, Some("ec!=0:one:1"));
        assert_eq!(states(chain), ["EXT", "CCL", "CCL"]);
        // The first in turn waits for an earlier step.
        let mut late = vec![step(1, waits, 0, None), step(0, waits, 0, None)];
        late[1].turn = 9;
        assert_eq!(next(&late).unwrap().key.part, Part::Step(0));
        assert!(next(&[step(0, over, 0, None)]).is_none());
    }

    #[test]
    fn tools_in_places_of_the_site_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let folders = ["bin", "site"].map(|name| folder.path().join(name));
        for (folder, name) in folders.iter().zip(["mpiexec", "llio_transfer"]) {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join(name), "").unwrap();
        }
        let script = "LLIO=/usr/bin/llio_transfer; $LLIO a\n/opt/no/bin/mpiexec -n 1 ./a || exit\n\
                      ${HOME}/bin/mpiexec /bin/true /opt/no/other \"/opt/no;/mpiexec\" /usr/bin/\n";
        let expected = ["/mpiexec", "/opt/no/bin/mpiexec", "/usr/bin/llio_transfer"];
        let found = placed(script, &folders);
        let names: Vec<_> = found.lines().map(|line| line.split(' ').nth(1).unwrap()).collect();
        assert_eq!(names, expected);
        assert_eq!(placed("mpiexec ./a\n", &folders), "");
    }

    #[test]
    fn scripts_have_their_shells() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("job");
        let shell = |text: &str| {
            fs::write(&script, text).unwrap();
            let command = interpreter(&script).unwrap();
            let args = command.get_args().map(|arg| arg.to_string_lossy().into_owned());
            let words: Vec<_> = args.collect();
            (command.get_program().to_string_lossy().into_owned(), words)
        };
        if !Path::new("/bin/bash").exists() {
            return;
        }
        assert_eq!(shell("echo"), ("/bin/bash".into(), vec![]));
        assert_eq!(shell("#!/bin/sh -x\n"), ("/bin/bash".into(), vec!["-x".into()]));
        assert_eq!(shell("#!/bin/bash -e"), ("/bin/bash".into(), vec!["-e".into()]));
        assert_eq!(shell("#! /opt/none/env csh\n"), ("/bin/env".into(), vec!["csh".into()]));
        assert_eq!(shell("#!/opt/no-such-shell"), ("/opt/no-such-shell".into(), vec![]));
    }
}
