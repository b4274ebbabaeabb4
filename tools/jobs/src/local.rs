//! `tofu run --local`: ranks as processes of this host.
//!
//! The machine runs in this process. It serves a node to each of the node's ranks by vfio-user, at
//! an abstract socket, which leaves no file behind, and accesses the ranks' memory. Ranks are in
//! the janitor's process group, so they end with this process, even if it is killed. The machine
//! has a run directory with a control socket, like every machine.
//!
//! Nothing is confined here: ranks are the user's own programs, with the user's rights.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::hash::BuildHasher;
use std::io::{self, ErrorKind, IsTerminal, PipeReader, PipeWriter, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getrlimit, kill_process, pidfd_open, setrlimit,
};
use serde_json::json;
use signal_hook::consts::{SIGKILL, SIGTERM};
use tofu_abi::Coords;
use tofu_agent::pmi;
use tofu_agent::wire::{Output, Status};
use tofu_control::MachineName;
use tofu_control::{node_name, rundir};
use tofu_fabric::Shape;
use tofu_image::Arch;
use tofu_jtofu::{Mapinfo, System, vars};
use tofu_spec::MachineSpec;
use tofu_spec::plan::Plan;
use tofu_spec::units::{Doorbell, Interconnect, LinkMode};
use tofu_supervisor::confine::Confinement;
use tofu_supervisor::event::{self, Event as MachineEvent, EventSender};
use tofu_supervisor::janitor;
use tofu_supervisor::machine::AnyMachine;
use tofu_supervisor::namespaces::{Maker, Namespace};
use tofu_supervisor::registry::Registry;
use tofu_supervisor::runner::{self, Backend, Machines, Running};
use tofu_supervisor::served::Served;
use tofu_supervisor::session::{Rights, Session};
use tofu_sync::lock;
use tofu_sync::queue::Receiver;
use tofu_vfio_user::Backing;

use crate::fetch_outputs::Destination;
use crate::job::{self, Control, Event, Label, Options, OutputTaker, Rank, Teller};
use crate::mpi::{self, Way};
use crate::place::{Placement, Wanted, in_order, lay};
use crate::queue_owner::{QueueOwner, SharedNode};
use crate::spec::JobSpec;
use crate::{elf, libraries};

/// The most ranks of a job with `--local`, and the most of its nodes: those of 96 nodes of Fugaku's
/// with one for each core. Each takes a process, and threads and descriptors of this one.
pub const MOST_RANKS: u32 = 4608;
/// The longest mapinfo that is passed as a variable, for which Linux permits 128 KiB. A longer one
/// is passed as a file.
const MOST_IN_VARIABLE: usize = 100 << 10;
/// That file, in the run directory.
const MAP: &str = "mapinfo.json";
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// Bytes of one read from a rank's output.
const CHUNK: usize = 64 << 10;

