//! What a machine needs to know of the devices of its nodes.

use std::fmt::Debug;

use tofu_fabric::Disturb;

/// A kind of device that the nodes of a machine have.
pub trait Device: Sized + 'static {
    /// What its packets carry.
    type Body: Disturb + Send + 'static;
    /// What an engine does for a node piece by piece, such as running a queue. It also names the
    /// pages of the node that an engine polls.
    type Work: Copy + Debug + PartialEq + Send + Sync + 'static;
    /// A node with such a device.
    type Node: Send + Sync + 'static;
    /// How a machine with such devices is configured.
    type Config;
    /// What else the nodes of a machine share.
    type Extra: Send + Sync + 'static;
}
