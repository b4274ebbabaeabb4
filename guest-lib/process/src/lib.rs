//! A Linux process: locks that a panic of their holder does not poison, values that a forked child
//! does not inherit, libraries that are loaded at run time, and sealed files of memory.
#![deny(unsafe_code)]

mod forked;
mod library;
mod memory;
mod unpoisoned;

pub use crate::forked::{Own, PerProcess};
pub use crate::library::Library;
pub use crate::memory::{Resize, memory_file};
pub use crate::unpoisoned::{lock, read, wait, wait_timeout, write};
