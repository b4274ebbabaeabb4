//! The device that is served: that of a node, of Tofu or of TNW, or one in modelled time.

use std::sync::Arc;

use tofu_abi::Coords;
use tofu_abi::tnw::{MAX_STORE, WINDOW_BAR};
use tofu_machine::{Doorbells, Node, TorusNode};
use tofu_pci::{Endpoint, EndpointDevice, PciFunction};
use tofu_timed::Function;

/// The longest access that a bus cuts no further, in bytes: that of a register.
const WORD: usize = 8;

/// A node's device.
pub(crate) enum Device {
    /// A controller of Tofu.
    Tofu(Arc<Node>),
    /// A network processor of TNW. It has no doorbells and no pages, and one client at a time.
    Tnw(Arc<TorusNode>),
    /// A Tofu controller in modelled time. All accesses to it are messages.
    Timed(Arc<Function>),
}

impl Device {
    /// The device as a PCI function.
    pub(crate) fn function(&self) -> &dyn PciFunction {
        match self {
            Self::Tofu(node) => &**node,
            Self::Tnw(node) => &**node,
            Self::Timed(function) => &**function,
        }
    }

    /// Its endpoint.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        match self {
            Self::Tofu(node) => node.endpoint(),
            Self::Tnw(node) => EndpointDevice::endpoint(&**node),
            Self::Timed(function) => function.endpoint(),
        }
    }

    /// Place of the node.
    pub(crate) fn coords(&self) -> Coords {
        match self {
            Self::Tofu(node) => node.coords(),
            Self::Tnw(node) => node.coords(),
            Self::Timed(function) => function.coords(),
        }
    }

    /// The node, if it is one of Tofu on the host's clock.
    pub(crate) fn tofu(&self) -> Option<&Arc<Node>> {
        match self {
            Self::Tofu(node) => Some(node),
            Self::Tnw(_) | Self::Timed(_) => None,
        }
    }

    /// The way its doorbells are served; `None` if it has none.
    pub(crate) fn doorbells(&self) -> Option<Doorbells> {
        self.tofu().map(|node| node.doorbells())
    }

    /// The longest access to a region that reaches the device in one piece, in bytes. Stores to
    /// the windows of TNW may have been combined.
    pub(crate) fn longest_access(&self, region: u32) -> usize {
        match self {
            Self::Tnw(_) if region == u32::from(WINDOW_BAR) => MAX_STORE,
            _ => WORD,
        }
    }
}
