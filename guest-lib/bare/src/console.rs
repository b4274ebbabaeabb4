//! The serial port.

use core::cell::UnsafeCell;
use core::fmt::{self, Write};

use crate::service::out_bytes;

const PORT: u16 = 0x3f8;
const CAPACITY: usize = 256;

struct Console {
    bytes: [u8; CAPACITY],
    len: usize,
}

struct Shared(UnsafeCell<Console>);

// SAFETY: one CPU, one thread; exceptions end the program and interrupt handlers
// do not print.
unsafe impl Sync for Shared {}

static CONSOLE: Shared = Shared(UnsafeCell::new(Console { bytes: [0; CAPACITY], len: 0 }));

impl Console {
    fn send(&mut self) {
        // Emptied first: an exception on the way is reported through here again.
        let len = core::mem::take(&mut self.len);
        if len > 0 {
            out_bytes(PORT, &self.bytes[..len]);
        }
    }
}

impl Write for Console {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for byte in s.bytes() {
            self.bytes[self.len] = byte;
            self.len += 1;
            if byte == b'\n' || self.len == CAPACITY {
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
