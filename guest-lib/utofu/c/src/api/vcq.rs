//! VCQs and their IDs.

use std::ffi::{c_int, c_ulong};

use tofu_abi::Coords;
use tofu_utofu::ids::{VcqId, check_cmp_id, check_tni};

use crate::call::{Out, bytes, call};
use crate::{handle, link_state, process};

unsafe fn create(
    function: &'static str,
    tni_id: u16,
    cmp_id: Option<u16>,
    flags: c_ulong,
    vcq_hdl: *mut usize,
) -> c_int {
    call(function, || {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(vcq_hdl, "vcq_hdl")? };
        check_tni(tni_id)?;
        cmp_id.map(check_cmp_id).transpose()?;
        let (process, index) = process::current()?;
        let vcq = process.create_vcq(tni_id, cmp_id, flags)?;
        link_state::refresh();
        out.set(handle::give(vcq, index)?);
        Ok(())
    })
}

/// Creates a VCQ.
///
/// # Safety
///
/// The pointer is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_create_vcq(
    tni_id: u16,
    flags: c_ulong,
    vcq_hdl: *mut usize,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { create("utofu_create_vcq", tni_id, None, flags, vcq_hdl) }
}

/// Creates a VCQ whose ID peers can compute.
///
/// # Safety
///
/// The pointer is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_create_vcq_with_cmp_id(
    tni_id: u16,
    cmp_id: u16,
    flags: c_ulong,
    vcq_hdl: *mut usize,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { create("utofu_create_vcq_with_cmp_id", tni_id, Some(cmp_id), flags, vcq_hdl) }
}

/// Frees a VCQ, with everything that it has registered.
#[unsafe(no_mangle)]
pub extern "C" fn utofu_free_vcq(vcq_hdl: usize) -> c_int {
    call("utofu_free_vcq", || {
        let (queue, ticket) = handle::find(vcq_hdl)?;
        queue.free(ticket)
    })
}

/// Reports the ID of a VCQ.
///
/// # Safety
///
/// The pointer is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_query_vcq_id(vcq_hdl: usize, vcq_id: *mut u64) -> c_int {
    call("utofu_query_vcq_id", || {
        let (queue, ticket) = handle::find(vcq_hdl)?;
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(vcq_id, "vcq_id")? };
        out.set(queue.id(ticket)?.0);
        Ok(())
    })
}

/// Computes the ID of a VCQ with a component ID.
///
/// # Safety
///
/// `coords` is null or points to six bytes; `vcq_id` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_construct_vcq_id(
    coords: *mut u8,
    tni_id: u16,
    cq_id: u16,
    cmp_id: u16,
    vcq_id: *mut u64,
) -> c_int {
    call("utofu_construct_vcq_id", || {
        // SAFETY: guaranteed by the caller.
        let (coords, out) = unsafe { (bytes(coords, "coords")?, Out::new(vcq_id, "vcq_id")?) };
        let node = Coords::from_array(coords);
        let id = VcqId::construct(node, tni_id, cq_id, cmp_id)?;
        let path = link_state::path(node, node.default_path(), process::here);
        out.set(id.with_path(Some(path))?.0);
        Ok(())
    })
}

/// Splits a VCQ ID into its fields.
///
/// # Safety
///
/// `coords` is null or points to six bytes; the other pointers are null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_query_vcq_info(
    vcq_id: u64,
    coords: *mut u8,
    tni_id: *mut u16,
    cq_id: *mut u16,
    extra_val: *mut u16,
) -> c_int {
    call("utofu_query_vcq_info", || {
        // SAFETY: guaranteed by the caller.
        let (coords, tni, cq, extra) = unsafe {
            (
                Out::new(coords, "coords")?,
                Out::new(tni_id, "tni_id")?,
                Out::new(cq_id, "cq_id")?,
                Out::new(extra_val, "extra_val")?,
            )
        };
        let id = VcqId::check(vcq_id)?;
        coords.set_all(&id.coords().to_array());
        tni.set(id.tni().into());
        cq.set(id.cq().into());
        extra.set(id.extra().into());
        Ok(())
    })
}
