//! The scenes of a driver's life.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tofu_linux_nodes::qemu::LinkError;
use tofu_rules::Rule;
use tofu_ui::printable;

use crate::leftovers::{self, Kept};
use crate::nodes::{Gone, NODES, Nodes, Said};
use crate::options::Options;
use crate::report::{Excuse, IOMMU_SIGNS, Outcome, Report, SceneReport};
use crate::rules::Counts;
use crate::stacks::Stacks;
use crate::subject::{LOADED, Subject};

/// Most files that are copied for traffic, in bytes.
const MOST_FILE: u64 = 256 << 20;
/// Longest time until traffic works again after a fault, and once it never has.
const COMES_BACK: Duration = Duration::from_secs(15);
const STAYS_AWAY: Duration = Duration::from_secs(2);
/// The fastest of a few answers takes less, or packets wait for what follows them. In milliseconds.
const FAST: f64 = 80.0;
/// The time in which timers that a module has left run out.
const TIMERS: Duration = Duration::from_secs(2);

/// Sets D to the folder of the device and B to its address.
const DEVICE: &str = "D=; for f in /sys/bus/pci/devices/*; do \
    read -r V <$f/vendor; [ $V = 0x10cf ] && D=$f; done; B=${D##*/}; [ -n \"$D\" ] || exit 9; ";

/// The words with which the kernel ends each recovery from an error, and the longest time that it
/// may take, in tenths of a second.
const RECOVERED: &str = "AER: device recovery";
const RECOVERY: u32 = 200;

/// Words that mark lines of the kernel's log as reports of a fault.
const SIGNS: [&str; 14] = [
    "BUG:",
    "] BUG ",
    "WARNING:",
    "Oops",
    "Call Trace",
    "INFO: task",
    "KASAN:",
    "UBSAN:",
    "KFENCE:",
    "possible circular locking",
    "inconsistent lock state",
    "unreferenced object",
    "does not stop",
    "irqpoll",
];

/// The scene of the devices' faults.
const FAULTS: &str = "faults of the device";

/// The parts that a scene is played with.
struct Stage<'a> {
    subject: &'a Subject,
    options: &'a Options,
    nodes: &'a Nodes,
    /// The driver makes network interfaces.
    has_network: AtomicBool,
    /// Traffic has not come back in a scene before.
    is_dead: AtomicBool,
    /// When the module was unloaded last.
    unloaded: Mutex<Option<Instant>>,
}

/// The observations of a scene, in one line.
type Seen = anyhow::Result<String>;

/// A part of a driver's life.
pub(crate) struct Scene {
    name: &'static str,
    excuse: Excuse,
    /// True if the later scenes need it.
    needed: bool,
    /// It is played with --quick, too.
    quick: bool,
    play: fn(&Stage<'_>) -> Seen,
}

const fn scene(name: &'static str, play: fn(&Stage<'_>) -> Seen) -> Scene {
    Scene { name, excuse: Excuse::None, needed: false, quick: false, play }
}

const fn quick(scene: Scene) -> Scene {
    Scene { quick: true, ..scene }
}

const fn disturbance(name: &'static str, play: fn(&Stage<'_>) -> Seen) -> Scene {
    Scene { excuse: Excuse::Taken, ..scene(name, play) }
}

/// The kernel resets the function. It clears Bus Master Enable before, which no driver can prevent.
const fn reset(name: &'static str, play: fn(&Stage<'_>) -> Seen) -> Scene {
    Scene { excuse: Excuse::Reset, ..scene(name, play) }
}

/// A run of the program, which begins and ends at different times on both nodes.
const fn run(name: &'static str, play: fn(&Stage<'_>) -> Seen) -> Scene {
    Scene { excuse: Excuse::Starts, ..scene(name, play) }
}

