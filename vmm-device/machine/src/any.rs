//! Networks and nodes with devices of any kind, for inspection and fault injection.

use std::sync::Arc;

use tofu_abi::Coords;
use tofu_fabric::{
    BadErrors, EccErrors, ErrorsRefused, Fabric, FaultCounters, FaultPlan, LinkErrors,
    MemoryErrors, NoSuchLink, NodeId, Port, ShardId, Shards,
};
use tofu_icc::{EccPlace, Icc};
use tofu_inspect::Inspect;
use tofu_links::{ErrorRate, Parameters};
use tofu_pci::EndpointDevice;
use tofu_tnw_device::Nwp;

use crate::NetworkOf;
use crate::cables::{CableCounters, Refused};
use crate::capture::{Capture, CaptureConfig};
use crate::drive::Drive;
use crate::interconnect::Interconnect;
use crate::node::Node;
use crate::torus::TorusNode;
use crate::trace::Trace;
use tofu_icc::device_faults::DeviceFaults;

/// A node with a device of any kind.
pub trait AnyNode: EndpointDevice + Inspect + Send + Sync {
    /// Returns the device if it is a controller of Tofu.
    fn icc(&self) -> Option<&Icc> {
        None
    }

    /// Replaces the faults of the device. Returns false if devices of this kind have none.
    fn set_device_faults(&self, faults: DeviceFaults) -> bool {
        let _ = faults;
        false
    }

    /// Returns the device if it is a network processor of TNW.
    fn nwp(&self) -> Option<&Nwp> {
        None
    }
}

impl AnyNode for Node {
    fn icc(&self) -> Option<&Icc> {
        Some(self.icc())
    }

    fn set_device_faults(&self, faults: DeviceFaults) -> bool {
        self.set_faults(faults);
        true
    }
}

impl AnyNode for TorusNode {
    fn nwp(&self) -> Option<&Nwp> {
        Some(self.nwp())
    }
}

/// The time that has passed in a machine in modelled time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Modelled nanoseconds since its guests began.
    pub ns: u64,
    /// Modelled picoseconds of an instruction.
    pub instruction_ps: u64,
    /// The number of events that came to guests that were ahead of them.
    pub late: u64,
    /// The longest time by which a guest was ahead, in nanoseconds.
    pub late_most_ns: u64,
    /// Of each guest.
    pub guests: Vec<GuestPassed>,
    /// The point at which time has stopped, if it has.
    pub stands: Option<Stands>,
}

/// The point at which modelled time has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stands {
    /// In picoseconds since its guests began.
    pub at: u64,
    /// The command that has been waited for, if one has.
    pub command: Option<StartedCommand>,
}

/// The start of a command in modelled time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartedCommand {
    /// The node that has started it.
    pub node: NodeId,
    /// The number of the command, counted from 1.
    pub number: u64,
    /// When, in picoseconds since guests began.
    pub at: u64,
}

/// The time that has passed at a node with a guest in modelled time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestPassed {
    /// The node.
    pub node: NodeId,
    /// Modelled nanoseconds in which it was awake.
    pub awake_ns: u64,
    /// The host's nanoseconds in which it ran.
    pub host_ns: u64,
    /// The number of times that it stopped to request permission to run further.
    pub steps: u64,
    /// Its accesses to the device.
    pub accesses: u64,
    /// The commands that its device has started.
    pub commands: u64,
    /// Modelled nanoseconds in which any of them was in flight.
    pub in_flight_ns: u64,
}

