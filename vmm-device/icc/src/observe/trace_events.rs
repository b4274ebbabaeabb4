//! Steps of commands, which the device reports to its host.
//!
//! The device has no clock and keeps no trace. While a trace runs, it reports the steps of each
//! command to its [`Host`](crate::Host), which notes the time of each. Without a trace, a step
//! costs one relaxed load.

use tofu_abi::desc::{Header1, Header2};
use tofu_abi::{Coords, CqId, Rcode, StagOffset, TniId};

use crate::tlp::Tag;

/// A step of a command.
///
/// Node, interface and [`Tag`] identify a command that sends something from its begin to its end.
/// No two commands in flight at the same time share them.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A queue of this node has read a descriptor that sends something, and is about to send.
    Begun {
        /// Interface of the queue.
        tni: TniId,
        /// The command.
        tag: Tag,
        /// Slot of its descriptor in the transmit order queue.
        slot: u32,
        /// First header: command, target, path.
        header1: Header1,
        /// Second header: flags.
        header2: Header2,
        /// Address at the target.
        remote: StagOffset,
        /// Address at this node.
        local: StagOffset,
        /// Bytes of the message.
        length: u32,
    },
    /// A queue of this node has read a descriptor that sends nothing, or was refused; it has ended.
    AtOnce {
        /// Interface of the queue.
        tni: TniId,
        /// The queue.
        cq: CqId,
        /// Slot of its descriptor in the transmit order queue.
        slot: u32,
        /// First header.
        header1: Header1,
        /// Its end.
        rcode: Rcode,
    },
    /// A request has been served at this node, its target, or a frame was received. A frame may
    /// come after its command has ended.
    Served {
        /// The [`Host::stamp`](crate::Host::stamp) of its arrival; 0 for short ones.
        since: u64,
        /// Interface that it came to.
        tni: TniId,
        /// The sender.
        from: Coords,
        /// Interface that sent it.
        from_tni: TniId,
        /// The sender's command.
        tag: Tag,
        /// Offset of the request in its message, in bytes.
        position: u32,
        /// Bytes that were read or written; 0 for a frame that was discarded.
        done: u32,
        /// Its end.
        rcode: Rcode,
    },
    /// An answer to a command of this node has come, and it is not the last.
    Answered {
        /// Interface of the queue.
        tni: TniId,
        /// The command.
        tag: Tag,
        /// Offset of the answered part in the message, in bytes.
        position: u32,
        /// Bytes of it that were read or written.
        done: u32,
        /// The result of that part.
        rcode: Rcode,
    },
    /// A command of this node has ended: its TCQ entry and notice are written, or held back by a
    /// coalescing timer.
    Ended {
        /// Interface of the queue.
        tni: TniId,
        /// The command.
        tag: Tag,
        /// The result in its notice.
        rcode: Rcode,
        /// The result in its TCQ entry.
        sent: Rcode,
    },
}

/// Which command a reason is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Subject {
    /// The node of its queue.
    pub node: Coords,
    /// Interface of its queue.
    pub tni: TniId,
    /// The queue.
    pub cq: CqId,
    /// Which of its commands.
    pub which: Which,
}

/// Which command of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Which {
    /// One that was begun: index and generation of its [`Tag`].
    Tag(u16, u32),
    /// One that ended before it was begun, by its place in the transmit order queue.
    Slot(u32),
}
