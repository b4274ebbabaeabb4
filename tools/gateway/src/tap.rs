//! A network interface of the host's kernel.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use crate::io_node::{Out, Tenant, watched};

/// Frames that are taken from the kernel before others get their turn.
const TURN: usize = 256;
/// Longest name of an interface, in bytes (linux/if.h).
const NAME_MAX: usize = 15;

/// Why there is no interface.
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
        /// What the kernel said.
        source: io::Error,
    },
}

/// A TAP interface, which goes with this value. It is a [`Tenant`] that takes all frames, so others
/// come before it.
#[derive(Debug)]
pub struct Tap {
    file: File,
    name: String,
    buffer: Vec<u8>,
    /// There was no room for what the kernel has.
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
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open("/dev/net/tun")
            .map_err(host)?;
        ioctl::set_interface(&file, name).map_err(host)?;
        Ok(Self { file, name: name.into(), buffer: vec![0; max_frame], full: false })
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its descriptor.
    pub fn into_fd(self) -> OwnedFd {
        self.file.into()
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
                // Packets are under way, so that the thread is back soon.
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

#[expect(unsafe_code, reason = "the kernel has no other way to make an interface")]
mod ioctl {
    use super::{AsRawFd, File, io};

    /// Makes the interface `name` and joins it with `file`: an Ethernet interface whose frames have
    /// nothing in front, which must not exist yet.
    pub(super) fn set_interface(file: &File, name: &str) -> io::Result<()> {
        // SAFETY: all of its fields are integers, or unions and arrays of such.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name[..super::NAME_MAX].iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_TUN_EXCL;
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        // SAFETY: the descriptor is open, and TUNSETIFF reads and writes one ifreq, which lives
        // until it returns and whose name ends with a zero.
        match unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
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
