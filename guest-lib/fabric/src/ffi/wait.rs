//! Descriptors to wait by.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use super::abi;

/// A descriptor that becomes readable when a queue may have something: that of a set with the
/// devices of its endpoints, and an event for what needs no device.
pub(super) struct WaitSet {
    set: OwnedFd,
    event: OwnedFd,
}

impl WaitSet {
    pub(super) fn new() -> Option<Self> {
        // SAFETY: new descriptors, which nothing else has.
        let new = unsafe {
            let set = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            let event = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            let own = |fd: RawFd| (fd >= 0).then(|| OwnedFd::from_raw_fd(fd));
            let (set, event) = (own(set), own(event));
            Self { set: set?, event: event? }
        };
        new.add(new.event.as_raw_fd()).then_some(new)
    }

    /// Adds a descriptor. Returns whether it can be waited for.
    pub(super) fn add(&self, fd: RawFd) -> bool {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: the pointer is good.
        let code =
            unsafe { libc::epoll_ctl(self.set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        // A queue may be added for sends and for receives.
        code == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EEXIST)
    }

    /// The descriptor for the program.
    pub(super) fn fd(&self) -> c_int {
        self.set.as_raw_fd()
    }

    /// Answers `fi_control` for a queue, which has a descriptor if programs may wait by one.
    ///
    /// # Safety
    ///
    /// The argument is what the command takes: to get the descriptor, a place for it.
    pub(super) unsafe fn control(
        wait: Option<&Self>,
        command: c_int,
        argument: *mut c_void,
    ) -> c_int {
        let Some(wait) = wait.filter(|_| command == abi::CONTROL_GETWAIT) else {
            return abi::NO_FUNCTION;
        };
        // SAFETY: guaranteed by the caller.
        unsafe { argument.cast::<c_int>().write(wait.fd()) };
        0
    }

    /// Makes it readable.
    pub(super) fn notify(&self) {
        // SAFETY: the pointer is good. If the event's count is full, it is readable already.
        unsafe { libc::write(self.event.as_raw_fd(), (&raw const ONE).cast(), 8) };
    }

    /// Ends the effect of [`Self::notify`].
    pub(super) fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: the pointer is good.
        unsafe { libc::read(self.event.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    /// Sleeps until it is readable, or the time has passed.
    pub(super) fn sleep(&self, timeout: Duration) {
        let timeout = c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX);
        let mut set = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the pointer is good.
        unsafe { libc::poll(&mut set, 1, timeout) };
    }
}

static ONE: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn notified_set_wakes_until_cleared() {
        let set = WaitSet::new().unwrap();
        let is_readable = || {
            let start = Instant::now();
            set.sleep(Duration::from_millis(300));
            start.elapsed() < Duration::from_millis(300)
        };
        assert!(!is_readable());
        set.notify();
        set.notify();
        assert!(is_readable() && is_readable());
        set.clear();
        assert!(!is_readable());
    }
}
