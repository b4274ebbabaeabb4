//! `tofu run` on Linux nodes: copies files to the nodes, runs the ranks, and removes the files.

use std::io::Read;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, bail};
use serde_json::json;
use tofu_abi::{Coords, Group};
use tofu_agent::wire::{Exec, Program, Status, ToProgram};
use tofu_control::protocol::{EventInfo, EventKind, Reply, Request};
use tofu_control::{Connection, RemoteProgram, node_name};
use tofu_image::{Phase, Progress};
use tofu_jtofu::Mapinfo;
use tofu_linux_nodes::progress::{ImageProgress, is_interrupted};
use tofu_ui::{Style, exit};

use crate::bundle::{Bundle, LIBRARIES};
use crate::fetch_outputs::{self, Destination, Origin};
use crate::job::{self, Control, EXIT_TIMEOUT, Event, Label, Options, OutputTaker, Rank, Teller};
use crate::lease::{Got, Lease};
use crate::machine::{Found, Machine};
use crate::node_command::{must, shell};
use crate::place::{Placement, Wanted, in_order};
use crate::process_manager::{Manager, Ranks};
use crate::spec::JobSpec;
use crate::user::as_user;

/// The folder for jobs' folders on a node.
const FOLDER: &str = "/tmp";
/// The variable that marks a job's processes.
const JOB: &str = "TOFU_JOB";
/// The variable with the number of earlier starts of the job.
const RESTART: &str = "TOFU_RESTART";
/// The variable with the group, for ranks that run as root and open the device themselves.
const GROUP: &str = "TOFU_GROUP";
/// The variable with their subnet.
const SUBNET: &str = "TOFU_SUBNET";

/// Prepares a node before any program of the job runs. Where the kernel driver or `tofud` gives
/// users the device, makes the user the owner of the job's folder, and limits the user to the job's
/// subnet. Prints the existing folders of other jobs, except for faked ones, and the given sets of
/// libraries that the node lacks. If it lacks any, removes sets to which no job's folder links, to
/// make room. Another job may do the same at the same time, or may link to an existing set and then
/// search for it. So a set is renamed first, which only one job can do, and gets its name back if a
/// job has linked to it in the meantime.
const LOOK: &str = r#"
for way in /proc/tofu/dev /run/tofu/*.sock; do
    [ -e "$way" ] || continue
    chown -R "$1:$1" "$2" && chmod 700 "$2" || exit 1
    [ "$1" = 0 ] || tofu-guest subnet "$1" "$3" || exit 1
    break
done
shown=0
for folder in /tmp/tofu-run-*; do
    [ -d "$folder" ] && [ ! -L "$folder" ] && [ "$folder" != "$2" ] || continue
    number=${folder#/tmp/tofu-run-}
    case $number in '' | [!1-9]* | *[!0-9-]*) continue ;; esac
    case $(stat -c %u "$folder") in
        0 | $(($4 | ${number%%-*}))) ;;
        *) continue ;;
    esac
    [ "$shown" -lt 20 ] && echo "${folder#/tmp/}"
    shown=$((shown + 1))
done
old=.${2#/tmp/}-old
shift 4
mkdir -p "$1" && cd "$1" && shift || exit 1
lacking=
for set; do
    [ -e "$set" ] || { echo "$set"; lacking=1; }
done
[ -z "$lacking" ] && exit 0
linked() { ls -l /tmp/tofu-run-*/ | grep -qF -e "/$1"; }
for set in *; do
    linked "$set" && continue
    mv -T "$set" "$old" 2>/dev/null || continue
    linked "$set" && mv -T "$old" "$set" 2>/dev/null
    rm -rf "$old"
done
true
"#;

/// Gives a complete set of libraries its name, atomically: another job may wait for the same set,
/// or may have copied it too.
const NAME: &str = r#"cd "$1" && { mv -T "$2" "$3" 2>/dev/null || rm -rf "$2"; } && [ -e "$3" ]"#;

