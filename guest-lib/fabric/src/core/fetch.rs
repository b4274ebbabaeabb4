//! Messages that are being read from their senders.

use super::matching::{Envelope, Place};

/// A message that is being read.
#[derive(Debug)]
pub(super) struct Fetch<M> {
    pub(super) envelope: Envelope,
    pub(super) place: Place<M>,
    /// Memory of this endpoint, if that of the receive cannot be registered.
    pub(super) staged: Option<M>,
    /// The device's address of the message, and its sender's number for it.
    pub(super) remote: u64,
    pub(super) id: u64,
    pub(super) local: u64,
    pub(super) length: usize,
    /// Bytes that the device was asked for.
    pub(super) asked: usize,
    /// Gets that have not ended.
    pub(super) pending: usize,
    pub(super) failed: bool,
}
