//! The data link layer of the three generations of Tofu, as pure state machines.
//!
//! A link has two directions, each with a [`Sender`] at one end and a [`Receiver`] at the other.
//! The receiver replies in the opposite direction, by [`Dllp`]s. The caller passes each event with
//! its time, and gets back what to do: there is no clock, no thread and no shared memory. Time is
//! in picoseconds ([`Ps`]) from any origin.
//!
//! [`Parameters`] describe the links of a generation.
//!
//! A link without errors needs no events for acknowledgements and credit: see [`Sender`].
//!
//! Each item names the source of its facts: *IEEE Micro 2012* is Ajima et al., "The Tofu
//! Interconnect", IEEE Micro 32(1), 2012; *TofuD paper* is Ajima et al., "The Tofu Interconnect D",
//! IEEE CLUSTER 2018; *ours* marks what neither settles.
//!
//! # The two ends
//!
//! ```text
//!         Sender                                        Receiver
//!   next      number of the next frame            expected   number of the next frame
//!   oldest    first one not acknowledged          freed      rows that left each queue, in all
//!   cursor    next frame to go on the wire        due        DLLPs to send
//!   room      rows free for replay
//!   used, limit   rows for each VC                      frame(n):
//!                                                   n = expected, good  -> take in, ACK due
//!   send       -- frame n ------------------------>   n = expected, marked as bad -> drop
//!                                                   n < expected        -> drop, ACK due
//!   dllp      <- ACK(n) --------------------------    wrong, or n > expected -> drop, NACK due
//!   release all up to n
//!             <- NACK(n) -------------------------  freed(vc):
//!   release all before n; resend from n               UpdateFC due
//!             <- UpdateFC(vc, total) -------------
//!   limit = total + size of the queue
//!   timeout    -- Poll ---------------------------> all DLLPs due
//! ```
//!
//! - Frames have sequence numbers (IEEE Micro), of 12 bits; up to 64 may be unacknowledged (ours).
//! - A frame is sent when the replay buffer has room for it and its virtual channel has credit for
//!   all of it, both counted in rows of the data path *(ours: the unit)*.
//! - ACK and NACK name a frame and cover all frames before it. UpdateFC carries a running total
//!   rather than an increment (ours). Each DLLP thus supersedes all earlier ones of its kind, and
//!   any of them may be lost.
//! - A gap is answered with one NACK, and with another if the frame has not arrived 2 us later. A
//!   sender that receives no acknowledgement for 4 us resends all unacknowledged frames. One that
//!   has had no credit for 4 us asks for it (*Poll*), because a lost UpdateFC might never be
//!   repeated *(all ours)*.
//! - A DLLP travels in the slot that each frame has for one, or in a frame without a TLP (ours). A
//!   NACK goes first, then ACK and UpdateFCs alternate.
//! - A switch forwards a frame before it has received all of it. If the frame turns out to be bad,
//!   the rest is marked as bad (IEEE Micro). The next receiver drops it without a NACK, and the
//!   sender takes back its number, room and credit (ours). The link on which the error occurred
//!   resends it.
//!
//! On a link without errors the times of acknowledgements and credit are known in advance, and the
//! model needs no event and no DLLP for them. A receiver takes over when errors begin or a client
//! captures frames, until errors are off, the last 64 slices of each lane were correct, and nothing
//! is on the wire.
#![no_std]
#![forbid(unsafe_code)]

mod counters;
mod dllp;
mod lanes;
mod parameters;
mod receiver;
mod sender;
mod slice;

pub use counters::Counters;
pub use dllp::{Dllp, Seq};
pub use lanes::{ErrorRate, Lanes, MAX_LANES};
pub use parameters::{Parameters, Ps, Rows, Slicing};
pub use receiver::{Check, Receiver, Verdict};
pub use sender::{Effect, MOST_ATTEMPTS, Reason, Sender, Timeout, WINDOW};
pub use slice::{Fault, LinkFrame, MAX_SLICE, Slice};

/// Virtual channels of a link (IEEE Micro 2012).
pub const VCS: usize = 4;

/// A time that never comes.
pub const NEVER: Ps = Ps::MAX;