/// The scenes of a module.
const MODULE: [Scene; 18] = [
    quick(Scene { needed: true, ..scene("load", |s| s.load()) }),
    quick(scene("traffic", |s| s.traffic())),
    quick(scene("stopped queue", |s| s.stopped_queue())),
    quick(disturbance("interface down", |s| s.down())),
    quick(disturbance("interface up", |s| s.up())),
    disturbance("unbind and bind", |s| s.rebind()),
    scene("traffic after bind", |s| s.traffic()),
    quick(reset("reset", |s| s.reset())),
    quick(scene("traffic after reset", |s| s.traffic())),
    reset("reset under load", |s| s.reset_under_load()),
    scene("traffic after that", |s| s.traffic()),
    reset("PCIe errors", |s| s.link_errors()),
    quick(reset(FAULTS, |s| s.faults())),
    disturbance("link down and up", |s| s.link()),
    disturbance("unload under load", |s| s.unload_under_load()),
    disturbance("unload and load", |s| s.reload()),
    scene("traffic at the end", |s| s.traffic()),
    quick(scene("unload", |s| s.unload())),
];

/// The scenes of a program.
const PROGRAM: [Scene; 4] = [
    quick(Scene { needed: true, ..run("run", |s| s.program()) }),
    run("run again", |s| s.programs()),
    reset("killed", |s| s.killed()),
    run("run after that", |s| s.program()),
];

