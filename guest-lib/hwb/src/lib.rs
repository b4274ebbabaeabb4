//! `libFJhwb`: the functions of `fujitsu_hwb.h`, where they are documented. Barriers are words in
//! memory with a bit for each core, as in the A64FX's registers.
// The library's file has this name.
#![allow(non_snake_case)]

mod barrier;
mod cores;
mod errno;

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use libc::{EFAULT, EINVAL, ENOMEM};
use tofu_process::PerProcess;

use crate::barrier::{BLADES, Blades, OF_GROUP};
use crate::cores::{Core, Mask};
use crate::errno::Errno;

/// A child of `fork` has other barriers than its parent.
static OWN: PerProcess<Blades> = PerProcess::new();

fn blades() -> &'static Blades {
    &OWN.get_or_init(Blades::new).value
}

/// Runs the body of a function. No panic may escape into a C program.
fn run(body: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(Errno(number))) => -number,
        Err(_) => -EFAULT,
    }
}

/// The place of a core, as in `fujitsu_hwb.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PeInfo {
    cmg: u8,
    physical_pe: u8,
}

impl PeInfo {
    const NONE: Self = Self { cmg: 0xff, physical_pe: 0xff };

    fn of(core: Core) -> Self {
        let byte = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
        Self { cmg: byte(core.group()), physical_pe: byte(core.in_group()) }
    }
}

/// See `fujitsu_hwb.h`.
///
/// # Safety
/// `pemask` is null or may be read for `pemask_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fhwb_init(pemask_size: usize, pemask: *const c_void) -> c_int {
    run(|| {
        if pemask.is_null() {
            return Err(Errno::new(EFAULT, "there is no mask"));
        }
        // SAFETY: guaranteed by the caller.
        let bytes = unsafe { std::slice::from_raw_parts(pemask.cast::<u8>(), pemask_size) };
        blades().take(&Mask::read(bytes)?)
    })
}

/// See `fujitsu_hwb.h`.
#[unsafe(no_mangle)]
pub extern "C" fn fhwb_fini(bd: c_int) -> c_int {
    run(|| blades().give_back(bd).map(|()| 0))
}

/// See `fujitsu_hwb.h`.
#[unsafe(no_mangle)]
pub extern "C" fn fhwb_assign(bd: c_int, window: c_int) -> c_int {
    run(|| blades().assign(cores::bound()?, bd, window))
}

/// See `fujitsu_hwb.h`.
#[unsafe(no_mangle)]
pub extern "C" fn fhwb_unassign(bd: c_int) -> c_int {
    run(|| blades().unassign(cores::bound()?, bd).map(|()| 0))
}

/// See `fujitsu_hwb.h`.
#[unsafe(no_mangle)]
pub extern "C" fn fhwb_sync(window: c_int) {
    let waited = catch_unwind(|| {
        let core = cores::current()?;
        blades().sync(core, window)
    });
    if !matches!(waited, Ok(Some(()))) {
        cores::illegal_instruction();
    }
}

/// See `fujitsu_hwb.h`.
///
/// # Safety
/// `info` is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fhwb_get_pe_info(info: *mut PeInfo) -> c_int {
    run(|| {
        if info.is_null() {
            return Err(Errno::new(EINVAL, "there is no place for the answer"));
        }
        let core = cores::current().ok_or(Errno(EFAULT))?;
        // SAFETY: guaranteed by the caller.
        unsafe { info.write_unaligned(PeInfo::of(core)) };
        Ok(0)
    })
}

/// See `fujitsu_hwb.h`.
///
/// # Safety
/// Each pointer is null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fhwb_get_all_pe_info(
    list: *mut *mut PeInfo,
    entry_num: *mut c_int,
) -> c_int {
    run(|| {
        if list.is_null() || entry_num.is_null() {
            return Err(Errno::new(EINVAL, "there is no place for the answer"));
        }
        let usable = cores::usable();
        // SAFETY: any size may be requested; at least one byte.
        let memory = unsafe { libc::malloc(size_of::<PeInfo>() * usable.len().max(1)) };
        let memory = memory.cast::<PeInfo>();
        if memory.is_null() {
            return Err(Errno(ENOMEM));
        }
        for (number, usable) in usable.iter().enumerate() {
            let core = Core::new(number).filter(|_| *usable);
            // SAFETY: freshly allocated for so many.
            unsafe { memory.add(number).write(core.map_or(PeInfo::NONE, PeInfo::of)) };
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            list.write_unaligned(memory);
            entry_num.write_unaligned(usable.len() as c_int);
        }
        Ok(0)
    })
}

/// See `fujitsu_hwb.h`.
#[unsafe(no_mangle)]
pub extern "C" fn fhwb_get_cmg_from_bd(bd: c_int) -> c_int {
    run(|| Ok((blades().find(bd)? / OF_GROUP) as c_int))
}

/// See `fujitsu_hwb.h`.
#[unsafe(no_mangle)]
pub extern "C" fn fhwb_get_bb_from_bd(bd: c_int) -> c_int {
    run(|| Ok((blades().find(bd)? % OF_GROUP) as c_int))
}

// Descriptors are numbers of blades.
const _: () = assert!(BLADES <= c_int::MAX as usize);
