//! A machine in this process, for programs that communicate with themselves.

use std::env;
use std::sync::Arc;

use tofu_abi::Coords;
use tofu_abi::topology::Shape;
use tofu_utofu::{Code, DeviceShare, Error};
use tofu_utofu_local::{Generation, LocalMachine};

use crate::environment;
use crate::provider::{AnyProvider, any};

/// The default machine, unless `TOFU_SHAPE` is set: a unit of twelve nodes.
const DEFAULT: Shape = Shape::UNIT;

pub(crate) struct InProcess {
    machine: LocalMachine,
    generation: Generation,
    nodes: Vec<Coords>,
    processes_per_node: u16,
}

impl InProcess {
    /// Builds the machine that `TOFU_SHAPE`, `TOFU_GENERATION` and `TOFU_PPN` describe.
    pub(crate) fn new() -> Result<Self, Error> {
        let shape = match env::var("TOFU_SHAPE") {
            Err(env::VarError::NotPresent) => DEFAULT,
            text => text.unwrap_or_default().parse().map_err(|_| {
                let hint = "the environment variable is not six lengths, as in 2x1x1x2x3x2";
                Error::new(Code::NotAvailable, "TOFU_SHAPE", hint)
            })?,
        };
        let processes_per_node = environment::number("TOFU_PPN", 1)?;
        let generation = match env::var("TOFU_GENERATION") {
            Err(env::VarError::NotPresent) => Generation::default(),
            text => Generation::from_name(&text.unwrap_or_default()).ok_or_else(|| {
                let hint = format!("the environment variable is not {}", Generation::NAMES);
                Error::with_text(Code::NotAvailable, "TOFU_GENERATION", None, hint)
            })?,
        };
        DeviceShare::of(generation, 0, processes_per_node)?;
        let machine = LocalMachine::of(generation, shape).map_err(|_| {
            Error::new(Code::OutOfResource, "machine", "the host has no threads or descriptors")
        })?;
        Ok(Self { machine, generation, nodes: shape.iter().collect(), processes_per_node })
    }

    pub(crate) fn processes(&self) -> usize {
        self.nodes.len() * usize::from(self.processes_per_node)
    }

    /// Processes of a node have consecutive numbers.
    pub(crate) fn process(&self, index: usize) -> Result<(Arc<AnyProvider>, DeviceShare), Error> {
        let per_node = usize::from(self.processes_per_node);
        let number = (index % per_node) as u16;
        let share = DeviceShare::of(self.generation, number, self.processes_per_node)?;
        let hint = "there is no such process";
        let none = Error::with_value(Code::NotAvailable, "process", index as u64, hint);
        let &coords = self.nodes.get(index / per_node).ok_or(none)?;
        let node = self
            .machine
            .node(coords)
            .map_err(|_| Error::new(Code::OutOfMemory, "node", "the host has no memory for it"))?;
        Ok((any(node), share))
    }
}
