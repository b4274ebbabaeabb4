// SPDX-License-Identifier: GPL-2.0

//! Arguments of the ioctls, in the memory of the calling process.

use core::mem::MaybeUninit;

use kernel::prelude::*;
use kernel::uaccess::{UserPtr, UserSlice};

pub(crate) use tofu_abi::tof::*;

/// Types for which every bit pattern is a value, without padding.
///
/// # Safety
///
/// Every pattern of bits must be a value, and there must be no padding.
pub(crate) unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($name:ty),* $(,)?) => { $(
        // SAFETY: integers, arrays of them, and structures of both whose fields add up to their
        // size, as `tofu_abi::tof` checks.
        unsafe impl Plain for $name {}
    )* };
}

plain!(
    i32,
    u64,
    [u64; tofu_abi::regs::NUM_TNI],
    InitCq,
    AllocStag,
    FreeStags,
    EnableBch,
    SetBg,
    Subnet,
    RegUser,
    NotifyLinkdown,
    LinkdownItem,
    PortStat,
    CqStat,
    LoadRegister,
    LoadResource,
);

fn at(addr: u64, len: usize) -> UserSlice {
    UserSlice::new(UserPtr::from_addr(addr as usize), len)
}

/// Reads a value at a user's address.
///
/// # Errors
///
/// `EFAULT`.
pub(crate) fn get<T: Plain>(addr: u64) -> Result<T> {
    let mut value = MaybeUninit::<T>::uninit();
    let bytes = value.as_mut_ptr().cast::<MaybeUninit<u8>>();
    // SAFETY: the value has this many bytes, and it is not shared.
    let bytes = unsafe { core::slice::from_raw_parts_mut(bytes, size_of::<T>()) };
    at(addr, size_of::<T>()).reader().read_raw(bytes)?;
    // SAFETY: all bytes were written, and any bit pattern is a value.
    Ok(unsafe { value.assume_init() })
}

/// Writes a value to a user's address.
///
/// # Errors
///
/// `EFAULT`.
pub(crate) fn put<T: Plain>(addr: u64, value: &T) -> Result {
    let bytes = core::ptr::from_ref(value).cast::<u8>();
    // SAFETY: the value has this many bytes, and all are initialised, because there is no padding.
    let bytes = unsafe { core::slice::from_raw_parts(bytes, size_of::<T>()) };
    at(addr, size_of::<T>()).writer().write_slice(bytes)
}
