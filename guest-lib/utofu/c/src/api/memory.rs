//! Registered memory.

use std::ffi::{c_int, c_uint, c_ulong, c_void};

use tofu_utofu::ids::{Stadd, VcqId};
use tofu_utofu::{Code, Error, flags};

use crate::call::{Out, call};
use crate::handle;

unsafe fn register(
    function: &'static str,
    vcq_hdl: usize,
    addr: *mut c_void,
    size: usize,
    stag: Option<u32>,
    flags: c_ulong,
    stadd: *mut u64,
) -> c_int {
    call(function, || {
        let (queue, ticket) = handle::find(vcq_hdl)?;
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(stadd, "stadd")? };
        if addr.is_null() {
            return Err(Error::new(Code::InvalidAddress, "addr", "a null pointer"));
        }
        // SAFETY: guaranteed by the caller.
        let stadd = unsafe { queue.register(ticket, addr as usize, size, stag, flags)? };
        out.set(stadd.0);
        Ok(())
    })
}

/// Registers memory under a steering tag that the library chooses.
///
/// # Safety
///
/// The memory stays mapped until it is deregistered. `stadd` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_reg_mem(
    vcq_hdl: usize,
    addr: *mut c_void,
    size: usize,
    flags: c_ulong,
    stadd: *mut u64,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { register("utofu_reg_mem", vcq_hdl, addr, size, None, flags, stadd) }
}

/// Registers memory under a reserved steering tag, 0 to 255.
///
/// # Safety
///
/// The memory stays mapped until it is deregistered. `stadd` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_reg_mem_with_stag(
    vcq_hdl: usize,
    addr: *mut c_void,
    size: usize,
    stag: c_uint,
    flags: c_ulong,
    stadd: *mut u64,
) -> c_int {
    let function = "utofu_reg_mem_with_stag";
    // SAFETY: guaranteed by the caller.
    unsafe { register(function, vcq_hdl, addr, size, Some(stag), flags, stadd) }
}

/// Computes the STADD of memory that a VCQ registers under a reserved steering tag, at an address
/// that is a multiple of 256.
///
/// # Safety
///
/// The pointer is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_query_stadd(vcq_id: u64, stag: c_uint, stadd: *mut u64) -> c_int {
    call("utofu_query_stadd", || {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(stadd, "stadd")? };
        out.set(Stadd::reserved(VcqId::check(vcq_id)?, stag)?.0);
        Ok(())
    })
}

/// Ends a registration.
#[unsafe(no_mangle)]
pub extern "C" fn utofu_dereg_mem(vcq_hdl: usize, stadd: u64, flags: c_ulong) -> c_int {
    call("utofu_dereg_mem", || {
        let (queue, ticket) = handle::find(vcq_hdl)?;
        flags::check(flags, 0, "flags")?;
        queue.deregister(ticket, stadd)
    })
}
