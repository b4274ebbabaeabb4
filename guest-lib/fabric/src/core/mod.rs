//! Messages between endpoints, independent of libfabric.
//!
//! An [`Endpoint`] sends over a [`Transport`]: Puts into slots of its peers, one-byte signals, and
//! Gets. Each pair of endpoints that communicates has a ring of [`SLOTS`] slots in each direction.
//! The receiver assigns a ring when a peer introduces itself by a signal, so the number of senders
//! is limited only by memory. A sender counts the free slots of its ring (credits), and queues
//! messages for which there is none. The receiver empties slots whenever it polls, even if no
//! receive is posted, so a slot never waits for the program. Credits return by signals, which need
//! no slot. So rings neither overflow nor deadlock.
//!
//! Messages of up to [`EAGER`] bytes travel through slots. For longer ones the sender registers its
//! memory and sends its addresses; the receiver reads it by Gets when a receive matches, and
//! answers.
//!
//! Messages of at least [`DIVIDED`] bytes are divided among the rails of the peer; the transport
//! reports their number. Messages in slots take more slots, and long ones more Gets.
//!
//! Reads, writes and atomic operations on [`Regions`] are messages of other kinds, which the
//! endpoint of the region serves as it makes progress: so an access sees the region as it is now,
//! never one that was registered before, writes and numbers of all types are changed by one
//! processor only, and all come in the order in which they were sent. What is long is read by Gets
//! here as well. Each ends with an answer.
//!
//! A registration is for one message only: one that is kept for the next message would be wrong if
//! the program unmaps the memory meanwhile. An endpoint that gets the queue, and so the address, of
//! one that has been closed is recognized by its first notice. If the answer to a Put into a slot
//! is lost, it is not known if the slot has been read and filled again since, so the Put must not
//! be repeated: parts in slots go by the default path.
//!
//! With `FI_DELIVERY_COMPLETE` a send ends when the receiver's endpoint has taken the message out
//! of its slots; otherwise when it is in the receiver's memory.

mod atomics;
mod commands;
mod completion;
mod endpoint;
mod failure;
mod fetch;
mod header;
mod inbound;
mod matching;
mod outbound;
mod outgoing;
mod peers;
mod regions;
mod remote;
mod rendezvous;
#[cfg(test)]
mod tests;
mod transport;

pub use atomics::{Atomic, Number, Operator};
pub use completion::{Completion, Finished};
pub use endpoint::{Endpoint, Send};
pub use failure::Failure;
pub use matching::{Claim, Receive};
pub use regions::{Access, Lease, Regions};
pub use remote::{Action, Remote};
pub use transport::{Address, Busy, Event, Memory, Place, Signal, Spot, Transport, Way};

/// Bytes of a slot.
pub const SLOT: usize = 8 << 10;
/// Slots of a ring, which are the credits of a sender.
pub const SLOTS: u16 = 8;
/// The number of rings whose memory is registered together.
pub(crate) const RINGS_PER_CHUNK: u16 = 16;
/// Chunks of rings, which limits the peers of an endpoint to 4,080.
pub const CHUNKS: u16 = 255;
/// The longest message that travels through slots.
pub const EAGER: usize = 32 << 10;
/// The shortest message that is divided among rails: "messages should not be divided when the
/// message size is smaller than 4 Kbytes" (IEEE Micro, 2012).
pub const DIVIDED: usize = 4 << 10;
/// The longest operands of an atomic operation, and of the numbers to compare with.
pub(crate) const MOST_ATOMIC: usize = 2 << 10;
/// The longest Get.
pub const PIECE: usize = 8 << 20;