/// Gives programs that ranks start a loader where they expect it, unless the node has its own. Two
/// jobs may do so at the same time.
const LEND: &str = r#"
[ -e "$1" ] && [ "$(readlink "$1")" != "$3" ] && exit 0
mkdir -p "${1%/*}" "${3%/*}" && cp "$2" "$3.$4" && mv "$3.$4" "$3" || exit 1
ln -s "$3" "$1" 2>/dev/null || [ -L "$1" ]
"#;

/// Kills all processes of the user that runs this, if it is the job's user. No process can escape
/// by forking.
const END: &str = r#"[ "$(id -u)" = "$1" ] && kill -9 -1; true"#;

/// Kills the remaining processes of a job, even if their parents have ended, and removes its
/// folder, partly copied libraries, and the user's subnet. Processes forked during a round are
/// found in the next one.
const TIDY: &str = r#"
for round in 1 2 3 4 5; do
    found=$(grep -Fls "TOFU_JOB=$1" /proc/[0-9]*/environ)
    [ -z "$found" ] && break
    for file in $found; do
        process=${file#/proc/}
        kill -9 "${process%/environ}" 2>/dev/null
    done
done
[ "$3" = 0 ] || tofu-guest subnet "$3"
rm -rf "/tmp/$1" "$2/.$1"-*
"#;

/// Runs the job and returns the exit code.
pub(crate) fn run(spec: &JobSpec) -> anyhow::Result<u8> {
    let control = Control::new(spec.grace.0)?;
    // User errors are found before anything is started.
    let wanted = Wanted::new(spec)?;
    let preparing = Preparing::new(&control);
    let mut bundle = match Bundle::new(spec, &preparing) {
        Ok(bundle) => bundle,
        Err(error) => return preparing.stopped(error),
    };
    let destination = Destination::new(spec)?;
    let mut machine = match Machine::find(spec, wanted, (bundle.arch(), bundle.mpi()), &control)? {
        Found::Machine(machine) => machine,
        Found::Over(code) => return Ok(code),
    };
    let fitted = bundle
        .look_for_mpi(&machine, spec)
        .and_then(|()| bundle.fit(machine.arch, spec, &preparing));
    let result = match fitted {
        Ok(()) => on_machine(spec, wanted, (&bundle, destination.as_ref()), &mut machine, &control),
        Err(error) => preparing.stopped(error),
    };
    machine.tell_time();
    let stands = machine.stands();
    let ended = machine.end();
    let code = if stands { exit::UNTIL } else { result? };
    ended?;
    Ok(code)
}

/// Shows the progress of preparations. A signal cancels them.
struct Preparing<'a> {
    control: &'a Control,
    shown: ImageProgress,
}

impl<'a> Preparing<'a> {
    fn new(control: &'a Control) -> Self {
        let shown = ImageProgress::new(Arc::default(), Style::detect(false).progress);
        Self { control, shown }
    }

    /// Returns the exit code if an error was caused by a signal.
    fn stopped(&self, error: anyhow::Error) -> anyhow::Result<u8> {
        match self.control.signal().filter(|_| is_interrupted(&error)) {
            Some(signal) => Ok(exit::of_signal(signal)),
            None => Err(error),
        }
    }
}

impl Progress for Preparing<'_> {
    fn update(&self, phase: Phase, done: u64, total: u64) {
        self.shown.update(phase, done, total);
        if done == total && total > 0 {
            self.shown.clear();
        }
    }

    fn note(&self, text: &str) {
        self.shown.note(text);
    }

    fn cancelled(&self) -> bool {
        self.control.signal().is_some()
    }
}

