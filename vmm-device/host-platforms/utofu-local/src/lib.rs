//! uTofu on a machine in the same process.
//!
//! A [`LocalMachine`] has its nodes in this process, and each of them reaches the process's own
//! memory, as far as it was registered. So several *processes* in the sense of uTofu, each with a
//! [`Context`](tofu_utofu::Context) of its own, run as threads of one process, without a VM and
//! without rights, and start in milliseconds.
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