/// Runs the job and returns the exit code.
pub(crate) fn run(spec: &JobSpec) -> anyhow::Result<u8> {
    if !spec.copy.is_empty() {
        bail!("--copy is for ranks on nodes; with --local they run in this folder");
    }
    let wanted = Wanted::new(spec)?;
    let wanted = Wanted { ppn: wanted.ppn.or(Some(1)), ..wanted };
    let (shape, placement) = find_machine(spec, wanted)?;
    let ranks = placement.info.job.processes();
    let programs = Program::all(spec)?;
    let program = &programs[0];
    let destination = Destination::new(spec)?;
    let file = program.read(&spec.program[0])?;
    let libraries = library_path()?;
    let own = spec.env.iter().rfind(|var| var.name == "LD_LIBRARY_PATH");
    let search = own.map_or(libraries.as_os_str(), |var| OsStr::new(&var.value));
    let way = about_mpi(spec, &program.path, file.as_deref(), search, ranks)?;
    // Ctrl-C is handled from here on.
    let control = Control::new(spec.grace.0)?;
    allow_descriptors(ranks);
    let plan = plan(shape, wanted.interconnect, spec.own.links, ranks)?;
    let (sender, events) = event::events();
    let mut session = Session::start(&plan, Rights::Programs(&[]), sender.clone(), None)?;
    let nodes = placement.nodes().len();
    let mut host = LocalMachine::start(&plan, nodes, &mut session, sender)?;
    follow(&session.registry, events, control.teller())?;
    let start = || Mpi::start(way.as_ref(), &placement, &host.name, search, &control);
    let mpi = spec.mpi.then(start).transpose()?;
    if let Some(text) = way.as_ref().and_then(|way| way.text.as_ref()) {
        job::note(spec.json, text, &json!({ "event": "mpi", "text": text }))?;
    }
    let own: Vec<(OsString, OsString)> =
        spec.env.iter().map(|var| (var.name.clone().into(), var.value.clone().into())).collect();
    let map = host.map(&placement)?;
    let labels = Label::of_ranks(ranks, |rank| format!("at {}", placement.node(rank)));
    let code = job::run(&control, Options::new(spec), labels, &mut |rank| {
        let program = &programs[spec.program_of(rank, ranks)];
        let mut command = host.command(rank, &placement, session.janitor.group(), &program.path)?;
        command.args(&program.args);
        if let Some(destination) = &destination {
            let folder = destination.folder(&node_name(placement.node(rank)));
            let cannot = || format!("cannot work in {}", folder.display());
            fs::create_dir_all(&folder).with_context(cannot)?;
            command.current_dir(folder);
        }
        command.env("LD_LIBRARY_PATH", &libraries);
        command.envs(placement.variables(rank));
        if let Some(mpi) = &mpi {
            mpi.set(&mut command, rank, &placement);
        }
        command.env(map.0, &map.1);
        command.envs(own.iter().map(|(name, value)| (name, value)));
        Process::start(command, Given::to(rank, spec))
            .map(|process| Arc::new(process) as Arc<dyn Rank>)
    });
    // All processes that the ranks have started end with the janitor.
    drop(session);
    drop(host);
    code.map_err(|error| about_limit(error, ranks))
}

/// Says which limit an error is about, if too few files may be open for so many ranks.
fn about_limit(error: anyhow::Error, ranks: u32) -> anyhow::Error {
    let of_files = |error: &(dyn std::error::Error + 'static)| {
        let number = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        number == Some(Errno::MFILE.raw_os_error())
    };
    match (error.chain().any(of_files), getrlimit(Resource::Nofile).current) {
        (true, Some(most)) => error.context(format!(
            "-n {ranks}: too many ranks for the {most} files that may be open (`ulimit -Hn`)"
        )),
        _ => error,
    }
}

/// Returns the way of a program's messages by MPI. Tells the user if it needs `--mpi`.
fn about_mpi(
    spec: &JobSpec,
    program: &Path,
    file: Option<&[u8]>,
    search: &OsStr,
    ranks: u32,
) -> anyhow::Result<Option<Way>> {
    let Some(file) = file.filter(|_| ranks > 1) else { return Ok(None) };
    if !spec.mpi {
        if let Some(about) = elf::about_mpi(&spec.program[0], file, spec.mpi) {
            job::warn(spec.json, &about)?;
        }
        return Ok(None);
    }
    let chosen = spec.env.iter().any(|var| var.name == mpi::CHOICE);
    Way::of(program, file, search, chosen)
}

/// The process managers of an MPI job.
struct Mpi<'a> {
    /// The address of that for PMI-1.
    address: String,
    way: Option<&'a Way>,
    pmix: Option<tofu_pmix::Server>,
}

impl<'a> Mpi<'a> {
    fn start(
        way: Option<&'a Way>,
        placement: &Placement,
        job: &str,
        search: &OsStr,
        control: &Control,
    ) -> anyhow::Result<Self> {
        let address = serve_mpi(placement, control.teller())?;
        let pmix = way.map(|way| way.manager(placement, job, search, control.teller()));
        Ok(Self { address, way, pmix: pmix.transpose()?.flatten() })
    }

    /// Sets the variables of a rank.
    fn set(&self, command: &mut Command, rank: u32, placement: &Placement) {
        command.envs(placement.mpi_variables(rank, Some(&self.address)));
        command.envs(self.way.into_iter().flat_map(Way::variables));
        let variables = self.pmix.iter().flat_map(|server| server.variables(rank));
        command.envs(variables.map(|(name, value)| (name, value)));
    }
}