fn on_machine(
    spec: &JobSpec,
    wanted: Wanted,
    (bundle, destination): (&Bundle, Option<&Destination>),
    machine: &mut Machine,
    control: &Control,
) -> anyhow::Result<u8> {
    let name = machine.name.clone();
    let got = Lease::take(spec, wanted, machine, control);
    // The lease is held until the nodes have been cleaned up.
    let (mut lease, mut job) = match got.with_context(|| format!("machine {name}"))? {
        Got::Nodes(lease, job) => (lease, job),
        Got::Signal(signal) => return Ok(exit::of_signal(signal)),
    };
    if let Some(about) = bundle.about_mpi().filter(|_| job.processes() > 1) {
        job::warn(spec.json, about)?;
    }
    if let Some(text) = bundle.way() {
        job::note(spec.json, text, &json!({ "event": "mpi", "text": text }))?;
    }
    for restart in 0.. {
        let placed = in_order((*job).clone(), &spec.order)?;
        let info = Mapinfo { system: machine.system.clone(), job: placed };
        let (number, placement) = (lease.number(), Placement { info });
        let start = Start { spec, bundle, destination, number, restart, placement };
        let (result, lost) = start.run(machine, control);
        let result = match result {
            Ok(code) if code == 0 || code == EXIT_TIMEOUT => return Ok(code),
            result if spec.restart == 0 || control.signal().is_some() => return result,
            result => result,
        };
        let say = |why: &str| {
            let value = json!({ "event": "not_restarted", "detail": why });
            job::note(spec.json, &format!("the job is not restarted: {why}"), &value)
        };
        if lost.is_empty() {
            say("its nodes work, so that it has failed by itself")?;
            return result;
        }
        if restart == spec.restart {
            let times = if restart == 1 { "once".into() } else { format!("{restart} times") };
            say(&format!("it was restarted {times}, and --restart allows no more"))?;
            return result;
        }
        let again = match lease.take_again(wanted, &job, machine) {
            Ok(again) => again,
            Err(error) => {
                say(&format!("{error:#}"))?;
                return result;
            }
        };
        control.again();
        let nodes = if lost.len() == 1 { "1 node".into() } else { format!("{} nodes", lost.len()) };
        let (number, most, shape) = (restart + 1, spec.restart, again.shape());
        let text =
            format!("{nodes} lost, restart {number} of {most}: {} goes on as {shape}", job.shape());
        let value = json!({
            "event": "restart", "number": number, "of": most, "shape": shape.to_string(),
            "lost": lost, "ranks": again.processes(),
        });
        job::note(spec.json, &text, &value)?;
        job = again;
    }
    bail!("a job has an end")
}

/// One start of a job, which may be started again.
struct Start<'a> {
    spec: &'a JobSpec,
    bundle: &'a Bundle,
    destination: Option<&'a Destination>,
    /// The job's number in its machine.
    number: u32,
    /// The number of times it was started before.
    restart: u32,
    placement: Placement,
}

