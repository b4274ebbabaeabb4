// SPDX-License-Identifier: GPL-2.0

//! Frames of the stack's that are to be sent.

use core::ops::Range;

use tofu_ipotofu::neighbor::{Destination, LocalNode};
use tofu_ipotofu::wire::Sum;
use tofu_ipotofu::Outgoing;

use crate::netdev::frame::read;
use crate::packets::Sender;
use crate::shim::{self, SkBuff};

/// What has become of a frame of the stack's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It was sent, or copied.
    Sent,
    /// It is to be fetched from where it is.
    Kept,
    /// It could not be sent.
    Dropped,
}

impl Fate {
    pub(super) const fn of(sent: bool) -> Self {
        match sent {
            true => Self::Sent,
            false => Self::Dropped,
        }
    }
}

/// A frame of the stack's.
#[derive(Clone, Copy)]
pub(super) struct Skb {
    pub(super) raw: *const SkBuff,
    pub(super) len: usize,
}

impl Skb {
    pub(super) fn new(raw: *const SkBuff) -> Self {
        // SAFETY: the caller has the frame.
        let len = unsafe { shim::tofu_shim_skb_len(raw) } as usize;
        Self { raw, len }
    }

    /// Where it goes.
    pub(super) fn destination(&self, node: &LocalNode) -> Destination {
        node.destination(self.len, |mac| read(self.raw, 0, mac))
    }
}

impl Outgoing<Sender> for Skb {
    fn size(&self) -> usize {
        self.len
    }

    fn read(&self, at: usize, to: &mut [u8]) -> bool {
        read(self.raw, at, to)
    }

    fn copy(
        &self,
        part: Range<usize>,
        queue: &mut Sender,
        (buffer, to): (&u16, usize),
        sum: Option<&mut Sum>,
    ) -> bool {
        let payload = queue.payload(*buffer);
        let Some(place) = payload.and_then(|all| all.get_mut(to..to + part.len())) else {
            return false;
        };
        let copied = read(self.raw, part.start, place);
        if let Some(sum) = sum {
            sum.add(place);
        }
        copied
    }
}
