//! The messages of a machine's control socket, as plain types: lines of JSON, see [`crate::lines`].
//!
//! The manual describes them for other programs in docs/src/reference/control.md. A test of
//! `tools/tofu` checks the examples there.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use tofu_abi::Coords;
use tofu_abi::Generation;
use tofu_abi::topology::{NodeId, Port, Shape};
use tofu_agent::wire::{self, Exec, FromProgram, ToProgram};
use tofu_arch::Arch;
use tofu_inspect::Value;
use tofu_sync::queue::Item;

use crate::counters::NodeCounters;

/// Version of the protocol. It is increased when earlier messages are no longer understood, but not
/// for additions.
pub const VERSION: u32 = 1;

/// A client's requests.
///
/// A `node` is its number in the machine, a `port` its name, such as `X+`.
#[expect(missing_docs, reason = "fields are what their names say")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "request",
    rename_all = "snake_case",
    deny_unknown_fields,
    expecting = "an object with the field \"request\""
)]
pub enum Request {
    /// Answered by [`Reply::Machine`]. With `ping` it takes up to [`PING`](crate::PING) longer, and
    /// reports which Linux nodes do not answer.
    Info {
        #[serde(default)]
        ping: bool,
    },
    /// Runs a program on a Linux node. Its messages arrive as [`Reply::Program`], and the
    /// connection ends with the program.
    Exec(ExecRequest),
    /// Sends a message to that program. Not answered.
    To { what: ToProgram },
    /// Answered by [`Reply::Console`]; from then on the connection is the console's bytes.
    Console { node: u32 },
    /// Restarts a Linux node's virtual machine. Answered when it has started.
    Restart { node: u32 },
    /// Stops a node's processors. Answered when they have stopped.
    Pause { node: u32 },
    /// Lets a node's processors continue.
    Resume { node: u32 },
    /// Resumes the stopped time of a machine in modelled time, until `until` in picoseconds, if
    /// given. Virtual machines must be continued after that.
    GoOn { until: Option<u64> },
    /// Asks whether there is a gateway. Answered by [`Reply::Done`].
    Gateway,
    /// Opens a TCP connection to a node through the gateway. Answered by [`Reply::Done`]; from then
    /// on the connection is its bytes.
    Forward { node: u32, port: u16 },
    /// Exchanges datagrams with a node's port through the gateway. Answered by [`Reply::Done`];
    /// from then on each datagram is preceded by its length in two bytes, big-endian.
    Datagrams { node: u32, port: u16 },
    /// Ends the machine. Answered when the end has begun.
    Down,
    /// Answered by [`Reply::Packets`], and at the end by [`Reply::Captured`], after which the
    /// connection ends. It ends early when the client closes its side.
    Capture(CaptureRequest),
    /// Reports events from now on. Answered by [`Reply::Done`], and then by [`Reply::Event`] until
    /// the machine ends.
    Events,
    /// Takes the link at a port of a node up or down.
    SetLink { node: u32, port: String, up: bool },
    /// Answered by [`Reply::Links`].
    Links,
    /// Makes the routers of nodes fail, all together, or work again. With `guests`, their guests
    /// end, and Linux nodes that are off are started again. Answered when that has begun.
    SetNodes {
        nodes: Vec<u32>,
        up: bool,
        #[serde(default)]
        guests: bool,
    },
    /// Sets the errors of the modelled link at a port of a node, given as text, or removes them.
    SetLinkErrors { node: u32, port: String, errors: Option<String> },
    /// Sets the faults, given as text, or removes them.
    SetFaults { faults: Option<String> },
    /// Sets the faults of a node's device, given as text, or removes them.
    SetDeviceFaults { node: u32, faults: Option<String> },
    /// Injects wrong bits into the memory of a node's device, which is given by name: so many that
    /// are corrected, or what cannot be corrected.
    InjectEcc { node: u32, place: String, correctable: Option<u64> },
    /// Answered by [`Reply::Faults`].
    Faults,
    /// Reads the counters of a node's device. Answered by [`Reply::Counters`].
    Counters { node: u32 },
    /// Reads the registers of a node's device. Answered by [`Reply::Registers`].
    Registers { node: u32 },
    /// Asks for a job's turn to take nodes. Answered by [`Reply::Queued`] whenever its place
    /// changes while others are before it, and then by [`Reply::Turn`]. The connection belongs to
    /// the job: when it ends, the job has ended, and its nodes are free.
    Job {
        command: String,
        #[serde(default)]
        pid: Option<u32>,
    },
    /// Takes nodes for the connection's job in its turn, in place of those that it has. It may keep
    /// fewer of these at any time, and take others while no job waits. With `alone`, no other job
    /// may use them.
    Take {
        nodes: Vec<u32>,
        #[serde(default)]
        alone: bool,
        #[serde(default)]
        shape: Option<String>,
    },
    /// Keeps the turn of the connection's job. Answered by [`Reply::Turn`] again when the machine
    /// or its jobs have changed.
    Wait,
    /// Reads the live state of a node's device. Answered by [`Reply::Inspection`].
    Inspect(InspectRequest),
    /// Walks the tables of a control queue to memory. Answered by [`Reply::Inspection`].
    Translate(TranslateRequest),
    /// Traces commands. Answered by several [`Reply::Traced`]; the first one is empty, and comes
    /// when the trace has begun. The last answer is [`Reply::TraceEnded`], after which the
    /// connection ends. The trace ends early when the client closes its side.
    Trace(TraceRequest),
}

