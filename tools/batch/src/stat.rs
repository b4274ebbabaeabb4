//! `pjstat`.

use std::io::{self, Write};

use crate::commands::{refuse, revive, selections, split};
use crate::key::{Key, Part, Selection};
use crate::record::{Record, State, code, date, now, span};
use crate::resources::{GROUPS, MOST, UNIT};
use crate::spool::Spool;
use crate::statistics;

/// A column of `pjstat`: the name for `--choose`, and the head.
const COLUMNS: [(&str, &str); 21] = [
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
    ("ermsg", "REASON"),
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
        "rsn" | "ermsg" if over => code::reason(record.ending.manager).to_owned(),
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
    /// The text between the columns of `data`.
    delimiter: String,
    columns: Vec<usize>,
    /// Columns, each with the texts of which a selected job must have one.
    filters: Vec<(usize, String)>,
    /// The column by which jobs are sorted.
    sort: Option<usize>,
}

impl Default for View {
    fn default() -> Self {
        Self {
            ended: false,
            expanded: false,
            statistics: false,
            list: true,
            summary: false,
            data: false,
            delimiter: ",".to_owned(),
            columns: (0..USUAL).collect(),
            filters: Vec::new(),
            sort: None,
        }
    }
}

/// Options with values.
const VALUED: [&str; 11] = [
    "--choose",
    "--delimiter",
    "--filter",
    "--sort",
    "--rscunit",
    "--rscgrp",
    "--ru",
    "--rg",
    "--uid",
    "--user",
    "-u",
];
/// Options that concern what is not here, or what is the same for all jobs here.
const WITHOUT_MEANING: [&str; 10] =
    ["-A", "--all", "-X", "-x", "-b", "-l", "-p", "--estimate", "--uid", "--user"];

/// Shows jobs. Returns the exit code.
///
/// # Errors
///
/// If the spool cannot be read, or output cannot be written.
pub fn pjstat(words: &[String]) -> anyhow::Result<u8> {
    let (options, mut words) = split(words, &VALUED);
    let has = |name: &str| options.iter().any(|(known, _)| *known == name);
    if has("--rsc") || has("--rscuse") {
        return resources(&options);
    }
    if has("--limit") {
        io::stdout().write_all(limits().as_bytes())?;
        return Ok(0);
    }
    let view = match view(&options) {
        Ok(view) => view,
        Err(why) => return Ok(refuse("pjstat", 99, &why)),
    };
    if view.ended {
        // The age limit is ignored: all remembered jobs are shown.
        words.retain(|word| !word.starts_with("day=") && !word.starts_with("hour="));
    }
    let selections = match selections("pjstat", &words) {
        Ok(selections) => selections,
        Err(code) => return Ok(code),
    };
    let spool = Spool::open()?;
    revive(&spool)?;
    let records = spool.lock()?.records()?;
    let mut shown = shown(records, &view, &selections);
    if let Some(column) = view.sort {
        shown.sort_by_key(|record| cell(record, COLUMNS[column].0));
    }
    io::stdout().write_all(render(&shown, &view).as_bytes())?;
    Ok(0)
}

/// Reads the options of the list.
fn view(options: &[(&str, Option<&str>)]) -> Result<View, String> {
    let mut view = View::default();
    for (name, value) in options {
        match (*name, value.unwrap_or_default()) {
            ("-H" | "--history", _) => view.ended = true,
            ("-E" | "--expand", _) => view.expanded = true,
            ("-s" | "-S", _) => view.statistics = true,
            ("-v", _) => view.columns = (0..COLUMNS.len() - 1).collect(),
            ("--with-summary", _) => view.summary = true,
            ("--summary", _) => (view.summary, view.list) = (true, false),
            ("--data", _) => view.data = true,
            ("--delimiter", value) => view.delimiter = value.to_owned(),
            ("--choose", names) => {
                let find = |column| column_of("--choose", column);
                view.columns = names.split(',').map(find).collect::<Result<_, _>>()?;
            }
            ("--filter", text) => view.filters = filters(text)?,
            // A + or - behind it is the direction.
            ("--sort", text) => {
                let first = text.split(',').next().unwrap_or_default();
                view.sort = Some(column_of("--sort", first.trim_end_matches(['+', '-']))?);
            }
            ("--rscgrp" | "--rg", group) => {
                view.filters.push((column_of(name, "rscg")?, group.to_owned()));
            }
            ("--rscunit" | "--ru", unit) => {
                view.filters.push((column_of(name, "rscu")?, unit.to_owned()));
            }
            (name, _) if WITHOUT_MEANING.contains(&name) || name == "-u" => {}
            _ => {
                let known = "-A, -E, -H, -s, -S, -v, --choose, --data, --delimiter, --filter, \
                             --limit, --rsc, --rscgrp, --rscunit, --sort, --summary, \
                             --with-summary";
                return Err(format!("{name}: there are {known}"));
            }
        }
    }
    Ok(view)
}

