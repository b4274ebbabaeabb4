//! Where the parts of a link get their memory: all of it when they are made, from their owner.

use core::fmt::Debug;
use core::ops::{Deref, DerefMut};

/// A source of memory: the heap of a process, or a kernel's.
pub trait Storage: Debug {
    /// So many places for values.
    type Places<T: Debug>: DerefMut<Target = [T]> + Debug;
    /// A value that several parts have in common.
    type Shared<T: Debug>: Deref<Target = T> + Clone + Debug;
    /// Why there is none.
    type Error;

    /// `count` places, each with what `empty` returns.
    ///
    /// # Errors
    ///
    /// If there is no memory for them.
    fn places<T: Debug>(
        count: usize,
        empty: impl Fn() -> T,
    ) -> Result<Self::Places<T>, Self::Error>;
}

/// Memory of the global allocator.
#[cfg(any(feature = "link", test))]
#[derive(Clone, Copy, Debug)]
pub struct Heap;

#[cfg(any(feature = "link", test))]
impl Storage for Heap {
    type Places<T: Debug> = alloc::vec::Vec<T>;
    type Shared<T: Debug> = alloc::sync::Arc<T>;
    type Error = core::convert::Infallible;

    fn places<T: Debug>(
        count: usize,
        empty: impl Fn() -> T,
    ) -> Result<Self::Places<T>, Self::Error> {
        Ok(core::iter::repeat_with(empty).take(count).collect())
    }
}
