//! Functions that are not in `utofu.h`.

use std::ffi::{c_char, c_int, c_uint};

use crate::call::{Out, call, last_error};
use crate::process;

/// Writes a sentence about the calling thread's last error: the function, the code, the value at
/// fault, and what would be right. Empty if there was none. Programs declare this function
/// themselves.
///
/// # Safety
///
/// The pointer is null or leads to 1024 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_get_last_error(msg: *mut c_char) {
    last_error(msg);
}

/// With `TOFU_PROVIDER=inproc`: makes the calling thread one of process `process` of the machine.
/// A thread that has not called it belongs to process 0. Handles work in all threads.
#[unsafe(no_mangle)]
pub extern "C" fn tofu_inproc_select(process: c_uint) -> c_int {
    call("tofu_inproc_select", || process::select(process as usize))
}

/// Tells how many processes there are: nodes times `TOFU_PPN`.
///
/// # Safety
///
/// The pointer is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tofu_inproc_count(count: *mut c_uint) -> c_int {
    call("tofu_inproc_count", || {
        // SAFETY: as promised to this function.
        let out = unsafe { Out::new(count, "count")? };
        out.set(process::count()? as c_uint);
        Ok(())
    })
}
