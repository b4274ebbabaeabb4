//! Input of a machine in modelled time from outside: to consoles and agents of guests, and changes
//! of the network.
//!
//! The host has input at arbitrary times. A guest gets it at a boundary, at each millisecond of the
//! machine's time. So a run depends on the host only through the boundaries at which input came:
//! the same input at the same boundaries gives the same run. A record has both; a replay takes its
//! input from one. The same holds for changes, such as links that commands take down.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, SendError, Sender};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use base64::prelude::{BASE64_STANDARD, Engine};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use tofu_abi::Coords;
use tofu_abi::topology::NodeId;
use tofu_control::protocol::Request;
use tofu_fabric::Ps;
use tofu_machine::AnyNetwork;
use tofu_pace::message::Input;
use tofu_pace::{INPUT, PORTS};
use tofu_spec::plan::InputLog;
use tofu_sync::lock;

use crate::changes::{self, Changed};
use crate::timed::between::Between;

/// The time between two boundaries (*ours*), in picoseconds.
pub(super) const PERIOD: Ps = 1_000_000_000;
/// The host's time in which input of other guests may follow to come at the same boundary (*ours*),
/// and the longest time for all of it. A host starts the ranks of a job one after the other. If one
/// started a millisecond before the others and polled for them, it would take the host seconds.
const FOLLOWS: Duration = Duration::from_millis(2);
const MOST_FOLLOWS: Duration = Duration::from_millis(50);
/// Guests that got more bytes than this at their last boundary have files copied to them, for which
/// nothing waits.
const MUCH: usize = 4 << 10;
/// Version of a record.
const VERSION: u32 = 2;
/// The most changes that wait for a boundary.
const MOST_CHANGES: usize = 1024;
/// The time that a command waits for the boundary at which its change comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The ports of a guest, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Port {
    Console,
    Agent,
}

const ALL: [Port; PORTS] = [Port::Console, Port::Agent];

/// A record that is open, as the process may open no files later.
#[derive(Clone, Debug)]
pub struct InputFile {
    log: InputLog,
    file: Arc<File>,
}

impl InputFile {
    /// Creates the record, or opens the one that is replayed.
    pub(crate) fn open(log: &InputLog) -> anyhow::Result<Self> {
        let (option, path, file) = match log {
            InputLog::Record(path) => ("--record", path, File::create(path)),
            InputLog::Replay(path) => ("--replay", path, File::open(path)),
        };
        let file = file.with_context(|| format!("{option} {}", path.display()))?;
        Ok(Self { log: log.clone(), file: Arc::new(file) })
    }
}

/// The first line of a record.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    tofu_input: u32,
    machine: String,
}

/// A line of a record: what came at a boundary.
#[derive(Debug, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    untagged,
    expecting = "neither input of a guest nor a change of the network"
)]
enum Line {
    /// Input of a guest.
    Input { ps: Ps, node: String, port: Port, base64: String },
    /// A change of the network.
    Change { ps: Ps, change: Request },
}

/// A line of a record that is replayed.
struct Entry {
    ps: Ps,
    what: What,
}

enum What {
    Input { guest: usize, port: Port, bytes: Vec<u8> },
    Change(Request),
}

/// A change that a command waits for.
struct Asked {
    change: Request,
    result: Sender<anyhow::Result<()>>,
}

/// The sources of a guest's input.
#[derive(Default)]
struct Guest {
    /// The other ends of what its console and agent are written to, until these are closed.
    sources: [Option<UnixStream>; PORTS],
    /// Bytes that have been sent to each port, by the guest's page.
    sent: [u64; PORTS],
    /// True if it got more than [`MUCH`] from a source the last time.
    has_much: bool,
    /// Input that it gets with the next answer.
    pending: Input,
}

struct State {
    guests: Vec<Guest>,
    record: Option<Record>,
    replay: Option<VecDeque<Entry>>,
    asked: Vec<Asked>,
}

/// A record that is being written.
struct Record {
    path: PathBuf,
    file: BufWriter<Arc<File>>,
}

