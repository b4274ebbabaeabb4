//! Values with small handles, reused when freed.

use std::collections::BTreeSet;

/// No handle.
pub(super) const NONE: u32 = u32::MAX;

/// A pool of values that refer to each other by number.
#[derive(Debug)]
pub(super) struct Arena<T> {
    values: Vec<T>,
    free: Vec<u32>,
}

impl<T> Arena<T> {
    pub(super) const fn new() -> Self {
        Self { values: Vec::new(), free: Vec::new() }
    }

    #[inline]
    pub(super) fn add(&mut self, value: T) -> u32 {
        if let Some(handle) = self.free.pop() {
            self.values[handle as usize] = value;
            return handle;
        }
        self.values.push(value);
        (self.values.len() - 1) as u32
    }

    #[inline]
    pub(super) fn free(&mut self, handle: u32) {
        self.free.push(handle);
    }

    /// All values in use.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        let free: BTreeSet<_> = self.free.iter().copied().collect();
        let all = (0..).zip(&self.values);
        all.filter(move |(handle, _)| !free.contains(handle)).map(|(_, value)| value)
    }

    /// Number of values in use.
    pub(super) fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    /// The memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.values.capacity() * size_of::<T>() + self.free.capacity() * size_of::<u32>()
    }
}

impl<T> std::ops::Index<u32> for Arena<T> {
    type Output = T;

    #[inline]
    fn index(&self, handle: u32) -> &T {
        &self.values[handle as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Arena<T> {
    #[inline]
    fn index_mut(&mut self, handle: u32) -> &mut T {
        &mut self.values[handle as usize]
    }
}
