//! uTofu on a machine in the same process.
//!
//! A [`LocalMachine`] has its nodes in this process. Each node reaches the memory that this process
//! has registered. Several *processes* in the sense of uTofu, each with its own
//! [`Context`](tofu_utofu::Context), can therefore run as threads of one process. They need no VM
//! and no privileges, and start in milliseconds.
//!
//! Memory that the process does not have is refused, and memory that it may only read is not
//! written. Real hardware keeps registered memory in place, but this crate cannot: a program that
//! unmaps registered memory, and lets others access it, crashes.
#![deny(unsafe_code)]

mod events;
mod machine;
mod maps;
mod memory;
mod platform;

pub use machine::{LocalError, LocalMachine, LocalProvider};
pub use maps::{Rights, rights};
pub use memory::{MapError, Mapping};
pub use platform::{LocalMemory, LocalPlatform};
pub use tofu_machine::Generation;
