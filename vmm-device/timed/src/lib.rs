//! Devices in modelled time: real controllers on the modelled network, and one clock for both.
//!
//! An [`EventEngine`] executes all events in the order of modelled time, and those of the same time
//! in the order in which they were scheduled. It does not depend on a host's clock or threads. Its
//! driver is a simulation, or the code that keeps the clocks of guests. The driver rings doorbells
//! at their times, runs the engine until a time, and gets interrupts with their times. Data is
//! visible as soon as it is in memory; the driver accounts for the time that software takes at both
//! ends.
//!
//! Apart from the network, a command occupies the interface's command engine, the bus to memory,
//! and the interface's sending side, where TLPs wait for the network.
//!
//! Programs that run as threads of this process keep modelled time by [`Turns`]: one runs at a
//! time, and it is the one with the earliest time.
#![forbid(unsafe_code)]

mod engine;
mod function;
mod state;
mod turns;

pub use engine::{EventEngine, Interrupt, Observer, Outside};
pub use function::Function;
pub use turns::{Away, Lateness, Outlook, Stuck, Turn, Turns};
