//! Programs as threads that take turns in the order of modelled time.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use tofu_abi::topology::NodeId;
use tofu_fabric::Ps;
use tofu_sync::{lock, wait};

use crate::EventEngine;

/// The reason why a program cannot continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// All programs that have not ended wait, and nothing is in flight: their numbers.
    Waiting(Vec<usize>),
    /// A program did not take its turn to the end, as it panicked: its number.
    Gone(usize),
    /// The machine ends.
    Stopped,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting(programs) => {
                let names: Vec<_> = programs.iter().map(ToString::to_string).collect();
                write!(f, "nothing is in flight, and programs {} wait", names.join(", "))
            }
            Self::Gone(program) => write!(f, "program {program} has panicked"),
            Self::Stopped => f.write_str("the machine ends"),
        }
    }
}

impl std::error::Error for Stuck {}

/// The state of a program in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// It waits for its turn at its time.
    Turn,
    /// It polls its memory at the interval `every`, from its time on, until `until`. It has seen
    /// `seen` events at its node. `happened` is the time of the first event after these, if there
    /// was one.
    Event { every: Ps, until: Ps, seen: u64, happened: Option<Ps> },
    /// It runs beside the others, and does not access the machine before `least`. `happened` is the
    /// time of the first event at its node since it left, if there was one.
    Away { least: Ps, happened: Option<Ps> },
    /// It has the turn.
    Runs,
    /// It waits for its turn at its time, but does not get it before time continues beyond the
    /// present [stop](Turn::stop_at).
    Frozen,
    /// It has ended, or has not begun again.
    Ended,
}

#[derive(Clone, Copy, Debug)]
struct Program {
    node: NodeId,
    at: Ps,
    wish: Wish,
    /// The number of events at its node up to the last one that it has seen.
    events: u64,
    /// The smallest step of its clock, once it has left; 0 before, and if it begins again.
    step: Ps,
}

impl Program {
    /// The least time of its next turn; `None` if that takes an event first, or it has ended.
    fn next(&self) -> Option<Ps> {
        match self.wish {
            Wish::Turn => Some(self.at),
            Wish::Away { least, .. } => Some(least),
            Wish::Event { every, until, happened, .. } => {
                let by = happened.map_or(until, |at| at.min(until));
                (by < Ps::MAX).then(|| {
                    let looks = by.saturating_sub(self.at).div_ceil(every).max(1);
                    self.at.saturating_add(looks.saturating_mul(every))
                })
            }
            Wish::Runs | Wish::Frozen | Wish::Ended => None,
        }
    }
}

struct State {
    programs: Vec<Program>,
    stuck: Option<Stuck>,
    late: Lateness,
    /// The time beyond which nothing happens for now.
    stop: Option<Ps>,
    /// True if all events until then have happened.
    stands: bool,
    /// The longest time by which a program may be ahead of a command, while time is to stop after
    /// one.
    ahead: Option<Ps>,
}

/// Events whose programs were already ahead of them, because their steps are too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// The number of events.
    pub count: u64,
    /// The longest time by which a program was ahead of one.
    pub most: Ps,
}

impl Lateness {
    /// Notes an event at the node of a program that is at another time.
    /// A delay of less than `step` is none.
    fn note(&mut self, event: Ps, program: Ps, step: Ps) {
        if let Some(by) = program.checked_sub(event).filter(|by| *by > step) {
            self.count += 1;
            self.most = self.most.max(by);
        }
    }
}

/// Lower bounds on a program's next times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Nothing happens at its node by itself before this time.
    pub limit: Ps,
    /// The least time from a doorbell of its node to an effect at another. Before its node has
    /// begun to use its device, [how far](Away::apart) it may be behind.
    pub ahead: Ps,
    /// It has no effect on others before this time.
    pub acts: Ps,
}

/// Programs that are away, and keep each other's pace without the machine.
///
/// A program that is away may run until its `limit`, but for every other program no further than
/// the later one of that program's `acts` and `reached + ahead`.
pub trait Away: Send + Sync {
    /// The time that a program has reached since it left. It will not access the machine before
    /// that time.
    fn reached(&self, program: usize) -> Ps;

