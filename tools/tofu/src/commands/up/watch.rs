//! Follows a machine from its start to its end, and reports.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use tofu_fabric::{NodeId, ShardId};
use tofu_spec::plan::Plan;
use tofu_supervisor::backtrace::Frame;
use tofu_supervisor::event::{BootStage, Event, EventSender, Outcome};
use tofu_supervisor::runner::{Backend, Running};
use tofu_sync::queue::{Receiver, RecvTimeoutError};
use tofu_ui::{exit, printable};

use crate::commands::up::board::Board;
use crate::commands::up::screen::{NodeResult, Screen};

/// The state of a VM.
struct Progress {
    result: Option<NodeResult>,
    last_line: String,
}

struct MachineWatch<'a, 'b> {
    plan: &'a Plan,
    backend: &'a (dyn Backend + Sync),
    start: Instant,
    screen: &'a mut Screen<'b>,
    /// By node number; stubs stay without a result.
    nodes: Vec<Progress>,
    running: usize,
    /// A guest has not succeeded, or another shard has failed; the text names it.
    failed: Option<String>,
    /// Other shards of the machine, and whether they are present with guests that still run.
    others: BTreeMap<ShardId, bool>,
    /// Those that have gone before their guests had ended, and have not come back.
    lost: BTreeSet<ShardId>,
    /// Another shard has failed.
    others_failed: bool,
    /// The first signal that came.
    signal: Option<i32>,
    /// `tofu down` came.
    down: bool,
    /// All have booted.
    started: bool,
    boots: Board,
}

