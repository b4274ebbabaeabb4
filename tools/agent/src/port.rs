//! Messages to the host.

use std::io::Write;
use std::sync::{Arc, Mutex};

use tofu_sync::lock;

use crate::wire::{FromGuest, FromProgram, encode};

/// The connection to the host, shared by all programs.
pub(crate) struct Port {
    out: Mutex<Box<dyn Write + Send>>,
}

impl Port {
    pub(crate) fn new(out: Box<dyn Write + Send>) -> Self {
        Self { out: Mutex::new(out) }
    }

    /// Sends a message to the host. It waits if the host is absent or does not read.
    pub(crate) fn say(&self, message: &FromGuest) {
        let frame = match encode(message) {
            Ok(frame) => frame,
            Err(error) => return log::error!("not sent: {error}"),
        };
        let mut out = lock(&self.out);
        if let Err(error) = out.write_all(&frame).and_then(|()| out.flush()) {
            log::warn!("the host cannot be reached: {error}");
        }
    }
}

/// A program's way to the host.
pub(crate) struct Reports {
    port: Arc<Port>,
    pub(crate) id: u32,
}

impl Reports {
    pub(crate) fn new(port: Arc<Port>, id: u32) -> Self {
        Self { port, id }
    }

    pub(crate) fn say(&self, what: FromProgram) {
        self.port.say(&FromGuest::From { id: self.id, what });
    }
}
