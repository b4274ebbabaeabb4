//! Errors, by the codes that the kernel returns.

use std::io;

use tofu_driver::{ChannelError, DmaError};

/// The reason why a queue or channel cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it.
    #[error("another process has it")]
    Busy,
    /// It is a channel, and another process has one of its gates.
    #[error("another process has one of its gates")]
    GateBusy,
    /// It belongs to another user.
    #[error("this user may not have it")]
    Permission,
    /// There is none of that number.
    #[error("the device does not have it")]
    None,
    /// The system has no memory left, or may pin no more.
    #[error("no memory left that can be pinned")]
    Memory,
    /// Its rings cannot have such a size.
    #[error("a size code is not 0 to 5")]
    Size,
    /// The gates of a channel are not linked as they must be.
    #[error(transparent)]
    Gates(ChannelError),
    /// The system refuses something else.
    #[error("the kernel driver refuses it: {0}")]
    System(io::Error),
}

impl From<DmaError> for OpenError {
    fn from(_: DmaError) -> Self {
        Self::Memory
    }
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EBUSY) => Self::Busy,
            Some(libc::EACCES | libc::EPERM) => Self::Permission,
            Some(libc::ENOENT | libc::ENXIO) => Self::None,
            Some(libc::ENOMEM) => Self::Memory,
            _ => Self::System(error),
        }
    }
}

/// The reason why memory cannot be registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// It is not mapped, or is read-only and was to be written.
    #[error("it is not mapped, or read-only")]
    Inaccessible,
    /// The requested STag is in use, or none is left.
    #[error("the STag is taken, or none is left")]
    Taken,
    /// The system has no memory left, or may pin no more.
    #[error("no memory left that can be pinned")]
    Memory,
    /// The queue has stopped, or is that of a parent process.
    #[error("the queue has stopped, or belongs to a parent process")]
    Stopped,
    /// The system refuses something else.
    #[error("the kernel driver refuses it: {0}")]
    System(io::Error),
}

impl From<io::Error> for RegisterError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EINVAL | libc::EFAULT) => Self::Inaccessible,
            Some(libc::EBUSY | libc::ENOSPC) => Self::Taken,
            Some(libc::ENOMEM) => Self::Memory,
            Some(libc::EPERM) => Self::Stopped,
            _ => Self::System(error),
        }
    }
}
