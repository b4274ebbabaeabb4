//! Moves frames between the kernel's interface and the torus.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tofu_driver::Platform;
use tofu_ipotofu::{Config, Link, LinkError};

use crate::Tap;

/// Frames each way that are moved before anything else is looked after.
const BATCH: usize = 64;
/// How long a sleep is while packets are on their way out, of whose end nothing tells: one that
/// meets a dead link is to be sent another way.
const NAP: Duration = Duration::from_millis(10);
/// How long a sleep is while there is no room to send.
const CRAMPED: Duration = Duration::from_micros(200);

/// What was moved, since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames of the kernel's that cannot be sent, because no node has their address, say.
    pub refused: u64,
    /// Frames from the torus that the kernel does not take, as while the interface is switched off.
    pub unwanted: u64,
    /// Sleeps.
    pub sleeps: u64,
}

/// What has ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// There is something to move, or the time is over.
    Work,
    /// One of the other descriptors, by its place in the list.
    Other(usize),
}

/// Moves frames between an interface and a link. It keeps nothing but a buffer, so a link may be
/// replaced by another one at any time.
#[derive(Debug)]
pub struct Pump {
    buf: Box<[u8]>,
    counters: Counters,
    /// The interrupt has fired since the last sleep.
    fired: bool,
    /// There was no room for what the kernel sends.
    cramped: bool,
}

impl Default for Pump {
    fn default() -> Self {
        // The longest frame that a link can carry.
        let longest = usize::from(u16::MAX);
        Self {
            buf: vec![0; longest].into(),
            counters: Counters::default(),
            fired: false,
            cramped: false,
        }
    }
}

impl Pump {
    /// What was done so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Moves what there is, a batch each way at most. Returns whether there was anything.
    ///
    /// # Errors
    ///
    /// If the interface is gone.
    pub fn turn<P: Platform>(&mut self, link: &mut Link<P>, tap: &Tap) -> io::Result<bool> {
        let mut moved = false;
        for _ in 0..BATCH {
            let Some(len) = link.recv(&mut self.buf) else { break };
            moved = true;
            if tap.write(&self.buf[..len]).is_err() {
                self.counters.unwanted += 1;
            }
        }
        self.cramped = false;
        for _ in 0..BATCH {
            if !link.has_room() {
                self.cramped = true;
                break;
            }
            let Some(len) = tap.read(&mut self.buf)? else { break };
            moved = true;
            match link.send(&self.buf[..len]) {
                Ok(()) => {}
                Err(LinkError::Full) => self.cramped = true,
                Err(_) => self.counters.refused += 1,
            }
        }
        link.flush();
        Ok(moved)
    }

    /// Sleeps until there is something to move, or one of `others` is readable or gone, for `time`
    /// at most. `interrupt` is the eventfd of the interrupt of the link's TNI.
    ///
    /// # Errors
    ///
    /// If the system does not let it.
    pub fn sleep<P: Platform>(
        &mut self,
        link: &mut Link<P>,
        tap: &Tap,
        interrupt: BorrowedFd<'_>,
        others: &[BorrowedFd<'_>],
        time: Duration,
    ) -> io::Result<End> {
        link.packets().prepare_sleep(std::mem::take(&mut self.fired));
        let time = if link.is_ready() {
            Duration::ZERO
        } else if self.cramped {
            CRAMPED
        } else if link.packets().under_way() > 0 {
            NAP.min(time)
        } else {
            time
        };
        self.counters.sleeps += u64::from(!time.is_zero());
        let mut fds: Vec<_> = others
            .iter()
            .copied()
            .chain([interrupt])
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        if !self.cramped {
            fds.push(PollFd::from_borrowed_fd(tap.as_fd(), PollFlags::IN));
        }
        let timeout = Timespec::try_from(time).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !fds[others.len()].revents().is_empty() {
            self.fired = rustix::io::read(interrupt, &mut [0; 8]).is_ok();
        }
        let other = fds[..others.len()].iter().position(|fd| !fd.revents().is_empty());
        Ok(other.map_or(End::Work, End::Other))
    }
}

/// The longest frame that links of this project carry, in bytes.
pub(crate) const LONGEST_MTU: u16 = Config::MAX_MTU;