    /// Makes programs [report](Turn::heard) from now on when they reach a time.
    fn report_at(&self, at: Ps);

    /// The time by which programs may be apart before they use their devices. It should not keep
    /// them from long steps.
    fn apart(&self) -> Ps;

    /// Publishes the bounds of all programs, in their order.
    fn tell(&self, bounds: &[Bounds]);
}

/// The order of programs.
///
/// Exactly one of them has the turn at a time, between two calls of its [`Turn`]. For that program,
/// only the time that it reports passes. The machine has then reached the program's time, and
/// nothing later has happened. If a program knows that it will not access the machine for some
/// time, up to its [horizon](Turn::horizon), it may run beside others until then ([`Turn::leave`]).
/// The results do not depend on threads or the host.
pub struct Turns {
    engine: Arc<EventEngine>,
    state: Mutex<State>,
    /// One for each program.
    woken: Vec<Condvar>,
    away: Option<Arc<dyn Away>>,
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns").field("engine", &self.engine).finish_non_exhaustive()
    }
}

/// A program's side of [`Turns`]. The program ends when this is dropped.
#[derive(Debug)]
pub struct Turn {
    turns: Arc<Turns>,
    program: usize,
}

impl Turns {
    /// Creates the turns of programs on these nodes, which all begin now. Programs that are at the
    /// same time take turns in this order.
    pub fn start(engine: &Arc<EventEngine>, nodes: &[NodeId]) -> Vec<Turn> {
        Self::begin(engine, nodes, None)
    }

    /// The same of programs that keep each other's pace while they are away.
    pub fn start_away(
        engine: &Arc<EventEngine>,
        nodes: &[NodeId],
        away: Arc<dyn Away>,
    ) -> Vec<Turn> {
        Self::begin(engine, nodes, Some(away))
    }

    fn begin(
        engine: &Arc<EventEngine>,
        nodes: &[NodeId],
        away: Option<Arc<dyn Away>>,
    ) -> Vec<Turn> {
        let at = engine.now();
        let programs: Vec<_> = nodes
            .iter()
            .map(|&node| Program { node, at, wish: Wish::Turn, events: 0, step: 0 })
            .collect();
        let woken = programs.iter().map(|_| Condvar::new()).collect();
        let state = State {
            programs,
            stuck: None,
            late: Lateness::default(),
            stop: None,
            stands: false,
            ahead: None,
        };
        let state = Mutex::new(state);
        let turns = Arc::new(Self { engine: Arc::clone(engine), state, woken, away });
        turns.pass(&mut lock(&turns.state));
        (0..nodes.len()).map(|program| Turn { turns: Arc::clone(&turns), program }).collect()
    }

    /// Runs the machine until the next turn, and gives that to its program.
    fn pass(&self, state: &mut State) {
        if !state.programs.iter().any(|program| program.wish == Wish::Runs) {
            self.pass_on(state);
        }
        if let Some(away) = &self.away {
            away.tell(&self.bounds(state));
        }
    }

    fn pass_on(&self, state: &mut State) {
        let next = loop {
            let awaited = self.hear(state);
            let times = state.programs.iter().map(Program::next);
            let next = times.zip(0..).filter_map(|(at, program)| Some((at?, program))).min();
            let limit = next.map_or(Ps::MAX, |(at, _)| at).min(state.stop.unwrap_or(Ps::MAX));
            // Input from outside never ends.
            let ends = next.is_none() && !self.engine.is_busy();
            if ends {
                break next;
            }
            if self.engine.step_until(limit) {
                self.note_events(state);
                self.note_command(state);
                continue;
            }
            // The network may have done something without an effect at a node. If others now wait
            // for a later time, programs that have passed the previous one must know.
            if self.awaited(state) == awaited {
                break next;
            }
        };
        let frozen = state.programs.iter().any(|program| program.wish == Wish::Frozen);
        if let Some(stop) = state.stop
            && next.map_or(frozen, |(at, _)| at > stop)
        {
            self.engine.run_until(stop);
            state.stands = true;
            return;
        }
        match next {
            // The others wait for one that is away.
            Some((_, program)) if matches!(state.programs[program].wish, Wish::Away { .. }) => {}
            Some((at, program)) => {
                self.engine.run_until(at);
                state.programs[program].at = at;
                state.programs[program].wish = Wish::Runs;
                self.woken[program].notify_one();
            }
            None => {
                let left = state.programs.iter().zip(0..);
                let left = left.filter(|(program, _)| program.wish != Wish::Ended);
                let left: Vec<_> = left.map(|(_, number)| number).collect();
                if !left.is_empty() {
                    self.stop(state, Stuck::Waiting(left));
                }
            }
        }
    }

