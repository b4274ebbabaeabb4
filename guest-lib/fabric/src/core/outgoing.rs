//! Messages that wait for slots of a peer.

use super::SLOT;
use super::header::{HEADER, Header};

/// Bytes of a message in a slot.
pub(super) const PART: usize = SLOT - HEADER;

/// A message for slots.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) header: Header,
    /// The message, if it travels through slots.
    pub(super) data: Vec<u8>,
    /// The most bytes in a slot.
    pub(super) part: usize,
    /// Bytes that have been sent.
    pub(super) sent: usize,
    /// The send that ends with it.
    pub(super) send: Option<u64>,
}

impl Outgoing {
    /// Creates it in as few slots as possible.
    pub(super) const fn new(header: Header, data: Vec<u8>, send: Option<u64>) -> Self {
        Self { header, data, part: PART, sent: 0, send }
    }

    /// Divides it among rails.
    pub(super) fn divided(self, rails: usize) -> Self {
        let part = self.data.len().div_ceil(rails.max(1)).clamp(1, PART);
        Self { part, ..self }
    }
}
