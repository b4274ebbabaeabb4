//! The interface between the driver and its environment.

use core::sync::atomic::Ordering;

use thiserror::Error;

/// The environment of a device: its registers, memory that it can access, interrupts, and a clock.
///
/// One platform belongs to one device. Methods take `&self` because control queues of one
/// device may be driven by several threads.
pub trait Platform {
    /// Memory that both the driver and the device can access.
    type Dma: DmaBuffer;

    /// Reads the register at byte `offset` of BAR0. `offset` is a multiple of 8.
    fn bar0_read64(&self, offset: u64) -> u64;

    /// Writes the register at byte `offset` of BAR0. `offset` is a multiple of 8.
    ///
    /// Earlier memory writes are visible to the device when it sees this one.
    fn bar0_write64(&self, offset: u64, value: u64);

    /// Like [`Platform::bar0_write64`], for registers in the user pages of control queues. A
    /// platform may have a faster way to access these.
    fn doorbell_write64(&self, offset: u64, value: u64) {
        self.bar0_write64(offset, value);
    }

    /// Allocates `size` bytes of zeroed memory at a device address that is a multiple of
    /// `align`, a power of two. The memory is contiguous for the device.
    ///
    /// # Errors
    ///
    /// If there is no such memory left.
    fn alloc_dma(&self, size: usize, align: usize) -> Result<Self::Dma, DmaError>;

    /// Makes MSI-X vector `vector` (see [`tofu_abi::irq::vector`]) usable with
    /// [`Platform::irq_wait`].
    ///
    /// # Errors
    ///
    /// If the platform has no interrupt left for it.
    fn irq_enable(&self, vector: u16) -> Result<(), IrqError>;

    /// Waits until `vector` has fired since the last call that returned `true`, for at most
    /// `timeout_ns` nanoseconds; returns whether it has. A `true` consumes the event.
    ///
    /// An interrupt between two calls is remembered, so none is lost.
    fn irq_wait(&self, vector: u16, timeout_ns: u64) -> bool;

    /// The descriptor, of an eventfd of this process, that becomes readable when `vector` fires and
    /// stays so until it is read, for event loops. It is open as long as the platform. Only for
    /// vectors that [`Platform::irq_enable`] has enabled; reading it takes the event from
    /// [`Platform::irq_wait`]. `None` if interrupts do not have descriptors here.
    fn irq_fd(&self, vector: u16) -> Option<i32> {
        let _ = vector;
        None
    }

    /// A monotonic clock in nanoseconds.
    fn now_ns(&self) -> u64;

    /// Called in loops that wait until the device changes memory or a register.
    ///
    /// The default is a hint to the processor. A platform whose device has no threads runs the
    /// device here.
    fn relax(&self) {
        core::hint::spin_loop();
    }

    /// Called by a program that has polled without success for some microseconds: the thread that
    /// it waits for may need this processor. If there are other processes, this is a system call.
    fn yield_processor(&self) {
        self.relax();
    }
}

/// Memory shared with a device, freed when dropped.
///
/// The device may change it at any time, so there are no references to its contents, only loads,
/// stores and copies. Values are little endian in memory. Offsets must be within the buffer and,
/// for the typed accesses, aligned; other accesses panic, as for a slice: offsets come from the
/// driver, never from the device.
pub trait DmaBuffer {
    /// Device address of the first byte.
    fn device_addr(&self) -> u64;

    /// Size in bytes.
    fn len(&self) -> usize;

    /// Returns true if the buffer has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Loads 8 bytes in one access.
    fn load_u64(&self, offset: usize, order: Ordering) -> u64;

    /// Stores 8 bytes in one access.
    fn store_u64(&self, offset: usize, value: u64, order: Ordering);

    /// Loads words that follow each other, each as [`DmaBuffer::load_u64`] does.
    #[inline]
    fn load_words<const N: usize>(&self, offset: usize, order: Ordering) -> [u64; N] {
        let mut words = [0; N];
        for (i, word) in words.iter_mut().enumerate() {
            *word = self.load_u64(offset + 8 * i, order);
        }
        words
    }

    /// Stores words that follow each other, each as [`DmaBuffer::store_u64`] does.
    #[inline]
    fn store_words<const N: usize>(&self, offset: usize, words: [u64; N], order: Ordering) {
        for (i, word) in words.into_iter().enumerate() {
            self.store_u64(offset + 8 * i, word, order);
        }
    }

    /// Loads 4 bytes in one access.
    fn load_u32(&self, offset: usize, order: Ordering) -> u32;

    /// Stores 4 bytes in one access.
    fn store_u32(&self, offset: usize, value: u32, order: Ordering);

    /// Loads a byte.
    fn load_u8(&self, offset: usize, order: Ordering) -> u8;

    /// Stores a byte.
    fn store_u8(&self, offset: usize, value: u8, order: Ordering);

    /// Copies bytes out of the buffer, in no particular order.
    fn read(&self, offset: usize, buf: &mut [u8]);

    /// Copies bytes into the buffer, in no particular order.
    fn write(&self, offset: usize, buf: &[u8]);

    /// Calls `each` with the 64-bit words of `len` bytes from `offset` on, little endian. `offset`
    /// is a multiple of 8. The last word is padded with zeros.
    fn each_word(&self, offset: usize, len: usize, mut each: impl FnMut(u64))
    where
        Self: Sized,
    {
        for at in (0..len).step_by(8) {
            let mut word = [0; 8];
            self.read(offset + at, &mut word[..(len - at).min(8)]);
            each(u64::from_le_bytes(word));
        }
    }

    /// Sets every byte to `value`.
    fn fill(&self, value: u8) {
        let block = [value; 4096];
        for at in (0..self.len()).step_by(block.len()) {
            let n = block.len().min(self.len() - at);
            self.write(at, &block[..n]);
        }
    }
}

/// The page of registers of a control queue or barrier channel. A process that posts commands or
/// starts rounds may have access to this page only. Offsets in the page are multiples of 8.
pub trait UserPage {
    /// Reads a register.
    fn read(&self, offset: u64) -> u64;

    /// Writes a register. The device sees the write after all earlier memory writes.
    fn write(&self, offset: u64, value: u64);
}

/// There is no memory left of this size and alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no DMA memory of {size} bytes, aligned to {align}")]
pub struct DmaError {
    /// Requested size, in bytes.
    pub size: usize,
    /// Requested alignment, in bytes.
    pub align: usize,
}

/// The platform has no interrupt for the vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no interrupt for MSI-X vector {vector}")]
pub struct IrqError {
    /// The requested MSI-X vector.
    pub vector: u16,
}