    /// Reads the times that programs which are away have reached. If another program waits for a
    /// time that they have not passed yet, they report when they have passed it.
    /// Returns that time.
    fn hear(&self, state: &mut State) -> Option<Ps> {
        let away = self.away.as_ref()?;
        let awaited = self.awaited(state);
        away.report_at(awaited.map_or(Ps::MAX, |at| at.saturating_add(1)));
        for (program, number) in state.programs.iter_mut().zip(0..) {
            if let Wish::Away { least, .. } = &mut program.wish {
                *least = away.reached(number).max(*least);
            }
        }
        awaited
    }

    /// The first time for which a program waits that is not away, if others may be.
    fn awaited(&self, state: &State) -> Option<Ps> {
        self.away.as_ref()?;
        let waits = |program: &Program| match program.wish {
            Wish::Turn => program.next(),
            Wish::Event { .. } => {
                [program.next(), self.engine.next(program.node)].into_iter().flatten().min()
            }
            Wish::Away { .. } | Wish::Runs | Wish::Frozen | Wish::Ended => None,
        };
        state.programs.iter().filter_map(waits).min()
    }

    /// The bounds of all programs.
    fn bounds(&self, state: &State) -> Vec<Bounds> {
        let bounds = |program: &Program| {
            let next = self.engine.next(program.node);
            let acts = match program.wish {
                Wish::Ended => None,
                Wish::Runs | Wish::Frozen => Some(program.at),
                // The event that wakes it is in flight.
                Wish::Event { .. } => [program.next(), next].into_iter().flatten().min(),
                Wish::Turn | Wish::Away { .. } => program.next(),
            };
            let ahead = match self.engine.is_active(program.node) {
                true => self.engine.doorbell_lookahead(program.node),
                false => self.away.as_ref().map_or(Ps::MAX, |away| away.apart()),
            };
            let acts = acts.map_or(Ps::MAX, |at| at.saturating_add(ahead));
            // If something has happened at a program's node within the program's step, the program
            // must request its turn at the end of that step.
            let happened = match program.wish {
                Wish::Away { happened, .. } => happened,
                _ => None,
            };
            let limit = [happened.or(next), state.stop].into_iter().flatten().min();
            Bounds { limit: limit.unwrap_or(Ps::MAX), ahead, acts }
        };
        state.programs.iter().map(bounds).collect()
    }

    /// Notes at which programs' nodes the last event has happened.
    fn note_events(&self, state: &mut State) {
        let now = self.engine.now();
        for program in &mut state.programs {
            let events = self.engine.events_at(program.node);
            if std::mem::replace(&mut program.events, events) == events {
                continue;
            }
            match &mut program.wish {
                Wish::Event { seen, happened: happened @ None, .. } if events != *seen => {
                    *happened = Some(now);
                }
                Wish::Away { happened: happened @ None, .. } => *happened = Some(now),
                // One that waits for its beginning has run ahead of nothing.
                Wish::Turn if program.step > 0 => {
                    state.late.note(now, program.at, program.step);
                }
                _ => {}
            }
        }
    }

    /// Stops time after the awaited command, once the command has started.
    fn note_command(&self, state: &mut State) {
        if let Some((at, active)) = self.engine.awaited()
            && let Some(ahead) = state.ahead.take()
        {
            // Other programs may be further ahead of a node that has just begun to use its device.
            let apart = self.away.as_ref().map_or(0, |away| away.apart());
            let stop = at.max(active.saturating_add(apart)).saturating_add(ahead);
            state.stop = Some(state.stop.map_or(stop, |before| before.min(stop)));
        }
    }

