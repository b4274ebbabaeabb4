//! The Tofu interconnect controller (ICC) of one node, as a device model.
//!
//! The device is a state machine over register accesses, packet arrivals and time. It is
//! independent of KVM and vfio-user: guest memory ([`DmaMemory`]), interrupts and doorbells
//! ([`Host`]) and the network ([`Net`]) are passed to it. All methods take `&self` and may be
//! called from any thread: vCPUs access registers, engine threads run queues and deliver packets.
//! None waits for an answer. The owner calls it for register accesses (`bar_read`, `bar_write`),
//! doorbells (`run_queue`), arrivals and losses (`arrive`, `undeliverable`), and time (`expire`, at
//! `next_deadline`).
//!
//! `Net::inject` hands a packet over while no lock is held that `arrive` takes. `tofu-machine`'s
//! `Pump` delivers a packet that nothing observes before `inject` returns, and so its answer, which
//! causes no other packet. Signals of gates, which may cause others, wait in the pump up to
//! `Net::progress`, as do packets that are observed. So calls are nested at most twice. `Handover`
//! lets one thread at a time run a queue.
//!
//! Nothing that a guest writes is trusted. Registers, descriptors and tables are read when they are
//! needed and checked; errors raise the documented exception. The work of a call is bounded, and so
//! is the memory of a queue.
//!
//! Locks: a queue has three, taken in this order. The life lock is held while the queue is enabled,
//! disabled or reset; code that runs queues never takes it. The transmit lock is taken only by
//! [`run_queue`](Icc::run_queue) and when the queue is enabled. The completion lock is never held
//! across a call to the network, or to the host except for [`Host::observe`]. Locks of two queues
//! are never held together, with one exception: under a transmit lock, the completion lock of any
//! queue may be taken. The barrier gates of an interface have one lock; no other lock of the device
//! is taken under it.
//!
//! # The path of a command
//!
//! The manual (docs/src/dev/architecture.md) has the functions that a command goes through. These
//! are the rules on its way:
//!
//! - The command in a slot is a valid entry, or a direct descriptor if the slot is blank. What can
//!   be checked at this end is checked first (command, target TNI, subnet, mtu, length, operator).
//!   A command that fails ends at once with a TCQ entry.
//! - Every command except NOP and WRITE_PIGGYBACK_BUFFER takes a place in the *outstanding window*,
//!   which has 64 places per queue, unless its target carries it out in place (`in_place.rs`). When
//!   all are taken the queue stalls, and the next completion rings its doorbell.
//! - A message goes in bursts of up to 256 KiB of whole TLPs; with packet responses, 256 TLPs at
//!   most. The next burst is sent only if no answer has reported an error so far. What is not sent
//!   because of an error counts as answered.
//! - An answer must carry the tag of an outstanding command, be of the right kind, come from where
//!   the command went, and refer to a part of its message; others are ignored.
//! - When all bytes of the message are accounted for, the TCQ entry is written, then the notice.
//!   The entry has the first error of this end, the notice the first error of either end. A carrier
//!   that knows when a Put has been sent can have its entry written then (`Icc::put_sent`).
//! - Each command has a deadline, 500 ms from its start and again from each answer to a part of it.
//!   The tag has the command's sequence number, which continues from one life of a queue to the
//!   next, so a late answer finds nothing. Lost *requests* need no timeout: the carrier reports
//!   them, and they end their command at once.
//!
//! # Waiting for the network
//!
//! Before a queue takes a descriptor, and before each burst, it asks the network for room at its
//! interface (`Net::has_room`). The direct carrier always has room. Without room, the queue waits
//! (`Waiting`), until `Icc::room` rings the doorbells of all waiting queues, beginning after the
//! one that was served last. Answers and gates' signals do not ask: an answer must never wait for a
//! request, and a gate sends no more than its rounds allow.
//!
//! # Payload by reference
//!
//! A Put's request carries a list of segments of the *sender's* guest memory, an answer to a Get
//! one of the target's (`Payload::Guest`). The receiver copies from guest memory to guest memory,
//! once. Piggyback data travels inline. A Get with remote notice is first copied into a buffer
//! (`Payload::Bytes`), because its notice means that the memory was read and may change. If a guest
//! changes memory while it is sent, only the data that arrives changes. A carrier that reports a
//! Put as sent reads the data before (`Body::detach`), as its sender may change it then.
//!
//! # Packets
//!
//! A raw or system packet is read out of guest memory when its command is taken. The command keeps
//! its place in the window until the carrier has dealt with the packet; it never waits for the
//! target. A frame that arrives is checked in this order: mark, size, ECRC, kind, lengths, source.
//!
//! Refused requests of other nodes are reported to the same queues, one report per refused burst,
//! which takes a buffer like any packet, unless PRQ_MASK turns reports off, as `tofu-driver` does.
//!
//! # Pins and flushes
//!
//! A reference into guest memory must not outlive its translation. So each burst holds a `Pin` of
//! the queue's tables from before the lookup until the data was moved; the pin travels with the
//! payload. STATUS.CACHE_FLUSH_BUSY is set until the last pin from before the flush is gone
//! (`Epochs`). Disabling a queue is a flush that the register write waits for, 30 s at most;
//! turning bus mastering off does the same for all queues.
//!
//! The cache has 32 places for each queue, indexed by STag, each with a steering entry and its
//! memory block, and is read without a lock (`Mappings`). Page table entries are read each time.
//!
//! # Causality of notices
//!
//! Suppose node A puts to B, and B sees the notice and puts to A. A must not see B's notice before
//! its own completion, although B's Put may arrive before the answer to A's by another route. So a
//! notice for another node's command waits until all own commands that were outstanding when it
//! came are complete. A command that its target carries out in place is not outstanding, but away
//! (`Away`), and such a notice waits for it as well. Up to 4096 notices wait; each further one
//! releases the oldest, so they stay in order.
//!
//! Within a queue the order of writes is: data; TCQ entry; notices; requests in IRR, or the check
//! of the word by which the driver asks for interrupts; MSI-X message. The check follows a
//! sequentially consistent fence and happens with the queue's completions locked (`take_arm`), so a
//! queue that is disabled does not check any more. A notice flushes held back TCQ entries first.
//! The word of an entry that has the flip bit is stored last, with release ordering.
//!
//! # Polled doorbells
//!
//! With `SharedPages` the registers of CQ pages are words in memory that the guest has mapped, and
//! `poll_doorbell` replaces the trapped write. It detects that FETCH_START was set, or that no word
//! of a direct descriptor is *blank* any more: a random number for each node, as every value is a
//! legal descriptor word. The device takes only the direct descriptor, the piggyback buffer and
//! MRQ_FULL_POINTER out of a shared page, and treats each as a guest's input.
#![forbid(unsafe_code)]

