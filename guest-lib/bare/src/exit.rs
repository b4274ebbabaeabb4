//! The end of the program.

use crate::console;
use crate::service::out32;

const PORT_EXIT: u16 = 0xf4;

/// Exit code after a panic.
pub const EXIT_PANIC: i32 = 101;
/// Exit code after an unhandled exception.
pub const EXIT_EXCEPTION: i32 = 102;

/// Ends the program with `code`, 0 for success. Prints what has not been sent
/// yet.
pub fn exit(code: i32) -> ! {
    console::flush();
    loop {
        out32(PORT_EXIT, code as u32);
    }
}
