//! The tables of functions that libfabric calls.
//!
//! Each object that libfabric sees begins with a `abi::Fid`, and is a `Box` that was turned into a
//! pointer; its function `close` drops it. Callers guarantee what libfabric's manual requires of
//! programs: pointers are valid, objects are not used after they were closed, and the memory of an
//! operation stays until its completion. No panic leaves a function.

mod abi;
mod atomics;
mod av;
mod counter;
mod cq;
mod domain;
mod endpoint;
mod eq;
mod info;
mod messages;
mod object;
mod progress;
mod regions;
mod remote;
mod state;
mod table;
mod wait;

use std::ffi::c_void;

use abi::Provider;
use info::{INTERFACE, NAME};

unsafe extern "C" fn cleanup() {}

struct Shared(std::cell::UnsafeCell<Provider>);

// SAFETY: only libfabric writes it, and only in `context`, which this library does not read.
unsafe impl Sync for Shared {}

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
