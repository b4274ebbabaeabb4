//! `pjsub`, `pjdel` and `pjwait`.

use std::env;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Context;
use tofu_ui::exit;

use crate::environment::of_submission;
use crate::interactive;
use crate::key::{Key, Part, Selection};
use crate::options::{self, Source};
use crate::record::{Ending, Record, State, now};
use crate::request::{self, Model, Submission};
use crate::spool::{Locked, Spool};

/// The longest script, in bytes.
const MOST_SCRIPT: u64 = 16 << 20;
/// The name of a job whose script is standard input.
const STDIN: &str = "STDIN";
/// The time between two looks of `pjwait`.
const PAUSE: Duration = Duration::from_millis(50);

/// A message with the number that public documents give it. Those without one have 0099 here.
pub(crate) fn refuse(command: &str, number: u32, why: &dyn fmt::Display) -> u8 {
    let line = tofu_ui::printable(&format!("[ERR.] PJM {number:04} {command} {why}"));
    let _ = writeln!(io::stderr(), "{line}");
    exit::FAILED
}

/// Submits a job. Returns the exit code.
///
/// # Errors
///
/// If output cannot be written.
pub fn pjsub(words: &[String]) -> anyhow::Result<u8> {
    match submit(words) {
        Ok(Submitted { said, ignored, attended }) => {
            if !ignored.is_empty() {
                let ignored = ignored.join("; ");
                let _ = writeln!(io::stderr(), "[INFO] PJM 0099 pjsub Ignored: {ignored}.");
            }
            writeln!(io::stdout(), "{said}")?;
            let Some(Attended { spool, key, script, wait }) = attended else { return Ok(0) };
            match interactive::attend(&spool, key, &script, wait) {
                Ok(code) => Ok(code),
                Err(error) => Ok(refuse("pjsub", 99, &format!("{error:#}"))),
            }
        }
        Err(error) => {
            let text = format!("{error:#}");
            let number = if text.contains("upper limit") { 57 } else { 99 };
            Ok(refuse("pjsub", number, &text))
        }
    }
}

/// Jobs that are in the queue now.
struct Submitted {
    /// A line for each.
    said: String,
    ignored: Vec<String>,
    attended: Option<Attended>,
}

/// An interactive job, which this command attends.
struct Attended {
    spool: Spool,
    key: Key,
    /// The script with its arguments; none for a shell.
    script: Vec<String>,
    wait: Option<u64>,
}

/// A script with its name.
struct Script {
    name: String,
    text: String,
}

fn submit(words: &[String]) -> anyhow::Result<Submitted> {
    let (given, rest) = options::read(words, &Source::CommandLine)?;
    let is_step = given.iter().any(|given| given.option.long == "step");
    let delimiter = given.iter().rev().find(|given| given.option.long == "script-delimiter");
    let delimiter = delimiter.and_then(|given| given.value.chars().next()).unwrap_or(',');
    let (names, arguments) = match rest {
        [] => (vec![None], &[][..]),
        [name, arguments @ ..] if is_step => (name.split(delimiter).map(Some).collect(), arguments),
        [name, arguments @ ..] => (vec![Some(name.as_str())], arguments),
    };
    let is_shell = rest.is_empty()
        && given.iter().any(|given| ["interact", "interactive"].contains(&given.option.long));
    let mut submissions = Vec::new();
    for name in names {
        let script = match is_shell {
            true => Script { name: STDIN.to_owned(), text: String::new() },
            false => read_script(name)?,
        };
        // Options are read once for each script: steps have their own lines.
        let (given, _) = options::read(words, &Source::CommandLine)?;
        let mut submission = request::read(&script.name, &script.text, given)?;
        let machine = || {
            let named = env::var("TOFU_PJSUB_MACHINE").ok().filter(|name| !name.is_empty());
            let own = words.iter().any(|word| word == "--local");
            named.filter(|_| !own && submission.request.time.is_none())
        };
        let named = submission.request.machine.clone().or_else(machine);
        submission.request.machine = named;
        if submission.request.interactive {
            return attended(script, submission, rest);
        }
        submissions.push((script, submission));
    }
    let spool = Spool::open()?;
    let (mut said, mut ignored) = (Vec::new(), Vec::new());
    {
        // All steps are there before the first one begins.
        let locked = spool.lock()?;
        let mut job = None;
        for (script, mut submission) in submissions {
            if let Model::Step { job: of, .. } = &mut submission.request.model {
                *of = of.or(job);
            }
            let key = enqueue(&locked, &script, &submission, arguments)?;
            job = Some(key.id);
            ignored.append(&mut submission.ignored);
            said.push(accepted(&submission, key));
        }
    }
    spool.start_runner()?;
    Ok(Submitted { said: said.join("\n"), ignored, attended: None })
}

