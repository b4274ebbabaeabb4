//! State of a Linux process: locks that a panic of their holder does not poison, and values that a
//! forked child does not inherit.
#![deny(unsafe_code)]

mod forked;
mod unpoisoned;

pub use crate::forked::{Own, PerProcess};
pub use crate::unpoisoned::{lock, read, wait, wait_timeout, write};
