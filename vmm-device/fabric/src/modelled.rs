//! The fabric's interface to links on which packets take time. The crate `tofu-netmodel`, which
//! depends on this one, implements it.

use std::collections::BTreeSet;
use std::fmt;

use tofu_abi::Coords;
use tofu_links::{Parameters, Ps};

use crate::counters::{PortCounters, XbCounters};
use crate::link::{BadErrors, LinkErrors, NoSuchLink};
use crate::{NodeId, Port};

/// The links and crossbars of a machine in modelled time. They count what they carry.
pub trait ModelledLinks: fmt::Debug + Send + Sync {
    /// The time that they have reached.
    fn now(&self) -> Ps;

    /// Their parameters.
    fn parameters(&self) -> Parameters;

    /// Takes the link at a port up or down, in both directions.
    ///
    /// # Errors
    /// [`NoSuchLink`] if the machine has no such node or nothing is at that port.
    fn set_link(&self, node: Coords, port: Port, up: bool) -> Result<(), NoSuchLink>;

    /// Returns true if the link at a port is up; `None` if there is no link. It may go down by
    /// itself.
    fn link_up(&self, node: Coords, port: Port) -> Option<bool>;

    /// Sets the errors of a link, in both directions.
    ///
    /// # Errors
    /// [`BadErrors`] if there is no such link or lane, or the link could no longer send anything.
    fn set_errors(&self, node: Coords, port: Port, errors: &LinkErrors) -> Result<(), BadErrors>;

    /// Models all links of these nodes in full, so that a tap sees each frame on them.
    fn look_at(&self, nodes: &BTreeSet<NodeId>);

    /// The counters of a port; `None` if the machine has no such node.
    fn port_counters(&self, node: NodeId, port: Port) -> Option<PortCounters>;

    /// The counters of a node's crossbar; `None` if the machine has no such node.
    fn xb_counters(&self, node: NodeId) -> Option<XbCounters>;
}
