//! The drivers' platform on bare metal.

use alloc::alloc::{alloc_zeroed, dealloc};
use core::alloc::Layout;
use core::arch::asm;
use core::cell::{OnceCell, RefCell};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use thiserror::Error;
use tofu_abi::generation::is_tofu;
use tofu_abi::irq::vector;
use tofu_abi::pci::{DEVICE_TNW, REGISTER_BAR, VENDOR_ID};
use tofu_abi::regs::BAR0_SIZE;
use tofu_abi::tnw::{REGISTER_BAR_SIZE, WINDOW_BAR, WINDOW_BAR_SIZE};
use tofu_driver::{DmaBuffer, DmaError, IrqError, Platform};
use tofu_tnw::Windows;

use crate::{irq, mmio, pci, time};

/// Waits as long as this, an hour, are without a time limit.
const LONG_NS: u64 = 3_600_000_000_000;

/// The reason why the device cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// There is no TofuD device on bus 0.
    #[error("no TofuD device on PCI bus 0")]
    NoDevice,
    /// There is no network processor of TNW on bus 0.
    #[error("no TNW device on PCI bus 0: is the machine one of TNW?")]
    NoNwp,
    /// It has no register space.
    #[error(transparent)]
    Pci(pci::Error),
}

/// The Tofu device on bus 0, for [`tofu_driver::Device::probe`], or that of TNW, for
/// [`tofu_tnw::Nwp::probe`].
#[derive(Debug)]
pub struct BarePlatform {
    device: pci::Device,
    /// The rights that the device had before.
    command: u16,
    registers: usize,
    /// Bytes of them.
    size: u64,
    /// Injection windows of TNW; none of Tofu.
    windows: Option<usize>,
    /// Found when the first vector is enabled.
    msix: OnceCell<pci::Msix>,
    vectors: RefCell<[Option<Armed>; vector::COUNT as usize]>,
}

/// A vector in use, and how often it had fired when it was last waited for.
#[derive(Clone, Copy, Debug)]
struct Armed {
    vector: irq::Vector,
    seen: u64,
}

impl BarePlatform {
    /// Finds the device, enables it and maps its registers.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn find() -> Result<Self, Error> {
        let device = pci::devices().find(|found| is_tofu(found.id())).ok_or(Error::NoDevice)?;
        Self::of(device, BAR0_SIZE, None)
    }

    /// The same for the network processor of TNW, whose windows are mapped, too.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn find_nwp() -> Result<Self, Error> {
        let device = pci::find(VENDOR_ID, DEVICE_TNW).ok_or(Error::NoNwp)?;
        let windows = device.map_bar(WINDOW_BAR, WINDOW_BAR_SIZE).map_err(Error::Pci)?;
        Self::of(device, REGISTER_BAR_SIZE, Some(windows))
    }

    fn of(device: pci::Device, size: u64, windows: Option<usize>) -> Result<Self, Error> {
        let registers = device.map_bar(REGISTER_BAR, size).map_err(Error::Pci)?;
        let command = device.command();
        device.enable();
        let vectors = RefCell::new([None; vector::COUNT as usize]);
        Ok(Self { device, command, registers, size, windows, msix: OnceCell::new(), vectors })
    }

    /// The device's place on the bus.
    pub fn pci(&self) -> pci::Device {
        self.device
    }

    /// Resets the device, so that the next user finds it as it was before [`BarePlatform::find`].
    /// Everything that the driver has opened must be closed: none of it works any more.
    pub fn reset(&self) {
        if let Some(msix) = self.msix.get() {
            msix.disable();
        }
        self.device.reset(self.command);
    }

    /// The MSI-X table, switched on.
    fn msix(&self) -> Result<pci::Msix, pci::Error> {
        if let Some(msix) = self.msix.get() {
            return Ok(*msix);
        }
        let msix = self.device.msix()?;
        msix.enable();
        Ok(*self.msix.get_or_init(|| msix))
    }

    fn address(&self, offset: u64) -> usize {
        assert!(offset < self.size && offset.is_multiple_of(8), "no register at {offset:#x}");
        self.registers + offset as usize
    }

    fn any_address(&self, offset: u64) -> usize {
        assert!(offset <= self.size - 8, "no register at {offset:#x}");
        self.registers + offset as usize
    }

    /// Reads 8 bytes of BAR 0 at any offset: for tests of the device, because registers are at
    /// multiples of 8.
    pub fn bar0_read64_unaligned(&self, offset: u64) -> u64 {
        // SAFETY: within the device's mapped registers, whose reads have no effect on memory.
        unsafe { mmio::read64(self.any_address(offset)) }
    }

    /// Reads 4 bytes of BAR 0, as [`BarePlatform::bar0_read64_unaligned`].
    pub fn bar0_read32(&self, offset: u64) -> u32 {
        // SAFETY: as there.
        unsafe { mmio::read32(self.any_address(offset)) }
    }

    /// Writes 4 bytes of BAR 0, as [`BarePlatform::bar0_read64_unaligned`].
    pub fn bar0_write32(&self, offset: u64, value: u32) {
        // SAFETY: as in `bar0_write64`.
        unsafe { mmio::write32(self.any_address(offset), value) };
    }
}

impl Platform for BarePlatform {
    type Dma = BareBuffer;

    fn bar0_read64(&self, offset: u64) -> u64 {
        // SAFETY: within the device's mapped registers, whose reads have no effect on memory.
        unsafe { mmio::read64(self.address(offset)) }
    }

    fn bar0_write64(&self, offset: u64, value: u64) {
        // SAFETY: within the device's mapped registers. The device does DMA only to the memory in
        // the driver's tables and rings. That memory is in `BareBuffer`s, to which no references
        // exist.
        unsafe { mmio::write64(self.address(offset), value) };
    }

