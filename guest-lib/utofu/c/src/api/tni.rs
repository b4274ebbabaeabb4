//! Interfaces, what they can do, versions and coordinates.

use std::ffi::{c_int, c_uint, c_ulong};

use tofu_abi::reduce::MAX_UTOFU_INTEGERS;
use tofu_abi::{Generation, TniId};
use tofu_utofu::command::{MAX_GAP, MAX_PACKET, MAX_PUTGET_SIZE, MAX_TOQ_DESC_SIZE};
use tofu_utofu::ids::{NUM_CMP_IDS, NUM_RESERVED_STAGS, check_tni};
use tofu_utofu::{Code, Error};

use crate::call::{Out, call, malloced};
use crate::process;

/// `struct utofu_onesided_caps`: what an interface can do. Sizes are in bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct OnesidedCaps {
    /// `UTOFU_ONESIDED_CAP_FLAG_`...
    pub flags: c_ulong,
    /// `UTOFU_ONESIDED_CAP_ARMW_OP_`...
    pub armw_ops: c_ulong,
    /// Component IDs.
    pub num_cmp_ids: c_uint,
    /// Steering tags that programs choose.
    pub num_reserved_stags: c_uint,
    /// Cache line.
    pub cache_line_size: usize,
    /// Granularity of addresses of memory under a reserved tag.
    pub stag_address_alignment: usize,
    /// Descriptors of one command.
    pub max_toq_desc_size: usize,
    /// A Put or Get.
    pub max_putget_size: usize,
    /// A piggyback Put.
    pub max_piggyback_size: usize,
    /// Data for notices.
    pub max_edata_size: usize,
    /// Data of a packet.
    pub max_mtu: usize,
    /// Gap between packets, in units of the device.
    pub max_gap: usize,
}

/// `struct utofu_barrier_caps`: what the barrier gates of an interface can do.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BarrierCaps {
    /// None is defined.
    pub flags: c_ulong,
    /// `UTOFU_BARRIER_CAP_REDUCE_OP_`...
    pub reduce_ops: c_ulong,
    /// Integers of a reduction.
    pub max_uint64_reduction: usize,
    /// Floating-point numbers of a reduction.
    pub max_double_reduction: usize,
}

/// The capabilities of a generation's interfaces, as real ones of Fugaku report them, without what
/// other generations lack.
const fn onesided_caps(generation: Generation) -> OnesidedCaps {
    let description = generation.description();
    let session = if description.session_mode { SESSION_MODE } else { 0 };
    let atomics = if description.atomics { ARMW } else { 0 };
    OnesidedCaps {
        flags: session | atomics,
        armw_ops: if description.atomics { 0x3f } else { 0 },
        num_cmp_ids: NUM_CMP_IDS as c_uint,
        num_reserved_stags: NUM_RESERVED_STAGS,
        cache_line_size: 256,
        stag_address_alignment: 256,
        max_toq_desc_size: MAX_TOQ_DESC_SIZE,
        max_putget_size: MAX_PUTGET_SIZE,
        max_piggyback_size: description.piggyback as usize,
        max_edata_size: 1,
        max_mtu: MAX_PACKET,
        max_gap: MAX_GAP,
    }
}

/// `UTOFU_ONESIDED_CAP_FLAG_SESSION_MODE` and `_ARMW`.
const SESSION_MODE: c_ulong = 1 << 0;
const ARMW: c_ulong = 1 << 1;

/// What interfaces with barrier gates can do.
const fn barrier_caps(generation: Generation) -> BarrierCaps {
    let barrier = generation.description().barrier;
    let integers = barrier.integers as usize;
    BarrierCaps {
        flags: 0,
        reduce_ops: if integers < 2 { REDUCE_OPS & !MAXLOC } else { REDUCE_OPS },
        max_uint64_reduction: if integers < MAX_UTOFU_INTEGERS {
            integers
        } else {
            MAX_UTOFU_INTEGERS
        },
        max_double_reduction: barrier.doubles as usize,
    }
}

/// All operators.
const REDUCE_OPS: c_ulong = 0x1fe;
/// `UTOFU_BARRIER_CAP_REDUCE_OP_MAXLOC`, which takes two integers: one element is too few for it.
const MAXLOC: c_ulong = 1 << 6;

/// The library's structures, in the order of [`Generation::ALL`].
static ONESIDED: [OnesidedCaps; 4] = [
    onesided_caps(Generation::ALL[0]),
    onesided_caps(Generation::ALL[1]),
    onesided_caps(Generation::ALL[2]),
    onesided_caps(Generation::ALL[3]),
];
static BARRIER: [BarrierCaps; 4] = [
    barrier_caps(Generation::ALL[0]),
    barrier_caps(Generation::ALL[1]),
    barrier_caps(Generation::ALL[2]),
    barrier_caps(Generation::ALL[3]),
];