/// Plans a machine whose devices the ranks drive.
fn plan(
    shape: Shape,
    interconnect: Interconnect,
    links: Option<LinkMode>,
    ranks: u32,
) -> anyhow::Result<Plan> {
    let cores = thread::available_parallelism().map_or(1, |n| n.get());
    let engines = runner::engines(None, interconnect, cores);
    // An engine that polls doorbells all the time needs a dedicated core.
    let doorbell = match cores > ranks as usize + engines {
        true => Doorbell::Polled,
        false => Doorbell::Trapped,
    };
    Ok(Plan::served(&MachineSpec {
        shape: Some(shape),
        generation: Some(interconnect),
        links,
        doorbell: Some(doorbell),
        name: Some(MachineName::of_this_run()),
        no_sandbox: Some(true),
        ..MachineSpec::default()
    })?)
}

/// Serves the ranks of an MPI job as their process manager until this process ends. Returns its
/// address.
fn serve_mpi(placement: &Placement, events: Teller) -> anyhow::Result<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let listener = listener.context("cannot listen for the ranks of an MPI job")?;
    let address = listener.local_addr()?.to_string();
    let (ranks, mapping) = (placement.info.job.processes(), placement.mpi_mapping());
    let serve = move || {
        let report = move |report| events.tell(Event::Reported(report));
        if let Err(error) = pmi::serve(&listener, ranks, &mapping, report) {
            log::warn!("the ranks' process manager has ended: {error}");
        }
    };
    thread::Builder::new().name("manager".into()).spawn(serve).context("no threads left")?;
    Ok(address)
}

/// Raises this process's limit of descriptors to what `ranks` ranks need, as far as permitted.
fn allow_descriptors(ranks: u32) {
    /// For sockets, pipes, memory and doorbells. A rank that shares its control queue has another
    /// socket and two mappings, and a node with such ranks has one more client, their owner.
    const OF_A_RANK: u64 = 64;
    const OTHERS: u64 = 256;
    let wanted = OTHERS + u64::from(ranks) * OF_A_RANK;
    let limit = getrlimit(Resource::Nofile);
    let Some(current) = limit.current.filter(|current| *current < wanted) else { return };
    let wanted = limit.maximum.map_or(wanted, |most| most.min(wanted));
    let new = Rlimit { current: Some(wanted), maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, new) {
        log::warn!("the limit of {current} descriptors cannot be raised: {error}");
    }
}

/// Finds a machine that has nodes for the ranks, and places them.
fn find_machine(spec: &JobSpec, wanted: Wanted) -> anyhow::Result<(Shape, Placement)> {
    // The user's choice.
    let given = spec.machine_shape()?;
    let wanted = match (given, wanted) {
        (None, Wanted { ranks: None, map: None, .. }) => Wanted { ranks: Some(2), ..wanted },
        _ => wanted,
    };
    let ppn = wanted.ppn.unwrap_or(1);
    let nodes = wanted.map.map_or(0, |map| map.nodes());
    let nodes = nodes.max(wanted.ranks.unwrap_or(1).div_ceil(ppn));
    if nodes > MOST_RANKS {
        bail!("{nodes} nodes are too many: with --local a job has up to {MOST_RANKS}");
    }
    if let Some(ranks) = wanted.ranks.filter(|ranks| *ranks > MOST_RANKS) {
        bail!("-n {ranks}: with --local a job has up to {MOST_RANKS} ranks");
    }
    let shapes = match given {
        Some(shape) if shape.compute_nodes() < nodes => {
            let kind = if shape.has_io_nodes() { "compute " } else { "" };
            let has = shape.compute_nodes();
            bail!("the shape {shape} has {has} {kind}nodes, and the job needs {nodes}")
        }
        Some(shape) => vec![shape],
        None if wanted.interconnect == Interconnect::Tnw => vec![wanted.as_machine()?],
        None => shapes(),
    };
    let mut error = None;
    for shape in shapes.into_iter().filter(|shape| given.is_some() || shape.nodes() >= nodes) {
        let system = System::new(shape).with_failed(shape.io_nodes())?;
        match lay(&system, wanted) {
            Ok(job) if job.processes() > MOST_RANKS => {
                bail!("{} ranks: with --local a job has up to {MOST_RANKS}", job.processes())
            }
            Ok(job) => {
                let job = in_order(job, &spec.order)?;
                return Ok((shape, Placement { info: Mapinfo { system, job } }));
            }
            Err(other) => error = Some(other),
        }
    }
    Err(error.unwrap_or_else(|| anyhow::anyhow!("no machine has room for {nodes} nodes")))
}

