//! Collectives on Tofu barrier gates.
//!
//! [`plan`] says how the gates of a group's members are linked, for each of some algorithms, as
//! plain data. With the feature `group`, a `Group` of uTofu processes links them so, and offers
//! `barrier`, `allreduce`, `broadcast` and `reduce`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

#[cfg(feature = "group")]
mod group;
pub mod plan;

#[cfg(feature = "group")]
pub use group::{Exchange, Group, GroupConfig, GroupError};
