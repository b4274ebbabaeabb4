//! Messages that wait for slots of a peer.

use super::header::Header;

/// A message for slots.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) header: Header,
    /// The message, if it travels through slots.
    pub(super) data: Vec<u8>,
    /// Bytes that have been sent.
    pub(super) sent: usize,
    /// The send that ends with it.
    pub(super) send: Option<u64>,
}
