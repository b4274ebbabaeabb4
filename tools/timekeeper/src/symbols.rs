//! The functions and data that QEMU's executable exports.

use std::ffi::{CStr, c_void};
use std::process;

use tofu_process::Library;

/// Ends QEMU with a line: a guest that is out of the machine's time is of no use.
pub(crate) fn end(why: &str) -> ! {
    eprintln!("libtofutime: {why}");
    process::exit(1)
}

fn missing(name: &CStr) -> ! {
    let name = name.to_string_lossy();
    end(&format!("this QEMU has no {name}: 11.1 of Debian is known to work"))
}

/// The address of a symbol of QEMU's executable.
pub(crate) fn symbol(name: &CStr) -> *mut c_void {
    Library::PROCESS.symbol(name).unwrap_or_else(|| missing(name)).as_ptr()
}

/// A function of QEMU's executable.
///
/// # Safety
///
/// `F` is the type of a pointer to it.
pub(crate) unsafe fn function<F: Copy>(name: &CStr) -> F {
    // SAFETY: promised by the caller.
    unsafe { Library::PROCESS.function(name) }.unwrap_or_else(|| missing(name))
}
