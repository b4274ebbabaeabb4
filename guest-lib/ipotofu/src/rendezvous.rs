//! Rendezvous: a long frame is not sent in packets. Its origin sends the frame's address, and the
//! receiver reads it from there, by one Get instead of dozens of packets. Or the frame is split:
//! its head goes with the request, and only the rest is read, at which the receiver need not look.

mod fetches;
mod message;
mod requests;

pub use fetches::{Fetches, Rendezvous};
pub use message::{Message, MessageBody, Request, is_from_origin, is_message};
pub use requests::{Requests, Room};

/// Frames of fewer bytes go in packets: a few of these cost less than a Get.
pub const MIN_FRAME: usize = 8 << 10;
/// Bytes of the longest head of a frame that a request may have with it: all headers, and what is
/// in front of the first byte that can be fetched.
pub const HEAD_MAX: usize = 512;
/// Bytes of the longest rest of such a frame.
pub const REST_MAX: usize = 1 << 18;
/// Bytes of a slot, which has room for a frame.
pub const SLOT: usize = 1 << 16;
/// Slots for frames of this node's, and as many for frames of others.
pub const SLOTS: usize = 32;
/// Requests that one node may have to answer at a time.
const PER_NODE: usize = 24;
/// The group of control queues that may fetch from each other, as in their register GPID. Ours:
/// "IP".
pub const GROUP: u64 = 0x4950;
/// How long a packet waits at most for frames of the same origin that were requested to be fetched
/// before, in nanoseconds: TCP takes what overtakes others for a sign of loss.
pub const OVERTAKE_NS: u64 = 2_000_000;
