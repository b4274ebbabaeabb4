//! The machine's interface to the devices of its nodes.

use std::fmt::Debug;

use tofu_fabric::Disturb;
use tofu_fabric::wire::Wire;

/// A kind of device that the nodes of a machine have.
pub trait Device: Sized + 'static {
    /// The payload of its packets.
    type Body: Disturb + Wire + Send + Sync + 'static;
    /// A piece of an engine's work for a node, such as running a queue. It also names the
    /// pages of the node that an engine polls.
    type Work: Copy + Debug + PartialEq + Send + Sync + 'static;
    /// A node with such a device.
    type Node: Send + Sync + 'static;
    /// The configuration of a machine with such devices.
    type Config;
    /// Further state that the nodes of a machine share.
    type Extra: Send + Sync + 'static;
}
