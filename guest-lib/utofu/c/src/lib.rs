//! `libtofucom`: the functions of `utofu.h`, `tofu_collective.h` and `tofu_wait.h`, and
//! `utofu_get_last_error`.
//!
//! The work is done in `tofu-utofu`. This crate handles pointers, handles and codes, and chooses
//! the source of the process's device (`backend`). Null pointers, handles of VCQs that do not exist
//! and values out of range are detected. Beyond that, a C caller guarantees as usual that a pointer
//! which is not null points to what its type says.
//!
//! The headers are written by hand: they are the contract with users, and must not follow a change
//! of this code. Tests compare their functions with those that the library exports.

mod api;
mod backend;
mod call;
mod environment;
mod handle;
mod link_state;
mod process;
mod provider;

pub use api::*;
