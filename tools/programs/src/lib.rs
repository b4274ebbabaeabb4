//! The programs for nodes that the command ships, built and embedded by the build script.
//!
//! This crate contains nothing else and depends on nothing, so that changes of the command do not
//! rebuild the guests.

#![forbid(unsafe_code)]

/// A program for nodes that is part of `tofu`.
#[derive(Debug)]
pub struct Shipped {
    /// Its name.
    pub name: &'static str,
    /// One line about it.
    pub summary: &'static str,
    /// The ELF file.
    pub image: &'static [u8],
}

include!(concat!(env!("OUT_DIR"), "/shipped.rs"));

/// The compiler that built the programs and the command.
pub const RUSTC_VERSION: &str = env!("TOFU_RUSTC_VERSION");

/// The shipped program of that name for nodes without an operating system.
pub fn for_bare(name: &str) -> Option<&'static Shipped> {
    BARE.iter().find(|shipped| shipped.name == name)
}

/// The shipped program of that name for Linux nodes.
pub fn for_linux(name: &str) -> Option<&'static Shipped> {
    LINUX.iter().find(|shipped| shipped.name == name)
}
