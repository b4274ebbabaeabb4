//! The shape of a machine: its axes and ports, its nodes, which nodes are neighbours, and along
//! which axes a packet goes.
//!
//! A device has only its own coordinates. A guest gets the shape from its command line
//! (`shape=2x2x4x2x3x2`, `torus=xyz`, both ours).
//!
//! *IEEE Micro 2012* is Ajima et al., "The Tofu Interconnect", IEEE Micro 32(1), 2012.

mod legs;
mod port;
mod shape;

pub use legs::{LEGS, Leg, Legs, Stage};
pub use port::{Axis, Port};
pub use shape::{Excerpt, NodeId, Shape, ShapeError};
