//! Cables between the shards of a machine in different processes, on one host or several.
//!
//! Each shard listens at its address and has one TLS connection with each other shard.
//! Both ends have a certificate that says which shard they are, signed by an authority that was
//! created for the machine ([`hosts::init`]). [`Joining`] waits for all shards, before the process
//! drops the right to open connections. Then a [`Mesh`] is the transport of its machine.
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
//!
//! # The engine
//!
//! zenoh, quinn (QUIC) and rustls (TLS 1.3 over TCP) were compared with a bare TCP socket, with
//! mutual authentication by certificates, between two processes of a busy host:
//!
//! - bare TCP: a round trip of 8 bytes takes 17 us (99th percentile 31), messages of 1 MiB have
//!   1960 MB/s, and the death of a peer is seen after 4 ms
//! - rustls 0.23 over TCP: 19 us (35), 710 MB/s, 4 ms; 16 crates that this project did not have, 55
//!   s of processor time of a cold build
//! - quinn 0.11: 79 us (186), 250 MB/s, 1.1 s; 26 crates, 117 s
//! - zenoh 1.10: 174 us (302), 730 MB/s, 3 ms; 167 crates, 627 s
//!
//! The choice is rustls over TCP *(ours)*: a round trip within a fifth of the bare socket's, no
//! asynchronous runtime, and less than a minute of a cold build. Over UDP nothing shows that a
//! process has ended; zenoh's liveliness tokens do not lock a shard to one process, and it needs
//! licences that `ci/check-deps` does not allow. libfabric and MPI need a launcher that knows all
//! processes, neither authenticates by certificates, and MPI ends the whole job when one process
//! ends.
//!
//! # A whole K computer, on paper
//!
//! 82,944 nodes over 432 hosts were not tried. Measured figures of four shards of 192 nodes
//! extrapolate to this per host:
//!
//! - memory: 0.6 GiB for small guests that wait; for guests that use all of their memory, 192 times
//!   `--memory`: 3 GiB with 16 MiB each, 48 GiB with 256 MiB (Linux)
//! - processors: 1.6 s to boot; 4 % of one while the machine is idle
//! - file descriptors and threads: 4 and 1.6 for each node, 2 and 1 for each shard: about 1,640 and
//!   740
//! - connections: 431, and 92,880 in the whole machine
//! - keep-alives: 5 a second to each other shard: 2,155 records each way, 0.2 MB/s; 5 % of a
//!   processor if sending and receiving one takes 25 us, which was not measured
//! - network: TLS at about 700 MB/s for each processor; a box of 192 nodes has some 200 links to
//!   other boxes, each of 6.8 GB/s in Fugaku
//!
//! The limits would be met in this order:
//!
//! 1. Handshakes: 431 of some milliseconds on each host, as many again for each shard that comes
//!    back. A shard greets at most 64 others at a time.
//! 2. Back-pressure: a slow shard slows down all others, because they share the room. Before each
//!    request, three words of each other shard are read, about a microsecond for 431 (not
//!    measured).
//! 3. Questions: `tofu ps` and `tofu stats` ask 431 shards at once and wait 4 s for the slowest.
//! 4. Connections: packets go to adjacent shards only, so most carry nothing but keep-alives and
//!    questions.

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
