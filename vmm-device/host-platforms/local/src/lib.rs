//! `libtofulocal`: devices that this host emulates, for `libtofucom` and `libtnw`.
//!
//! The library has one symbol, which returns the functions of [`tofu_hosted::table`]. This crate
//! makes them of Rust's platforms: here are pointers and panics, in `devices` is the rest.
#![deny(unsafe_code)]

mod devices;
mod functions;

pub use functions::{TABLE, tofu_local_table};
