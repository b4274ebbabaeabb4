//! The built command, from outside.

mod bad_input;
mod linux;
mod serve;
mod tofu;
