//! Libraries that are loaded at run time.
#![allow(unsafe_code, reason = "the dynamic loader")]

use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute_copy;
use std::ptr::{NonNull, null_mut};

/// A library, which stays loaded.
#[derive(Clone, Copy, Debug)]
pub struct Library(*mut c_void);

impl Library {
    /// The program and the libraries whose symbols all others see (`RTLD_DEFAULT`).
    pub const PROCESS: Self = Self(null_mut());

    /// Loads a library, with flags of `dlopen`.
    ///
    /// # Errors
    ///
    /// The loader's reason.
    ///
    /// # Safety
    ///
    /// The code that initialises the library does no harm.
    pub unsafe fn open(name: &CStr, flags: c_int) -> Result<Self, String> {
        // SAFETY: the name ends with NUL; the rest is guaranteed by the caller.
        let library = unsafe { libc::dlopen(name.as_ptr(), flags) };
        if library.is_null() { Err(loader_error()) } else { Ok(Self(library)) }
    }

    /// Returns the address of a symbol.
    pub fn symbol(self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: a library that stays loaded, and a name that ends with NUL.
        NonNull::new(unsafe { libc::dlsym(self.0, name.as_ptr()) })
    }

    /// Returns a function.
    ///
    /// # Safety
    ///
    /// `F` is the type of a pointer to it.
    pub unsafe fn function<F: Copy>(self, name: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: guaranteed by the caller; both have the size of a pointer.
        self.symbol(name).map(|found| unsafe { transmute_copy(&found) })
    }
}

/// Returns what the loader says about its last error in this thread.
fn loader_error() -> String {
    // SAFETY: it returns null or a text that stays until the thread's next call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason is known".to_owned();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_those_of_the_library() {
        // SAFETY: it is loaded already.
        let libc = unsafe { Library::open(c"libc.so.6", libc::RTLD_NOW) }.unwrap();
        // SAFETY: its type.
        let abs = unsafe { libc.function::<unsafe extern "C" fn(c_int) -> c_int>(c"abs") };
        // SAFETY: it takes any number but the least.
        assert_eq!(unsafe { abs.unwrap()(-4) }, 4);
        assert_eq!(libc.symbol(c"abs"), Library::PROCESS.symbol(c"abs"));
        assert!(libc.symbol(c"no_such_function").is_none());
    }

    #[test]
    fn absent_library_has_a_reason() {
        // SAFETY: there is none.
        let error = unsafe { Library::open(c"/nonexistent/lib.so", libc::RTLD_NOW) }.unwrap_err();
        assert!(error.contains("/nonexistent/lib.so"), "{error}");
    }
}
