//! Interrupts: MSI-X vectors as eventfds.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tofu_abi::irq::vector;
use tofu_process::lock;
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_PCI_MSIX_IRQ_INDEX,
};
use vfio_ioctls::VfioDevice;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// Longer than this and a sleep is without end: the kernel's clock has no more seconds.
const LONG_NS: u64 = i64::MAX as u64;

/// The vectors of a device.
pub(crate) struct Interrupts {
    device: Arc<VfioDevice>,
    events: Vec<OnceLock<EventFd>>,
    /// True if MSI-X is enabled; locked while a vector is added.
    on: Mutex<bool>,
}

impl Interrupts {
    pub(crate) fn new(device: &Arc<VfioDevice>) -> Self {
        let offered = device.get_irq_info(VFIO_PCI_MSIX_IRQ_INDEX).map_or(0, |info| info.count);
        let count = offered.min(vector::COUNT.into());
        let events = (0..count).map(|_| OnceLock::new()).collect();
        Self { device: Arc::clone(device), events, on: Mutex::new(false) }
    }

    /// Makes a vector fire its eventfd.
    pub(crate) fn enable(&self, index: u16) -> io::Result<&EventFd> {
        let place = self.events.get(usize::from(index)).ok_or(io::ErrorKind::NotFound)?;
        let mut on = lock(&self.on);
        if let Some(event) = place.get() {
            return Ok(event);
        }
        let event = new_event()?;
        let fd = event.as_raw_fd();
        if *on {
            set_msix(&self.device, index.into(), &[fd])?;
        } else {
            // The first call decides how many vectors there can ever be. So it sets up all of them,
            // although only this one takes an interrupt of the system yet.
            let mut fds = vec![NONE; self.events.len()];
            fds[usize::from(index)] = fd;
            set_msix(&self.device, 0, &fds)?;
            *on = true;
        }
        Ok(place.get_or_init(|| event))
    }

    /// See [`tofu_driver::Platform::irq_fd`].
    pub(crate) fn descriptor(&self, index: u16) -> Option<i32> {
        self.events.get(usize::from(index))?.get().map(AsRawFd::as_raw_fd)
    }

    /// See [`tofu_driver::Platform::irq_wait`]. A vector that is not enabled never fires.
    pub(crate) fn wait(&self, index: u16, timeout_ns: u64) -> bool {
        let Some(event) = self.events.get(usize::from(index)).and_then(OnceLock::get) else {
            std::thread::sleep(Duration::from_nanos(timeout_ns));
            return false;
        };
        wait(borrow(event), timeout_ns)
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        if *self.on.get_mut().unwrap_or_else(PoisonError::into_inner)
            && let Err(error) = self.device.disable_msix()
        {
            log::warn!("switching MSI-X off: {error}");
        }
    }
}

/// An eventfd for interrupts.
pub(crate) fn new_event() -> io::Result<EventFd> {
    EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)
}

/// Waits until an eventfd was written, for `timeout_ns` nanoseconds at most, and resets it;
/// returns whether it was.
pub(crate) fn wait(event: BorrowedFd<'_>, timeout_ns: u64) -> bool {
    let take = || rustix::io::read(event, &mut [0; 8]).is_ok();
    if take() {
        return true;
    }
    if timeout_ns == 0 {
        return false;
    }
    let deadline = (timeout_ns < LONG_NS)
        .then(|| std::time::Instant::now().checked_add(Duration::from_nanos(timeout_ns)));
    loop {
        let left = match deadline.flatten() {
            None => None,
            Some(deadline) => {
                let left = deadline.saturating_duration_since(std::time::Instant::now());
                Timespec::try_from(left).ok()
            }
        };
        let mut fds = [PollFd::from_borrowed_fd(event, PollFlags::IN)];
        let polled = poll(&mut fds, left.as_ref());
        if take() {
            return true;
        }
        // A signal does not end the wait.
        if matches!(polled, Ok(0)) {
            return false;
        }
    }
}

const NONE: i32 = -1;

/// The two places with raw descriptor numbers.
#[allow(unsafe_code)]
mod raw {
    use super::{VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_PCI_MSIX_IRQ_INDEX};
    use std::io;
    use std::os::fd::{AsRawFd, BorrowedFd};
    use vfio_bindings::bindings::vfio::{VFIO_BASE, VFIO_TYPE};
    use vfio_ioctls::VfioDevice;
    use vmm_sys_util::eventfd::EventFd;
    use vmm_sys_util::ioctl::ioctl_with_ptr;
    use vmm_sys_util::ioctl_io_nr;

    ioctl_io_nr!(VFIO_DEVICE_SET_IRQS, VFIO_TYPE.into(), VFIO_BASE + 10);

    pub(crate) fn borrow(event: &EventFd) -> BorrowedFd<'_> {
        // SAFETY: open as long as `event`.
        unsafe { BorrowedFd::borrow_raw(event.as_raw_fd()) }
    }

    /// Connects MSI-X vectors from `start` on to eventfds; -1 leaves one out. vfio-ioctls can only
    /// set all vectors at once, which would drop interrupts of those in use.
    pub(super) fn set_msix(device: &VfioDevice, start: u32, fds: &[i32]) -> io::Result<()> {
        // vfio_irq_set: argsz, flags, index, start, count, then the descriptors.
        let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
        let size = (5 + fds.len()) * 4;
        let mut words = vec![size as u32, flags, VFIO_PCI_MSIX_IRQ_INDEX, start, fds.len() as u32];
        words.extend(fds.iter().map(|fd| *fd as u32));
        // SAFETY: the kernel reads `argsz` bytes, the size of the buffer.
        let result = unsafe { ioctl_with_ptr(device, VFIO_DEVICE_SET_IRQS(), words.as_ptr()) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
pub(crate) use raw::borrow;
use raw::set_msix;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn wait_takes_earlier_interrupts_and_ends() {
        let event = new_event().unwrap();
        assert!(!wait(borrow(&event), 0));
        event.write(3).unwrap();
        assert!(wait(borrow(&event), u64::MAX), "remembered");
        assert!(!wait(borrow(&event), 0), "consumed");
        let start = Instant::now();
        assert!(!wait(borrow(&event), 2_000_000));
        assert!(start.elapsed() >= Duration::from_millis(2));
    }

    #[test]
    fn endless_wait_is_woken() {
        let event = Arc::new(new_event().unwrap());
        let waker = Arc::clone(&event);
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            waker.write(1).unwrap();
        });
        assert!(wait(borrow(&event), u64::MAX));
        thread.join().unwrap();
    }
}
