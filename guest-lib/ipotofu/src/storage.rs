//! Memory for the parts of a link. They get all of it from their owner at their creation.

use core::fmt::Debug;
use core::ops::{Deref, DerefMut};

/// An allocator: the heap of a process, or of a kernel.
pub trait Storage: Debug {
    /// A fixed number of places for values.
    type Places<T: Debug>: DerefMut<Target = [T]> + Debug;
    /// A value that several parts share.
    type Shared<T: Debug>: Deref<Target = T> + Clone + Debug;
    /// The error if there is no memory.
    type Error;

    /// Allocates `count` places, each with the value that `empty` returns.
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
