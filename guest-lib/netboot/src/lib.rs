//! Network boot: a node without a disk loads its program or kernel from a boot server, over [IP
//! over Tofu](https://docs.rs/tofu-ipotofu).
//!
//! [`wire`] has the messages. [`Ask`] and [`Fetch`] are the node's end, and [`Server`] is the other
//! one. [`image`] computes the place of a program or kernel in memory, and its parameters. None of
//! them has a device or a clock: the caller passes messages in both directions, and the time.
//!
//! No arriving message makes this crate panic, hang or allocate beyond its bounds.
//!
//! # The protocol
//!
//! By it a node without a disk fetches what it is to run. How real Tofu machines boot is not
//! public: all of this protocol is this project's own, version 1. `tofu-boot` (tools/guests) is the
//! node's end in firmware, without an IP stack, and `tofu up` has the server. *Must*, *should* and
//! *may* have the meaning of RFC 2119. Numbers are big endian. Each block of a file can be asked
//! for again by itself, so the server keeps no connection and can be restarted.
//!
//! A message is the content of one Ethernet frame of EtherType 88b5, the first one that IEEE 802
//! reserves for local experiments. Both ends must have an MTU of at least 16416, regardless of the
//! MTU of other nodes. The server identifies nodes by the sender of a frame, which the link
//! protects from forgery.
//!
//! Every message begins with 16 bytes:
//!
//! - 0, 1: magic, "TB"
//! - 2: version, 1
//! - 3: kind
//! - 4 to 7: CRC-32 (IEEE 802.3) of the whole message, computed with 0 in this field
//! - 8 to 11: session, a number that the node chooses when it starts to boot; an answer has that of
//!   its request
//! - 12 to 15: tag, the number of the request; an answer has that of its request
//!
//! By its kind, these follow (with numbers of bytes):
//!
//! - 1, DISCOVER, of the node: nothing
//! - 2, OFFER, of the server: manifest number (4); kind of system (1): 1 guest, 2 Linux; number of
//!   files (1); length of the command line (2); for each file 48 bytes: role (1): 1 kernel or
//!   guest, 2 initrd; reserved (7), size (8), SHA-256 (32); then the command line, UTF-8
//! - 3, READ, of the node: manifest number (4), file (2), number of bytes (2), offset (8)
//! - 4, DATA, of the server: the same 16 bytes, then the data
//! - 5, REPORT, of the node: state (1): 1 starting, 2 failed; reserved (1), length of the text (2),
//!   human-readable text, UTF-8
//! - 6, ACK, of the server: nothing
//! - 7, REFUSED, of the server: reason (1): 1 nothing to boot for this node, 2 the manifest is not
//!   the current one, 3 no such part; reserved (1), length of the text (2), human-readable text
//!
//! A manifest has one file, a kernel or guest; with Linux a second one may be the initrd. A file
//! has 1 byte to 1 GiB, the command line at most 2047 bytes and no NUL. READ asks for 1 to 16384
//! bytes; texts have at most 200 bytes. A receiver must drop messages that do not conform, and
//! answers of another node than the server; the server counts them. Bytes behind a message
//! (Ethernet pads short frames) are part of its sum but are otherwise ignored. The number of a
//! manifest should differ from those of other files that the server has offered before, so that a
//! node does not mix blocks of two.
//!
//! ## The node
//!
//! 1. It sends DISCOVER to the node that its command line names, or to all if it names none. It
//!    repeats this after 50, 100, 200, 400 and then every 500 ms. It asks the first server that
//!    answers for everything else.
//! 2. It finds places for the files in its memory. If there are none, the boot has failed.
//! 3. It fetches each file in blocks.
//! 4. It hashes what it has fetched. If the hash of a file differs from that in the manifest, the
//!    boot has failed.
//! 5. It sends REPORT, and repeats it until there is an ACK or half a second has passed.
//! 6. It resets the device and enters what it has fetched.
//!
//! The boot has failed, too, if the server refuses, or if nothing comes for the time that the
//! node's command line says, 10 s by default.
//!
//! A block has 16384 bytes at first (9 packets, all of which must arrive); half of that when a
//! block was lost, down to 1024 (one packet); twice as much for every window of blocks that has
//! arrived. The last block of a file is shorter. 4 blocks are in flight at first, 2 to 16; one more
//! for every window of blocks that has arrived, and half as many when a block was lost. At least
//! 16384 bytes are in flight, until nothing has arrived in time five times in a row. A block is
//! asked for again, with a new tag, when its answer has taken longer than the smoothed time and
//! four times its spread (RFC 6298; 200 ms at first, 20 ms to 500 ms, doubled for every time that
//! this happens in a row), or when a question that was asked more than 8 later was answered.
//!
//! ## The server
//!
//! It answers nodes in turn. At most 64 questions of a node wait; further ones are dropped, and the
//! node asks them again.
//!
//! ## The start
//!
//! Nodes enter a guest or kernel in the same state as our monitor does: 64-bit mode, the first 4
//! GiB mapped one to one, GDT, empty IDT, boot parameters, command line and stack at the same
//! addresses (`layout` of `tofu-vmm`), interrupts off, the local APIC and the device as after a
//! reset.
//!
//! - A *guest* is a static ELF program, whose segments are copied to their physical addresses. The
//!   firmware adds to its command line what the monitor would tell it: `ecam=`, `print=`,
//!   `tsc_khz=`.
//! - *Linux* is a bzImage of Linux 3.8 or later, placed where it prefers to be, or an ELF file
//!   (vmlinux), entered at its entry point. Both use the 64-bit boot protocol. Linux gets the
//!   memory map and the ACPI root pointer that the firmware was given.
//! - Images must lie from 2 MiB on, because the firmware is below. While it is fetched, a file is
//!   at the end of memory. So there must be room for the file, for what becomes of it, and for 2
//!   MiB more. An image that needs memory that does not exist, or belongs to the firmware, is
//!   refused with a message.
//! - The firmware is entered by our monitor as any guest is, or by its PVH entry, as QEMU does with
//!   `-kernel`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod client;
pub mod image;
mod server;
pub mod wire;

pub use crate::client::{Ask, Failure, Fetch, Poll, Settings, Task};
pub use crate::server::{Boot, BootEvent, Content, Counters, Fault, Server};
