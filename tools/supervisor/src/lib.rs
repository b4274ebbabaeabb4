//! What runs a machine in a process: the plan of it, what starts and stops its nodes, and what
//! others may ask of it while it runs.
//!
//! Commands make a [`plan::Plan`] of [`options`] and a machine file, start it with a
//! [`runner::Backend`], and see everything else as [`event::Event`]s.

#![forbid(unsafe_code)]

pub mod agent;
pub mod capture;
pub mod command_line;
pub mod config;
pub mod confine;
pub mod console;
pub mod event;
pub mod faults;
pub mod gateway;
pub mod guest;
pub mod janitor;
pub mod named;
pub mod netboot;
pub mod node;
pub mod options;
pub mod plan;
pub mod programs;
pub mod registry;
pub mod runner;
pub mod served;
pub mod server;
pub mod units;
