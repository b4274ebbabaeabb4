//! What happened on a link.

use crate::VCS;

/// What one end of a link counted, of what it sent and of what it received.
///
/// A [`Sender`](crate::Sender) and a [`Receiver`](crate::Receiver) count what they see, and whoever
/// drives them what only he sees: bytes, waiting, frames that are dropped as their link is down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames sent, those that were sent again among them.
    pub send_frames: u64,
    /// Frames sent again.
    pub replayed: u64,
    /// Frames that were marked as bad on the way out.
    pub send_nullified: u64,
    /// DLLPs sent.
    pub send_dllp: u64,
    /// Picoseconds in which frames of a virtual channel waited for credit alone.
    pub zero_credit_ps: [u64; VCS],
    /// Times that no acknowledgement came.
    pub ack_timeouts: u64,
    /// Times that credit was asked for.
    pub credit_timeouts: u64,
    /// Times that the link went down as nothing got through.
    pub failures: u64,
    /// Frames taken in.
    pub recv_frames: u64,
    /// DLLPs received.
    pub recv_dllp: u64,
    /// Frames received that were marked as bad.
    pub recv_nullified: u64,
    /// Frames with a wrong link CRC.
    pub lcrc_errors: u64,
    /// Frames dropped because one before them is missing.
    pub out_of_order: u64,
    /// Frames dropped because they had been taken in before.
    pub duplicates: u64,
    /// Slices with a wrong check sequence, by lane (TofuD).
    pub slice_fcs_errors: [u64; 2],
}
