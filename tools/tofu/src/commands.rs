//! The commands, one in each module.

pub(crate) mod capture;
pub(crate) mod console;
pub(crate) mod cp;
pub(crate) mod doctor;
pub(crate) mod down;
pub(crate) mod exec;
pub(crate) mod fault;
pub(crate) mod forward;
pub(crate) mod guest;
mod host;
pub(crate) mod hosts;
pub(crate) mod image;
pub(crate) mod link;
pub(crate) mod map;
pub(crate) mod node;
pub(crate) mod ps;
pub(crate) mod sdk;
pub(crate) mod serve;
pub(crate) mod stats;
mod svg;
pub(crate) mod topo;
pub(crate) mod up;
