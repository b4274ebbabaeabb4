//! The ranks of a job of any kind: their output, their input and how they end.

use std::cell::Cell;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::Signal;
use serde_json::{Value, json};
use signal_hook::consts::SIGTERM;
use tofu_agent::pmi::Report;
use tofu_agent::wire::{Output, Status};
use tofu_sync::lock;
use tofu_sync::queue::{Item, Receiver, RecvTimeoutError, Sender, WhenFull, queue};
use tofu_ui::exit;
use tofu_ui::signals::{self, Forwarding};

use crate::spec::{JobSpec, RankFile};

/// The exit code after `--timeout`, as of timeout(1).
pub(crate) const EXIT_TIMEOUT: u8 = 124;
/// The exit code after a node is lost, which is that of ranks that did not run to their ends.
const EXIT_LOST: u8 = 126;
/// The time within which the process manager may still report that a rank which has ended has
/// aborted the job. The rank does not wait for that.
const NEWS: Duration = Duration::from_secs(1);
/// The time limit for a killed rank to die.
const DEATH: Duration = Duration::from_secs(5);
/// The time limit for nodes to be tidied up after a signal.
const TIDYING: Duration = Duration::from_secs(5);
/// A line is shown in chunks of this size, in bytes.
const MAX_LINE: usize = 64 << 10;

/// A running rank.
pub(crate) trait Rank: Send + Sync {
    /// Passes its output to `output` until it ends. Called once.
    ///
    /// # Errors
    ///
    /// If it can no longer be observed, or `output` fails.
    fn follow(&self, output: &mut OutputTaker<'_>) -> anyhow::Result<Status>;

    /// Sends everything that can be read from `input` to its standard input, and then the end. The
    /// rank may end before that. Called for rank 0 only; all others have no input.
    fn feed(&self, input: &mut dyn Read);

    /// Sends a signal to it and its children.
    fn signal(&self, signal: i32);

    /// Kills it and its children.
    fn kill(&self);
}

/// Receives the output of a rank.
pub(crate) type OutputTaker<'a> = dyn FnMut(Output, &[u8]) -> io::Result<()> + 'a;

/// An event in the life of a job.
pub(crate) enum Event {
    /// A rank has ended, or can no longer be observed.
    Ended(u32, anyhow::Result<Status>),
    /// This process got a signal to end.
    Signal(i32),
    /// The process manager reports something of a rank, for example `MPI_Abort`.
    Reported(Report),
    /// The machine has lost a node of the job.
    Lost { node: String, why: String },
}

/// An event, and the start of the job that it belongs to if it is about ranks.
struct Told(Option<u32>, Event);

impl Item for Told {
    fn bytes(&self) -> usize {
        match &self.1 {
            Event::Lost { node, why } => node.len() + why.len(),
            _ => 0,
        }
    }
}

/// The bytes of events that wait for the thread that watches a job.
const MOST_WAITING: usize = 1 << 20;

/// The source of events. It is made before anything else, so that Ctrl-C counts from then on.
pub(crate) struct Control {
    sender: Sender<Told>,
    events: Receiver<Told>,
    /// The number of times the ranks were started before.
    start: Cell<u32>,
    /// The first signal that has come, or 0.
    signal: Arc<AtomicI32>,
    _signals: Forwarding,
}

/// Sends the events of a started job.
#[derive(Clone)]
pub(crate) struct Teller {
    to: Sender<Told>,
    start: u32,
}

impl Teller {
    /// Sends an event. It is ignored once the job is over or has been started again. Events that a
    /// guest can cause at will are dropped if too many wait.
    pub(crate) fn tell(&self, event: Event) {
        let told = Told(Some(self.start), event);
        // The receiver is gone only when the run is over.
        let _ = match &told.1 {
            Event::Ended(..) | Event::Signal(_) => self.to.force(told),
            Event::Reported(_) | Event::Lost { .. } => self.to.send(told),
        };
    }
}

impl Control {
    /// Starts listening for signals. `grace` is that of the job's options: this process ends
    /// somewhat later than the job should after a signal.
    ///
    /// # Errors
    ///
    /// If the host has no threads left.
    pub(crate) fn new(grace: Duration) -> anyhow::Result<Self> {
        let (sender, events) = queue(MOST_WAITING, WhenFull::WaitFor(Duration::ZERO));
        let (to, signal) = (sender.clone(), Arc::new(AtomicI32::new(0)));
        let first = Arc::clone(&signal);
        let signals = signals::forward(grace + DEATH + TIDYING, move |signal| {
            first.store(signal, SeqCst);
            // The receiver is gone once the run is over.
            let _ = to.force(Told(None, Event::Signal(signal)));
        });
        Ok(Self { sender, events, start: Cell::new(0), signal, _signals: signals? })
    }

