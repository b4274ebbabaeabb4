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
//!
//! # The event engine
//!
//! `EventEngine` executes the events of controllers and network in one order, in the thread that
//! calls it. Nothing in it reads a clock of the host. Code that keeps the clocks of nodes drives
//! it:
//!
//! - `doorbell(node, tni, bell, at)` rings a doorbell at a time. Events of one time happen in the
//!   order in which they were scheduled, so a caller that acts for several nodes sorts by time and
//!   node.
//! - `run_until(t)` executes all events up to `t`. An access to registers happens at the time that
//!   the engine has reached.
//! - `next(node)` is a promise: before that time nothing changes at the node, so its guest may run
//!   until then. `lookahead()` is the least time in which anything at one node has an effect at
//!   another. `Turn::horizon()` has the limit for a guest whose instructions are counted.
//! - A `Function` is a node's controller behind its PCI endpoint, which `vfio-user` serves to a
//!   client. All accesses are messages; none goes by an event descriptor or a page, which have no
//!   time.
//! - Each interrupt comes with its time, which does not depend on the quanta in which the engine
//!   runs.
//!
//! TNW in modelled time (`tools/sim/src/tnw`) has a separate event loop, as its links are not
//! Tofu's.
#![forbid(unsafe_code)]

mod engine;
mod function;
mod state;
mod turns;

pub use engine::{EventEngine, Interrupt, Observer, Outside};
pub use function::Function;
pub use turns::{Away, Bounds, Lateness, Stuck, Turn, Turns};
