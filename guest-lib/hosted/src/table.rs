//! The interface of `libtofulocal.so`: a table of C functions.
//!
//! The two libraries need not be compiled together, so nothing here depends on how Rust lays out
//! its types, and no function panics. Errors are a null pointer or `false`, with the reason in a
//! [`Failure`]. All functions may be called from any thread.

use std::ffi::CStr;
use std::marker::{PhantomData, PhantomPinned};

use tofu_abi::topology::Shape;
use tofu_tnw::STORE;

/// The name of the library's file.
pub const FILE: &str = "libtofulocal.so";
/// The name of its only symbol, an [`Entry`].
pub const SYMBOL: &CStr = c"tofu_local_table";
/// The version of the table. Any change in this file makes another one.
pub const VERSION: u32 = 2;

/// Returns the table, which stays.
pub type Entry = extern "C" fn() -> *const Table;

/// An opaque type of the library.
macro_rules! opaque {
    ($($(#[$meta:meta])* $name:ident;)*) => {
        $(
            $(#[$meta])*
            #[derive(Debug)]
            #[repr(C)]
            pub struct $name {
                nothing: [u8; 0],
                of_the_library: PhantomData<(*mut u8, PhantomPinned)>,
            }
        )*
    };
}

opaque! {
    /// A machine in this process.
    Machine;
    /// A device that is attached.
    Device;
    /// Memory that the device and the driver share.
    Memory;
    /// Memory of the process that the device can access.
    Mapped;
}

/// The functions.
#[derive(Debug)]
#[repr(C)]
pub struct Table {
    /// [`VERSION`]. It is here in every version.
    pub version: u32,
    /// Starts a machine in this process.
    pub start: unsafe extern "C" fn(what: *const Start, why: *mut Failure) -> *mut Machine,
    /// Frees a machine. Devices that are attached keep what they need of it.
    pub stop: unsafe extern "C" fn(machine: *mut Machine),
    /// Attaches the device of the node at these six coordinates, which must not be attached yet.
    pub attach: unsafe extern "C" fn(
        machine: *const Machine,
        coords: *const [u8; 6],
        why: *mut Failure,
    ) -> *mut Device,
    /// Attaches a device that another process serves at a socket: a path of `len` bytes, or the
    /// name of an abstract socket after an `@`. `count` processes share it; this one is number
    /// `index`.
    pub connect: unsafe extern "C" fn(
        socket: *const u8,
        len: usize,
        index: u16,
        count: u16,
        why: *mut Failure,
    ) -> *mut Device,
    /// Frees a device. Memory that came from it stays until that is freed.
    pub detach: unsafe extern "C" fn(device: *mut Device),
    /// Reads 8 bytes at an offset of BAR 0.
    pub read: unsafe extern "C" fn(device: *const Device, offset: u64) -> u64,
    /// Writes 8 bytes at an offset of BAR 0, after all earlier writes to memory.
    pub write: unsafe extern "C" fn(device: *const Device, offset: u64, value: u64),
    /// Stores at an offset of TNW's BAR of windows, as [`tofu_tnw::Windows::store`].
    pub store: unsafe extern "C" fn(device: *const Device, offset: u64, data: *const [u8; STORE]),
    /// Allocates zeroed memory for the device, in which words are aligned.
    pub alloc: unsafe extern "C" fn(
        device: *const Device,
        size: usize,
        align: usize,
        memory: *mut Allocated,
    ) -> bool,
    /// Frees it.
    pub free: unsafe extern "C" fn(memory: *mut Memory),
    /// Lets the device access `len` bytes of the process's memory, which is contiguous at
    /// `device_addr` then. Nothing else is mapped in the 64 KiB before it.
    pub map: unsafe extern "C" fn(
        device: *const Device,
        addr: usize,
        len: usize,
        device_addr: *mut u64,
        why: *mut Failure,
    ) -> *mut Mapped,
    /// Ends that.
    pub unmap: unsafe extern "C" fn(mapped: *mut Mapped),
    /// Makes an interrupt usable with `wait`.
    pub enable: unsafe extern "C" fn(device: *const Device, vector: u16) -> bool,
    /// Waits for an interrupt, as [`tofu_driver::Platform::irq_wait`].
    pub wait: unsafe extern "C" fn(device: *const Device, vector: u16, timeout_ns: u64) -> bool,
    /// The descriptor of an interrupt, as [`tofu_driver::Platform::irq_fd`]; below 0 if there is
    /// none.
    pub descriptor: unsafe extern "C" fn(device: *const Device, vector: u16) -> i32,
    /// A monotonic clock of the device in nanoseconds.
    pub now: unsafe extern "C" fn(device: *const Device) -> u64,
}

/// A machine to be started.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Start {
    /// Lengths of the axes.
    pub lengths: [u8; 6],
    /// 1 for each of X, Y and Z that is a torus, else 0.
    pub torus: [u8; 3],
    /// 1 if there are I/O nodes, else 0.
    pub io_nodes: u8,
    /// The number of Tofu's generation, or [`Start::TNW`].
    pub interconnect: u8,
}

impl Start {
    /// A machine of the second kind of device.
    pub const TNW: u8 = u8::MAX;

    /// Describes a machine.
    pub fn new(shape: Shape, interconnect: u8) -> Self {
        let torus = shape.torus().map(u8::from);
        let io_nodes = shape.has_io_nodes().into();
        Self { lengths: shape.lengths(), torus, io_nodes, interconnect }
    }

    /// Returns its shape, if there is such a shape.
    pub fn shape(&self) -> Option<Shape> {
        let shape = Shape::new(self.lengths).ok()?;
        Some(shape.with_torus(self.torus.map(|torus| torus != 0)).with_io_nodes(self.io_nodes != 0))
    }
}

/// Memory from `alloc`.
#[derive(Debug)]
#[repr(C)]
pub struct Allocated {
    /// The argument of `free`.
    pub memory: *mut Memory,
    /// The first byte, for the process.
    pub start: *mut u8,
    /// Size in bytes.
    pub len: usize,
    /// The first byte, for the device.
    pub device_addr: u64,
}

/// The reason why a function has failed.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Failure {
    /// A [`Kind`].
    kind: u32,
    /// Bytes of the text.
    len: u32,
    text: [u8; Self::TEXT],
}

/// A kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// A bug, or a server that does not answer.
    Broken,
    /// No memory is left.
    Memory,
    /// Nothing else that it takes is left: threads, descriptors, addresses.
    Resources,
    /// There is no such device, or this process may not have it.
    Unavailable,
    /// The process has no such memory.
    Address,
}

