//! `mpiexec` with the options of Fugaku's, which starts ranks as `tofu run` does.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tofu_control::MachineName;
use tofu_jobs::{JobSpec, Libs, RankFile, RankOrder, Variable, find_program, is_program};
use tofu_jtofu::LogicalShape;
use tofu_spec::units::{InstructionTime, Timeout};

use crate::environment::{BEFORE, COMPILERS, FUNCTION, MARK, SPOOL};
use crate::record::Record;
use crate::request::{Modelled, Order, Request};
use crate::resources::{CORES, MOST};
use crate::site;
use crate::spool::Spool;

/// The longest file of places, in bytes.
const MOST_PLACES: u64 = 1 << 20;

/// The command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Call {
    ranks: Option<u32>,
    per_node: Option<u32>,
    timeout: Option<Timeout>,
    places: Option<String>,
    out: Option<Sink>,
    err: Option<Sink>,
    input: Option<String>,
    variables: Vec<(String, Option<String>)>,
    folder: Option<String>,
    prefix: bool,
    local: bool,
    machine: Option<String>,
    /// The clock of a machine that is started for the ranks, if it is modelled.
    time: Option<Modelled>,
    instruction: Option<String>,
    ignored: Vec<String>,
    /// A file with further programs.
    app: Option<String>,
    program: Vec<String>,
    /// Further programs with their numbers of ranks.
    others: Vec<(u32, Vec<String>)>,
}

/// A file that outputs go to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sink {
    /// One for all ranks.
    Shared(String),
    /// One for each rank.
    PerRank(String),
    /// One for each rank, in its folder inside this one, as Open MPI has it.
    Folder(String),
}

impl Sink {
    /// Reads the value of Open MPI's option. What may follow behind a colon is about the number of
    /// the job, which is always 1, and about copies.
    fn folder(mut value: String) -> Self {
        value.truncate(value.find(':').unwrap_or(value.len()));
        Self::Folder(value)
    }
}