impl Record {
    fn line(&mut self, line: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.file, line)?;
        self.file.write_all(b"\n")
    }

    /// Writes a line. Without room for it, there is no record from then on.
    fn note(record: &mut Option<Self>, line: &Line) {
        let Some(this) = record else { return };
        if let Err(error) = this.line(line).and_then(|()| this.file.flush()) {
            log::error!("the record {} ends here: {error}", this.path.display());
            *record = None;
        }
    }
}

/// The input of the guests and the network.
pub(super) struct Outside {
    nodes: Vec<(NodeId, Coords)>,
    between: Arc<Between>,
    /// The network, which reaches this, too.
    network: Weak<dyn AnyNetwork>,
    state: Mutex<State>,
    hears: OnceLock<Hears>,
}

/// Hears of changes.
type Hears = Box<dyn Fn(Changed) + Send + Sync>;

impl Outside {
    /// The input of the guests of these nodes, in the order of their numbers. `machine` says what a
    /// record is of.
    ///
    /// # Errors
    ///
    /// If a record cannot be written, or is not one of such a machine.
    pub(super) fn new(
        nodes: Vec<(NodeId, Coords)>,
        between: Arc<Between>,
        network: Weak<dyn AnyNetwork>,
        input: Option<&InputFile>,
        machine: String,
    ) -> anyhow::Result<Self> {
        let (mut record, mut replay) = (None, None);
        if let Some(InputFile { log, file }) = input {
            match log {
                InputLog::Record(path) => {
                    let file = BufWriter::new(Arc::clone(file));
                    let mut new = Record { path: path.clone(), file };
                    new.line(&Head { tofu_input: VERSION, machine })?;
                    new.file.flush()?;
                    record = Some(new);
                }
                InputLog::Replay(path) => {
                    let entries = read(file, &machine, &nodes);
                    let entries = entries.with_context(|| format!("--replay {}", path.display()));
                    replay = Some(entries?);
                }
            }
        }
        let guests = nodes.iter().map(|_| Guest::default()).collect();
        let state = Mutex::new(State { guests, record, replay, asked: Vec::new() });
        Ok(Self { nodes, between, network, state, hears: OnceLock::new() })
    }

    /// Calls this when something has changed. Only the first call has an effect.
    pub(super) fn on_change(&self, hears: Hears) {
        // Another one hears of it.
        let _ = self.hears.set(hears);
    }

