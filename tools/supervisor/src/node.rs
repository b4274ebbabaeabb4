//! The seam to nodes that this crate does not run itself: those with Linux, in `tofu-linux-nodes`.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use tofu_abi::Coords;
use tofu_fabric::NodeId;
use tofu_image::Arch;

use crate::agent::Agent;
use crate::console::Console;
use crate::event::Event;
use crate::machine::AnyMachine;
use crate::netboot::LinuxFiles;
use crate::plan::Plan;

/// A node whose guest has an agent, through which programs are run there, and a console.
pub trait AgentNode: Send + Sync {
    /// Its number in the machine.
    fn id(&self) -> NodeId;

    /// Its coordinates.
    fn at(&self) -> Coords;

    /// What its processors are.
    fn arch(&self) -> Arch;

    /// What it is doing.
    fn status(&self) -> NodeStatus;

    /// The way to its guest's agent.
    fn agent(&self) -> &Arc<Agent>;

    /// Its console.
    fn console(&self) -> &Console;

    /// Ends the virtual machine if one runs, and starts one.
    ///
    /// # Errors
    ///
    /// If the machine is going down.
    fn restart(&self) -> anyhow::Result<()>;

    /// Ends the virtual machine if one runs. Does not wait for it; [`AgentNode::restart`] starts
    /// another one.
    ///
    /// # Errors
    ///
    /// If the node has not been ready yet: the start of its machine waits for that.
    fn power_off(&self, why: &'static str) -> anyhow::Result<()>;

    /// Stops the virtual machine's processors, or lets them continue.
    ///
    /// # Errors
    ///
    /// If there is none.
    fn hold(&self, on: bool) -> anyhow::Result<()>;

    /// Ends the virtual machine for good. Does not wait for it.
    fn stop(&self);
}

/// What a node is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// In a word.
    pub state: &'static str,
    /// What runs its virtual machines.
    pub vmm: &'static str,
    /// The process of its monitor, if it has one of its own.
    pub pid: Option<u32>,
    /// For how long it has been in this state.
    pub since: Duration,
}

/// Starts the nodes of a plan that have an agent.
pub trait LinuxBackend: Sync {
    /// What they boot over the torus.
    fn boot_files(&self, plan: &Plan) -> LinuxFiles<'_>;

    /// Starts them, registers them, and waits until all are ready. Dropping the result ends them.
    ///
    /// # Errors
    ///
    /// If one does not come up, or the start was cancelled. All have ended then.
    fn start(
        &self,
        machine: &AnyMachine,
        plan: &Plan,
        events: &Sender<Event>,
    ) -> anyhow::Result<Box<dyn Send>>;
}