/// Puts an interactive job into the queue: a script that occupies its turn.
fn attended(
    script: Script,
    mut submission: Submission,
    words: &[String],
) -> anyhow::Result<Submitted> {
    let request = &mut submission.request;
    request.name.get_or_insert_with(|| script.name.clone());
    // The shell writes to the terminal.
    (request.out, request.join) = (Some("/dev/null".to_owned()), true);
    let spool = Spool::open()?;
    let turn = Script { text: interactive::TURN.to_owned(), ..script };
    let process = std::process::id().to_string();
    let key = enqueue(&spool.lock()?, &turn, &submission, &[process])?;
    spool.start_runner()?;
    let said = accepted(&submission, key);
    let attended = Attended { spool, key, script: words.to_vec(), wait: submission.wait };
    Ok(Submitted { said, ignored: submission.ignored, attended: Some(attended) })
}

/// Returns the line about a job that is in the queue now.
fn accepted(submission: &Submission, key: Key) -> String {
    let shown = match key.part {
        Part::Bulk(_) => key.id.to_string(),
        _ => key.to_string(),
    };
    match submission.number_only {
        true => key.id.to_string(),
        false => format!("[INFO] PJM 0000 pjsub Job {shown} submitted."),
    }
}

fn read_script(name: Option<&str>) -> anyhow::Result<Script> {
    let path = Path::new(name.unwrap_or("-"));
    let read = tofu_input::read_text_or_stdin(path, MOST_SCRIPT);
    let text = read.with_context(|| match name {
        Some(name) => format!("{name}: cannot read it"),
        None => "cannot read a script from standard input".to_owned(),
    })?;
    let name = match name {
        None => STDIN.to_owned(),
        Some(name) => {
            let name = Path::new(name).file_name().unwrap_or_default();
            name.to_str().context("the script's name is not text")?.to_owned()
        }
    };
    Ok(Script { name, text })
}

/// Puts a job into the queue. Returns its key, or that of its first part.
fn enqueue(
    locked: &Locked<'_>,
    script: &Script,
    submission: &Submission,
    arguments: &[String],
) -> anyhow::Result<Key> {
    let request = &submission.request;
    let folder = env::current_dir().context("cannot find the current folder")?;
    let folder = folder.into_os_string().into_string();
    let folder = folder.map_err(|_| anyhow::anyhow!("the current folder's name is not text"))?;
    let records = locked.records()?;
    let named = match &request.model {
        Model::Step { named, .. } => named.as_deref(),
        _ => None,
    };
    let (id, turn, parts) = match request.model {
        Model::Normal => {
            let (id, turn) = locked.next(&records)?;
            (id, turn, vec![Part::Whole])
        }
        Model::Bulk { first, last } => {
            let (id, turn) = locked.next(&records)?;
            (id, turn, (first..=last).map(Part::Bulk).collect())
        }
        Model::Step { job, number, .. } => {
            let job = job.or_else(|| open_steps(&records, named?));
            let (id, turn, part) = step(locked, &records, job, number)?;
            (id, turn, vec![part])
        }
    };
    let name = request.name.as_deref().or(named).unwrap_or(&script.name).to_owned();
    let user = user_name();
    for part in &parts {
        let record = Record {
            key: Key { id, part: *part },
            turn,
            name: name.clone(),
            user: user.clone(),
            request: request.clone(),
            script: script.name.clone(),
            arguments: arguments.to_vec(),
            folder: folder.clone(),
            host: host_name(),
            environment: of_submission(request.all_variables, &[]),
            state: State::Que,
            accepted: now(),
            started: None,
            ended: None,
            processor: None,
            ending: Ending::default(),
        };
        locked.keep_script(record.key, &record.script, &script.text)?;
        locked.write(&record)?;
    }
    Ok(Key { id, part: parts.first().copied().unwrap_or(Part::Whole) })
}

fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Returns the newest job of steps of this name that has not ended.
fn open_steps(records: &[Record], name: &str) -> Option<u32> {
    let is_open = |record: &&Record| {
        let Model::Step { named: Some(own), .. } = &record.request.model else { return false };
        own == name && !record.state.is_over()
    };
    records.iter().filter(is_open).map(|record| record.key.id).max()
}

/// Returns the place of a step: its job, its turn and its number.
fn step(
    locked: &Locked<'_>,
    records: &[Record],
    job: Option<u32>,
    number: Option<u32>,
) -> anyhow::Result<(u32, u64, Part)> {
    let Some(id) = job else {
        let (id, turn) = locked.next(records)?;
        return Ok((id, turn, Part::Step(number.unwrap_or(0))));
    };
    let steps: Vec<_> = records.iter().filter(|record| record.key.id == id).collect();
    let is_step = |record: &&&Record| matches!(record.key.part, Part::Step(_));
    if !steps.iter().any(|record| is_step(&record) && !record.state.is_over()) {
        anyhow::bail!("--sparam jid={id}: there is no such step job that has not ended");
    }
    let numbers = steps.iter().filter_map(|record| match record.key.part {
        Part::Step(number) => Some(number),
        _ => None,
    });
    let last = numbers.clone().max().unwrap_or(0);
    let number = number.unwrap_or(last + 1);
    if numbers.clone().any(|known| known == number) {
        anyhow::bail!("--sparam sn={number}: job {id} has this step already");
    }
    let turn = records.iter().map(|record| record.turn).max().unwrap_or(0) + 1;
    Ok((id, turn, Part::Step(number)))
}

/// Reads the names of jobs.
pub(crate) fn selections(command: &str, words: &[String]) -> Result<Vec<Selection>, u8> {
    let read = |word: &String| {
        word.parse().map_err(|()| {
            // Scripts search for this text.
            refuse(
                command,
                if command == "pjstat" { 211 } else { 99 },
                &format!("Invalid jobid: {word}."),
            )
        })
    };
    words.iter().map(read).collect()
}

/// The same of a command that needs at least one.
pub(crate) fn named(command: &str, words: &[String]) -> Result<Vec<Selection>, u8> {
    if words.is_empty() {
        return Err(refuse(command, 99, &"name jobs, such as 12, 12_1, 12[3-5] or 12-14"));
    }
    selections(command, words)
}

/// Does something to the jobs that are named and in one of the states of `from`, and prints for
/// each name if there were any. Returns the exit code.
pub(crate) fn accept(
    command: &str,
    locked: &Locked<'_>,
    (selections, words): (&[Selection], &[String]),
    from: &[State],
    each: &dyn Fn(&Record) -> anyhow::Result<()>,
) -> anyhow::Result<u8> {
    let records = locked.records()?;
    let mut result = 0;
    for (selection, word) in selections.iter().zip(words) {
        let chosen = || records.iter().filter(|record| selection.has(record.key));
        let mut done = false;
        for record in chosen().filter(|record| from.contains(&record.state)) {
            each(record)?;
            done = true;
        }
        if done {
            writeln!(io::stdout(), "[INFO] PJM 0100 {command} Accepted job {word}.")?;
            continue;
        }
        let why = match chosen().map(|record| record.state).next() {
            None => format!("Job {word} does not exist."),
            Some(state) if state.is_over() => format!("Job {word} has ended."),
            Some(state) => format!("Job {word} is in state {}.", state.text()),
        };
        result = refuse(command, 99, &why);
    }
    Ok(result)
}

/// Splits options from jobs. Returns the options with their values; those of `valued` have one.
pub(crate) fn split<'a>(
    words: &'a [String],
    valued: &[&str],
) -> (Vec<(&'a str, Option<&'a str>)>, Vec<String>) {
    let (mut options, mut jobs) = (Vec::new(), Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if !word.starts_with('-') {
            jobs.push(word.clone());
            continue;
        }
        match word.split_once('=') {
            Some((name, value)) => options.push((name, Some(value))),
            None if valued.contains(&word.as_str()) => {
                options.push((word, words.next().map(String::as_str)));
            }
            None => options.push((word, None)),
        }
    }
    (options, jobs)
}