    /// Returns a sender of events for this start of the job.
    pub(crate) fn teller(&self) -> Teller {
        Teller { to: self.sender.clone(), start: self.start.get() }
    }

    /// Prepares for another start of the job. Events of earlier starts are ignored from now on.
    pub(crate) fn again(&self) {
        self.start.set(self.start.get() + 1);
    }

    /// Returns the next event, or `None` if there is none before the time limit.
    pub(crate) fn next(&self, until: Option<Instant>) -> anyhow::Result<Option<Event>> {
        loop {
            let next = match until {
                Some(until) => {
                    self.events.recv_timeout(until.saturating_duration_since(Instant::now()))
                }
                None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match next {
                Ok(Told(start, event)) if start.is_none_or(|start| start == self.start.get()) => {
                    return Ok(Some(event));
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                // Cannot happen, because `self` has a sender.
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("internal error: the rank event channel is closed")
                }
            }
        }
    }

    /// Returns the signal that has come, if any.
    pub(crate) fn signal(&self) -> Option<i32> {
        Some(self.signal.load(SeqCst)).filter(|signal| *signal != 0)
    }
}

/// The standard input of rank 0.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    Nothing,
    /// Our own.
    Own,
    File(PathBuf),
}

impl Input {
    fn open(&self) -> anyhow::Result<Option<Box<dyn Read + Send>>> {
        Ok(match self {
            Self::Nothing => None,
            Self::Own => Some(Box::new(io::stdin())),
            Self::File(path) => {
                let cannot = || format!("cannot read {}", path.display());
                Some(Box::new(File::open(path).with_context(cannot)?))
            }
        })
    }
}

/// Options of watching a job.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The time after which the job is ended.
    pub(crate) timeout: Option<Duration>,
    /// The time for which ranks may keep running after another rank has failed, and after the
    /// signal to end.
    pub(crate) grace: Duration,
    pub(crate) style: Style,
    pub(crate) input: Input,
    /// Files for the ranks' outputs.
    pub(crate) files: [Option<RankFile>; 2],
    /// The name of a rank in messages.
    pub(crate) noun: &'static str,
    /// True if there is a process manager, by which a rank can abort the job.
    pub(crate) has_manager: bool,
}

/// Names of ranks.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    /// In messages.
    pub(crate) name: String,
    /// In front of its lines.
    pub(crate) prefix: String,
}

impl Label {
    /// Returns the labels of a job's ranks. `place` returns the place of a rank.
    pub(crate) fn of_ranks(ranks: u32, place: impl Fn(u32) -> String) -> Vec<Self> {
        let label = |rank: u32| Self {
            name: format!("rank {rank} {}", place(rank)),
            prefix: format!("{rank}: "),
        };
        (0..ranks).map(label).collect()
    }
}

impl Options {
    pub(crate) fn new(spec: &JobSpec) -> Self {
        let style = match (spec.json, spec.no_prefix) {
            (true, _) => Style::Json,
            (_, true) => Style::Plain,
            _ => Style::Prefixed,
        };
        let timeout = spec.timeout.map(|timeout| timeout.0);
        let input = spec.input.clone().map_or(Input::Own, Input::File);
        let files = spec.files.clone();
        let (grace, has_manager) = (spec.grace.0, spec.mpi);
        Self { timeout, grace, style, input, files, noun: "rank", has_manager }
    }
}

/// Options of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Prefixed,
    Plain,
    Json,
}

/// Shows the output of ranks, line by line unless raw output is wanted.
struct Screen {
    style: Style,
    labels: Vec<Label>,
    files: Files,
    /// Incomplete lines, by rank and stream.
    lines: Vec<[Vec<u8>; 2]>,
}