    fn alloc_dma(&self, size: usize, align: usize) -> Result<BareBuffer, DmaError> {
        BareBuffer::new(size, align).ok_or(DmaError { size, align })
    }

    fn irq_enable(&self, index: u16) -> Result<(), IrqError> {
        let error = IrqError { vector: index };
        let mut vectors = self.vectors.borrow_mut();
        let place = vectors.get_mut(usize::from(index)).ok_or(error)?;
        if place.is_none() {
            let vector = irq::alloc_vector().ok_or(error)?;
            self.msix().and_then(|msix| msix.set(index, vector)).map_err(|_| error)?;
            *place = Some(Armed { vector, seen: irq::count(vector) });
        }
        Ok(())
    }

    fn irq_wait(&self, index: u16, timeout_ns: u64) -> bool {
        let mut vectors = self.vectors.borrow_mut();
        let Some(Some(armed)) = vectors.get_mut(usize::from(index)) else {
            return false;
        };
        // A timer costs exits to the VMM; a wait of hours does not need one.
        let timeout = (timeout_ns < LONG_NS).then_some(timeout_ns);
        let count = irq::wait(armed.vector, armed.seen, timeout);
        core::mem::replace(&mut armed.seen, count) != count
    }

    fn now_ns(&self) -> u64 {
        time::now_ns()
    }
}

impl Windows for BarePlatform {
    fn store(&self, offset: u64, data: &[u8; tofu_tnw::STORE]) {
        let Some(windows) = self.windows.filter(|_| offset <= WINDOW_BAR_SIZE - 64) else {
            return;
        };
        for (at, word) in (offset..).step_by(8).zip(data.as_chunks::<8>().0) {
            // SAFETY: within the device's mapped windows. Stores there change no memory to which
            // the program has references: the data goes to credits of another node.
            unsafe { mmio::write64(windows + at as usize, u64::from_le_bytes(*word)) };
        }
    }

    fn can_share(&self) -> bool {
        self.windows.is_some()
    }

    fn publish(&self, offset: u64, word: u64) {
        let Some(windows) = self.windows.filter(|_| is_word(offset)) else { return };
        // Earlier stores come first: the processor keeps stores in order, and so does assembly.
        // SAFETY: as in `store`.
        unsafe { mmio::write64(windows + offset as usize, word) };
    }

    fn load_after_stores(&self, offset: u64) -> u64 {
        let Some(windows) = self.windows.filter(|_| is_word(offset)) else { return 0 };
        fence(Ordering::SeqCst);
        // SAFETY: within the device's mapped windows, reads of which have no effect.
        unsafe { mmio::read64(windows + offset as usize) }
    }
}

/// Returns true if there is a word at an offset of the windows.
const fn is_word(offset: u64) -> bool {
    offset.is_multiple_of(8) && offset < WINDOW_BAR_SIZE
}

/// Zeroed memory from the heap. Its address is its DMA address.
#[derive(Debug)]
pub struct BareBuffer {
    memory: NonNull<u8>,
    layout: Layout,
    len: usize,
}

impl BareBuffer {
    /// Allocates `len` bytes at a multiple of `align`, a power of two; `None` if the heap has no
    /// such piece left.
    pub fn new(len: usize, align: usize) -> Option<Self> {
        // Words at multiples of 8 can then be accessed atomically.
        let layout = Layout::from_size_align(len.max(1), align.max(8)).ok()?;
        // SAFETY: the layout is not of size zero.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { memory, layout, len })
    }

    /// Address of `size` bytes at `offset`, which must lie in the buffer at a multiple of `align`.
    fn at(&self, offset: usize, size: usize, align: usize) -> *mut u8 {
        let inside = offset.checked_add(size).is_some_and(|end| end <= self.len);
        assert!(
            inside && offset.is_multiple_of(align),
            "access of {size} bytes at {offset} of a buffer of {}",
            self.len
        );
        // SAFETY: inside the allocation.
        unsafe { self.memory.as_ptr().add(offset) }
    }

    fn u64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: in bounds and aligned as `at` checks, and only accessed atomically, by copies
        // that the compiler does not see, and by the device.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8, 8).cast()) }
    }

    fn u32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4, 4).cast()) }
    }

    fn u8(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: as above.
        unsafe { AtomicU8::from_ptr(self.at(offset, 1, 1)) }
    }
}

impl Drop for BareBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

/// Copies bytes that a device may change concurrently: in assembly, because in Rust that would be a
/// data race.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, and they do not overlap.
unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: promised by the caller.
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
}

impl DmaBuffer for BareBuffer {
    fn device_addr(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    fn len(&self) -> usize {
        self.len
    }

    fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        self.u64(offset).load(order)
    }

    fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        self.u64(offset).store(value, order);
    }

    fn load_u32(&self, offset: usize, order: Ordering) -> u32 {
        self.u32(offset).load(order)
    }

    fn store_u32(&self, offset: usize, value: u32, order: Ordering) {
        self.u32(offset).store(value, order);
    }

    fn load_u8(&self, offset: usize, order: Ordering) -> u8 {
        self.u8(offset).load(order)
    }

    fn store_u8(&self, offset: usize, value: u8, order: Ordering) {
        self.u8(offset).store(value, order);
    }

    fn read(&self, offset: usize, buf: &mut [u8]) {
        let from = self.at(offset, buf.len(), 1);
        // SAFETY: in bounds at both ends; a slice that is borrowed does not overlap a buffer.
        unsafe { copy(buf.as_mut_ptr(), from, buf.len()) };
    }

    fn write(&self, offset: usize, buf: &[u8]) {
        let to = self.at(offset, buf.len(), 1);
        // SAFETY: as for `read`.
        unsafe { copy(to, buf.as_ptr(), buf.len()) };
    }
}
