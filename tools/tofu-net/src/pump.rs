//! Moves frames between the kernel's interface and the torus.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tofu_driver::{DmaBuffer, Platform, VolatileBuffer};
use tofu_ipotofu::offload::{HEAD, Metadata};
use tofu_ipotofu::rendezvous::MIN_FRAME;
use tofu_ipotofu::wire::FRAGMENT_MAX;
use tofu_ipotofu::{Config, FrameSlot, Link, LinkError};

use crate::Tap;
use crate::tap::Aside;

/// Frames each way that are moved before anything else is handled.
const BATCH: usize = 64;
/// The time for which a sleep is while packets are in flight. Nothing announces their end,
/// and a packet that meets a dead link must be sent another way.
const NAP: Duration = Duration::from_millis(10);
/// The time for which a sleep is while there is no room to send, or something is being fetched.
const CRAMPED: Duration = Duration::from_micros(200);

/// The frames that were moved since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames of the kernel's that cannot be sent, for example because no node has their address.
    pub refused: u64,
    /// Frames from the torus that the kernel does not take, for example while the interface is
    /// switched off.
    pub unwanted: u64,
    /// Sleeps.
    pub sleeps: u64,
}

/// The end of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// There is something to move, or the time is over.
    Work,
    /// One of the other descriptors, by its place in the list.
    Other(usize),
}

/// A frame that the kernel sends, in [`Pump::out`]. If it has a place, the bytes behind its first
/// [`HEAD`] ones are there.
#[derive(Debug)]
struct Held {
    metadata: Metadata,
    len: usize,
    place: Option<FrameSlot>,
}

impl Held {
    /// Takes the whole frame to `out`. False if its place is gone with its link.
    fn unite<P>(&mut self, link: &Link<P>, out: &mut [u8]) -> bool
    where
        P: Platform<Dma: VolatileBuffer>,
    {
        let Some(place) = self.place.take() else { return true };
        let Some((memory, range)) = link.place_memory(&place) else { return false };
        let end = range.len().min(self.len);
        if end > HEAD {
            memory.read(range.start + HEAD, &mut out[HEAD..end]);
        }
        true
    }
}

/// Moves frames between an interface and a link. It keeps at most one frame, so replacing the link
/// at any time loses no more than that frame.
#[derive(Debug)]
pub struct Pump {
    /// For what comes from the torus.
    buf: Box<[u8]>,
    /// For what the kernel sends.
    out: Box<[u8]>,
    /// A frame that there was no room for.
    held: Option<Held>,
    counters: Counters,
    /// Set if there was no room for the kernel's frames: how long a sleep is for that reason.
    cramped: Option<Duration>,
}

impl Default for Pump {
    fn default() -> Self {
        Self {
            buf: vec![0; FRAGMENT_MAX].into(),
            out: vec![0; LONGEST_FRAME].into(),
            held: None,
            counters: Counters::default(),
            cramped: None,
        }
    }
}

impl Pump {
    /// The counts so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Moves pending frames, at most a batch each way. Returns whether there were any.
    ///
    /// # Errors
    ///
    /// If the interface is gone.
    pub fn turn<P>(&mut self, link: &mut Link<P>, tap: &Tap) -> io::Result<bool>
    where
        P: Platform<Dma: VolatileBuffer>,
    {
        let mut moved = false;
        for _ in 0..BATCH {
            let taken =
                link.recv_with(&mut self.buf, |metadata, frame| tap.write(metadata, &frame));
            let Some(taken) = taken else { break };
            moved = true;
            if taken.is_err() {
                self.counters.unwanted += 1;
            }
        }
        self.cramped = None;
        for _ in 0..BATCH {
            if !link.has_room() {
                self.cramped = Some(CRAMPED);
                break;
            }
            let mut held = match self.held.take() {
                Some(held) => held,
                None => {
                    let place = link.place();
                    let aside = place.as_ref().and_then(|place| link.place_memory(place));
                    let aside = aside.map(|(memory, range)| Aside { memory, range, at: HEAD });
                    let Some((metadata, len)) = tap.read(&mut self.out, aside)? else { break };
                    let mut held = Held { metadata, len, place };
                    if len < MIN_FRAME {
                        held.unite(link, &mut self.out);
                    }
                    held
                }
            };
            match send(link, &mut held, &mut self.out) {
                Ok(true) => {}
                Ok(false) => self.counters.refused += 1,
                Err(LinkError::Full) => {
                    self.held = Some(held);
                    // If packets are not what is lacking, the event that makes room causes an
                    // interrupt.
                    self.cramped = Some(if link.has_room() { NAP } else { CRAMPED });
                    break;
                }
                Err(_) => self.counters.refused += 1,
            }
            moved = true;
        }
        link.flush();
        Ok(moved)
    }

    /// Sleeps until there is something to move, or one of `others` is readable or gone, for `time`
    /// at most; with a time of 0 it only polls the others. `interrupt` is the eventfd of the
    /// interrupt of the link's TNI.
    ///
    /// # Errors
    ///
    /// If the system refuses.
    pub fn sleep<P: Platform>(
        &mut self,
        link: &mut Link<P>,
        tap: &Tap,
        interrupt: BorrowedFd<'_>,
        others: &[BorrowedFd<'_>],
        time: Duration,
    ) -> io::Result<End> {
        let time = if time.is_zero() {
            time
        } else {
            // A packet that waits for a frame is there already, and nothing announces the frame.
            link.packets().prepare_sleep();
            if link.is_ready() {
                Duration::ZERO
            } else if link.is_fetching() {
                CRAMPED.min(time)
            } else if let Some(cramped) = self.cramped {
                cramped.min(time)
            } else if !link.is_settled() {
                NAP.min(time)
            } else {
                time
            }
        };
        self.counters.sleeps += u64::from(!time.is_zero());
        let mut fds: Vec<_> = others
            .iter()
            .copied()
            .chain([interrupt])
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        if self.cramped.is_none() {
            fds.push(PollFd::from_borrowed_fd(tap.as_fd(), PollFlags::IN));
        }
        let timeout = Timespec::try_from(time).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // Frames that arrive before the next sleep are polled for anyway.
        link.packets().end_sleep();
        if !fds[others.len()].revents().is_empty() {
            // It may be one that was read already.
            let _ = rustix::io::read(interrupt, &mut [0; 8]);
        }
        let other = fds[..others.len()].iter().position(|fd| !fd.revents().is_empty());
        Ok(other.map_or(End::Work, End::Other))
    }
}

/// Sends a frame. False if its place is gone with its link.
fn send<P>(link: &mut Link<P>, frame: &mut Held, out: &mut [u8]) -> Result<bool, LinkError>
where
    P: Platform<Dma: VolatileBuffer>,
{
    let Held { metadata, len, place } = &*frame;
    if let Some(place) = place
        && link.send_placed(metadata, &out[..HEAD], place, *len)?
    {
        return Ok(true);
    }
    // Its receiver takes packets only.
    if !frame.unite(link, out) {
        return Ok(false);
    }
    link.send_offloaded(&frame.metadata, &out[..frame.len]).map(|()| true)
}

/// The longest frame that the kernel sends: unsegmented TCP frames may be longer than the longest
/// frame on the torus.
const LONGEST_FRAME: usize = 1 << 17;

/// The longest frame that links of this project carry, in bytes.
pub(crate) const LONGEST_MTU: u16 = Config::MAX_MTU;
