//! The second device, TNW, in modelled time: network processors, driven by their library, on links
//! and buses that take time.
//!
//! *Paper* is Pivanti, Schifano and Simma, *An FPGA-based Torus Communication Network* (2010),
//! whose sections are named; *ours* marks what it leaves open.

pub(crate) mod exchange;
mod model;
pub(crate) mod scenario;
