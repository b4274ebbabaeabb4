//! The driving of a machine's devices by a thread.

use std::sync::Arc;

use tofu_fabric::{Progress, Ps, ShardId};

use crate::cables::{Incoming, Refused};

use crate::device::Device;
use crate::shared::Shared;
use crate::trace::Recorder;

/// A kind of device that engines can drive.
pub trait Drive: Device {
    /// The time for which an engine polls a page after it last had something new, in nanoseconds.
    const POLLED_NS: u64;

    /// A thread's view of a machine.
    type View<'a>: View<Self>;

    /// A view of this machine.
    fn view(shared: &Shared<Self>) -> Self::View<'_>;

    /// Notes that a node may send requests again, to anything.
    fn room(node: &Self::Node);

    /// The recorder of traces of commands, if the devices have commands.
    fn recorder(extra: &Self::Extra) -> Option<&Arc<Recorder>> {
        let _ = extra;
        None
    }

    /// Turns a device's reports about its commands on or off.
    fn set_traced(node: &Self::Node, on: bool) {
        let _ = (node, on);
    }

    /// Notes that there is work, in the given life of a queue or, if none is given, in the current
    /// one. Returns whether the caller must enqueue or do it.
    fn rang(node: &Self::Node, work: Self::Work, life: Option<u64>) -> bool;

    /// True if a page has something new. It is then taken.
    fn poll(node: &Self::Node, page: Self::Work) -> bool;

    /// Stops polling a page until the guest's next write to it, which will notify the engine.
    /// Returns false if that is impossible, or the page already has something new.
    fn doze(node: &Self::Node, page: Self::Work) -> bool;

    /// Starts or resumes polling a page. Its guest need not notify the engine.
    fn watch(node: &Self::Node, page: Self::Work) {
        let _ = (node, page);
    }

    /// No engine polls a page any more.
    fn unwatch(node: &Self::Node, page: Self::Work) {
        let _ = (node, page);
    }
}

/// A thread's view of a machine, in which it does the work of nodes.
pub trait View<D: Device> {
    /// The machine's time when it was last read, in nanoseconds.
    fn now_ns(&self) -> u64;

    /// Does a piece of work, which must be marked as enqueued, for one turn. Returns whether it
    /// must be enqueued for another.
    fn run(&mut self, node: &D::Node, work: D::Work) -> bool;

    /// Does all work that is due at a node. Returns its next deadline.
    fn expire(&mut self, node: &D::Node) -> u64;

    /// Releases packets that a fault holds back.
    fn release(&mut self);

    /// Handles a message that has come over a cable.
    ///
    /// # Errors
    ///
    /// [`Refused`] if no honest shard sends it.
    fn take(&mut self, from: ShardId, incoming: Incoming<D::Body>) -> Result<(), Refused>;

    /// Runs modelled links until `limit`, in picoseconds, or for a while. Without a limit it runs
    /// them up to the next event. Then it handles arrivals.
    fn turn(&mut self, limit: Option<Ps>) -> Option<Progress>;
}
