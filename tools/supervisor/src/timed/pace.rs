//! The paces of a machine's guests: the time of each, and the time until which it may run.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tofu_abi::topology::NodeId;
use tofu_fabric::chance;
use tofu_machine::GuestPassed;
use tofu_pace::message::{self, Go, Input, MOST_VECTORS, Message};
use tofu_pace::{LONGEST_STEP, VERSION};
use tofu_spec::units::milliseconds;
use tofu_sync::lock;
use tofu_timed::Turn;

use crate::timed::between::Between;
use crate::timed::outside::Outside;
use crate::timed::until::Stop;

/// The longest sleep of a guest that is granted at a time, in nanoseconds of its clock.
const LONGEST_SLEEP: u64 = 1_000_000_000;
/// Guests begin at most so much later than the first, with a seed, in picoseconds.
const LONGEST_DELAY: u64 = 1_000_000;

/// The ends of reading if the plugin has gone.
const GONE: [io::ErrorKind; 3] =
    [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];

/// Interrupts of each node that its guest has not got yet.
pub(super) type Pending = Arc<Vec<Mutex<Vec<u16>>>>;

/// The machine's side of all paces.
///
/// Each plugin has a thread that reads its messages. No such thread waits for a turn: the thread
/// that finds that a guest has got its turn answers that guest's plugin.
pub(super) struct Paces {
    /// The guests that have begun, by the numbers of their turns.
    pub(super) guests: Mutex<Vec<Option<Guest>>>,
    pub(super) pending: Pending,
    pub(super) between: Arc<Between>,
    /// The time after which others' doings count for a guest, in picoseconds.
    pub(super) quantum: u64,
    /// Modelled picoseconds of an instruction, and so of a nanosecond of a guest's clock.
    pub(super) instruction: u64,
    /// The number that chooses when each guest begins.
    pub(super) seed: Option<u32>,
    /// Input of guests, if it comes through the machine.
    pub(super) outside: OnceLock<Arc<Outside>>,
    /// The point at which time stops.
    pub(super) stop: Stop,
}

/// The pace of a node's guest.
pub(super) struct Pace {
    pub(super) node: NodeId,
    pub(super) turn: Turn,
    /// True if it has begun before. Then time does not wait for it.
    begun: Mutex<bool>,
    line: Mutex<Line>,
    spent: Mutex<Spent>,
}

/// The time that a guest has spent.
#[derive(Clone, Copy, Default)]
struct Spent {
    /// Modelled picoseconds in which it was awake.
    awake: u64,
    /// The host's time in which it ran.
    host: Duration,
    steps: u64,
    accesses: u64,
}

/// The connection of a plugin, to end it.
#[derive(Default)]
struct Line {
    plugin: Option<UnixStream>,
    stopped: bool,
}

