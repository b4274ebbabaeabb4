//! Messages that are being read from their senders.

use super::matching::{Envelope, Place};
use super::regions::Lease;
use super::transport::{Address, Memory, Spot};

/// The memory for a message that is being read.
#[derive(Debug)]
pub(super) enum Target<M> {
    /// That of a receive.
    Receive(Envelope, Place<M>),
    /// A region, which a peer writes to, with data for the completion.
    Region {
        /// The part of it.
        memory: M,
        /// Its key.
        key: u64,
        /// The data.
        data: Option<u64>,
        /// Held as long as this.
        _lease: Lease,
    },
    /// That of a read of a peer's region, by its number.
    Read(M, u64),
}

impl<M: Memory> Target<M> {
    pub(super) fn memory(&self) -> &M {
        match self {
            Self::Receive(_, place) => &place.memory,
            Self::Region { memory, .. } | Self::Read(memory, _) => memory,
        }
    }

    pub(super) fn memory_mut(&mut self) -> &mut M {
        match self {
            Self::Receive(_, place) => &mut place.memory,
            Self::Region { memory, .. } | Self::Read(memory, _) => memory,
        }
    }
}

/// A message that is being read.
#[derive(Debug)]
pub(super) struct Fetch<M> {
    pub(super) source: Address,
    pub(super) target: Target<M>,
    /// Memory of this endpoint, if that of the target cannot be registered.
    pub(super) staged: Option<M>,
    /// The places of the message by rail, and its sender's number for it.
    pub(super) remote: Vec<Spot>,
    pub(super) id: u64,
    pub(super) local: Vec<Spot>,
    pub(super) length: usize,
    /// Bytes of each Get but the last.
    pub(super) piece: usize,
    /// Bytes requested from the device.
    pub(super) asked: usize,
    /// Gets that have not ended.
    pub(super) pending: usize,
    pub(super) failed: bool,
}
