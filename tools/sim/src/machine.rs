//! Devices in modelled time, driven by the real driver.
//!
//! The process at a node is the code that calls the driver. It takes no time, and data is visible
//! to it as soon as it is in memory. Programs that take turns report the time that they take.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use anyhow::Context;
use tofu_abi::Coords;
use tofu_driver::Device;
use tofu_fabric::{NodeId, Ps, Shape};
use tofu_icc::Icc;
use tofu_inproc::{Arena, Backend, InProcess, Interrupts};
use tofu_machine::Generation;
use tofu_netmodel::Arbiter;
use tofu_timed::{EventEngine, Turn, Turns};
use vm_memory::{GuestAddress, GuestMemoryMmap};

/// Memory of a node starts here, so that address 0 is not memory.
const MEMORY_BASE: u64 = 0x1000;
/// Time that passes when no event is scheduled, in picoseconds.
const IDLE_PS: Ps = 1_000_000;

/// The parameters of a model.
pub(crate) struct ModelConfig {
    pub(crate) generation: Generation,
    pub(crate) shape: Shape,
    pub(crate) arbiter: Arbiter,
    /// Bytes of each node's memory.
    pub(crate) memory: usize,
}

impl ModelConfig {
    pub(crate) const fn new(generation: Generation, shape: Shape) -> Self {
        Self { generation, shape, arbiter: Arbiter::InTurn, memory: 1 << 20 }
    }
}

/// A machine in modelled time.
pub(crate) struct Model {
    engine: Arc<EventEngine>,
    shape: Shape,
    devices: Vec<Device<InProcess>>,
    /// True while programs take turns, which let time pass instead of a driver that waits.
    in_turns: Arc<AtomicBool>,
}

impl Model {
    /// Builds a machine that has all of its nodes, with their interfaces enabled.
    pub(crate) fn new(config: &ModelConfig) -> anyhow::Result<Self> {
        let ModelConfig { generation, shape, arbiter, memory } = *config;
        let memory = |_| GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(MEMORY_BASE), memory)]);
        let memories = shape.iter().map(memory).collect::<Result<Vec<_>, _>>()?;
        let interrupts: Vec<_> = shape.iter().map(|_| Arc::new(Interrupts::default())).collect();
        let fired = interrupts.clone();
        let engine = EventEngine::new(
            generation,
            shape,
            arbiter,
            memories.iter().map(|memory| Arc::new(memory.clone()) as _),
            Box::new(move |interrupt| fired[interrupt.node.index()].fire(interrupt.vector)),
        )?;
        let in_turns = Arc::new(AtomicBool::new(false));
        let ends = memories.into_iter().zip(interrupts);
        let devices = (0..).map(NodeId).zip(ends).map(|(node, (memory, interrupts))| {
            let backend = Arc::new(NodeBackend {
                engine: Arc::clone(&engine),
                node,
                in_turns: Arc::clone(&in_turns),
            });
            backend.icc().set_bus_master(true);
            let arena = Arena::new(memory).context("memory of a node")?;
            let device = Device::probe(InProcess::new(backend, arena, interrupts))?;
            device.enable_tnis()?;
            Ok(device)
        });
        let devices = devices.collect::<anyhow::Result<_>>()?;
        Ok(Self { engine, shape, devices, in_turns })
    }

    /// Returns the modelled time, in picoseconds.
    pub(crate) fn now(&self) -> Ps {
        self.engine.now()
    }

    /// Returns the device of a node.
    pub(crate) fn device(&self, coords: Coords) -> anyhow::Result<&Device<InProcess>> {
        let id = self.shape.node_id(coords).context("a node of a model")?;
        self.devices.get(id.index()).context("a node of a model")
    }

    /// Returns the controller of a node, for what a driver cannot read.
    pub(crate) fn icc(&self, coords: Coords) -> anyhow::Result<&Icc> {
        let id = self.shape.node_id(coords).context("a node of a model")?;
        self.engine.icc(id).map(|icc| &**icc).context("a node of a model")
    }

    /// Makes the modelled times that devices count start from now.
    pub(crate) fn begin_epoch(&self) {
        self.engine.begin_epoch();
    }

    /// Returns when the last packet arrived. `now` may be later, because timers run after it.
    pub(crate) fn last_arrival(&self) -> Ps {
        self.engine.last_arrival()
    }

    /// Runs `run` with the turns of programs on these nodes.
    pub(crate) fn in_turns<T>(
        &self,
        nodes: impl IntoIterator<Item = Coords>,
        run: impl FnOnce(Vec<Turn>) -> T,
    ) -> anyhow::Result<T> {
        let id = |coords| self.shape.node_id(coords).context("a node of a model");
        let nodes = nodes.into_iter().map(id).collect::<anyhow::Result<Vec<_>>>()?;
        self.in_turns.store(true, SeqCst);
        let result = run(Turns::start(&self.engine, &nodes));
        self.in_turns.store(false, SeqCst);
        Ok(result)
    }

    /// Executes the next event. Returns false if there is none.
    pub(crate) fn step(&self) -> bool {
        self.engine.step()
    }

    /// Executes events until `done` returns a value.
    pub(crate) fn run<T>(
        &self,
        mut done: impl FnMut() -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        loop {
            if let Some(result) = done()? {
                return Ok(result);
            }
            if !self.step() {
                anyhow::bail!("nothing is in flight, and the awaited data has not arrived");
            }
        }
    }
}

/// The driver's platform for a node.
struct NodeBackend {
    engine: Arc<EventEngine>,
    node: NodeId,
    in_turns: Arc<AtomicBool>,
}

impl NodeBackend {
    fn icc(&self) -> &Icc {
        self.engine.icc(self.node).expect("the engine has all nodes of its shape")
    }
}

impl Backend for NodeBackend {
    fn bar_read(&self, offset: u64, data: &mut [u8]) {
        self.icc().bar_read(offset, data);
    }

    fn bar_write(&self, offset: u64, data: &[u8]) {
        self.icc().bar_write(offset, data);
    }

    fn now_ns(&self) -> u64 {
        self.engine.now() / 1000
    }

    fn pump(&self) -> bool {
        if self.in_turns.load(SeqCst) {
            return false;
        }
        if !self.engine.step() {
            self.engine.run_until(self.engine.now() + IDLE_PS);
        }
        true
    }
}
