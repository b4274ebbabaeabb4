//! Collectives on Tofu barrier gates.
//!
//! [`plan`] says how the gates of a group's members are linked, for each of some algorithms, as
//! plain data.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod plan;
