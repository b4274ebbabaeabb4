//! The second device, TNW, in modelled time: network processors, driven by their own library, on
//! links and buses that take time.
//!
//! *Paper* refers to Pivanti, Schifano and Simma, *An FPGA-based Torus Communication Network*
//! (2010), whose sections are named. *Ours* marks what the paper leaves open.

pub(crate) mod exchange;
mod model;
pub(crate) mod scenario;