impl Screen {
    fn new(style: Style, labels: Vec<Label>) -> Self {
        let lines = vec![[Vec::new(), Vec::new()]; labels.len()];
        Self { style, labels, files: Files::default(), lines }
    }

    fn name(&self, rank: u32) -> &str {
        self.labels.get(rank as usize).map_or("", |label| &label.name)
    }

    fn take(&mut self, rank: u32, output: Output, bytes: &[u8]) -> io::Result<()> {
        if self.style == Style::Plain {
            return self.files.write(rank, output, bytes);
        }
        for chunk in bytes.split_inclusive(|byte| *byte == b'\n') {
            let Some(lines) = self.lines.get_mut(rank as usize) else { return Ok(()) };
            let line = &mut lines[output as usize];
            line.extend_from_slice(chunk);
            let whole = line.ends_with(b"\n");
            if whole || line.len() > MAX_LINE {
                let text = line[..line.len() - usize::from(whole)].to_owned();
                line.clear();
                self.show(rank, output, &text)?;
            }
        }
        Ok(())
    }

    /// Finishes the output of a rank that writes no more.
    fn end(&mut self, rank: u32) -> io::Result<()> {
        for output in [Output::Out, Output::Err] {
            let Some(lines) = self.lines.get_mut(rank as usize) else { return Ok(()) };
            let text = std::mem::take(&mut lines[output as usize]);
            if !text.is_empty() {
                self.show(rank, output, &text)?;
            }
        }
        Ok(())
    }

    fn show(&mut self, rank: u32, output: Output, text: &[u8]) -> io::Result<()> {
        if self.style == Style::Json {
            let stream = if output == Output::Out { "out" } else { "err" };
            let text = String::from_utf8_lossy(text);
            return self.object(&json!({
                "event": "line", "rank": rank, "stream": stream, "text": text,
            }));
        }
        let prefix = self.labels.get(rank as usize).map_or("", |label| &label.prefix);
        let line = [prefix.as_bytes(), text, b"\n"].concat();
        self.files.write(rank, output, &line)
    }

    fn object(&self, value: &Value) -> io::Result<()> {
        write(Output::Out, format!("{value}\n").as_bytes())
    }

    /// Reports something about the job, as a line on standard error or as an object.
    fn note(&self, text: &str, value: &Value) -> io::Result<()> {
        match self.style {
            Style::Json => self.object(value),
            _ => write(Output::Err, format!("tofu: {text}\n").as_bytes()),
        }
    }
}

/// The files that outputs of ranks go to.
#[derive(Default)]
struct Files {
    names: [Option<RankFile>; 2],
    /// Those that have been made. Ranks may share them.
    open: HashMap<PathBuf, File>,
}

impl Files {
    /// `ranks` have files even if they write nothing, if the user wants that.
    fn new(names: [Option<RankFile>; 2], ranks: u32) -> io::Result<Self> {
        let mut files = Self { names, open: HashMap::new() };
        for output in [Output::Out, Output::Err] {
            for rank in 0..ranks {
                if let Some(file) = files.names[output as usize].as_ref().filter(|file| file.empty)
                {
                    let path = file.path(rank);
                    files.file(path)?;
                }
            }
        }
        Ok(files)
    }

    fn file(&mut self, path: PathBuf) -> io::Result<&mut File> {
        match self.open.entry(path) {
            Entry::Occupied(open) => Ok(open.into_mut()),
            Entry::Vacant(vacant) => {
                let path = vacant.key();
                let made = || {
                    path.parent().map_or(Ok(()), fs::create_dir_all)?;
                    File::create(path)
                };
                let cannot = |error: io::Error| {
                    let text = format!("cannot write to {}: {error}", path.display());
                    io::Error::new(error.kind(), text)
                };
                let file = made().map_err(cannot)?;
                Ok(vacant.insert(file))
            }
        }
    }

    /// Writes to a rank's file, or to this process's output of that kind.
    fn write(&mut self, rank: u32, output: Output, bytes: &[u8]) -> io::Result<()> {
        match self.names[output as usize].as_ref().map(|file| file.path(rank)) {
            Some(path) => self.file(path)?.write_all(bytes),
            None => write(output, bytes),
        }
    }
}

