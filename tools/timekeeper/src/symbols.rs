//! The functions and data that QEMU's executable exports.

use std::ffi::{CStr, c_void};
use std::process;

/// Ends QEMU with a line: a guest that is out of the machine's time is of no use.
pub(crate) fn end(why: &str) -> ! {
    eprintln!("libtofutime: {why}");
    process::exit(1)
}

/// The address of a symbol of QEMU's executable.
pub(crate) fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends with a zero; a null handle means the executable and its libraries.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if found.is_null() {
        let name = name.to_string_lossy();
        end(&format!("this QEMU has no {name}: 11.1 of Debian is known to work"));
    }
    found
}

/// A function of QEMU's executable.
///
/// # Safety
///
/// `F` is the type of a pointer to it.
pub(crate) unsafe fn function<F>(name: &CStr) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let found = symbol(name);
    // SAFETY: promised by the caller; both have the size of a pointer.
    unsafe { std::mem::transmute_copy(&found) }
}
