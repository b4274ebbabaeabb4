//! The messages of a machine's control socket, as plain types.
//!
//! They are framed as those of the agent are, by [`tofu_agent::wire`].

use serde::{Deserialize, Serialize};
use tofu_agent::wire::{Exec, FromProgram, ToProgram};
use tofu_fabric::Link;

use crate::counters::NodeCounters;

/// What a command asks; the first message of a connection, but for [`Request::To`].
///
/// A `node` is its number in the machine.
#[expect(missing_docs, reason = "fields are what their names say")]
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Answered by [`Reply::Machine`], a [`Reply::Node`] for each node, [`Reply::Done`].
    Info,
    /// Runs a program on a node. Its words come as [`Reply::Program`].
    Exec { node: u32, exec: Exec },
    /// Something for that program.
    To(ToProgram),
    /// Answered by [`Reply::Done`]; from then on the connection is the console's bytes.
    Console { node: u32 },
    /// Starts a node's virtual machine anew. Answered when it has started.
    Restart { node: u32 },
    /// Stops a node's processors, or lets them go on. Answered when they have.
    Hold { node: u32, on: bool },
    /// Whether there is a gateway. Answered by [`Reply::Done`].
    Gateway,
    /// A TCP connection to a node by way of the gateway. Answered by [`Reply::Done`]; from then on
    /// the connection is its bytes.
    Forward { node: u32, port: u16 },
    /// Datagrams to a node's port by way of the gateway, and what it answers. Answered by
    /// [`Reply::Done`]; from then on each has its length in front, in two bytes, big endian.
    Datagrams { node: u32, port: u16 },
    /// Ends the machine. Answered when that has begun.
    Down,
    /// Answered by [`Reply::Capture`] until it ends, with the client or by itself.
    Capture(CaptureRequest),
    /// About the network. Answered by [`Reply::Network`].
    Network(NetworkRequest),
}

/// What a machine answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// About the machine.
    Machine(MachineInfo),
    /// About one of its nodes.
    Node(NodeInfo),
    /// From the program that was started.
    Program(FromProgram),
    /// About the network.
    Network(NetworkReply),
    /// Of a capture.
    Capture(CaptureReply),
    /// What was asked for has been done.
    Done,
    /// What was asked for cannot be done: why, in one line.
    Error(String),
}

/// A machine as `tofu ps` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MachineInfo {
    /// Process that runs it.
    pub pid: u32,
    /// Lengths of the axes, as on the command line.
    pub shape: String,
    /// Which of X, Y and Z wrap round.
    pub torus: [bool; 3],
    /// The ends of links that are down.
    pub links_down: Vec<[[u8; 6]; 2]>,
    /// Since it was started.
    pub seconds: f64,
}

/// A node as `tofu ps` shows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its number in the machine.
    pub index: u32,
    /// Its coordinates.
    pub at: [u8; 6],
    /// As `t-0-0-0-0-0-0`.
    pub name: String,
    /// `waiting`, `booting`, `ready`, `off`; `running`, `ended`; `served`; `gateway`.
    pub state: String,
    /// `qemu`, `tofu`, or `none`.
    pub vmm: String,
    /// Process of its monitor.
    pub pid: Option<u32>,
    /// Since it has been in its state.
    pub seconds: f64,
}

impl NodeInfo {
    /// Whether it is a Linux node.
    pub fn is_linux(&self) -> bool {
        matches!(self.state.as_str(), "ready" | "booting" | "waiting" | "off")
    }
}

/// A question about the network, or an order.
#[expect(missing_docs, reason = "fields are what their names say")]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum NetworkRequest {
    /// Takes the link at a port of a node up or down. Answered by [`NetworkReply::Done`].
    SetLink { at: [u8; 6], port: u8, up: bool },
    /// Answered by [`NetworkReply::Links`].
    Links,
    /// Has these faults from now on, as text, or none. Answered by [`NetworkReply::Done`].
    SetFaults(Option<String>),
    /// Answered by [`NetworkReply::Faults`].
    Faults,
    /// What the device at a place has counted. Answered by [`NetworkReply::Counters`].
    Counters { at: [u8; 6] },
}

/// The answer to a [`NetworkRequest`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum NetworkReply {
    /// What was asked for has been done.
    Done,
    /// The links that are down. All others are up.
    Links(Vec<LinkEnd>),
    /// None if there are none.
    Faults(Option<FaultReport>),
    /// None where no device is.
    Counters(Option<NodeCounters>),
}

/// Faults, and how often they happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FaultReport {
    /// On all links, as text.
    pub faults: String,
    /// Links with faults of their own.
    pub links: u32,
    /// Packets that were dropped.
    pub lost: u64,
    /// Packets that arrived twice.
    pub duplicated: u64,
    /// Packets that others have overtaken.
    pub reordered: u64,
    /// Packets whose check sequence shows that they were damaged.
    pub corrupted: u64,
    /// Packets that were damaged, with a check sequence that fits.
    pub undetected: u64,
}

/// A link, named from one of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkEnd {
    /// Coordinates of the node.
    pub(crate) at: [u8; 6],
    /// Number of the port.
    pub(crate) port: u8,
}

impl LinkEnd {
    /// The end that a link begins at.
    pub fn of(link: &Link) -> Self {
        Self { at: link.from.to_array(), port: link.port.index() as u8 }
    }
}

/// What to capture.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CaptureRequest {
    /// Coordinates of the node.
    pub at: [u8; 6],
    /// A bit for each interface.
    pub interfaces: u32,
    /// A bit for each kind.
    pub kinds: u32,
    /// Bytes of each packet to keep.
    pub snaplen: u32,
    /// When it ends by itself.
    pub limits: CaptureLimits,
}

/// What comes of it.
#[derive(Debug, Serialize, Deserialize)]
pub enum CaptureReply {
    /// More of the file; the first one when the capture has begun.
    Data(Vec<u8>),
    /// The file is complete.
    End(CaptureSummary),
}

/// When a capture ends by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureLimits {
    /// After so many packets.
    pub count: Option<u64>,
    /// After so many seconds.
    pub seconds: Option<u64>,
}

/// What became of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CaptureSummary {
    /// Packets in the file.
    pub packets: u64,
    /// Packets that the filter let through, but for which there was no place.
    pub dropped: u64,
    /// How long it took.
    pub seconds: f64,
}