/// Warns the user about a job that has not begun yet.
///
/// # Errors
///
/// If output cannot be written.
pub(crate) fn warn(json: bool, text: &str) -> io::Result<()> {
    note(json, text, &json!({ "event": "warning", "text": text }))
}

/// Tells the user about a job that has not begun yet, with `value` as the object for `--json`.
///
/// # Errors
///
/// If output cannot be written.
pub(crate) fn note(json: bool, text: &str, value: &Value) -> io::Result<()> {
    let style = if json { Style::Json } else { Style::Plain };
    Screen::new(style, Vec::new()).note(text, value)
}

/// Writes to this process's output of that kind immediately.
///
/// # Errors
///
/// If it cannot be written.
pub fn write(output: Output, bytes: &[u8]) -> io::Result<()> {
    match output {
        Output::Out => {
            let mut out = io::stdout().lock();
            out.write_all(bytes).and_then(|()| out.flush())
        }
        Output::Err => io::stderr().lock().write_all(bytes),
    }
}

/// Starts a rank for each of `labels` with `start`, and watches the ranks until all have ended.
/// Returns the job's exit code, which is that of the first rank that failed.
///
/// # Errors
///
/// If a rank cannot be started, or output cannot be written.
pub(crate) fn run(
    control: &Control,
    options: Options,
    labels: Vec<Label>,
    start: &mut dyn FnMut(u32) -> anyhow::Result<Arc<dyn Rank>>,
) -> anyhow::Result<u8> {
    let ranks = labels.len() as u32;
    let mut screen = Screen::new(options.style, labels);
    screen.files = Files::new(options.files.clone(), ranks)?;
    let input = options.input.open()?;
    let (style, screen) = (options.style, Arc::new(Mutex::new(screen)));
    let until = options.timeout.map(|timeout| Instant::now() + timeout);
    let mut watch = JobWatch {
        options,
        screen: Arc::clone(&screen),
        ranks: Vec::new(),
        left: 0,
        members: BTreeSet::new(),
        stage: Stage::Runs,
        until,
        held: Vec::new(),
        code: 0,
        error: None,
    };
    for rank in 0..ranks {
        if let Some(signal) = control.signal() {
            watch.interrupt(signal);
            break;
        }
        let started = start(rank).and_then(|new| watch.attend(rank, new, control.teller()));
        if let Err(error) = started {
            watch.fail(error);
            break;
        }
    }
    if let (Some(Some(first)), Some(input)) = (watch.ranks.first(), input) {
        feed(Arc::clone(first), input)?;
    }
    let start = Instant::now();
    while watch.left > 0 || watch.stage == Stage::Unsure {
        match control.next(watch.until)? {
            Some(Event::Ended(rank, status)) => watch.ended(rank, status)?,
            Some(Event::Signal(signal)) => watch.interrupt(signal),
            Some(Event::Reported(report)) => watch.reported(report)?,
            Some(Event::Lost { node, why }) => watch.lost(&node, &why)?,
            None => watch.time_is_over()?,
        }
        watch.show_held()?;
    }
    if let Some(error) = watch.error {
        return Err(error);
    }
    if style == Style::Json {
        lock(&screen).object(&json!({
            "event": "summary", "code": watch.code, "seconds": start.elapsed().as_secs_f64(),
        }))?;
    }
    Ok(watch.code)
}

/// Gives a rank its input, on a thread that ends with the process.
fn feed(rank: Arc<dyn Rank>, mut input: Box<dyn Read + Send>) -> anyhow::Result<()> {
    let thread = thread::Builder::new().name("input".into());
    thread.spawn(move || rank.feed(&mut *input)).context("no threads left")?;
    Ok(())
}

/// The stages of a job's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// The job runs.
    Runs,
    /// A rank has ended with an error, or the last one without finalizing MPI. It may have aborted
    /// the job.
    Unsure,
    /// A rank has failed; the others may still end by themselves.
    Failed,
    /// Ranks were signalled to end.
    Asked,
    /// Ranks were killed.
    Killed,
}

