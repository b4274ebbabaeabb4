//! State of the transmitting side of an enabled queue.

use tofu_abi::desc::{DESC_SIZE, Descriptor};
use tofu_abi::queue::RingIndex;
use tofu_inspect::inspect;

use crate::command::Message;
use crate::completions::Slot;
use crate::observe::format::{Maybe, Ring};
use crate::tlp::{Request, Tag};

/// A message that is being sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Active {
    pub(crate) tag: Tag,
    pub(crate) message: Message,
    pub(crate) sent: u32,
    /// Bytes sent on the wire so far, for the modelled time of what follows.
    pub(crate) wire: u32,
}

impl Active {
    /// A message of which nothing is sent yet.
    pub(crate) const fn new(tag: Tag, message: Message) -> Self {
        Self { tag, message, sent: 0, wire: 0 }
    }

    /// The request for the next `n` bytes, of a queue with this group process id.
    pub(crate) fn request(&self, gpid: u64, n: u32) -> Request {
        let message = &self.message;
        Request {
            tag: self.tag,
            gpid,
            header2: message.header2,
            sps: message.header1.sps(),
            remote: message.remote.advanced(self.sent.into()),
            local: message.local.advanced(self.sent.into()),
            position: self.sent,
            length: n,
            total: message.length,
            mtu: message.mtu,
        }
    }
}

inspect!(Active { tag, message as said, sent, wire });

/// The source of a queue's descriptors, and its work in progress.
#[derive(Clone, Debug)]
pub(crate) struct Transmit {
    /// Address of the transmit order queue.
    pub(crate) toq: u64,
    pub(crate) ring: RingIndex,
    pub(crate) active: Option<Active>,
    /// Second descriptor of a direct command whose first one was just taken.
    pub(crate) second: Option<Descriptor>,
    /// The network could be full when the turn began.
    pub(crate) narrow: bool,
    /// The network carried out transactions when the turn began.
    pub(crate) transacts: bool,
    /// It stopped for lack of room in the network, and has sent nothing since.
    pub(crate) waited: bool,
    /// Commands that the queue's table certainly has room for. Only the thread that runs the queue
    /// adds to the table; ends of commands, which are not counted here, make more room.
    pub(crate) room: usize,
}

inspect!(Transmit {
    toq as hex,
    ring as Ring,
    active,
    second as Maybe,
    narrow as skip,
    transacts as skip,
    waited,
    room as skip,
});

impl Transmit {
    pub(crate) const fn new(toq: u64, ring: RingIndex) -> Self {
        Self {
            toq,
            ring,
            active: None,
            second: None,
            narrow: true,
            transacts: false,
            waited: false,
            room: 0,
        }
    }

    pub(crate) fn slot(&self) -> Slot {
        Slot { index: self.ring.slot(), flip: self.ring.flip() }
    }

    /// Address of the next descriptor.
    pub(crate) fn entry(&self) -> u64 {
        self.toq.wrapping_add(u64::from(self.ring.slot()) * DESC_SIZE as u64)
    }
}
