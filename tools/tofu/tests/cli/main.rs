//! The built command, from outside.

mod bad_input;
mod browser;
mod capture;
mod control;
mod failing;
mod faults;
mod gateway;
mod guests;
mod launch;
mod launchers;
mod links;
mod linux;
mod local;
mod logging;
mod netboot;
mod parts;
mod pictures;
mod rough;
mod serve;
mod shells;
mod tnw;
mod tofu;
mod top;
mod trace;
mod user_files;
mod view;
