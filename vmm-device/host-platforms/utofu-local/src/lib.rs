//! uTofu on a machine in the same process.
//!
//! A [`LocalMachine`] has its nodes in this process, and each of them reaches the process's own
//! memory, as far as it was registered. So several *processes* in the sense of uTofu, each with
//! a [`Context`](tofu_utofu::Context) of its own, run as threads of one, without a VM, without
//! rights, and start in milliseconds.
//!
//! Memory that the process does not have is refused, and what it may only read is not written.
//! But where real hardware keeps registered memory in place, this crate cannot: a program that
//! unmaps memory while it is registered, and lets others access it, crashes.
#![deny(unsafe_code)]

mod machine;
mod maps;
mod memory;
mod platform;

pub use machine::{LocalError, LocalMachine, LocalProvider};
pub use maps::{Rights, rights};
pub use memory::Mapping;
pub use platform::{LocalMemory, LocalPlatform};
pub use tofu_machine::Generation;
