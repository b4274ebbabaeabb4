//! Drives each device as a guest does: with a driver of the tests' own, from outside.

mod blk;
mod console;
mod driver;
mod hostile;
mod iommu;
mod rng;
mod transport;