/// The meaning of an option.
#[derive(Clone, Copy)]
enum Action {
    Ranks,
    PerNode,
    OnePerNode,
    Places,
    Timeout,
    /// The redirected outputs, and how their value names files.
    Output(Which, fn(String) -> Sink),
    Input,
    Variable,
    /// A name and a value as two words.
    NamedVariable,
    Folder,
    Prefix,
    Tag,
    Local,
    Machine,
    Time,
    InstructionTime,
    App,
    /// Left out, with so many words behind it.
    Ignore(usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Out,
    Err,
    Both,
}

use Action::{Ignore, Output};

/// Options without their one or two leading dashes.
const OPTIONS: [(&str, Action); 143] = [
    ("n", Action::Ranks),
    ("np", Action::Ranks),
    ("c", Action::Ranks),
    ("ppn", Action::PerNode),
    ("npernode", Action::PerNode),
    ("N", Action::PerNode),
    ("vcoordfile", Action::Places),
    ("of", Output(Which::Both, Sink::Shared)),
    ("std", Output(Which::Both, Sink::Shared)),
    ("of-proc", Output(Which::Both, Sink::PerRank)),
    ("std-proc", Output(Which::Both, Sink::PerRank)),
    ("ofout", Output(Which::Out, Sink::Shared)),
    ("stdout", Output(Which::Out, Sink::Shared)),
    ("ofout-proc", Output(Which::Out, Sink::PerRank)),
    ("stdout-proc", Output(Which::Out, Sink::PerRank)),
    ("oferr", Output(Which::Err, Sink::Shared)),
    ("stderr", Output(Which::Err, Sink::Shared)),
    ("oferr-proc", Output(Which::Err, Sink::PerRank)),
    ("stderr-proc", Output(Which::Err, Sink::PerRank)),
    ("stdin", Action::Input),
    ("x", Action::Variable),
    ("env", Action::NamedVariable),
    ("genv", Action::NamedVariable),
    ("wdir", Action::Folder),
    ("wd", Action::Folder),
    ("ofprefix", Action::Prefix),
    ("stdprefix", Action::Prefix),
    ("tag-output", Action::Tag),
    ("local", Action::Local),
    ("machine", Action::Machine),
    ("time", Action::Time),
    ("ns-per-instruction", Action::InstructionTime),
    ("app", Action::App),
    ("perhost", Action::PerNode),
    ("max-proc-per-node", Action::PerNode),
    ("stdofprefix", Action::Prefix),
    ("l", Action::Tag),
    ("prepend-rank", Action::Tag),
    ("genvall", Ignore(0)),
    ("envall", Ignore(0)),
    ("genvlist", Ignore(1)),
    ("envlist", Ignore(1)),
    ("genvnone", Ignore(0)),
    ("s", Ignore(1)),
    ("rmk", Ignore(1)),
    ("bind-to-none", Ignore(0)),
    ("bind-to-socket", Ignore(0)),
    ("bycpu", Ignore(0)),
    ("byslot", Ignore(0)),
    ("cpus-per-proc", Ignore(1)),
    ("cpus-per-rank", Ignore(1)),
    ("cpu-set", Ignore(1)),
    ("npersocket", Ignore(1)),
    ("rankfile", Ignore(1)),
    ("rf", Ignore(1)),
    ("nooversubscribe", Ignore(0)),
    ("mca-params", Ignore(1)),
    ("output-filename", Output(Which::Both, Sink::folder)),
    ("q", Ignore(0)),
    ("quiet", Ignore(0)),
    ("d", Ignore(0)),
    ("print-all-exitcodes", Ignore(0)),
    ("tagged-output", Action::Tag),
    ("timestamp-output", Ignore(0)),
    ("noprefix", Ignore(0)),
    ("mca", Ignore(2)),
    ("gmca", Ignore(2)),
    ("am", Ignore(1)),
    ("tune", Ignore(1)),
    ("nompi", Ignore(0)),
    ("debuglib", Ignore(1)),
    ("fjdbg-sig", Ignore(1)),
    ("fjdbg-out-dir", Ignore(1)),
    ("fjdbg-dlock", Ignore(0)),
    ("hostfile", Ignore(1)),
    ("machinefile", Ignore(1)),
    ("f", Ignore(1)),
    ("host", Ignore(1)),
    ("H", Ignore(1)),
    ("hosts", Ignore(1)),
    ("map-by", Ignore(1)),
    ("rank-by", Ignore(1)),
    ("bind-to", Ignore(1)),
    ("bind-to-core", Ignore(0)),
    ("bycore", Ignore(0)),
    ("bynode", Ignore(0)),
    ("bysocket", Ignore(0)),
    ("report-bindings", Ignore(0)),
    ("display-map", Ignore(0)),
    ("display-allocation", Ignore(0)),
    ("oversubscribe", Ignore(0)),
    ("allow-run-as-root", Ignore(0)),
    ("launcher", Ignore(1)),
    ("bootstrap", Ignore(1)),
    ("iface", Ignore(1)),
    ("prefix", Ignore(1)),
    ("v", Ignore(0)),
    ("display-devel-map", Ignore(0)),
    ("display-topo", Ignore(0)),
    ("print-rank-map", Ignore(0)),
    ("use-hwthread-cpus", Ignore(0)),
    ("merge-stderr-to-stdout", Ignore(0)),
    ("rr", Ignore(0)),
    ("grr", Ignore(1)),
    ("outfile-pattern", Output(Which::Out, Sink::Shared)),
    ("errfile-pattern", Output(Which::Err, Sink::Shared)),
    ("configfile", Action::App),
    ("pernode", Action::OnePerNode),
    ("timeout", Action::Timeout),
    ("verbose", Ignore(0)),
    ("nolocal", Ignore(0)),
    ("localonly", Ignore(0)),
    ("disable-auto-cleanup", Ignore(0)),
    ("info", Ignore(0)),
    ("disable-hostname-propagation", Ignore(0)),
    ("ordered-output", Ignore(0)),
    ("envnone", Ignore(0)),
    ("enable-recovery", Ignore(0)),
    ("preload-binary", Ignore(0)),
    ("xml", Ignore(0)),
    ("hetero-nodes", Ignore(0)),
    ("loadbalance", Ignore(0)),
    ("novm", Ignore(0)),
    ("trace", Ignore(0)),
    ("check_mpi", Ignore(0)),
    ("ilp64", Ignore(0)),
    ("static_mpi", Ignore(0)),
    ("launcher-exec", Ignore(1)),
    ("bootstrap-exec", Ignore(1)),
    ("usize", Ignore(1)),
    ("path", Ignore(1)),
    ("tmpdir", Ignore(1)),
    ("demux", Ignore(1)),
    ("report-pid", Ignore(1)),
    ("cpu-list", Ignore(1)),
    ("display", Ignore(1)),
    ("output", Ignore(1)),
    ("prepend-pattern", Ignore(1)),
    ("default-hostfile", Ignore(1)),
    ("with-ft", Ignore(1)),
    ("personality", Ignore(1)),
    ("forward-signals", Ignore(1)),
    ("gtool", Ignore(1)),
];

/// The words of a command line, from which options take their values.
struct Words<'a> {
    option: &'a str,
    /// The value behind an equals sign.
    attached: Option<String>,
    rest: &'a [String],
}

