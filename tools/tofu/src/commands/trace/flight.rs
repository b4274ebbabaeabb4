//! The last seconds of a trace, until something goes wrong.

use std::collections::VecDeque;
use std::net::Shutdown;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tofu_control::Connection;
use tofu_control::protocol::{
    EventInfo, EventKind, Reply, Request, TracedCommand, TracedInterrupt,
};
use tofu_sync::lock;

/// The most commands and interrupts that are kept, about 500 MB.
const MOST: usize = 1 << 20;

/// The ends of commands within a time.
#[derive(Debug)]
pub(super) struct Flight {
    last_ns: u64,
    commands: VecDeque<TracedCommand>,
    interrupts: VecDeque<TracedInterrupt>,
    /// The time of the latest event.
    now_ns: u64,
    /// A trigger event has occurred. Events that arrive until the machine has handled the request
    /// are ignored.
    over: bool,
}

impl Flight {
    pub(super) fn new(last: Duration) -> Self {
        Self {
            last_ns: u64::try_from(last.as_nanos()).unwrap_or(u64::MAX),
            commands: VecDeque::new(),
            interrupts: VecDeque::new(),
            now_ns: 0,
            over: false,
        }
    }

    /// Keeps these, and drops those that are too old. Returns what has gone wrong, if anything.
    pub(super) fn take(
        &mut self,
        commands: Vec<TracedCommand>,
        interrupts: Vec<TracedInterrupt>,
    ) -> Option<String> {
        if self.over {
            return None;
        }
        let ends = commands.iter().map(|command| command.end_ns);
        let ends = ends.chain(interrupts.iter().map(|interrupt| interrupt.at_ns));
        self.now_ns = ends.fold(self.now_ns, u64::max);
        let failed = commands.iter().find(|command| command.rcode != 0);
        let failed = failed.map(text);
        self.over = failed.is_some();
        self.commands.extend(commands);
        self.interrupts.extend(interrupts);
        let since = self.now_ns.saturating_sub(self.last_ns);
        let many = |len: usize| len > MOST;
        while self.commands.front().is_some_and(|first| first.end_ns < since)
            || many(self.commands.len())
        {
            self.commands.pop_front();
        }
        while self.interrupts.front().is_some_and(|first| first.at_ns < since)
            || many(self.interrupts.len())
        {
            self.interrupts.pop_front();
        }
        failed
    }

    /// All that was kept.
    pub(super) fn finish(self) -> (Vec<TracedCommand>, Vec<TracedInterrupt>) {
        (self.commands.into(), self.interrupts.into())
    }
}

fn text(command: &TracedCommand) -> String {
    let TracedCommand { node, tni, cq, command, result, .. } = command;
    format!("a command has failed: node {node} TNI {tni} CQ {cq}, {command}: {result}")
}

/// Ends a trace when a guest of the machine dies, by closing its side of the connection. Returns
/// the place of the message about that.
///
/// # Errors
///
/// If the machine does not answer.
pub(super) fn watch(
    control: &Path,
    trace: &Connection,
) -> anyhow::Result<Arc<Mutex<Option<String>>>> {
    let mut events = Connection::open(control, &Request::Events)?;
    // After the first answer, no event is missed.
    events.answer()?;
    let stream = trace.stream()?;
    let found = Arc::new(Mutex::new(None));
    let tell = Arc::clone(&found);
    thread::Builder::new().name("events".into()).spawn(move || {
        while let Ok(reply) = events.answer() {
            if let Reply::Event(event) = reply
                && let Some(what) = death(&event)
            {
                *lock(&tell) = Some(what);
                // The machine then sends what it has. The process ends soon.
                let _ = stream.shutdown(Shutdown::Write);
                return;
            }
        }
    })?;
    Ok(found)
}

/// The end of a guest, if it has died.
fn death(event: &EventInfo) -> Option<String> {
    let node = event.node?;
    match &event.what {
        EventKind::Died { why } => Some(format!("node {node} is off: {why}")),
        EventKind::Ended { outcome, code, .. } if outcome != "exited" || *code != Some(0) => {
            let code = code.map(|code| format!(" with code {code}")).unwrap_or_default();
            Some(format!("node {node} has ended: {outcome}{code}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(end_ns: u64, rcode: u8) -> TracedCommand {
        TracedCommand {
            node: 1,
            tni: 2,
            cq: 3,
            slot: 0,
            tag: None,
            command: "Put".to_owned(),
            to: None,
            length: 8,
            tlps: 1,
            hops: Vec::new(),
            doorbell_ns: None,
            begin_ns: end_ns - 10,
            end_ns,
            parts: Vec::new(),
            answers: 0,
            rcode,
            result: format!("{rcode:#x}"),
            sent: 0,
            why: None,
        }
    }

    #[test]
    fn recorder_keeps_the_last_seconds() {
        let mut flight = Flight::new(Duration::from_nanos(1000));
        assert_eq!(flight.take((1..30).map(|n| command(n * 100, 0)).collect(), Vec::new()), None);
        let what = flight.take(vec![command(3000, 0), command(3100, 0x33)], Vec::new()).unwrap();
        assert_eq!(what, "a command has failed: node 1 TNI 2 CQ 3, Put: 0x33");
        assert_eq!(flight.take(vec![command(3200, 0), command(3150, 0x33)], Vec::new()), None);
        let (kept, _) = flight.finish();
        let ends: Vec<_> = kept.iter().map(|command| command.end_ns).collect();
        assert_eq!((ends[0], ends.last()), (2100, Some(&3100)), "{ends:?}");
    }

    #[test]
    fn guests_that_end_well_are_not_dead() {
        let ended = |outcome: &str, code| EventInfo {
            seconds: 1.0,
            modelled_ns: None,
            node: Some(3),
            at: None,
            what: EventKind::Ended { outcome: outcome.to_owned(), code, detail: None },
        };
        assert_eq!(death(&ended("exited", Some(0))), None);
        let said = death(&ended("exited", Some(7))).unwrap();
        assert_eq!(said, "node 3 has ended: exited with code 7");
        assert!(death(&ended("fault", None)).is_some());
    }
}
