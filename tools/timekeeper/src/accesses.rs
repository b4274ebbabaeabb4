//! QEMU's table of functions that access a device over vfio-user, in which the plugin puts its own
//! functions around QEMU's.

use std::ffi::{c_int, c_void};

use crate::symbols::{end, symbol};

/// Places of `region_read` and `region_write` in `VFIODeviceIOOps` of QEMU 11.1.
const REGION_READ: usize = 5;
const REGION_WRITE: usize = 6;
/// Bytes of a page of the host.
const PAGE: usize = 4096;

/// Reads a region of a device.
pub(crate) type RegionRead = unsafe extern "C" fn(*mut c_void, u8, i64, u32, *mut c_void) -> c_int;
/// Writes a region of a device; with the last argument, QEMU does not wait for the answer.
pub(crate) type RegionWrite =
    unsafe extern "C" fn(*mut c_void, u8, i64, u32, *mut c_void, bool) -> c_int;

/// The address of the table.
pub(crate) fn table() -> usize {
    symbol(c"vfio_user_device_io_ops_sock") as usize
}

/// Replaces both functions of the table, and returns QEMU's own.
///
/// # Safety
///
/// The table is QEMU's. No other thread uses it at the same time, because the caller holds QEMU's
/// big lock, or because QEMU has no device yet.
pub(crate) unsafe fn replace(
    table: usize,
    read: RegionRead,
    write: RegionWrite,
) -> (RegionRead, RegionWrite) {
    let operations = table as *mut [*mut c_void; REGION_WRITE + 1];
    // SAFETY: the table has more places than that in QEMU 11.1, whose version was checked. The
    // caller promises that it is not in use, and its pages are made writable first. Both places
    // have functions of these types.
    unsafe {
        let first = table & !(PAGE - 1);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        if libc::mprotect(first as *mut c_void, 2 * PAGE, protection) != 0 {
            end("the table of accesses cannot be written");
        }
        let table = &mut *operations;
        if table[REGION_READ].is_null() || table[REGION_WRITE].is_null() {
            end("the table of accesses is another one than that of QEMU 11.1");
        }
        let own = (
            std::mem::transmute::<*mut c_void, RegionRead>(table[REGION_READ]),
            std::mem::transmute::<*mut c_void, RegionWrite>(table[REGION_WRITE]),
        );
        table[REGION_READ] = read as *mut c_void;
        table[REGION_WRITE] = write as *mut c_void;
        own
    }
}
