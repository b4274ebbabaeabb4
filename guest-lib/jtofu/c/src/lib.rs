//! `libtofutop`: the C functions of `jtofu.h`, where they are documented. The work is done in
//! `tofu-jtofu`; this crate handles pointers and error codes.

mod code;
mod pointer;
mod state;

use std::ffi::{c_int, c_uint, c_void};
use std::slice;

use tofu_jtofu::{Coords, Jobs, Mapinfo, Path, PathTo, RouteError, System, dead_links};

use crate::code::{Code, run};
use crate::pointer::{Out, OutList, read};

/// Version of the API, as in `JTOFU_VERSION_MAJOR` and `_MINOR`.
const VERSION: (c_int, c_int) = (0, 0);
/// The longest text that is accepted as a mapinfo, in bytes.
const MAX_MAPINFO: usize = 64 << 20;

/// # Safety
/// `mapinfo` is null, or a C string, or at least one readable byte that is not `{`.
unsafe fn parse(mapinfo: *const c_void) -> Result<Mapinfo, Code> {
    // Anything else that the pointer may point to has no final 0 to look for.
    // SAFETY: there is a byte.
    if unsafe { read(mapinfo.cast::<u8>()) }? != b'{' {
        return Err(Code::invalid("the mapinfo is not of this library's format"));
    }
    // SAFETY: a C string.
    let text = unsafe {
        let len = libc::strnlen(mapinfo.cast(), MAX_MAPINFO);
        slice::from_raw_parts(mapinfo.cast::<u8>(), len)
    };
    let text = std::str::from_utf8(text).map_err(Code::invalid)?;
    Mapinfo::from_json(text).map_err(Code::invalid)
}

/// See `jtofu.h`.
///
/// # Safety
/// `mapinfo` is null or points to a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jtofu_initialize(job_id: u32, rank: u32, mapinfo: *const c_void) -> c_int {
    run(|| {
        if mapinfo.is_null() {
            return Err(Code::InvalidPointer);
        }
        // SAFETY: the caller guarantees a C string.
        state::initialize(job_id, rank, || unsafe { parse(mapinfo) })?;
        Ok(0)
    })
}

/// See `jtofu.h`.
#[unsafe(no_mangle)]
pub extern "C" fn jtofu_finalize() -> c_int {
    run(|| state::finalize().map(|()| 0))
}

/// See `jtofu.h`.
///
/// # Safety
/// `mapinfo` is null or points to a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jtofu_add_job(job_id: u32, mapinfo: *const c_void) -> c_int {
    run(|| {
        state::change(|jobs| {
            // SAFETY: the caller guarantees null or a C string.
            let info = unsafe { parse(mapinfo) }?;
            jobs.add(job_id, info).map_err(Code::invalid)
        })?;
        Ok(0)
    })
}

/// See `jtofu.h`.
#[unsafe(no_mangle)]
pub extern "C" fn jtofu_delete_job(job_id: u32) -> c_int {
    run(|| state::change(|jobs| jobs.delete(job_id).map_err(Code::invalid)).map(|()| 0))
}

/// Writes a value that the jobs know to where the caller wants it.
///
/// # Safety
/// `to` is null or may be written to.
unsafe fn give<T: Copy>(to: *mut T, known: impl FnOnce(&Jobs) -> Result<T, Code>) -> c_int {
    run(|| {
        let value = state::read(known)?;
        // SAFETY: guaranteed by the caller.
        unsafe { Out::new(to) }?.set(value);
        Ok(0)
    })
}

/// See `jtofu.h`.
///
/// # Safety
/// `sys_size` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jtofu_query_sys_size(sys_size: *mut [u8; 6]) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { give(sys_size, |jobs| Ok(jobs.system().shape().lengths())) }
}

/// See `jtofu.h`.
///
/// # Safety
/// `sys_torus` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jtofu_query_sys_torus(sys_torus: *mut [u8; 6]) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { give(sys_torus, |jobs| Ok(jobs.system().wraps().map(u8::from))) }
}

/// See `jtofu.h`.
///
/// # Safety
/// `ref_coords` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jtofu_query_ref_coords(ref_coords: *mut [u8; 6]) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { give(ref_coords, |jobs| Ok(jobs.own().reference().to_array())) }
}

/// See `jtofu.h`.
///
/// # Safety
/// `phys_size` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jtofu_query_phys_size(phys_size: *mut [u8; 6]) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { give(phys_size, |jobs| Ok(jobs.own().extent())) }
}

