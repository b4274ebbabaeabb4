//! Sleep until there is something to poll.

use std::ffi::c_int;
use std::time::Duration;

use tofu_utofu::{Code, Error};

use crate::call::{Out, call};
use crate::handle;

/// Sleeps until the VCQ has a completion or a notice, for at most `timeout_ns` nanoseconds, or
/// without end if that is negative.
#[unsafe(no_mangle)]
pub extern "C" fn tofu_wait(vcq_hdl: usize, timeout_ns: i64) -> c_int {
    call("tofu_wait", || {
        let (queue, ticket) = handle::find(vcq_hdl)?;
        let timeout = u64::try_from(timeout_ns).map_or(Duration::MAX, Duration::from_nanos);
        let nothing = Error::new(Code::NotFound, "completions and notices", "none came in time");
        if queue.wait(ticket, timeout)? { Ok(()) } else { Err(nothing) }
    })
}

/// Reports the descriptor of a VCQ.
///
/// # Safety
///
/// The pointer is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tofu_wait_fd(vcq_hdl: usize, fd: *mut c_int) -> c_int {
    call("tofu_wait_fd", || {
        let (queue, ticket) = handle::find(vcq_hdl)?;
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(fd, "fd")? };
        out.set(queue.wait_fd(ticket)?);
        Ok(())
    })
}
