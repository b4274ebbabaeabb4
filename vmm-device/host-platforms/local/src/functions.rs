//! The functions of the table.
//!
//! Pointers to machines, devices and memory are boxes of this crate's types. A panic ends in the
//! function, which does what it does for a device that has gone.
#![allow(unsafe_code, reason = "functions for another library")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::slice;

use tofu_abi::Coords;
use tofu_driver::VolatileBuffer;
use tofu_hosted::Refused;
use tofu_hosted::table::{self, Allocated, Failure, Kind, Start, Table};
use tofu_inproc::Buffer;
use tofu_tnw::STORE;

use crate::devices::{Device, Machine, Mapped};

/// The table promises that all threads may use them.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Machine>();
    shared::<Device>();
    shared::<Mapped>();
    shared::<Buffer>();
};

/// The functions.
pub static TABLE: Table = Table {
    version: table::VERSION,
    start,
    stop,
    attach,
    connect,
    detach,
    read,
    write,
    store,
    alloc,
    free,
    map,
    unmap,
    enable,
    wait,
    descriptor,
    now,
};

/// Returns the functions of this library, which stay.
#[unsafe(no_mangle)]
pub extern "C" fn tofu_local_table() -> *const Table {
    &raw const TABLE
}

/// Does `body`, or returns `otherwise` if that panics.
fn guarded<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

/// Makes a box of what `body` returns. Returns null and the reason if there is none.
///
/// # Safety
///
/// `why` can be written to.
unsafe fn boxed<T, F>(why: *mut Failure, body: impl FnOnce() -> Result<T, Refused>) -> *mut F {
    let panicked = || Err(Refused::new(Kind::Broken, "a bug: libtofulocal has panicked"));
    match guarded(None, || Some(body())).unwrap_or_else(panicked) {
        Ok(value) => Box::into_raw(Box::new(value)).cast(),
        Err(Refused { kind, text }) => {
            // SAFETY: guaranteed by the caller.
            unsafe { why.write(Failure::new(kind, &text)) };
            null_mut()
        }
    }
}

/// Frees a box of `boxed`.
///
/// # Safety
///
/// It is one, of this type, and not used any more.
unsafe fn freed<T, F>(pointer: *mut F) {
    // SAFETY: guaranteed by the caller.
    let value = unsafe { Box::from_raw(pointer.cast::<T>()) };
    guarded((), || drop(value));
}

/// Looks at a device.
///
/// # Safety
///
/// It is attached during the call.
unsafe fn with<T>(
    device: *const table::Device,
    otherwise: T,
    body: impl FnOnce(&Device) -> T,
) -> T {
    // SAFETY: guaranteed by the caller.
    let device = unsafe { &*device.cast::<Device>() };
    guarded(otherwise, || body(device))
}

unsafe extern "C" fn start(what: *const Start, why: *mut Failure) -> *mut table::Machine {
    // SAFETY: the caller's promise.
    unsafe { boxed(why, || Machine::start(&*what)) }
}

unsafe extern "C" fn stop(machine: *mut table::Machine) {
    // SAFETY: the caller's promise.
    unsafe { freed::<Machine, _>(machine) }
}

unsafe extern "C" fn attach(
    machine: *const table::Machine,
    coords: *const [u8; 6],
    why: *mut Failure,
) -> *mut table::Device {
    // SAFETY: the caller's promise.
    let (machine, coords) = unsafe { (&*machine.cast::<Machine>(), *coords) };
    // SAFETY: the caller's promise.
    unsafe { boxed(why, || machine.attach(Coords::from_array(coords))) }
}

unsafe extern "C" fn connect(
    socket: *const u8,
    len: usize,
    index: u16,
    count: u16,
    why: *mut Failure,
) -> *mut table::Device {
    // SAFETY: the caller's promise.
    let socket = unsafe { slice::from_raw_parts(socket, len) };
    let body = || {
        let socket = str::from_utf8(socket);
        let socket =
            socket.map_err(|_| Refused::new(Kind::Unavailable, "the socket's name is no text"))?;
        Device::connect(socket, index, count)
    };
    // SAFETY: the caller's promise.
    unsafe { boxed(why, body) }
}

unsafe extern "C" fn detach(device: *mut table::Device) {
    // SAFETY: the caller's promise.
    unsafe { freed::<Device, _>(device) }
}

unsafe extern "C" fn read(device: *const table::Device, offset: u64) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { with(device, u64::MAX, |device| device.read(offset)) }
}

unsafe extern "C" fn write(device: *const table::Device, offset: u64, value: u64) {
    // SAFETY: the caller's promise.
    unsafe { with(device, (), |device| device.write(offset, value)) }
}

unsafe extern "C" fn store(device: *const table::Device, offset: u64, data: *const [u8; STORE]) {
    // SAFETY: the caller's promise.
    unsafe { with(device, (), |device| device.store(offset, &*data)) }
}

unsafe extern "C" fn alloc(
    device: *const table::Device,
    size: usize,
    align: usize,
    memory: *mut Allocated,
) -> bool {
    let body = |device: &Device| {
        let buffer = Box::new(device.alloc(size, align).ok()?);
        let (start, len) = {
            let memory = buffer.memory();
            (memory.ptr_guard_mut().as_ptr(), memory.len())
        };
        let device_addr = buffer.addr();
        Some(Allocated { memory: Box::into_raw(buffer).cast(), start, len, device_addr })
    };
    // SAFETY: the caller's promise.
    let Some(allocated) = (unsafe { with(device, None, body) }) else { return false };
    // SAFETY: the caller's promise.
    unsafe { memory.write(allocated) };
    true
}

unsafe extern "C" fn free(memory: *mut table::Memory) {
    // SAFETY: the caller's promise.
    unsafe { freed::<Buffer, _>(memory) }
}

unsafe extern "C" fn map(
    device: *const table::Device,
    addr: usize,
    len: usize,
    device_addr: *mut u64,
    why: *mut Failure,
) -> *mut table::Mapped {
    // SAFETY: the caller's promise.
    let device = unsafe { &*device.cast::<Device>() };
    let body = || {
        // SAFETY: the caller's promise.
        let mapped = unsafe { device.map(addr, len) }?;
        // SAFETY: the caller's promise.
        unsafe { device_addr.write(mapped.device_addr) };
        Ok(mapped)
    };
    // SAFETY: the caller's promise.
    unsafe { boxed(why, body) }
}

unsafe extern "C" fn unmap(mapped: *mut table::Mapped) {
    // SAFETY: the caller's promise.
    unsafe { freed::<Mapped, _>(mapped) }
}

unsafe extern "C" fn enable(device: *const table::Device, vector: u16) -> bool {
    // SAFETY: the caller's promise.
    unsafe { with(device, false, |device| device.enable(vector).is_ok()) }
}

unsafe extern "C" fn wait(device: *const table::Device, vector: u16, timeout_ns: u64) -> bool {
    // SAFETY: the caller's promise.
    unsafe { with(device, false, |device| device.wait(vector, timeout_ns)) }
}

unsafe extern "C" fn descriptor(device: *const table::Device, vector: u16) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { with(device, -1, |device| device.descriptor(vector).unwrap_or(-1)) }
}

unsafe extern "C" fn now(device: *const table::Device) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { with(device, 0, Device::now) }
}
