//! The seam between the `up` command and the machine.
//!
//! `up` makes a [`Plan`], starts it here, and sees everything else as [`Event`]s.
//! Policy (timeouts, Ctrl-C, what counts as success, output) is `up`'s; this side
//! only runs VMs.

use std::sync::mpsc::Sender;

use tofu_fabric::NodeId;

use crate::plan::Plan;

/// Something that happened to a machine. Events of one node arrive in order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), expect(dead_code, reason = "for the machine that runner.rs will start"))]
pub(crate) enum Event {
    /// The node's guest has been loaded and its vCPU runs.
    Booted(NodeId),
    /// The guest printed a line, without its line end.
    Line(NodeId, String),
    /// The guest has ended; the last event of the node.
    Ended(NodeId, Outcome),
    /// This process was sent SIGINT (2) or SIGTERM (15). Not sent by machines.
    Signal(i32),
}

/// How a guest ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), expect(dead_code, reason = "for the machine that runner.rs will start"))]
pub(crate) enum Outcome {
    /// It exited with this code.
    Exited(u32),
    /// It reset its machine.
    Reset,
    /// It could not go on: what happened and the registers, in one line.
    Fault(String),
    /// [`Running::stop`] ended it.
    Stopped,
}

/// A machine that runs. Dropping it stops it, joins its threads and frees
/// everything.
pub(crate) trait Running {
    /// The registers of a node's vCPU in one line, for a report about a guest that
    /// hangs. `None` if it has none or does not answer.
    fn registers(&self, node: NodeId) -> Option<String>;

    /// Ends all guests that still run and waits for them, for a bounded time. Their
    /// [`Event::Ended`] has been sent on return.
    fn stop(&mut self);
}

/// What can start machines; tests have one of their own.
pub(crate) trait Backend {
    /// Starts all VMs of `plan` and returns while they run. `events` may be cloned
    /// and used from any thread.
    ///
    /// # Errors
    /// One line on what this host lacks or what is wrong with a guest, and how to
    /// mend it. Nothing runs then.
    fn start(&self, plan: &Plan, events: Sender<Event>) -> anyhow::Result<Box<dyn Running>>;
}

/// The machines of this build.
pub(crate) struct Machines;

impl Backend for Machines {
    fn start(&self, _plan: &Plan, _events: Sender<Event>) -> anyhow::Result<Box<dyn Running>> {
        anyhow::bail!("this build cannot run machines yet; `tofu topo` and `tofu doctor` work")
    }
}
