//! The frame of each C function: no panic escapes, and the last error is kept for
//! `utofu_get_last_error`.

use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tofu_utofu::error::null;
use tofu_utofu::{Code, Error};

/// Size of the caller's buffer for `utofu_get_last_error`, in bytes.
const MESSAGE_SIZE: usize = 1024;

/// An error, and the function that returned it.
struct Last {
    function: &'static str,
    error: Error,
}

thread_local! {
    static LAST: Cell<Option<Last>> = const { Cell::new(None) };
}

/// Runs the body of a function and returns its result as a return code.
#[inline]
pub(crate) fn call(function: &'static str, body: impl FnOnce() -> Result<(), Error>) -> c_int {
    let error = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Code::Success.value(),
        Ok(Err(error)) => error,
        Err(_) => Error::new(Code::Fatal, "this library", "a bug: it has panicked"),
    };
    let code = error.code().value();
    LAST.set(Some(Last { function, error }));
    code
}

/// Writes the text of the calling thread's last error, terminated by NUL, in at most 1024 bytes.
pub(crate) fn last_error(to: *mut c_char) {
    if to.is_null() {
        return;
    }
    let last = LAST.take();
    let text = match &last {
        Some(last) => format!("{}: {}", last.function, last.error),
        None => String::new(),
    };
    LAST.set(last);
    let len = text.len().min(MESSAGE_SIZE - 1);
    // SAFETY: the caller's buffer has 1024 bytes.
    unsafe {
        to.copy_from_nonoverlapping(text.as_ptr().cast(), len);
        to.add(len).write(0);
    }
}

/// A pointer through which a value is written. It may be unaligned, in a packed structure.
pub(crate) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// # Safety
    ///
    /// `at` is null or may be written to until the end of the call.
    pub(crate) unsafe fn new(at: *mut T, what: &'static str) -> Result<Self, Error> {
        if at.is_null() { Err(null(what)) } else { Ok(Self(at)) }
    }

    pub(crate) fn set(&self, value: T) {
        // SAFETY: guaranteed by the caller of `new`.
        unsafe { self.0.write_unaligned(value) }
    }

    pub(crate) fn get(&self) -> T {
        // SAFETY: guaranteed by the caller of `new`. What may be written to may be read.
        unsafe { self.0.read_unaligned() }
    }

    /// Writes several consecutive values.
    pub(crate) fn set_all(&self, values: &[T]) {
        for (i, value) in values.iter().enumerate() {
            // SAFETY: guaranteed by the caller of `new`, for as many values as the function has.
            unsafe { self.0.add(i).write_unaligned(*value) }
        }
    }
}

/// Reads `N` bytes.
///
/// # Safety
///
/// `from` is null or points to that many bytes.
pub(crate) unsafe fn bytes<const N: usize>(
    from: *const u8,
    what: &'static str,
) -> Result<[u8; N], Error> {
    if from.is_null() {
        return Err(null(what));
    }
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { from.cast::<[u8; N]>().read_unaligned() })
}

/// Returns a copy of `values`, which the caller frees with `free()`.
pub(crate) fn malloced<T: Copy>(values: &[T]) -> Result<*mut T, Error> {
    let size = size_of_val(values);
    // SAFETY: any size will do.
    let list = unsafe { libc::malloc(size.max(1)) }.cast::<T>();
    if list.is_null() {
        return Err(Error::with_value(Code::OutOfMemory, "list", size as u64, "no memory left"));
    }
    // SAFETY: it is new, large enough, and aligned for any type.
    unsafe { list.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    Ok(list)
}
