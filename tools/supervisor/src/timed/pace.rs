//! The paces of a machine's guests: where each is in time, and how far it may run.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use tofu_abi::topology::NodeId;
use tofu_sync::lock;
use tofu_timed::Turn;

/// Version of the pace protocol.
pub(super) const VERSION: u32 = 2;
/// Bytes of a message of the plugin.
const REQUEST: usize = 24;
/// Kinds of messages.
pub(super) const BEGIN: u32 = 1;
pub(super) const AT: u32 = 2;
pub(super) const ASLEEP: u32 = 3;
pub(super) const ACCESS: u32 = 4;
/// The longest step of a guest, and the longest sleep that is believed at once, in nanoseconds of
/// its clock.
const LONGEST_STEP: u64 = 100_000;
const LONGEST_SLEEP: u64 = 1_000_000_000;
/// The most vectors that one answer has.
const MOST_VECTORS: usize = 64;

/// How reading ends if the plugin has gone.
const GONE: [io::ErrorKind; 3] =
    [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];

/// Interrupts of each node that its guest has not got yet.
pub(super) type Pending = Arc<Vec<Mutex<Vec<u16>>>>;

/// The machine's side of all paces.
pub(super) struct Paces {
    pub(super) pending: Pending,
    /// What others may begin to do counts for a guest only after this, in picoseconds.
    pub(super) quantum: u64,
    /// Modelled picoseconds of an instruction, and so of a nanosecond of a guest's clock.
    pub(super) instruction: u64,
}

/// A node's guest in time.
pub(super) struct Pace {
    pub(super) node: NodeId,
    pub(super) turn: Turn,
    /// True if it has begun before. Then time does not wait for it.
    begun: Mutex<bool>,
    line: Mutex<Line>,
}

/// The connection of a plugin, to end it.
#[derive(Default)]
struct Line {
    plugin: Option<UnixStream>,
    stopped: bool,
}

impl Pace {
    pub(super) fn new(node: NodeId, turn: Turn) -> Self {
        Self { node, turn, begun: Mutex::new(false), line: Mutex::default() }
    }

    /// Takes the connection of a plugin. Returns false if the machine ends.
    fn connect(&self, plugin: &UnixStream) -> io::Result<bool> {
        let mut line = lock(&self.line);
        line.plugin = Some(plugin.try_clone()?);
        Ok(!line.stopped)
    }

    /// Hangs up on the plugin, and on later ones.
    pub(super) fn hang_up(&self) {
        let mut line = lock(&self.line);
        line.stopped = true;
        if let Some(plugin) = &line.plugin {
            let _ = plugin.shutdown(std::net::Shutdown::Both);
        }
    }

    /// True if the machine has ended.
    pub(super) fn is_stopped(&self) -> bool {
        lock(&self.line).stopped
    }

    /// Lets time pass without the guest, if it never begins.
    pub(super) fn give_up(&self) {
        if !std::mem::replace(&mut *lock(&self.begun), true) {
            self.turn.rest();
        }
    }
}

/// A message of the plugin: its kind, a version, and two times.
fn parse(message: &[u8; REQUEST]) -> (u32, u32, u64, u64) {
    let word = |at: usize| message[at..at + 8].iter().rev().fold(0, |n, &b| n << 8 | u64::from(b));
    (word(0) as u32, (word(0) >> 32) as u32, word(8), word(16))
}

