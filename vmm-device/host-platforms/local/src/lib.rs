//! `libtofulocal`: devices that this host emulates, for `libtofucom` and `libtnw`.
//!
//! The library has one symbol, which returns the functions of [`tofu_hosted::table`]. This crate
//! implements them on the platforms of the Rust crates. Pointers and panics are handled here,
//! everything else in `devices`.
#![deny(unsafe_code)]

mod devices;
mod functions;

pub use functions::{TABLE, tofu_local_table};
