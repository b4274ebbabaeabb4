//! Memory of a host process as DMA memory.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use vm_memory::{AtomicInteger, VolatileMemory, VolatileSlice};

use crate::platform::DmaBuffer;

/// Memory that this process has mapped and shares with a device. It is a [`DmaBuffer`].
pub trait VolatileBuffer {
    /// Device address of the first byte.
    fn addr(&self) -> u64;

    /// The memory. It must have the alignment that typed accesses need.
    fn memory(&self) -> VolatileSlice<'_>;
}

#[inline]
fn part<'a>(memory: &VolatileSlice<'a>, offset: usize, len: usize) -> VolatileSlice<'a> {
    memory.subslice(offset, len).unwrap_or_else(|_| refuse(memory.len(), offset, len))
}

#[cold]
fn refuse(size: usize, offset: usize, len: usize) -> ! {
    if offset.checked_add(len).is_some_and(|end| end <= size) {
        panic!("an access of {len} bytes at {offset} is not aligned");
    }
    panic!("{offset} + {len} is beyond a buffer of {size} bytes");
}

#[inline]
fn atomic<T: AtomicInteger, R>(
    buffer: &impl VolatileBuffer,
    offset: usize,
    f: impl FnOnce(&T) -> R,
) -> R {
    f(aligned(&buffer.memory(), offset))
}

/// The word at this offset of memory.
#[inline]
fn aligned<'a, T: AtomicInteger>(memory: &'a VolatileSlice<'_>, offset: usize) -> &'a T {
    match memory.get_atomic_ref(offset) {
        Ok(word) => word,
        Err(_) => refuse(memory.len(), offset, size_of::<T>()),
    }
}

impl<B: VolatileBuffer> DmaBuffer for B {
    fn device_addr(&self) -> u64 {
        self.addr()
    }

    fn len(&self) -> usize {
        self.memory().len()
    }

    #[inline]
    fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        u64::from_le(atomic(self, offset, |word: &AtomicU64| word.load(order)))
    }

    #[inline]
    fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        atomic(self, offset, |word: &AtomicU64| word.store(value.to_le(), order));
    }

    #[inline]
    fn load_words<const N: usize>(&self, offset: usize, order: Ordering) -> [u64; N] {
        let words = part(&self.memory(), offset, 8 * N);
        let mut values = [0; N];
        for (i, value) in values.iter_mut().enumerate() {
            *value = u64::from_le(aligned::<AtomicU64>(&words, 8 * i).load(order));
        }
        values
    }

    #[inline]
    fn store_words<const N: usize>(&self, offset: usize, values: [u64; N], order: Ordering) {
        let words = part(&self.memory(), offset, 8 * N);
        for (i, value) in values.into_iter().enumerate() {
            aligned::<AtomicU64>(&words, 8 * i).store(value.to_le(), order);
        }
    }

    fn load_u32(&self, offset: usize, order: Ordering) -> u32 {
        u32::from_le(atomic(self, offset, |word: &AtomicU32| word.load(order)))
    }

    fn store_u32(&self, offset: usize, value: u32, order: Ordering) {
        atomic(self, offset, |word: &AtomicU32| word.store(value.to_le(), order));
    }

    fn load_u8(&self, offset: usize, order: Ordering) -> u8 {
        atomic(self, offset, |byte: &AtomicU8| byte.load(order))
    }

    fn store_u8(&self, offset: usize, value: u8, order: Ordering) {
        atomic(self, offset, |byte: &AtomicU8| byte.store(value, order));
    }

    fn read(&self, offset: usize, buf: &mut [u8]) {
        part(&self.memory(), offset, buf.len()).copy_to(buf);
    }

    #[inline]
    fn each_word(&self, offset: usize, len: usize, mut each: impl FnMut(u64)) {
        let memory = part(&self.memory(), offset, len);
        let words = memory.get_array_ref::<u64>(0, len / 8).expect("it is as long as that");
        (0..words.len()).for_each(|at| each(u64::from_le(words.load(at))));
        if !len.is_multiple_of(8) {
            let mut last = [0; 8];
            self.read(offset + len / 8 * 8, &mut last[..len % 8]);
            each(u64::from_le_bytes(last));
        }
    }

    fn write(&self, offset: usize, buf: &[u8]) {
        part(&self.memory(), offset, buf.len()).copy_from(buf);
    }
}