/// A trace's filter. An empty list means everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TraceRequest {
    /// Numbers of the nodes whose commands are traced.
    pub nodes: Vec<u32>,
    /// Control queues, as `TNI/CQ`, or interfaces, as `TNI`.
    pub queues: Vec<String>,
    /// Kinds of commands: `put`, `get`, `atomic`, `packet`, `other`.
    pub kinds: Vec<String>,
    /// `success`, `failed`, or the number or name of a result code.
    pub results: Vec<String>,
    /// When the trace ends by itself.
    pub limits: CaptureLimits,
}

/// A command of a trace. Times are nanoseconds of the host's clock since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedCommand {
    /// Number of the node that sent it.
    pub node: u32,
    /// Interface of the queue.
    pub tni: u8,
    /// Control queue.
    pub cq: u8,
    /// Place of the descriptor in the transmit order queue.
    pub slot: u32,
    /// Place in the table of outstanding commands, and a number that distinguishes it from others
    /// in that place. `None` for a command that ended before it was begun.
    pub tag: Option<(u16, u32)>,
    /// Its name, such as `Put`, or its code.
    pub command: String,
    /// Its target.
    pub to: Option<TracedTarget>,
    /// Bytes of the message.
    pub length: u32,
    /// TLPs of its request or, for a Get, of its answer.
    pub tlps: u32,
    /// Ports on its route, if the machine has one.
    pub hops: Vec<String>,
    /// When the guest wrote to the doorbell, if the device saw that.
    pub doorbell_ns: Option<u64>,
    /// When its descriptor had been read.
    pub begin_ns: u64,
    /// When its TCQ entry and notice were written, or held back by a timer.
    pub end_ns: u64,
    /// The work done for it at its target, in order, with at most 64 parts. A packet has one part
    /// if it was seen there, possibly after its end.
    pub parts: Vec<TracedPart>,
    /// Answers before the last one.
    pub answers: u32,
    /// Result code in its notice or, without one, in its TCQ entry.
    pub rcode: u8,
    /// The code's name.
    pub result: String,
    /// Result code in its TCQ entry.
    pub sent: u8,
    /// The reason why it has failed, in words. At most 20 commands a second of each node are
    /// explained.
    pub why: Option<String>,
}

impl TracedCommand {
    /// Returns whether it sends a raw or system packet, which has no answer.
    pub fn is_packet(&self) -> bool {
        self.command.starts_with("Transmit")
    }
}

/// The target of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedTarget {
    /// Number of the node, if the machine has it.
    pub node: Option<u32>,
    /// Its coordinates.
    pub at: [u8; 6],
    /// Interface.
    pub tni: u8,
    /// Control queue, steering tag and offset; none for packets.
    pub address: Option<(u8, u32, u64)>,
}

/// The work done at a target for a part of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedPart {
    /// Number of the node.
    pub node: u32,
    /// The thread that did the work, by a number that the trace gives it.
    pub thread: u32,
    /// When the work began; for parts below 1 KiB, the same as the end.
    pub begin_ns: u64,
    /// When the work ended.
    pub end_ns: u64,
    /// Its position in the message, in bytes.
    pub position: u32,
    /// Bytes that were read or written; 0 for a packet that was discarded.
    pub done: u32,
    /// Result code.
    pub rcode: u8,
}

