//! The machine that a job runs on: a running one, or one started for the run.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tofu_abi::Coords;
use tofu_control::protocol::{JobInfo, MachineInfo, NodeInfo, TimeInfo};
use tofu_control::{MachineName, find_machine, info, present};
use tofu_fabric::{NodeId, Shape};
use tofu_image::Arch;
use tofu_jtofu::{Job, System};
use tofu_spec::MachineSpec;
use tofu_spec::units::{ImageName, Interconnect, MemorySize, Quantum, Time};
use tofu_supervisor::janitor;
use tofu_ui::exit;

use crate::elf::Family;
use crate::job::Control;
use crate::place::Wanted;
use crate::spec::JobSpec;

/// The time limit for a machine to boot, on a busy host.
const BOOT: &str = "180s";
/// The time limit for a machine to end.
const END: Duration = Duration::from_secs(20);
/// The time limit for a machine to notice that a node is gone, and the poll interval.
const LOSS: Duration = Duration::from_secs(5);
const LOSS_STEP: Duration = Duration::from_millis(250);
/// The memory of a node for MPI programs, which need more.
const MPI_MEMORY: MemorySize = MemorySize(512 << 20);
/// The memory of a node in modelled time, if all nodes may take two thirds of this host's: programs
/// for Fugaku's nodes, which have 32 GiB, register buffers for each of six TNIs.
const MODELLED_MEMORY: MemorySize = MemorySize(1 << 30);

/// The result of looking for a machine.
pub(crate) enum Found {
    Machine(Box<Machine>),
    /// The command is over, with this exit code, and has printed the reason.
    Over(u8),
}

impl Found {
    fn machine(machine: Machine) -> Self {
        Self::Machine(Box::new(machine))
    }
}

/// A machine with Linux nodes.
pub(crate) struct Machine {
    pub(crate) name: MachineName,
    pub(crate) control: PathBuf,
    pub(crate) interconnect: Interconnect,
    /// The architecture of its nodes for the job.
    pub(crate) arch: Arch,
    /// The architecture that the program is for.
    wanted: Option<Arch>,
    /// Its ready nodes of that architecture.
    pub(crate) nodes: Vec<NodeInfo>,
    /// The machine as jobs are placed on it: nodes without a ready Linux count as failed.
    pub(crate) usable: System,
    /// The machine for programs.
    pub(crate) system: System,
    /// The jobs that it has.
    pub(crate) jobs: Vec<JobInfo>,
    /// Its process, if the machine was started for this run.
    own: Option<Own>,
}

impl Machine {
    /// Finds a machine, or starts one. If `arch` is given, its nodes have that architecture, and
    /// with `mpi` the image of a new machine has that MPI.
    ///
    /// # Errors
    ///
    /// If no machine is suitable, or a new one does not start.
    pub(crate) fn find(
        spec: &JobSpec,
        wanted: Wanted,
        (arch, mpi): (Option<Arch>, Option<Family>),
        control: &Control,
    ) -> anyhow::Result<Found> {
        // Options for a new machine imply starting one.
        let made = spec.machine_shape()?.is_some() || spec.own != MachineSpec::default();
        if spec.machine.is_some() {
            let found = find_machine(spec.machine.as_ref())?;
            return Self::running(found, arch, None).map(Found::machine);
        }
        let mut there = Vec::new();
        for machine in present()?.into_iter().filter(|_| !made) {
            let name = machine.name;
            let Some((_, socket)) = machine.sockets.into_iter().next() else { continue };
            if name.is_of_a_run() {
                continue;
            }
            match info(&socket) {
                Ok(machine) if machine.nodes.iter().any(NodeInfo::is_linux) => {
                    there.push((name, socket))
                }
                Ok(_) => {}
                Err(error) => log::debug!("machine {name}: {error:#}"),
            }
        }
        match there.len() {
            0 => {
                let (own, name) = Own::start(spec, wanted, (arch.unwrap_or_default(), mpi))?;
                match own.wait(&name, control)? {
                    Ok(own) => {
                        let found = find_machine(Some(&name))?;
                        Self::running(found, arch, Some(own)).map(Found::machine)
                    }
                    Err(code) => Ok(Found::Over(code)),
                }
            }
            1 => Self::running(there.remove(0), arch, None).map(Found::machine),
            _ => {
                let names: Vec<_> = there.iter().map(|(name, _)| name.as_str()).collect();
                bail!("several machines are running, choose with --machine: {}", names.join(", "))
            }
        }
    }

