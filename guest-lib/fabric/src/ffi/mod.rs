//! The tables of functions that libfabric calls.
//!
//! Each object that libfabric sees begins with a [`abi::Fid`], and is a `Box` that was given away
//! as a pointer; its function `close` takes it back. Callers guarantee what libfabric's manual
//! demands of programs: pointers that are good, objects that are not used after they were closed,
//! and memory of an operation that stays until its completion. No panic leaves a function.

mod abi;
mod av;
mod counter;
mod cq;
mod domain;
mod endpoint;
mod info;
mod messages;

use std::ffi::{CStr, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use abi::{Fid, Provider};

/// The name by which programs choose the provider.
const NAME: &CStr = c"tofu";

/// Runs the body of a function.
fn guard<T>(failed: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(failed)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives an object away. Returns the code.
///
/// # Safety
///
/// `T` is `repr(C)` and begins with a `Fid`; `to` is null or good.
unsafe fn give<T>(object: T, to: *mut *mut Fid) -> c_int {
    if to.is_null() {
        return abi::INVALID;
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
unsafe fn of<'a, T>(fid: *mut Fid) -> &'a T {
    // SAFETY: guaranteed by the caller.
    unsafe { &*fid.cast() }
}

/// Takes an object back.
///
/// # Safety
///
/// As for [`of`], and nothing uses the object now.
unsafe fn take<T>(fid: *mut Fid) -> Box<T> {
    // SAFETY: guaranteed by the caller.
    unsafe { Box::from_raw(fid.cast()) }
}

unsafe extern "C" fn cleanup() {}

struct Shared(std::cell::UnsafeCell<Provider>);

// SAFETY: only libfabric writes it, and only in `context`, which this library does not read.
unsafe impl Sync for Shared {}

/// libfabric's version of the interface: as new as any, because it ignores providers that are older
/// than a program.
const INTERFACE: u32 = 2 << 16 | 99;

static PROVIDER: Shared = Shared(std::cell::UnsafeCell::new(Provider {
    version: 1 << 16,
    fi_version: INTERFACE,
    context: [0; 4],
    name: NAME.as_ptr(),
    getinfo: info::getinfo,
    fabric: domain::fabric,
    cleanup,
}));

/// Returns the provider. libfabric calls it when it has loaded the library.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut c_void {
    PROVIDER.0.get().cast()
}
