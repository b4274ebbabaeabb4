//! Barrier gates, barriers and reductions.

use std::ffi::{c_int, c_uint, c_ulong};

use tofu_abi::reduce::{MAX_DOUBLES, MAX_UTOFU_INTEGERS};
use tofu_abi::regs::{NUM_BG, NUM_TNI};
use tofu_utofu::error::null;
use tofu_utofu::ids::VbgId;
use tofu_utofu::{Code, Error, VbgSetting as Setting};

use crate::call::{Out, call};
use crate::process;

/// `struct utofu_vbg_setting`: the links of a gate.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct VbgSetting {
    /// The gate.
    pub vbg_id: u64,
    /// Input from a gate of the same interface.
    pub src_lcl_vbg_id: u64,
    /// Input from any gate.
    pub src_rmt_vbg_id: u64,
    /// Output to a gate of the same interface.
    pub dst_lcl_vbg_id: u64,
    /// Output to any gate.
    pub dst_rmt_vbg_id: u64,
    /// Path to the gate of the remote output.
    pub dst_path_coords: [u8; 3],
}

/// The number of barrier gates of a node.
const NODE_GATES: usize = NUM_TNI * NUM_BG;

/// Reads a list of at most `most` values.
///
/// # Safety
///
/// `from` is null or points to `count` values.
unsafe fn list<T: Copy>(
    from: *const T,
    count: usize,
    most: usize,
    what: &'static str,
) -> Result<Vec<T>, Error> {
    if from.is_null() {
        return Err(null(what));
    }
    if count > most {
        let hint = "there cannot be so many";
        return Err(Error::with_value(Code::InvalidNumber, what, count as u64, hint));
    }
    let value = |i| {
        // SAFETY: guaranteed by the caller. The values may be unaligned, in a packed structure.
        unsafe { from.add(i).read_unaligned() }
    };
    Ok((0..count).map(value).collect())
}

/// Allocates barrier gates; the first one is a start and end gate.
///
/// # Safety
///
/// The pointer is null or points to as many IDs as are requested.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_alloc_vbg(
    tni_id: u16,
    num_vbgs: usize,
    flags: c_ulong,
    vbg_ids: *mut u64,
) -> c_int {
    call("utofu_alloc_vbg", || {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(vbg_ids, "vbg_ids")? };
        let ids = process::current()?.0.alloc_vbg(tni_id, num_vbgs, flags)?;
        let ids: Vec<u64> = ids.into_iter().map(u64::from).collect();
        out.set_all(&ids);
        Ok(())
    })
}

/// Frees barrier gates.
///
/// # Safety
///
/// The pointer is null or points to as many IDs as the number says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_free_vbg(vbg_ids: *mut u64, num_vbgs: usize) -> c_int {
    call("utofu_free_vbg", || {
        // SAFETY: guaranteed by the caller.
        let ids = unsafe { list(vbg_ids, num_vbgs, NODE_GATES, "number of VBGs")? };
        let ids = ids.into_iter().map(VbgId::check).collect::<Result<Vec<_>, _>>()?;
        process::owner()?.free_vbg(&ids)
    })
}

/// Links barrier gates.
///
/// # Safety
///
/// The pointer is null or points to as many settings as the number says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_set_vbg(
    vbg_settings: *mut VbgSetting,
    num_vbg_settings: usize,
) -> c_int {
    call("utofu_set_vbg", || {
        // SAFETY: guaranteed by the caller.
        let settings =
            unsafe { list(vbg_settings, num_vbg_settings, NODE_GATES, "number of VBGs")? };
        let check = |setting: VbgSetting| {
            let links = [
                setting.src_lcl_vbg_id,
                setting.src_rmt_vbg_id,
                setting.dst_lcl_vbg_id,
                setting.dst_rmt_vbg_id,
            ];
            Setting::check(setting.vbg_id, links, setting.dst_path_coords)
        };
        let settings = settings.into_iter().map(check).collect::<Result<Vec<_>, _>>()?;
        process::owner()?.set_vbg(&settings)
    })
}

