//! Counters of a link.

use crate::VCS;

/// The counters of one end of a link as a sender and as a receiver.
///
/// A [`Sender`](crate::Sender) and a [`Receiver`](crate::Receiver) count their own events. Their
/// driver counts the rest: bytes, waiting, and frames dropped because their link is down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames sent, including those resent.
    pub send_frames: u64,
    /// Frames resent.
    pub replayed: u64,
    /// Frames that were marked as bad while they were sent.
    pub send_nullified: u64,
    /// DLLPs sent.
    pub send_dllp: u64,
    /// Picoseconds for which frames of a virtual channel waited for credit alone.
    pub zero_credit_ps: [u64; VCS],
    /// Acknowledgement timeouts.
    pub ack_timeouts: u64,
    /// Times that credit was requested.
    pub credit_timeouts: u64,
    /// Times that the link went down because nothing got through.
    pub failures: u64,
    /// Frames accepted.
    pub recv_frames: u64,
    /// DLLPs received.
    pub recv_dllp: u64,
    /// Frames received that were marked as bad.
    pub recv_nullified: u64,
    /// Frames with a wrong link CRC.
    pub lcrc_errors: u64,
    /// Frames dropped because one before them is missing.
    pub out_of_order: u64,
    /// Frames dropped because they had been accepted before.
    pub duplicates: u64,
    /// Slices with a wrong check sequence, by lane (TofuD).
    pub slice_fcs_errors: [u64; 2],
}
