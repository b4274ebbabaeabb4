//! State of a process that a forked child does not have.
#![allow(unsafe_code, reason = "memory that the kernel clears in a child")]

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of the memory in which the pointer is: at least a page.
const SIZE: usize = 1 << 16;

/// A value that each process makes for itself. A child does not inherit its parent's, so the
/// resource behind it (a device, a thread, a connection) remains the parent's alone.
///
/// Finding out takes no system call: the kernel clears the pointer in a child (MADV_WIPEONFORK, of
/// Linux 4.14). Values are never dropped.
#[derive(Debug)]
pub struct PerProcess<T> {
    /// The memory that a child finds cleared.
    place: AtomicPtr<AtomicPtr<Own<T>>>,
    /// The number of values made, by this process and those that it descends from.
    made: AtomicU32,
}

/// A value of this process.
#[derive(Debug)]
pub struct Own<T> {
    /// 0, or more than that of all values that the process's ancestors had when they forked.
    pub generation: u32,
    /// The value.
    pub value: T,
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> PerProcess<T> {
    /// Creates it without a value.
    pub const fn new() -> Self {
        Self { place: AtomicPtr::new(null_mut()), made: AtomicU32::new(0) }
    }
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    /// Returns this process's value, if it has made one.
    #[inline]
    pub fn get(&self) -> Option<&'static Own<T>> {
        // SAFETY: null, or memory that stays.
        let place = unsafe { self.place.load(Ordering::Acquire).as_ref() }?;
        // SAFETY: null, or a value that stays.
        unsafe { place.load(Ordering::Acquire).as_ref() }
    }

    /// Returns this process's value, which `make` makes if there is none. Several threads may call
    /// this at the same time; one of them makes the value.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &'static Own<T> {
        if let Some(own) = self.get() {
            return own;
        }
        let place = self.place();
        let generation = self.made.load(Ordering::Relaxed);
        let new = Box::into_raw(Box::new(Own { generation, value: make() }));
        let order = (Ordering::AcqRel, Ordering::Acquire);
        match place.compare_exchange(null_mut(), new, order.0, order.1) {
            Ok(_) => {
                self.made.store(generation + 1, Ordering::Relaxed);
                // SAFETY: from a box that is never freed.
                unsafe { &*new }
            }
            Err(other) => {
                // SAFETY: there is no other reference.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: as above.
                unsafe { &*other }
            }
        }
    }

    /// Returns the generation of this process's value, also if it has not made it yet.
    pub fn generation(&self) -> u32 {
        self.get().map_or_else(|| self.made.load(Ordering::Relaxed), |own| own.generation)
    }

    fn place(&self) -> &'static AtomicPtr<Own<T>> {
        let known = self.place.load(Ordering::Acquire);
        let place = if known.is_null() { self.new_place() } else { known };
        // SAFETY: it stays, and all zeros are a null pointer.
        unsafe { &*place }
    }

    fn new_place(&self) -> *mut AtomicPtr<Own<T>> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, at an address that the kernel chooses, overlaps nothing.
        let Ok(new) = (unsafe { mmap_anonymous(null_mut(), SIZE, protection, flags) }) else {
            // Without memory for it the process will not get far.
            return Box::into_raw(Box::default());
        };
        // SAFETY: the mapping is ours. A kernel that does not know it leaves a child with its
        // parent's value, as if this were a static variable.
        let _ = unsafe { madvise(new, SIZE, Advice::LinuxWipeOnFork) };
        let order = (Ordering::AcqRel, Ordering::Acquire);
        match self.place.compare_exchange(null_mut(), new.cast(), order.0, order.1) {
            Ok(_) => new.cast(),
            Err(other) => {
                // SAFETY: there is no other reference.
                let _ = unsafe { munmap(new, SIZE) };
                other
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_make_one_value() {
        static VALUE: PerProcess<usize> = PerProcess::new();
        assert!(VALUE.get().is_none());
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|n| scope.spawn(move || VALUE.get_or_init(|| n).value)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(all.iter().all(|value| *value == all[0]), "{all:?}");
        assert_eq!((VALUE.get().unwrap().value, VALUE.generation()), (all[0], 0));
    }
}
