//! Objects that libfabric has as pointers, and the bodies of functions that it calls.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::abi::{Fid, INVALID};

/// Runs the body of a function.
pub(super) fn guard<T>(failed: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(failed)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives an object away. Returns the code.
///
/// # Safety
///
/// `T` is `repr(C)` and begins with a `Fid`; `to` is null or good.
pub(super) unsafe fn give<T>(object: T, to: *mut *mut Fid) -> c_int {
    if to.is_null() {
        return INVALID;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { to.write(Box::into_raw(Box::new(object)).cast()) };
    0
}

/// Returns an object that was given away.
///
/// # Safety
///
/// It was given away as a `T`, and was not taken back.
pub(super) unsafe fn of<'a, T>(fid: *mut Fid) -> &'a T {
    // SAFETY: guaranteed by the caller.
    unsafe { &*fid.cast() }
}

/// Takes an object back.
///
/// # Safety
///
/// As for [`of`], and nothing uses the object now.
pub(super) unsafe fn take<T>(fid: *mut Fid) -> Box<T> {
    // SAFETY: guaranteed by the caller.
    unsafe { Box::from_raw(fid.cast()) }
}
