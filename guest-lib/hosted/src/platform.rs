//! The platform on top of the table.
#![allow(unsafe_code, reason = "functions of another library, and memory from there")]

use std::fmt;
use std::ptr::{NonNull, null_mut};
use std::thread;

use thiserror::Error;
use tofu_abi::topology::Shape;
use tofu_abi::{Coords, Generation};
use tofu_driver::{DmaError, IrqError, Platform, VolatileBuffer};
use tofu_tnw::{STORE, Windows};
use vm_memory::VolatileSlice;

use crate::Library;
use crate::table::{Allocated, Device, Failure, Kind, Machine, Mapped, Memory, Start, Table};

/// The reason why the library refuses something.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text}")]
pub struct Refused {
    /// The kind of the reason.
    pub kind: Kind,
    /// The reason in words.
    pub text: String,
}

impl Refused {
    /// Creates it.
    pub fn new(kind: Kind, text: impl ToString) -> Self {
        Self { kind, text: text.to_string() }
    }
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self { kind: failure.kind(), text: failure.text() }
    }
}

/// Calls a function that returns a pointer, or null and the reason.
fn checked<T>(call: impl FnOnce(*mut Failure) -> *mut T) -> Result<NonNull<T>, Refused> {
    let mut why = Failure::default();
    NonNull::new(call(&raw mut why)).ok_or_else(|| why.into())
}

/// A network that connects the nodes of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interconnect {
    /// A generation of Tofu.
    Tofu(Generation),
    /// TNW, on three axes.
    Tnw,
}

impl Library {
    /// Starts a machine in this process, on separate threads.
    ///
    /// # Errors
    ///
    /// If there is no such machine, or the host has no threads or descriptors left.
    pub fn start(self, shape: Shape, what: Interconnect) -> Result<HostMachine, Refused> {
        let interconnect = match what {
            Interconnect::Tofu(generation) => generation.number(),
            Interconnect::Tnw => Start::TNW,
        };
        let (table, start) = (self.table(), Start::new(shape, interconnect));
        // SAFETY: both are there during the call.
        let machine = checked(|why| unsafe { (table.start)(&raw const start, why) })?;
        Ok(HostMachine { table, machine })
    }

    /// Attaches a device that another process serves at `socket`: a path, or the name of an
    /// abstract socket after an `@`. `count` processes share it; this one is number `index`.
    ///
    /// # Errors
    ///
    /// If no server answers there, or no memory is left.
    pub fn connect(self, socket: &str, index: u16, count: u16) -> Result<HostPlatform, Refused> {
        let (table, bytes) = (self.table(), socket.as_bytes());
        let call = |why| {
            // SAFETY: the text and the place for the reason are there during the call.
            unsafe { (table.connect)(bytes.as_ptr(), bytes.len(), index, count, why) }
        };
        Ok(HostPlatform { table, device: checked(call)? })
    }
}

/// A machine in this process.
pub struct HostMachine {
    table: &'static Table,
    machine: NonNull<Machine>,
}

// SAFETY: the functions may be called from any thread.
unsafe impl Send for HostMachine {}
// SAFETY: as above.
unsafe impl Sync for HostMachine {}

impl fmt::Debug for HostMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostMachine").finish_non_exhaustive()
    }
}

impl Drop for HostMachine {
    fn drop(&mut self) {
        // SAFETY: it is not used any more.
        unsafe { (self.table.stop)(self.machine.as_ptr()) }
    }
}

impl HostMachine {
    /// Attaches the device of a node, which keeps what it needs of the machine.
    ///
    /// # Errors
    ///
    /// If there is no such node, its device is attached already, or no memory is left.
    pub fn attach(&self, coords: Coords) -> Result<HostPlatform, Refused> {
        let (table, coords) = (self.table, coords.to_array());
        let machine = self.machine.as_ptr();
        // SAFETY: all of them are there during the call.
        let device = checked(|why| unsafe { (table.attach)(machine, &raw const coords, why) })?;
        Ok(HostPlatform { table, device })
    }
}

/// A device that this host emulates.
pub struct HostPlatform {
    table: &'static Table,
    device: NonNull<Device>,
}

// SAFETY: the functions may be called from any thread.
unsafe impl Send for HostPlatform {}
// SAFETY: as above.
unsafe impl Sync for HostPlatform {}

impl fmt::Debug for HostPlatform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostPlatform").finish_non_exhaustive()
    }
}

impl Drop for HostPlatform {
    fn drop(&mut self) {
        // SAFETY: it is not used any more.
        unsafe { (self.table.detach)(self.device.as_ptr()) }
    }
}