/// Splits a VBG ID into its fields.
///
/// # Safety
///
/// `coords` is null or points to six bytes; the other pointers are null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_query_vbg_info(
    vbg_id: u64,
    coords: *mut u8,
    tni_id: *mut u16,
    bg_id: *mut u16,
    extra_val: *mut u16,
) -> c_int {
    call("utofu_query_vbg_info", || {
        // SAFETY: guaranteed by the caller.
        let (coords, tni, bg, extra) = unsafe {
            (
                Out::new(coords, "coords")?,
                Out::new(tni_id, "tni_id")?,
                Out::new(bg_id, "bg_id")?,
                Out::new(extra_val, "extra_val")?,
            )
        };
        let id = VbgId::check_of(vbg_id, process::generation())?;
        coords.set_all(&id.coords().to_array());
        tni.set(id.tni().into());
        bg.set(id.bg().into());
        extra.set(0);
        Ok(())
    })
}

/// Starts a barrier.
#[unsafe(no_mangle)]
pub extern "C" fn utofu_barrier(vbg_id: u64, flags: c_ulong) -> c_int {
    call("utofu_barrier", || process::owner()?.barrier(VbgId::check(vbg_id)?, flags))
}

/// Starts a reduction of integers.
///
/// # Safety
///
/// The pointer is null or points to as many numbers as are to be reduced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_reduce_uint64(
    vbg_id: u64,
    op: c_uint,
    data: *mut u64,
    num_data: usize,
    flags: c_ulong,
) -> c_int {
    call("utofu_reduce_uint64", || {
        // SAFETY: guaranteed by the caller.
        let data = unsafe { list(data, num_data, MAX_UTOFU_INTEGERS, "number of integers")? };
        process::owner()?.reduce_uint64(VbgId::check(vbg_id)?, op, &data, flags)
    })
}

/// Starts a reduction of floating-point numbers.
///
/// # Safety
///
/// The pointer is null or points to as many numbers as are to be reduced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_reduce_double(
    vbg_id: u64,
    op: c_uint,
    data: *mut f64,
    num_data: usize,
    flags: c_ulong,
) -> c_int {
    call("utofu_reduce_double", || {
        // SAFETY: guaranteed by the caller.
        let data = unsafe { list(data, num_data, MAX_DOUBLES, "number of doubles")? };
        process::owner()?.reduce_double(VbgId::check(vbg_id)?, op, &data, flags)
    })
}

/// Checks whether a barrier is complete.
#[unsafe(no_mangle)]
pub extern "C" fn utofu_poll_barrier(vbg_id: u64, flags: c_ulong) -> c_int {
    call("utofu_poll_barrier", || process::owner()?.poll_barrier(VbgId::check(vbg_id)?, flags))
}

/// Checks whether a reduction of integers is complete, and writes its results.
///
/// # Safety
///
/// The pointer is null or points to as many numbers as are reduced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_poll_reduce_uint64(
    vbg_id: u64,
    flags: c_ulong,
    data: *mut u64,
) -> c_int {
    call("utofu_poll_reduce_uint64", || {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(data, "data")? };
        let results = process::owner()?.poll_reduce_uint64(VbgId::check(vbg_id)?, flags)?;
        out.set_all(&results);
        Ok(())
    })
}

/// Checks whether a reduction of floating-point numbers is complete, and writes its results.
///
/// # Safety
///
/// The pointer is null or points to as many numbers as are reduced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_poll_reduce_double(
    vbg_id: u64,
    flags: c_ulong,
    data: *mut f64,
) -> c_int {
    call("utofu_poll_reduce_double", || {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(data, "data")? };
        let results = process::owner()?.poll_reduce_double(VbgId::check(vbg_id)?, flags)?;
        out.set_all(&results);
        Ok(())
    })
}
