//! Counters of operations that have ended.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::abi::{self, Fid, Ops, OpsCntr, class};
use super::object::{give, guard, of, take};
use super::progress::Bound;

/// The operations that counters can be bound for.
const COUNTED: [u64; 6] =
    [abi::SEND, abi::RECV, abi::READ, abi::WRITE, abi::REMOTE_READ, abi::REMOTE_WRITE];

/// The counters of an endpoint or a region, by operation.
#[derive(Default)]
pub(super) struct Counts([OnceLock<Arc<Count>>; COUNTED.len()]);

impl Counts {
    /// Binds a counter for the operations that the flags name.
    pub(super) fn bind(&self, count: &Arc<Count>, flags: u64) {
        for (flag, place) in COUNTED.iter().zip(&self.0) {
            if flags & flag != 0 {
                let _ = place.set(Arc::clone(count));
            }
        }
    }

    /// An operation with these flags has ended.
    pub(super) fn count(&self, flags: u64, good: bool) {
        for (flag, place) in COUNTED.iter().zip(&self.0) {
            if let Some(count) = place.get().filter(|_| flags & flag != 0) {
                let counter = if good { &count.good } else { &count.failed };
                counter.fetch_add(1, SeqCst);
            }
        }
    }
}

/// A counter.
#[derive(Default)]
pub(super) struct Count {
    good: AtomicU64,
    failed: AtomicU64,
    pub(super) endpoints: Bound,
    /// Those of the domain, if this counts the use of a region, which all of them serve.
    pub(super) domain: OnceLock<Weak<Bound>>,
}

impl Count {
    fn progress(&self) {
        self.endpoints.progress();
        if let Some(endpoints) = self.domain.get().and_then(Weak::upgrade) {
            endpoints.progress();
        }
    }
}

#[repr(C)]
pub(super) struct Counter {
    fid: Fid,
    ops: *const OpsCntr,
    pub(super) count: Arc<Count>,
}

static COUNTER: Ops = Ops::closing(close);
static COUNTER_OPS: OpsCntr =
    OpsCntr { size: size_of::<OpsCntr>(), read, readerr, add, set, wait, adderr, seterr };

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    guard(abi::OTHER, || {
        // SAFETY: the table is for counters.
        drop(unsafe { take::<Counter>(fid) });
        0
    })
}

pub(super) unsafe extern "C" fn open(
    _domain: *mut Fid,
    _attr: *mut c_void,
    counter: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    guard(abi::OTHER, || {
        let fid = Fid { class: class::CNTR, context, ops: &COUNTER };
        // SAFETY: guaranteed by the caller.
        unsafe { give(Counter { fid, ops: &COUNTER_OPS, count: Arc::default() }, counter) }
    })
}

/// Returns the counter behind a pointer.
///
/// # Safety
///
/// It is one.
unsafe fn count_of<'a>(counter: *mut Fid) -> &'a Count {
    // SAFETY: guaranteed by the caller.
    &unsafe { of::<Counter>(counter) }.count
}

unsafe extern "C" fn read(counter: *mut Fid) -> u64 {
    guard(0, || {
        // SAFETY: guaranteed by the caller.
        let count = unsafe { count_of(counter) };
        count.progress();
        count.good.load(SeqCst)
    })
}

unsafe extern "C" fn readerr(counter: *mut Fid) -> u64 {
    // SAFETY: guaranteed by the caller.
    guard(0, || unsafe { count_of(counter) }.failed.load(SeqCst))
}

unsafe extern "C" fn add(counter: *mut Fid, value: u64) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { count_of(counter) }.good.fetch_add(value, SeqCst);
    0
}

unsafe extern "C" fn set(counter: *mut Fid, value: u64) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { count_of(counter) }.good.store(value, SeqCst);
    0
}

unsafe extern "C" fn adderr(counter: *mut Fid, value: u64) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { count_of(counter) }.failed.fetch_add(value, SeqCst);
    0
}

unsafe extern "C" fn seterr(counter: *mut Fid, value: u64) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { count_of(counter) }.failed.store(value, SeqCst);
    0
}

unsafe extern "C" fn wait(counter: *mut Fid, threshold: u64, timeout: c_int) -> c_int {
    guard(abi::OTHER, || {
        // SAFETY: guaranteed by the caller.
        let count = unsafe { count_of(counter) };
        let (start, failed) = (Instant::now(), count.failed.load(SeqCst));
        let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
        loop {
            count.progress();
            if count.good.load(SeqCst) >= threshold {
                return 0;
            }
            if count.failed.load(SeqCst) != failed {
                return abi::ERROR_THERE as c_int;
            }
            if timeout.is_some_and(|timeout| start.elapsed() >= timeout) {
                return -libc::ETIMEDOUT;
            }
        }
    })
}
