//! Collectives on Tofu barrier gates.
//!
//! [`plan`] describes, as plain data, how each of several algorithms links the gates of a group's
//! members. With the feature `group`, a `Group` of uTofu processes links them accordingly, and
//! offers `barrier`, `allreduce`, `broadcast` and `reduce`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

#[cfg(feature = "group")]
mod group;
pub mod plan;

#[cfg(feature = "group")]
pub use group::{Exchange, Group, GroupConfig, GroupError};
