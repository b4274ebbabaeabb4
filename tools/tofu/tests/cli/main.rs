//! The built command, from outside.

mod bad_input;
mod capture;
mod faults;
mod gateway;
mod linux;
mod local;
mod netboot;
mod serve;
mod tofu;
