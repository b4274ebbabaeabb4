//! `pjsub`, `pjstat`, `pjdel` and `pjwait`.

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
use crate::key::{Key, Part, Selection};
use crate::options::{self, Source};
use crate::record::{Ending, Record, State, code, date, now, span};
use crate::request::{self, Model, Submission};
use crate::spool::{Locked, Spool};
use crate::statistics;

/// The longest script, in bytes.
const MOST_SCRIPT: u64 = 16 << 20;
/// The name of a job whose script is standard input.
const STDIN: &str = "STDIN";
/// The time between two looks of `pjwait`.
const PAUSE: Duration = Duration::from_millis(50);

/// A message with the number that public documents give it. Those without one have 0099 here.
fn refuse(command: &str, number: u32, why: &dyn fmt::Display) -> u8 {
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
        Ok((said, ignored)) => {
            if !ignored.is_empty() {
                let ignored = ignored.join("; ");
                let _ = writeln!(io::stderr(), "[INFO] PJM 0099 pjsub Ignored: {ignored}.");
            }
            writeln!(io::stdout(), "{said}")?;
            Ok(0)
        }
        Err(error) => {
            let text = format!("{error:#}");
            let number = if text.contains("upper limit") { 57 } else { 99 };
            Ok(refuse("pjsub", number, &text))
        }
    }
}

/// A script with its name.
struct Script {
    name: String,
    text: String,
}

