//! The device's interface to its host.

use tofu_abi::{Coords, Doorbell, TniId};
use tofu_fabric::{Packet, Port, PortCounters, XbCounters};

use crate::observe::trace_events::{Event, Subject};
use crate::tlp::Body;
use crate::transaction::{Ended, Transaction};

/// The platform that a device is plugged into: interrupts, engines, clock, links.
///
/// Every method may be called from any thread that drives the device and must not call
/// back into it.
pub trait Host: Send + Sync {
    /// Sends the MSI-X message of `vector` (see [`tofu_abi::irq::vector`]).
    fn interrupt(&self, vector: u16);

    /// Returns true if [`Host::interrupt`] sends anything: MSI-X is enabled.
    fn sends_interrupts(&self) -> bool {
        true
    }

    /// A doorbell of TNI `tni` rang: the host must call [`Icc::run_queue`](crate::Icc::run_queue)
    /// soon.
    fn doorbell(&self, tni: TniId, doorbell: Doorbell);

    /// A control queue was enabled or disabled, or a barrier channel unmasked or masked. Called by
    /// the thread that writes the register, before the write returns, so that doorbells can be set
    /// up before the first one rings.
    fn queue_enabled(&self, tni: TniId, doorbell: Doorbell, enabled: bool);

    /// The device wants [`Icc::expire`](crate::Icc::expire) to be called at `deadline_ns`
    /// on the clock of [`Host::now_ns`], or earlier.
    fn timer(&self, deadline_ns: u64);

    /// A monotonic clock in nanoseconds.
    fn now_ns(&self) -> u64;

    /// Counters of a link port of this node.
    fn port_counters(&self, port: Port) -> PortCounters;

    /// Counters of this node's crossbar.
    fn xb_counters(&self) -> XbCounters;

    /// A step of a command, reported in the thread that took it, with locks of the device held.
    /// Called only while [`Icc::set_traced`](crate::Icc::set_traced) is on.
    fn observe(&self, event: &Event) {
        let _ = event;
    }

    /// The reason why a command of any node has failed at this one. If many fail, not all are
    /// reported. Called only while [`Icc::set_traced`](crate::Icc::set_traced) is on.
    fn explain(&self, subject: &Subject, why: &str) {
        let _ = (subject, why);
    }

    /// Returns the time for [`Host::observe`], in units of the host's choice; not 0.
    fn stamp(&self) -> u64 {
        1
    }
}

/// The network, for a thread that drives devices.
pub trait Net {
    /// Returns true if a node's interface may send another request. If not,
    /// [`Icc::room`](crate::Icc::room) must be called when it may again. Answers and signals of
    /// gates are sent without this check.
    fn has_room(&self, node: Coords, tni: TniId) -> bool;

    /// Returns true if [`Net::has_room`] can return false at present.
    fn can_be_full(&self) -> bool {
        true
    }

    /// Returns true if [`Icc::frame_passed`](crate::Icc::frame_passed) is called for raw and system
    /// packets that arrive. If not, their commands end when the network has taken them.
    fn tells_of_frames(&self) -> bool {
        false
    }

    /// Sends a packet from its source node. A carrier may deliver it, and the answer to it, before
    /// this returns, so the caller holds no lock that [`Icc::arrive`](crate::Icc::arrive) takes.
    fn inject(&mut self, packet: Packet<Body>);

    /// Returns true if [`Net::transact`] carries out transactions at present.
    fn transacts(&self) -> bool {
        false
    }

    /// Has the target of a transaction carry it out in place ([`Icc::serve_transaction`]), and
    /// counts its packets. Returns `None` if that is not possible; nothing has happened then.
    ///
    /// [`Icc::serve_transaction`]: crate::Icc::serve_transaction
    fn transact(&mut self, transaction: &Transaction<'_>) -> Option<Ended> {
        let _ = transaction;
        None
    }

    /// Handles arrivals that are due before more is sent.
    ///
    /// A carrier without delay delivers here what was injected so far; a carrier with delay does
    /// nothing.
    fn progress(&mut self);

    /// Time in nanoseconds on the clock of [`Host::now_ns`], at most a few microseconds old.
    fn now_ns(&self) -> u64;
}
