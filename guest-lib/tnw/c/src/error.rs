//! Codes, and why a call has failed.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tofu_tnw::Status;

macro_rules! codes {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        /// The codes of `tnw.h`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        pub(crate) enum Code {
            $($name = $value,)*
        }

        impl Code {
            /// The meaning of a number.
            pub(crate) fn text(number: c_int) -> &'static CStr {
                match number {
                    $($value => $text,)*
                    _ => c"no code of this library",
                }
            }
        }
    };
}

codes! {
    Success = 0, c"done";
    NotYet = 1, c"it has not ended yet";
    Truncated = -1, c"the message was longer than the credit";
    Short = -2, c"the message was shorter than the credit";
    Address = -3, c"the memory was gone";
    Cancelled = -4, c"cancelled";
    Cut = -5, c"the neighbour was reset in the midst of the message";
    InvalidHandle = -16, c"no network processor with this handle is open";
    InvalidPointer = -17, c"a null pointer";
    InvalidLink = -18, c"a link is 0 to 5";
    InvalidChannel = -19, c"a channel is 0 to 7";
    InvalidLength = -20, c"a message has 1 byte to 8 MiB, memory 1 byte or more";
    InvalidScheme = -21, c"a scheme is TNW_PPUT or TNW_NGET";
    InvalidRequest = -22, c"there is no such request, or its end was told already";
    InvalidNode = -23, c"this process has no such node";
    InvalidMemory = -24, c"the memory is not of tnwAlloc, or not all of it";
    NoLink = -32, c"no node is at the other end of the link";
    Full = -33, c"too many requests are waiting";
    Timeout = -34, c"the time is over";
    NotAvailable = -35, c"no network processor can be used";
    Busy = -36, c"the node is open already";
    OutOfMemory = -37, c"no memory is left";
    Internal = -38, c"a bug of this library";
}

/// The reason why a call has failed.
#[derive(Clone, Debug)]
pub(crate) struct Error {
    pub(crate) code: Code,
    /// More than the code says, if there is more.
    pub(crate) why: Cow<'static, str>,
}

impl Error {
    pub(crate) fn new(code: Code, why: impl Into<Cow<'static, str>>) -> Self {
        Self { code, why: why.into() }
    }
}

impl From<Code> for Error {
    fn from(code: Code) -> Self {
        Self::new(code, "")
    }
}

/// The code of how a request has ended.
pub(crate) const fn ended(status: Status) -> Code {
    match status {
        Status::Ok => Code::Success,
        Status::Truncated => Code::Truncated,
        Status::Short => Code::Short,
        Status::BadLength => Code::InvalidLength,
        Status::BadAddress => Code::Address,
        Status::Full => Code::Full,
        Status::Cancelled => Code::Cancelled,
        Status::Cut => Code::Cut,
        Status::NoLink => Code::NoLink,
        Status::Disabled => Code::NotAvailable,
    }
}

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs the body of a function and turns its end into a return code; no panic gets into C.
pub(crate) fn call(function: &str, body: impl FnOnce() -> Result<Code, Error>) -> c_int {
    let error = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(code)) => return code as c_int,
        Ok(Err(error)) => error,
        Err(_) => Code::Internal.into(),
    };
    let code = error.code as c_int;
    let meaning = Code::text(code).to_string_lossy();
    let text = match &*error.why {
        "" => format!("{function}: {meaning}"),
        why => format!("{function}: {meaning}: {why}"),
    };
    LAST.with(|last| *last.borrow_mut() = text);
    code
}

/// Writes the last error's text with a NUL, as far as `bytes` bytes go.
///
/// # Safety
///
/// So many bytes can be written at `to`.
pub(crate) unsafe fn write_last(to: *mut c_char, bytes: usize) {
    LAST.with(|last| {
        let last = last.borrow();
        let Some(len) = bytes.checked_sub(1).map(|most| last.len().min(most)) else { return };
        // SAFETY: as promised, and there is room for the NUL.
        unsafe {
            to.copy_from_nonoverlapping(last.as_ptr().cast(), len);
            to.add(len).write(0);
        }
    });
}
