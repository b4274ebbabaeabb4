//! The programs' interface to where they run: no operating system.

use tofu_bare::{irq, time};
use tofu_tnw::Nwp;

use crate::error::Error;
use crate::fail;

/// Memory that the device can reach.
pub use tofu_bare::platform::BareBuffer as NodeBuffer;
/// The device's surroundings.
pub use tofu_bare::platform::BarePlatform as NodePlatform;

#[doc(hidden)]
pub use tofu_bare::{entry as bare_entry, print_args};

/// Names the program's function, a `fn() -> Result<(), Error>`. An error is printed and makes the
/// exit code 1.
#[macro_export]
macro_rules! entry {
    ($program:path) => {
        fn tofu_guest_main() -> i32 {
            $crate::exit_code($program(), $crate::print_args)
        }
        $crate::bare_entry!(tofu_guest_main);
    };
}

/// Tells the user something that is not a result.
pub(crate) fn tell(args: core::fmt::Arguments<'_>) {
    print_args(args);
}

/// The value of the last `name=value` on the command line; empty for a bare `name`.
pub fn option(name: &str) -> Option<&'static str> {
    tofu_bare::option(name)
}

/// Nanoseconds of a monotonic clock.
pub fn now_ns() -> u64 {
    time::now_ns()
}

/// The node's Tofu device.
///
/// # Errors
///
/// If there is none.
pub fn find_device() -> Result<NodePlatform, Error> {
    Ok(NodePlatform::find()?)
}

/// The node's network processor of TNW, reset and enabled.
///
/// # Errors
///
/// If there is none.
pub fn find_nwp() -> Result<Nwp<NodePlatform>, Error> {
    Ok(Nwp::probe(NodePlatform::find_nwp()?)?)
}

/// Sleeps for some time.
pub(crate) struct Sleeper {
    /// An interrupt vector that no device uses.
    quiet: irq::Vector,
}

impl Sleeper {
    pub(crate) fn new() -> Result<Self, Error> {
        let quiet = irq::alloc_vector().ok_or_else(|| fail!("no interrupt vector left"))?;
        Ok(Self { quiet })
    }

    pub(crate) fn sleep(&self, ns: u64) {
        // Nothing raises this vector, so only the time ends the wait.
        irq::wait(self.quiet, irq::count(self.quiet), Some(ns));
    }
}
