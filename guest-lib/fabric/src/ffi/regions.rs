//! Registration: memory that peers may read and write.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use super::abi::{self, Fid, IoVec, MrAttr, Ops, OpsMr, class};
use super::counter::Counter;
use super::object::{give, guard, lock, of, take};
use super::table::{Domain, Table};
use crate::core::Access;
use crate::memory::ProgramMemory;

/// The time that the end of a registration waits for operations that use it.
const AT_CLOSE: Duration = Duration::from_secs(2);

#[repr(C)]
struct Region {
    fid: Fid,
    desc: *mut c_void,
    key: u64,
    table: Arc<Table>,
}

static REGION: Ops = Ops { bind, control, ..Ops::closing(close) };
pub(super) static MR_OPS: OpsMr = OpsMr { size: size_of::<OpsMr>(), reg, regv, regattr };

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    guard(abi::OTHER, || {
        // SAFETY: the table is for regions.
        let region = unsafe { take::<Region>(fid) };
        lock(&region.table.counts).remove(&region.key);
        let Some(lease) = lock(&region.table.regions).remove(region.key) else { return 0 };
        // The program may unmap the memory after this.
        let start = Instant::now();
        while lease.is_used() {
            region.table.endpoints.progress();
            if start.elapsed() >= AT_CLOSE {
                return abi::BUSY;
            }
        }
        0
    })
}

/// Regions are those of all endpoints of a domain, and need not be bound to one. A counter counts
/// the uses of the region by peers.
unsafe extern "C" fn bind(fid: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    guard(abi::OTHER, || {
        // SAFETY: all objects begin with a `Fid`, and its class says what they are.
        let (class, region) = unsafe { ((*other).class, of::<Region>(fid)) };
        match class {
            class::EP => 0,
            class::CNTR if flags & !(abi::REMOTE_READ | abi::REMOTE_WRITE) == 0 => {
                // SAFETY: it is a counter.
                let count = unsafe { &of::<Counter>(other).count };
                let _ = count.domain.set(Arc::downgrade(&region.table.endpoints));
                lock(&region.table.counts).entry(region.key).or_default().bind(count, flags);
                0
            }
            class::CNTR => abi::INVALID,
            _ => abi::NO_FUNCTION,
        }
    })
}

/// A region is always enabled.
unsafe extern "C" fn control(_: *mut Fid, command: c_int, _: *mut c_void) -> c_int {
    if command == abi::CONTROL_ENABLE { 0 } else { abi::NO_FUNCTION }
}

/// Registers memory.
///
/// # Safety
///
/// The first pointer is that of a domain. The memory stays until the region is closed and allows
/// this access, and nothing else in the process uses it as Rust memory.
unsafe fn register(
    domain: *mut Fid,
    (base, length): (usize, usize),
    (access, key): (u64, u64),
    region: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    guard(abi::OTHER, || {
        // SAFETY: guaranteed by the caller.
        let table = Arc::clone(unsafe { &of::<Domain>(domain).table });
        // SAFETY: guaranteed by the caller.
        let memory = unsafe { ProgramMemory::new(std::iter::once((base, length))) };
        let access =
            Access { read: access & abi::REMOTE_READ != 0, write: access & abi::REMOTE_WRITE != 0 };
        let (key, base) = match table.is_basic {
            true => (table.next.fetch_add(1, SeqCst), base as u64),
            false => (key, 0),
        };
        if !lock(&table.regions).add(key, memory, base, access) {
            return -abi::ENOKEY;
        }
        let fid = Fid { class: class::MR, context, ops: &REGION };
        // SAFETY: guaranteed by the caller.
        unsafe { give(Region { fid, desc: std::ptr::null_mut(), key, table }, region) }
    })
}

unsafe extern "C" fn reg(
    domain: *mut Fid,
    base: usize,
    length: usize,
    access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    region: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { register(domain, (base, length), (access, key), region, context) }
}

unsafe extern "C" fn regv(
    domain: *mut Fid,
    iov: *const IoVec,
    count: usize,
    access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    region: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    if count != 1 {
        return abi::INVALID;
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        let IoVec { base, length } = iov.read();
        register(domain, (base, length), (access, key), region, context)
    }
}

unsafe extern "C" fn regattr(
    domain: *mut Fid,
    attr: *const MrAttr,
    _flags: u64,
    region: *mut *mut Fid,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let MrAttr { iov, count, access, key, context, .. } = &*attr;
        regv(domain, *iov, *count, *access, 0, *key, 0, region, *context)
    }
}
