//! Interrupts: eventfds that the server signals.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tofu_driver::IrqError;
use tofu_vfio_user::Client;

/// The vectors that are in use.
#[derive(Debug, Default)]
pub(crate) struct Interrupts(Mutex<HashMap<u16, Arc<OwnedFd>>>);

impl Interrupts {
    /// Has the server signal a vector.
    pub(crate) fn enable(&self, client: &Client, vector: u16) -> Result<(), IrqError> {
        let mut events = tofu_sync::lock(&self.0);
        if events.contains_key(&vector) {
            return Ok(());
        }
        let error = IrqError { vector };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = eventfd(0, flags).map_err(|_| error)?;
        client.bind_vector(vector, event.as_fd()).map_err(|_| error)?;
        events.insert(vector, Arc::new(event));
        Ok(())
    }

    /// The eventfd of a vector that is enabled.
    pub(crate) fn event(&self, vector: u16) -> Option<Arc<OwnedFd>> {
        tofu_sync::lock(&self.0).get(&vector).cloned()
    }

    /// The number of that descriptor.
    pub(crate) fn descriptor(&self, vector: u16) -> Option<i32> {
        self.event(vector).map(|event| event.as_raw_fd())
    }

    /// Waits until a vector has fired since the last successful wait; false after `timeout_ns`
    /// nanoseconds, or if it is not enabled.
    pub(crate) fn wait(&self, vector: u16, timeout_ns: u64) -> bool {
        const SECOND: u64 = 1_000_000_000;
        let Some(event) = self.event(vector) else { return false };
        let timeout = Timespec {
            tv_sec: (timeout_ns / SECOND) as i64,
            tv_nsec: (timeout_ns % SECOND) as i64,
        };
        let mut ready = [PollFd::new(&event, PollFlags::IN)];
        // An error, such as EINTR, means that nothing has fired; the waiting caller checks the
        // time.
        let fired = poll(&mut ready, Some(&timeout)).is_ok_and(|ready| ready > 0);
        fired && rustix::io::read(&event, &mut [0; 8]).is_ok()
    }
}
