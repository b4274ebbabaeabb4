// SPDX-License-Identifier: GPL-2.0

//! Frames of the stack's that are to be sent.

use tofu_abi::Coords;
use tofu_ipotofu::addr::Mac;
use tofu_ipotofu::neighbor::LocalNode;
use tofu_ipotofu::offload::METADATA_SIZE;
use tofu_ipotofu::wire::{Repr, ETHERNET_HEADER};

use crate::netdev::frame::read;
use crate::shim::{self, SkBuff};

/// Bytes of the longest frame that may go behind its metadata.
pub(super) const MAX_OFFLOADED: usize = u16::MAX as usize - METADATA_SIZE;

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
    /// Copies a fragment to the beginning of a buffer.
    pub(super) fn fragment<'a>(&self, repr: &Repr, to: &'a mut [u8]) -> Option<&'a [u8]> {
        let body = to.get_mut(..repr.length.into())?;
        read(self.raw, repr.offset.into(), body).then_some(&*body)
    }
}

/// The node that a frame is for, if it is for one; and whether it is a frame at all.
pub(super) fn target(
    node: &LocalNode,
    skb: *const SkBuff,
    mac: &mut Mac,
) -> (Option<Coords>, bool) {
    // SAFETY: the caller has the frame.
    let len = unsafe { shim::tofu_shim_skb_len(skb) } as usize;
    let is_frame = len >= ETHERNET_HEADER && read(skb, 0, mac);
    (node.other(*mac).filter(|_| is_frame), is_frame)
}
