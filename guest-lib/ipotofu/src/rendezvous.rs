//! Rendezvous: a long frame is not sent in packets. Its origin sends the frame's address, and the
//! receiver reads it from there, by one Get instead of dozens of packets. Or the frame is split:
//! the request carries its head, and the receiver reads only the rest, which it need not parse.

mod fetches;
mod message;
mod requests;

pub use fetches::{Fetches, Rendezvous};
pub use message::{Message, MessageBody, Request, is_from_origin, is_message};
pub use requests::{Requests, Room};

/// Shorter frames are sent in packets: a few packets cost less than a Get. In bytes.
pub const MIN_FRAME: usize = 8 << 10;
/// Maximum size of the head of a frame in a request, in bytes: all headers, and the bytes before
/// the first one that can be fetched.
pub const HEAD_MAX: usize = 512;
/// Maximum size of the rest of such a frame, in bytes.
pub const REST_MAX: usize = 1 << 18;
/// Size of a slot for a frame of this node, in bytes.
pub const SLOT: usize = 1 << 16;
/// Number of slots for this node's frames, and of slots for frames of others.
pub const SLOTS: usize = 32;
/// The most unanswered requests to one node.
const PER_NODE: usize = 24;
/// The longest time that a packet waits for frames of the same origin that are being fetched, in
/// nanoseconds. It waits because TCP takes reordering for a sign of loss. The time is shorter than
/// TCP's minimum retransmission timeout (200 ms), and longer than the delay of a Get on a busy
/// host.
const OVERTAKE_NS: u64 = 100_000_000;
