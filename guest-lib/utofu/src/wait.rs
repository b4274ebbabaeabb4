//! Sleep until a VCQ has something.
//!
//! The VCQs of a control queue have one interrupt, and each has a bell. A thread sleeps until one
//! of the two is readable. The thread that takes an interrupt reads all entries that have come, and
//! rings the bells of their VCQs (`OpenState::arm`). So no thread misses an interrupt that another
//! one has taken.

#[cfg(not(feature = "std"))]
pub(crate) use nothing::Bell;
#[cfg(feature = "std")]
pub(crate) use system::Bell;

/// Guests without an operating system have no descriptors.
#[cfg(not(feature = "std"))]
mod nothing {
    /// There is none.
    #[derive(Debug)]
    pub(crate) enum Bell {}

    impl Bell {
        pub(crate) const fn ring(&self) {
            match *self {}
        }
    }
}

#[cfg(feature = "std")]
mod system {
    use std::os::fd::{BorrowedFd, OwnedFd};
    use std::sync::OnceLock;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
    use rustix::io::Errno;

    use crate::error::{Code, Error};

    /// Wakes the threads that wait for a VCQ: its own eventfd, and the interrupt of its
    /// control queue.
    #[derive(Debug)]
    pub(crate) struct Bell {
        event: OwnedFd,
        interrupt: BorrowedFd<'static>,
        /// Readable if either is, for programs that wait by poll(2).
        both: OnceLock<OwnedFd>,
    }

    impl Bell {
        /// Makes a bell for a VCQ of the queue with this interrupt, which is open as long as the
        /// queue's provider.
        #[allow(unsafe_code)]
        pub(crate) fn new(interrupt: i32) -> Result<Self, Error> {
            // SAFETY: a bell belongs to a VCQ, or to a thread in a call for one, and both keep the
            // provider.
            let interrupt = unsafe { BorrowedFd::borrow_raw(interrupt) };
            let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            Ok(Self { event: event.map_err(exhausted)?, interrupt, both: OnceLock::new() })
        }

        /// Wakes all waiting threads, until [`Bell::silence`].
        pub(crate) fn ring(&self) {
            // It fails only if the counter is full, and then it is readable.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }

        pub(crate) fn silence(&self) {
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
        }

        /// Sleeps until it rings or the queue interrupts, for at most `timeout`; without end if
        /// that is longer than the kernel can count. Returns false if the time has passed.
        pub(crate) fn sleep(&self, timeout: Duration) -> bool {
            let timeout = Timespec::try_from(timeout).ok();
            let mut fds = [
                PollFd::from_borrowed_fd(self.interrupt, PollFlags::IN),
                PollFd::new(&self.event, PollFlags::IN),
            ];
            // A signal is a reason to look, too.
            !matches!(poll(&mut fds, timeout.as_ref()), Ok(0))
        }

        /// The descriptor for event loops.
        pub(crate) fn descriptor(&self) -> Result<&OwnedFd, Error> {
            if let Some(both) = self.both.get() {
                return Ok(both);
            }
            let both = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(exhausted)?;
            for (at, fd) in
                [self.interrupt, std::os::fd::AsFd::as_fd(&self.event)].iter().enumerate()
            {
                let data = epoll::EventData::new_u64(at as u64);
                epoll::add(&both, fd, data, epoll::EventFlags::IN).map_err(exhausted)?;
            }
            Ok(self.both.get_or_init(|| both))
        }

        /// Returns true if the program has the descriptor.
        pub(crate) fn has_descriptor(&self) -> bool {
            self.both.get().is_some()
        }
    }

    fn exhausted(error: Errno) -> Error {
        let hint = std::format!("{}", std::io::Error::from(error));
        Error::with_text(Code::OutOfResource, "descriptors to wait by", None, hint)
    }
}