/// An interrupt of a trace, and the guest's next access to a register.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedInterrupt {
    /// Number of the node.
    pub node: u32,
    /// MSI-X vector.
    pub vector: u16,
    /// When it was requested, in nanoseconds since 1970.
    pub at_ns: u64,
    /// The time of the guest's next access to a register that the device handles.
    pub access_ns: Option<u64>,
    /// That register's offset in BAR0.
    pub offset: Option<u64>,
}

/// The summary of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceSummary {
    /// Commands that were sent to the client.
    pub commands: u64,
    /// The number of them that failed.
    pub failed: u64,
    /// Commands that had begun and had not ended.
    pub open: u64,
    /// Steps that were overwritten before they could be read.
    pub lost: u64,
    /// The time it took.
    pub seconds: f64,
}

/// The target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InspectRequest {
    /// Number of the node.
    pub node: u32,
    /// Names that lead to the part to show, separated by slashes; everything if empty.
    #[serde(default)]
    pub path: String,
    /// Levels below it to show.
    #[serde(default = "InspectRequest::depth")]
    pub depth: u32,
    /// The most values to show, up to [`InspectRequest::MOST`].
    #[serde(default = "InspectRequest::limit")]
    pub limit: u32,
}

impl InspectRequest {
    /// The most values that are shown, even if the client asks for more.
    pub const MOST: u32 = 1 << 18;

    /// Returns the default number of levels, which is all.
    pub const fn depth() -> u32 {
        64
    }

    /// Returns the default number of values.
    pub const fn limit() -> u32 {
        1 << 15
    }
}

/// An address to translate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TranslateRequest {
    /// Number of the node.
    pub node: u32,
    /// The interface.
    pub tni: u8,
    /// Its control queue, whose tables are used.
    pub cq: u8,
    /// The steering tag.
    pub stag: u32,
    /// The offset in it, in bytes.
    pub offset: u64,
    /// The number of bytes, up to the length of a message.
    #[serde(default = "TranslateRequest::length")]
    pub length: u32,
    /// True to translate as for a write.
    #[serde(default)]
    pub write: bool,
}

impl TranslateRequest {
    /// Returns the default number of bytes.
    pub const fn length() -> u32 {
        1
    }
}

/// A program to run, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// Number of the node.
    pub node: u32,
    /// The program.
    #[serde(flatten)]
    pub exec: Exec,
    /// The time for which the node's agent may answer nothing before the program is given up, in
    /// milliseconds; by default 30 s.
    #[serde(default)]
    pub silence_ms: Option<u64>,
}

/// The answers of a machine.
#[expect(missing_docs, reason = "fields are what their names say")]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// The first line of every connection: the [`VERSION`] of the protocol, and that of the
    /// command that runs the machine.
    Hello { protocol: u32, tofu: String },
    /// Describes the machine and its nodes.
    Machine(MachineInfo),
    /// Comes from the program that was started.
    Program { what: FromProgram },
    /// The links that are down. All others are up.
    Links { down: Vec<LinkEnd> },
    /// `None` if there are no faults.
    Faults { faults: Option<FaultReport> },
    /// `None` if there is no device.
    Counters { counters: Option<Box<NodeCounters>> },
    /// `None` if there is no device.
    Registers { registers: Option<Vec<RegisterValue>> },
    /// `tree` is `None` if there is no device. `complete` is false if the limit left something out.
    Inspection { tree: Option<Value>, complete: bool },
    /// The console's bytes follow. The first `replay` bytes are from before.
    Console { replay: u64 },
    /// More of a capture's file. The first such message arrives when the capture has begun.
    Packets {
        #[serde(with = "wire::bytes")]
        pcapng: Vec<u8>,
    },
    /// A capture's file is complete.
    Captured(CaptureSummary),
    /// Commands that have ended, and interrupts.
    Traced { commands: Vec<TracedCommand>, interrupts: Vec<TracedInterrupt> },
    /// A trace has ended.
    TraceEnded(TraceSummary),
    /// Something has happened.
    Event(EventInfo),
    /// A job waits for its turn, after `before` others.
    Queued { job: u32, before: u32 },
    /// It is the job's turn.
    Turn { job: u32 },
    /// The request has been carried out.
    Done,
    /// The request failed, for this reason, in one line.
    Error { why: String },
}

