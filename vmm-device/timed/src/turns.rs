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
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting(programs) => {
                let names: Vec<_> = programs.iter().map(ToString::to_string).collect();
                write!(f, "nothing is in flight, and programs {} wait", names.join(", "))
            }
            Self::Gone(program) => write!(f, "program {program} has panicked"),
        }
    }
}

impl std::error::Error for Stuck {}

/// A program's part in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// It waits for its turn at its time.
    Turn,
    /// It looks at its memory every so often, from its time on, until this time. It has seen this
    /// many events at its node; the first one after them happened at a time, if it has.
    Event { every: Ps, until: Ps, seen: u64, happened: Option<Ps> },
    /// It has the turn.
    Runs,
    /// It has ended.
    Ended,
}

#[derive(Clone, Copy, Debug)]
struct Program {
    node: NodeId,
    at: Ps,
    wish: Wish,
}

impl Program {
    /// The time of its next turn; `None` if that takes an event first, or it has ended.
    fn next(&self) -> Option<Ps> {
        match self.wish {
            Wish::Turn => Some(self.at),
            Wish::Event { every, until, happened, .. } => {
                let by = happened.map_or(until, |at| at.min(until));
                (by < Ps::MAX).then(|| {
                    let looks = by.saturating_sub(self.at).div_ceil(every).max(1);
                    self.at.saturating_add(looks.saturating_mul(every))
                })
            }
            Wish::Runs | Wish::Ended => None,
        }
    }
}

struct State {
    programs: Vec<Program>,
    stuck: Option<Stuck>,
}

/// The order of programs.
///
/// Exactly one of them runs at a time, between two calls of its [`Turn`], and no time passes for it
/// but what it says. The machine has then reached the program's time, and nothing has happened
/// after that. So what a program finds depends on no thread and no host.
pub struct Turns {
    engine: Arc<EventEngine>,
    state: Mutex<State>,
    /// One for each program.
    woken: Vec<Condvar>,
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
    /// Makes the turns of programs on these nodes, which all begin now. Programs that are at the
    /// same time take turns in this order.
    pub fn start(engine: &Arc<EventEngine>, nodes: &[NodeId]) -> Vec<Turn> {
        let at = engine.now();
        let programs: Vec<_> =
            nodes.iter().map(|&node| Program { node, at, wish: Wish::Turn }).collect();
        let woken = programs.iter().map(|_| Condvar::new()).collect();
        let state = Mutex::new(State { programs, stuck: None });
        let turns = Arc::new(Self { engine: Arc::clone(engine), state, woken });
        turns.pass(&mut lock(&turns.state));
        (0..nodes.len()).map(|program| Turn { turns: Arc::clone(&turns), program }).collect()
    }

    /// Runs the machine until the next turn, and gives that to its program.
    fn pass(&self, state: &mut State) {
        if state.programs.iter().any(|program| program.wish == Wish::Runs) {
            return;
        }
        let next = loop {
            let times = state.programs.iter().map(Program::next);
            let next = times.zip(0..).filter_map(|(at, program)| Some((at?, program))).min();
            let limit = next.map_or(Ps::MAX, |(at, _)| at);
            if !self.engine.step_until(limit) {
                break next;
            }
            let now = self.engine.now();
            for program in &mut state.programs {
                if let Wish::Event { seen, happened: happened @ None, .. } = &mut program.wish
                    && self.engine.events_at(program.node) != *seen
                {
                    *happened = Some(now);
                }
            }
        };
        match next {
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

    /// Lets time pass while the program computes. Returns the time after that.
    ///
    /// # Errors
    ///
    /// As [`Turn::begin`].
    pub fn spend(&self, ps: Ps) -> Result<Ps, Stuck> {
        self.wish(|program, _| {
            program.at = program.at.saturating_add(ps);
            Wish::Turn
        })
    }

    /// Goes on at a time, or at once if that has passed: where the program has got to by itself.
    ///
    /// # Errors
    ///
    /// As [`Turn::begin`].
    pub fn reach(&self, at: Ps) -> Result<Ps, Stuck> {
        self.wish(|program, _| {
            program.at = program.at.max(at);
            Wish::Turn
        })
    }

    /// The time until which a program that has the turn may run by itself, for instance as the
    /// guest of a VM whose instructions are counted: before that nothing happens at its node, other
    /// than by its own accesses to the device. There, or where it accesses the device, it must
    /// [reach](Turn::reach) its time. [`Ps::MAX`] if nothing will ever happen by itself.
    pub fn horizon(&self) -> Ps {
        let state = lock(&self.turns.state);
        let engine = &self.turns.engine;
        let lookahead = engine.lookahead();
        let own = engine.next(state.programs[self.program].node);
        let others = state.programs.iter().zip(0..).filter(|(_, other)| *other != self.program);
        // Another program can act at its next turn. If it sleeps, what wakes it is in flight. While
        // its node has not begun to use its device, it may not keep the others from long steps.
        let others = others.filter_map(|(other, _)| match other.wish {
            Wish::Ended => None,
            _ if !engine.is_active(other.node) => None,
            _ => [other.next(), engine.next(other.node)].into_iter().flatten().min(),
        });
        let acts = others.min().map(|at| at.saturating_add(lookahead));
        [own, acts].into_iter().flatten().min().unwrap_or(Ps::MAX)
    }

    /// Does what a loop does that looks at the node's memory and finds nothing, every `every`
    /// picoseconds (at least 1): returns at its first look after anything has happened at the node,
    /// or `until` has passed.
    ///
    /// # Errors
    ///
    /// As [`Turn::begin`].
    pub fn look(&self, every: Ps, until: Ps) -> Result<Ps, Stuck> {
        self.wish(|program, engine| {
            let seen = engine.events_at(program.node);
            Wish::Event { every: every.max(1), until, seen, happened: None }
        })
    }

    fn wish(&self, change: impl FnOnce(&mut Program, &EventEngine) -> Wish) -> Result<Ps, Stuck> {
        let mut state = lock(&self.turns.state);
        let program = &mut state.programs[self.program];
        program.wish = change(program, &self.turns.engine);
        self.turns.pass(&mut state);
        self.wait(state)
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
