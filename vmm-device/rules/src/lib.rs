//! The rules of the register protocols, each with an id and a device's counts: how often a driver
//! has kept it, how often it has broken it, or that it was never exercised.
//!
//! Devices report broken rules one by one ([`Rules::broke`]). Kept rules are counted by [`Point`]s
//! instead: places that a driver passes only if it keeps all rules that name them. A successful
//! command is therefore counted once, not once per rule.
//!
//! The table in the manual is generated from here. Each rule is named at one place of the devices'
//! code, which checks it; `cargo run -p tofu-modules --bin rules` finds that place and writes the
//! page.
#![forbid(unsafe_code)]

mod counts;
mod table;

pub use crate::counts::{Lane, Report, Rules, Tally};
pub use crate::table::{Device, Point, Rule, Source};