    fn running(
        (name, control): (MachineName, PathBuf),
        wanted: Option<Arch>,
        own: Option<Own>,
    ) -> anyhow::Result<Self> {
        let Seen { interconnect, arch, nodes, usable, system, jobs } =
            Seen::new(&name, &control, wanted)?;
        Ok(Self { name, control, interconnect, arch, wanted, nodes, usable, system, jobs, own })
    }

    /// Updates this description to the machine's present state.
    ///
    /// # Errors
    ///
    /// If the machine does not answer, or has no ready node.
    pub(crate) fn look(&mut self) -> anyhow::Result<()> {
        let Seen { interconnect, arch, nodes, usable, system, jobs } =
            Seen::new(&self.name, &self.control, self.wanted)?;
        (self.interconnect, self.arch) = (interconnect, arch);
        (self.nodes, self.usable, self.system, self.jobs) = (nodes, usable, system, jobs);
        Ok(())
    }

    /// Returns the numbers of a job's nodes that are no longer ready, or that no link reaches.
    /// Waits for failures of this moment to be noticed.
    pub(crate) fn lost(&mut self, job: &Job) -> Vec<u32> {
        let until = Instant::now() + LOSS;
        let mut last = Vec::new();
        loop {
            if let Err(error) = self.look() {
                // The machine has no nodes left, or has ended.
                log::info!("{error:#}");
                self.usable = System::new(*self.system.shape());
                let shape = self.system.shape();
                return job.nodes().iter().filter_map(|at| Some(shape.node_id(*at)?.0)).collect();
            }
            let shape = self.system.shape();
            let lost = job.nodes().iter().filter(|at| self.usable.is_failed(**at));
            let lost: Vec<_> = lost.filter_map(|at| Some(shape.node_id(*at)?.0)).collect();
            // Wait until the set is stable: when a board fails, its nodes go one by one.
            if (!lost.is_empty() && lost == last) || Instant::now() > until {
                return lost;
            }
            last = lost;
            thread::sleep(LOSS_STEP);
        }
    }

    /// Returns the coordinates of the nodes of these numbers.
    pub(crate) fn places<'a>(&self, nodes: impl Iterator<Item = &'a u32>) -> Vec<Coords> {
        let shape = self.system.shape();
        nodes.filter_map(|node| shape.coords(NodeId(*node))).collect()
    }

    /// Returns the number of the node at these coordinates.
    pub(crate) fn index(&self, at: Coords) -> anyhow::Result<u32> {
        let node = self.nodes.iter().find(|node| node.at == at.to_array());
        Ok(node.with_context(|| format!("there is no Linux node {at}"))?.index)
    }

    /// Returns whether the machine was started for this run.
    pub(crate) fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Returns whether it keeps modelled time, and was started for this run.
    pub(crate) fn is_modelled(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.ready.is_some())
    }

    /// Tells the user what modelled time has passed, if the machine was started for this run and
    /// keeps that.
    pub(crate) fn tell_time(&self) {
        if self.stands() {
            // It has been printed.
            return;
        }
        let Some(own) = self.own.as_ref().filter(|own| own.talks) else { return };
        if let Some(time) = info(&self.control).ok().and_then(|info| info.time) {
            let host = own.started.elapsed().as_secs_f64();
            tofu_ui::tell!("tofu: {}; the host took {host:.1} s", time.summary());
            for line in time.since(own.ready.as_deref()) {
                tofu_ui::tell!("tofu: {line}");
            }
        }
    }

    /// Returns whether the machine was started for this run, and has ended because its time stands
    /// still.
    pub(crate) fn stands(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.stands.load(SeqCst))
    }

    /// Ends the machine if it was started for this run.
    pub(crate) fn end(self) -> anyhow::Result<()> {
        self.own.map_or(Ok(()), Own::end)
    }
}

/// A machine's description of itself.
struct Seen {
    interconnect: Interconnect,
    arch: Arch,
    nodes: Vec<NodeInfo>,
    usable: System,
    system: System,
    jobs: Vec<JobInfo>,
}

impl Seen {
    /// Collects the ready nodes of the wanted architecture, or of another one if there are none.
    fn new(name: &MachineName, control: &Path, wanted: Option<Arch>) -> anyhow::Result<Self> {
        let machine = info(control).with_context(|| format!("machine {name}"))?;
        let (shape, system) = system(&machine).with_context(|| format!("machine {name}"))?;
        // Its nodes are ready, so it has devices.
        let interconnect = machine.generation.as_deref().map(str::parse).transpose();
        let interconnect = interconnect.map_err(anyhow::Error::msg)?.unwrap_or_default();
        let ready = machine.nodes.into_iter().filter(|node| node.state == "ready");
        let mut nodes: Vec<_> = ready.collect();
        let Some(first) = nodes.first() else {
            bail!("the machine {name} has no Linux node that is ready; `tofu ps` lists its nodes");
        };
        let has = |arch: &Arch| nodes.iter().any(|node| node.processors() == *arch);
        let arch = wanted.filter(has).unwrap_or(first.processors());
        nodes.retain(|node| node.processors() == arch);
        let ready: Vec<Coords> = nodes.iter().map(|node| Coords::from_array(node.at)).collect();
        // I/O nodes may run Linux as well, but jobs do not use them.
        let others = shape.iter().filter(|at| !ready.contains(at) || shape.is_io_node(*at));
        let usable = system.clone().with_failed(others)?;
        Ok(Self { interconnect, arch, nodes, usable, system, jobs: machine.jobs })
    }
}