fn column_of(option: &str, name: &str) -> Result<usize, String> {
    let found = COLUMNS.iter().position(|(known, _)| *known == name);
    found.ok_or_else(|| {
        let known: Vec<_> = COLUMNS.iter().map(|(known, _)| *known).collect();
        format!("{option} {name}: there are {}", known.join(", "))
    })
}

/// Reads conditions such as `st=RUN,usr=user`.
fn filters(text: &str) -> Result<Vec<(usize, String)>, String> {
    let read = |item: &str| {
        let (name, value) = item.split_once('=').unwrap_or((item, ""));
        Ok((column_of("--filter", name)?, value.to_owned()))
    };
    text.split(',').filter(|item| !item.is_empty()).map(read).collect()
}

/// Shows resource units and groups.
fn resources(options: &[(&str, Option<&str>)]) -> anyhow::Result<u8> {
    let named = |names: [&str; 2]| {
        let found = options.iter().find(|(name, _)| names.contains(name));
        found.and_then(|(_, value)| *value)
    };
    let unit = named(["--rscunit", "--ru"]).unwrap_or(UNIT);
    let groups = match named(["--rscgrp", "--rg"]) {
        Some(group) => vec![group],
        None => GROUPS.to_vec(),
    };
    let row = |name: &str| vec![name.to_owned(), "[ENABLE,START]".to_owned()];
    let units = tofu_ui::table(&["RSCUNIT", "STATUS"], &[], [row(unit)]);
    let groups = tofu_ui::table(&["RSCGRP", "STATUS"], &[], groups.into_iter().map(row));
    write!(io::stdout(), "{units}\n{groups}")?;
    Ok(0)
}

/// The limits of a user's jobs.
fn limits() -> String {
    let rows = [
        ("jobs in the queue", "unlimited".to_owned()),
        ("jobs that run at the same time", "1".to_owned()),
        ("nodes of a job", MOST.to_string()),
        ("processes of a job", MOST.to_string()),
        ("elapsed time", "unlimited".to_owned()),
    ];
    let rows = rows.into_iter().map(|(name, limit)| vec![name.to_owned(), limit]);
    tofu_ui::table(&["LIMIT-NAME", "LIMIT"], &[], rows)
}

/// Returns the jobs to be shown. Sub jobs are shown as one job unless they are
/// requested.
fn shown(records: Vec<Record>, view: &View, selections: &[Selection]) -> Vec<Record> {
    let named =
        |record: &Record| selections.is_empty() || selections.iter().any(|one| one.has(record.key));
    let wanted = |record: &Record| {
        let in_time = record.state.is_over() == view.ended;
        if selections.is_empty() { in_time } else { named(record) && (in_time || view.ended) }
    };
    // A sub job that is named is shown.
    let one_by_one = view.expanded || view.statistics || view.ended;
    let mut shown: Vec<Record> = Vec::new();
    let passes = |record: &Record| {
        view.filters.iter().all(|(column, text)| cell(record, COLUMNS[*column].0) == *text)
    };
    for record in records.into_iter().filter(|record| wanted(record) && passes(record)) {
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
        let rows = [0, queued, 0, 0, running, 0, 0, count(State::Hld), count(State::Err)];
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
        let lines = rows.map(|row| row.join(&view.delimiter) + "\n").collect::<String>();
        return text + &head.join(&view.delimiter) + "\n" + &lines;
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