/// A machine as `tofu ps` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineInfo {
    /// Process that runs it.
    pub pid: u32,
    /// Lengths of the axes, as on the command line.
    pub shape: String,
    /// Which of X, Y and Z wrap around.
    pub torus: [bool; 3],
    /// True if its nodes with Z = 0 are I/O nodes.
    #[serde(default)]
    pub io_nodes: bool,
    /// The name of its generation, or `tnw`, once its devices exist.
    #[serde(default)]
    pub generation: Option<String>,
    /// The architecture of its Linux nodes, if all have the same one: `x86-64` or `arm64`.
    #[serde(default)]
    pub arch: Option<String>,
    /// The ends of links that are down.
    pub links_down: Vec<[[u8; 6]; 2]>,
    /// Seconds since it was started.
    pub seconds: f64,
    /// The time of a machine in modelled time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Box<TimeInfo>>,
    /// Its nodes that have a device, by number.
    pub nodes: Vec<NodeInfo>,
    /// Its jobs, in the order in which they came.
    #[serde(default)]
    pub jobs: Vec<JobInfo>,
    /// Its shards, if it is in shards.
    #[serde(default, rename = "parts")]
    pub shards: Vec<ShardInfo>,
}

/// Modelled nanoseconds in seconds, with all digits.
pub fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// The time of a machine in modelled time, as `tofu time` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimeInfo {
    /// Modelled nanoseconds since its guests began.
    pub modelled_ns: u64,
    /// Modelled nanoseconds of an instruction.
    pub ns_per_instruction: f64,
    /// The number of events that came to guests that were ahead of them.
    pub late: u64,
    /// The longest time by which a guest was ahead, in nanoseconds.
    pub late_most_ns: u64,
    /// Of each guest.
    pub guests: Vec<GuestTimeInfo>,
    /// The point at which time has stopped, if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stands: Option<StandsInfo>,
}

/// The point at which modelled time has stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandsInfo {
    /// In picoseconds since guests began.
    pub ps: u64,
    /// The same in words, and why.
    pub text: String,
}

impl TimeInfo {
    /// Describes it in one line.
    pub fn summary(&self) -> String {
        let Self { modelled_ns, ns_per_instruction, late, late_most_ns, stands, .. } = self;
        let late = match late {
            0 => "nothing was late".to_owned(),
            count => format!("{count} events were late, by up to {late_most_ns} ns"),
        };
        let seconds = *modelled_ns as f64 / 1e9;
        let stands = if stands.is_some() { "; it stands still" } else { "" };
        format!(
            "modelled time {seconds:.6} s, {ns_per_instruction} ns an instruction; {late}{stands}"
        )
    }
}

/// The time of a guest in modelled time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestTimeInfo {
    /// Number of its node.
    pub node: u32,
    /// Coordinates of its node.
    pub at: [u8; 6],
    /// Modelled nanoseconds in which it was awake.
    pub awake_ns: u64,
    /// The host's nanoseconds in which it ran.
    pub host_ns: u64,
    /// The number of times that it stopped to request permission to run further.
    pub steps: u64,
    /// Its accesses to the device.
    pub accesses: u64,
    /// The commands that its device has started.
    #[serde(default)]
    pub commands: u64,
    /// Modelled nanoseconds in which any of them was in flight.
    #[serde(default)]
    pub in_flight_ns: u64,
    /// The ports at which packets have waited for credits, and for how many modelled nanoseconds.
    #[serde(default)]
    pub waited_ns: BTreeMap<String, u64>,
}

impl TimeInfo {
    /// A line for each guest: its time since an earlier state of the machine.
    pub fn since(&self, before: Option<&Self>) -> impl Iterator<Item = String> {
        let earlier = move |guest: &GuestTimeInfo| {
            let mut all = before.into_iter().flat_map(|before| &before.guests);
            all.find(|before| before.node == guest.node)
        };
        self.guests.iter().map(move |guest| guest.since(earlier(guest)).to_string())
    }
}

impl GuestTimeInfo {
    /// The time since an earlier state.
    fn since(&self, before: Option<&Self>) -> Self {
        let Some(before) = before else { return self.clone() };
        let waited = self.waited_ns.iter().filter_map(|(port, ns)| {
            let since = ns.saturating_sub(before.waited_ns.get(port).copied().unwrap_or(0));
            (since > 0).then(|| (port.clone(), since))
        });
        Self {
            awake_ns: self.awake_ns.saturating_sub(before.awake_ns),
            in_flight_ns: self.in_flight_ns.saturating_sub(before.in_flight_ns),
            commands: self.commands.saturating_sub(before.commands),
            waited_ns: waited.collect(),
            ..self.clone()
        }
    }