struct JobWatch {
    options: Options,
    screen: Arc<Mutex<Screen>>,
    /// The ranks that have not ended.
    ranks: Vec<Option<Arc<dyn Rank>>>,
    left: usize,
    /// The ranks that have reached the process manager and have not finalized MPI.
    members: BTreeSet<u32>,
    stage: Stage,
    /// When the stage ends.
    until: Option<Instant>,
    /// Notes about ranks that have ended, as texts and objects. They are kept back while it is not
    /// known why the first one has.
    held: Vec<(String, Value)>,
    code: u8,
    error: Option<anyhow::Error>,
}

impl JobWatch {
    /// Starts forwarding a rank's output.
    fn attend(&mut self, rank: u32, started: Arc<dyn Rank>, teller: Teller) -> anyhow::Result<()> {
        let (screen, followed) = (Arc::clone(&self.screen), Arc::clone(&started));
        let follow = move || {
            let mut take = |output, bytes: &[u8]| lock(&screen).take(rank, output, bytes);
            let status = followed.follow(&mut take);
            let shown = lock(&screen).end(rank);
            let status = status.and_then(|status| shown.map(|()| status).map_err(Into::into));
            teller.tell(Event::Ended(rank, status));
        };
        let spawned = thread::Builder::new().name(format!("rank{rank}")).spawn(follow);
        if let Err(error) = spawned {
            started.kill();
            return Err(error).context("no threads left");
        }
        self.ranks.push(Some(started));
        self.left += 1;
        Ok(())
    }

    fn running(&self) -> impl Iterator<Item = &Arc<dyn Rank>> {
        self.ranks.iter().flatten()
    }

    fn enter(&mut self, stage: Stage, time: Duration) {
        self.stage = stage;
        self.until = Some(Instant::now() + time);
    }

    /// Asks all ranks to end.
    fn ask(&mut self, signal: i32) {
        self.running().for_each(|rank| rank.signal(signal));
        self.enter(Stage::Asked, self.options.grace);
    }

    fn kill(&mut self) {
        self.running().for_each(|rank| rank.kill());
        self.enter(Stage::Killed, DEATH);
    }

    /// Ends the job for an error that is not a rank's fault.
    fn fail(&mut self, error: anyhow::Error) {
        self.error.get_or_insert(error);
        self.kill();
    }

    fn interrupt(&mut self, signal: i32) {
        if self.stage < Stage::Asked {
            self.code = exit::of_signal(signal);
            self.ask(signal);
        }
    }

    fn reported(&mut self, report: Report) -> io::Result<()> {
        match report {
            // A node's programs can say that they are ranks that the job does not have.
            Report::Joined(rank) if (rank as usize) < self.ranks.len() => {
                self.members.insert(rank);
            }
            Report::Joined(_) => {}
            Report::Finalized(rank) => {
                self.members.remove(&rank);
                if self.has_succeeded() && self.members.is_empty() {
                    self.stage = Stage::Runs;
                }
            }
            Report::Aborted(rank, code) => self.abort(rank, code)?,
        }
        Ok(())
    }

    /// True if all ranks have ended without an error, as far as is known.
    fn has_succeeded(&self) -> bool {
        self.left == 0 && self.code == 0 && self.stage <= Stage::Unsure
    }

    fn abort(&mut self, rank: u32, code: i32) -> io::Result<()> {
        if self.stage > Stage::Unsure {
            return Ok(());
        }
        let value = json!({ "event": "abort", "rank": rank, "code": code });
        {
            let screen = lock(&self.screen);
            let text = format!("{} has aborted the job with code {code}", screen.name(rank));
            screen.note(&text, &value)?;
        }
        if self.options.style != Style::Json {
            // That is why they have ended.
            self.held.clear();
        }
        // A value that is no exit code, or would look like success, becomes 1, the commonest
        // failure.
        self.code = u8::try_from(code).ok().filter(|code| *code != 0).unwrap_or(1);
        self.ask(SIGTERM);
        Ok(())
    }

    /// Ends the job after the loss of a node: the work of its ranks is lost, and that of the others
    /// useless.
    fn lost(&mut self, node: &str, why: &str) -> io::Result<()> {
        if self.stage < Stage::Asked {
            let value = json!({ "event": "node_lost", "node": node, "detail": why });
            lock(&self.screen).note(&format!("node {node} is lost: {why}"), &value)?;
            if self.stage == Stage::Runs {
                self.code = EXIT_LOST;
            }
            self.kill();
        }
        Ok(())
    }