fn system(machine: &MachineInfo) -> anyhow::Result<(Shape, System)> {
    let shape = machine.shape()?;
    let links = machine.links_down.iter().map(|ends| {
        let [from, to] = ends.map(Coords::from_array);
        (from, to)
    });
    Ok((shape, System::new(shape).with_links_down(links)?.with_cut_off_failed()))
}

/// A process that runs a machine and ends with this process.
struct Own {
    child: Child,
    started: Instant,
    /// True if progress is printed for the user.
    talks: bool,
    /// True once modelled time stands still, where it was to stop. The process has ended then.
    stands: Arc<AtomicBool>,
    /// The time of the guests when they were ready, if it is modelled.
    ready: Option<Box<TimeInfo>>,
}

/// Returns the time of a machine, if it is there and in modelled time.
fn time_of(name: &MachineName) -> Option<Box<TimeInfo>> {
    let (_, control) = find_machine(Some(name)).ok()?;
    info(&control).ok()?.time
}

/// Returns the options of `tofu up` for the clock of a machine.
fn clock_options(machine: &MachineSpec) -> impl Iterator<Item = String> {
    let file = |option, path: &PathBuf| format!("{option}={}", path.display());
    let options = [
        machine.time.map(|clock| format!("--time={}", clock.name())),
        machine.ns_per_instruction.map(|ns| format!("--ns-per-instruction={ns}")),
        machine.quantum.map(|Quantum(ns)| format!("--quantum={ns}")),
        machine.seed.map(|seed| format!("--seed={seed}")),
        machine.record.as_ref().map(|path| file("--record", path)),
        machine.replay.as_ref().map(|path| file("--replay", path)),
        machine.until.map(|until| format!("--until={until}")),
    ];
    options.into_iter().flatten()
}

/// The memory of each of so many nodes of a machine that is started for a run, unless it is that of
/// `tofu up`.
fn default_memory(
    (modelled, mpi): (bool, bool),
    nodes: u32,
    host: Option<u64>,
) -> Option<MemorySize> {
    let most = host.unwrap_or(0) / 3 * 2;
    if modelled && u64::from(nodes) * MODELLED_MEMORY.0 <= most {
        return Some(MODELLED_MEMORY);
    }
    mpi.then_some(MPI_MEMORY)
}

impl Own {
    /// Starts a machine with enough nodes, with MPI in its image if it is used.
    fn start(
        spec: &JobSpec,
        wanted: Wanted,
        (arch, mpi): (Arch, Option<Family>),
    ) -> anyhow::Result<(Self, MachineName)> {
        let modelled = spec.own.time == Some(Time::Modelled);
        let shape = match spec.machine_shape()? {
            Some(shape) => shape,
            // Twelve nodes are a unit, as on Fugaku, where the number of links counts.
            None if modelled && wanted.is_unit()? => Shape::UNIT,
            None => wanted.as_machine()?,
        };
        let host = tofu_supervisor::memory::total();
        let memory = default_memory((modelled, mpi.is_some()), shape.nodes(), host);
        let memory = spec.own.memory.or(memory);
        let (io, shape) = (shape.has_io_nodes(), shape.to_string());
        let name = MachineName::of_this_run();
        let mut command = janitor::wrapped(0, Path::new("/proc/self/exe"))?;
        command.args(["up", "--linux", "--json", "--shape", &shape]);
        if !modelled {
            command.args(["--boot-timeout", BOOT]);
        }
        command.args(["--name", name.as_str()]);
        if io {
            command.arg("--io-nodes");
        }
        let default = mpi.map(|family| family.image(arch));
        if let Some(image) = spec.own.image.as_ref().map(ImageName::as_str).or(default) {
            if tofu_image::Cache::from_env()?.find(image)?.is_none() && spec.own.image.is_none() {
                let make = mpi.unwrap_or(Family::Mpich).make_image(arch);
                bail!("there is no image {image} for MPI programs; `tofu {make}` makes it");
            }
            command.args(["--image", image]);
        }
        if let Some(generation) = spec.own.generation {
            command.args(["--generation", generation.name()]);
        }
        if arch != Arch::default() {
            command.args(["--arch", arch.name()]);
        }
        if let Some(driver) = spec.own.driver {
            command.args(["--driver", driver.name()]);
        }
        if let Some(links) = spec.own.links {
            command.args(["--links", links.name()]);
        }
        command.args(clock_options(&spec.own));
        // An Ethernet has the host's time: in modelled time ranks find each other by tofu0.
        if spec.mpi && !modelled {
            command.args(["--net", "lan"]);
        }
        if let Some(memory) = memory {
            command.args(["--memory", &memory.to_string()]);
        }
        command.stdout(Stdio::piped());
        let child = command.spawn().context("cannot start a process for the machine")?;
        if !spec.json {
            tofu_ui::tell!("tofu: starting a machine {shape} of Linux nodes for this run");
        }
        let (started, stands) = (Instant::now(), Arc::default());
        Ok((Self { child, started, talks: !spec.json, stands, ready: None }, name))
    }