impl Words<'_> {
    fn next(&mut self) -> anyhow::Result<String> {
        if let Some(value) = self.attached.take() {
            return Ok(value);
        }
        let [value, rest @ ..] = self.rest else { bail!("{}: a value must follow", self.option) };
        self.rest = rest;
        Ok(value.clone())
    }

    fn timeout(&mut self) -> anyhow::Result<Timeout> {
        let text = self.next()?;
        let seconds = text.parse::<i64>().ok();
        let timeout = seconds.and_then(|seconds| Timeout::try_from(seconds).ok());
        timeout.with_context(|| format!("{} {text}: must be a number of seconds", self.option))
    }

    fn number(&mut self) -> anyhow::Result<u32> {
        let text = self.next()?;
        number(self.option, &text)
    }
}

/// Reads the command line: programs with their options, between which there is a colon. Options of
/// a job are those of any of its programs.
fn read(words: &[String]) -> anyhow::Result<Call> {
    let mut call = Call::default();
    let mut parts: Vec<Vec<String>> = words.split(|word| word == ":").map(Into::into).collect();
    let mut programs = Vec::new();
    while !parts.is_empty() {
        let part = parts.remove(0);
        call.ranks = None;
        let program = read_program(&mut call, &part)?;
        if let Some(name) = call.app.take() {
            if !program.is_empty() {
                bail!("--app {name} and {}: only one of them", program[0]);
            }
            parts = [app(&name)?, parts].concat();
            continue;
        }
        if program.is_empty() {
            bail!("no program named");
        }
        programs.push((call.ranks, program));
    }
    if let [(ranks, program)] = &mut *programs {
        (call.ranks, call.program) = (*ranks, std::mem::take(program));
        return Ok(call);
    }
    let counted: Option<Vec<_>> =
        programs.into_iter().map(|(ranks, program)| Some((ranks?, program))).collect();
    let mut counted = counted.context("of several programs each needs -n")?;
    call.ranks = Some(counted.iter().map(|(ranks, _)| ranks).sum());
    if call.ranks > Some(MOST) {
        bail!("-n {}: up to {MOST} ranks in all", call.ranks.unwrap_or_default());
    }
    call.program = counted.remove(0).1;
    call.others = counted;
    Ok(call)
}

/// Reads a file of programs: a line with options, program and arguments for each.
fn app(name: &str) -> anyhow::Result<Vec<Vec<String>>> {
    let text = tofu_input::read_text(Path::new(name), MOST_PLACES);
    let text = text.with_context(|| format!("cannot read {name}"))?;
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let split = |line: &str| {
        let words = crate::directives::split(line);
        words.with_context(|| format!("{name}: a quote is not closed: {line}"))
    };
    let programs = lines.map(split).collect::<anyhow::Result<Vec<_>>>()?;
    if programs.is_empty() {
        bail!("{name}: no programs in it");
    }
    Ok(programs)
}

/// Reads the options in front of a program. Returns the program with its arguments.
fn read_program(call: &mut Call, words: &[String]) -> anyhow::Result<Vec<String>> {
    let mut words = words;
    while let [word, rest @ ..] = words {
        let Some(name) = word.strip_prefix('-').filter(|name| !name.is_empty()) else { break };
        if name == "-" {
            words = rest;
            break;
        }
        let name = name.strip_prefix('-').unwrap_or(name);
        let (name, attached) = match name.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (name, None),
        };
        let known = OPTIONS.iter().find(|(known, _)| *known == name);
        let Some((_, action)) = known else {
            let names = OPTIONS.iter().map(|(known, _)| *known);
            let hint = match tofu_ui::nearest(name, names) {
                Some(near) => format!("; did you mean -{near}?"),
                None => "; tofu mpiexec --help lists those there are".to_owned(),
            };
            bail!("{word}: no such option{hint}");
        };
        let mut taken = Words { option: word, attached, rest };
        call.take(*action, &mut taken)?;
        words = taken.rest;
    }
    Ok(words.to_vec())
}