mod away;
mod barrier;
mod coalesce;
mod command;
mod completions;
mod cq;
mod device;
pub mod device_faults;
mod disturb;
mod ecc;
mod fault;
mod handover;
mod host;
mod in_place;
mod initiator;
mod irq;
mod map;
mod mappings;
mod memory;
mod notice;
mod observe;
mod packets;
mod page;
mod regfile;
mod router;
mod target;
mod timing;
mod tlp;
mod tni;
mod transaction;
mod translate;
mod transmit;
mod waiting;
mod wire;

pub use crate::barrier::gates::BarrierTime;
pub use crate::device::{Config, Icc};
pub use crate::ecc::EccPlace;
pub use crate::host::{Host, Net};
pub use crate::map::{RegisterNow, Unit};
pub use crate::memory::{Access, DmaError, DmaMemory, DmaResult, Mapped, Segment, Segments, Visit};
pub use crate::observe::statistics::{FailedCommands, Faults, ModelTime};
pub use crate::observe::trace_events::{Event, Subject, Which};
pub use crate::observe::violations::{LOG_TARGET, RegisterName};
pub use crate::page::SharedPages;
pub use crate::router::discard_rcode;
pub use crate::timing::CommandTiming;
pub use crate::tlp::{Answer, Body, Payload, Request, Signal, Tag, burst_size, wire_bytes};
pub use crate::transaction::{Ended, Served, Transaction};
pub use crate::translate::Pin;
pub use tofu_rules::{Report, Rule, Tally};
pub use tofu_sync::Epochs;