impl Start<'_> {
    /// Runs the job to its end. Returns its exit code, and the numbers of the lost nodes if it has
    /// failed and may be restarted.
    fn run(&self, machine: &mut Machine, control: &Control) -> (anyhow::Result<u8>, Vec<u32>) {
        let nodes = self.placement.nodes().into_iter().map(|at| machine.index(at));
        let nodes: Vec<u32> = match nodes.collect() {
            Ok(nodes) => nodes,
            Err(error) => return (Err(error), Vec::new()),
        };
        let name = job_name(self.number);
        let user = match self.runs_as_root(machine, &nodes) {
            Ok(true) => 0,
            Ok(false) => Group::JOBS | self.number,
            Err(error) => return (Err(error), Vec::new()),
        };
        let site = Site { machine, nodes: nodes.clone(), name: name.clone(), user };
        let result = site.put(self.number, self.bundle, &self.placement);
        let result = result.and_then(|()| site.start(self, control));
        let may_restart = self.spec.restart > 0 && !matches!(result, Ok(0 | EXIT_TIMEOUT));
        let lost = match may_restart && control.signal().is_none() {
            true => machine.lost(&self.placement.info.job),
            false => Vec::new(),
        };
        let left = |node: &u32| !lost.contains(node);
        let site = Site { machine, nodes, name, user };
        let still_there = || site.nodes.iter().copied().filter(left).collect::<Vec<_>>();
        // Remaining processes of the job must not change files that are being copied or removed.
        let ended = site.end_processes(&still_there());
        let brought = match self.destination.filter(|_| result.is_ok()) {
            Some(destination) => {
                let mut from = site.origins(&self.placement);
                from.retain(|origin| left(&origin.node));
                fetch_outputs::bring(destination, &site.folder(), &from, self.spec.json)
            }
            None => Ok(()),
        };
        // A machine started for this run takes everything with it.
        let tidied = match machine.is_own() {
            true => Ok(()),
            false => {
                let nodes = still_there();
                Site { nodes, ..site }.tidy()
            }
        };
        let result = match (result, ended.and(brought).and(tidied)) {
            (Ok(0), Err(error)) => Err(error),
            // This is the case if, for example, a node has died under its ranks, which have
            // reported it.
            (Ok(code), Err(error)) => {
                log::warn!("{error:#}");
                Ok(code)
            }
            (result, _) => result,
        };
        (result, lost)
    }

    /// Returns whether ranks run as root: if the user wants it, or in a machine of modelled time
    /// that has no other job and no kernel driver. There, each command of other users would be a
    /// message to `tofud`, whose time no real machine takes.
    fn runs_as_root(&self, machine: &Machine, nodes: &[u32]) -> anyhow::Result<bool> {
        let Some(node) = nodes.first().filter(|_| !self.spec.root && machine.is_modelled()) else {
            return Ok(self.spec.root);
        };
        let look = shell(&["[ -e /proc/tofu/dev ] && echo driver; true"]);
        let said = must(&machine.control, *node, look, &[]);
        Ok(said.with_context(|| format!("node {node}"))?.is_empty())
    }
}

/// The prefix of jobs' names.
const NAMES: &str = "tofu-run-";

/// Returns a name that is no prefix of another job's name: the job's number in its machine, the
/// time at which it was started, and the process.
fn job_name(number: u32) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let millis = now.unwrap_or_default().as_millis();
    format!("{NAMES}{number}-{}-{millis:013}", std::process::id())
}

/// Returns the job's number in such a name.
fn number_of(name: &str) -> Option<u32> {
    name.strip_prefix(NAMES)?.split_once('-')?.0.parse().ok()
}

/// The nodes of a job.
struct Site<'a> {
    machine: &'a Machine,
    /// Their numbers in the machine.
    nodes: Vec<u32>,
    /// The job's name, and that of its folder.
    name: String,
    /// The user of the ranks on nodes with the kernel driver or `tofud`: root, or a user for this
    /// job only.
    user: u32,
}

