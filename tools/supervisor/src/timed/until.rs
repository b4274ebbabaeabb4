//! Where the time of a machine in modelled time stops.

use std::sync::{Arc, Mutex, OnceLock};

use tofu_abi::topology::NodeId;
use tofu_control::protocol::StandsInfo;
use tofu_fabric::Ps;
use tofu_machine::{Stands, StartedCommand};
use tofu_spec::units::{Until, milliseconds};
use tofu_sync::lock;
use tofu_timed::{EventEngine, Turn};

/// Describes where time stands still.
pub(crate) fn info(stands: &Stands) -> StandsInfo {
    let Stands { at, command } = stands;
    let why = match command {
        None => String::new(),
        Some(StartedCommand { node, number, at }) => {
            let at = milliseconds(*at);
            format!(", as node {} has started command {number} at {at} ms", node.0)
        }
    };
    let text = format!("modelled time stands still at {} ms{why}", milliseconds(*at));
    StandsInfo { ps: *at, text }
}

/// Is called when time stands still.
type Hears = Box<dyn Fn(StandsInfo) + Send + Sync>;

/// The time at which all guests stop, and the callback for that.
pub(super) struct Stop {
    engine: Arc<EventEngine>,
    /// The command that is waited for.
    command: Mutex<Option<(NodeId, u64)>>,
    /// True if the stop of time has been reported.
    told: Mutex<bool>,
    hears: OnceLock<Hears>,
}

impl Stop {
    /// Has time stop where this says. `turn` is that of any guest, and guests may be ahead of a
    /// command by `ahead`.
    pub(super) fn new(
        engine: &Arc<EventEngine>,
        turn: Option<&Turn>,
        until: Option<Until>,
        ahead: Ps,
    ) -> Self {
        engine.count_commands();
        let mut command = None;
        match (until, turn) {
            (Some(Until::Time(at)), Some(turn)) => turn.stop_at(Some(at)),
            (Some(Until::Command { node, number }), Some(turn)) => {
                command = Some((NodeId(node), number));
                engine.await_command(NodeId(node), number);
                turn.stop_after_command(ahead);
            }
            _ => {}
        }
        let (command, told) = (Mutex::new(command), Mutex::default());
        Self { engine: Arc::clone(engine), command, told, hears: OnceLock::new() }
    }

    /// Calls this each time that time stands still. Only the first one has an effect.
    pub(super) fn tell(&self, hears: Hears) {
        // There is one.
        let _ = self.hears.set(hears);
    }

    /// The point at which time has stopped, if it has.
    pub(super) fn stands(&self, turn: &Turn) -> Option<Stands> {
        let at = turn.stands_at()?;
        let started = self.engine.awaited().map(|(at, _)| at);
        let command = lock(&self.command).zip(started);
        let command = command.map(|((node, number), at)| StartedCommand { node, number, at });
        Some(Stands { at, command })
    }

    /// Tells that time stands still here, once.
    pub(super) fn note(&self, stands: &Stands) {
        if !std::mem::replace(&mut *lock(&self.told), true)
            && let Some(hears) = self.hears.get()
        {
            hears(info(stands));
        }
    }

    /// Resumes time, until `until` if given.
    pub(super) fn go_on(&self, turn: &Turn, until: Option<Ps>) {
        *lock(&self.command) = None;
        *lock(&self.told) = false;
        turn.stop_at(until);
    }
}
