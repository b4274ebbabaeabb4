//! The protocol between the `tofu` command and a Linux guest: running programs and moving files
//! over a byte stream such as a virtio console port.
//!
//! [`wire`] has the messages and their framing, [`session`] the guest's side, [`files`] packs files
//! as archives, and [`unpack`] unpacks them. The host's side is in the command. [`pmi`] lets MPI
//! programs find each other, [`terminal`] gives a program a terminal, [`user`] runs it as a
//! separate user, and [`wakeup`] reconnects a node that was suspended. [`startup`] waits for
//! services that programs expect when they start.
//!
//! # Trust
//!
//! Neither side trusts the other. Frames, the number of programs, and the data in flight of each
//! stream are bounded ([`wire::MAX_FRAME`], [`wire::MAX_PROGRAMS`], [`wire::WINDOW`]); an invalid
//! frame is dropped and the next one is found; archives cannot leave the folder that they are
//! unpacked in.
#![forbid(unsafe_code)]

pub mod credit;
mod cross_arch;
pub mod files;
mod identity;
mod job;
pub mod pmi;
mod port;
pub mod relay;
pub mod session;
pub mod startup;
pub mod terminal;
pub mod unpack;
pub mod user;
pub mod wakeup;
pub mod wire;
