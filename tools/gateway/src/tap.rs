//! A network interface of the host's kernel.

use std::fs::File;
use std::io::{self, Read, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use tofu_tap::NAME_MAX;

use crate::io_node::{Out, Tenant, watched};

/// Frames that are taken from the kernel before other tenants get their turn.
const TURN: usize = 256;

/// The reason why there is no interface.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The name cannot be one.
    #[error("{0} cannot be the name of a network interface")]
    Name(String),
    /// There is one of that name already.
    #[error("a network interface {0} exists already")]
    Exists(String),
    /// Only with CAP_NET_ADMIN.
    #[error("making a network interface needs CAP_NET_ADMIN, as root has it")]
    Rights,
    /// The kernel has none.
    #[error("making the network interface {name}: {source}")]
    Host {
        /// The interface.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A TAP interface, which is removed with this value. It is a [`Tenant`] that takes all frames, so
/// others must come before it.
#[derive(Debug)]
pub struct Tap {
    file: File,
    name: String,
    buffer: Vec<u8>,
    /// There was no room for the kernel's frames.
    full: bool,
}

impl Tap {
    /// Makes an interface of this name, for frames of up to `max_frame` bytes. It is down and has
    /// no addresses.
    ///
    /// # Errors
    ///
    /// See [`TapError`].
    pub fn new(name: &str, max_frame: usize) -> Result<Self, TapError> {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(known) {
            return Err(TapError::Name(name.into()));
        }
        let host = |source: io::Error| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => TapError::Rights,
            Some(libc::EBUSY) => TapError::Exists(name.into()),
            _ => TapError::Host { name: name.into(), source },
        };
        let file = tofu_tap::open().map_err(host)?;
        // It must not exist yet.
        tofu_tap::attach(&file, name, libc::IFF_TUN_EXCL).map_err(host)?;
        Ok(Self { file, name: name.into(), buffer: vec![0; max_frame], full: false })
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Tenant for Tap {
    fn frame(&mut self, frame: &[u8]) -> bool {
        // While it is down, or without memory, the kernel takes none.
        let _ = self.file.write(frame);
        true
    }

    fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        let wanted = if self.full { PollFlags::empty() } else { PollFlags::IN };
        fds.push(watched(&self.file, wanted));
    }

    fn work(&mut self, ready: &[PollFlags], out: &mut Out<'_>) -> Option<Duration> {
        let looked = ready.first().is_none_or(|events| !events.is_empty());
        if !looked && !self.full {
            return None;
        }
        for _ in 0..TURN {
            self.full = !out.has_room();
            if self.full {
                // Packets are on their way, so the thread calls this again soon.
                return None;
            }
            match self.file.read(&mut self.buffer) {
                Ok(len) => out.send(&self.buffer[..len]),
                // Nothing is there, or the interface is down.
                Err(_) => return None,
            }
        }
        Some(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_none_are_refused() {
        for name in ["", "sixteen-letters-", "a/b", "a b", "ü"] {
            assert!(matches!(Tap::new(name, 1514), Err(TapError::Name(_))), "{name}");
        }
    }
}