impl Site<'_> {
    fn folder(&self) -> String {
        format!("{FOLDER}/{}", self.name)
    }

    /// Returns where the job's folders are.
    fn origins(&self, placement: &Placement) -> Vec<Origin<'_>> {
        let nodes = self.nodes.iter().zip(placement.nodes());
        let origin = |(node, at): (&u32, Coords)| Origin {
            control: &self.machine.control,
            node: *node,
            name: node_name(at),
            user: self.user,
        };
        nodes.map(origin).collect()
    }

    /// Kills all processes of the job's user on some nodes, including hidden ones.
    fn end_processes(&self, nodes: &[u32]) -> anyhow::Result<()> {
        if self.user == 0 {
            return Ok(());
        }
        let ended = on_nodes(nodes, |node| end_processes(&self.machine.control, self.user, node));
        ended.context("cannot end what is left of the job there")
    }

    /// Runs `each` for all nodes at the same time. Returns the first error.
    fn on_all(&self, each: impl Fn(u32) -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
        on_nodes(&self.nodes, each)
    }

    /// Copies the job's folder to all nodes, and libraries to those that lack them, and removes the
    /// remains of killed jobs there.
    fn put(&self, number: u32, bundle: &Bundle, placement: &Placement) -> anyhow::Result<()> {
        let sets = bundle.sets()?;
        let folder = bundle.pack(&self.name, placement.info.to_json(), (LIBRARIES, &sets))?;
        let loader = bundle.loader(&sets);
        let names = sets.iter().map(|set| set.name.as_str());
        let (user, own) = (self.user.to_string(), self.folder());
        let subnet = placement.subnet().to_string();
        let groups = Group::JOBS.to_string();
        let look = [LOOK, "sh", &user, &own, &subnet, &groups, LIBRARIES];
        let look: Vec<_> = look.into_iter().chain(names).collect();
        let socket = &self.machine.control;
        let unpack = |node, to: &str, archive: &[u8]| {
            must(socket, node, Exec::unpack_alone(to), archive).map(drop)
        };
        let put = self.on_all(|node| {
            // The links to the libraries come first, because libraries are kept as long as links to
            // them exist.
            unpack(node, &own, &folder)?;
            let found = must(socket, node, shell(&look), &[])?;
            let (left, lacking): (Vec<_>, Vec<_>) =
                found.lines().partition(|name| name.starts_with(NAMES));
            for set in sets.iter().filter(|set| lacking.contains(&set.name.as_str())) {
                // Only this job knows this name until the set is complete.
                let new = format!(".{}-{}", self.name, set.name);
                unpack(node, &format!("{LIBRARIES}/{new}"), &set.archive)?;
                let name = shell(&[NAME, "sh", LIBRARIES, &new, &set.name]);
                must(socket, node, name, &[])?;
            }
            if let Some([expected, in_sets, copy]) = &loader {
                let place = format!("{LIBRARIES}/{in_sets}");
                let lend = [LEND, "sh", expected, &place, copy, &self.name];
                // Most programs start without it.
                if let Err(error) = must(socket, node, shell(&lend), &[]) {
                    log::warn!("node {node}: no loader at {expected}: {error:#}");
                }
            }
            // These are folders of earlier jobs that have ended. Later jobs are not known here.
            let there: Vec<_> = self.machine.jobs.iter().map(|job| job.job).collect();
            for name in left {
                let over = |other: &u32| *other < number && !there.contains(other);
                if let Some(other) = number_of(name).filter(over) {
                    self.tidy_after(other, name, node)
                        .unwrap_or_else(|error| log::warn!("node {node}, {name}: {error:#}"));
                }
            }
            Ok(())
        });
        put.context("cannot copy the program there")
    }

    /// Removes everything that a killed job left on a node: its processes, its folder and its
    /// user's rights.
    fn tidy_after(&self, number: u32, name: &str, node: u32) -> anyhow::Result<()> {
        let user = Group::JOBS | number;
        end_processes(&self.machine.control, user, node)?;
        let exec = shell(&[TIDY, "sh", name, LIBRARIES, &user.to_string()]);
        must(&self.machine.control, node, exec, &[]).map(drop)
    }

    /// Removes everything of the job from its nodes.
    fn tidy(&self) -> anyhow::Result<()> {
        let user = self.user.to_string();
        let exec = shell(&[TIDY, "sh", &self.name, LIBRARIES, &user]);
        let tidied =
            self.on_all(|node| must(&self.machine.control, node, exec.clone(), &[]).map(drop));
        tidied.context("cannot tidy up there")
    }

    /// Starts the ranks and watches them.
    fn start(&self, start: &Start<'_>, control: &Control) -> anyhow::Result<u8> {
        let Start { spec, bundle, placement, .. } = start;
        let job = &placement.info.job;
        let socket = &self.machine.control;
        // These stay alive as long as the ranks.
        let _watch = match spec.restart {
            0 => None,
            _ => Some(NodeWatch::start(socket, &self.nodes, control.teller())?),
        };
        let folder = self.folder();
        let ranks = Ranks {
            machine: self.machine,
            placement,
            name: &self.name,
            folder: &folder,
            user: self.user,
        };
        let manager = match spec.mpi {
            true => Some(Manager::start(&ranks, bundle.family(), control.teller())?),
            false => None,
        };
        let ranks = job.processes();
        let command = bundle.command(&folder, ranks, |rank| spec.program_of(rank, ranks));
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        let command = as_user(self.user, &command).args;
        let (restart, group) =
            (start.restart.to_string(), (Group::JOBS | start.number).to_string());
        let common: Vec<_> = [
            (JOB.to_owned(), self.name.clone()),
            (RESTART.to_owned(), restart),
            (GROUP.to_owned(), group),
            (SUBNET.to_owned(), placement.subnet().to_string()),
        ]
        .into_iter()
        .chain(bundle.variables(&folder))
        .collect();
        let given = bundle.given(&folder, spec);
        let mut start = |rank| -> anyhow::Result<Arc<dyn Rank>> {
            let mpi = match &manager {
                Some(manager) => manager.variables(rank, placement)?,
                None => Vec::new(),
            };
            let env = [common.clone(), placement.variables(rank), mpi, given.clone()];
            let exec = Exec {
                program: Program::Agent,
                args: command.clone(),
                env: env.concat(),
                stdin: rank == 0,
            };
            let node = self.machine.index(placement.node(rank))?;
            Ok(Arc::new(RemoteProgram::start(socket, node, exec)?))
        };
        let place = |rank| format!("on node {}", placement.node(rank));
        let labels = Label::of_ranks(job.processes(), place);
        let code = job::run(control, Options::new(spec), labels, &mut start);
        if let Some(manager) = manager {
            manager.end();
        }
        code
    }
}