/// See `jtofu.h`.
///
/// # Safety
/// `log_size` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jtofu_query_log_size(log_size: *mut [u32; 3]) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { give(log_size, |jobs| Ok(jobs.own().shape().size())) }
}

/// Returns the answer of a job for a rank.
fn of_rank<T>(
    job: u32,
    rank: u32,
    answer: impl FnOnce(&tofu_jtofu::Job) -> Option<T>,
) -> Result<T, Code> {
    state::read(|jobs| {
        let known = jobs.job(job).map_err(Code::invalid)?;
        answer(known).ok_or_else(|| Code::invalid(format_args!("job {job} has no rank {rank}")))
    })
}

/// See `jtofu.h`.
///
/// # Safety
/// `phys_coords` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jtofu_query_phys_coords(
    job_id: u32,
    rank: u32,
    phys_coords: *mut [u8; 6],
) -> c_int {
    run(|| {
        initialized()?;
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(phys_coords) }?;
        out.set(of_rank(job_id, rank, |job| job.coords(rank))?.to_array());
        Ok(0)
    })
}

/// See `jtofu.h`.
///
/// # Safety
/// `log_coords` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jtofu_query_log_coords(
    job_id: u32,
    rank: u32,
    log_coords: *mut [u32; 3],
) -> c_int {
    run(|| {
        initialized()?;
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(log_coords) }?;
        out.set(of_rank(job_id, rank, |job| job.logical(rank))?);
        Ok(0)
    })
}

/// Checks what must be checked before any pointer.
fn initialized() -> Result<(), Code> {
    state::read(|_| Ok(()))
}

/// See `jtofu.h`.
#[unsafe(no_mangle)]
pub extern "C" fn jtofu_query_max_proc_per_node() -> c_int {
    run(|| state::read(|jobs| Ok(jobs.own().per_node() as c_int)))
}

/// See `jtofu.h`.
///
/// # Safety
/// `phys_coords` is null or may be read, `ranks` is null or has room for `max_ranks`, and
/// `num_ranks` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jtofu_query_ranks_from_phys_coords(
    job_id: u32,
    phys_coords: *const [u8; 6],
    max_ranks: usize,
    ranks: *mut u32,
    num_ranks: *mut usize,
) -> c_int {
    run(|| {
        initialized()?;
        // SAFETY: guaranteed by the caller.
        let (node, list, count) =
            unsafe { (read(phys_coords)?, OutList::new(ranks, max_ranks)?, Out::new(num_ranks)?) };
        let node = Coords::from_array(node);
        state::read(|jobs| {
            let job = jobs.job(job_id).map_err(Code::invalid)?;
            if !jobs.system().shape().contains(node) {
                return Err(Code::invalid(RouteError::NoSuchNode(node)));
            }
            count.set(list.set(job.ranks_at(node).iter().copied()));
            Ok(0)
        })
    })
}

/// See `jtofu.h`.
///
/// # Safety
/// As for `jtofu_query_ranks_from_phys_coords`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jtofu_query_ranks_from_log_coords(
    job_id: u32,
    log_coords: *const [u32; 3],
    max_ranks: usize,
    ranks: *mut u32,
    num_ranks: *mut usize,
) -> c_int {
    run(|| {
        initialized()?;
        // SAFETY: guaranteed by the caller.
        let (place, list, count) =
            unsafe { (read(log_coords)?, OutList::new(ranks, max_ranks)?, Out::new(num_ranks)?) };
        state::read(|jobs| {
            let job = jobs.job(job_id).map_err(Code::invalid)?;
            let ranks = job.ranks_at_logical(place).ok_or_else(|| {
                Code::invalid(format_args!(
                    "job {job_id}, a torus of {}, has no {place:?}",
                    job.shape()
                ))
            })?;
            count.set(list.set(ranks.iter().copied()));
            Ok(0)
        })
    })
}

/// Queries the paths to a node.
type Paths = fn(&System, Coords, Coords) -> Result<Vec<PathTo>, RouteError>;

/// Returns the paths to a node that avoid links known to be dead now, or, if there are none, the
/// paths of the machine as it was when the job started.
fn paths_now(paths: Paths, to: Coords) -> Result<Vec<PathTo>, Code> {
    let dead = dead_links();
    state::read(|jobs| {
        let find = |system: &System| paths(system, jobs.place(), to).map_err(Code::invalid);
        let system = jobs.system();
        let now = dead.map(|text| system.clone().without_dead_links(&text));
        let found = now.map_or(Ok(Vec::new()), |now| find(&now))?;
        if found.is_empty() { find(system) } else { Ok(found) }
    })
}

