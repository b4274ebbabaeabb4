//! Memory of a client's process, accessed at the process's own addresses.
//!
//! Unsafe, because the system calls take addresses.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::RwLock;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use tofu_icc::Access;
use tofu_sync::{read, write};
use vm_memory::VolatileSlice;

/// Words in the middle of buffers are as aligned as in the client.
const ALIGN: usize = 32;
/// Buffers that a thread keeps: a copy within a process needs one, and one more in between.
const KEPT: usize = 2;

/// The process at the other end of a socket.
///
/// The kernel allows this process to access its memory if it runs as the same user and is a
/// descendant, or on other conditions that the host sets for a debugger (ptrace(2), "Ptrace access
/// mode checking").
pub(crate) struct ClientProcess {
    pid: Pid,
    /// Becomes readable when the process ends. A pid alone may be another process's by then.
    pidfd: OwnedFd,
    /// An atomic command reads and writes: nothing else of this server's may write in between.
    updates: RwLock<()>,
}

impl ClientProcess {
    /// Returns the process that connected to `socket`. It must run as this process's user.
    pub(crate) fn of_peer(socket: &UnixStream) -> Result<Self, Errno> {
        let peer = socket_peercred(socket)?;
        if peer.uid != geteuid() {
            return Err(Errno::PERM);
        }
        let pidfd = pidfd_open(peer.pid, PidfdFlags::empty())?;
        Ok(Self { pid: peer.pid, pidfd, updates: RwLock::new(()) })
    }

    /// Waits until `socket` has data, or its peer or the process is gone; returns whether the
    /// process lives. A process that has ended may have left the socket to a child.
    pub(crate) fn wait(&self, socket: &UnixStream) -> Result<bool, Errno> {
        let mut ready =
            [PollFd::new(socket, PollFlags::IN), PollFd::new(&self.pidfd, PollFlags::IN)];
        loop {
            match poll(&mut ready, None) {
                Err(Errno::INTR) => {}
                result => return result.map(|_| ready[1].revents().is_empty()),
            }
        }
    }

    /// Returns true if the first and the last of some bytes can be read.
    pub(crate) fn check(&self, address: u64, size: u64) -> Result<(), Errno> {
        let mut byte = [0];
        for at in [address, address + (size - 1)] {
            self.read(at, &VolatileSlice::from(&mut byte[..]))?;
        }
        Ok(())
    }

    /// Gives the device access to a copy of memory, which is made before `f` and written back after
    /// it, as `access` says.
    pub(crate) fn access(
        &self,
        address: u64,
        len: usize,
        access: Access,
        f: &mut dyn FnMut(VolatileSlice<'_>),
    ) -> Result<(), Errno> {
        with_buffer(len, |copy| {
            let _alone = match access {
                Access::Update => Some(write(&self.updates)),
                _ => None,
            };
            let slice = VolatileSlice::from(copy);
            if access.reads() {
                self.read(address, &slice)?;
            }
            f(slice);
            match access {
                Access::Read => Ok(()),
                Access::Write => self.write(address, &slice),
                Access::Update => self.transfer(Direction::To, address, &slice),
            }
        })
    }

    /// Reads as many bytes as `to` has.
    pub(crate) fn read(&self, address: u64, to: &VolatileSlice<'_>) -> Result<(), Errno> {
        self.transfer(Direction::From, address, to)
    }

    /// Writes all bytes that `from` has.
    pub(crate) fn write(&self, address: u64, from: &VolatileSlice<'_>) -> Result<(), Errno> {
        let _others = read(&self.updates);
        self.transfer(Direction::To, address, from)
    }

    fn transfer(
        &self,
        direction: Direction,
        address: u64,
        local: &VolatileSlice<'_>,
    ) -> Result<(), Errno> {
        let guard = local.ptr_guard_mut();
        let mut done = 0;
        while done < local.len() {
            let left = local.len() - done;
            let local =
                libc::iovec { iov_base: guard.as_ptr().wrapping_add(done).cast(), iov_len: left };
            let remote = libc::iovec {
                iov_base: std::ptr::without_provenance_mut((address as usize).wrapping_add(done)),
                iov_len: left,
            };
            let pid = self.pid.as_raw_nonzero().get();
            // SAFETY: the kernel checks all addresses. The local ones are within `local`, which
            // is memory that others may change at any time; the remote ones are never used here.
            let moved = unsafe {
                match direction {
                    Direction::From => libc::process_vm_readv(pid, &local, 1, &remote, 1, 0),
                    Direction::To => libc::process_vm_writev(pid, &local, 1, &remote, 1, 0),
                }
            };
            match usize::try_from(moved) {
                Ok(0) => return Err(Errno::FAULT),
                // A partial transfer: the next call returns the reason.
                Ok(moved) => done += moved,
                Err(_) => match Errno::from_io_error(&std::io::Error::last_os_error()) {
                    Some(Errno::INTR) => {}
                    error => return Err(error.unwrap_or(Errno::IO)),
                },
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Direction {
    From,
    To,
}

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with `len` bytes of unspecified contents.
fn with_buffer<R>(len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut buffer = BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_default();
    if buffer.len() < len + ALIGN {
        buffer.resize(len + ALIGN, 0);
    }
    let start = buffer.as_ptr().align_offset(ALIGN).min(ALIGN);
    let result = f(&mut buffer[start..start + len]);
    BUFFERS.with_borrow_mut(|buffers| {
        if buffers.len() < KEPT {
            buffers.push(buffer);
        }
    });
    result
}