    fn stop(&self, state: &mut State, why: Stuck) {
        state.stuck.get_or_insert(why);
        self.woken.iter().for_each(Condvar::notify_one);
    }
}

impl Turn {
    /// The program's number.
    pub const fn program(&self) -> usize {
        self.program
    }

    /// Waits for the first turn, and returns its time.
    ///
    /// # Errors
    ///
    /// [`Stuck`] if it never comes.
    pub fn begin(&self) -> Result<Ps, Stuck> {
        self.wait(lock(&self.turns.state))
    }

    /// Requests a turn at a time, or immediately if that has passed, like [`Turn::reach`], but does
    /// not wait for it. The turn has come when this program is the [holder](Turn::holder). A
    /// program that has [rested](Turn::rest) begins again at the machine's present time at the
    /// earliest.
    pub fn ask(&self, at: Ps) {
        self.wish(|program, engine| {
            let at = if program.wish == Wish::Ended { at.max(engine.now()) } else { at };
            program.at = program.at.max(at);
            Wish::Turn
        });
    }

    /// Requests the turn that [`Turn::look`] waits for, but does not wait.
    pub fn ask_look(&self, every: Ps, until: Ps) {
        self.wish(|program, engine| {
            let seen = engine.events_at(program.node);
            Wish::Event { every: every.max(1), until, seen, happened: None }
        });
    }

    /// The program that has the turn, and its time.
    pub fn holder(&self) -> Option<(usize, Ps)> {
        let state = lock(&self.turns.state);
        let mut all = state.programs.iter().zip(0..);
        all.find(|(program, _)| program.wish == Wish::Runs).map(|(program, n)| (n, program.at))
    }

    /// Lets the others continue, as if the program had ended, until it [requests](Turn::ask) a turn
    /// again.
    pub fn rest(&self) {
        let mut state = lock(&self.turns.state);
        let program = &mut state.programs[self.program];
        (program.wish, program.step) = (Wish::Ended, 0);
        self.turns.pass(&mut state);
    }

    /// Gives up the turn while the program runs by itself, at most up to its
    /// [horizon](Turn::horizon). The program returns by [`Turn::reach`], not before `least`.
    pub fn leave(&self, least: Ps) {
        self.leave_with(least, |_| None);
    }

    /// The same for a program that returns at `least`, because something may have happened at its
    /// node.
    pub fn leave_for_a_step(&self, least: Ps) {
        self.leave_with(least, Some);
    }

    fn leave_with(&self, least: Ps, happened: impl FnOnce(Ps) -> Option<Ps>) {
        let mut state = lock(&self.turns.state);
        let program = &mut state.programs[self.program];
        let left = program.at;
        program.step = least.saturating_sub(left);
        program.wish = Wish::Away { least: least.max(left), happened: happened(left) };
        self.turns.pass(&mut state);
    }

    /// Stops time at `stop` until the next call. All events up to `stop` happen, and programs have
    /// turns up to it. With `None`, time does not stop again.
    pub fn stop_at(&self, stop: Option<Ps>) {
        let mut state = lock(&self.turns.state);
        (state.stop, state.stands) = (stop, false);
        for program in &mut state.programs {
            if program.wish == Wish::Frozen {
                program.wish = Wish::Turn;
            }
        }
        self.turns.pass(&mut state);
    }

    /// Stops time `ahead` after the start of the [awaited](EventEngine::await_command) command.
    /// Programs may be ahead of the command by that time.
    pub fn stop_after_command(&self, ahead: Ps) {
        lock(&self.turns.state).ahead = Some(ahead);
    }

    /// The time at which modelled time has stopped, once all events until then have happened.
    pub fn stands_at(&self) -> Option<Ps> {
        let state = lock(&self.turns.state);
        state.stop.filter(|_| state.stands)
    }

    /// True if a program at this time, which runs by itself for a step, would pass the time at
    /// which modelled time stops.
    pub fn is_last(&self, at: Ps, step: Ps) -> bool {
        let stop = lock(&self.turns.state).stop;
        stop.is_some_and(|stop| at.saturating_add(step) > stop)
    }