impl Call {
    fn take(&mut self, action: Action, words: &mut Words<'_>) -> anyhow::Result<()> {
        match action {
            Action::Ranks => self.ranks = Some(words.number()?),
            Action::PerNode => self.per_node = Some(words.number()?),
            Action::OnePerNode => self.per_node = Some(1),
            Action::Timeout => self.timeout = Some(words.timeout()?),
            Action::Places => self.places = Some(words.next()?),
            Output(which, named) => {
                let sink = named(words.next()?);
                if which != Which::Err {
                    self.out = Some(sink.clone());
                }
                if which != Which::Out {
                    self.err = Some(sink);
                }
            }
            Action::Input => self.input = Some(words.next()?),
            Action::Variable => {
                let text = words.next()?;
                self.variables.extend(variables(words.option, &text)?);
            }
            Action::NamedVariable => {
                let name = words.next()?;
                // Intel's takes both in one word, too.
                let (name, value) = match name.split_once('=') {
                    Some((name, value)) => (name.to_owned(), value.to_owned()),
                    None => (name, words.next()?),
                };
                self.variables.push((name, Some(value)));
            }
            Action::Folder => self.folder = Some(words.next()?),
            Action::Prefix => {
                words.next()?;
                self.prefix = true;
            }
            Action::Tag => self.prefix = true,
            Action::Local => self.local = true,
            Action::Machine => self.machine = Some(words.next()?),
            Action::Time => {
                let clock = words.next()?;
                let read = Modelled::read(&clock);
                self.time =
                    read.map_err(|why| anyhow::anyhow!("{} {clock}: {why}", words.option))?;
            }
            Action::InstructionTime => self.instruction = Some(words.next()?),
            Action::App => self.app = Some(words.next()?),
            Ignore(count) => {
                let values =
                    (0..count).map(|_| words.next()).collect::<anyhow::Result<Vec<_>>>()?;
                match &*values {
                    // Open MPI's option for rank names before each line.
                    [name, value] if name == "orte_tag_output" => self.prefix = value != "0",
                    _ => {
                        let all = std::iter::once(words.option.to_owned()).chain(values);
                        self.ignored.push(all.collect::<Vec<_>>().join(" "));
                    }
                }
            }
        }
        Ok(())
    }
}

fn number(option: &str, text: &str) -> anyhow::Result<u32> {
    match text.parse() {
        Ok(number @ 1..=MOST) => Ok(number),
        _ => bail!("{option} {text}: must be a whole number from 1 to {MOST}"),
    }
}

fn variables(option: &str, text: &str) -> anyhow::Result<Vec<(String, Option<String>)>> {
    let mut variables = Vec::new();
    // A comma is a part of a value, unless another variable follows.
    for item in text.split_inclusive(',') {
        let is_name = |name: &str| !name.is_empty() && !name.contains([',', ' ', '\0']);
        match item.trim_end_matches(',').split_once('=') {
            Some((name, value)) if is_name(name) => {
                variables.push((name.to_owned(), Some(value.to_owned())));
            }
            None if variables.is_empty() && is_name(item.trim_end_matches(',')) => {
                variables.push((item.trim_end_matches(',').to_owned(), None));
            }
            _ => match variables.last_mut() {
                Some((_, Some(value))) => {
                    *value = format!("{value},{}", item.trim_end_matches(','));
                }
                _ => bail!("{option} {text}: must be NAME=VALUE or NAME"),
            },
        }
    }
    Ok(variables)
}

/// Reads places of ranks: a line such as `(0,1,2)` for each, with words behind it that are left
/// out.
fn places(text: &str) -> Result<Vec<[u32; 3]>, usize> {
    let mut places = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let read = || {
            let (inside, _) = line.strip_prefix('(')?.split_once(')')?;
            let mut place = [0; 3];
            let numbers: Vec<&str> = inside.split(',').collect();
            if numbers.len() > place.len() {
                return None;
            }
            for (place, number) in place.iter_mut().zip(numbers) {
                *place = number.trim().parse().ok()?;
            }
            Some(place)
        };
        places.push(read().ok_or(number + 1)?);
    }
    Ok(places)
}

fn read_places(name: &str) -> anyhow::Result<Vec<[u32; 3]>> {
    // It may be a pipe, as of <(...) in a shell.
    let file = fs::File::open(name).with_context(|| format!("cannot read {name}"))?;
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(file, MOST_PLACES), &mut text)
        .with_context(|| format!("cannot read {name}"))?;
    let places = places(&text).map_err(|line| {
        anyhow::anyhow!("{name} line {line}: must be a place such as (0), (0,1) or (0,1,2)")
    })?;
    if places.is_empty() {
        bail!("{name}: no places in it");
    }
    Ok(places)
}

/// The job that this is called in.
struct Job {
    record: Record,
    /// The number of calls of `mpiexec` in it, with this one.
    call: u64,
}

impl Job {
    fn find() -> anyhow::Result<Option<Self>> {
        let variable = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let (Some(mark), Some(spool)) = (variable(MARK), variable(SPOOL)) else { return Ok(None) };
        let spool = Spool::at(Path::new(&spool))?;
        let key = mark.rsplit('/').next().unwrap_or_default();
        let records = spool.lock()?.records()?;
        let record = records.into_iter().find(|record| record.key.to_string() == key);
        let Some(record) = record else { return Ok(None) };
        let call = spool.count_call(key)?;
        Ok(Some(Self { record, call }))
    }

