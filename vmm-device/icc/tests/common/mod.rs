//! Surroundings of a device that is alone in a test.

use tofu_abi::{Coords, Doorbell, TniId};
use tofu_fabric::{Packet, PortCounters, XbCounters};
use tofu_icc::{Body, Host, Net};

/// The device's node.
pub(crate) const SELF: Coords = Coords::new(0, 0, 0, 0, 0, 0);
/// Its neighbour, which is no device.
pub(crate) const PEER: Coords = Coords::new(0, 0, 0, 1, 0, 0);

/// A host at which nothing happens.
pub(crate) struct Quiet;

impl Host for Quiet {
    fn interrupt(&self, _: u16) {}
    fn doorbell(&self, _: TniId, _: Doorbell) {}
    fn queue_enabled(&self, _: TniId, _: Doorbell, _: bool) {}
    fn timer(&self, _: u64) {}
    fn now_ns(&self) -> u64 {
        0
    }
    fn port_counters(&self, _: u8) -> PortCounters {
        PortCounters::default()
    }
    fn xb_counters(&self) -> XbCounters {
        XbCounters::default()
    }
}

/// Keeps what is sent.
#[derive(Default)]
pub(crate) struct Sent(pub(crate) Vec<Packet<Body>>);

impl Net for Sent {
    fn inject(&mut self, packet: Packet<Body>) {
        self.0.push(packet);
    }
    fn progress(&mut self) {}
    fn now_ns(&self) -> u64 {
        0
    }
}
