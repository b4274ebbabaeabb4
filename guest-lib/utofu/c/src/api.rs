//! The functions of `utofu.h`, by its sections, and of `tofu_collective.h` and `tofu_wait.h`.
//!
//! Each returns 0 or a negative code (`enum utofu_return_code`), and keeps the reason for
//! `utofu_get_last_error`. A null pointer that must not be null gives `UTOFU_ERR_INVALID_POINTER`.

mod barrier;
mod collective;
mod completion;
mod extra;
mod memory;
mod onesided;
mod path;
mod tni;
mod vcq;
mod wait;

pub use barrier::*;
pub use collective::*;
pub use completion::*;
pub use extra::*;
pub use memory::*;
pub use onesided::*;
pub use path::*;
pub use tni::*;
pub use vcq::*;
pub use wait::*;
