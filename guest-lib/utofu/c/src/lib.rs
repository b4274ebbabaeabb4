//! `libtofucom`: the functions of `utofu.h` and `tofu_collective.h`, and `utofu_get_last_error`.
//!
//! What they do is in `tofu-utofu`; here are pointers, handles and codes, and the choice of who
//! gives the process its device (`backend`). Pointers are checked for null, handles for being
//! those of living VCQs, everything else for its range. What a C caller promises beyond that is
//! what C callers always promise: a pointer that is not null points to what its type says.

mod api;
mod backend;
mod call;
mod environment;
mod handle;
mod process;
mod provider;

pub use api::*;