/// Starts a machine and follows it to its end: all guests have ended, the time is over, or a signal
/// came; or one has failed, and the others have kept running for `grace`. Returns the exit code.
/// `started` is called once all have booted.
pub(crate) fn watch(
    plan: &Plan,
    grace: Duration,
    backend: &(dyn Backend + Sync),
    sender: EventSender,
    events: &Receiver<Event>,
    screen: &mut Screen<'_>,
    started: &mut dyn FnMut(&mut Screen<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<u8> {
    let mut watch = MachineWatch::new(plan, backend, screen);
    let Some(mut machine) = watch.start(sender, events)? else { return watch.finish() };
    // Dropped before the machine, whose guests may wait for their output to be read.
    let _unread = Unread(events);
    if !watch.is_to_end() {
        started(watch.screen)?;
        watch.started = true;
    }
    let told = watch.follow(machine.as_mut(), events, grace)?;
    if !watch.is_to_end() {
        // The machine ends by itself, and followers must be notified of that as well.
        backend.on_event(&Event::Down);
        if !told {
            machine.ended(watch.count_failed());
        }
    }
    // Their further course does not matter here.
    watch.others.clear();
    events.release();
    machine.stop();
    while let Ok(event) = events.try_recv() {
        watch.take(event)?;
    }
    drop(machine);
    watch.finish()
}

/// Lets guests that print no longer wait when it is dropped.
struct Unread<'a>(&'a Receiver<Event>);

impl Drop for Unread<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// The other shards of the machine of a plan.
fn others(plan: &Plan) -> BTreeMap<ShardId, bool> {
    let shards = plan.network.shard.into_iter();
    shards
        .flat_map(|own| (0..own.of as u16).map(ShardId).filter(move |shard| *shard != own.shard))
        .map(|shard| (shard, true))
        .collect()
}

impl<'a, 'b> MachineWatch<'a, 'b> {
    fn new(plan: &'a Plan, backend: &'a (dyn Backend + Sync), screen: &'a mut Screen<'b>) -> Self {
        let nodes = plan.nodes.iter().map(|_| Progress { result: None, last_line: String::new() });
        Self {
            plan,
            backend,
            start: Instant::now(),
            screen,
            nodes: nodes.collect(),
            running: plan.programs().count(),
            failed: None,
            others: others(plan),
            lost: BTreeSet::new(),
            others_failed: false,
            signal: None,
            down: false,
            started: false,
            boots: Board::new(plan.netbooted()),
        }
    }

    /// Starts the machine. Returns `None` if it did not start because it is to end.
    fn start(
        &mut self,
        sender: EventSender,
        events: &Receiver<Event>,
    ) -> anyhow::Result<Option<Box<dyn Running>>> {
        let (plan, backend) = (self.plan, self.backend);
        // On a separate thread, so that events are seen while others boot.
        let machine = thread::scope(|scope| {
            let starting = scope.spawn(move || {
                let machine = backend.start(plan, sender.clone());
                sender.send(Event::Started);
                machine
            });
            if let Err(error) = self.follow_start(events) {
                // The thread may wait for guests that wait for their output to be read.
                events.release();
                return Err(error.into());
            }
            starting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        match machine {
            Err(_) if self.is_to_end() => Ok(None),
            machine => machine.map(Some),
        }
    }

    /// Follows a machine until it has started.
    fn follow_start(&mut self, events: &Receiver<Event>) -> io::Result<()> {
        while let Ok(event) = events.recv() {
            if event == Event::Started {
                break;
            }
            self.take(event)?;
            if self.is_to_end() {
                self.backend.cancel();
            }
        }
        Ok(())
    }

    /// Follows a machine until it ends. Returns true if the other shards know how its guests ended.
    fn follow(
        &mut self,
        machine: &mut dyn Running,
        events: &Receiver<Event>,
        grace: Duration,
    ) -> io::Result<bool> {
        let stays_up = self.plan.stays_up();
        let deadline = Instant::now() + self.plan.timeout.0;
        let (mut graced, mut told) = (None, false);
        while (stays_up || self.is_under_way()) && !self.is_to_end() {
            if self.running == 0 && !told && !stays_up {
                told = true;
                machine.ended(self.count_failed());
                self.tell_whom_it_waits_for()?;
            }
            if graced.is_none() && self.failed.is_some() {
                graced = Some(Instant::now() + grace);
            }
            let until = graced.map_or(deadline, |graced| deadline.min(graced));
            let left = until.saturating_duration_since(Instant::now());
            let event = match stays_up {
                true => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => events.recv_timeout(left),
            };
            match event {
                Ok(event) => self.take(event)?,
                Err(RecvTimeoutError::Timeout) if self.running == 0 => {
                    self.others_failed = true;
                    let shard = self.screen.shard();
                    let note =
                        format!("the other {shard}s take too long; this one leaves the machine");
                    self.screen.note(&note)?;
                    break;
                }
                Err(RecvTimeoutError::Timeout) => {
                    let why = match (&self.failed, graced) {
                        (Some(what), Some(graced)) if graced < deadline => {
                            format!("{what} {} before", Seconds(grace))
                        }
                        _ => format!("still running after {}", Seconds(self.plan.timeout.0)),
                    };
                    told = true;
                    machine.ended(self.count_failed() + self.running as u32);
                    let kind = if until < deadline { "stopped" } else { "timeout" };
                    self.time_is_over(machine, events, (kind, &why))?;
                    break;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Ok(told)
    }

    /// Returns true if guests still run, here or in other shards.
    fn is_under_way(&self) -> bool {
        self.running > 0 || self.others.values().any(|runs| *runs)
    }

    /// Guests here that have failed.
    fn count_failed(&self) -> u32 {
        let results = self.nodes.iter().filter_map(|node| node.result.as_ref());
        results.filter(|result| !result.ok).count() as u32
    }

    fn tell_whom_it_waits_for(&mut self) -> io::Result<()> {
        let running = self.others.iter().filter(|(_, runs)| **runs);
        let running: Vec<_> = running.map(|(shard, _)| shard.to_string()).collect();
        let others = match &running[..] {
            [] => return Ok(()),
            [one] => format!("{} {one}", self.screen.shard()),
            more => format!("{}s {}", self.screen.shard(), more.join(", ")),
        };
        self.screen.note(&format!("all guests here have ended; waiting for {others}"))
    }

    /// Another shard has failed.
    fn shard_failed(&mut self, shard: ShardId, note: &str) -> io::Result<()> {
        self.others_failed = true;
        self.failed.get_or_insert_with(|| format!("{} {shard} failed", self.screen.shard()));
        self.screen.note(note)
    }

    /// Returns true if another shard has failed, or is missing at the end.
    fn have_others_failed(&self) -> bool {
        self.others_failed || !self.lost.is_empty()
    }

    /// Returns true if the machine was requested to end now.
    fn is_to_end(&self) -> bool {
        self.signal.is_some() || self.down
    }

    fn take(&mut self, event: Event) -> io::Result<()> {
        self.backend.on_event(&event);
        match event {
            Event::Rebooted(node) => {
                let is_bare = self.plan.bare().any(|(bare, _)| bare == node);
                if is_bare && self.nodes[node.index()].result.take().is_some() {
                    self.running += 1;
                }
                let is = if is_bare { "runs" } else { "is ready" };
                self.screen.note(&format!("{} {is} again", self.plan.coords(node)))
            }
            Event::Booted(node) => self.screen.booted(self.plan.coords(node), self.start.elapsed()),
            Event::Netboot(node, stage) => self.netboot(node, stage),
            Event::TimeStands(stands) => self.screen.stands(&stands),
            Event::Line(node, text) => {
                let text = printable(&text);
                self.screen.guest_line(self.plan.coords(node), &text)?;
                self.nodes[node.index()].last_line = text;
                Ok(())
            }
            Event::Frame(node, frame) => self.frame(node, &frame),
            Event::Ended(node, outcome) => self.ended(node, outcome),
            Event::Signal(number) if self.signal.is_none() => {
                self.signal = Some(number);
                self.screen.note("interrupted, stopping the guests")
            }
            Event::Down if !self.is_to_end() => {
                self.down = true;
                self.screen.note("going down")
            }
            // Before that, it ends the whole machine.
            Event::Died(node, why) if self.started => {
                let at = self.plan.coords(node);
                let note =
                    format!("{at} is off: {why}; its device is reset, `tofu restart` starts it");
                self.screen.note(&note)
            }
            Event::ShardWent(shard, why) => match self.others.insert(shard, false) {
                // Its guests had ended before.
                Some(false) | None => Ok(()),
                Some(true) => self.shard_went(shard, &why),
            },
            Event::ShardCame(shard) => {
                self.others.insert(shard, true);
                self.lost.remove(&shard);
                let word = self.screen.shard();
                self.screen.note(&format!("{word} {shard} is back; its links are up"))
            }
            Event::ShardEnded(shard, failed) => match self.others.insert(shard, false) {
                Some(true) if failed > 0 => {
                    let guests = if failed == 1 { "guest has" } else { "guests have" };
                    let word = self.screen.shard();
                    let note = format!("{word} {shard} has ended: {failed} of its {guests} failed");
                    self.shard_failed(shard, &note)
                }
                _ => Ok(()),
            },
            Event::Signal(_)
            | Event::Down
            | Event::Died(..)
            | Event::Started
            | Event::Changed(..) => Ok(()),
        }
    }

    /// Handles the loss of a shard whose guests had not ended.
    fn shard_went(&mut self, shard: ShardId, why: &str) -> io::Result<()> {
        let word = self.screen.shard();
        let note = format!("{word} {shard} is lost: {}; its links are down", printable(why));
        if self.plan.end_with_shard {
            return self.shard_failed(shard, &note);
        }
        self.lost.insert(shard);
        self.screen.note(&note)
    }

    /// Handles the end of a guest.
    fn ended(&mut self, node: NodeId, outcome: Outcome) -> io::Result<()> {
        let (kind, code, detail) = match outcome {
            Outcome::Exited(code) => ("exited", Some(code), String::new()),
            Outcome::Reset => ("reset", None, String::new()),
            Outcome::Fault(what) => ("fault", None, printable(&what)),
            Outcome::Stopped if self.is_to_end() => ("stopped", None, String::new()),
            Outcome::Stopped => ("stopped", None, "its node was taken down".to_owned()),
        };
        self.end(node, kind, code, detail)
    }

    /// Shows a function on a guest's stack, below the guest's output.
    fn frame(&mut self, node: NodeId, frame: &Frame) -> io::Result<()> {
        self.screen.guest_line(self.plan.coords(node), &printable(&format!("    at {frame}")))
    }

    fn netboot(&mut self, node: NodeId, stage: BootStage) -> io::Result<()> {
        let at = self.plan.coords(node);
        if let Some(line) = self.boots.take(node, stage) {
            self.screen.netboot(at, &line)?;
        }
        self.screen.netboot_slowest(self.boots.slowest());
        match self.boots.summary() {
            Some(summary) => self.screen.note(&summary),
            None => Ok(()),
        }
    }

    /// Records how a node ended. The first record counts: a guest found hanging ends as stopped a
    /// moment later.
    fn end(
        &mut self,
        node: NodeId,
        kind: &'static str,
        code: Option<u32>,
        detail: String,
    ) -> io::Result<()> {
        let Some(guest) = self.plan.program(node) else { return Ok(()) };
        // It may fail just because the others vanish.
        let by_user = code != Some(0) && self.is_to_end();
        let progress = &mut self.nodes[node.index()];
        if progress.result.is_some() {
            return Ok(());
        }
        self.running -= 1;
        // The others continue without a node that was taken down, or that fails with its guest.
        let others_go_on = kind == "stopped" || self.plan.fail_with_guest && code.is_none();
        if code != Some(0) && !others_go_on {
            self.failed.get_or_insert_with(|| "another guest failed".to_owned());
        }
        let result = NodeResult {
            coords: self.plan.coords(node),
            guest: guest.to_owned(),
            ok: code == Some(0),
            kind,
            code,
            by_user,
            detail,
            after: self.start.elapsed(),
            last_line: progress.last_line.clone(),
        };
        self.screen.ended(&result)?;
        progress.result = Some(result);
        Ok(())
    }

    fn without_result(&self) -> Vec<NodeId> {
        let nodes = self.plan.programs().map(|(id, _)| id);
        nodes.filter(|id| self.nodes[id.index()].result.is_none()).collect()
    }

    /// Examines the guests that still run, stops them, and reports them as hanging.
    fn time_is_over(
        &mut self,
        machine: &mut dyn Running,
        events: &Receiver<Event>,
        (kind, why): (&'static str, &str),
    ) -> io::Result<()> {
        events.release();
        let hanging = self.without_result().into_iter();
        let hanging: Vec<_> =
            hanging.map(|id| (id, machine.registers(id), machine.frames(id))).collect();
        machine.stop();
        // Some may have ended by themselves in the meantime.
        while let Ok(event) = events.try_recv() {
            if !matches!(event, Event::Ended(_, Outcome::Stopped)) {
                self.take(event)?;
            }
        }
        for (id, registers, frames) in hanging {
            let still = self.nodes[id.index()].result.is_none();
            for frame in frames.iter().filter(|_| still) {
                self.frame(id, frame)?;
            }
            let at = registers.map(|registers| format!(", {registers}")).unwrap_or_default();
            let detail = printable(&format!("{why}{at}"));
            self.end(id, kind, None, detail)?;
        }
        Ok(())
    }

    fn finish(mut self) -> anyhow::Result<u8> {
        let others_failed = self.have_others_failed();
        for id in self.without_result() {
            self.end(id, "stopped", None, String::new())?;
        }
        if self.plan.programs().next().is_none() {
            self.screen.end()?;
            return Ok(match self.signal {
                Some(signal) => exit::of_signal(signal),
                None if others_failed && !self.down => exit::FAILED,
                None => 0,
            });
        }
        let results: Vec<_> = self.nodes.into_iter().filter_map(|node| node.result).collect();
        self.screen.summary(&results, self.start.elapsed())?;
        Ok(match self.signal {
            Some(signal) => exit::of_signal(signal),
            // The user who takes the machine down knows which guests still run.
            None if self.down => 0,
            None if !others_failed && results.iter().all(|result| result.ok) => 0,
            None => exit::FAILED,
        })
    }
}

struct Seconds(Duration);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} s", self.0.as_secs_f64())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use anyhow::bail;
    use std::borrow::Cow;
    use std::sync::Arc;
    use tofu_fabric::Shape;
    use tofu_spec::MachineSpec;
    use tofu_spec::guest::Guest;
    use tofu_spec::plan::{NodePlan, Role, VmPlan};
    use tofu_spec::units::{BootFrom, MemorySize, Timeout};
    use tofu_supervisor::event;
    use tofu_ui::Style;

    pub(crate) fn plan(shape: &str, vms: usize, timeout: Duration) -> Plan {
        let shape: Shape = shape.parse().unwrap();
        let guest = Guest { name: "probe".into(), image: Arc::new(Cow::Borrowed(&[])) };
        let vm = VmPlan {
            guest,
            memory: MemorySize(16 << 20),
            args: String::new(),
            boot: BootFrom::Monitor,
        };
        let nodes = (0..).zip(shape.iter()).map(|(id, coords)| {
            let role = if id < vms { Role::Bare(vm.clone()) } else { Role::Stub };
            NodePlan { coords, role }
        });
        let devices = Plan::served(&MachineSpec { shape: Some(shape), ..MachineSpec::default() });
        let (nodes, timeout) = (nodes.collect(), Timeout(timeout));
        Plan { nodes, timeout, ..devices.unwrap() }
    }

    /// A machine whose guests do nothing by themselves; the test sends their events.
    struct Idle {
        events: EventSender,
        hanging: Vec<u32>,
    }

    impl Running for Idle {
        fn registers(&self, node: NodeId) -> Option<String> {
            (node.0 != 3).then(|| format!("rip={:#x}", node.0))
        }
        fn stop(&mut self) {
            for id in self.hanging.drain(..) {
                self.events.send(Event::Ended(NodeId(id), Outcome::Stopped));
            }
        }
    }

    /// Starts an [`Idle`] machine after these events.
    struct Script {
        coming: Vec<Event>,
        hanging: Vec<u32>,
    }

    impl Backend for Script {
        fn start(&self, _: &Plan, events: EventSender) -> anyhow::Result<Box<dyn Running>> {
            for event in &self.coming {
                events.send(event.clone());
            }
            Ok(Box::new(Idle { events, hanging: self.hanging.clone() }))
        }
    }

    const TEXT: Style = Style { json: false, colour: false, progress: false };

    /// Runs `plan` with these events, and with `hanging` nodes that run until stopped.
    fn run(plan: &Plan, style: Style, coming: Vec<Event>, hanging: &[u32]) -> (u8, String) {
        let (sender, events) = event::events();
        let mut out = Vec::new();
        let mut screen = Screen::new(&mut out, style, plan, "test").unwrap();
        let script = Script { coming, hanging: hanging.to_vec() };
        let code =
            watch(plan, SHORT, &script, sender, &events, &mut screen, &mut |_| Ok(())).unwrap();
        drop(screen);
        (code, String::from_utf8(out).unwrap())
    }

    fn ended(id: u32, code: u32) -> Event {
        Event::Ended(NodeId(id), Outcome::Exited(code))
    }

    pub(crate) const LONG: Duration = Duration::from_secs(3600);
    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn all_succeed() {
        let plan = plan("1x1x1x2x1x1", 2, LONG);
        let line = Event::Line(NodeId(1), "1 MiB \x1b[2Jverified".into());
        let coming = vec![Event::Booted(NodeId(0)), line, ended(0, 0), ended(1, 0)];
        let (code, text) = run(&plan, TEXT, coming, &[]);
        assert_eq!(code, 0);
        assert!(text.starts_with("machine 1x1x1x2x1x1: 2 VMs, 32 MiB of guest memory"), "{text}");
        assert!(text.contains("(0,0,0,1,0,0) 1 MiB \u{fffd}[2Jverified\n"), "{text}");
        assert!(text.contains("(0,0,0,1,0,0)  probe  ok"), "{text}");
        assert!(text.contains("all 2 guests succeeded in "), "{text}");
    }

    /// Shard 0 of two.
    fn half(timeout: Duration) -> Plan {
        let mut plan = plan("1x1x1x2x1x1", 1, timeout);
        plan.network.shard = Some("0/2".parse().unwrap());
        let role = plan.nodes[0].role.clone();
        plan.elsewhere.push((tofu_fabric::NodeId(1), role));
        plan
    }

    #[test]
    fn shard_waits_for_the_others() {
        let coming = vec![ended(0, 0), Event::ShardEnded(ShardId(1), 0)];
        let (code, text) = run(&half(LONG), TEXT, coming, &[]);
        assert_eq!(code, 0, "{text}");
        assert!(text.starts_with("machine 1x1x1x2x1x1: shard 0/2, 1 of 2 VMs, 16 MiB"), "{text}");
        // One that goes then is not missed.
        let gone = Event::ShardWent(ShardId(1), "its process has ended".into());
        let coming = vec![Event::ShardEnded(ShardId(1), 0), gone, ended(0, 0)];
        let (code, text) = run(&half(LONG), TEXT, coming, &[]);
        assert!(code == 0 && !text.contains("is lost"), "{text}");
        let (code, text) = run(&half(SHORT), TEXT, vec![ended(0, 0)], &[]);
        assert!(code == 1 && text.contains("the other shards take too long"), "{text}");
    }

    #[test]
    fn failed_shard_ends_the_others() {
        let gone = Event::ShardWent(ShardId(1), "its process has ended".into());
        let ending = Plan { end_with_shard: true, ..half(LONG) };
        let (code, text) = run(&ending, TEXT, vec![gone.clone()], &[0]);
        assert_eq!(code, 1);
        assert!(text.contains("shard 1 is lost: its process has ended; its links"), "{text}");
        assert!(text.contains("stopped: shard 1 failed 0.02 s before"), "{text}");
        let (code, text) = run(&half(LONG), TEXT, vec![ended(0, 0), gone], &[]);
        assert!(code == 1 && text.contains("shard 1 is lost"), "{text}");
        let coming = vec![Event::ShardEnded(ShardId(1), 2)];
        let (code, text) = run(&half(LONG), TEXT, coming, &[0]);
        assert!(
            code == 1 && text.contains("shard 1 has ended: 2 of its guests have failed"),
            "{text}"
        );
    }

    #[test]
    fn lost_shard_may_come_back() {
        let gone = Event::ShardWent(ShardId(1), "its process has ended".into());
        let (came, done) = (Event::ShardCame(ShardId(1)), Event::ShardEnded(ShardId(1), 0));
        let coming = vec![gone.clone(), came, ended(0, 0), done];
        let (code, text) = run(&half(LONG), TEXT, coming, &[]);
        assert!(code == 0 && text.contains("shard 1 is back; its links are up"), "{text}");
        // If it does not, this one runs to its end, and fails.
        let (code, text) = run(&half(LONG), TEXT, vec![gone, ended(0, 0)], &[]);
        assert!(code == 1 && text.contains("all 1 guests succeeded"), "{text}");
    }

    #[test]
    fn json_has_the_former_word_for_shards() {
        let gone = Event::ShardWent(ShardId(1), "its process has ended".into());
        let ending = Plan { end_with_shard: true, ..half(LONG) };
        let json = Style { json: true, ..TEXT };
        let (_, text) = run(&ending, json, vec![gone.clone()], &[0]);
        for said in [
            r#""part":"0/2""#,
            r#""text":"part 1 is lost: its process has ended; its links are down""#,
            r#""detail":"part 1 failed "#,
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
        let coming = vec![gone, Event::ShardCame(ShardId(1)), ended(0, 0)];
        let (_, text) = run(&half(SHORT), json, coming, &[]);
        for said in [
            "part 1 is back; its links are up",
            "all guests here have ended; waiting for part 1",
            "the other parts take too long; this one leaves the machine",
        ] {
            let note = format!(r#"{{"event":"note","text":"{said}"}}"#);
            assert!(text.contains(&note), "{said}: {text}");
        }
        assert!(!text.contains("shard"), "{text}");
    }

    #[test]
    fn one_failure_is_a_failure() {
        let plan = plan("unit", 3, LONG);
        let fault = Event::Ended(NodeId(1), Outcome::Fault("triple fault at rip=0x1000".into()));
        let (code, text) = run(&plan, TEXT, vec![ended(0, 0), fault, ended(2, 7)], &[]);
        assert_eq!(code, 1);
        assert!(text.contains("3 VMs, 9 without a VM"), "{text}");
        assert!(text.contains("(0,0,0,0,0,1) fault: triple fault at rip=0x1000\n"), "{text}");
        assert!(text.contains("(0,0,0,0,1,0) exit code 7\n"), "{text}");
        assert!(text.contains("2 of 3 guests failed"), "{text}");
    }

    #[test]
    fn reset_is_a_failure() {
        let plan = plan("1x1x1x1x1x1", 1, LONG);
        let (code, text) = run(&plan, TEXT, vec![Event::Ended(NodeId(0), Outcome::Reset)], &[]);
        assert_eq!(code, 1);
        assert!(text.contains("(0,0,0,0,0,0) reset\n"), "{text}");
    }

    #[test]
    fn hang_is_reported_with_registers() {
        let plan = plan("unit", 4, SHORT);
        let (code, text) = run(&plan, TEXT, vec![ended(0, 0), ended(1, 0)], &[2, 3]);
        assert_eq!(code, 1);
        let hang = "(0,0,0,0,1,0) timeout: still running after 0.02 s, rip=0x2\n";
        assert!(text.contains(hang), "{text}");
        assert!(text.contains("(0,0,0,0,1,1) timeout: still running after 0.02 s\n"), "{text}");
        assert!(text.contains("2 of 4 guests failed"), "{text}");
    }

    #[test]
    fn others_end_soon_after_a_failure() {
        let plan = plan("unit", 4, LONG);
        let (code, text) = run(&plan, TEXT, vec![ended(0, 0), ended(1, 3)], &[2, 3]);
        assert_eq!(code, 1);
        let stopped = "(0,0,0,0,1,0) stopped: another guest failed 0.02 s before, rip=0x2\n";
        assert!(text.contains(stopped), "{text}");
        assert!(text.contains("3 of 4 guests failed"), "{text}");
    }

    #[test]
    fn others_continue_without_a_downed_node() {
        let plan = plan("unit", 3, Duration::from_millis(60));
        let down = Event::Ended(NodeId(1), Outcome::Stopped);
        let coming = vec![ended(0, 0), down.clone(), Event::Rebooted(NodeId(1))];
        let (code, text) = run(&plan, TEXT, [coming, vec![ended(1, 0), ended(2, 0)]].concat(), &[]);
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("(0,0,0,0,0,1) stopped: its node was taken down\n"), "{text}");
        assert!(text.contains("(0,0,0,0,0,1) runs again\n"), "{text}");
        // It has not succeeded, but that is no reason to stop the others.
        let (code, text) = run(&plan, TEXT, vec![ended(0, 0), down], &[2]);
        assert_eq!(code, 1);
        assert!(text.contains("(0,0,0,0,1,0) timeout: still running"), "{text}");
        let fails = Plan { fail_with_guest: true, ..plan };
        let fault = Event::Ended(NodeId(1), Outcome::Fault("triple fault".into()));
        let (code, text) = run(&fails, TEXT, vec![ended(0, 0), fault], &[2]);
        assert_eq!(code, 1);
        assert!(text.contains("(0,0,0,0,1,0) timeout: still running"), "{text}");
    }

    #[test]
    fn signal_stops_everything() {
        let plan = plan("unit", 2, LONG);
        let (code, text) = run(&plan, TEXT, vec![ended(0, 0), Event::Signal(2)], &[1]);
        assert_eq!(code, 130);
        assert!(text.contains("interrupted, stopping the guests\n"), "{text}");
        assert!(text.contains("(0,0,0,0,0,1) stopped\n"), "{text}");
        assert!(text.contains("1 of 2 guests was stopped, 1 succeeded in "), "{text}");
    }

    #[test]
    fn guests_taken_down_have_not_failed() {
        let (of_three, down) = (plan("unit", 3, LONG), Event::Down);
        let (code, text) = run(&of_three, TEXT, vec![down.clone()], &[0, 1, 2]);
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("all 3 guests were stopped in "), "{text}");
        let json = Style { json: true, ..TEXT };
        let (code, text) = run(&of_three, json, vec![ended(0, 7), ended(1, 0), down.clone()], &[2]);
        assert_eq!(code, 0, "{text}");
        let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        let said = ["succeeded", "failed", "stopped"].map(|name| last[name].as_u64());
        assert_eq!((said, &last["ok"]), ([Some(1); 3], &false.into()), "{text}");
        let (_, text) = run(&of_three, TEXT, vec![ended(0, 7), ended(1, 0), down], &[2]);
        assert!(text.contains("1 of 3 guests failed, 1 was stopped in "), "{text}");
    }

    #[test]
    fn silent_machine_is_a_failure() {
        struct Gone;
        impl Running for Gone {
            fn registers(&self, _: NodeId) -> Option<String> {
                None
            }
            fn stop(&mut self) {}
        }
        struct Silent;
        impl Backend for Silent {
            fn start(&self, _: &Plan, _: EventSender) -> anyhow::Result<Box<dyn Running>> {
                Ok(Box::new(Gone))
            }
        }
        let plan = plan("unit", 1, LONG);
        let (sender, events) = event::events();
        let mut out = Vec::new();
        let mut screen = Screen::new(&mut out, TEXT, &plan, "test").unwrap();
        assert_eq!(
            watch(&plan, LONG, &Silent, sender, &events, &mut screen, &mut |_| Ok(())).unwrap(),
            1
        );
    }

    #[test]
    fn unable_host_is_an_error() {
        struct Unable;
        impl Backend for Unable {
            fn start(&self, _: &Plan, _: EventSender) -> anyhow::Result<Box<dyn Running>> {
                bail!("no /dev/kvm")
            }
        }
        let plan = plan("unit", 1, LONG);
        let (sender, events) = event::events();
        let mut out = Vec::new();
        let mut screen = Screen::new(&mut out, TEXT, &plan, "test").unwrap();
        let error =
            watch(&plan, LONG, &Unable, sender, &events, &mut screen, &mut |_| Ok(())).unwrap_err();
        assert_eq!(error.to_string(), "no /dev/kvm");
    }

    #[test]
    fn json_is_one_object_a_line() {
        let plan = plan("1x1x1x2x1x1", 2, LONG);
        let line = Event::Line(NodeId(0), "a \"quoted\" word".into());
        let coming = vec![Event::Booted(NodeId(0)), line, ended(0, 0), ended(1, 3)];
        let (code, text) = run(&plan, Style { json: true, ..TEXT }, coming, &[]);
        assert_eq!(code, 1);
        let objects: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let kinds: Vec<_> =
            objects.iter().map(|object| object["event"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["machine", "booted", "line", "ended", "ended", "summary"]);
        assert_eq!(objects[2]["node"], serde_json::json!([0, 0, 0, 0, 0, 0]));
        assert_eq!(objects[2]["text"], "a \"quoted\" word");
        assert_eq!(objects[4]["code"], 3);
        assert_eq!((&objects[5]["succeeded"], &objects[5]["failed"]), (&1.into(), &1.into()));
    }

    #[test]
    fn colour_paints_results() {
        let plan = plan("1x1x1x1x1x1", 1, LONG);
        let (_, text) = run(&plan, Style { colour: true, ..TEXT }, vec![ended(0, 1)], &[]);
        assert!(text.contains("\x1b[31mexit code 1\x1b[0m"), "{text}");
        let (_, text) = run(&plan, TEXT, vec![ended(0, 1)], &[]);
        assert!(!text.contains('\x1b'), "{text}");
    }

    #[test]
    fn large_machines_are_summed_up() {
        let plan = plan("half-rack", 192, LONG);
        let coming = (0..192).map(|id| ended(id, u32::from(id >= 186))).collect();
        let (code, text) = run(&plan, TEXT, coming, &[]);
        assert_eq!(code, 1);
        assert!(text.contains("   186 x probe: ok, the last after "), "{text}");
        assert!(text.contains("     6 x probe: exit code 1, the last after "), "{text}");
        assert!(
            text.contains(": (1,1,3,1,0,0) (1,1,3,1,0,1) (1,1,3,1,1,0) (1,1,3,1,1,1) ...\n"),
            "{text}"
        );
    }
}
