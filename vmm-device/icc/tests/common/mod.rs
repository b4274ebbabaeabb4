//! The surroundings of a device that is alone in a test.

#![allow(dead_code, reason = "each user takes what it needs")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use tofu_abi::{Coords, Doorbell, TniId};
use tofu_fabric::{Packet, Port, PortCounters, XbCounters};
use tofu_icc::{Body, Host, Net};

/// The device's node.
pub(crate) const SELF: Coords = Coords::new(0, 0, 0, 0, 0, 0);
/// Its neighbour, which is not a device.
pub(crate) const PEER: Coords = Coords::new(0, 0, 0, 1, 0, 0);

/// A host that records its notifications.
#[derive(Default)]
pub(crate) struct Quiet {
    /// Vectors of interrupts.
    pub(crate) interrupts: Mutex<Vec<u16>>,
    /// Queues that were enabled or disabled.
    pub(crate) enabled: Mutex<Vec<bool>>,
    /// The time it takes to enable one.
    pub(crate) enabling: Duration,
    /// The number that it has begun to enable.
    pub(crate) begun: AtomicU32,
    /// The time of its clock.
    pub(crate) now: u64,
    /// The counters of each port.
    pub(crate) port: PortCounters,
}

impl Host for Quiet {
    fn interrupt(&self, vector: u16) {
        self.interrupts.lock().unwrap().push(vector);
    }
    fn doorbell(&self, _: TniId, _: Doorbell) {}
    fn queue_enabled(&self, _: TniId, _: Doorbell, enabled: bool) {
        if enabled {
            self.begun.fetch_add(1, SeqCst);
            std::thread::sleep(self.enabling);
        }
        self.enabled.lock().unwrap().push(enabled);
    }
    fn timer(&self, _: u64) {}
    fn now_ns(&self) -> u64 {
        self.now
    }
    fn port_counters(&self, _: Port) -> PortCounters {
        self.port
    }
    fn xb_counters(&self) -> XbCounters {
        XbCounters::default()
    }
}

/// Keeps what is sent.
#[derive(Default)]
pub(crate) struct Sent(pub(crate) Vec<Packet<Body>>);

impl Net for Sent {
    fn has_room(&self, _: Coords, _: TniId) -> bool {
        true
    }

    fn inject(&mut self, packet: Packet<Body>) {
        self.0.push(packet);
    }
    fn progress(&mut self) {}
    fn now_ns(&self) -> u64 {
        0
    }
}