    /// The file of an output, if the user names none: as on Fugaku, one for each rank.
    fn usual(&self, name: &str) -> RankFile {
        let (id, call) = (self.record.key, self.call);
        file(format!("output.{id}/%/1000R/{call}/{name}.{call}.%r"))
    }
}

fn file(name: String) -> RankFile {
    let empty = env::var("PLE_MPI_STD_EMPTYFILE").is_ok_and(|value| value == "off");
    RankFile { name, empty: !empty }
}

/// The file of the output `name` of so many ranks.
fn sink(sink: &Sink, name: &str, ranks: u32, job: Option<&Job>) -> RankFile {
    let expand = |form: &str| {
        let call = job.map_or(1, |job| job.call).to_string();
        // Ranks are filled in later, and so is a percent sign.
        let form = form.replace("%m", &call).replace("%%", "%%%%");
        match job {
            Some(job) => job.record.expand(&form),
            None => form.replace("%%%%", "%%"),
        }
    };
    match sink {
        Sink::Shared(form) => file(expand(form)),
        Sink::PerRank(form) => {
            let call = job.map_or(1, |job| job.call);
            file(format!("{}.{call}.%r", expand(form)))
        }
        Sink::Folder(form) => {
            let digits = ranks.to_string().len();
            file(format!("{}/1/rank.%{digits}r/{name}", expand(form)))
        }
    }
}

/// Runs a program as ranks. Returns the exit code.
///
/// # Errors
///
/// One line for the user.
pub fn mpiexec(words: &[String]) -> anyhow::Result<u8> {
    if let [word] = words
        && ["--version", "-version", "-V"].contains(&word.as_str())
    {
        writeln!(io::stdout(), "mpiexec (tofu {})", env!("CARGO_PKG_VERSION"))?;
        return Ok(0);
    }
    let call = read(words)?;
    let job = Job::find()?;
    if !call.ignored.is_empty() {
        let _ = writeln!(io::stderr(), "mpiexec: ignored: {}", call.ignored.join(", "));
    }
    if let Some(folder) = &call.folder {
        env::set_current_dir(folder).with_context(|| format!("-wdir {folder}"))?;
    }
    tofu_jobs::run(&spec(call, job.as_ref())?)
}

/// Returns which rank is on which node: as the call says, or else the job.
fn order(call: &Call, request: Option<&Request>) -> anyhow::Result<RankOrder> {
    Ok(match (&call.places, request.map(|request| &request.order)) {
        (Some(name), _) | (None, Some(Order::File(name))) => RankOrder::At(read_places(name)?),
        (None, Some(Order::ByNode)) => RankOrder::RoundRobin,
        (None, _) => RankOrder::NodeAfterNode,
    })
}

/// Returns the file that is rank 0's standard input; `None` if that is this command's.
///
/// On Fugaku only `-stdin` names one. Here a rank may also read what this command is given, but on
/// nodes it would be read ahead, and a `while read` of the script would find nothing more.
fn input(call: &Call, job: Option<&Job>, local: bool) -> Option<PathBuf> {
    // Open MPI's word for no input.
    let given = call.input.as_ref().map(|name| match name.as_str() {
        "none" => PathBuf::from("/dev/null"),
        name => PathBuf::from(name),
    });
    let kept = job.is_some() && !local && !io::stdin().is_terminal();
    given.or_else(|| kept.then(|| PathBuf::from("/dev/null")))
}

/// Returns the files of both outputs of so many ranks, or of one.
fn files(call: &Call, ranks: Option<u32>, job: Option<&Job>) -> [Option<RankFile>; 2] {
    // An interactive job writes to its terminal.
    let usual = job.filter(|job| !job.record.request.interactive);
    [(&call.out, "stdout"), (&call.err, "stderr")].map(|(given, name)| match given {
        Some(given) => Some(sink(given, name, ranks.unwrap_or(1), job)),
        None => usual.map(|job| job.usual(name)),
    })
}

/// Returns the machine on whose nodes the ranks run; `None` if they are processes here.
fn machine(call: &Call, request: Option<&Request>) -> anyhow::Result<Option<MachineName>> {
    if call.local {
        return Ok(None);
    }
    let asked = request.and_then(|request| request.machine.as_ref());
    let named = call.machine.as_ref().or(asked).map(|name| name.parse()).transpose();
    named.map_err(|error| anyhow::anyhow!("--machine: {error}"))
}