/// # Safety
/// As for `jtofu_query_onesided_paths`.
unsafe fn query_paths(
    paths: Paths,
    phys_coords: *const [u8; 6],
    max_paths: usize,
    path_coords: *mut [u8; 3],
    num_paths: *mut usize,
) -> c_int {
    run(|| {
        initialized()?;
        // SAFETY: guaranteed by the caller.
        let (node, list, count) = unsafe {
            (read(phys_coords)?, OutList::new(path_coords, max_paths)?, Out::new(num_paths)?)
        };
        let found = paths_now(paths, Coords::from_array(node))?;
        count.set(
            list.set(found.into_iter().map(|PathTo { path: Path { a, b, c }, .. }| [a, b, c])),
        );
        Ok(0)
    })
}

/// # Safety
/// As for `jtofu_query_onesided_hops`.
unsafe fn query_hops(paths: Paths, phys_coords: *const [u8; 6], num_hops: *mut usize) -> c_int {
    run(|| {
        initialized()?;
        // SAFETY: guaranteed by the caller.
        let (node, hops) = unsafe { (read(phys_coords)?, Out::new(num_hops)?) };
        let node = Coords::from_array(node);
        let found = paths_now(paths, node)?;
        let best = found
            .first()
            .ok_or_else(|| Code::invalid(format_args!("failures leave no path to {node}")))?;
        hops.set(best.hops as usize);
        Ok(0)
    })
}

/// See `jtofu.h`.
///
/// # Safety
/// `phys_coords` is null or may be read, `path_coords` is null or has room for
/// `max_paths`, and `num_paths` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jtofu_query_onesided_paths(
    phys_coords: *const [u8; 6],
    max_paths: usize,
    path_coords: *mut [u8; 3],
    num_paths: *mut usize,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { query_paths(System::onesided_paths, phys_coords, max_paths, path_coords, num_paths) }
}

/// See `jtofu.h`.
///
/// # Safety
/// As for `jtofu_query_onesided_paths`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jtofu_query_barrier_paths(
    phys_coords: *const [u8; 6],
    max_paths: usize,
    path_coords: *mut [u8; 3],
    num_paths: *mut usize,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { query_paths(System::barrier_paths, phys_coords, max_paths, path_coords, num_paths) }
}

/// See `jtofu.h`.
///
/// # Safety
/// `phys_coords` is null or may be read, and `num_hops` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jtofu_query_onesided_hops(
    phys_coords: *const [u8; 6],
    num_hops: *mut usize,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { query_hops(System::onesided_paths, phys_coords, num_hops) }
}

/// See `jtofu.h`.
///
/// # Safety
/// As for `jtofu_query_onesided_hops`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jtofu_query_barrier_hops(
    phys_coords: *const [u8; 6],
    num_hops: *mut usize,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { query_hops(System::barrier_paths, phys_coords, num_hops) }
}

/// See `jtofu.h`.
///
/// # Safety
/// Either pointer is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jtofu_query_jtofu_version(major_ver: *mut c_int, minor_ver: *mut c_int) {
    for (at, value) in [(major_ver, VERSION.0), (minor_ver, VERSION.1)] {
        // SAFETY: guaranteed by the caller.
        if let Ok(out) = unsafe { Out::new(at) } {
            out.set(value);
        }
    }
}

/// See `jtofu.h`.
///
/// # Safety
/// Each pointer is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jtofu_create_mapinfo_by_envvars(
    mapinfo: *mut *mut c_void,
    mapinfo_size: *mut usize,
    num_proc: *mut c_uint,
) -> c_int {
    run(|| {
        // SAFETY: guaranteed by the caller.
        let (out, size, processes) =
            unsafe { (Out::new(mapinfo)?, Out::new(mapinfo_size)?, Out::new(num_proc)?) };
        let info = tofu_jtofu::from_env().map_err(Code::invalid)?;
        let text = info.to_json();
        let len = text.len();
        // SAFETY: any size may be requested.
        let memory = unsafe { libc::malloc(len + 1) };
        if memory.is_null() {
            return Err(Code::OutOfMemory);
        }
        // SAFETY: freshly allocated for so many bytes and a final 0.
        unsafe {
            memory.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), len);
            memory.cast::<u8>().add(len).write(0);
        }
        out.set(memory);
        size.set(len + 1);
        processes.set(info.job.processes());
        Ok(0)
    })
}
