//! A machine with any kind of devices.

use std::sync::Arc;

use tofu_fabric::{Fabric, FaultCounters, FaultPlan, NoSuchLink};
use tofu_machine::capture::{Capture, CaptureConfig};
use tofu_machine::trace::Trace;
use tofu_machine::{Interconnect, Machine, Network, Torus, TorusNetwork};

/// A machine and its devices. Clones refer to the same machine.
#[derive(Clone)]
pub enum AnyMachine {
    /// A machine of a generation of Tofu.
    Tofu(Arc<Machine>),
    /// A machine of TNW.
    Tnw(Arc<Torus>),
}

impl AnyMachine {
    /// Returns the machine if it is one of Tofu.
    pub const fn tofu(&self) -> Option<&Arc<Machine>> {
        match self {
            Self::Tofu(machine) => Some(machine),
            Self::Tnw(_) => None,
        }
    }

    /// Returns the part of it that can be read and changed from anywhere.
    pub fn network(&self) -> AnyNetwork {
        match self {
            Self::Tofu(machine) => AnyNetwork::Tofu(machine.network().clone()),
            Self::Tnw(torus) => AnyNetwork::Tnw(torus.network().clone()),
        }
    }

    /// Stops its engines.
    pub fn stop(&self) {
        match self {
            Self::Tofu(machine) => machine.stop(),
            Self::Tnw(torus) => torus.stop(),
        }
    }
}

/// The network of a machine, for reading and changing it. It may outlive the machine.
#[derive(Clone)]
pub enum AnyNetwork {
    /// The network of a generation of Tofu.
    Tofu(Network),
    /// The network of TNW.
    Tnw(TorusNetwork),
}

impl AnyNetwork {
    /// Returns the kind of its devices.
    pub const fn interconnect(&self) -> Interconnect {
        match self {
            Self::Tofu(network) => network.interconnect(),
            Self::Tnw(network) => network.interconnect(),
        }
    }

    /// Returns its links.
    pub fn fabric(&self) -> &Arc<Fabric> {
        match self {
            Self::Tofu(network) => network.wires().fabric(),
            Self::Tnw(network) => network.wires().fabric(),
        }
    }

    /// Sets the faults from now on, or removes them.
    ///
    /// # Errors
    ///
    /// If a named link does not exist. In that case nothing changes.
    pub fn set_faults(&self, plan: Option<FaultPlan>) -> Result<(), NoSuchLink> {
        match self {
            Self::Tofu(network) => network.wires().set_faults(plan),
            Self::Tnw(network) => network.wires().set_faults(plan),
        }
    }

    /// Returns the current faults, and how often they have happened since they were set.
    pub fn faults(&self) -> Option<(FaultPlan, FaultCounters)> {
        match self {
            Self::Tofu(network) => network.wires().faults(),
            Self::Tnw(network) => network.wires().faults(),
        }
    }

    /// Records the packets of a node from now on, at those interfaces that it has.
    pub fn capture(&self, config: CaptureConfig) -> Capture {
        match self {
            Self::Tofu(network) => network.capture(config),
            Self::Tnw(network) => network.capture(config),
        }
    }

    /// Traces all commands from now on. Returns `None` if the machine has gone, or is of TNW, which
    /// has no such commands.
    pub(crate) fn trace(&self) -> Option<Trace> {
        match self {
            Self::Tofu(network) => network.trace(),
            Self::Tnw(_) => None,
        }
    }
}
