//! Ends of operations.

use super::failure::Failure;
use super::transport::Address;

/// The kind of operation that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// A send.
    Send,
    /// A receive, or a look for a message.
    Receive,
    /// A read of a peer's region.
    Read,
    /// A write to a peer's region.
    Write,
    /// A change of numbers in a peer's region.
    Atomic,
    /// A change of numbers in a peer's region, which has returned the old ones.
    FetchAtomic,
    /// A peer's read of a region here.
    PeerRead,
    /// A peer's write to a region here.
    PeerWrite,
}

/// The end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The operation that has ended.
    pub finished: Finished,
    /// True for messages with tags.
    pub tagged: bool,
    /// The context that the program has given with the operation.
    pub context: usize,
    /// Bytes received, or of the message that a look has found.
    pub length: usize,
    /// The address of the message, if one was received.
    pub buffer: usize,
    /// The tag of the message.
    pub tag: u64,
    /// Data that came with the message.
    pub data: Option<u64>,
    /// The key of the region here that a peer has used.
    pub key: Option<u64>,
    /// The sender.
    pub source: Option<Address>,
    /// The memory for several messages will take no more.
    pub released: bool,
    /// False if the program wants to know only if it fails.
    pub wanted: bool,
    /// The reason, if it has failed.
    pub failure: Option<Failure>,
}

impl Completion {
    /// The end of an operation that was successful.
    pub(super) const fn new(finished: Finished, tagged: bool, context: usize) -> Self {
        Self {
            finished,
            tagged,
            context,
            length: 0,
            buffer: 0,
            tag: 0,
            data: None,
            key: None,
            source: None,
            released: false,
            wanted: true,
            failure: None,
        }
    }

    /// The same operation, failed.
    pub(super) const fn failed(mut self, failure: Failure) -> Self {
        self.failure = Some(failure);
        self
    }
}
