//! Barrier gates, which the device does not have yet: their functions say so, after checking
//! what is to be checked.

use std::ffi::{c_int, c_uint, c_ulong};

use tofu_utofu::error::null;
use tofu_utofu::ids::{VbgId, check_tni};
use tofu_utofu::{Code, Error, flags};

use crate::call::{Out, call};

/// `struct utofu_vbg_setting`: the links of a gate.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct VbgSetting {
    /// The gate.
    pub vbg_id: u64,
    /// Input from the own node.
    pub src_lcl_vbg_id: u64,
    /// Input from another node.
    pub src_rmt_vbg_id: u64,
    /// Output to the own node.
    pub dst_lcl_vbg_id: u64,
    /// Output to another node.
    pub dst_rmt_vbg_id: u64,
    /// Path to the other node.
    pub dst_path_coords: [u8; 3],
}

/// The only flag of a VBG.
const THREAD_SAFE: c_ulong = 1;

fn none() -> Result<(), Error> {
    Err(Error::new(Code::NotSupported, "barrier gates", "this device has none that work"))
}

fn check_pointer<T>(at: *const T, what: &'static str) -> Result<(), Error> {
    if at.is_null() { Err(null(what)) } else { Ok(()) }
}

/// Allocates barrier gates; the first one is a start and end gate.
///
/// # Safety
///
/// The pointer is null or leads to as many IDs as are asked for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_alloc_vbg(
    tni_id: u16,
    num_vbgs: usize,
    flags: c_ulong,
    vbg_ids: *mut u64,
) -> c_int {
    call("utofu_alloc_vbg", || {
        check_pointer(vbg_ids, "vbg_ids")?;
        check_tni(tni_id)?;
        flags::check(flags, THREAD_SAFE, "flags of a VBG")?;
        check_number(num_vbgs)?;
        none()
    })
}

fn check_number(number: usize) -> Result<(), Error> {
    if number == 0 {
        return Err(Error::new(Code::InvalidNumber, "number of VBGs 0", "there is at least one"));
    }
    Ok(())
}

/// Frees barrier gates.
///
/// # Safety
///
/// The pointer is null or leads to as many IDs as the number says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_free_vbg(vbg_ids: *mut u64, num_vbgs: usize) -> c_int {
    call("utofu_free_vbg", || {
        check_pointer(vbg_ids, "vbg_ids")?;
        check_number(num_vbgs)?;
        none()
    })
}

/// Links barrier gates.
///
/// # Safety
///
/// The pointer is null or leads to as many settings as the number says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_set_vbg(
    vbg_settings: *mut VbgSetting,
    num_vbg_settings: usize,
) -> c_int {
    call("utofu_set_vbg", || {
        check_pointer(vbg_settings, "vbg_settings")?;
        check_number(num_vbg_settings)?;
        none()
    })
}

/// Takes a VBG ID apart.
///
/// # Safety
///
/// `coords` is null or leads to six bytes; the other pointers are null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_query_vbg_info(
    vbg_id: u64,
    coords: *mut u8,
    tni_id: *mut u16,
    bg_id: *mut u16,
    extra_val: *mut u16,
) -> c_int {
    call("utofu_query_vbg_info", || {
        // SAFETY: as promised to this function.
        let (coords, tni, bg, extra) = unsafe {
            (
                Out::new(coords, "coords")?,
                Out::new(tni_id, "tni_id")?,
                Out::new(bg_id, "bg_id")?,
                Out::new(extra_val, "extra_val")?,
            )
        };
        let id = VbgId::check(vbg_id)?;
        coords.set_all(&id.coords().to_array());
        tni.set(id.tni().into());
        bg.set(id.bg().into());
        extra.set(0);
        Ok(())
    })
}

fn check_round(vbg_id: u64, op: c_uint, flags: c_ulong) -> Result<(), Error> {
    VbgId::check(vbg_id)?;
    if !(1..=8).contains(&op) {
        let hint = "operations are 1 to 8 (enum utofu_reduce_op)";
        return Err(Error::with_value(Code::InvalidOp, "operation", op.into(), hint));
    }
    flags::check(flags, 0, "flags")?;
    none()
}

/// Starts a barrier.
#[unsafe(no_mangle)]
pub extern "C" fn utofu_barrier(vbg_id: u64, flags: c_ulong) -> c_int {
    call("utofu_barrier", || check_round(vbg_id, 1, flags))
}

/// Starts a reduction of integers.
///
/// # Safety
///
/// The pointer is null or leads to as many numbers as are to be reduced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_reduce_uint64(
    vbg_id: u64,
    op: c_uint,
    data: *mut u64,
    num_data: usize,
    flags: c_ulong,
) -> c_int {
    let _ = num_data;
    call("utofu_reduce_uint64", || {
        check_pointer(data, "data")?;
        check_round(vbg_id, op, flags)
    })
}

/// Starts a reduction of floating-point numbers.
///
/// # Safety
///
/// The pointer is null or leads to as many numbers as are to be reduced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_reduce_double(
    vbg_id: u64,
    op: c_uint,
    data: *mut f64,
    num_data: usize,
    flags: c_ulong,
) -> c_int {
    let _ = num_data;
    call("utofu_reduce_double", || {
        check_pointer(data, "data")?;
        check_round(vbg_id, op, flags)
    })
}

/// Asks whether a barrier is over.
#[unsafe(no_mangle)]
pub extern "C" fn utofu_poll_barrier(vbg_id: u64, flags: c_ulong) -> c_int {
    call("utofu_poll_barrier", || check_round(vbg_id, 1, flags))
}

/// Asks whether a reduction of integers is over, and for its result.
///
/// # Safety
///
/// The pointer is null or leads to as many numbers as are reduced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_poll_reduce_uint64(
    vbg_id: u64,
    flags: c_ulong,
    data: *mut u64,
) -> c_int {
    call("utofu_poll_reduce_uint64", || {
        check_pointer(data, "data")?;
        check_round(vbg_id, 1, flags)
    })
}

/// Asks whether a reduction of floating-point numbers is over, and for its result.
///
/// # Safety
///
/// The pointer is null or leads to as many numbers as are reduced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_poll_reduce_double(
    vbg_id: u64,
    flags: c_ulong,
    data: *mut f64,
) -> c_int {
    call("utofu_poll_reduce_double", || {
        check_pointer(data, "data")?;
        check_round(vbg_id, 1, flags)
    })
}