/// Returns the shapes of machines for jobs that name none, smallest first.
fn shapes() -> Vec<Shape> {
    let lengths = [1, 2, 3, 4, 6, 8].into_iter();
    let boxes = lengths.clone().flat_map(|x| lengths.clone().map(move |y| (x, y)));
    let boxes = boxes.flat_map(|(x, y)| lengths.clone().map(move |z| [x, y, z]));
    let rows = (9..=MOST_RANKS.div_ceil(12)).map(|x| [x, 1, 1]);
    let units = boxes.chain(rows).filter(|[x, y, z]| x * y * z <= MOST_RANKS.div_ceil(12));
    let units = units.map(|[x, y, z]| format!("{x}x{y}x{z}x2x3x2"));
    let parts = ["1x1x1", "2x1x1", "1x3x1", "2x1x2", "2x3x1"].map(|abc| format!("1x1x1x{abc}"));
    let shapes = parts.into_iter().chain(units);
    let mut shapes: Vec<Shape> = shapes.filter_map(|shape| shape.parse().ok()).collect();
    shapes.sort_by_key(Shape::nodes);
    shapes
}

/// The program that the ranks run.
struct Program {
    path: PathBuf,
    args: Vec<String>,
}

impl Program {
    /// Returns the bytes of its file, if it can be read. `name` is the user's name for it.
    ///
    /// # Errors
    ///
    /// If it is for other processors than those of this host.
    fn read(&self, name: &str) -> anyhow::Result<Option<Vec<u8>>> {
        let file = tofu_input::read(&self.path, tofu_input::PROGRAM).ok();
        let arch = file.as_deref().and_then(Arch::of_elf);
        if let (Some(arch), Some(host)) = (arch, Arch::own())
            && arch != host
        {
            bail!("cannot run {name}: it is for {arch}, and this host is {host}");
        }
        Ok(file)
    }

    /// Finds the programs of a job, at least one.
    fn all(spec: &JobSpec) -> anyhow::Result<Vec<Self>> {
        let others = spec.others.iter().map(|(_, words)| words);
        std::iter::once(&spec.program).chain(others).map(|words| Self::new(words)).collect()
    }

    /// Finds a file, or a program in `PATH`.
    ///
    /// # Errors
    ///
    /// If there is no such program that can be run.
    fn new(words: &[String]) -> anyhow::Result<Self> {
        let Some((name, args)) = words.split_first() else { bail!("no program named") };
        let args = args.to_vec();
        if name.contains('/') {
            // Ranks may run in another folder.
            let path = std::path::absolute(name)?;
            let metadata = fs::metadata(&path).with_context(|| format!("cannot run {name}"))?;
            if !metadata.is_file() {
                bail!("cannot run {name}: it is not a file");
            }
            if !is_executable(&path) {
                bail!("cannot run {name}: it is not executable (chmod +x)");
            }
            return Ok(Self { path, args });
        }
        let Some(path) = find_program(name) else {
            bail!("there is no program {name}; write ./{name} for a file in this folder");
        };
        Ok(Self { path, args })
    }
}

/// Finds the program `name` in the folders of `PATH`.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| is_program(path))
}

/// Returns whether a path is a file that this process may execute.
pub fn is_program(path: &Path) -> bool {
    path.is_file() && is_executable(path)
}

fn is_executable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Returns the path on which ranks search for libraries, with the folder of ours first. A program
/// may bring its own.
fn library_path() -> anyhow::Result<OsString> {
    let own = match libraries::find() {
        Ok(libraries) => libraries.first().and_then(|path| path.parent().map(Path::to_owned)),
        Err(error) => {
            log::info!("{error:#}");
            None
        }
    };
    let others = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let others = std::env::split_paths(&others).filter(|path| !path.as_os_str().is_empty());
    Ok(std::env::join_paths(own.into_iter().chain(others))?)
}