fn submit(words: &[String]) -> anyhow::Result<(String, Vec<String>)> {
    let (given, rest) = options::read(words, &Source::CommandLine)?;
    let is_step = given.iter().any(|given| given.option.long == "step");
    let delimiter = given.iter().rev().find(|given| given.option.long == "script-delimiter");
    let delimiter = delimiter.and_then(|given| given.value.chars().next()).unwrap_or(',');
    let (names, arguments) = match rest {
        [] => (vec![None], &[][..]),
        [name, arguments @ ..] if is_step => (name.split(delimiter).map(Some).collect(), arguments),
        [name, arguments @ ..] => (vec![Some(name.as_str())], arguments),
    };
    let mut submissions = Vec::new();
    for name in names {
        let script = read_script(name)?;
        // Options are read once for each script: steps have their own lines.
        let (given, _) = options::read(words, &Source::CommandLine)?;
        let mut submission = request::read(&script.name, &script.text, given)?;
        let machine = || {
            let named = env::var("TOFU_PJSUB_MACHINE").ok().filter(|name| !name.is_empty());
            named.filter(|_| !words.iter().any(|word| word == "--local"))
        };
        let named = submission.request.machine.take().or_else(machine);
        submission.request.machine = named;
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
    Ok((said.join("\n"), ignored))
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
            let (id, turn, part) = step(locked, &records, job, number)?;
            (id, turn, vec![part])
        }
    };
    let name = request.name.clone().unwrap_or_else(|| script.name.clone());
    let user = || env::var("USER").or_else(|_| env::var("LOGNAME"));
    for part in &parts {
        let record = Record {
            key: Key { id, part: *part },
            turn,
            name: name.clone(),
            user: user().unwrap_or_else(|_| rustix::process::getuid().as_raw().to_string()),
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
fn selections(command: &str, words: &[String]) -> Result<Vec<Selection>, u8> {
    let read = |word: &String| {
        word.parse().map_err(|()| {
            // The text is what scripts look for.
            refuse(
                command,
                if command == "pjstat" { 211 } else { 99 },
                &format!("Invalid jobid: {word}."),
            )
        })
    };
    words.iter().map(read).collect()
}

/// Splits options from jobs. Returns the options with their values; those of `valued` have one.
fn split<'a>(
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
    if words.is_empty() {
        return Ok(refuse("pjdel", 99, &"name jobs, such as 12, 12_1, 12[3-5] or 12-14"));
    }
    let selections = match selections("pjdel", &words) {
        Ok(selections) => selections,
        Err(code) => return Ok(code),
    };
    let spool = Spool::open()?;
    let locked = spool.lock()?;
    let records = locked.records()?;
    let mut result = 0;
    for (selection, word) in selections.iter().zip(&words) {
        let mut found = false;
        for record in records.iter().filter(|record| selection.has(record.key)) {
            match record.state {
                State::Que => {
                    let mut record = record.clone();
                    record.state = State::Ccl;
                    record.ended = Some(now());
                    record.ending.manager = code::CANCELLED;
                    locked.write(&record)?;
                    found = true;
                }
                State::Run => {
                    fs::write(spool.cancel_mark(record.key), "")?;
                    found = true;
                }
                _ => {}
            }
        }
        if found {
            writeln!(io::stdout(), "[INFO] PJM 0100 pjdel Accepted job {word}.")?;
        } else {
            let why = match records.iter().any(|record| selection.has(record.key)) {
                true => format!("Job {word} has ended."),
                false => format!("Job {word} does not exist."),
            };
            result = refuse("pjdel", 99, &why);
        }
    }
    Ok(result)
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
    let selections = match selections("pjwait", &words) {
        Ok(selections) => selections,
        Err(code) => return Ok(code),
    };
    if selections.is_empty() {
        return Ok(refuse("pjwait", 99, &"name jobs, such as 12, 12_1, 12[3-5] or 12-14"));
    }
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
fn revive(spool: &Spool) -> anyhow::Result<()> {
    let locked = spool.lock()?;
    let has_work = locked.records()?.iter().any(|record| !record.state.is_over());
    let is_free = has_work && spool.become_runner()?.is_some();
    drop(locked);
    if is_free { spool.start_runner() } else { Ok(()) }
}

/// A column of `pjstat`: the name for `--choose`, and the head.
const COLUMNS: [(&str, &str); 20] = [
    ("jid", "JOB_ID"),
    ("jnam", "JOB_NAME"),
    ("jmdl", "MD"),
    ("st", "ST"),
    ("usr", "USER"),
    ("sdt", "START_DATE"),
    ("elpl", "ELAPSE_LIM"),
    ("nnumr", "NODE_REQUIRE"),
    ("vnode", "VNODE"),
    ("core", "CORE"),
    ("vmem", "V_MEM"),
    ("rscg", "RSC_GRP"),
    ("rscu", "RSC_UNIT"),
    ("adt", "ACCEPT"),
    ("edt", "END_DATE"),
    ("elp", "ELAPSE_TIM"),
    ("ec", "EC"),
    ("sn", "SN"),
    ("pc", "PC"),
    ("rsn", "REASON"),
];
const USUAL: usize = 11;

fn cell(record: &Record, column: &str) -> String {
    let none = || "-".to_owned();
    let short = |moment: u64| {
        // Without the year, as real systems show it.
        let text = date(moment);
        text.get(5..).map_or_else(none, |rest| rest.replacen('-', "/", 1))
    };
    let over = record.state.is_over();
    match column {
        "jid" => record.key.to_string(),
        "jnam" => record.name.clone(),
        "jmdl" => record.key.model().to_owned(),
        "st" => record.state.text().to_owned(),
        "usr" => record.user.clone(),
        "sdt" => record.started.map_or_else(none, short),
        "elpl" => record.request.elapse.map_or_else(none, span),
        "nnumr" => record.request.nodes.required(),
        "rscg" => record.request.group.clone().unwrap_or_else(none),
        "rscu" => record.request.unit.clone().unwrap_or_else(none),
        "adt" => short(record.accepted),
        "edt" => record.ended.map_or_else(none, short),
        "elp" => record.started.map_or_else(none, |started| {
            span(record.ended.unwrap_or_else(now).saturating_sub(started))
        }),
        "ec" if over => record.ending.exit.to_string(),
        "sn" if over => record.ending.signal.to_string(),
        "pc" if over => record.ending.manager.to_string(),
        "rsn" if over => code::reason(record.ending.manager).to_owned(),
        _ => none(),
    }
}

/// The choices of `pjstat`.
struct View {
    /// Jobs that have ended, rather than those that have not.
    ended: bool,
    /// Sub jobs one by one.
    expanded: bool,
    statistics: bool,
    list: bool,
    summary: bool,
    data: bool,
    columns: Vec<usize>,
}

/// Shows jobs. Returns the exit code.
///
/// # Errors
///
/// If the spool cannot be read, or output cannot be written.
pub fn pjstat(words: &[String]) -> anyhow::Result<u8> {
    let (options, words) = split(words, &["--choose"]);
    let mut view = View {
        ended: false,
        expanded: false,
        statistics: false,
        list: true,
        summary: false,
        data: false,
        columns: (0..USUAL).collect(),
    };
    let mut words = words;
    for (name, value) in options {
        match (name, value) {
            ("-H" | "--history", _) => {
                view.ended = true;
                // How far back: all that is remembered is shown.
                words.retain(|word| !word.starts_with("day=") && !word.starts_with("hour="));
            }
            ("-E" | "--expand", _) => view.expanded = true,
            ("-s" | "-S", _) => view.statistics = true,
            ("-v", _) => view.columns = (0..COLUMNS.len()).collect(),
            ("--with-summary", _) => view.summary = true,
            ("--summary", _) => (view.summary, view.list) = (true, false),
            ("--data", _) => view.data = true,
            ("-A" | "--all", _) => {}
            ("--choose", Some(names)) => match columns(names) {
                Ok(columns) => view.columns = columns,
                Err(why) => return Ok(refuse("pjstat", 99, &why)),
            },
            _ => {
                let known = "-A, -E, -H, -s, -S, -v, --choose, --data, --summary, --with-summary";
                return Ok(refuse("pjstat", 99, &format!("{name}: there are {known}")));
            }
        }
    }
    let selections = match selections("pjstat", &words) {
        Ok(selections) => selections,
        Err(code) => return Ok(code),
    };
    let spool = Spool::open()?;
    revive(&spool)?;
    let records = spool.lock()?.records()?;
    let shown = shown(records, &view, &selections);
    io::stdout().write_all(render(&shown, &view).as_bytes())?;
    Ok(0)
}

fn columns(names: &str) -> Result<Vec<usize>, String> {
    let find = |name: &str| {
        let found = COLUMNS.iter().position(|(known, _)| *known == name);
        found.ok_or_else(|| {
            let known: Vec<_> = COLUMNS.iter().map(|(known, _)| *known).collect();
            format!("--choose {name}: there are {}", known.join(", "))
        })
    };
    names.split(',').map(find).collect()
}

/// Returns the jobs to be shown. Sub jobs are one job unless they are asked for.
fn shown(records: Vec<Record>, view: &View, selections: &[Selection]) -> Vec<Record> {
    let named =
        |record: &Record| selections.is_empty() || selections.iter().any(|one| one.has(record.key));
    let wanted = |record: &Record| {
        let in_time = record.state.is_over() == view.ended;
        if selections.is_empty() { in_time } else { named(record) && (in_time || view.ended) }
    };
    // A user who names a sub job wants to see it.
    let one_by_one = view.expanded || view.statistics || view.ended;
    let mut shown: Vec<Record> = Vec::new();
    for record in records.into_iter().filter(wanted) {
        let exact = selections.iter().any(|one| {
            let whole = Key { id: record.key.id, part: Part::Whole };
            one.has(record.key) && !one.has(whole)
        });
        let known = shown.iter_mut().find(|known| known.key.id == record.key.id);
        match known.filter(|_| !one_by_one && !exact) {
            Some(known) if record.state == State::Run => known.state = State::Run,
            Some(_) => {}
            None => shown.push(record),
        }
    }
    shown
}

fn render(records: &[Record], view: &View) -> String {
    let mut text = String::new();
    if view.summary {
        let count = |state| records.iter().filter(|record| record.state == state).count();
        let (queued, running) = (count(State::Que), count(State::Run));
        text += "  ACCEPT QUEUED  STGIN  READY RUNING RUNOUT STGOUT   HOLD  ERROR   TOTAL\n";
        let rows = [0, queued, 0, 0, running, 0, 0, 0, count(State::Err)];
        text += " ";
        text += &rows.iter().map(|count| format!("{count:>7}")).collect::<String>();
        text += &format!("{:>8}\n\n", records.len());
    }
    if !view.list {
        return text;
    }
    if view.statistics {
        return text + &records.iter().map(statistics::text).collect::<String>();
    }
    let head: Vec<_> = view.columns.iter().map(|column| COLUMNS[*column].1).collect();
    let whole = |record: &Record| {
        let mut record = record.clone();
        if !view.expanded
            && !view.ended
            && records.iter().filter(|r| r.key.id == record.key.id).count() == 1
        {
            record.key = shortened(record.key);
        }
        record
    };
    let rows = records.iter().map(|record| {
        let shown = whole(record);
        view.columns
            .iter()
            .map(|column| match COLUMNS[*column].0 {
                "jid" => shown.key.to_string(),
                name => cell(record, name),
            })
            .collect::<Vec<_>>()
    });
    if view.data {
        let lines = rows.map(|row| row.join(",") + "\n").collect::<String>();
        return text + &head.join(",") + "\n" + &lines;
    }
    text + &tofu_ui::table(&head, &[], rows)
}

/// The whole job of a sub job of a bulk job.
fn shortened(key: Key) -> Key {
    match key.part {
        Part::Bulk(_) => Key { part: Part::Whole, ..key },
        _ => key,
    }
}
