//! Errors of serving clients.

use std::io;

use rustix::io::Errno;
use thiserror::Error;

use crate::channel::ChannelError;

/// The reason why a client or all clients cannot be served.
#[derive(Debug, Error)]
pub enum Error {
    /// No more clients can be accepted.
    #[error("waiting for a client: {0}")]
    Accept(io::Error),
    /// A descriptor could not be duplicated.
    #[error("duplicating a descriptor: {0}")]
    Duplicate(io::Error),
    /// There is no memory for the pages that the client maps.
    #[error("making pages for a client: {0}")]
    Pages(io::Error),
    /// [`Backing::Process`](crate::Backing::Process) needs the client's memory, but its process
    /// cannot be identified, or runs as another user.
    #[error("the client's process cannot be reached: {0}")]
    Process(Errno),
    /// A client's messages could not be followed any more.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The client wants another protocol, or its first message was not a correct VERSION.
    #[error("no agreement on a version of the protocol")]
    Version,
}