    /// Gives up the turn, and requests it again as soon as time continues beyond the present
    /// [stop](Turn::stop_at).
    pub fn freeze(&self) {
        self.wish(|_, _| Wish::Frozen);
    }

    /// Ends all programs: their further requests are errors.
    pub fn stop(&self) {
        self.turns.stop(&mut lock(&self.turns.state), Stuck::Stopped);
    }

    /// The events that have come late so far, to all programs.
    pub fn lateness(&self) -> Lateness {
        lock(&self.turns.state).late
    }

    /// Lets time pass while the program computes. Returns the time after that.
    ///
    /// # Errors
    ///
    /// As [`Turn::begin`].
    pub fn spend(&self, ps: Ps) -> Result<Ps, Stuck> {
        self.wish(|program, _| {
            program.at = program.at.saturating_add(ps);
            Wish::Turn
        });
        self.wait(lock(&self.turns.state))
    }

    /// Continues at a time that the program has reached by itself, or immediately if that has
    /// passed.
    ///
    /// # Errors
    ///
    /// As [`Turn::begin`].
    pub fn reach(&self, at: Ps) -> Result<Ps, Stuck> {
        self.ask(at);
        self.wait(lock(&self.turns.state))
    }

    /// Returns the time until which a program that has the turn may run by itself, for instance as
    /// the guest of a VM whose instructions are counted. Before that, only its own accesses to the
    /// device have an effect at its node. At that time, and at each access to the device, it must
    /// [reach](Turn::reach) its time. [`Ps::MAX`] if nothing will ever happen by itself.
    ///
    /// Later actions of other programs are considered only from `quantum` on. If that is more than
    /// the [lookahead](EventEngine::lookahead), their effects may come [late](Turn::lateness).
    pub fn horizon(&self, quantum: Ps) -> Ps {
        let mut state = lock(&self.turns.state);
        self.turns.hear(&mut state);
        let bounds = self.turns.bounds(&state);
        let others = bounds.iter().enumerate().filter(|(other, _)| *other != self.program);
        let acts = others.map(|(_, bounds)| bounds.acts).min().unwrap_or(Ps::MAX);
        let at = state.programs[self.program].at;
        acts.max(at.saturating_add(quantum)).min(bounds[self.program].limit)
    }

    /// Makes the machine read the times of programs that are [away](Away).
    pub fn heard(&self) {
        self.turns.pass(&mut lock(&self.turns.state));
    }

    /// Acts as a loop that polls the node's memory every `every` picoseconds (at least 1). Returns
    /// at the first poll after anything has happened at the node, or after `until` has passed.
    ///
    /// # Errors
    ///
    /// As [`Turn::begin`].
    pub fn look(&self, every: Ps, until: Ps) -> Result<Ps, Stuck> {
        self.ask_look(every, until);
        self.wait(lock(&self.turns.state))
    }

    fn wish(&self, change: impl FnOnce(&mut Program, &EventEngine) -> Wish) {
        let mut state = lock(&self.turns.state);
        let state = &mut *state;
        let program = &mut state.programs[self.program];
        let before = program.wish;
        program.wish = change(program, &self.turns.engine);
        if let Wish::Away { happened: Some(event), .. } = before {
            // A difference of less than the program's smallest step is not a delay.
            state.late.note(event, program.at, program.step);
        }
        self.turns.pass(state);
    }

    fn wait(&self, mut state: MutexGuard<'_, State>) -> Result<Ps, Stuck> {
        loop {
            if let Some(stuck) = &state.stuck {
                return Err(stuck.clone());
            }
            let Program { at, wish, .. } = state.programs[self.program];
            if wish == Wish::Runs {
                return Ok(at);
            }
            state = wait(&self.turns.woken[self.program], state);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = lock(&self.turns.state);
        state.programs[self.program].wish = Wish::Ended;
        if std::thread::panicking() {
            self.turns.stop(&mut state, Stuck::Gone(self.program));
        }
        self.turns.pass(&mut state);
    }
}
