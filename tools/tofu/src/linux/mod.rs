//! Linux nodes: guests with a kernel and user land, under QEMU where our own monitor cannot run
//! them.

pub(crate) mod agent;
pub(crate) mod console;
pub(crate) mod control;
pub(crate) mod detach;
pub(crate) mod guest;
pub(crate) mod janitor;
pub(crate) mod kit;
pub(crate) mod lan;
pub(crate) mod machine;
pub(crate) mod monitor;
pub(crate) mod node;
pub(crate) mod own;
pub(crate) mod programs;
pub(crate) mod qemu;
pub(crate) mod up;
