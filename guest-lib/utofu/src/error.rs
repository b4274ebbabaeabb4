//! Return codes, and errors with their texts.

use alloc::borrow::Cow;
use alloc::string::String;
use core::fmt;

/// Defines the codes with their C names.
macro_rules! codes {
    ($( $(#[$meta:meta])* $name:ident = $value:literal, $c:literal; )*) => {
        /// A return code of the C API.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(i32)]
        pub enum Code {
            $( $(#[$meta])* $name = $value, )*
        }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Returns its name in C.
            pub const fn name(self) -> &'static str {
                match self { $( Self::$name => $c, )* }
            }
        }
    };
}

codes! {
    /// Success.
    Success = 0, "UTOFU_SUCCESS";
    /// There is nothing to take from the queue.
    NotFound = -1, "UTOFU_ERR_NOT_FOUND";
    /// It is still in progress.
    NotCompleted = -2, "UTOFU_ERR_NOT_COMPLETED";
    /// It was not started.
    NotProcessed = -3, "UTOFU_ERR_NOT_PROCESSED";
    /// The transmit queue is full: poll its completions, and try again.
    Busy = -4, "UTOFU_ERR_BUSY";
    /// It is in use.
    Used = -5, "UTOFU_ERR_USED";
    /// None is free.
    Full = -6, "UTOFU_ERR_FULL";
    /// It is not available to this process.
    NotAvailable = -7, "UTOFU_ERR_NOT_AVAILABLE";
    /// It is not supported here.
    NotSupported = -8, "UTOFU_ERR_NOT_SUPPORTED";

    /// A command failed for another reason.
    TcqOther = -128, "UTOFU_ERR_TCQ_OTHER";
    /// A descriptor is invalid.
    TcqDesc = -129, "UTOFU_ERR_TCQ_DESC";
    /// Local memory is not mapped.
    TcqMemory = -130, "UTOFU_ERR_TCQ_MEMORY";
    /// The local STADD is not registered, or is read-only.
    TcqStadd = -131, "UTOFU_ERR_TCQ_STADD";
    /// A length is not allowed, or exceeds the registered local memory.
    TcqLength = -132, "UTOFU_ERR_TCQ_LENGTH";

    /// A command failed for another reason.
    MrqOther = -192, "UTOFU_ERR_MRQ_OTHER";
    /// The peer does not exist, cannot be reached, or refuses.
    MrqPeer = -193, "UTOFU_ERR_MRQ_PEER";
    /// Local memory is not mapped.
    MrqLclMemory = -194, "UTOFU_ERR_MRQ_LCL_MEMORY";
    /// Remote memory is not mapped.
    MrqRmtMemory = -195, "UTOFU_ERR_MRQ_RMT_MEMORY";
    /// The local STADD is not registered, or is read-only.
    MrqLclStadd = -196, "UTOFU_ERR_MRQ_LCL_STADD";
    /// The remote STADD is not registered, is read-only, or is not aligned.
    MrqRmtStadd = -197, "UTOFU_ERR_MRQ_RMT_STADD";
    /// The access exceeds the registered local memory.
    MrqLclLength = -198, "UTOFU_ERR_MRQ_LCL_LENGTH";
    /// The access exceeds the registered remote memory.
    MrqRmtLength = -199, "UTOFU_ERR_MRQ_RMT_LENGTH";

    /// A barrier failed.
    BarrierOther = -256, "UTOFU_ERR_BARRIER_OTHER";
    /// The peers of a barrier have started different operations.
    BarrierMismatch = -257, "UTOFU_ERR_BARRIER_MISMATCH";

    /// An argument is wrong.
    InvalidArg = -512, "UTOFU_ERR_INVALID_ARG";
    /// A null pointer.
    InvalidPointer = -513, "UTOFU_ERR_INVALID_POINTER";
    /// Flags that do not exist.
    InvalidFlags = -514, "UTOFU_ERR_INVALID_FLAGS";
    /// Coordinates that no node has.
    InvalidCoords = -515, "UTOFU_ERR_INVALID_COORDS";
    /// A, B, C coordinates that no path has.
    InvalidPath = -516, "UTOFU_ERR_INVALID_PATH";
    /// No such network interface.
    InvalidTniId = -517, "UTOFU_ERR_INVALID_TNI_ID";
    /// No such control queue.
    InvalidCqId = -518, "UTOFU_ERR_INVALID_CQ_ID";
    /// No such barrier gate.
    InvalidBgId = -519, "UTOFU_ERR_INVALID_BG_ID";
    /// No such component.
    InvalidCmpId = -520, "UTOFU_ERR_INVALID_CMP_ID";
    /// The handle does not belong to a VCQ, or to one that was freed.
    InvalidVcqHdl = -521, "UTOFU_ERR_INVALID_VCQ_HDL";
    /// No VCQ can have this ID.
    InvalidVcqId = -522, "UTOFU_ERR_INVALID_VCQ_ID";
    /// No VBG can have this ID.
    InvalidVbgId = -523, "UTOFU_ERR_INVALID_VBG_ID";
    /// No such path.
    InvalidPathId = -524, "UTOFU_ERR_INVALID_PATH_ID";
    /// It is not an STADD, or not one of this VCQ.
    InvalidStadd = -525, "UTOFU_ERR_INVALID_STADD";
    /// Memory that cannot be registered.
    InvalidAddress = -526, "UTOFU_ERR_INVALID_ADDRESS";
    /// A size that is not allowed.
    InvalidSize = -527, "UTOFU_ERR_INVALID_SIZE";
    /// No such reserved steering tag.
    InvalidStag = -528, "UTOFU_ERR_INVALID_STAG";
    /// Data for notices that is too long.
    InvalidEdata = -529, "UTOFU_ERR_INVALID_EDATA";
    /// A number that is not allowed.
    InvalidNumber = -530, "UTOFU_ERR_INVALID_NUMBER";
    /// No such operation.
    InvalidOp = -531, "UTOFU_ERR_INVALID_OP";
    /// Not a descriptor.
    InvalidDesc = -532, "UTOFU_ERR_INVALID_DESC";
    /// Data that is not allowed.
    InvalidData = -533, "UTOFU_ERR_INVALID_DATA";

    /// The device has none left.
    OutOfResource = -640, "UTOFU_ERR_OUT_OF_RESOURCE";
    /// There is no memory left.
    OutOfMemory = -641, "UTOFU_ERR_OUT_OF_MEMORY";

    /// The device or this library is broken.
    Fatal = -768, "UTOFU_ERR_FATAL";
}

impl Code {
    /// Returns the value that C functions return.
    pub const fn value(self) -> i32 {
        self as i32
    }
}

/// An error of this library.
///
/// Its text is one sentence: the subject, the value at fault, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    code: Code,
    what: &'static str,
    value: Option<u64>,
    hint: Cow<'static, str>,
}

impl Error {
    /// Creates an error about `what`, with a `hint` at what would be right.
    pub const fn new(code: Code, what: &'static str, hint: &'static str) -> Self {
        Self { code, what, value: None, hint: Cow::Borrowed(hint) }
    }

    /// Creates an error, about a value if one is given, with a hint that is composed at run time.
    pub const fn with_text(
        code: Code,
        what: &'static str,
        value: Option<u64>,
        hint: String,
    ) -> Self {
        Self { code, what, value, hint: Cow::Owned(hint) }
    }

    /// Creates an error about a value.
    pub const fn with_value(
        code: Code,
        what: &'static str,
        value: u64,
        hint: &'static str,
    ) -> Self {
        Self { code, what, value: Some(value), hint: Cow::Borrowed(hint) }
    }

    /// Returns the return code.
    pub const fn code(&self) -> Code {
        self.code
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.name(), self.what)?;
        match self.value {
            Some(value) if value < 1 << 16 => write!(f, " {value}")?,
            Some(value) => write!(f, " {value:#x}")?,
            None => {}
        }
        write!(f, ": {}", self.hint)
    }
}

impl core::error::Error for Error {}

/// Returns the error for a pointer that must not be null.
pub const fn null(what: &'static str) -> Error {
    Error::new(Code::InvalidPointer, what, "a null pointer")
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn text_has_code_value_and_hint() {
        let error = Error::with_value(Code::InvalidTniId, "TNI", 6, "there are TNIs 0 to 5");
        assert_eq!(error.to_string(), "UTOFU_ERR_INVALID_TNI_ID: TNI 6: there are TNIs 0 to 5");
        let error = Error::with_value(Code::InvalidSize, "length", 1 << 24, "at most 0xffffff");
        assert_eq!(error.to_string(), "UTOFU_ERR_INVALID_SIZE: length 0x1000000: at most 0xffffff");
        assert_eq!(null("vcq_id").to_string(), "UTOFU_ERR_INVALID_POINTER: vcq_id: a null pointer");
    }
}
