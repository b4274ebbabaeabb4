//! Paths.

use std::ffi::c_int;

use tofu_abi::{Coords, Path};
use tofu_utofu::Error;
use tofu_utofu::ids::{PATH_COORD_NULL, VcqId};

use crate::call::{Out, bytes, call};
use crate::{link_state, process};

/// Reads a path. Returns `None` for the default path.
///
/// # Safety
///
/// The pointer is null or points to three bytes.
unsafe fn path(coords: *const u8) -> Result<Option<Path>, Error> {
    // SAFETY: guaranteed by the caller.
    let [a, b, c] = unsafe { bytes(coords, "path_coords")? };
    Ok((a != PATH_COORD_NULL).then_some(Path::new(a, b, c)))
}

/// Gives a VCQ ID another path: three bytes, A B C. Null, or `UTOFU_PATH_COORD_NULL` in the first
/// byte, means the path through the A, B, C of the node that calls, which is a shortest one, unless
/// that is known to meet a dead link; 0, 0, 0 if the process has no device.
///
/// # Safety
///
/// `vcq_id` is null or points to an ID; `path_coords` is null or points to three bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_set_vcq_id_path(vcq_id: *mut u64, path_coords: *mut u8) -> c_int {
    call("utofu_set_vcq_id_path", || {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(vcq_id, "vcq_id")? };
        let path = if path_coords.is_null() {
            None
        } else {
            // SAFETY: guaranteed by the caller.
            unsafe { path(path_coords)? }
        };
        let id = VcqId::check(out.get())?;
        let path = match path {
            Some(path) => {
                link_state::choose(id.coords(), path);
                path
            }
            None => {
                let here = process::here();
                let shortest = here.map_or(Path::new(0, 0, 0), Coords::default_path);
                link_state::path(id.coords(), shortest, || here)
            }
        };
        out.set(id.with_path(Some(path))?.0);
        Ok(())
    })
}

/// Reports the ID of a path, for the flags of a command to a VCQ ID.
///
/// # Safety
///
/// `path_coords` is null or points to three bytes; `path_id` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_get_path_id(
    vcq_id: u64,
    path_coords: *mut u8,
    path_id: *mut u8,
) -> c_int {
    call("utofu_get_path_id", || {
        // SAFETY: guaranteed by the caller.
        let (path, out) = unsafe { (path(path_coords)?, Out::new(path_id, "path_id")?) };
        let id = VcqId::check(vcq_id)?;
        out.set(path.map_or(Ok(0), |path| id.path_id_of(path))?);
        Ok(())
    })
}

/// Reports the path of a path ID in commands to a VCQ ID.
///
/// # Safety
///
/// `path_coords` is null or points to three bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_get_path_coords(
    vcq_id: u64,
    path_id: u8,
    path_coords: *mut u8,
) -> c_int {
    call("utofu_get_path_coords", || {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(path_coords, "path_coords")? };
        let path = VcqId::check(vcq_id)?.path_of_id(path_id)?;
        out.set_all(&[path.a, path.b, path.c]);
        Ok(())
    })
}