    /// Changes the network at the next boundary, and waits for it unless time stands still.
    ///
    /// # Errors
    ///
    /// One line for the user: the change is refused, comes from a record, or comes late.
    pub(super) fn change(&self, change: Request, stands: bool) -> anyhow::Result<()> {
        let (result, answer) = mpsc::channel();
        {
            let mut state = lock(&self.state);
            if state.replay.is_some() {
                bail!("the changes of a machine that is replayed come from its record");
            }
            ensure!(state.asked.len() < MOST_CHANGES, "{MOST_CHANGES} changes wait already");
            state.asked.push(Asked { change, result });
        }
        if stands {
            return Ok(());
        }
        match answer.recv_timeout(PATIENCE) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => bail!(
                "modelled time stands still or is slow; the change comes with its next millisecond"
            ),
            Err(RecvTimeoutError::Disconnected) => bail!("the machine has ended"),
        }
    }

    /// The number of changes that wait for a boundary.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        lock(&self.state).asked.len()
    }

    /// Changes the network now. Returns the nodes that the change names.
    fn apply(&self, change: &Request) -> anyhow::Result<Vec<NodeId>> {
        let network = self.network.upgrade().context("the machine has ended")?;
        for changed in changes::apply(&*network, change)? {
            if let Some(hears) = self.hears.get() {
                hears(changed);
            }
        }
        Ok(changes::nodes_of(change))
    }

    /// Takes the sources of a node's guest, whose virtual machine is about to start.
    ///
    /// # Errors
    ///
    /// If they cannot be made not to block.
    pub(super) fn attach(&self, node: NodeId, sources: [UnixStream; PORTS]) -> anyhow::Result<()> {
        let guest = self.nodes.iter().position(|(id, _)| *id == node);
        let guest = guest.context("the node has no guest")?;
        for source in &sources {
            source.set_nonblocking(true)?;
        }
        let sent = [0, 1].map(|port| self.between.pages.taken(guest, port));
        lock(&self.state).guests[guest] =
            Guest { sources: sources.map(Some), sent, ..Guest::default() };
        Ok(())
    }

    /// Takes what has come until a boundary. Returns the nodes to which something has come.
    pub(super) fn take(&self, at: Ps) -> Vec<NodeId> {
        self.take_within(at, [FOLLOWS, MOST_FOLLOWS])
    }

    fn take_within(&self, at: Ps, follows: [Duration; 2]) -> Vec<NodeId> {
        let mut state = lock(&self.state);
        let mut nodes = self.replay(&mut state, at);
        let State { guests, record, replay, asked } = &mut *state;
        for Asked { change, result } in asked.drain(..) {
            let applied = self.apply(&change);
            if let Ok(named) = &applied {
                nodes.extend(named);
                Record::note(record, &Line::Change { ps: at, change });
            }
            if let Err(SendError(Err(error))) = result.send(applied.map(drop)) {
                log::warn!("a change that no command waits for: {error:#}");
            }
        }
        // Nothing need come together that a replay discards.
        let follows = if replay.is_some() { Default::default() } else { follows };
        let ready = self.ready(guests, follows);
        self.read(guests, &ready, record, replay.is_some(), at);
        let all = guests.iter().zip(&self.nodes);
        let has_input = all.filter(|(guest, _)| guest.pending.iter().any(|port| !port.is_empty()));
        nodes.extend(has_input.map(|(_, (node, _))| *node));
        nodes
    }

    /// Takes what a record has until a boundary. Returns the nodes that its changes name.
    fn replay(&self, state: &mut State, at: Ps) -> Vec<NodeId> {
        let mut nodes = Vec::new();
        while let Some(entries) = &mut state.replay
            && let Some(entry) = entries.pop_front_if(|entry| entry.ps <= at)
        {
            match entry.what {
                What::Input { guest, port, bytes } => {
                    let pending = &mut state.guests[guest].pending[port as usize];
                    let room = INPUT.saturating_sub(pending.len());
                    pending.extend(bytes.iter().take(room));
                }
                What::Change(change) => match self.apply(&change) {
                    Ok(named) => nodes.extend(named),
                    Err(error) => log::warn!("the record changes what it cannot: {error:#}"),
                },
            }
        }
        nodes
    }

    /// Returns the ports to which input has come for which guests have room, or whose sources have
    /// ended. If there are some, others have some time to follow, until each guest has input.
    fn ready(&self, guests: &[Guest], [follows, most]: [Duration; 2]) -> Vec<(usize, Port)> {
        let mut ready = self.ready_within(guests, &[], Duration::ZERO);
        let end = Instant::now() + most;
        let has_input =
            |ready: &[(usize, Port)], number| ready.iter().any(|(one, _)| *one == number);
        let is_copied_to = |(number, _): &(usize, Port)| guests[*number].has_much;
        while !ready.is_empty()
            && !(0..guests.len()).all(|number| has_input(&ready, number))
            && !ready.iter().any(is_copied_to)
            && Instant::now() < end
        {
            let more = self.ready_within(guests, &ready, follows);
            if more.is_empty() {
                break;
            }
            ready.extend(more);
        }
        ready
    }

    /// The same for ports to which it comes within a time, without those that are known. All are
    /// polled together.
    fn ready_within(
        &self,
        guests: &[Guest],
        known: &[(usize, Port)],
        time: Duration,
    ) -> Vec<(usize, Port)> {
        let all = guests.iter().enumerate().flat_map(|(n, guest)| {
            let ports = guest.sources.iter().zip(ALL);
            ports.filter_map(move |(source, port)| Some((source.as_ref()?, (n, port))))
        });
        let is_asked = |at: &(usize, Port)| !known.contains(at) && self.room(guests, *at) > 0;
        let all: Vec<_> = all.filter(|(_, at)| is_asked(at)).collect();
        let mut asked: Vec<_> =
            all.iter().map(|(source, _)| PollFd::new(*source, PollFlags::IN)).collect();
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        // On an error, they are polled again at the next boundary.
        if poll(&mut asked, Some(&time)).unwrap_or(0) == 0 {
            return Vec::new();
        }
        let ready = all.iter().zip(&asked).filter(|(_, asked)| !asked.revents().is_empty());
        ready.map(|((_, at), _)| *at).collect()
    }

    /// Returns the bytes of input for which a guest has room at a port.
    fn room(&self, guests: &[Guest], (number, port): (usize, Port)) -> usize {
        let sent = guests[number].sent[port as usize];
        let taken = self.between.pages.taken(number, port as usize).min(sent);
        INPUT.saturating_sub(usize::try_from(sent - taken).unwrap_or(usize::MAX))
    }

    /// Reads the input of these ports.
    fn read(
        &self,
        guests: &mut [Guest],
        ready: &[(usize, Port)],
        record: &mut Option<Record>,
        recorded: bool,
        at: Ps,
    ) {
        for (number, port) in ready.iter().copied() {
            let room = self.room(guests, (number, port));
            let Guest { sources, sent, has_much, pending } = &mut guests[number];
            let (index, source) = (port as usize, &mut sources[port as usize]);
            if recorded {
                // It comes from the record.
                read_some(source, INPUT);
                continue;
            }
            let bytes = read_some(source, room);
            if bytes.is_empty() {
                continue;
            }
            *has_much = bytes.len() > MUCH;
            sent[index] += bytes.len() as u64;
            if record.is_some() {
                let (node, base64) =
                    (self.nodes[number].1.to_string(), BASE64_STANDARD.encode(&bytes));
                Record::note(record, &Line::Input { ps: at, node, port, base64 });
            }
            pending[index].extend(bytes);
        }
    }

    /// The input that a guest gets now.
    pub(super) fn input(&self, guest: usize) -> Input {
        let mut state = lock(&self.state);
        state
            .guests
            .get_mut(guest)
            .map(|guest| std::mem::take(&mut guest.pending))
            .unwrap_or_default()
    }
}