fn bad(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

/// The answer to a plugin.
struct Go {
    until_ns: u64,
    vectors: Vec<u16>,
}

impl Paces {
    /// Keeps the time of a guest whose plugin has connected, until that goes.
    ///
    /// # Errors
    ///
    /// If the plugin is not one for this machine, or breaks the protocol. In the first case
    /// nothing has changed, and the guest has not [begun](Pace::begun).
    pub(super) fn keep(&self, pace: &Pace, mut plugin: UnixStream) -> io::Result<()> {
        if !pace.connect(&plugin)? {
            return Err(bad("the machine ends"));
        }
        let mut message = [0; REQUEST];
        let result = match plugin.read_exact(&mut message).map(|()| parse(&message)) {
            Ok((BEGIN, VERSION, ..)) => {
                let result = self.take_turns(pace, &mut plugin);
                pace.turn.rest();
                result
            }
            Ok((_, version, ..)) => {
                Err(bad(format!("its plugin speaks version {version}, not {VERSION}")))
            }
            Err(error) => Err(error),
        };
        // Closes the connection, which this holds, too.
        lock(&pace.line).plugin = None;
        result
    }

    fn take_turns(&self, pace: &Pace, plugin: &mut UnixStream) -> io::Result<()> {
        let Pace { turn, .. } = pace;
        // Time begins when all guests have come, as each of them has a turn at 0. The clock of each
        // guest begins at 0.
        let again = std::mem::replace(&mut *lock(&pace.begun), true);
        let base = if again { turn.resume() } else { turn.begin() }.map_err(io::Error::other)?;
        let to_ps = |ns: u64| {
            let ps = ns.checked_mul(self.instruction).and_then(|ps| ps.checked_add(base));
            ps.ok_or_else(|| bad("a time of months"))
        };
        let mut message = [0; REQUEST];
        let (mut last, mut go) = (0, self.go(turn, base, 0));
        turn.leave(to_ps(1)?);
        loop {
            match answer(plugin, &go).and_then(|()| plugin.read_exact(&mut message)) {
                // A guest that is killed ends in any of these ways.
                Err(error) if GONE.contains(&error.kind()) => return Ok(()),
                result => result?,
            }
            let (kind, _, at, until) = parse(&message);
            if ![AT, ASLEEP, ACCESS].contains(&kind) || at < last {
                return Err(bad(format!("message {kind} for {at} ns after {last} ns")));
            }
            last = at;
            turn.reach(to_ps(at)?).map_err(io::Error::other)?;
            let vectors = self.fired(pace.node);
            go = match kind {
                // The turn is its own until it says where it is after the access.
                ACCESS => Go { until_ns: at, vectors },
                ASLEEP if vectors.is_empty() && until > at => {
                    // Until then, or until something happens at its node. It gets what that is
                    // when it is there.
                    let until = to_ps(until.min(at.saturating_add(LONGEST_SLEEP)))?;
                    let woken = turn.look(self.instruction, until).map_err(io::Error::other)?;
                    turn.leave(woken);
                    let woken = woken.saturating_sub(base) / self.instruction;
                    Go { until_ns: woken.max(at + 1), vectors }
                }
                _ => {
                    let go = Go { vectors, ..self.go(turn, base, at) };
                    turn.leave(to_ps(at + 1)?);
                    go
                }
            };
        }
    }

    /// The time until which a guest with the turn may run from `at` on, in nanoseconds of its
    /// clock, which began at `base`.
    fn go(&self, turn: &Turn, base: u64, at: u64) -> Go {
        let horizon = turn.horizon(self.quantum).saturating_sub(base) / self.instruction;
        let longest = at.saturating_add(LONGEST_STEP);
        Go { until_ns: horizon.min(longest).max(at.saturating_add(1)), vectors: Vec::new() }
    }

    /// Interrupts of a node that its guest has not got.
    fn fired(&self, node: NodeId) -> Vec<u16> {
        let mut pending = lock(&self.pending[node.index()]);
        let few = pending.len().min(MOST_VECTORS);
        pending.drain(..few).collect()
    }
}

fn answer(plugin: &mut UnixStream, go: &Go) -> io::Result<()> {
    let mut answer = Vec::with_capacity(16 + 4 * go.vectors.len());
    answer.extend(go.until_ns.to_le_bytes());
    answer.extend((go.vectors.len() as u32).to_le_bytes());
    answer.extend(0u32.to_le_bytes());
    answer.extend(go.vectors.iter().flat_map(|vector| u32::from(*vector).to_le_bytes()));
    plugin.write_all(&answer)
}
