//! The events of a running machine.

use tofu_fabric::{NodeId, PartId};
use tofu_netboot::wire::FileRole;

use crate::backtrace::Frame;

/// Something that happened to a machine. Events of one node arrive in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The node's guest has been loaded and its vCPU runs; on a Linux node, programs can run.
    Booted(NodeId),
    /// A Linux node can run programs again, or a small guest has been started again.
    Rebooted(NodeId),
    /// Progress of a node that boots over the torus.
    Netboot(NodeId, BootStage),
    /// The guest printed a line, without its line end.
    Line(NodeId, String),
    /// A function on the stack of a guest that could not continue; the innermost comes first.
    Frame(NodeId, Frame),
    /// The guest has ended: the last event of the node, unless its guest is started again.
    Ended(NodeId, Outcome),
    /// This process was sent SIGINT (2) or SIGTERM (15). Not sent by machines.
    Signal(i32),
    /// The machine has finished starting. Not sent by machines.
    Started,
    /// A Linux node's virtual machine has ended, for this reason. It may come back.
    Died(NodeId, String),
    /// `tofu down` wants the machine to end.
    Down,
    /// Another part of the machine has gone, for this reason.
    PartWent(PartId, String),
    /// Another part has come back, without any state.
    PartCame(PartId),
    /// All guests of another part have ended, and this many of them have failed.
    PartEnded(PartId, u32),
}

/// How a guest ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It exited with this code.
    Exited(u32),
    /// It reset its machine.
    Reset,
    /// It could not continue: the cause and the registers, in one line.
    Fault(String),
    /// It was stopped with its machine, or its node was taken down.
    Stopped,
}

/// The progress of a node that boots over the torus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootStage {
    /// Its firmware has found the server.
    Begun,
    /// It has this percentage of a file.
    Fetching(FileRole, u8),
    /// It has all files and starts the program.
    Starting,
    /// It gives up, for this reason.
    Failed(String),
}
