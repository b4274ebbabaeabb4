//! Cables between the shards of a machine in different processes, on one host or several.
//!
//! Each shard listens at its address and has one TLS connection with each other shard.
//! Both ends have a certificate that says which shard they are, signed by an authority that was
//! created for the machine ([`hosts::init`]). [`Joining`] waits for all shards, before the process
//! drops the right to open connections. Then a [`Mesh`] is the transport of its machine.
//!
//! The manual explains the choice of TLS over TCP, and why there is no larger library:
//! docs/src/dev/cables.md.
//!
//! # How it works
//!
//! `hosts::init` makes the folder of a machine, with certificates that name the shard
//! (`part-0.tofu.invalid`). Without it no shard listens on the network. All of this is *ours*:
//!
//! - *Meeting* (`handshake.rs`). A shard binds its address, which excludes a second process on the
//!   same host. It connects to the shards with lower numbers and waits for the others. Both ends
//!   present certificates of the shards that they claim to be, then state their versions, machine,
//!   number of shards, and what else has to be the same (`Hello::same`). The shards meet before the
//!   process gives up the right to open connections (`Joining::meet` before `Confinement`).
//! - *Coming back.* A shard that starts also tries the shards with higher numbers after
//!   half a second, as running shards cannot open connections. One that has not met all others
//!   itself answers `Later`. One that runs, and whose place for the shard is empty, admits it and
//!   sends it the settings of links, nodes and faults; a setting made at that very moment may be
//!   lost. Links come up when the shard reports that its devices are there (`ShardStatus::Here`),
//!   after everything that its predecessor sent. A shard whose place is reported as taken tries
//!   again for 5 s.
//! - *Sending.* Each pair of shards shares one connection (`Mesh`). Any thread encrypts and writes
//!   what it sends. What the socket does not accept stays encrypted in a buffer, and the thread
//!   that receives from that shard sends it later.
//! - *Back-pressure.* The room is shared by all cables. Other shards whose requests add to a full
//!   buffer are asked directly to send none (`Transport::hold_back`), so no cycle of waiting shards
//!   can form. Packets in flight always proceed.
//! - *Asking.* Beside packets, a connection carries byte streams (`Mesh::open`), each with a window
//!   of 64 KiB in each direction. A question about a node of another shard travels over such a
//!   stream to that shard's control server, which answers for its own nodes only. A peer that
//!   exceeds the window, opens more than 1024 streams, or sends no request within 10 s of opening
//!   one, loses the stream.
//! - *Ending* (`keepalive.rs`). The end of a shard's process ends its connections. To detect hosts
//!   that are cut off, each shard sends a keep-alive every fifth of `--cable-timeout` (1 s) and
//!   reads how long ago its kernel received the last acknowledgement (`TCP_INFO`), which the other
//!   kernel sends whether or not the process runs. A shard is cut off when that is as long ago as
//!   the time-out less one interval, and something was unacknowledged at half of the checks or
//!   more. Data for which the other kernel has no room does not count as unacknowledged, as it does
//!   for `TCP_USER_TIMEOUT`. A process that says nothing for 30 s, or sends anything but frames, is
//!   considered dead. Time in which the observing process did not run counts as two intervals at
//!   most.
//! - *Leaving.* When all guests of a shard have ended, it says so, and it leaves when all others
//!   have said so, too.
//!
//! Limits of what waits for a shard, and the consequence of each:
//!
//! - more than 4 MiB: nodes here start no new requests
//! - more than 16 MiB of answers: its requests are read but not served; beyond 64 MiB of these they
//!   are not read
//! - more than 128 MiB: packets that only pass through are dropped (`Transport::pass_on`), as on a
//!   link that is down
//! - more than 256 MiB, nothing accepted for 30 s, or this shard held back for 60 s: the shard is
//!   considered dead

#![deny(unsafe_code)]

mod handshake;
mod hello;
pub mod hosts;
mod keepalive;
mod link;
mod mesh;
mod peer;
mod streams;

pub use crate::handshake::Joining;
pub use crate::hello::{Hello, ShardStatus};
pub use crate::mesh::{Mesh, PeerInfo, Receive, ShardEvent};
pub use crate::streams::Visit;
