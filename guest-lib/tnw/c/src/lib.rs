//! `libtnw`: the functions of `tnw.h`, which documents them.
//!
//! The work is done in `tofu-tnw`. This crate handles pointers, handles, codes and memory, and
//! chooses where the process's network processor comes from (`backend`). Pointers are checked for
//! null, handles and requests for validity, everything else for its range. Beyond that, a C caller
//! guarantees as usual that a pointer which is not null points to an object of its type.
#![allow(non_snake_case, reason = "names of functions are the paper's, or like these")]

mod backend;
mod device;
mod error;
mod platform;

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::slice;

use tofu_abi::tnw::MAX_MESSAGE;
use tofu_tnw::{Link, LinkCounters};

use crate::device::{LinkChannel, find, link, open, take};
use crate::error::{Code, Error, call, write_last};

/// The time for which `tnwClose` waits for neighbours to take what was sent.
const CLOSE_NS: u64 = 10_000_000_000;
const NS_PER_US: u64 = 1000;
/// `enum tnwScheme`.
const PPUT: c_uint = 0;
const NGET: c_uint = 1;

/// `struct tnwConfig`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Config {
    coords: [u8; 3],
    shape: [u8; 3],
    links: u8,
}

/// `struct tnwLinkStatus`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LinkStatus {
    present: u8,
    answered: u8,
    resending: u8,
    silent: u8,
    discarding: u8,
    unacknowledged: u16,
}

/// The place for a returned value.
struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// # Safety
    ///
    /// `at` is null or can be written to until the end of the call.
    unsafe fn new(at: *mut T) -> Result<Self, Error> {
        if at.is_null() { Err(Code::InvalidPointer.into()) } else { Ok(Self(at)) }
    }

    fn set(&self, value: T) {
        // SAFETY: as promised to `new`.
        unsafe { self.0.write_unaligned(value) }
    }
}

fn check_length(bytes: usize) -> Result<(), Error> {
    match bytes as u64 {
        1..=MAX_MESSAGE => Ok(()),
        _ => Err(Code::InvalidLength.into()),
    }
}

/// See `tnw.h`.
///
/// # Safety
/// `tnw` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tnwOpen(node: c_uint, tnw: *mut c_int) -> c_int {
    call("tnwOpen", || {
        // SAFETY: the caller's promise.
        let to = unsafe { Out::new(tnw) }?;
        to.set(open(node)?);
        Ok(Code::Success)
    })
}

/// See `tnw.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tnwClose(tnw: c_int) -> c_int {
    call("tnwClose", || match take(tnw)?.nwp().flush(CLOSE_NS) {
        true => Ok(Code::Success),
        false => Err(Error::new(Code::Timeout, "a neighbour has not taken what was sent")),
    })
}

/// See `tnw.h`.
///
/// # Safety
/// `config` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tnwGetConfig(tnw: c_int, config: *mut Config) -> c_int {
    call("tnwGetConfig", || {
        // SAFETY: the caller's promise.
        let to = unsafe { Out::new(config) }?;
        let device = find(tnw)?;
        let nwp = device.nwp();
        let [x, y, z, ..] = nwp.coords().to_array();
        let present = |link: &Link| nwp.is_present(*link);
        let links = Link::ALL.iter().filter(|link| present(link));
        let links = links.fold(0, |all, link| all | 1 << link.index());
        to.set(Config { coords: [x, y, z], shape: nwp.shape(), links });
        Ok(Code::Success)
    })
}

/// See `tnw.h`.
///
/// # Safety
/// `memory` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tnwAlloc(tnw: c_int, bytes: usize, memory: *mut *mut c_void) -> c_int {
    call("tnwAlloc", || {
        // SAFETY: the caller's promise.
        let to = unsafe { Out::new(memory) }?;
        to.set(find(tnw)?.alloc(bytes)?.cast());
        Ok(Code::Success)
    })
}

/// See `tnw.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tnwFree(tnw: c_int, memory: *mut c_void) -> c_int {
    call("tnwFree", || {
        let device = find(tnw)?;
        if !memory.is_null() {
            device.free(memory.addr())?;
        }
        Ok(Code::Success)
    })
}

/// See `tnw.h`.
///
/// # Safety
/// `data` is null or has so many bytes; `request` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tnwSend(
    tnw: c_int,
    link: c_uint,
    channel: c_uint,
    data: *const c_void,
    bytes: usize,
    scheme: c_uint,
    request: *mut u64,
) -> c_int {
    call("tnwSend", || {
        let (device, place) = (find(tnw)?, LinkChannel::new(link, channel)?);
        check_length(bytes)?;
        if data.is_null() {
            return Err(Code::InvalidPointer.into());
        }
        match scheme {
            PPUT => {
                // SAFETY: the caller's promise; it is not changed before this returns.
                let message = unsafe { slice::from_raw_parts(data.cast(), bytes) };
                device.pput(place, message)?;
            }
            NGET => {
                // SAFETY: the caller's promise.
                let to = unsafe { Out::new(request) }?;
                to.set(device.post(place, (data.addr(), bytes), false)?);
            }
            _ => return Err(Code::InvalidScheme.into()),
        }
        Ok(Code::Success)
    })
}

