//! The reason why there is no plan.

use tofu_abi::Coords;
use tofu_fabric::{BadShards, Shape, ShardId};
use tofu_ui::{FileError, FileLine};

use crate::guest::GuestError;
use crate::units::MemorySize;

/// The reason why there is no plan.
#[expect(missing_docs, reason = "the messages say it")]
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error(transparent)]
    Config(#[from] FileError),
    #[error(transparent)]
    Guest(#[from] GuestError),
    #[error("{place}: {why}")]
    InFile { place: FileLine, why: Box<Self> },
    #[error("{0} is for machines with Linux nodes; add --linux")]
    NeedsLinux(String),
    #[error("{0} has no effect here, where no guests are started; leave it out")]
    NoGuests(String),
    #[error("{field} = {value} is not allowed; {field} is {allowed}")]
    Value { field: &'static str, value: String, allowed: String },
    #[error("--nat is by the host's network interface; leave --tap off out")]
    NatWithoutTap,
    #[error("--net: a machine in shards has no Ethernet among all of its nodes; leave it out")]
    NetInShards,
    #[error(
        "{memory} of memory are too little for a Linux node; give {} or more",
        MemorySize::LINUX_LEAST
    )]
    LinuxMemory { memory: MemorySize },
    #[error("{memory} of memory are too little for the guest {guest}; give {least} or more")]
    GuestMemory { memory: MemorySize, guest: String, least: MemorySize },
    #[error(
        "--gateway {at}: the shape {shape} has no such node; each number must be below its length"
    )]
    Gateway { at: Coords, shape: Shape },
    #[error(
        "--gateway without a node is for machines with I/O nodes that have no guests, such as \
         --shape k-racks; give a node, such as --gateway 0,0,0,0,0,0"
    )]
    GatewayNowhere,
    #[error(
        "--io-nodes: they have Z = 0, and the shape {0} has no other nodes; give a Z of 2 or more"
    )]
    OnlyIoNodes(Shape),
    #[error("--nat is for machines with a gateway; add --gateway and a node, such as 0,0,0,0,0,0")]
    Nat,
    #[error("the machine has no node but its gateway; give a larger --shape")]
    OnlyGateway,
    #[error("--capture {asked}: {why}")]
    Capture { asked: String, why: String },
    #[error("nodes for arm64 cannot have {0}: drop that, or run nodes for x86-64")]
    Arm64(&'static str),
    #[error("--cpu is for nodes for arm64; add --arch arm64")]
    Cpu,
    #[error("{0} is for machines in modelled time; add --time modelled")]
    NeedsModelled(String),
    #[error("{field}: the machine has no node {node}; it has {nodes}, and the first one is 0")]
    Until { field: String, node: u32, nodes: u32 },
    #[error("--record and --replay: a run that is replayed has its record; leave one out")]
    RecordAndReplay,
    #[error("a machine in modelled time cannot have {0} so far")]
    Modelled(&'static str),
    #[error("a machine in modelled time cannot have small guests; add --linux")]
    ModelledGuests,
    #[error("{0}: an instruction of nodes for arm64 takes 0.25 to 1 ns")]
    ModelledArm64(String),
    #[error("a machine in modelled time has at most {most} nodes, and this shape has {nodes}")]
    ModelledNodes { nodes: u32, most: u32 },
    #[error("a machine of TNW cannot have {0}")]
    Tnw(&'static str),
    #[error(
        "shape {0}: TNW has the axes X, Y and Z only; give three lengths, such as --shape 4x2x2"
    )]
    TnwShape(Shape),
    #[error(
        "--nodes {asked}: the shape {shape} has {} {}nodes; give 1 to {0}",
        shape.compute_nodes(),
        if shape.has_io_nodes() { "compute " } else { "" }
    )]
    Nodes { asked: u32, shape: Shape },
    #[error("boot server at {at}: the shape {shape} has no such node")]
    BootServer { at: Coords, shape: Shape },
    #[error("boot server at {at}: that node is the gateway; give another one")]
    BootServerAtGateway { at: Coords },
    #[error(
        "nodes that boot over the torus need a boot server on a separate node; give --shape or \
         --nodes so that one is left"
    )]
    NoBootServer,
    #[error(transparent)]
    Shards(#[from] BadShards),
    #[error("a machine in shards cannot have {0} so far; leave out --shard, or that")]
    InShards(&'static str),
    #[error("--capture of node {at}: it is in shard {shard}; give the option there")]
    CaptureElsewhere { at: Coords, shard: ShardId },
}

/// Refuses the first setting that the machine cannot have.
pub(super) fn refuse<const N: usize>(
    lacks: [(bool, &'static str); N],
    why: fn(&'static str) -> PlanError,
) -> Result<(), PlanError> {
    match lacks.into_iter().find(|(asked, _)| *asked) {
        Some((_, what)) => Err(why(what)),
        None => Ok(()),
    }
}

impl PlanError {
    /// Says in which line of a machine file the cause is, if it is in one.
    pub(super) fn at(self, place: Option<FileLine>) -> Self {
        match place {
            Some(place) => Self::InFile { place, why: Box::new(self) },
            None => self,
        }
    }
}
