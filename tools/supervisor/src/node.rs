//! The interface to nodes that this crate does not run itself: those with Linux, in
//! `tofu-linux-nodes`.

use std::sync::Arc;
use std::time::Duration;

use tofu_abi::Coords;
use tofu_fabric::NodeId;
use tofu_image::Arch;

use crate::agent::Agent;
use crate::console::Console;
use crate::event::EventSender;
use crate::machine::AnyMachine;
use crate::netboot::LinuxFiles;
use tofu_spec::plan::Plan;

/// A node with a console, whose guest has an agent that runs programs there.
pub trait AgentNode: Send + Sync {
    /// Returns its number in the machine.
    fn id(&self) -> NodeId;

    /// Returns its coordinates.
    fn at(&self) -> Coords;

    /// Returns the architecture of its processors.
    fn arch(&self) -> Arch;

    /// Returns what it is doing.
    fn status(&self) -> NodeStatus;

    /// Returns the agent of its guest.
    fn agent(&self) -> &Arc<Agent>;

    /// Returns its console.
    fn console(&self) -> &Console;

    /// Ends the virtual machine if one runs, and starts a new one.
    ///
    /// # Errors
    ///
    /// If the machine is going down.
    fn restart(&self) -> anyhow::Result<()>;

    /// Ends the virtual machine if one runs, without waiting for it. [`AgentNode::restart`] starts
    /// another one.
    ///
    /// # Errors
    ///
    /// If the node has not been ready yet, because the start of its machine waits for that.
    fn power_off(&self, why: &'static str) -> anyhow::Result<()>;

    /// Stops the virtual machine's processors, or lets them continue.
    ///
    /// # Errors
    ///
    /// If there is none.
    fn hold(&self, on: bool) -> anyhow::Result<()>;

    /// Ends the virtual machine permanently, without waiting for it.
    fn stop(&self);
}

/// The state of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// The state, as one word.
    pub state: &'static str,
    /// The monitor of its virtual machines.
    pub vmm: &'static str,
    /// The process of its monitor, if that is a separate process.
    pub pid: Option<u32>,
    /// The time for which it has been in this state.
    pub since: Duration,
}

/// Starts the nodes of a plan that have an agent.
pub trait LinuxBackend: Sync {
    /// Returns the files that they boot over the torus.
    fn boot_files(&self, plan: &Plan) -> LinuxFiles<'_>;

    /// Starts and registers the nodes, and waits until all are ready. Dropping the result ends
    /// them.
    ///
    /// # Errors
    ///
    /// If a node does not come up, or the start was cancelled. All of them have ended then.
    fn start(
        &self,
        machine: &AnyMachine,
        plan: &Plan,
        events: &EventSender,
    ) -> anyhow::Result<Box<dyn Send>>;
}
