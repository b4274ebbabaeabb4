//! Memory of whole words, which are the standard library's or loom's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tofu_driver::DmaBuffer;

/// A word of memory.
pub(crate) trait Word {
    fn new() -> Self;
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
}

macro_rules! word {
    ($word:ty) => {
        impl Word for $word {
            fn new() -> Self {
                <$word>::new(0)
            }
            fn load(&self, order: Ordering) -> u64 {
                self.load(order)
            }
            fn store(&self, value: u64, order: Ordering) {
                self.store(value, order);
            }
        }
    };
}
word!(AtomicU64);
word!(loom::sync::atomic::AtomicU64);

/// A word of loom's whose accesses all have a fence: loom does not see those of the driver.
#[derive(Debug)]
#[allow(dead_code, reason = "one of the two tests has none")]
pub(crate) struct Fenced(loom::sync::atomic::AtomicU64);

impl Word for Fenced {
    fn new() -> Self {
        Self(loom::sync::atomic::AtomicU64::new(0))
    }
    fn load(&self, order: Ordering) -> u64 {
        loom::sync::atomic::fence(Ordering::SeqCst);
        self.0.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// Memory of one allocation.
#[derive(Debug)]
pub(crate) struct Memory<W = AtomicU64> {
    pub(crate) addr: u64,
    pub(crate) words: Arc<Vec<W>>,
}

impl<W: Word> Memory<W> {
    pub(crate) fn new(addr: u64, size: usize) -> Self {
        Self { addr, words: Arc::new((0..size.div_ceil(8)).map(|_| W::new()).collect()) }
    }
}

impl Memory {
    /// Returns a word.
    #[allow(dead_code, reason = "one of the two tests does not look")]
    pub(crate) fn word(&self, index: usize) -> u64 {
        self.words[index].load(Ordering::SeqCst)
    }

    /// Changes a word.
    pub(crate) fn set(&self, index: usize, value: u64) {
        self.words[index].store(value, Ordering::SeqCst);
    }
}

impl<W> Clone for Memory<W> {
    fn clone(&self) -> Self {
        Self { addr: self.addr, words: Arc::clone(&self.words) }
    }
}

impl<W: Word> DmaBuffer for Memory<W> {
    fn device_addr(&self) -> u64 {
        self.addr
    }
    fn len(&self) -> usize {
        self.words.len() * 8
    }
    fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        self.words[offset / 8].load(order)
    }
    fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        self.words[offset / 8].store(value, order);
    }
    fn load_u32(&self, _: usize, _: Ordering) -> u32 {
        unreachable!("the core uses whole words")
    }
    fn store_u32(&self, _: usize, _: u32, _: Ordering) {
        unreachable!("the core uses whole words")
    }
    fn load_u8(&self, _: usize, _: Ordering) -> u8 {
        unreachable!("the core uses whole words")
    }
    fn store_u8(&self, _: usize, _: u8, _: Ordering) {
        unreachable!("the core uses whole words")
    }
    fn read(&self, _: usize, _: &mut [u8]) {
        unreachable!("the core uses whole words")
    }
    fn write(&self, _: usize, _: &[u8]) {
        unreachable!("the core uses whole words")
    }
}