/// Plays all scenes, and writes them into the report. `before` is what the nodes keep of drivers
/// before; without it they are new, and have our own driver.
///
/// # Errors
///
/// If the nodes cannot be prepared, or `say` fails.
pub(crate) fn play(
    subject: &Subject,
    options: &Options,
    (nodes, before): (&Nodes, Option<[Kept; 2]>),
    (report, stacks): (&mut Report, &mut Stacks<'_>),
    say: &mut dyn FnMut(&SceneReport) -> io::Result<()>,
) -> anyhow::Result<()> {
    let (has_network, is_dead) = (AtomicBool::new(false), AtomicBool::new(false));
    let unloaded = Mutex::new(None);
    let stage = Stage { subject, options, nodes, has_network, is_dead, unloaded };
    let before = stage.prepare(before)?;
    stacks.skip();
    let first = Counts::of(nodes)?;
    let scenes = if subject.module().is_some() { &MODULE[..] } else { &PROGRAM[..] };
    let mut stopped = None;
    for scene in scenes.iter().filter(|scene| scene.quick || !options.quick) {
        let row = if stopped.is_some() {
            let says = String::new();
            let outcome = Outcome::NotRun;
            SceneReport { name: scene.name, outcome, seconds: 0.0, says, broken: Vec::new() }
        } else {
            stage.scene(scene, (report, stacks), &mut stopped)?
        };
        say(&row)?;
        report.scenes.push(row);
    }
    let counts = Counts::of(nodes)?.since(&first);
    let touched = counts.get(Rule::AccessSize);
    if touched.kept == 0 && touched.broken == 0 {
        let says = "the driver has neither read nor written a register".to_owned();
        let (name, outcome) = ("touches the device", Outcome::Failed);
        let row = SceneReport { name, outcome, seconds: 0.0, says, broken: Vec::new() };
        say(&row)?;
        report.scenes.push(row);
    }
    match stopped {
        None => {
            let found = stage.leftovers(&before, report);
            if let Err(error) = found.and_then(|()| stage.timers(report)) {
                const AFTER: &str = "a look at what is left";
                report.warn(format!("in {AFTER}: {error:#}"));
                report.lost_node = true;
                // A kernel that has trouble with it says so, if it still can, or on its console.
                if let Err(error) = stage.log(AFTER, report) {
                    report.warn(format!("in {AFTER}: {error:#}"));
                }
            }
            report.explain(subject.leaves_out());
        }
        Some(Stopped::Failed) => stage.leftovers_of_failure(&before, report),
        Some(Stopped::Gone) => report.lost_node = true,
    }
    Ok(())
}

/// Makes the nodes as they were before a driver, for the next one: if it has left nothing in their
/// kernels, by a reset of the device, or else by new nodes. Returns what the nodes keep, unless
/// they are new.
///
/// # Errors
///
/// If new nodes do not boot.
pub(crate) fn clear(
    subject: &Subject,
    report: &mut Report,
    nodes: &Nodes,
    stacks: &mut Stacks<'_>,
) -> anyhow::Result<Option<[Kept; 2]>> {
    if !report.is_untidy()
        && let Some(kept) = report.kept.take()
    {
        let name = subject.module().unwrap_or_default();
        let script = format!(
            "! grep -q '^{name} ' /proc/modules && {{ {DEVICE}[ ! -e $D/driver ] && \
             echo 1 >$D/reset && {{ [ $(cat $D/enable) != 0 ] || echo 1 >$D/enable; \
             while [ $(cat $D/enable) != 0 ]; do echo 0 >$D/enable || exit; done; }}; }}"
        );
        if nodes.both(&script).is_ok_and(|said| said.iter().all(|said| said.ok)) {
            return Ok(Some(kept));
        }
    }
    nodes.restart()?;
    stacks.restarted();
    Ok(None)
}

/// The shortest time in what ping says, in milliseconds; 0 if it says none.
fn fastest(text: &str) -> f64 {
    let times = text.split("time=").skip(1).filter_map(|rest| rest.split(' ').next());
    times.filter_map(|time| time.parse().ok()).reduce(f64::min).unwrap_or(0.0)
}

/// The reason for which no more scenes are played.
#[derive(Clone, Copy)]
enum Stopped {
    /// A scene that all later ones need has failed. The nodes still answer.
    Failed,
    /// A node does not answer.
    Gone,
}

impl Stage<'_> {
    /// Plays a scene.
    fn scene(
        &self,
        scene: &Scene,
        (report, stacks): (&mut Report, &mut Stacks<'_>),
        stopped: &mut Option<Stopped>,
    ) -> anyhow::Result<SceneReport> {
        let (before, start) = (Counts::of(self.nodes)?, Instant::now());
        let commands = self.nodes.commands();
        let result = (scene.play)(self);
        let seconds = start.elapsed().as_secs_f64();
        let counts = Counts::of(self.nodes)?.since(&before);
        let excuse = self.excuse(scene);
        report.count(&counts, excuse);
        let broken = counts.broken().map(|(rule, times)| (rule.id(), times)).collect();
        let (outcome, says) = match &result {
            Ok(says) => (Outcome::Passed, says.clone()),
            Err(error) => (Outcome::Failed, format!("{error:#}")),
        };
        *stopped = match &result {
            Err(error) if error.is::<Gone>() => Some(Stopped::Gone),
            Err(_) if scene.needed => Some(Stopped::Failed),
            _ => None,
        };
        let is_gone = result.is_err_and(|error| error.is::<Gone>());
        if !is_gone && self.nodes.commands() != commands {
            let is_wanted = |rule| !excuse.covers(rule);
            report.locate(stacks.take(scene.name, self.nodes, self.subject, is_wanted));
            match self.log(scene.name, report) {
                Ok(()) => {}
                Err(error) => {
                    *stopped = Some(Stopped::Gone);
                    report.warn(format!("in {}: the log cannot be read: {error:#}", scene.name));
                }
            }
        }
        Ok(SceneReport { name: scene.name, outcome, seconds, says, broken })
    }

    /// The rules that the driver cannot keep in a scene.
    fn excuse(&self, scene: &Scene) -> Excuse {
        let aborts = self.options.faults.iter().any(|faults| faults.contains("abort"));
        if scene.name == FAULTS && aborts { Excuse::Aborted } else { scene.excuse }
    }

    /// Gives the device to nothing, and copies what is needed. Returns what the nodes
    /// keep without it.
    fn prepare(&self, before: Option<[Kept; 2]>) -> anyhow::Result<[Kept; 2]> {
        if let Some((path, bytes)) = self.subject.file() {
            self.nodes.copy(&path, bytes)?;
        }
        for file in &self.options.copy {
            let bytes = tofu_input::read(file, MOST_FILE)
                .with_context(|| format!("cannot read {}", file.display()))?;
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            self.nodes.copy(&format!("/tmp/{name}"), &bytes)?;
        }
        if self.subject.module().is_some() && before.is_none() {
            // On a busy host a node may be ready before it has loaded it.
            let script = "for i in $(seq 200); do rmmod tofu 2>/dev/null && exit; sleep 0.1; done; \
                          rmmod tofu 2>&1";
            self.nodes.both_must(script).context("our own driver")?;
        }
        let clear = format!("rm -f {LOADED}; dmesg -c >/dev/null");
        self.nodes.both_must(&clear)?;
        before.map_or_else(|| Kept::of(self.nodes, self.subject), Ok)
    }

    /// Looks through the kernels' logs, and empties them.
    fn log(&self, scene: &str, report: &mut Report) -> anyhow::Result<()> {
        for (node, said) in NODES.into_iter().zip(self.nodes.both("dmesg -c")?) {
            let is_one =
                |line: &&str| SIGNS.iter().chain(&IOMMU_SIGNS).any(|sign| line.contains(sign));
            for line in said.text.lines().filter(is_one) {
                report.warn(format!("node {node}, in {scene}: {}", printable(line.trim())));
            }
        }
        Ok(())
    }

    fn module(&self) -> &str {
        self.subject.module().unwrap_or_default()
    }

    /// Loads the module on both nodes. A driver takes the devices.
    fn load(&self) -> Seen {
        let load = self.subject.load();
        for (node, said) in NODES.into_iter().zip(self.nodes.both(&format!("{load} 2>&1"))?) {
            if !said.ok {
                let log = self.nodes.run(node, "dmesg | tail -n 1")?;
                bail!("node {node} does not load it: {}; the log: {}", said.last(), log.last());
            }
        }
        let said = self.bound()?;
        if self.subject.may_have_network() {
            let script = format!(
                "{DEVICE}for i in $(seq 15); do ls $D/net 2>/dev/null && exit; sleep 0.1; done"
            );
            let found = self.nodes.both(&script)?;
            self.has_network.store(found.iter().all(|said| !said.text.trim().is_empty()), Relaxed);
        }
        Ok(said)
    }

    /// The driver that has both devices.
    fn bound(&self) -> Seen {
        let script = format!("{DEVICE}readlink $D/driver && echo $B");
        for (node, said) in NODES.into_iter().zip(self.nodes.both(&script)?) {
            if !said.ok {
                let log = self.nodes.run(node, "dmesg | tail -n 1")?;
                let what = "the module is loaded, but no driver has taken the device";
                bail!("node {node}: {what}; the log: {}", log.last());
            }
            if node == 0 {
                let mut lines = said.text.lines();
                let driver = lines.next().and_then(|link| link.rsplit('/').next());
                let (driver, address) = (driver.unwrap_or_default(), lines.next());
                let address = address.unwrap_or_default();
                return Ok(printable(&format!("{driver} has taken {address}")));
            }
        }
        Ok(String::new())
    }

    fn unload(&self) -> Seen {
        let script = format!("rmmod {} 2>&1 && {{ {}; }}", self.module(), leftovers::CHECK_HEAP);
        self.nodes.both_must(&script)?;
        *self.unloaded.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        Ok(String::new())
    }

    /// Waits for timers that a module may have left, which call code that has gone.
    fn timers(&self, report: &mut Report) -> anyhow::Result<()> {
        const LATER: &str = "the time after unload";
        let unloaded = *self.unloaded.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(unloaded) = unloaded.filter(|_| self.subject.has_timers()) else {
            return Ok(());
        };
        thread::sleep(TIMERS.saturating_sub(unloaded.elapsed()));
        self.log(LATER, report)
    }

    /// Takes the network interfaces down.
    fn down(&self) -> Seen {
        self.set_interface("down")
    }

    /// Takes them up again.
    fn up(&self) -> Seen {
        let says = self.set_interface("up")?;
        self.pings(&self.addresses()?)?;
        Ok(says)
    }

    fn set_interface(&self, state: &str) -> Seen {
        if !self.has_network.load(Relaxed) {
            return Ok("the driver has no network interface".into());
        }
        let script = format!("{DEVICE}for I in $(ls $D/net); do ip link set $I {state}; done 2>&1");
        self.nodes.both_must(&script)?;
        Ok(String::new())
    }

    /// Takes the device away from the driver and gives it back, on one node after the other.
    fn rebind(&self) -> Seen {
        let script = format!(
            "{DEVICE}P=$(readlink -f $D/driver) && cd $P && echo $B >unbind && [ ! -e $D/driver ] \
             && echo $B >bind && [ -e $D/driver ]"
        );
        for node in NODES {
            let said = self.nodes.run(node, &format!("{{ {script}; }} 2>&1"))?;
            if !said.ok {
                bail!("node {node}: the driver does not take the device again: {}", said.last());
            }
        }
        self.bound()
    }

    /// A function level reset while nothing happens.
    fn reset(&self) -> Seen {
        let said = self.nodes.run(0, &format!("{DEVICE}echo 1 2>&1 >$D/reset"))?;
        if !said.ok {
            bail!("node 0: {}", said.last());
        }
        Ok(String::new())
    }

    /// A function level reset in the middle of traffic.
    fn reset_under_load(&self) -> Seen {
        let act = format!("{DEVICE}echo 1 >$D/reset");
        self.under_load(&act)
    }

    /// The root port of node 0 reports errors, from which the kernel and the driver recover.
    fn link_errors(&self) -> Seen {
        self.nodes.link_error(0, LinkError::Correctable)?;
        for (error, count) in [(LinkError::NonFatal, 1), (LinkError::Fatal, 2)] {
            self.nodes.link_error(0, error)?;
            let script = format!(
                "for i in $(seq {RECOVERY}); do [ $(dmesg | grep -c '{RECOVERED}') -ge {count} ] \
                 && break; sleep 0.1; done; dmesg"
            );
            let said = self.nodes.run(0, &script)?;
            let lines = || said.text.lines().filter(|line| line.contains("AER:"));
            // The kernel has touched nothing.
            if lines().any(|line| line.contains("no error_detected callback")) {
                return Ok("no recovery: the driver has no error_detected".into());
            }
            let last = lines().next_back().unwrap_or("the kernel does not take it");
            if !last.contains("recovery successful") {
                bail!("node 0 after a {error:?} error: {}", printable(last.trim()));
            }
            let pings = self.addresses().and_then(|addresses| self.pings(&addresses));
            pings.with_context(|| format!("after a {error:?} error"))?;
        }
        self.traffic()?;
        Ok("recovered from a completion timeout and a data link protocol error".into())
    }

    /// Unloads the module of one node in the middle of traffic, and loads it again.
    fn unload_under_load(&self) -> Seen {
        let act = format!("rmmod {} && {}", self.module(), self.subject.load());
        let said = self.under_load(&act)?;
        self.traffic()?;
        Ok(said)
    }

    /// Does something on node 0 while packets go both ways.
    fn under_load(&self, act: &str) -> Seen {
        let addresses = self.addresses()?;
        let (Some(here), Some(there)) = (&addresses[0], &addresses[1]) else {
            let said = self.nodes.run(0, &format!("{{ {act}; }} 2>&1"))?;
            if !said.ok {
                bail!("node 0: {}", said.last());
            }
            return Ok("without load: the driver has no network interface".into());
        };
        let pings = |to: &str| format!("ping -c 200 -i 0.01 -W 1 -s 8000 {to} >/dev/null 2>&1");
        let back = pings(here);
        let script =
            format!("{} & sleep 0.4; {{ {act}; }} 2>&1; R=$?; wait; exit $R", pings(there));
        let said = thread::scope(|scope| {
            let back = scope.spawn(|| self.nodes.run(1, &back));
            let said = self.nodes.run(0, &script);
            back.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            said
        })?;
        if !said.ok {
            bail!("node 0: {}", said.last());
        }
        Ok(String::new())
    }

    /// Takes the link down in the middle of traffic, and up again.
    fn link(&self) -> Seen {
        let addresses = self.addresses()?;
        self.nodes.link(false)?;
        let lost = match &addresses[1] {
            Some(there) => Some(!self.nodes.run(0, &format!("ping -c 2 -W 1 {there}"))?.ok),
            None => None,
        };
        self.nodes.link(true)?;
        let traffic = self.traffic()?;
        Ok(match lost {
            Some(false) => "packets went another way".into(),
            _ => traffic,
        })
    }

    /// Traffic under each fault of the devices, which may fail, and after it, which may not.
    fn faults(&self) -> Seen {
        if self.options.faults.is_empty() {
            return Ok("none: no --fault".into());
        }
        let addresses = self.addresses()?;
        let reset = format!("{DEVICE}echo 1 2>&1 >$D/reset");
        for fault in &self.options.faults {
            self.nodes.fault(fault)?;
            let under = match &addresses[1] {
                Some(there) => {
                    let ping = format!("ping -c 20 -i 0.05 -W 1 {there} >/dev/null 2>&1; true");
                    self.nodes.run(0, &ping).map(drop)
                }
                None => self.nodes.both(&reset).map(drop),
            };
            self.nodes.fault("off")?;
            under.with_context(|| format!("under {fault}"))?;
            self.nodes.both_must(&reset).with_context(|| format!("after {fault}"))?;
            self.traffic().with_context(|| format!("after {fault}"))?;
        }
        Ok(self.options.faults.join("; "))
    }

    /// Unloads and loads the module, as often as was asked for.
    fn reload(&self) -> Seen {
        let (times, module, load) = (self.options.reloads, self.module(), self.subject.load());
        // Each round has the limit of a command.
        for round in 1..=times {
            let script = format!("rmmod {module} 2>&1 && {load} 2>&1");
            self.nodes.both_must(&script).with_context(|| format!("round {round}"))?;
        }
        self.bound()?;
        Ok(format!("{times} times"))
    }

    /// The IP addresses of the driver's network interfaces, if it has any. An interface that has no
    /// address gets one.
    fn addresses(&self) -> anyhow::Result<[Option<String>; 2]> {
        if !self.has_network.load(Relaxed) {
            return Ok([None, None]);
        }
        let script = |node: u32| {
            format!(
                "{DEVICE}for i in $(seq 20); do I=$(ls $D/net 2>/dev/null | head -n 1); \
                 [ -n \"$I\" ] && break; sleep 0.1; done; [ -n \"$I\" ] || exit 0; \
                 ip() {{ command ip \"$@\" 2>/dev/null; }}; \
                 of() {{ ip -4 -o addr show dev $I | sed -n 's/.* inet \\([0-9.]*\\).*/\\1/p' | \
                 head -n 1; }}; \
                 for i in $(seq 30); do A=$(of); [ -n \"$A\" ] && break; sleep 0.1; done; \
                 [ -n \"$A\" ] || {{ ip addr add 10.77.0.{}/24 dev $I; ip link set $I up; }}; of",
                node + 1
            )
        };
        let [first, second] = thread::scope(|scope| {
            NODES.map(|node| scope.spawn(move || self.nodes.run(node, &script(node)))).map(
                |thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            )
        });
        let address = |said: Said| {
            let address = said.text.trim().to_owned();
            let is_one = |text: &String| text.parse::<std::net::Ipv4Addr>().is_ok();
            Some(address).filter(is_one)
        };
        Ok([address(first?), address(second?)])
    }

    /// Packets and a stream between the driver's network interfaces, and the commands that were
    /// asked for.
    fn traffic(&self) -> Seen {
        let addresses = self.addresses()?;
        let mut says = Vec::new();
        self.pings(&addresses)?;
        if let [Some(here), Some(there)] = &addresses {
            self.burst(there, 200)?;
            self.long_frames(there)?;
            self.stream(there)?;
            says.push(format!("{here} and {there} reach each other"));
        }
        let own = self.subject.traffic().into_iter();
        for command in own.chain(self.options.traffic.iter().map(String::as_str)) {
            self.command(command, &addresses)?;
            says.push(printable(command));
        }
        if says.is_empty() {
            says.push("none: the driver has no network interface, and no --traffic".into());
        }
        Ok(says.join(", "))
    }

    /// Both nodes reach each other.
    fn pings(&self, addresses: &[Option<String>; 2]) -> anyhow::Result<()> {
        if let [Some(here), Some(there)] = addresses {
            self.comes_back(0, there)?;
            self.comes_back(1, here)?;
        }
        Ok(())
    }

    /// Returns true if traffic that began at `start` has had its time. It has less from then on.
    fn stays_away(&self, start: Instant) -> bool {
        let limit = if self.is_dead.load(Relaxed) { STAYS_AWAY } else { COMES_BACK };
        let stays_away = start.elapsed() > limit;
        self.is_dead.fetch_or(stays_away, Relaxed);
        stays_away
    }

    fn comes_back(&self, node: u32, to: &str) -> anyhow::Result<()> {
        let start = Instant::now();
        let script =
            format!("ping -c 3 -i 0.1 -W 2 {to} 2>&1 && ping -c 3 -i 0.1 -W 2 -s 20000 {to}");
        loop {
            let said = self.nodes.run(node, &script)?;
            let fastest = fastest(&said.text);
            if said.ok && fastest < FAST {
                self.is_dead.store(false, Relaxed);
                return Ok(());
            }
            if self.stays_away(start) {
                if said.ok {
                    bail!("node {node}: the fastest answer of {to} takes {fastest} ms");
                }
                bail!("node {node} does not reach {to}: {}", said.last());
            }
        }
    }

    /// So many long packets in both directions; 200 in fragments are more than the smallest queue
    /// has entries. The next ones go when the last ones are back, as a node that is busy has
    /// buffers for so many only.
    fn burst(&self, to: &str, count: u32) -> anyhow::Result<()> {
        let start = Instant::now();
        // With a deadline (`-w`) it would send more, of which some are on their way when it ends.
        // At SIGINT it says what it has got.
        let ping =
            format!("timeout -s INT {} ping -A -c {count} -W 5 -s 20000", count.min(500) / 10);
        let script = format!("{ping} {to} 2>&1 | grep loss");
        loop {
            let said = self.nodes.run(0, &script)?;
            if said.text.contains(" 0% packet loss") {
                return Ok(());
            }
            if self.stays_away(start) {
                bail!("node 0: {count} long packets to {to}: {}", said.last());
            }
        }
    }

    /// Packets and a stream while the kernel's limit of bytes stops a transmit queue after each
    /// frame, until the driver reports it as sent. A driver that does not count bytes has its usual
    /// traffic.
    fn stopped_queue(&self) -> Seen {
        let addresses = self.addresses()?;
        let Some(there) = &addresses[1] else {
            return Ok("the driver has no network interface".into());
        };
        self.while_set("*/queues/tx-*/byte_queue_limits/limit_max", 1, |_| {
            self.pings(&addresses)?;
            self.burst(there, 100)?;
            self.stream(there)
        })?;
        Ok(String::new())
    }

    /// Sets these files of both nodes' network interfaces for the time of `act`, which learns
    /// whether that is possible.
    fn while_set(
        &self,
        files: &str,
        value: u64,
        act: impl FnOnce(bool) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let set = format!(
            "{DEVICE}R=0; for F in $D/net/{files}; do echo $F $(cat $F); echo {value} >$F || R=1; \
             done 2>/dev/null; exit $R"
        );
        let before = self.nodes.both(&set)?;
        let result = act(before.iter().all(|said| said.ok));
        for (node, said) in NODES.into_iter().zip(&before) {
            let fields = said.text.lines().filter_map(|line| line.split_once(' '));
            let numbers = fields.filter(|(_, before)| before.parse::<u64>().is_ok());
            let back: String =
                numbers.map(|(file, before)| format!("echo {before} >{file}; ")).collect();
            if !back.is_empty() {
                self.nodes.run(node, &back)?;
            }
        }
        result
    }

    /// More of them, as one frame each, if the interfaces take such frames: a driver may handle
    /// them in another way, by queues that otherwise have little to do. A quarter of the smallest
    /// queue's entries are 512, after which a driver may say how far it is.
    fn long_frames(&self, to: &str) -> anyhow::Result<()> {
        self.while_set("$(ls $D/net | head -n 1)/mtu", 20100, |is_set| match is_set {
            true => self.burst(to, 600),
            false => Ok(()),
        })
    }

    /// A stream of 4 MiB from node 0, which arrives as it was.
    fn stream(&self, to: &str) -> anyhow::Result<()> {
        const BYTES: u32 = 4 << 20;
        let sum = format!("head -c {BYTES} /dev/urandom >/tmp/prove.in && md5sum </tmp/prove.in");
        let expected = self.nodes.run(0, &sum)?;
        // At the end of its input, the server would shut down its half of the connection
        // immediately, and the client would take that for the end of the connection.
        let serve = "rm -f /tmp/prove.hold; mkfifo /tmp/prove.hold; exec 3<>/tmp/prove.hold; \
                     timeout 30 nc -l -p 7717 <&3 | md5sum";
        let send = format!(
            "for i in $(seq 50); do timeout 20 nc {to} 7717 </tmp/prove.in && exit 0; sleep 0.1; \
             done; exit 1"
        );
        let (sent, arrived) = thread::scope(|scope| {
            let served = scope.spawn(|| self.nodes.run(1, serve));
            let sent = self.nodes.run(0, &send);
            (sent, served.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let (sent, arrived) = (sent?, arrived?);
        if !sent.ok || arrived.text.trim() != expected.text.trim() {
            bail!("a stream of {BYTES} bytes did not arrive as it was: {}", arrived.last());
        }
        Ok(())
    }

    /// A command that both nodes run at the same time.
    fn command(&self, command: &str, addresses: &[Option<String>; 2]) -> anyhow::Result<()> {
        let script = |node: u32| {
            let peer = addresses[1 - node as usize].as_deref().unwrap_or_default();
            format!("export NODE={node} PEER={peer}; {{ {command}; }} 2>&1")
        };
        let results = thread::scope(|scope| {
            NODES.map(|node| scope.spawn(move || self.nodes.run(node, &script(node)))).map(
                |thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            )
        });
        for (node, said) in NODES.into_iter().zip(results) {
            let said = said?;
            if !said.ok {
                bail!("node {node}: {}: {}", printable(command), said.last());
            }
        }
        Ok(())
    }

    /// Runs the program on both nodes at the same time.
    fn program(&self) -> Seen {
        self.command(&self.subject.load(), &[None, None])?;
        for command in &self.options.traffic {
            self.command(command, &[None, None])?;
        }
        Ok(String::new())
    }

    fn programs(&self) -> Seen {
        for round in 1..=self.options.reloads {
            self.program().with_context(|| format!("round {round}"))?;
        }
        Ok(format!("{} times", self.options.reloads))
    }

    /// Kills the program on one node in the middle, again and again.
    fn killed(&self) -> Seen {
        let load = self.subject.load();
        for tenths in [0, 1, 2, 4, 8] {
            let script =
                format!("{load} >/dev/null 2>&1 & sleep 0.{tenths}; kill -9 $!; wait; true");
            self.nodes.both_must(&script)?;
        }
        Ok("5 times on both nodes".into())
    }

    /// Writes what the driver has left into the report.
    fn leftovers(&self, before: &[Kept; 2], report: &mut Report) -> anyhow::Result<()> {
        let found = leftovers::find(self.nodes, self.subject, before)?;
        report.left.extend(found.left);
        report.is_changed |= found.is_changed;
        report.kept = Some(found.kept);
        Ok(())
    }

    /// The same for a driver that did not take the device: ways out of errors leak, too.
    fn leftovers_of_failure(&self, before: &[Kept; 2], report: &mut Report) {
        let unloaded = match self.subject.module() {
            Some(module) => {
                let script = format!("rmmod {module} 2>&1; {}", leftovers::CHECK_HEAP);
                self.nodes.both(&script).map(drop)
            }
            None => Ok(()),
        };
        let unload = "unload after the failure";
        let looked = unloaded.and_then(|()| self.log(unload, report));
        if let Err(error) = looked.and_then(|()| self.leftovers(before, report)) {
            report.warn(format!("in {unload}: {error:#}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fastest_answer_is_found() {
        let text = "64 bytes from 10.1.0.1: icmp_seq=1 ttl=64 time=104 ms\n\
                    64 bytes from 10.1.0.1: seq=2 ttl=64 time=0.71 ms\nnonsense time=\n";
        assert_eq!((fastest(text), fastest("none")), (0.71, 0.0));
    }
}