/// An owner of control queues, and the name of its socket.
type NamedOwner = (QueueOwner, String);

/// A node of the machine, with its server.
struct LocalNode {
    /// The owner of control queues that its ranks share. It is a client of the node's server, and
    /// ends before it.
    owner: Option<NamedOwner>,
    /// The servers for its ranks.
    _served: Vec<Served>,
    /// A file in the run directory whose locks record which rank uses which of the node's
    /// resources. This process holds no locks.
    locks: PathBuf,
    /// The namespace of the node's ranks, unless they share this host's.
    namespace: Option<Namespace>,
}

/// Passes the machine's events to its registry. `job` gets an event if a command wants the machine
/// to end.
fn follow(
    registry: &Arc<Registry>,
    events: Receiver<MachineEvent>,
    job: Teller,
) -> anyhow::Result<()> {
    let known = Arc::clone(registry);
    let run = move || {
        while let Ok(event) = events.recv() {
            known.on_event(&event);
            if event == MachineEvent::Down {
                job.tell(Event::Signal(SIGTERM));
            }
        }
    };
    thread::Builder::new().name("events".into()).spawn(run).context("no threads left")?;
    Ok(())
}

/// The machine, with the nodes that it serves.
struct LocalMachine {
    nodes: HashMap<Coords, LocalNode>,
    running: Box<dyn Running>,
    registry: Arc<Registry>,
    /// The run directory.
    folder: PathBuf,
    /// Makes namespaces for nodes, if there are several and the host permits it.
    namespaces: Option<Maker>,
    /// The prefix of sockets' names.
    name: String,
}

impl LocalMachine {
    /// Starts the machine, for a job on so many nodes.
    fn start(
        plan: &Plan,
        nodes: usize,
        session: &mut Session,
        events: EventSender,
    ) -> anyhow::Result<Self> {
        let machines = Machines { is_patient: true, ..session.machines(None) };
        let running = machines.start(plan, events)?;
        let registry = Arc::clone(&session.registry);
        // A random name that no other process can have taken.
        let random = RandomState::new().hash_one(std::process::id());
        let name = format!("tofu-run-{}-{random:016x}", std::process::id());
        // A single node may share what the host has: there is no other to keep it from.
        let namespaces = match nodes {
            0 | 1 => None,
            _ => Some(janitor::namespaces(session.janitor.group())?),
        };
        let folder = session.dir.path().to_owned();
        Ok(Self { nodes: HashMap::new(), running, registry, folder, namespaces, name })
    }

    /// Returns the variable that tells ranks the mapinfo, or a file with it in the run directory.
    fn map(&self, placement: &Placement) -> anyhow::Result<(&'static str, OsString)> {
        let map = placement.info.to_json();
        if map.len() <= MOST_IN_VARIABLE {
            return Ok((vars::MAPINFO, map.into()));
        }
        let file = self.folder.join(MAP);
        fs::write(&file, map).with_context(|| format!("cannot write {}", file.display()))?;
        Ok((vars::FILE, file.into()))
    }

    /// Serves a rank's node. Returns the rank's socket, in the form that its library expects, and
    /// the node.
    fn serve(&mut self, rank: u32, placement: &Placement) -> anyhow::Result<(String, &LocalNode)> {
        let at = placement.node(rank);
        if !self.nodes.contains_key(&at) {
            let ranks = placement.info.job.ranks_at(at);
            let names = ranks.iter().map(|rank| format!("{}-{rank}", self.name));
            let (served, owner) =
                self.serve_node(at, placement.info.job.per_node(), names.collect())?;
            let locks = self.folder.join(rundir::node_file("locks", at, "lock"));
            File::create(&locks).with_context(|| format!("cannot write {}", locks.display()))?;
            let namespace = self.namespace();
            self.nodes.insert(at, LocalNode { owner, _served: served, locks, namespace });
        }
        let node = self.nodes.get(&at).context("the node has just been made")?;
        Ok((format!("@{}-{rank}", self.name), node))
    }

