//! Run-time for small bare-metal guest programs.
//!
//! A program is a `no_std`, `no_main` crate for the host's own target (`x86_64-unknown-linux-gnu`):
//! its kernel is one file of this library, with some forty instructions in ring 0. Everything else,
//! this library included, runs in ring 3. The reason is PVM (KVM in software), which runs ring 3
//! natively and emulates each ring-0 instruction. On hardware virtualisation this design costs
//! nothing.
//!
//! ```ignore
//! #![no_std]
//! #![no_main]
//!
//! use tofu_bare::println;
//!
//! tofu_bare::entry!(main);
//!
//! fn main() -> i32 {
//!     println!("hello, {}", tofu_bare::command_line());
//!     0
//! }
//! ```
//!
//! The program's `build.rs` passes the linker what it needs:
//!
//! ```ignore
//! fn main() {
//!     let script = std::env::var("DEP_TOFU_BARE_LINKER_SCRIPT").unwrap();
//!     for arg in ["-nostartfiles", "-static", "-no-pie", "-Wl,--build-id=none"] {
//!         println!("cargo::rustc-link-arg-bins={arg}");
//!     }
//!     println!("cargo::rustc-link-arg-bins=-T{script}");
//! }
//! ```
//!
//! and its `Cargo.toml` sets `panic = "abort"` in the profiles.
//!
//! The return value of `main` is the program's exit code, written to port 0xf4 (ours), where 0 is
//! success. A panic ends the program with [`EXIT_PANIC`], an unhandled exception with
//! [`EXIT_EXCEPTION`]; both print what happened first.
//!
//! The library uses words that the VMM adds to the command line: `tsc_khz=` (frequency of the time
//! stamp counter), `ecam=` (address of the PCI Express configuration space; without it
//! configuration goes through ports) and `print=` (a port that takes a whole line by address;
//! without it output goes to the serial port at 0x3f8, which costs an exit per byte).
//!
//! A program can also be started by its PVH entry, as QEMU's `-kernel` does. Then these words are
//! absent, and the clock is measured against the ACPI timer.
//!
//! There is one CPU and one thread. Memory is identity-mapped: an address in the program is also
//! the device's address for DMA.

#![no_std]

extern crate alloc;

mod boot_params;
mod cmdline;
mod console;
mod exception;
mod exit;
pub mod irq;
pub mod loader;
mod mem;
pub mod mmio;
pub mod pci;
pub mod platform;
mod service;
mod start;
pub mod time;

pub use cmdline::{command_line, number, option};
#[doc(hidden)]
pub use console::print_args;
pub use exit::{EXIT_EXCEPTION, EXIT_PANIC, exit};
pub use mem::{dma_alloc, heap_free};

/// Names the program's `main`, a `fn() -> i32` that returns the exit code.
#[macro_export]
macro_rules! entry {
    ($main:path) => {
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        extern "Rust" fn tofu_bare_main() -> i32 {
            let main: fn() -> i32 = $main;
            main()
        }
    };
}

/// Prints to the serial port. Output is collected and sent a line at a time.
#[macro_export]
macro_rules! print {
    ($($arg:tt)*) => { $crate::print_args(::core::format_args!($($arg)*)) };
}

/// Prints a line to the serial port.
#[macro_export]
macro_rules! println {
    () => { $crate::print!("\n") };
    ($($arg:tt)*) => { $crate::print!("{}\n", ::core::format_args!($($arg)*)) };
}
