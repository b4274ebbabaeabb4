//! Devices in modelled time: real controllers on the modelled network, and one clock for both.
//!
//! An [`EventEngine`] executes all events in the order of modelled time, and those of the same time
//! in the order in which they were scheduled. Nothing in it depends on a host's clock or threads.
//! Its driver, a simulation or the code that keeps the clocks of guests, rings doorbells at their
//! times, runs it until a time, and learns of interrupts with theirs. Data is seen as soon as it is
//! in memory: what software takes at the ends is the driver's.
//!
//! Apart from the network, a command keeps busy the interface's command engine, the bus to memory,
//! and the interface's sending side, where TLPs wait for the network.
//!
//! Programs that run as threads of this process keep modelled time by [`Turns`]: one runs at a
//! time, the one that is behind all others.
#![forbid(unsafe_code)]

mod engine;
mod function;
mod state;
mod turns;

pub use engine::{EventEngine, Interrupt, Observer, Outside};
pub use function::Function;
pub use turns::{Away, Lateness, Outlook, Stuck, Turn, Turns};