impl Default for Failure {
    fn default() -> Self {
        Self { kind: Kind::Broken as u32, len: 0, text: [0; Self::TEXT] }
    }
}

impl Failure {
    const TEXT: usize = 504;

    /// Creates it. Of a long text it has the beginning.
    pub fn new(kind: Kind, text: &str) -> Self {
        let mut this = Self { kind: kind as u32, ..Self::default() };
        let len = text.floor_char_boundary(Self::TEXT);
        this.text[..len].copy_from_slice(&text.as_bytes()[..len]);
        this.len = len as u32;
        this
    }

    /// Returns its kind.
    pub fn kind(&self) -> Kind {
        let kinds = [Kind::Memory, Kind::Resources, Kind::Unavailable, Kind::Address];
        kinds.into_iter().find(|kind| *kind as u32 == self.kind).unwrap_or(Kind::Broken)
    }

    /// Returns its text.
    pub fn text(&self) -> String {
        let text = self.text.get(..self.len as usize).unwrap_or(&self.text);
        match text {
            [] => "it has failed without a reason: a bug".to_owned(),
            text => String::from_utf8_lossy(text).into_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes that change need another [`VERSION`], and so does any other change.
    #[test]
    fn layout_matches_the_version() {
        assert_eq!(VERSION, 2);
        assert_eq!(size_of::<Table>(), 17 * size_of::<usize>());
        assert_eq!((size_of::<Start>(), size_of::<Failure>()), (11, 512));
        assert_eq!(size_of::<Allocated>(), 4 * 8);
        assert_eq!(std::mem::offset_of!(Table, version), 0);
    }

    #[test]
    fn failures_keep_their_kind_and_some_text() {
        let failure = Failure::new(Kind::Address, "none");
        assert_eq!((failure.kind(), failure.text().as_str()), (Kind::Address, "none"));
        let long = "é".repeat(300);
        let failure = Failure::new(Kind::Memory, &format!("a{long}"));
        assert_eq!(failure.text().len(), 503);
        let wrong = Failure { kind: 77, len: u32::MAX, text: [0xff; Failure::TEXT] };
        assert_eq!(wrong.kind(), Kind::Broken);
        assert!(!wrong.text().is_empty() && Failure::default().text().contains("a bug"));
    }

    #[test]
    fn shapes_arrive_as_they_are() {
        for shape in [Shape::UNIT, Shape::K, Shape::K_RACKS] {
            assert_eq!(Start::new(shape, 0).shape(), Some(shape));
        }
        let none = Start { lengths: [0; 6], ..Start::new(Shape::UNIT, 0) };
        assert_eq!(none.shape(), None);
    }
}