    fn ended(&mut self, rank: u32, status: anyhow::Result<Status>) -> io::Result<()> {
        let ended = self.ranks.get_mut(rank as usize).and_then(Option::take);
        self.left -= usize::from(ended.is_some());
        let (words, code) = match &status {
            Ok(Status::Code(0)) => ("ended".to_owned(), 0),
            Ok(status @ Status::Code(code)) => {
                (format!("has failed with exit code {code}"), status.exit_code())
            }
            Ok(status @ Status::Signal(signal)) => {
                (format!("was ended by {}", signal_name(*signal)), status.exit_code())
            }
            Ok(status @ Status::NotRun { why, .. }) => {
                (format!("has not run to its end: {}", tofu_ui::printable(why)), status.exit_code())
            }
            Err(error) => {
                let broken = error.downcast_ref::<io::Error>();
                if broken.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
                    // The reader of our output has gone.
                    self.fail(io::Error::from(io::ErrorKind::BrokenPipe).into());
                    return Ok(());
                }
                (format!("was lost: {error:#}"), 1)
            }
        };
        let (exit, signal) = match &status {
            Ok(Status::Code(code)) => (Some(*code), None),
            Ok(Status::Signal(signal)) => (None, Some(*signal)),
            _ => (None, None),
        };
        let first = self.stage == Stage::Runs && code != 0;
        let value = json!({
            "event": "ended", "rank": rank, "code": exit, "signal": signal, "detail": words,
        });
        // Ranks that were ended by this process are not reported.
        if self.options.style == Style::Json || (code != 0 && self.stage < Stage::Asked) {
            let text = format!("{} {words}", lock(&self.screen).name(rank));
            self.held.push((text, value));
        }
        if first {
            self.code = code;
            match status {
                Ok(Status::Code(_)) if self.options.has_manager => self.enter(Stage::Unsure, NEWS),
                _ => self.enter(Stage::Failed, self.options.grace),
            }
        } else if self.has_succeeded() && !self.members.is_empty() {
            // Of the code of `MPI_Abort`, exit codes have the last eight bits.
            self.enter(Stage::Unsure, NEWS);
        }
        Ok(())
    }

    /// Shows the notes that were kept back, unless it is too early for that.
    fn show_held(&mut self) -> io::Result<()> {
        if self.stage == Stage::Unsure {
            return Ok(());
        }
        let screen = lock(&self.screen);
        self.held.drain(..).try_for_each(|(text, value)| screen.note(&text, &value))
    }

    fn time_is_over(&mut self) -> anyhow::Result<()> {
        match self.stage {
            Stage::Runs => {
                let seconds = self.options.timeout.unwrap_or_default().as_secs_f64();
                let (left, noun) = (self.left, self.options.noun);
                let text = match left {
                    1 => format!("1 {noun} still runs after {seconds} s"),
                    left => format!("{left} {noun}s still run after {seconds} s"),
                };
                let value = json!({ "event": "timeout", "seconds": seconds });
                lock(&self.screen).note(&text, &value)?;
                self.code = EXIT_TIMEOUT;
                self.ask(SIGTERM);
            }
            Stage::Unsure => {
                self.enter(Stage::Failed, self.options.grace.saturating_sub(NEWS));
            }
            Stage::Failed => self.ask(SIGTERM),
            Stage::Asked => self.kill(),
            Stage::Killed => {
                if let Some(error) = self.error.take() {
                    return Err(error);
                }
                let screen = lock(&self.screen);
                let left = self.ranks.iter().enumerate().filter(|(_, rank)| rank.is_some());
                for (rank, _) in left {
                    let name = screen.name(rank as u32);
                    let words = "does not end, though it was killed";
                    let value = json!({ "event": "lost", "rank": rank, "detail": words });
                    screen.note(&format!("{name} {words}"), &value)?;
                }
                // A job that was already ending with an error keeps its code.
                self.left = 0;
            }
        }
        Ok(())
    }
}

/// Names a signal.
fn signal_name(number: i32) -> String {
    let names = [
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::TERM, "SIGTERM"),
    ];
    match names.iter().find(|(signal, _)| signal.as_raw() == number) {
        Some((_, name)) => format!("signal {number} ({name})"),
        None => format!("signal {number}"),
    }
}