    /// Serves a rank's node. Returns a command that runs a program there, in a process group.
    fn command(
        &mut self,
        rank: u32,
        placement: &Placement,
        group: i32,
        program: &Path,
    ) -> anyhow::Result<Command> {
        let job = self.name.clone();
        let (socket, node) = self.serve(rank, placement)?;
        let mut command = match &node.namespace {
            Some(namespace) => janitor::wrapped_in(group, program, namespace)?,
            None => janitor::wrapped(group, program)?,
        };
        command.env("TOFU_PROVIDER", "local").env("TOFU_LOCAL_SOCKET", socket);
        command.env("TOFU_LOCAL_LOCKS", &node.locks).env("TOFU_JOB", job);
        if let Some((_, door)) = &node.owner {
            command.env("TOFU_LOCAL_OWNER", format!("@{door}"));
        }
        Ok(command)
    }

    /// Makes a namespace for a node. If the host does not permit it, nodes share the host's.
    fn namespace(&mut self) -> Option<Namespace> {
        match self.namespaces.as_mut()?.make() {
            Ok(namespace) => Some(namespace),
            Err(error) => {
                log::info!("nodes share the host's System V IPC: {error:#}");
                self.namespaces = None;
                None
            }
        }
    }

    /// Serves a node that up to `ranks` ranks share, at abstract sockets of these names, one for
    /// each rank. If there are more ranks than control queues, some share one, which an owner has.
    fn serve_node(
        &self,
        at: Coords,
        ranks: u32,
        mut names: Vec<String>,
    ) -> anyhow::Result<(Vec<Served>, Option<NamedOwner>)> {
        let machine = self.running.machine().context("no machine")?;
        let confinement = Confinement::default();
        let (mut served, mut owner) = (Vec::new(), None);
        match machine {
            AnyMachine::Tofu(machine) if ranks > 1 => {
                let ranks = u16::try_from(ranks)?;
                let own = machine.config().generation.description().processes;
                let shared = (ranks > own.into()).then(|| SharedNode {
                    at,
                    socket: format!("@{}-{}", self.name, node_name(at)),
                    client: (names.len() as u16, ranks + 1),
                    ranks,
                    door: format!("{}-{}-queues", self.name, node_name(at)),
                });
                names.extend(shared.iter().map(|node| node.socket[1..].to_owned()));
                let listeners = names.iter().map(|name| listen(name)).collect::<Result<_, _>>()?;
                let clients = (ranks + u16::from(shared.is_some()), listeners);
                served = Served::joint(machine, at, clients, Backing::Process, &confinement)?;
                let start = |node: SharedNode| anyhow::Ok((QueueOwner::start(&node)?, node.door));
                owner = shared.map(start).transpose()?;
            }
            machine => {
                let listener = listen(&names.pop().context("the node has no rank")?)?;
                served.push(Served::on(machine, at, listener, Backing::Process, &confinement)?);
            }
        }
        if let Some(id) = machine.network().fabric().shape().node_id(at) {
            self.registry.with_served(id, &served);
        }
        Ok((served, owner))
    }
}

/// Creates an abstract socket.
fn listen(name: &str) -> anyhow::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?);
    listener.with_context(|| format!("cannot make the socket @{name}"))
}

impl Drop for LocalMachine {
    fn drop(&mut self) {
        self.nodes.clear();
        self.running.stop();
    }
}

/// The standard input of a rank's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Given {
    Nothing,
    /// Ours, so that what the rank does not read is left to the script that has started us.
    Own,
    /// It is fed by us: with a terminal's input, which only processes in its foreground may read,
    /// or with a file.
    Pipe,
}

impl Given {
    /// Returns the input of a rank.
    fn to(rank: u32, spec: &JobSpec) -> Self {
        match (rank, &spec.input) {
            (0, None) if !io::stdin().is_terminal() => Self::Own,
            (0, _) => Self::Pipe,
            _ => Self::Nothing,
        }
    }
}

/// A rank's process.
struct Process {
    pid: Pid,
    pidfd: OwnedFd,
    child: Mutex<Child>,
    /// Its standard output and error, until [`Rank::follow`] takes them.
    outputs: Mutex<Option<[PipeReader; 2]>>,
    input: Mutex<Option<PipeWriter>>,
}

