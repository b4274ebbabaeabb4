//! `libtofucom`: the functions of `utofu.h` and `tofu_collective.h`, and `utofu_get_last_error`.
//!
//! The work is done in `tofu-utofu`. This crate handles pointers, handles and codes, and chooses
//! where the process's device comes from (`backend`). Pointers are checked for null, handles for
//! belonging to a VCQ that exists, everything else for its range. Beyond that a C caller promises
//! what C callers always promise: a pointer that is not null points to what its type says.

mod api;
mod backend;
mod call;
mod environment;
mod handle;
mod news;
mod process;
mod provider;

pub use api::*;
