//! The events of a running machine.

use tofu_control::protocol::{EventKind, StandsInfo};
use tofu_fabric::{NodeId, ShardId};
use tofu_netboot::wire::FileRole;
use tofu_sync::queue::{self, Item, Receiver, Sender, WhenFull};
use tofu_ui::signals;

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
    /// Time stands still in a machine in modelled time.
    TimeStands(StandsInfo),
    /// The network or a device has changed in a machine in modelled time.
    Changed(Option<NodeId>, EventKind),
    /// `tofu down` wants the machine to end.
    Down,
    /// Another shard of the machine has gone, for this reason.
    ShardWent(ShardId, String),
    /// Another shard has come back, without any state.
    ShardCame(ShardId),
    /// All guests of another shard have ended, and this many of them have failed.
    ShardEnded(ShardId, u32),
}

/// The end of a guest.
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

/// The bytes of events that wait for the thread that runs a machine.
const MOST_WAITING: usize = 1 << 20;

/// Creates the queue of a machine's events.
pub fn events() -> (EventSender, Receiver<Event>) {
    let (sender, receiver) = queue::queue(MOST_WAITING, WhenFull::Wait);
    (EventSender(sender), receiver)
}

/// Sends events to the thread that runs a machine.
#[derive(Clone)]
pub struct EventSender(Sender<Event>);

impl EventSender {
    /// Sends an event. Output of a guest waits for room, so the reader of the output holds up the
    /// guest. Progress without a reader is dropped. All other events arrive.
    pub fn send(&self, event: Event) {
        // The receiver is gone only when the run is over.
        let _ = match event {
            Event::Line(..) | Event::Frame(..) => self.0.send(event),
            Event::Netboot(..) => self.0.try_send(event),
            event => self.0.force(event),
        };
    }

    /// Sends the first SIGINT or SIGTERM of this process as an event, while the result lives.
    ///
    /// # Errors
    ///
    /// As of [`signals::forward`].
    pub fn forward_signals(&self) -> anyhow::Result<signals::Forwarding> {
        let sender = self.clone();
        signals::forward(signals::CLEANING, move |signal| sender.send(Event::Signal(signal)))
    }
}

impl Item for Event {
    fn bytes(&self) -> usize {
        match self {
            Self::Line(_, text) | Self::Died(_, text) | Self::ShardWent(_, text) => text.len(),
            Self::Netboot(_, BootStage::Failed(text)) => text.len(),
            Self::Ended(_, Outcome::Fault(text)) => text.len(),
            Self::Frame(_, frame) => frame.bytes(),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_output_waits_for_its_reader() {
        let (sender, events) = events();
        let line = || Event::Line(NodeId(0), "x".repeat(1000));
        // There is no reader, so output is refused instead of waiting.
        events.release();
        (0..10_000).for_each(|_| sender.send(line()));
        (0..1000).for_each(|_| sender.send(Event::Netboot(NodeId(0), BootStage::Begun)));
        sender.send(Event::Ended(NodeId(0), Outcome::Stopped));
        let waiting: Vec<_> = events.try_iter().collect();
        assert!(waiting.len() <= MOST_WAITING / 1000, "{}", waiting.len());
        assert_eq!(waiting.last(), Some(&Event::Ended(NodeId(0), Outcome::Stopped)));
    }
}
