//! The rules of the register protocols, each with an id, and what a device counts of each: how
//! often a driver has kept it, how often it has broken it, or that it never met it.
//!
//! Devices report broken rules one by one ([`Rules::broke`]). What is kept is counted by [`Point`]s
//! instead: places that a driver passes only if it keeps all rules that name them. So a command
//! that succeeds is counted once, not once for each rule.
//!
//! The table of the manual comes from here. Each rule is named at one place of the devices' code,
//! which checks it; `cargo run -p tofu-modules --bin rules` finds that place and writes the page.
#![forbid(unsafe_code)]

mod counts;
mod table;

pub use crate::counts::{Lane, Report, Rules, Tally};
pub use crate::table::{Device, Point, Rule, Source};