/// Cancels jobs. Returns the exit code.
///
/// # Errors
///
/// If the spool cannot be read or written.
pub fn pjdel(words: &[String]) -> anyhow::Result<u8> {
    let (options, words) = split(words, &["-R", "--reason"]);
    for (name, _) in options {
        if !["-f", "--enforce", "-R", "--reason", "-z", "--no-history"].contains(&name) {
            return Ok(refuse("pjdel", 99, &format!("{name}: there are --enforce and --reason")));
        }
    }
    let selections = match named("pjdel", &words) {
        Ok(selections) => selections,
        Err(code) => return Ok(code),
    };
    let spool = Spool::open()?;
    let locked = spool.lock()?;
    let from = [State::Que, State::Hld, State::Run];
    accept("pjdel", &locked, (&selections, &words), &from, &|record| match record.state {
        State::Run => Ok(fs::write(spool.cancel_mark(record.key), "")?),
        _ => locked.cancel(record),
    })
}

/// Waits for the end of jobs. Returns the exit code.
///
/// # Errors
///
/// If the spool cannot be read.
pub fn pjwait(words: &[String]) -> anyhow::Result<u8> {
    let (options, words) = split(words, &["-w"]);
    let mut any = false;
    for (name, value) in options {
        match (name, value) {
            ("-w", Some("or")) => any = true,
            ("-w", Some("and")) => any = false,
            ("-z" | "-s", _) => {}
            _ => return Ok(refuse("pjwait", 99, &format!("{name}: there are -w and and -w or"))),
        }
    }
    let selections = match named("pjwait", &words) {
        Ok(selections) => selections,
        Err(code) => return Ok(code),
    };
    let spool = Spool::open()?;
    loop {
        revive(&spool)?;
        let records = spool.lock()?.records()?;
        let of = |selection: &Selection| -> Vec<&Record> {
            records.iter().filter(|record| selection.has(record.key)).collect()
        };
        if let Some(at) = selections.iter().position(|selection| of(selection).is_empty()) {
            return Ok(refuse("pjwait", 99, &format!("Job {} does not exist.", words[at])));
        }
        let is_over = |selection: &Selection| of(selection).iter().all(|r| r.state.is_over());
        let done = match any {
            true => selections.iter().any(is_over),
            false => selections.iter().all(is_over),
        };
        if done {
            let over = records.iter().filter(|record| {
                record.state.is_over() && selections.iter().any(|one| one.has(record.key))
            });
            let row = |record: &Record| {
                let Ending { exit, signal, manager, .. } = &record.ending;
                let state = record.state.text().to_owned();
                vec![
                    record.key.to_string(),
                    state,
                    exit.to_string(),
                    signal.to_string(),
                    manager.to_string(),
                ]
            };
            let rows: Vec<_> = over.map(row).collect();
            let head = ["JOB_ID", "ST", "EC", "SN", "PC"];
            write!(io::stdout(), "{}", tofu_ui::table(&head, &[2, 3, 4], rows))?;
            return Ok(0);
        }
        sleep(PAUSE);
    }
}

/// Starts the process that runs jobs if it is gone though it has work.
pub(crate) fn revive(spool: &Spool) -> anyhow::Result<()> {
    let locked = spool.lock()?;
    let has_work = locked.records()?.iter().any(|record| !record.state.is_over());
    let is_free = has_work && spool.become_runner()?.is_some();
    drop(locked);
    if is_free { spool.start_runner() } else { Ok(()) }
}

/// The name of the user who submits a job, also where a service or a container has set no variable.
fn user_name() -> String {
    let set = ["USER", "LOGNAME"].into_iter().find_map(|name| env::var(name).ok());
    let user = rustix::process::getuid().as_raw();
    let known = || name_of(user, &std::fs::read_to_string("/etc/passwd").unwrap_or_default());
    set.filter(|name| !name.is_empty()).or_else(known).unwrap_or_else(|| user.to_string())
}

/// The name of a user in text like that of /etc/passwd.
fn name_of(user: u32, text: &str) -> Option<String> {
    let mut lines = text.lines().map(|line| line.splitn(4, ':'));
    lines.find_map(|mut fields| {
        let (name, id) = (fields.next()?, fields.nth(1)?);
        (id.parse() == Ok(user) && !name.is_empty()).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_without_variables_has_name_of_passwd() {
        let text = "root:x:0:0::/:/bin/sh\nbroken\n+:::\nu12:x:1012:100:A B:/var/u12:/bin/sh\n";
        assert_eq!(name_of(1012, text).as_deref(), Some("u12"));
        assert_eq!(name_of(0, text).as_deref(), Some("root"));
        assert_eq!(name_of(100, text), None);
    }
}
