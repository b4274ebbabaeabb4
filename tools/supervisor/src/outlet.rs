//! Output of the host to a guest. A guest may stop reading at any time, so a separate thread
//! writes, and no other thread waits for the guest.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use tofu_sync::queue::{self, Item, Sender, TrySendError, WhenFull};

/// Bytes that are written together.
struct Frame(Vec<u8>);

impl Item for Frame {
    fn bytes(&self) -> usize {
        self.0.len()
    }
}

/// A stream to a guest. Its thread ends with the last clone, or with the virtual machine.
#[derive(Clone)]
pub(crate) struct Outlet(Sender<Frame>);

impl Outlet {
    /// Writes to `stream`. At most `most` bytes wait for the guest, and a sender waits for room for
    /// `patience`.
    ///
    /// # Errors
    ///
    /// If the host has no threads left.
    pub(crate) fn new(
        mut stream: UnixStream,
        most: usize,
        patience: Duration,
    ) -> anyhow::Result<Self> {
        let (sender, frames) = queue::queue(most, WhenFull::WaitFor(patience));
        let write = move || {
            // An error means that the virtual machine has ended.
            while let Ok(Frame(bytes)) = frames.recv()
                && stream.write_all(&bytes).is_ok()
            {}
        };
        thread::Builder::new().name("outlet".into()).spawn(write).context("no threads left")?;
        Ok(Self(sender))
    }

    /// Sends a frame.
    ///
    /// # Errors
    ///
    /// If the guest has not read for long, or has ended.
    pub(crate) fn send(&self, frame: Vec<u8>) -> anyhow::Result<()> {
        told(self.0.send(Frame(frame)))
    }

    /// Sends a frame even if the guest has not read for long. These must be few.
    ///
    /// # Errors
    ///
    /// If the guest has ended.
    pub(crate) fn force(&self, frame: Vec<u8>) -> anyhow::Result<()> {
        told(self.0.force(Frame(frame)))
    }

    /// Sends a frame in place of all waiting ones.
    ///
    /// # Errors
    ///
    /// As [`Outlet::force`].
    pub(crate) fn replace(&self, frame: Vec<u8>) -> anyhow::Result<()> {
        told(self.0.replace(Frame(frame)))
    }
}

fn told(sent: Result<(), TrySendError<Frame>>) -> anyhow::Result<()> {
    match sent {
        Ok(()) => Ok(()),
        Err(TrySendError::Full(_)) => bail!("the guest does not read its input"),
        Err(TrySendError::Disconnected(_)) => bail!("the node has stopped"),
    }
}