/// Kills all processes of a job's user on a node.
fn end_processes(control: &Path, user: u32, node: u32) -> anyhow::Result<()> {
    let exec = as_user(user, &["sh", "-c", END, "sh", &user.to_string()]);
    must(control, node, exec, &[]).map(drop)
}

/// Runs `each` for nodes at the same time. Returns the first error.
fn on_nodes(nodes: &[u32], each: impl Fn(u32) -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
    let each = &each;
    thread::scope(|scope| {
        let threads: Vec<_> = nodes
            .iter()
            .map(|node| {
                let done = move || each(*node).with_context(|| format!("node {node}"));
                scope.spawn(done)
            })
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let results: Vec<_> = threads.into_iter().map(join).collect();
        results.into_iter().collect()
    })
}

impl Rank for RemoteProgram {
    fn follow(&self, output: &mut OutputTaker<'_>) -> anyhow::Result<Status> {
        RemoteProgram::follow(self, output)
    }

    fn feed(&self, input: &mut dyn Read) {
        RemoteProgram::feed(self, input);
    }

    fn signal(&self, signal: i32) {
        // If this fails, the rank has ended.
        let _ = self.say(ToProgram::Signal(signal));
    }

    fn kill(&self) {
        let _ = self.say(ToProgram::Kill);
    }
}

/// Reports to a job the first of its nodes that the machine loses.
struct NodeWatch(UnixStream);

impl NodeWatch {
    fn start(control: &Path, nodes: &[u32], job: Teller) -> anyhow::Result<Self> {
        let mut events = Connection::open(control, &Request::Events)?;
        let stream = events.stream()?;
        let nodes = nodes.to_vec();
        let watch = move || {
            while let Ok(reply) = events.answer() {
                let Reply::Event(EventInfo { node: Some(node), at, what, .. }) = reply else {
                    continue;
                };
                let why = match what {
                    EventKind::Router { up: false } => "its router has failed".to_owned(),
                    EventKind::Died { why } => why,
                    _ => continue,
                };
                if nodes.contains(&node) {
                    let node = Coords::from_array(at.unwrap_or_default()).to_string();
                    return job.tell(Event::Lost { node, why });
                }
            }
        };
        thread::Builder::new().name("losses".into()).spawn(watch).context("no threads left")?;
        Ok(Self(stream))
    }
}

impl Drop for NodeWatch {
    fn drop(&mut self) {
        // The machine may have ended.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}
