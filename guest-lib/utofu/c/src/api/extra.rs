//! Functions that are not in `utofu.h`.

use std::ffi::{c_char, c_int, c_uint};

use crate::call::{Out, call, last_error};
use crate::process;

/// Writes a sentence about the calling thread's last error: the function, the code, the value at
/// fault, and what would be right. The sentence is empty if there was no error. Programs declare
/// this function themselves.
///
/// # Safety
///
/// The pointer is null or points to 1024 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_get_last_error(msg: *mut c_char) {
    last_error(msg);
}

/// With `TOFU_PROVIDER=inproc`: makes the calling thread a thread of process `process` of the
/// machine. Threads that have not called it belong to process 0. Handles work in all threads.
#[unsafe(no_mangle)]
pub extern "C" fn tofu_inproc_select(process: c_uint) -> c_int {
    call("tofu_inproc_select", || process::select(process as usize))
}

/// Reports the number of processes: nodes times `TOFU_PPN`.
///
/// # Safety
///
/// The pointer is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tofu_inproc_count(count: *mut c_uint) -> c_int {
    call("tofu_inproc_count", || {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(count, "count")? };
        out.set(process::count()? as c_uint);
        Ok(())
    })
}
