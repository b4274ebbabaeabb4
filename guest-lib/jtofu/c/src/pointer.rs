//! Pointers that C passes. They are checked for null; everything else is guaranteed by the caller.

use crate::code::Code;

/// A place to write a value to, which may be unaligned, in a packed structure.
pub(crate) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// # Safety
    /// `at` is null or may be written to.
    pub(crate) unsafe fn new(at: *mut T) -> Result<Self, Code> {
        if at.is_null() { Err(Code::InvalidPointer) } else { Ok(Self(at)) }
    }

    pub(crate) fn set(self, value: T) {
        // SAFETY: guaranteed by the caller of `new`.
        unsafe { self.0.write_unaligned(value) }
    }
}

/// An array to write to.
pub(crate) struct OutList<T>(*mut T, usize);

impl<T: Copy> OutList<T> {
    /// # Safety
    /// `at` is null, or may be written to for `max` elements.
    pub(crate) unsafe fn new(at: *mut T, max: usize) -> Result<Self, Code> {
        if at.is_null() && max > 0 { Err(Code::InvalidPointer) } else { Ok(Self(at, max)) }
    }

    /// Writes as many values as there is room for. Returns their number.
    pub(crate) fn set(self, values: impl IntoIterator<Item = T>) -> usize {
        let mut count = 0;
        for value in values.into_iter().take(self.1) {
            // SAFETY: guaranteed by the caller of `new`, because `count` is below the length.
            unsafe { self.0.add(count).write_unaligned(value) }
            count += 1;
        }
        count
    }
}

/// # Safety
/// `at` is null or may be read from.
pub(crate) unsafe fn read<T: Copy>(at: *const T) -> Result<T, Code> {
    if at.is_null() {
        return Err(Code::InvalidPointer);
    }
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { at.read_unaligned() })
}
