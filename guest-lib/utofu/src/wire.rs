//! Fields of descriptors and notices that this library defines.
#![allow(unreachable_pub)] // The macro makes everything public.

use tofu_abi::bitfield;

bitfield! {
    /// The edata field of a descriptor. Its upper byte belongs to the program, as on real systems.
    /// The content of the lower byte is ours.
    pub struct Edata {
        /// Extra value of the sending VCQ.
        sender / with_sender: u8 @ 0..=3,
        /// The lower three bits of the target VCQ's extra value.
        target / with_target: u8 @ 4..=6,
        /// True if the sender wants a notice.
        local / with_local: bool @ 7..=7,
        /// The program's own data.
        user / with_user: u8 @ 8..=15,
    }
}

bitfield! {
    /// Bits of a prepared descriptor's first word that are not passed to the device.
    pub struct Prepared {
        /// True if the completion is to be reported.
        tcq_notice / with_tcq_notice: bool @ 1..=1,
        /// True if the command waits for the next one.
        delay / with_delay: bool @ 2..=2,
        /// True if the target VCQ has a component ID.
        component / with_component: bool @ 3..=3,
    }
}

/// The key of the notices of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// An extra value that no VCQ of the queue has.
    pub(crate) sender: u8,
    /// The program's byte, which is not used otherwise.
    pub(crate) number: u8,
}