impl HostPlatform {
    /// Lets the device access `len` bytes of the process's memory at `addr`, until the result is
    /// dropped. Memory that the process may only read is not written.
    ///
    /// # Errors
    ///
    /// If the process has no such memory, or the device has no addresses left.
    ///
    /// # Safety
    ///
    /// Until the mapping is dropped, the memory stays mapped, and the process treats it as memory
    /// that others may change at any time.
    pub unsafe fn map(&self, addr: usize, len: usize) -> Result<Mapping, Refused> {
        let (table, mut device_addr) = (self.table, 0);
        let to = &raw mut device_addr;
        // SAFETY: the device is attached, the pointers lead to variables, and the caller keeps the
        // memory.
        let call = |why| unsafe { (table.map)(self.device.as_ptr(), addr, len, to, why) };
        let mapped = checked(call)?;
        Ok(Mapping { table, mapped, device_addr })
    }
}

/// Memory of the process that a device can access until this is dropped. Nothing else is mapped in
/// the 64 KiB before it.
pub struct Mapping {
    table: &'static Table,
    mapped: NonNull<Mapped>,
    device_addr: u64,
}

// SAFETY: the functions may be called from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; shared references only read a number.
unsafe impl Sync for Mapping {}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping").field("device_addr", &self.device_addr).finish_non_exhaustive()
    }
}

impl Mapping {
    /// Returns the address of the first byte for the device.
    pub const fn device_addr(&self) -> u64 {
        self.device_addr
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it is not used any more.
        unsafe { (self.table.unmap)(self.mapped.as_ptr()) }
    }
}

/// Memory that the device and the driver share.
pub struct Buffer {
    table: &'static Table,
    memory: Allocated,
}

// SAFETY: the functions may be called from any thread, and the memory is accessed as what others
// may change at any time.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({:#x}, {} bytes)", self.memory.device_addr, self.memory.len)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it is not used any more.
        unsafe { (self.table.free)(self.memory.memory) }
    }
}

impl VolatileBuffer for Buffer {
    fn addr(&self) -> u64 {
        self.memory.device_addr
    }

    #[inline]
    fn memory(&self) -> VolatileSlice<'_> {
        // SAFETY: so many bytes are there until this is dropped, and no reference leads there.
        unsafe { VolatileSlice::new(self.memory.start, self.memory.len) }
    }
}

impl Platform for HostPlatform {
    type Dma = Buffer;

    fn bar0_read64(&self, offset: u64) -> u64 {
        // SAFETY: the device is attached.
        unsafe { (self.table.read)(self.device.as_ptr(), offset) }
    }

    #[inline]
    fn bar0_write64(&self, offset: u64, value: u64) {
        // SAFETY: the device is attached.
        unsafe { (self.table.write)(self.device.as_ptr(), offset, value) }
    }

    fn alloc_dma(&self, size: usize, align: usize) -> Result<Buffer, DmaError> {
        let mut memory =
            Allocated { memory: null_mut::<Memory>(), start: null_mut(), len: 0, device_addr: 0 };
        let to = &raw mut memory;
        // SAFETY: the device is attached, and the place can be written to.
        match unsafe { (self.table.alloc)(self.device.as_ptr(), size, align, to) } {
            true => Ok(Buffer { table: self.table, memory }),
            false => Err(DmaError { size, align }),
        }
    }

    fn irq_enable(&self, vector: u16) -> Result<(), IrqError> {
        // SAFETY: the device is attached.
        match unsafe { (self.table.enable)(self.device.as_ptr(), vector) } {
            true => Ok(()),
            false => Err(IrqError { vector }),
        }
    }

    fn irq_wait(&self, vector: u16, timeout_ns: u64) -> bool {
        // SAFETY: the device is attached.
        unsafe { (self.table.wait)(self.device.as_ptr(), vector, timeout_ns) }
    }

    fn irq_fd(&self, vector: u16) -> Option<i32> {
        // SAFETY: the device is attached.
        let fd = unsafe { (self.table.descriptor)(self.device.as_ptr(), vector) };
        (fd >= 0).then_some(fd)
    }

    fn now_ns(&self) -> u64 {
        // SAFETY: the device is attached.
        unsafe { (self.table.now)(self.device.as_ptr()) }
    }

    fn relax(&self) {
        // The device's threads may need this processor.
        thread::yield_now();
    }
}

impl Windows for HostPlatform {
    fn store(&self, offset: u64, data: &[u8; STORE]) {
        // SAFETY: the device is attached, and the bytes are there during the call.
        unsafe { (self.table.store)(self.device.as_ptr(), offset, data) }
    }
}