    /// Waits until all nodes are ready. Returns an exit code if that fails.
    fn wait(mut self, name: &MachineName, control: &Control) -> anyhow::Result<Result<Self, u8>> {
        let stdout = self.child.stdout.take().context("no pipe")?;
        let (sender, lines) = std::sync::mpsc::channel();
        let mut output = BufReader::new(stdout);
        let reader = thread::Builder::new().name("machine".into());
        let (stands, process) = (Arc::clone(&self.stands), Pid::from_child(&self.child));
        let machine = name.clone();
        let reading = reader.spawn(move || {
            let mut line = String::new();
            while let Ok(1..) = (&mut output).take(1 << 16).read_line(&mut line) {
                let event: Value = serde_json::from_str(&line).unwrap_or_default();
                line.clear();
                if event["event"] == "stands" {
                    // Nothing more comes of it.
                    stands.store(true, SeqCst);
                    let text = event["text"].as_str().unwrap_or_default();
                    tofu_ui::tell!("tofu: {text}; the run ends here (--until)");
                    if let Some(time) = time_of(&machine) {
                        tofu_ui::tell!("tofu: {}", time.summary());
                    }
                    // It may have ended by itself.
                    let _ = kill_process(process, Signal::TERM);
                }
                // There is a receiver until it is ready.
                let _ = sender.send(event);
            }
            // Later output is ignored, but must be read.
            let _ = std::io::copy(&mut output, &mut std::io::sink());
        });
        reading.context("no threads left")?;
        loop {
            if let Some(signal) = control.signal() {
                self.end()?;
                return Ok(Err(exit::of_signal(signal)));
            }
            match lines.recv_timeout(Duration::from_millis(50)) {
                Ok(event) => {
                    // One whose time stands still before that ends.
                    if event["event"] == "ready" && !self.stands.load(SeqCst) {
                        if self.talks {
                            let seconds = self.started.elapsed().as_secs_f64();
                            tofu_ui::tell!("tofu: ready after {seconds:.1} s");
                        }
                        self.ready = time_of(name);
                        return Ok(Ok(self));
                    }
                }
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
                // The process has reported the reason on standard error.
                Err(_) => {
                    if self.stands.load(SeqCst) {
                        self.end()?;
                        return Ok(Err(exit::UNTIL));
                    }
                    let code = self.child.wait()?.code().and_then(|code| u8::try_from(code).ok());
                    return Ok(Err(code.filter(|code| *code != 0).unwrap_or(exit::BAD_INPUT)));
                }
            }
        }
    }

    fn end(mut self) -> anyhow::Result<()> {
        // The process may have ended by itself.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let until = Instant::now() + END;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > until {
                bail!("the machine of this run does not end");
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // Its janitor cleans up after it.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_nodes_depends_on_time_and_host() {
        let (modelled, mpi) = (true, true);
        let of = |is, nodes, host: u64| default_memory(is, nodes, Some(host << 30)).map(|m| m.0);
        assert_eq!(of((modelled, false), 12, 18), Some(1 << 30));
        assert_eq!(of((modelled, mpi), 12, 18), Some(1 << 30));
        assert_eq!(of((modelled, mpi), 12, 17), Some(512 << 20));
        assert_eq!(of((modelled, false), 13, 18), None);
        assert_eq!(of((false, mpi), 1, 64), Some(512 << 20));
        assert_eq!(of((false, false), 1, 64), None);
        assert_eq!(default_memory((modelled, false), 1, None), None);
    }
}