/// See `tnw.h`.
///
/// # Safety
/// `request` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tnwCredit(
    tnw: c_int,
    link: c_uint,
    channel: c_uint,
    data: *mut c_void,
    bytes: usize,
    request: *mut u64,
) -> c_int {
    call("tnwCredit", || {
        let (device, place) = (find(tnw)?, LinkChannel::new(link, channel)?);
        check_length(bytes)?;
        // SAFETY: the caller's promise.
        let to = unsafe { Out::new(request) }?;
        to.set(device.post(place, (data.addr(), bytes), true)?);
        Ok(Code::Success)
    })
}

/// The end of a request, for C.
///
/// # Safety
/// `bytes` is null or can be written to.
unsafe fn told(ended: Option<(Code, usize)>, bytes: *mut usize) -> Result<Code, Error> {
    let Some((code, moved)) = ended else { return Ok(Code::NotYet) };
    if !bytes.is_null() {
        // SAFETY: the caller's promise.
        unsafe { Out::new(bytes) }?.set(moved);
    }
    if code == Code::Success { Ok(code) } else { Err(code.into()) }
}

/// See `tnw.h`.
///
/// # Safety
/// `bytes` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tnwTest(tnw: c_int, request: u64, bytes: *mut usize) -> c_int {
    call("tnwTest", || {
        let ended = find(tnw)?.test(request)?;
        // SAFETY: the caller's promise.
        unsafe { told(ended, bytes) }
    })
}

/// See `tnw.h`.
///
/// # Safety
/// `bytes` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tnwWait(
    tnw: c_int,
    request: u64,
    timeout_us: u64,
    bytes: *mut usize,
) -> c_int {
    call("tnwWait", || {
        let ended = find(tnw)?.wait(request, timeout_us.saturating_mul(NS_PER_US))?;
        // SAFETY: the caller's promise.
        unsafe { told(ended, bytes) }
    })
}

/// See `tnw.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tnwFlush(tnw: c_int, timeout_us: u64) -> c_int {
    call("tnwFlush", || match find(tnw)?.nwp().flush(timeout_us.saturating_mul(NS_PER_US)) {
        true => Ok(Code::Success),
        false => Err(Code::Timeout.into()),
    })
}

/// See `tnw.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tnwCancel(tnw: c_int, link: c_uint, channel: c_uint) -> c_int {
    call("tnwCancel", || {
        find(tnw)?.cancel(LinkChannel::new(link, channel)?)?;
        Ok(Code::Success)
    })
}

/// See `tnw.h`.
///
/// # Safety
/// `status` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tnwGetLinkStatus(
    tnw: c_int,
    link: c_uint,
    status: *mut LinkStatus,
) -> c_int {
    call("tnwGetLinkStatus", || {
        // SAFETY: the caller's promise.
        let to = unsafe { Out::new(status) }?;
        let status = find(tnw)?.nwp().link_status(self::link(link)?);
        to.set(LinkStatus {
            present: status.present().into(),
            answered: status.answered().into(),
            resending: status.resending().into(),
            silent: status.silent().into(),
            discarding: status.discarding().into(),
            unacknowledged: status.unacknowledged(),
        });
        Ok(Code::Success)
    })
}

/// See `tnw.h`.
///
/// # Safety
/// `counters` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tnwGetCounters(
    tnw: c_int,
    link: c_uint,
    counters: *mut LinkCounters,
) -> c_int {
    call("tnwGetCounters", || {
        // SAFETY: the caller's promise.
        let to = unsafe { Out::new(counters) }?;
        to.set(find(tnw)?.nwp().link_counters(self::link(link)?));
        Ok(Code::Success)
    })
}

/// See `tnw.h`.
#[unsafe(no_mangle)]
pub extern "C" fn tnwStrError(code: c_int) -> *const c_char {
    Code::text(code).as_ptr()
}

/// See `tnw.h`.
///
/// # Safety
/// `text` is null or has so many bytes that can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tnwLastError(text: *mut c_char, bytes: usize) -> c_int {
    if text.is_null() || bytes == 0 {
        return Code::InvalidPointer as c_int;
    }
    // SAFETY: the caller's promise.
    unsafe { write_last(text, bytes) };
    Code::Success as c_int
}
