//! A machine in this process, for programs that communicate with themselves.

use std::collections::HashMap;
use std::env;
use std::sync::{Arc, Mutex};

use tofu_abi::topology::Shape;
use tofu_abi::{Coords, Generation};
use tofu_hosted::{HostMachine, Interconnect};
use tofu_process::lock;
use tofu_utofu::{Code, DeviceShare, Error};

use super::hosted;
use crate::environment;
use crate::provider::{AnyProvider, any};

/// The default machine, unless `TOFU_SHAPE` is set: a unit of twelve nodes.
const DEFAULT: Shape = Shape::UNIT;

pub(crate) struct InProcess {
    machine: HostMachine,
    generation: Generation,
    nodes: Vec<Coords>,
    /// Those that are attached.
    attached: Mutex<HashMap<Coords, Arc<AnyProvider>>>,
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
        let machine = hosted::load()?.start(shape, Interconnect::Tofu(generation));
        let machine = machine.map_err(|why| hosted::refused("machine", None, why))?;
        let (nodes, attached) = (shape.iter().collect(), Mutex::default());
        Ok(Self { machine, generation, nodes, attached, processes_per_node })
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
        let mut attached = lock(&self.attached);
        if let Some(node) = attached.get(&coords) {
            return Ok((Arc::clone(node), share));
        }
        let platform = self.machine.attach(coords);
        let platform = platform.map_err(|why| hosted::refused("node", None, why))?;
        let node = any(hosted::provider(platform)?);
        attached.insert(coords, Arc::clone(&node));
        Ok((node, share))
    }
}
