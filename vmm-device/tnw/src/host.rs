//! The interfaces between the device and its surroundings.

use tofu_abi::tnw::{Channel, Link};

use crate::unit::{MAX_RUN, Unit};

/// The platform that a device is plugged into: interrupts, engines, a clock.
///
/// The methods may be called from any thread that drives the device. They must not call back into
/// it.
pub trait Host: Send + Sync {
    /// Sends the MSI-X message of `vector` (see [`tofu_abi::tnw::vector`]).
    fn interrupt(&self, vector: u16);

    /// Requests a call of [`Nwp::run`](crate::Nwp::run) soon.
    fn work(&self);

    /// Requests a call of [`Nwp::expire`](crate::Nwp::expire) at `deadline_ns` on the clock of
    /// [`Host::now_ns`], or later.
    fn timer(&self, deadline_ns: u64);

    /// Makes the window of a channel guest memory, at its place in
    /// [`SharedWindows`](crate::SharedWindows), or registers again. Until that takes effect for the
    /// guest, its stores still reach the device.
    fn window_shared(&self, _: Link, _: Channel, _shared: bool) {}

    /// Notes that the guest has announced a new packet in a shared window. The host may poll the
    /// window for a while, so that the guest need not notify.
    fn window_rang(&self, _: Link, _: Channel) {}

    /// A monotonic clock in nanoseconds.
    fn now_ns(&self) -> u64;
}

/// The links as seen by a thread that drives a device.
pub trait Net {
    /// Returns the number of packets that a link accepts now. No more are fetched or taken out of a
    /// window at a time. If it is 0, [`Nwp::room`](crate::Nwp::room) must be called when it grows.
    /// Retransmissions and commands ignore it.
    fn room(&self, link: Link) -> u16 {
        let _ = link;
        MAX_RUN
    }

    /// Returns true if packets stay in this process, where they are soon processed. Packets of an
    /// Nget then refer to its memory and are copied once. An implementation that loses, repeats or
    /// records packets should return false.
    fn by_reference(&self) -> bool {
        false
    }

    /// Sends a unit over a link. Units arrive in the order in which they were sent, if at all.
    ///
    /// Called with a lock of the sender held. The implementation passes the unit to
    /// [`Nwp::push`](crate::Nwp::push) of the neighbour, or loses it.
    fn send(&mut self, link: Link, unit: Unit);
}