/// The network of a machine with devices of any kind, for reading and changing it. It may outlive
/// the machine. The methods are those of [`NetworkOf`] and of its wires.
#[expect(missing_docs, clippy::missing_errors_doc, reason = "they are those of NetworkOf")]
pub trait AnyNetwork: Send + Sync {
    fn interconnect(&self) -> Interconnect;
    fn fabric(&self) -> &Arc<Fabric>;
    /// The time that has passed, if it is modelled.
    fn passed(&self) -> Option<Passed> {
        None
    }
    /// Resumes modelled time that is stopped, until it reaches `until`, in picoseconds, if given.
    /// The error says why time cannot be resumed.
    fn go_on(&self, until: Option<u64>) -> Result<(), String> {
        let _ = until;
        Err("its time is the host's".to_owned())
    }
    fn set_faults(&self, plan: Option<FaultPlan>) -> Result<(), NoSuchLink>;
    fn faults(&self) -> Option<(FaultPlan, FaultCounters)>;
    /// Sets the errors of a link, in both directions.
    fn set_link_errors(
        &self,
        at: Coords,
        port: Port,
        errors: &LinkErrors,
    ) -> Result<(), ErrorsRefused> {
        self.fabric().set_link_errors(at, port, errors)
    }
    fn set_router_errors(&self, id: NodeId, errors: Arc<MemoryErrors>);
    /// Injects wrong bits into the memory of a node's device. Returns false if there is no device
    /// with codes that find them.
    fn inject_ecc(&self, id: NodeId, place: EccPlace, errors: EccErrors) -> bool {
        let Some(node) = self.node(id) else { return false };
        let Some(icc) = node.icc() else { return false };
        icc.inject_ecc(place, errors);
        if place == EccPlace::Router {
            self.set_router_errors(id, Arc::clone(icc.router_errors()));
        }
        true
    }
    fn capture(&self, config: CaptureConfig) -> Capture;
    fn trace(&self) -> Option<Trace>;
    fn node(&self, id: NodeId) -> Option<Arc<dyn AnyNode>>;
    fn shard(&self) -> Option<(&Arc<Shards>, ShardId)>;
    fn shard_came(&self, shard: ShardId);
    fn shard_went(&self, shard: ShardId);
    fn receive(&self, from: ShardId, message: &[u8]) -> Result<(), Refused>;
    fn room(&self);
    fn cables(&self, shard: ShardId) -> Option<CableCounters>;
}

impl<D: Drive<Node: AnyNode>> AnyNetwork for NetworkOf<D> {
    fn interconnect(&self) -> Interconnect {
        self.interconnect()
    }

    fn fabric(&self) -> &Arc<Fabric> {
        self.wires().fabric()
    }

    fn set_faults(&self, plan: Option<FaultPlan>) -> Result<(), NoSuchLink> {
        self.wires().set_faults(plan)
    }

    fn faults(&self) -> Option<(FaultPlan, FaultCounters)> {
        self.wires().faults()
    }

    fn set_link_errors(
        &self,
        at: Coords,
        port: Port,
        errors: &LinkErrors,
    ) -> Result<(), ErrorsRefused> {
        if self.interconnect() != Interconnect::Tnw {
            return self.wires().fabric().set_link_errors(at, port, errors);
        }
        let lanes = usize::from(Parameters::TNW.lanes);
        let rate = ErrorRate::mean(errors.rates.get(..lanes).unwrap_or_default());
        if *errors != (LinkErrors { rates: errors.rates, ..LinkErrors::default() }) {
            return Err(ErrorsRefused::BitsOnly);
        }
        Ok(self.wires().set_bit_errors(at, port, rate).map_err(BadErrors::from)?)
    }

    fn set_router_errors(&self, id: NodeId, errors: Arc<MemoryErrors>) {
        self.wires().set_router_errors(id, errors);
    }

    fn capture(&self, config: CaptureConfig) -> Capture {
        self.capture(config)
    }

    fn trace(&self) -> Option<Trace> {
        self.trace()
    }

    fn node(&self, id: NodeId) -> Option<Arc<dyn AnyNode>> {
        self.node(id).map(|node| node as _)
    }

    fn shard(&self) -> Option<(&Arc<Shards>, ShardId)> {
        self.shard()
    }

    fn shard_came(&self, shard: ShardId) {
        self.shard_came(shard);
    }

    fn shard_went(&self, shard: ShardId) {
        self.shard_went(shard);
    }

    fn receive(&self, from: ShardId, message: &[u8]) -> Result<(), Refused> {
        self.receive(from, message)
    }

    fn room(&self) {
        self.room();
    }

    fn cables(&self, shard: ShardId) -> Option<CableCounters> {
        self.cables(shard)
    }
}