impl Line {
    fn hang_up(&self) {
        if let Some(plugin) = &self.plugin {
            let _ = plugin.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Pace {
    pub(super) fn new(node: NodeId, turn: Turn) -> Self {
        let (begun, line, spent) = (Mutex::new(false), Mutex::default(), Mutex::default());
        Self { node, turn, begun, line, spent }
    }

    /// The time that has passed at its node.
    pub(super) fn passed(&self, between: &Between) -> GuestPassed {
        let Spent { awake, host, steps, accesses } = *lock(&self.spent);
        let (own, waited) = between.pages.steps(self.turn.program());
        let (steps, host) =
            (steps.saturating_add(own), host.saturating_sub(Duration::from_nanos(waited)));
        let host_ns = u64::try_from(host.as_nanos()).unwrap_or(u64::MAX);
        let awake_ns = awake / 1000;
        let node = self.node;
        GuestPassed { node, awake_ns, host_ns, steps, accesses, commands: 0, in_flight_ns: 0 }
    }

    /// Takes the connection of a plugin. Returns false if the machine ends.
    fn connect(&self, plugin: &UnixStream) -> io::Result<bool> {
        let mut line = lock(&self.line);
        line.plugin = Some(plugin.try_clone()?);
        Ok(!line.stopped)
    }

    /// Hangs up on the plugin. Another one may connect later.
    fn hang_up(&self) {
        lock(&self.line).hang_up();
    }

    /// Ends its time: hangs up on the plugin, and on later ones.
    pub(super) fn stop(&self) {
        self.turn.stop();
        let mut line = lock(&self.line);
        line.stopped = true;
        line.hang_up();
    }

    /// True if the machine has ended.
    pub(super) fn is_stopped(&self) -> bool {
        lock(&self.line).stopped
    }
}

fn bad(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

/// A guest whose plugin has said that it begins.
pub(super) struct Guest {
    pace: Arc<Pace>,
    plugin: UnixStream,
    /// When its clock was 0, in picoseconds.
    base: u64,
    /// Its last known time, in nanoseconds of its clock.
    last: u64,
    /// True if it slept from there on.
    slept: bool,
    /// When it was answered last.
    since: Instant,
    /// Its request.
    asked: Option<Asked>,
    /// The request that it will make again when time continues, which stands still.
    frozen: Option<Asked>,
    /// Vectors and input that it gets with its next answer, as it was due before time stopped.
    kept: Option<(Vec<u16>, Input)>,
}

/// A request of a guest.
#[derive(Clone, Copy)]
enum Asked {
    /// The beginning of its time.
    Begin,
    /// To continue.
    Go,
    /// To have the device for an access.
    Access,
    /// To sleep until a time of its clock, or until something happens at its node.
    Sleep(u64),
    /// To be woken.
    Wake,
    /// To continue after time has stood still.
    GoOn,
}

impl Guest {
    /// Converts a time of its clock to the machine's.
    fn to_ps(&self, ns: u64, instruction: u64) -> io::Result<u64> {
        let ps = ns.checked_mul(instruction).and_then(|ps| ps.checked_add(self.base));
        ps.ok_or_else(|| bad("a time of months"))
    }

    fn answer(&mut self, until_ns: u64, vectors: Vec<u16>, input: Input) -> io::Result<()> {
        self.since = Instant::now();
        Go { until_ns, guest: 0, vectors, input }.send(&self.plugin, &[])
    }
}

impl Paces {
    /// Keeps the time of a guest whose plugin has connected, until that goes.
    ///
    /// # Errors
    ///
    /// If the plugin is not one for this machine, or breaks the protocol. In the first case
    /// nothing has changed, and the guest has not begun.
    pub(super) fn keep(&self, pace: &Arc<Pace>, plugin: UnixStream) -> io::Result<()> {
        if !pace.connect(&plugin)? {
            return Err(bad("the machine ends"));
        }
        let result = match Message::receive(&plugin) {
            Ok(Message { kind: message::BEGIN, version: VERSION, at_ns, .. }) => {
                let begun = self.begin(pace, &plugin, at_ns);
                let result = begun.and_then(|()| self.listen(pace, plugin));
                lock(&self.guests)[pace.turn.program()] = None;
                pace.turn.rest();
                // Others may have waited for it.
                self.answer_all(&mut lock(&self.guests), pace);
                result
            }
            Ok(Message { version, .. }) => {
                Err(bad(format!("its plugin speaks version {version}, not {VERSION}")))
            }
            Err(error) => Err(error),
        };
        // Closes the connection, which this holds, too.
        lock(&pace.line).plugin = None;
        result
    }

    /// Lets time pass without a guest, if it has never begun.
    pub(super) fn give_up(&self, pace: &Pace) {
        if !std::mem::replace(&mut *lock(&pace.begun), true) {
            pace.turn.rest();
            self.answer_all(&mut lock(&self.guests), pace);
        }
    }

    /// Time begins when all guests have come, as each of them has a turn at 0. A guest whose clock
    /// shows a later time, as that of a clone does, begins at that time.
    fn begin(&self, pace: &Arc<Pace>, plugin: &UnixStream, clock_ns: u64) -> io::Result<()> {
        let guest = Guest {
            pace: Arc::clone(pace),
            plugin: plugin.try_clone()?,
            base: 0,
            last: clock_ns,
            slept: false,
            since: Instant::now(),
            asked: Some(Asked::Begin),
            frozen: None,
            kept: None,
        };
        let at = guest.to_ps(clock_ns, self.instruction)?;
        let mut guests = lock(&self.guests);
        guests[pace.turn.program()] = Some(guest);
        *lock(&pace.begun) = true;
        pace.turn.ask(at);
        self.answer_all(&mut guests, pace);
        Ok(())
    }

    /// Takes the messages of a plugin until it goes.
    fn listen(&self, pace: &Pace, plugin: UnixStream) -> io::Result<()> {
        loop {
            let message = match Message::receive(&plugin) {
                // A guest that is killed ends in any of these ways.
                Err(error) if GONE.contains(&error.kind()) => return Ok(()),
                message => message?,
            };
            let Message { kind, at_ns: at, until_ns: until, .. } = message;
            let mut guests = lock(&self.guests);
            let guest = guests[pace.turn.program()].as_mut();
            let Some(guest) = guest else { return Ok(()) };
            let asked = match kind {
                message::AT => Asked::Go,
                message::ASLEEP => Asked::Sleep(until),
                message::ACCESS => Asked::Access,
                message::PASSED => {
                    pace.turn.heard();
                    self.answer_all(&mut guests, pace);
                    continue;
                }
                _ => return Err(bad(format!("message {kind}"))),
            };
            if at < guest.last || guest.asked.is_some() {
                return Err(bad(format!("message {kind} for {at} ns after {} ns", guest.last)));
            }
            if let Some(frozen) = guest.frozen.take() {
                // Time has stood still for it, and its turn is still to come.
                if at > guest.last {
                    return Err(bad("it went on while time stood still"));
                }
                guest.asked = Some(frozen);
                self.answer_all(&mut guests, pace);
                continue;
            }
            {
                let mut spent = lock(&pace.spent);
                spent.steps += 1;
                spent.accesses += u64::from(kind == message::ACCESS);
                spent.host += guest.since.elapsed();
                if !std::mem::replace(&mut guest.slept, kind == message::ASLEEP) {
                    spent.awake += (at - guest.last).saturating_mul(self.instruction);
                }
            }
            (guest.last, guest.asked) = (at, Some(asked));
            pace.turn.ask(guest.to_ps(at, self.instruction)?);
            self.answer_all(&mut guests, pace);
        }
    }

    /// Answers all guests that have got their turns, one after the other.
    fn answer_all(&self, guests: &mut [Option<Guest>], any: &Pace) {
        // A guest without a request has the turn for an access, or is not connected yet.
        while let Some((program, at)) = any.turn.holder()
            && let Some(guest) = &mut guests[program]
            && let Some(asked) = guest.asked.take()
        {
            if self.grant(guest, asked, at).is_err() {
                Self::let_go(guests, program);
            }
        }
        if let Some(stands) = self.stop.stands(&any.turn) {
            // First, so that a guest that sees it comes after the report.
            self.stop.note(&stands);
            self.freeze(guests);
        }
    }

    /// Gives up a guest whose plugin takes no answer.
    fn let_go(guests: &mut [Option<Guest>], program: usize) {
        if let Some(guest) = guests[program].take() {
            guest.pace.turn.rest();
            // Its thread notices this as well.
            guest.pace.hang_up();
        }
    }

    /// Notifies guests that wait for their turns that time is stopped. Their virtual machines can
    /// then be inspected.
    fn freeze(&self, guests: &mut [Option<Guest>]) {
        for program in 0..guests.len() {
            let Some(guest) = &mut guests[program] else { continue };
            let stops = |asked: &Asked| !matches!(asked, Asked::Begin | Asked::Access);
            let Some(asked) = guest.asked.take_if(|asked| stops(asked)) else { continue };
            guest.frozen = Some(asked);
            if guest.answer(guest.last, Vec::new(), Input::default()).is_err() {
                Self::let_go(guests, program);
            }
        }
    }

    /// Resumes stopped time, until `until` if given.
    pub(super) fn go_on(&self, any: &Pace, until: Option<u64>) -> Result<(), String> {
        let mut guests = lock(&self.guests);
        let stands = self.stop.stands(&any.turn).ok_or("its time does not stand still")?;
        if until.is_some_and(|until| until <= stands.at) {
            return Err(format!("its time is {} ms already", milliseconds(stands.at)));
        }
        self.stop.go_on(&any.turn, until);
        self.answer_all(&mut guests, any);
        Ok(())
    }

    /// Grants the request of a guest that has the turn at a time of the machine.
    fn grant(&self, guest: &mut Guest, asked: Asked, at_ps: u64) -> io::Result<()> {
        let pace = Arc::clone(&guest.pace);
        let (turn, at) = (&pace.turn, guest.last);
        match asked {
            // The turn is its own until it says where it is after the access.
            Asked::Access => guest.answer(at, self.fired(pace.node), Input::default()),
            Asked::Sleep(until) if until > at && self.is_quiet(pace.node) => {
                let until = until.min(at.saturating_add(LONGEST_SLEEP));
                guest.asked = Some(Asked::Wake);
                turn.ask_look(self.instruction, guest.to_ps(until, self.instruction)?);
                Ok(())
            }
            Asked::Wake => {
                // It gets what has happened when it is there.
                let woken = at_ps.saturating_sub(guest.base) / self.instruction;
                turn.leave(at_ps);
                guest.answer(woken.max(at + 1), Vec::new(), Input::default())
            }
            Asked::Begin => {
                let begins = at_ps + self.delay(pace.node);
                guest.base = begins.saturating_sub(guest.to_ps(at, self.instruction)?);
                self.between.pages.begin(turn.program(), guest.base, begins);
                let until_ns = self.leave(guest)?;
                guest.since = Instant::now();
                let go = Go { until_ns, guest: turn.program() as u32, ..Go::default() };
                go.send(&guest.plugin, &self.between.pages.files(turn.program()))
            }
            Asked::GoOn if !self.is_last(guest) => {
                // All else happens as if time had not stood still.
                let (vectors, input) = guest.kept.take().unwrap_or_default();
                turn.leave_for_a_step(guest.to_ps(at + 1, self.instruction)?);
                guest.answer(at + 1, vectors, input)
            }
            Asked::Go | Asked::Sleep(_) | Asked::GoOn if self.is_last(guest) => {
                if guest.kept.is_none() {
                    guest.kept = Some((self.fired(pace.node), self.input(turn)));
                }
                guest.asked = Some(Asked::GoOn);
                turn.freeze();
                Ok(())
            }
            Asked::Go | Asked::Sleep(_) | Asked::GoOn => {
                let until_ns = self.leave(guest)?;
                guest.answer(until_ns, self.fired(pace.node), self.input(turn))
            }
        }
    }

    /// True if a guest that ran on would get beyond the time at which time stops.
    fn is_last(&self, guest: &Guest) -> bool {
        let at = guest.to_ps(guest.last, self.instruction).unwrap_or(u64::MAX);
        guest.pace.turn.is_last(at, self.instruction)
    }

    /// The input that a guest gets now.
    fn input(&self, turn: &Turn) -> Input {
        let input = self.outside.get().map(|outside| outside.input(turn.program()));
        input.unwrap_or_default()
    }

    /// Lets a guest that has the turn run by itself. Returns until when, by its clock.
    fn leave(&self, guest: &Guest) -> io::Result<u64> {
        let (turn, at) = (&guest.pace.turn, guest.last);
        let horizon = turn.horizon(self.quantum).saturating_sub(guest.base);
        let longest = at.saturating_add(LONGEST_STEP);
        let until_ns = (horizon / self.instruction).min(longest).max(at + 1);
        turn.leave(guest.to_ps(at + 1, self.instruction)?);
        Ok(until_ns)
    }

    /// The delay with which a node's guest begins after the first, in picoseconds.
    fn delay(&self, node: NodeId) -> u64 {
        let Some(seed) = self.seed else { return 0 };
        chance::mix(u64::from(seed) << 32 | u64::from(node.0)) % LONGEST_DELAY
    }

    /// True if there are no interrupts for a node's guest.
    fn is_quiet(&self, node: NodeId) -> bool {
        lock(&self.pending[node.index()]).is_empty()
    }

    /// Interrupts of a node that its guest has not got.
    fn fired(&self, node: NodeId) -> Vec<u16> {
        let mut pending = lock(&self.pending[node.index()]);
        let few = pending.len().min(MOST_VECTORS);
        pending.drain(..few).collect()
    }
}