impl Process {
    fn start(mut command: Command, given: Given) -> anyhow::Result<Self> {
        let (out, to_out) = io::pipe()?;
        let (err, to_err) = io::pipe()?;
        command.stdout(to_out).stderr(to_err);
        let input = match given {
            Given::Pipe => {
                let (from, input) = io::pipe()?;
                command.stdin(from);
                Some(input)
            }
            Given::Own => {
                command.stdin(Stdio::inherit());
                None
            }
            Given::Nothing => {
                command.stdin(Stdio::null());
                None
            }
        };
        let child = command.spawn().context("cannot start a process")?;
        let pid = Pid::from_child(&child);
        // The process is not reaped before this is dropped, so that the pid cannot be reused.
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).context("no descriptors left")?;
        let outputs = Mutex::new(Some([out, err]));
        Ok(Self { pid, pidfd, child: Mutex::new(child), outputs, input: Mutex::new(input) })
    }

    /// Signals the process and all of its descendants.
    fn tell(&self, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        for pid in descendants(self.pid) {
            // It may have ended by itself.
            let _ = kill_process(pid, signal);
        }
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, signal);
    }
}

/// Returns the descendants of a process.
#[must_use]
pub fn descendants(pid: Pid) -> Vec<Pid> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        next += 1;
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())) else {
            continue;
        };
        for task in tasks.flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
            found.extend(children.filter_map(Pid::from_raw));
        }
    }
    found.split_off(1)
}

/// Waits until one of two pipes is readable or a process has ended. Returns which of them.
fn ready(
    outputs: &[Option<PipeReader>; 2],
    end: &OwnedFd,
    timeout: Option<&Timespec>,
) -> Result<[bool; 3], Errno> {
    let mut polled = vec![PollFd::new(end, PollFlags::IN)];
    let there = outputs.iter().flatten();
    polled.extend(there.map(|pipe| PollFd::new(pipe, PollFlags::IN)));
    loop {
        match poll(&mut polled, timeout) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
            Ok(_) => break,
        }
    }
    let mut seen = polled.iter().map(|fd| !fd.revents().is_empty());
    let end = seen.next().unwrap_or_default();
    let mut of = |pipe: &Option<PipeReader>| pipe.is_some() && seen.next().unwrap_or_default();
    Ok([of(&outputs[0]), of(&outputs[1]), end])
}

impl Rank for Process {
    fn follow(&self, output: &mut OutputTaker<'_>) -> anyhow::Result<Status> {
        let outputs = lock(&self.outputs).take();
        let outputs = outputs.context("a rank is followed once")?;
        let mut outputs = outputs.map(Some);
        let mut buffer = vec![0; CHUNK];
        let mut ended = false;
        loop {
            // Once the process has ended, only data that is already there is read, because its
            // descendants may hold the pipes open for ever.
            let wait = if ended { Some(&AT_ONCE) } else { None };
            let [out, err, end] = ready(&outputs, &self.pidfd, wait)?;
            for (index, kind) in [(0, Output::Out), (1, Output::Err)] {
                let pipe = &mut outputs[index];
                if let Some(reader) = pipe.as_mut().filter(|_| [out, err][index]) {
                    match reader.read(&mut buffer) {
                        Ok(0) => *pipe = None,
                        Ok(n) => output(kind, &buffer[..n])?,
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            if ended && !out && !err {
                break;
            }
            ended |= end;
        }
        let mut child = lock(&self.child);
        let status = child.wait()?;
        Ok(match (status.code(), status.signal()) {
            (Some(code), _) => Status::Code(code),
            (None, signal) => Status::Signal(signal.unwrap_or(SIGKILL)),
        })
    }

    fn feed(&self, input: &mut dyn Read) {
        let to = lock(&self.input).take();
        let Some(mut to) = to else { return };
        // The process may have ended, or does not read.
        let _ = io::copy(input, &mut to);
    }

    fn signal(&self, signal: i32) {
        self.tell(signal);
    }

    fn kill(&self) {
        self.tell(SIGKILL);
    }
}
