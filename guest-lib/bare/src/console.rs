//! Output to the VMM.

use core::cell::UnsafeCell;
use core::fmt::{self, Write};

use crate::cmdline;
use crate::service::{out_bytes, out32};

const SERIAL_PORT: u16 = 0x3f8;
const CAPACITY: usize = 1024;

/// Length and text follow each other as the VMM's print port takes them.
#[repr(C)]
struct Console {
    len: u32,
    bytes: [u8; CAPACITY],
    /// The print port, 0 for none.
    port: u16,
}

struct Shared(UnsafeCell<Console>);

// SAFETY: one CPU, one thread; exceptions end the program and interrupt handlers
// do not print.
unsafe impl Sync for Shared {}

static CONSOLE: Shared = Shared(UnsafeCell::new(Console { len: 0, bytes: [0; CAPACITY], port: 0 }));

impl Console {
    fn send(&mut self) {
        if self.len == 0 {
            return;
        }
        match self.port {
            // Emptied first: an exception on the way is reported through here
            // again.
            0 => {
                let len = core::mem::take(&mut self.len);
                out_bytes(SERIAL_PORT, &self.bytes[..len as usize]);
            }
            port => {
                out32(port, &raw const *self as u32);
                self.len = 0;
            }
        }
    }
}

impl Write for Console {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for byte in s.bytes() {
            self.bytes[self.len as usize] = byte;
            self.len += 1;
            if byte == b'\n' || self.len as usize == CAPACITY {
                self.send();
            }
        }
        Ok(())
    }
}

/// Formats first, a piece at a time, so that a `Display` that prints something
/// itself does not find the console in use.
struct Piecewise;

impl Write for Piecewise {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        // SAFETY: see `Shared`; the reference ends before anyone else's code runs.
        unsafe { &mut *CONSOLE.0.get() }.write_str(s)
    }
}

#[doc(hidden)]
pub fn print_args(args: fmt::Arguments<'_>) {
    // Only a failing Display ends up here, with its output cut short.
    let _ = Piecewise.write_fmt(args);
}

/// Sends an unfinished line.
pub(crate) fn flush() {
    // SAFETY: as in `Piecewise`.
    unsafe { &mut *CONSOLE.0.get() }.send();
}

/// Uses the VMM's print port if it offers one.
pub(crate) fn init() {
    if let Some(port) = cmdline::number("print").and_then(|port| u16::try_from(port).ok()) {
        // SAFETY: as in `Piecewise`.
        unsafe { &mut *CONSOLE.0.get() }.port = port;
    }
}