    /// The port at which packets have waited longest, and for how many modelled nanoseconds.
    pub fn longest_wait(&self) -> Option<(&str, u64)> {
        let longest = self.waited_ns.iter().max_by_key(|(_, ns)| **ns)?;
        Some((longest.0, *longest.1))
    }
}

impl fmt::Display for GuestTimeInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ns: u64| ns as f64 / 1e6;
        let Self { awake_ns, commands, in_flight_ns, .. } = self;
        let at = Coords::from_array(self.at);
        write!(f, "node {at}: awake {:.3} ms, {commands} commands, ", ms(*awake_ns))?;
        write!(f, "in flight {:.3} ms", ms(*in_flight_ns))?;
        match self.longest_wait() {
            Some((port, ns)) => write!(f, ", waited {:.3} ms at link {port}", ms(ns)),
            None => Ok(()),
        }
    }
}

/// A shard of a machine as `tofu ps` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardInfo {
    /// Its number.
    #[serde(rename = "part")]
    pub shard: u16,
    /// The address at which it listens, as given to `tofu hosts init`.
    pub address: String,
    /// The process that holds or held it.
    pub pid: u32,
    /// Its state.
    pub state: ShardState,
}

/// The presence of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardState {
    /// The shard that has answered this request.
    Here,
    /// It answers.
    There,
    /// It is connected, but does not answer.
    Silent,
    /// It has gone.
    Lost,
}

impl fmt::Display for ShardState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Here => "here",
            Self::There => "there",
            Self::Silent => "not answering",
            Self::Lost => "lost",
        })
    }
}

impl MachineInfo {
    /// Returns its generation of Tofu, if it has reported one.
    pub fn generation(&self) -> Option<Generation> {
        Generation::from_name(self.generation.as_deref()?)
    }

    /// Returns its shape, including which axes wrap around.
    ///
    /// # Errors
    ///
    /// If the machine has sent something that is not a shape.
    pub fn shape(&self) -> anyhow::Result<Shape> {
        let shape: Shape = self.shape.parse()?;
        Ok(shape.with_torus(self.torus).with_io_nodes(self.io_nodes))
    }
}

/// The user of a node's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// A virtual machine with Linux.
    Linux,
    /// A virtual machine with a small guest.
    Bare,
    /// The client that attaches to the device's socket.
    Served,
    /// This machine's own process, through which the host reaches the nodes.
    Gateway,
}

impl fmt::Display for NodeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Linux => "linux",
            Self::Bare => "bare",
            Self::Served => "served",
            Self::Gateway => "gateway",
        })
    }
}

/// A node as `tofu ps` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its number in the machine.
    pub index: u32,
    /// Its coordinates.
    pub at: [u8; 6],
    /// The shard that it belongs to, if the machine is in shards.
    #[serde(default, rename = "part")]
    pub shard: Option<u16>,
    /// Name, such as `t-0-0-0-0-0-0`.
    pub name: String,
    /// The user of its device.
    pub kind: NodeKind,
    /// For Linux: `waiting` (for its turn to boot), `booting`, `ready`, `not answering` or `off`.
    /// For small guests: `running` or `ended`. For both: `paused`. For served devices: `waiting`
    /// (for a client) or `attached`. For the gateway: `gateway`.
    pub state: String,
    /// `qemu`, `tofu`, or `none`.
    pub vmm: String,
    /// The architecture of a Linux node: `x86-64` or `arm64`.
    #[serde(default)]
    pub arch: Option<String>,
    /// True if its router has failed, so that all of its links are down.
    #[serde(default)]
    pub down: bool,
    /// Process of its monitor.
    pub pid: Option<u32>,
    /// Seconds for which it has been in its state.
    pub seconds: f64,
}

impl NodeInfo {
    /// Returns whether it is a Linux node.
    pub fn is_linux(&self) -> bool {
        self.kind == NodeKind::Linux
    }

    /// Returns its architecture, or the default if it gives none, or one that is not known here.
    pub fn processors(&self) -> Arch {
        self.arch.as_deref().and_then(|name| name.parse().ok()).unwrap_or_default()
    }
}

