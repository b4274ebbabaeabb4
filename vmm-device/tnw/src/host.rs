//! What the device needs from its surroundings.

use tofu_abi::tnw::{Channel, Link};

use crate::unit::{MAX_RUN, Unit};

/// The platform that a device is plugged into: interrupts, engines, a clock.
///
/// Every method may be called from any thread that drives the device and must not call back into
/// it.
pub trait Host: Send + Sync {
    /// Sends the MSI-X message of `vector` (see [`tofu_abi::tnw::vector`]).
    fn interrupt(&self, vector: u16);

    /// Somebody must call [`Nwp::run`](crate::Nwp::run) soon.
    fn work(&self);

    /// The device wants [`Nwp::expire`](crate::Nwp::expire) to be called at `deadline_ns` on the
    /// clock of [`Host::now_ns`], or later.
    fn timer(&self, deadline_ns: u64);

    /// From now on the window of a channel is guest memory, at its place in
    /// [`SharedWindows`](crate::SharedWindows), or registers again. Until that takes effect for the
    /// guest, its stores reach the device all the same.
    fn window_shared(&self, _: Link, _: Channel, _shared: bool) {}

    /// The guest has announced that something is new in a shared window. The host may poll the
    /// window for a while, so that the guest need not notify.
    fn window_rang(&self, _: Link, _: Channel) {}

    /// A monotonic clock in nanoseconds.
    fn now_ns(&self) -> u64;
}

/// The links as seen by a thread that drives a device.
pub trait Net {
    /// The number of packets that a link accepts now; no more are fetched or taken out of a window
    /// at a time. If it is 0, [`Nwp::room`](crate::Nwp::room) must be called when it grows.
    /// Retransmissions and commands do not ask.
    fn room(&self, link: Link) -> u16 {
        let _ = link;
        MAX_RUN
    }

    /// Whether packets stay in this process, where they are soon processed. Packets of an Nget then
    /// refer to its memory, and are copied once. Code that loses, repeats or records packets should
    /// return false.
    fn by_reference(&self) -> bool {
        false
    }

    /// Sends over a link. Units arrive in the order in which they were sent, if at all.
    ///
    /// Called with a lock of the sender's held; it hands the unit to
    /// [`Nwp::push`](crate::Nwp::push) of the neighbour, or loses it.
    fn send(&mut self, link: Link, unit: Unit);
}
