//! The server as clients see it, over socket pairs and a socket in the file system.

mod attach;
mod client;
mod crate_client;
mod doorbells;
mod exchange;
mod hostile;
mod memory;
mod qemu;
mod remote;
mod sockets;