/// A job as `tofu ps` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobInfo {
    /// Its number, which the machine gives to no other job.
    pub job: u32,
    /// Its program.
    pub command: String,
    /// The process that requested it.
    pub pid: Option<u32>,
    /// Its state.
    pub state: JobState,
    /// The torus that it has, such as `4x3`.
    pub shape: Option<String>,
    /// True if no other job may use its nodes.
    pub alone: bool,
    /// Numbers of its nodes, in the job's order.
    pub nodes: Vec<u32>,
    /// Seconds for which it has been in its state.
    pub seconds: f64,
}

impl JobInfo {
    /// Returns whether it has the node of this number.
    pub fn has(&self, node: u32) -> bool {
        self.nodes.contains(&node)
    }

    /// Returns the numbers of the jobs that have a node, such as `1 4`, or `-`.
    pub fn numbers(jobs: &[Self], node: u32) -> String {
        let jobs = jobs.iter().filter(|job| job.has(node));
        let jobs: Vec<_> = jobs.map(|job| job.job.to_string()).collect();
        if jobs.is_empty() { "-".to_owned() } else { jobs.join(" ") }
    }
}

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It waits for nodes.
    Queued,
    /// It has nodes.
    Running,
    /// It has returned its nodes.
    Ended,
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Ended => "ended",
        })
    }
}

/// Faults, and how often they have happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultReport {
    /// Faults on all links, as text.
    pub faults: String,
    /// Links with their own faults.
    pub links: u32,
    /// Packets that were dropped.
    pub lost: u64,
    /// Packets that arrived twice.
    pub duplicated: u64,
    /// Packets that others have overtaken.
    pub reordered: u64,
    /// Packets that were damaged so that their check sequence shows it.
    pub corrupted: u64,
    /// Packets that were damaged, with a matching check sequence.
    pub undetected: u64,
}

/// A link, named from one of its ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkEnd {
    /// Number of the node.
    pub node: u32,
    /// Name of the port.
    pub port: String,
}

impl LinkEnd {
    /// Returns the end of a link at a port of a node, in a machine of this shape.
    pub fn at(shape: &Shape, from: Coords, port: Port) -> Option<Self> {
        Some(Self { node: shape.node_id(from)?.0, port: port.to_string() })
    }

    /// Returns the node and the port, if both exist.
    pub fn find(&self, shape: &Shape) -> Option<(Coords, Port)> {
        let port = Port::from_name(&self.port)?;
        Some((shape.coords(NodeId(self.node))?, port))
    }
}

/// A register of a node's device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterValue {
    /// Its offset in BAR 0, in bytes.
    pub offset: u64,
    /// The unit that it belongs to: `tofu`, `tni 0`, `tni 0 cq 3`, `port X+` and so on.
    pub of: String,
    /// Its name in the register map.
    pub name: String,
    /// Its value.
    pub value: u64,
    /// The fields of the value, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<(String, String)>,
}

/// A capture's filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureRequest {
    /// Number of the node.
    pub node: u32,
    /// The places to capture, in the notation of `--on` of `tofu capture`; all if empty.
    #[serde(default)]
    pub on: Vec<String>,
    /// Kinds of packets to capture, in the notation of `--kind`; all if empty.
    #[serde(default)]
    pub kind: Vec<String>,
    /// Bytes of each packet to keep.
    #[serde(default = "CaptureRequest::snaplen")]
    pub snaplen: u32,
    /// When the capture ends by itself.
    #[serde(default)]
    pub limits: CaptureLimits,
}

impl CaptureRequest {
    /// Returns the default number of bytes of each packet to keep: any single frame, with the
    /// record's header.
    pub const fn snaplen() -> u32 {
        2080
    }
}

/// When a capture ends by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CaptureLimits {
    /// After this many packets.
    pub count: Option<u64>,
    /// After this many seconds.
    pub seconds: Option<u64>,
}

/// The summary of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CaptureSummary {
    /// Packets in the file.
    pub packets: u64,
    /// Packets that passed the filter, but were dropped because the buffer was full.
    pub dropped: u64,
    /// The time it took.
    pub seconds: f64,
}

