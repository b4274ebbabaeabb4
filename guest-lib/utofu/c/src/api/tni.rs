//! Interfaces and their capabilities, versions, and coordinates.

use std::ffi::{c_int, c_uint, c_ulong};

use tofu_abi::reduce::MAX_UTOFU_INTEGERS;
use tofu_abi::{Generation, TniId};
use tofu_utofu::command::{MAX_GAP, MAX_PACKET, MAX_PUTGET_SIZE, MAX_TOQ_DESC_SIZE};
use tofu_utofu::ids::{NUM_CMP_IDS, NUM_RESERVED_STAGS, check_tni};
use tofu_utofu::{Code, Error};

use crate::call::{Out, call, malloced};
use crate::process;

/// `struct utofu_onesided_caps`: the capabilities of an interface. Sizes are in bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct OnesidedCaps {
    /// `UTOFU_ONESIDED_CAP_FLAG_`...
    pub flags: c_ulong,
    /// `UTOFU_ONESIDED_CAP_ARMW_OP_`...
    pub armw_ops: c_ulong,
    /// Number of component IDs.
    pub num_cmp_ids: c_uint,
    /// Number of steering tags that programs can choose.
    pub num_reserved_stags: c_uint,
    /// Size of a cache line.
    pub cache_line_size: usize,
    /// Alignment of memory under a reserved tag.
    pub stag_address_alignment: usize,
    /// The most descriptor bytes of one command.
    pub max_toq_desc_size: usize,
    /// The most data of a Put or Get.
    pub max_putget_size: usize,
    /// The most data of a piggyback Put.
    pub max_piggyback_size: usize,
    /// Size of data for notices.
    pub max_edata_size: usize,
    /// The most data of a packet.
    pub max_mtu: usize,
    /// The longest gap between packets, in units of the device.
    pub max_gap: usize,
}

/// `struct utofu_barrier_caps`: the capabilities of an interface's barrier gates.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BarrierCaps {
    /// No flags are defined.
    pub flags: c_ulong,
    /// `UTOFU_BARRIER_CAP_REDUCE_OP_`...
    pub reduce_ops: c_ulong,
    /// The most integers of a reduction.
    pub max_uint64_reduction: usize,
    /// The most floating-point numbers of a reduction.
    pub max_double_reduction: usize,
}

/// Returns the capabilities of a generation's interfaces: those that Fugaku's report, without what
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

/// Returns the capabilities of interfaces with barrier gates.
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
/// `UTOFU_BARRIER_CAP_REDUCE_OP_MAXLOC`, which takes two integers, and so does not exist with one
/// element.
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
        // SAFETY: guaranteed by the caller.
        let (list, count) =
            unsafe { (Out::new(tni_ids, "tni_ids")?, Out::new(num_tnis, "num_tnis")?) };
        let (process, _) = process::current()?;
        let tnis: Vec<u16> = of(process).into_iter().map(|tni| tni.get().into()).collect();
        list.set(malloced(&tnis)?);
        count.set(tnis.len());
        Ok(())
    })
}

/// Writes a list of the interfaces that the process can use for one-sided communication. The caller
/// frees it with `free()`.
///
/// # Safety
///
/// Pointers are null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_get_onesided_tnis(
    tni_ids: *mut *mut u16,
    num_tnis: *mut usize,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe {
        tnis("utofu_get_onesided_tnis", tni_ids, num_tnis, |process| {
            process.share().tnis().collect()
        })
    }
}

/// Writes a list of the interfaces that the process can use for barriers. The caller frees it with
/// `free()`.
///
/// # Safety
///
/// Pointers are null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_get_barrier_tnis(
    tni_ids: *mut *mut u16,
    num_tnis: *mut usize,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe {
        tnis("utofu_get_barrier_tnis", tni_ids, num_tnis, |process| {
            process.barrier_tnis().collect()
        })
    }
}

/// Reports the capabilities of an interface. The structure belongs to the library and must not be
/// freed.
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
        // SAFETY: guaranteed by the caller.
        let caps = unsafe { Out::new(tni_caps, "tni_caps")? };
        check_own(tni_id)?;
        caps.set((&raw const ONESIDED[process::generation() as usize]).cast_mut());
        Ok(())
    })
}

/// Reports the capabilities of an interface's barrier gates. The structure belongs to the library
/// and must not be freed.
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
        // SAFETY: guaranteed by the caller.
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

/// Reports the coordinates of the node: six bytes, X Y Z A B C.
///
/// # Safety
///
/// The pointer is null or points to six bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_query_my_coords(coords: *mut u8) -> c_int {
    call("utofu_query_my_coords", || {
        // SAFETY: guaranteed by the caller.
        let coords = unsafe { Out::new(coords, "coords")? };
        coords.set_all(&process::current()?.0.coords().to_array());
        Ok(())
    })
}

/// Version of the API.
const UTOFU: (c_int, c_int) = (1, 0);

unsafe fn version(major: *mut c_int, minor: *mut c_int, version: (c_int, c_int)) {
    for (at, value) in [(major, version.0), (minor, version.1)] {
        // SAFETY: guaranteed by the caller. Null means that the number is not wanted.
        if let Ok(out) = unsafe { Out::new(at, "version") } {
            out.set(value);
        }
    }
}

/// Reports the version of the interconnect: 1 for Tofu, 2 for Tofu2, 3 for TofuD.
///
/// # Safety
///
/// Pointers are null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_query_tofu_version(major_ver: *mut c_int, minor_ver: *mut c_int) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        version(major_ver, minor_ver, (process::generation().description().version.into(), 0))
    }
}

/// Reports the version of the API.
///
/// # Safety
///
/// Pointers are null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utofu_query_utofu_version(major_ver: *mut c_int, minor_ver: *mut c_int) {
    // SAFETY: guaranteed by the caller.
    unsafe { version(major_ver, minor_ver, UTOFU) }
}
