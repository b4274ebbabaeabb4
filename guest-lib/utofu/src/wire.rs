//! Fields of descriptors and notices that are this library's own.
#![allow(unreachable_pub)] // The macro makes everything public.

use tofu_abi::bitfield;

bitfield! {
    /// The edata field of a descriptor. A program has its upper byte, as on real systems. The
    /// content of the lower byte is ours.
    pub struct Edata {
        /// Extra value of the VCQ that sends.
        sender / with_sender: u8 @ 0..=3,
        /// The lower three bits of the extra value of the VCQ that it is sent to.
        target / with_target: u8 @ 4..=6,
        /// The sender wants a notice.
        local / with_local: bool @ 7..=7,
        /// The program's.
        user / with_user: u8 @ 8..=15,
    }
}

bitfield! {
    /// Bits of a prepared descriptor's first word that the device never sees.
    pub struct Prepared {
        /// The completion is to be reported.
        tcq_notice / with_tcq_notice: bool @ 1..=1,
        /// The command is to wait for the next one.
        delay / with_delay: bool @ 2..=2,
        /// The VCQ that it is for has a component ID.
        component / with_component: bool @ 3..=3,
    }
}

/// How the notices of parts are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// An extra value that no VCQ of the queue has.
    pub(crate) sender: u8,
    /// The program's byte, which nobody else sees.
    pub(crate) number: u8,
}