/// Returns the clock of a machine that is started for the ranks: as the call says, or else the job.
fn time(call: &Call, request: Option<&Request>) -> anyhow::Result<Option<Modelled>> {
    let asked = request.and_then(|request| request.time.as_ref());
    let time = call.time.as_ref().or(asked.filter(|_| !call.local)).cloned();
    Ok(match (time, &call.instruction, &call.machine) {
        (Some(_), _, Some(name)) if call.time.is_some() => {
            bail!("-time modelled and -machine {name}: leave one of them out")
        }
        // The machine that the call names.
        (Some(_), _, Some(_)) => None,
        (Some(_), Some(ns), None) => {
            ns.parse::<InstructionTime>()
                .map_err(|allowed| anyhow::anyhow!("-ns-per-instruction {ns}: {allowed}"))?;
            Some(Modelled { ns_per_instruction: Some(ns.clone()) })
        }
        (None, Some(ns), _) => bail!("-ns-per-instruction {ns}: is for -time modelled"),
        (time, ..) => time,
    })
}

fn spec(call: Call, job: Option<&Job>) -> anyhow::Result<JobSpec> {
    let request = job.map(|job| &job.record.request);
    let order = order(&call, request)?;
    let in_list = match &order {
        RankOrder::At(places) => Some(places.len() as u32),
        _ => None,
    };
    let nodes = request.map_or(0, |request| request.torus().iter().product::<u32>());
    let on_all = call.per_node.map(|each| each.saturating_mul(nodes)).filter(|ranks| *ranks > 0);
    let ranks = call.ranks.or(call.places.as_ref().and(in_list)).or(on_all);
    let ranks = ranks.or(request.map(Request::ranks));
    if let (Some(ranks), Some(most)) = (ranks, request.and_then(|request| request.processes))
        && ranks > most
    {
        bail!("-n {ranks}: the job has {most} processes (--mpi proc={most})");
    }
    let (map, ppn) = match request {
        Some(request) => {
            let on_node = call.per_node.unwrap_or_else(|| request.on_node());
            let torus = LogicalShape::new(request.torus()).context("no such job")?;
            on_nodes(torus, on_node, ranks)
        }
        None => (None, call.per_node),
    };
    let time = time(&call, request)?;
    let machine = if time.is_some() { None } else { machine(&call, request)? };
    let local = machine.is_none() && time.is_none();
    let (files, input) = (files(&call, ranks, job), input(&call, job, local));
    let others = call.others.into_iter();
    Ok(JobSpec {
        ranks,
        map,
        ppn,
        machine,
        local,
        mpi: true,
        env: variables_of(&call.variables, job, local)?,
        copy: Vec::new(),
        tools: if local { Vec::new() } else { site::wrappers().collect() },
        out: None,
        cwd: (!local).then(|| PathBuf::from(".")),
        libs: Libs::Auto,
        timeout: call.timeout,
        grace: "2s".parse().map_err(|error| anyhow::anyhow!("{error}"))?,
        restart: 0,
        order,
        files,
        input,
        root: false,
        no_prefix: !call.prefix,
        json: false,
        shape: None,
        no_wait: false,
        own: time.as_ref().map(Modelled::machine).unwrap_or_default(),
        program: found(bare(call.program, local)),
        others: others.map(|(ranks, words)| (ranks, found(bare(words, local)))).collect(),
    })
}

/// Returns a program without stand-ins of the site in front. Nodes get the file that is named
/// first, with its libraries, and that must be the program.
fn bare(words: Vec<String>, local: bool) -> Vec<String> {
    let inner = site::inside(&words);
    if local || inner.len() == words.len() {
        return words;
    }
    let _ = writeln!(io::stderr(), "mpiexec: ignored: {}", words[0]);
    inner.to_vec()
}

/// Returns a program with its place if only this folder has it: as Open MPI does, which looks here
/// when `PATH` has no such program.
fn found(mut words: Vec<String>) -> Vec<String> {
    if let Some(name) = words.first_mut().filter(|name| !name.contains('/'))
        && find_program(name).is_none()
        && is_program(Path::new(name))
    {
        name.insert_str(0, "./");
    }
    words
}

/// Returns the torus of a call, and the ranks on each node. A call with few ranks has all nodes of
/// the job; some of them stay empty.
fn on_nodes(
    torus: LogicalShape,
    on_node: u32,
    ranks: Option<u32>,
) -> (Option<LogicalShape>, Option<u32>) {
    let ranks = ranks.unwrap_or(1);
    let needed = ranks.div_ceil(torus.nodes()).max(on_node);
    if needed <= CORES {
        return (Some(torus), Some(needed));
    }
    let nodes = ranks.div_ceil(CORES).max(torus.nodes());
    let _ = writeln!(
        io::stderr(),
        "mpiexec: nodes here have up to {CORES} ranks, so {ranks} ranks have {nodes}"
    );
    (None, Some(CORES))
}

