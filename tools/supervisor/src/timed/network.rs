//! The network of a machine in modelled time, for inspection.

use std::sync::Arc;

use tofu_abi::topology::NodeId;
use tofu_fabric::{Fabric, FaultCounters, FaultPlan, MemoryErrors, NoSuchLink, ShardId, Shards};
use tofu_icc::Icc;
use tofu_inspect::{Inspect, Visit};
use tofu_machine::capture::{Capture, CaptureConfig, ModelledCaptures};
use tofu_machine::trace::{Recorder, Trace};
use tofu_machine::{
    AnyNetwork, AnyNode, CableCounters, DeviceFaults, GuestPassed, Interconnect, Passed, Refused,
    Stands,
};
use tofu_pci::{Endpoint, EndpointDevice};
use tofu_timed::{EventEngine, Function};

use crate::timed::between::Between;
use crate::timed::pace::{Pace, Paces};

/// The network. It changes at boundaries of its time alone, see
/// [`Outside`](super::outside::Outside).
pub(super) struct TimedNetwork {
    pub(super) interconnect: Interconnect,
    pub(super) recorder: Arc<Recorder>,
    pub(super) captures: ModelledCaptures,
    /// Its links, which the engine has.
    pub(super) fabric: Arc<Fabric>,
    pub(super) functions: Vec<Arc<Function>>,
    pub(super) engine: Arc<EventEngine>,
    /// Those of nodes with guests.
    pub(super) guests: Vec<Arc<Pace>>,
    pub(super) between: Arc<Between>,
    /// Modelled picoseconds of an instruction.
    pub(super) instruction: u64,
    pub(super) paces: Arc<Paces>,
}

impl TimedNetwork {
    /// The point at which time has stopped, if it has.
    pub(super) fn stands(&self) -> Option<Stands> {
        self.guests.first().and_then(|pace| self.paces.stop.stands(&pace.turn))
    }

    fn of_guest(&self, pace: &Pace) -> GuestPassed {
        let commands = self.engine.commands(pace.node);
        let in_flight_ns = self.engine.in_flight(pace.node) / 1000;
        GuestPassed { commands, in_flight_ns, ..pace.passed(&self.between) }
    }
}

impl AnyNetwork for TimedNetwork {
    fn interconnect(&self) -> Interconnect {
        self.interconnect
    }

    fn fabric(&self) -> &Arc<Fabric> {
        &self.fabric
    }

    fn passed(&self) -> Option<Passed> {
        let late = self.guests.first().map(|pace| pace.turn.lateness()).unwrap_or_default();
        Some(Passed {
            ns: self.engine.now() / 1000,
            instruction_ps: self.instruction,
            late: late.count,
            late_most_ns: late.most.div_ceil(1000),
            guests: self.guests.iter().map(|pace| self.of_guest(pace)).collect(),
            stands: self.stands(),
        })
    }

    fn go_on(&self, until: Option<u64>) -> Result<(), String> {
        let first = self.guests.first().ok_or("the machine has no guests")?;
        self.paces.go_on(first, until)
    }

    fn set_faults(&self, plan: Option<FaultPlan>) -> Result<(), NoSuchLink> {
        self.engine.set_faults(plan)
    }

    fn faults(&self) -> Option<(FaultPlan, FaultCounters)> {
        self.engine.faults()
    }

    fn set_router_errors(&self, id: NodeId, errors: Arc<MemoryErrors>) {
        self.engine.set_router_errors(id, errors);
    }

    fn capture(&self, config: CaptureConfig) -> Capture {
        self.captures.begin(config)
    }

    fn trace(&self) -> Option<Trace> {
        // Devices always report what they do.
        Some(self.recorder.begin(Box::new(|_| {})))
    }

    fn node(&self, id: NodeId) -> Option<Arc<dyn AnyNode>> {
        let function = Arc::clone(self.functions.get(id.index())?);
        Some(Arc::new(TimedNode { id, function, engine: Arc::clone(&self.engine) }))
    }

    fn shard(&self) -> Option<(&Arc<Shards>, ShardId)> {
        None
    }

    fn shard_came(&self, _: ShardId) {}

    fn shard_went(&self, _: ShardId) {}

    fn receive(&self, _: ShardId, _: &[u8]) -> Result<(), Refused> {
        Ok(())
    }

    fn room(&self) {}

    fn cables(&self, _: ShardId) -> Option<CableCounters> {
        None
    }
}

struct TimedNode {
    id: NodeId,
    function: Arc<Function>,
    engine: Arc<EventEngine>,
}

impl EndpointDevice for TimedNode {
    fn endpoint(&self) -> &Endpoint {
        self.function.endpoint()
    }

    fn bus_master_changed(&self, on: bool) {
        self.function.bus_master_changed(on);
    }

    fn read(&self, bar: u8, offset: u64, data: &mut [u8]) {
        self.function.read(bar, offset, data);
    }

    fn write(&self, bar: u8, offset: u64, data: &[u8]) {
        self.function.write(bar, offset, data);
    }

    fn reset_device(&self) {
        self.function.reset_device();
    }
}

impl Inspect for TimedNode {
    fn inspect(&self, visit: Visit<'_>) {
        visit.tree(|tree| {
            tree.add("index", &self.id.0);
            tree.add("modelled_ns", &(self.engine.now() / 1000));
            tree.add("commands", &self.engine.commands(self.id));
            tree.add("pci", self.function.endpoint());
            tree.add("device", self.function.icc());
            tree.add("faults", self.function.faults());
        });
    }
}

impl AnyNode for TimedNode {
    fn icc(&self) -> Option<&Icc> {
        Some(self.function.icc())
    }

    fn set_device_faults(&self, faults: DeviceFaults) -> bool {
        self.engine.set_device_faults(self.id, faults)
    }
}