/// Reads from a source, at most so many bytes. One that has ended is closed.
fn read_some(source: &mut Option<UnixStream>, most: usize) -> Vec<u8> {
    let mut bytes = vec![0; most];
    let read = source.as_mut().map(|source| source.read(&mut bytes));
    if matches!(read, Some(Ok(0))) && most > 0 {
        *source = None;
    }
    bytes.truncate(read.and_then(Result::ok).unwrap_or(0));
    bytes
}

/// Reads a record of a machine.
fn read(file: &File, machine: &str, nodes: &[(NodeId, Coords)]) -> anyhow::Result<VecDeque<Entry>> {
    let mut lines = BufReader::new(file).lines();
    let head = lines.next().context("an empty file")??;
    let head: Head = serde_json::from_str(&head).context("line 1: this is no record of input")?;
    let version = head.tofu_input;
    ensure!(version == VERSION, "line 1: a record of version {version}, not {VERSION}");
    ensure!(
        head.machine == machine,
        "it was recorded on another machine: {}; this one is {machine}",
        head.machine
    );
    let mut entries = VecDeque::new();
    for (line, number) in lines.zip(2..) {
        let entry = line.map_err(Into::into).and_then(|line| entry(&line, nodes));
        let entry = entry.with_context(|| format!("line {number}"))?;
        if entries.back().is_some_and(|last: &Entry| entry.ps < last.ps) {
            bail!("line {number}: it is earlier than the line before");
        }
        entries.push_back(entry);
    }
    Ok(entries)
}