/// Returns the variables of the ranks: those of `-x`, and on nodes all variables that the script
/// has set.
fn variables_of(
    given: &[(String, Option<String>)],
    job: Option<&Job>,
    local: bool,
) -> anyhow::Result<Vec<Variable>> {
    let mut variables: BTreeMap<String, String> = BTreeMap::new();
    if let Some(job) = job.filter(|_| !local) {
        let before: BTreeMap<_, _> = job.record.environment.iter().cloned().collect();
        let here = env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        // Variables that belong to this host.
        let ours = ["PATH", "PWD", "OLDPWD", "SHLVL", "_", "LD_LIBRARY_PATH"];
        let ours = [&ours[..], &[BEFORE, SPOOL, MARK, COMPILERS]].concat();
        variables.extend(here.filter(|(name, value)| {
            let is_ours = ours.contains(&name.as_str()) || name.starts_with(FUNCTION);
            !is_ours && before.get(name) != Some(value)
        }));
    }
    for (name, value) in given {
        let value = match value {
            Some(value) => value.clone(),
            None => env::var(name).unwrap_or_default(),
        };
        variables.insert(name.clone(), value);
    }
    let as_variable = |(name, value): (String, String)| {
        let text = format!("{name}={value}");
        text.parse().map_err(|error| anyhow::anyhow!("-x {text}: {error}"))
    };
    variables.into_iter().map(as_variable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Part;
    use crate::record::tests::record;
    use proptest::prelude::*;

    fn call(text: &str) -> Call {
        read(&text.split(' ').map(str::to_owned).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn options_have_one_dash_or_two() {
        let expected = Call {
            ranks: Some(4),
            places: Some("v".into()),
            out: Some(Sink::PerRank("%/1000R/out".into())),
            err: Some(Sink::Shared("e".into())),
            input: Some("in".into()),
            variables: vec![("A".into(), Some("1,2".into())), ("B".into(), Some("x=y".into()))],
            prefix: true,
            ignored: vec!["-mca btl_tofu_eager_limit 1024".into(), "--bind-to core".into()],
            program: vec!["./a.out".into(), "-n".into(), "7".into()],
            ..Call::default()
        };
        let text = "-np 4 --vcoordfile v -of both -stdout-proc %/1000R/out -oferr e --stdin=in \
                    -x A=1,2,B=x=y -ofprefix rank,nid -mca btl_tofu_eager_limit 1024 \
                    --bind-to core ./a.out -n 7";
        assert_eq!(call(text), expected);
        assert!(call("-mca orte_tag_output 1 a").prefix);
        let several = call("-of out -n 2 ./a 1 : -np 3 ./b : -n 1 -x A=1 ./c");
        assert_eq!(
            (several.ranks, &*several.program),
            (Some(6), &["./a", "1"].map(str::to_owned)[..])
        );
        assert_eq!(several.others, [(3, vec!["./b".to_owned()]), (1, vec!["./c".to_owned()])]);
        let given = call("-genv A=1 -env B 2 -outfile-pattern o.%r -- -n 7");
        let expected = [("A".into(), Some("1".into())), ("B".into(), Some("2".into()))];
        assert_eq!((given.ranks, &*given.program), (None, &["-n", "7"].map(str::to_owned)[..]));
        assert_eq!(given.variables, expected);
        assert_eq!(given.out, Some(Sink::Shared("o.%r".into())));
        assert_eq!(call("-x HOME a").variables, [("HOME".to_owned(), None)]);
        let given = call("--pernode --timeout 90 -stdin none -launcher-exec /bin/pjrsh -nolocal a");
        assert_eq!((given.per_node, given.timeout), (Some(1), "90s".parse().ok()));
        assert_eq!(input(&given, None, true), Some("/dev/null".into()));
        assert_eq!(given.ignored, ["-launcher-exec /bin/pjrsh", "-nolocal"]);
        for (text, expected) in [
            ("-np 0 a", "-np 0: must be a whole number from 1 to 4608"),
            ("-n", "-n: a value must follow"),
            ("-n 2", "no program named"),
            ("-ranks 2 a", "-ranks: no such option"),
            ("-n 2 a : b", "of several programs each needs -n"),
            ("-n 2 a :", "no program named"),
            ("-n 4000 a : -n 4000 b", "-n 8000: up to 4608 ranks in all"),
            ("--app none", "cannot read none"),
            ("-x =1 a", "-x =1: must be NAME=VALUE"),
            ("-timeout 1m a", "-timeout 1m: must be a number of seconds"),
        ] {
            let words: Vec<_> = text.split(' ').map(str::to_owned).collect();
            let error = format!("{:#}", read(&words).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn places_are_read() {
        let text = "# rank 0\n(0,1,2) core=4\n\n (1)\n(2, 3)\n";
        assert_eq!(places(text), Ok(vec![[0, 1, 2], [1, 0, 0], [2, 3, 0]]));
        for (text, line) in [("(0)\n0", 2), ("(0,1,2,3)", 1), ("(x)", 1), ("(0", 1), ("(-1)", 1)] {
            assert_eq!(places(text), Err(line), "{text}");
        }
    }

    #[test]
    fn outputs_of_jobs_are_files() {
        let job = Job { record: record(Part::Bulk(3), Request::default()), call: 2 };
        let path = |file: RankFile| file.path(1500).display().to_string();
        assert_eq!(path(job.usual("stdout")), "output.12[3]/1000/2/stdout.2.1500");
        let of = |form: &str, job| path(sink(&Sink::Shared(form.into()), "stdout", 60, job));
        assert_eq!(of("%n.%j.%m.%b.%06r.%%r", Some(&job)), "job.sh.12[3].2.3.001500.%r");
        assert_eq!(of("%n.%r.%%", None), "%n.1500.%");
        let own = Sink::PerRank("o/%/1000R/e".into());
        assert_eq!(path(sink(&own, "stderr", 2000, Some(&job))), "o/1000/e.2.1500");
        let folder = Sink::Folder("log/%j".into());
        let of = |ranks| path(sink(&folder, "stderr", ranks, Some(&job)));
        assert_eq!(of(2000), "log/12[3]/1/rank.1500/stderr");
        assert_eq!(of(20_000), "log/12[3]/1/rank.01500/stderr");
    }

    #[test]
    fn calls_have_the_nodes_of_their_job() {
        let request = Request { per_node: Some(4), ..Request::default() };
        let mut job = Job { record: record(Part::Whole, request), call: 1 };
        job.record.request.nodes.lens = vec![2, 3];
        let spec_of = |text: &str, job: &Job| spec(call(text), Some(job));
        let found = spec_of("a", &job).unwrap();
        assert_eq!((found.ranks, found.ppn), (Some(24), Some(4)));
        assert_eq!(found.map.unwrap().to_string(), "2x3");
        assert!(found.local && found.mpi && found.no_prefix);
        let found = spec_of("-n 2 a", &job).unwrap();
        assert_eq!((found.ranks, found.ppn, found.map.unwrap().nodes()), (Some(2), Some(4), 6));
        let words = "numactl -C 0 ./a -l";
        assert_eq!(spec_of(words, &job).unwrap().program.len(), 5);
        let found = spec_of(&format!("-machine m {words}"), &job).unwrap();
        assert_eq!(found.program, ["./a", "-l"]);
        assert!(found.tools.iter().any(|(name, _)| name == "numactl") && !found.local);
        let modelled = spec_of("-time modelled -ns-per-instruction 0.3 ./a", &job).unwrap();
        assert!(!modelled.local && modelled.machine.is_none());
        assert_eq!(modelled.own.ns_per_instruction, Some("0.3".parse().unwrap()));
        job.record.request.time = Some(Modelled::default());
        assert!(spec_of("a", &job).unwrap().own.time.is_some());
        assert!(spec_of("-local a", &job).unwrap().local);
        assert!(spec_of("-machine m a", &job).unwrap().own.time.is_none());
        job.record.request.time = None;
        job.record.request.order = Order::ByNode;
        assert_eq!(spec_of("a", &job).unwrap().order, RankOrder::RoundRobin);
        job.record.request.processes = Some(8);
        let error = spec_of("-n 9 a", &job).unwrap_err().to_string();
        assert!(error.contains("-n 9: the job has 8 processes"), "{error}");
        job.record.request.processes = Some(49);
        job.record.request.per_node = None;
        job.record.request.nodes.lens = vec![1];
        let found = spec_of("a", &job).unwrap();
        assert_eq!((found.ranks, found.ppn, found.map), (Some(49), Some(48), None));
    }

    proptest! {
        #[test]
        fn any_places_are_read(text in "(\\(|\\)|,|[0-9]| |\n|\\PC){0,30}") {
            if let Ok(places) = places(&text) {
                prop_assert!(places.len() <= text.lines().count());
            }
        }
    }
}
