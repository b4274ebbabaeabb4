//! Specifications of machines, and the checked plans that they make.
//!
//! A [`MachineSpec`] comes from a machine file ([`MachineSpec::parse`]), from options of a command,
//! or from code. [`MachineSpec::over`] merges two of them. [`plan::Plan::new`] checks it: every
//! mistake of a user is reported there, before anything has started. Code that runs machines takes
//! only plans.

#![forbid(unsafe_code)]

pub mod device_faults;
pub mod ecc;
pub mod faults;
mod file;
pub mod guest;
pub mod plan;
mod read;
mod spec;
pub mod units;

pub use spec::{GatewayAt, GuestSpec, Lines, LinkSpec, MachineSpec, NodeSpec, Torus};
