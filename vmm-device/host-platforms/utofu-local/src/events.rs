//! MSI-X vectors of a node in this process, as eventfds.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tofu_abi::irq::vector;
use tofu_pci::MsiSink;

/// Bytes of an entry of the MSI-X table, and where its last word is, with the bit that masks it.
const ENTRY_SIZE: u64 = 16;
const CONTROL: u64 = 12;

/// The offset of the word that masks a vector, in the BAR of the MSI-X table.
pub(crate) const fn control(vector: u16) -> u64 {
    vector as u64 * ENTRY_SIZE + CONTROL
}

/// The vectors of one device. Only those that are enabled have a descriptor.
#[derive(Debug)]
pub(crate) struct Events([OnceLock<OwnedFd>; vector::COUNT as usize]);

impl Default for Events {
    fn default() -> Self {
        Self([const { OnceLock::new() }; vector::COUNT as usize])
    }
}

impl Events {
    fn get(&self, vector: u16) -> Option<&OwnedFd> {
        self.0.get(usize::from(vector))?.get()
    }

    /// Gives a vector an eventfd; false if there is no such vector, or no descriptor is left.
    pub(crate) fn enable(&self, vector: u16) -> bool {
        let Some(place) = self.0.get(usize::from(vector)) else { return false };
        if place.get().is_none() {
            match eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) {
                Ok(event) => drop(place.set(event)),
                Err(_) => return false,
            }
        }
        true
    }

    pub(crate) fn descriptor(&self, vector: u16) -> Option<i32> {
        self.get(vector).map(AsRawFd::as_raw_fd)
    }

    /// See [`tofu_driver::Platform::irq_wait`].
    pub(crate) fn wait(&self, vector: u16, timeout_ns: u64) -> bool {
        const SECOND: u64 = 1_000_000_000;
        let Some(event) = self.get(vector) else { return false };
        let timeout = Timespec {
            tv_sec: (timeout_ns / SECOND) as i64,
            tv_nsec: (timeout_ns % SECOND) as i64,
        };
        let mut ready = [PollFd::new(event, PollFlags::IN)];
        // An error, such as EINTR, means that nothing has fired; the waiting caller checks the
        // time.
        let fired = poll(&mut ready, Some(&timeout)).is_ok_and(|ready| ready > 0);
        fired && rustix::io::read(event, &mut [0; 8]).is_ok()
    }
}

impl MsiSink for Events {
    fn notify(&self, vector: u16, _: u64, _: u32) {
        if let Some(event) = self.get(vector) {
            // It fails only if the counter is full, and then it is readable.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
    }

    fn update(&self, _: u16, _: u64, _: u32, _: bool) {}
}