/// An event of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventInfo {
    /// Seconds since the machine's start.
    pub seconds: f64,
    /// Modelled nanoseconds since guests began, in a machine in modelled time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modelled_ns: Option<u64>,
    /// Number of the node, if it is about one.
    pub node: Option<u32>,
    /// The node's coordinates.
    pub at: Option<[u8; 6]>,
    /// The event.
    #[serde(flatten)]
    pub what: EventKind,
}

impl Item for EventInfo {
    fn bytes(&self) -> usize {
        let of = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        match &self.what {
            EventKind::Netboot { stage, file, why, .. } => stage.len() + of(file) + of(why),
            EventKind::Line { text } | EventKind::Died { why: text } => text.len(),
            EventKind::Ended { outcome, detail, .. } => outcome.len() + of(detail),
            EventKind::Job { command, nodes, .. } => command.len() + size_of_val(&nodes[..]),
            EventKind::LinkErrors { port, errors } => port.len() + of(errors),
            EventKind::Faults { faults } => of(faults),
            _ => 0,
        }
    }
}

/// The event.
#[expect(missing_docs, reason = "fields are what their names say")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// The node's guest runs; for a Linux node, it can run programs.
    Booted,
    /// A node that boots over the torus has reached this stage.
    Netboot { stage: String, file: Option<String>, percent: Option<u8>, why: Option<String> },
    /// A small guest, or the program of a Linux node, has printed a line.
    Line { text: String },
    /// A small guest, or the program of a Linux node, has ended: `exited`, `reset`, `fault` or
    /// `stopped`.
    Ended { outcome: String, code: Option<u32>, detail: Option<String> },
    /// A Linux node's virtual machine has ended.
    Died { why: String },
    /// The node's processors were stopped.
    Paused,
    /// They continue.
    Resumed,
    /// A client has attached to a served device.
    Attached,
    /// A client has left a served device.
    Detached,
    /// A link went up or down, seen from one of its ends.
    Link { port: String, up: bool },
    /// The node's router has failed, or works again.
    Router { up: bool },
    /// A modelled link passed nothing any more, so the node at one of its ends has taken it down.
    LinkFailed { port: String },
    /// The errors of a link have changed to these, seen from one of its ends.
    LinkErrors { port: String, errors: Option<String> },
    /// The faults of all links have changed to these.
    Faults { faults: Option<String> },
    /// A job waits for nodes, has taken these, or has ended.
    Job { job: u32, state: JobState, command: String, nodes: Vec<u32> },
    /// Time stands still in a machine in modelled time, here and for this reason.
    TimeStands { ps: u64, text: String },
    /// It continues.
    TimeGoesOn,
    /// The machine ends.
    Down,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(
        node: u32,
        [awake_ns, in_flight_ns]: [u64; 2],
        waited: &[(&str, u64)],
    ) -> GuestTimeInfo {
        let waited_ns = waited.iter().map(|(port, ns)| ((*port).to_owned(), *ns)).collect();
        GuestTimeInfo {
            node,
            at: [node as u8, 0, 0, 0, 0, 0],
            awake_ns,
            host_ns: 1,
            steps: 2,
            accesses: 3,
            commands: awake_ns / 1_000_000,
            in_flight_ns,
            waited_ns,
        }
    }

    fn time(guests: Vec<GuestTimeInfo>) -> TimeInfo {
        TimeInfo {
            modelled_ns: 0,
            ns_per_instruction: 1.0,
            late: 0,
            late_most_ns: 0,
            guests,
            stands: None,
        }
    }

    #[test]
    fn times_of_guests_count_from_an_earlier_state() {
        let before = time(vec![guest(0, [5_000_000, 1_000_000], &[("A", 400_000), ("X+", 9)])]);
        let waits = [("A", 500_000), ("X+", 200_009)];
        let now =
            time(vec![guest(0, [7_000_000, 1_500_000], &waits), guest(1, [3_000_000, 0], &[])]);
        let lines: Vec<_> = now.since(Some(&before)).collect();
        let of_first = "node (0,0,0,0,0,0): awake 2.000 ms, 2 commands, in flight 0.500 ms, \
             waited 0.200 ms at link X+";
        // It was not there before.
        let of_second = "node (1,0,0,0,0,0): awake 3.000 ms, 3 commands, in flight 0.000 ms";
        assert_eq!(lines, [of_first, of_second]);
        assert_eq!(now.guests[0].longest_wait(), Some(("A", 500_000)));
        assert_eq!(now.guests[1].longest_wait(), None);
    }
}