fn entry(line: &str, nodes: &[(NodeId, Coords)]) -> anyhow::Result<Entry> {
    let (ps, node, port, base64) = match serde_json::from_str(line)? {
        Line::Input { ps, node, port, base64 } => (ps, node, port, base64),
        Line::Change { ps, change } => {
            ensure!(changes::is_change(&change), "not a change of the network");
            return Ok(Entry { ps, what: What::Change(change) });
        }
    };
    let guest = nodes.iter().position(|(_, at)| at.to_string() == node);
    let guest = guest.with_context(|| format!("the machine has no guest at {node}"))?;
    let bytes = BASE64_STANDARD.decode(base64)?;
    ensure!(bytes.len() <= INPUT, "{} bytes; {INPUT} at most", bytes.len());
    Ok(Entry { ps, what: What::Input { guest, port, bytes } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timed::network::TimedNetwork;
    use tofu_pace::pages::Pages;

    const MACHINE: &str = "a machine";
    /// Longer than a test may wait.
    const LONG: Duration = Duration::from_secs(60);

    fn outside(log: Option<&InputLog>, machine: &str) -> anyhow::Result<Outside> {
        let pages = Pages::new(2, 1000, 0).unwrap();
        let between = Arc::new(Between { pages, longest_step: 1 });
        let at = |x| Coords { x, ..Coords::default() };
        let nodes = vec![(NodeId(0), at(0)), (NodeId(7), at(1))];
        let input = log.map(InputFile::open).transpose()?;
        let network = Weak::<TimedNetwork>::new();
        Outside::new(nodes, between, network, input.as_ref(), machine.to_owned())
    }

    /// Our ends of what a guest's console and agent are written to.
    fn attached(outside: &Outside, node: NodeId) -> [UnixStream; PORTS] {
        let [console, agent] = [0, 1].map(|_| UnixStream::pair().unwrap());
        outside.attach(node, [console.1, agent.1]).unwrap();
        [console.0, agent.0]
    }

    #[test]
    fn input_comes_at_boundaries_and_again_in_a_replay() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_owned();
        let first = outside(Some(&InputLog::Record(path.clone())), MACHINE).unwrap();
        let [mut console, mut agent] = attached(&first, NodeId(7));
        assert!(first.take(1).is_empty());
        console.write_all(b"typed").unwrap();
        assert_eq!(first.take(2), [NodeId(7)]);
        assert_eq!(first.input(1), [b"typed".to_vec(), Vec::new()]);
        assert_eq!(first.input(1), Input::default());
        agent.write_all(b"asked").unwrap();
        assert_eq!(first.take(3), [NodeId(7)]);
        drop(first);

        let again = outside(Some(&InputLog::Replay(path.clone())), MACHINE).unwrap();
        let [mut console, _agent] = attached(&again, NodeId(7));
        // It has been recorded, and does not count any more.
        console.write_all(b"other").unwrap();
        assert!(again.take(1).is_empty());
        assert_eq!(again.take(2), [NodeId(7)]);
        assert_eq!(again.input(1), [b"typed".to_vec(), Vec::new()]);
        assert_eq!(again.take(3), [NodeId(7)]);
        assert_eq!(again.input(1), [Vec::new(), b"asked".to_vec()]);
        assert!(again.take(4).is_empty());

        let error = outside(Some(&InputLog::Replay(path)), "another").err().unwrap();
        let error = format!("{error:#}");
        assert!(error.ends_with("on another machine: a machine; this one is another"), "{error}");
    }

    #[test]
    fn a_guest_that_takes_nothing_has_bounded_input() {
        let outside = outside(None, MACHINE).unwrap();
        let [mut console, mut agent] = attached(&outside, NodeId(0));
        console.set_nonblocking(true).unwrap();
        let mut got = 0;
        for at in 0..50 {
            // As much as the socket has room for.
            while console.write(&[b'x'; 4096]).is_ok() {}
            outside.take(at);
            got += outside.input(0)[0].len();
        }
        assert_eq!(got, INPUT);
        // Its other port is not affected.
        agent.write_all(b"asked").unwrap();
        outside.take(50);
        assert_eq!(outside.input(0)[1], b"asked");
    }

    #[test]
    fn input_that_follows_comes_at_the_same_boundary() {
        let outside = outside(None, MACHINE).unwrap();
        let [_console, mut first] = attached(&outside, NodeId(0));
        let [_console, mut second] = attached(&outside, NodeId(7));
        let (turn, comes) = mpsc::channel();
        std::thread::scope(|scope| {
            let later = &mut second;
            scope.spawn(move || {
                comes.recv().unwrap();
                later.write_all(b"second").unwrap();
            });
            first.write_all(b"first").unwrap();
            turn.send(()).unwrap();
            outside.take_within(1, [LONG; 2]);
        });
        assert_eq!(
            [outside.input(0), outside.input(1)].map(|[_, agent]| agent),
            [b"first".to_vec(), b"second".to_vec()]
        );
        // Nothing waits for others while files are copied.
        for at in 2..4 {
            first.write_all(&[b'x'; MUCH + 1]).unwrap();
            if at == 2 {
                second.write_all(b"second").unwrap();
            }
            outside.take_within(at, [LONG; 2]);
            assert_eq!(outside.input(0)[1].len(), MUCH + 1);
        }
    }

    #[test]
    fn input_without_room_holds_nobody_up() {
        let outside = outside(None, MACHINE).unwrap();
        let [mut console, _agent] = attached(&outside, NodeId(0));
        let _other = attached(&outside, NodeId(7));
        // Not so much at once that nothing waits anyway.
        for at in 0..INPUT / MUCH {
            console.write_all(&[b'x'; MUCH]).unwrap();
            outside.take(at as Ps);
        }
        assert_eq!(outside.input(0)[0].len(), INPUT);
        console.write_all(b"more").unwrap();
        let start = Instant::now();
        assert!(outside.take_within(50, [LONG; 2]).is_empty());
        assert!(start.elapsed() < LONG);
    }

    #[test]
    fn sources_of_an_ended_guest_are_closed() {
        let outside = outside(None, MACHINE).unwrap();
        let [mut console, agent] = attached(&outside, NodeId(7));
        console.write_all(b"last").unwrap();
        drop((console, agent));
        outside.take(1);
        assert_eq!(outside.input(1)[0], b"last");
        outside.take(2);
        assert!(lock(&outside.state).guests[1].sources.iter().all(Option::is_none));
        // The next guest of the node has input as the first.
        let [mut console, _agent] = attached(&outside, NodeId(7));
        console.write_all(b"first").unwrap();
        assert_eq!(outside.take(3), [NodeId(7)]);
        assert_eq!(outside.input(1)[0], b"first");
    }

    #[test]
    fn bad_records_are_refused_by_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let head = format!("{{\"tofu_input\":2,\"machine\":\"{MACHINE}\"}}\n");
        let line = |ps: u32, node: &str| {
            format!("{{\"ps\":{ps},\"node\":\"{node}\",\"port\":\"agent\",\"base64\":\"AA==\"}}\n")
        };
        let there = "(0,0,0,0,0,0)";
        for (text, why) in [
            (String::new(), "an empty file"),
            ("{}\n".into(), "line 1: this is no record of input"),
            (head.replace(":2", ":9"), "line 1: a record of version 9, not 2"),
            (head.clone() + &line(5, "(0,0,0,0,0,2)"), "the machine has no guest at (0,0,0,0,0,2)"),
            (head.clone() + &line(5, there) + &line(4, there), "line 3: it is earlier than"),
            (head.clone() + &line(5, there).replace("AA", "!"), "line 2: Invalid"),
        ] {
            std::fs::write(file.path(), text).unwrap();
            let replay = InputLog::Replay(file.path().to_owned());
            let error = format!("{:#}", outside(Some(&replay), MACHINE).err().unwrap());
            assert!(error.starts_with("--replay ") && error.contains(why), "{error}");
        }
        let missing = InputLog::Replay(file.path().join("none"));
        let error = format!("{:#}", outside(Some(&missing), MACHINE).err().unwrap());
        assert!(error.starts_with("--replay "), "{error}");
    }
}
