//! A machine with any kind of devices.

use std::sync::Arc;

use anyhow::bail;
use tofu_abi::Coords;
use tofu_icc::DmaMemory;
use tofu_machine::{AnyNetwork, Machine, Torus};
use tofu_pci::{EndpointDevice, PciFunction};

use crate::timed::TimedMachine;

/// A machine and its devices. Clones refer to the same machine.
#[derive(Clone)]
pub enum AnyMachine {
    /// A machine of a generation of Tofu.
    Tofu(Arc<Machine>),
    /// A machine of TNW.
    Tnw(Arc<Torus>),
    /// A machine of a generation of Tofu in modelled time.
    Timed(Arc<TimedMachine>),
}

/// A node that was added: its device behind the endpoint, and as a function of a bus.
pub type AddedNode = (Arc<dyn EndpointDevice>, Arc<dyn PciFunction>);

impl AnyMachine {
    /// Returns the machine if it is one of Tofu.
    pub const fn tofu(&self) -> Option<&Arc<Machine>> {
        match self {
            Self::Tofu(machine) => Some(machine),
            Self::Tnw(_) | Self::Timed(_) => None,
        }
    }

    /// Returns the part of it that can be read and changed from anywhere.
    pub fn network(&self) -> Arc<dyn AnyNetwork> {
        match self {
            Self::Tofu(machine) => Arc::new(machine.network().clone()),
            Self::Tnw(torus) => Arc::new(torus.network().clone()),
            Self::Timed(machine) => machine.network(),
        }
    }

    /// Adds a device at `coords`, with DMA to `memory` and without shared pages.
    ///
    /// # Errors
    ///
    /// If the node is taken or does not exist, or the host has no memory left.
    pub fn add_node(
        &self,
        coords: Coords,
        memory: Arc<dyn DmaMemory>,
    ) -> anyhow::Result<AddedNode> {
        Ok(match self {
            Self::Tofu(machine) => {
                let node = machine.add_node(coords, memory)?;
                (Arc::clone(&node) as _, node)
            }
            Self::Tnw(torus) => {
                let node = torus.add_node(coords, memory)?;
                (Arc::clone(&node) as _, node)
            }
            Self::Timed(_) => bail!("devices in modelled time are reached by their sockets alone"),
        })
    }

    /// Stops its engines.
    pub fn stop(&self) {
        match self {
            Self::Tofu(machine) => machine.stop(),
            Self::Tnw(torus) => torus.stop(),
            Self::Timed(machine) => machine.stop(),
        }
    }
}