/// Checks the number of an interface of the process's device.
fn check_own(tni_id: u16) -> Result<TniId, Error> {
    let tni = check_tni(tni_id)?;
    match process::current() {
        Ok((process, _)) => process.check_tni(tni_id),
        Err(_) => Ok(tni),
    }
}

unsafe fn tnis(
    function: &'static str,
    tni_ids: *mut *mut u16,
    num_tnis: *mut usize,
    of: impl FnOnce(&process::Process) -> Vec<TniId>,
) -> c_int {
    call(function, || {
        // SAFETY: as promised to this function.
        let (list, count) =
            unsafe { (Out::new(tni_ids, "tni_ids")?, Out::new(num_tnis, "num_tnis")?) };
        let (process, _) = process::current()?;
        let tnis: Vec<u16> = of(process).into_iter().map(|tni| tni.get().into()).collect();
        list.set(malloced(&tnis)?);
        count.set(tnis.len());
        Ok(())
    })
}

/// Gives the caller a list of the interfaces that the process can use for one-sided
/// communication, to be freed with `free()`.
///
/// # Safety
///
/// Pointers are null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_get_onesided_tnis(
    tni_ids: *mut *mut u16,
    num_tnis: *mut usize,
) -> c_int {
    // SAFETY: as promised to this function.
    unsafe {
        tnis("utofu_get_onesided_tnis", tni_ids, num_tnis, |process| {
            process.share().tnis().collect()
        })
    }
}

/// Gives the caller a list of the interfaces that the process can use for barriers, to be freed
/// with `free()`.
///
/// # Safety
///
/// Pointers are null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_get_barrier_tnis(
    tni_ids: *mut *mut u16,
    num_tnis: *mut usize,
) -> c_int {
    // SAFETY: as promised to this function.
    unsafe {
        tnis("utofu_get_barrier_tnis", tni_ids, num_tnis, |process| {
            process.barrier_tnis().collect()
        })
    }
}

/// Tells what an interface can do. The structure is the library's: it is not to be freed.
///
/// # Safety
///
/// The pointer is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_query_onesided_caps(
    tni_id: u16,
    tni_caps: *mut *mut OnesidedCaps,
) -> c_int {
    call("utofu_query_onesided_caps", || {
        // SAFETY: as promised to this function.
        let caps = unsafe { Out::new(tni_caps, "tni_caps")? };
        check_own(tni_id)?;
        caps.set((&raw const ONESIDED[process::generation() as usize]).cast_mut());
        Ok(())
    })
}

/// Tells what the barrier gates of an interface can do. The structure is the library's: it is not
/// to be freed.
///
/// # Safety
///
/// The pointer is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_query_barrier_caps(
    tni_id: u16,
    tni_caps: *mut *mut BarrierCaps,
) -> c_int {
    call("utofu_query_barrier_caps", || {
        // SAFETY: as promised to this function.
        let caps = unsafe { Out::new(tni_caps, "tni_caps")? };
        let tni = check_own(tni_id)?;
        if tni.get() >= process::generation().description().barrier.tnis {
            let hint = "it has no barrier gates: see utofu_get_barrier_tnis";
            return Err(Error::with_value(Code::NotSupported, "TNI", tni_id.into(), hint));
        }
        caps.set((&raw const BARRIER[process::generation() as usize]).cast_mut());
        Ok(())
    })
}

/// Tells the coordinates of the node: six bytes, X Y Z A B C.
///
/// # Safety
///
/// The pointer is null or leads to six bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_query_my_coords(coords: *mut u8) -> c_int {
    call("utofu_query_my_coords", || {
        // SAFETY: as promised to this function.
        let coords = unsafe { Out::new(coords, "coords")? };
        coords.set_all(&process::current()?.0.coords().to_array());
        Ok(())
    })
}

/// Version of the API.
const UTOFU: (c_int, c_int) = (1, 0);

unsafe fn version(major: *mut c_int, minor: *mut c_int, version: (c_int, c_int)) {
    for (at, value) in [(major, version.0), (minor, version.1)] {
        // SAFETY: as promised to this function. A number that nobody wants is not written.
        if let Ok(out) = unsafe { Out::new(at, "version") } {
            out.set(value);
        }
    }
}

/// Tells the version of the interconnect: 1 for Tofu, 2 for Tofu2, 3 for TofuD.
///
/// # Safety
///
/// Pointers are null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_query_tofu_version(major_ver: *mut c_int, minor_ver: *mut c_int) {
    // SAFETY: as promised to this function.
    unsafe {
        version(major_ver, minor_ver, (process::generation().description().version.into(), 0))
    }
}

/// Tells the version of the API.
///
/// # Safety
///
/// Pointers are null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_query_utofu_version(major_ver: *mut c_int, minor_ver: *mut c_int) {
    // SAFETY: as promised to this function.
    unsafe { version(major_ver, minor_ver, UTOFU) }
}
