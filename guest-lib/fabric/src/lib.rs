//! `libtofu-fi`: a provider of libfabric, by which MPI libraries send over Tofu.
//!
//! libfabric loads it, calls `fi_prov_ini`, and gets tables of functions ([`ffi`]). Messages,
//! credits and matching are in [`core`], which knows nothing of libfabric. The device is that of
//! `libtofucom`, which is loaded at run time (`tofucom`): a program that calls uTofu as well
//! shares its device with its MPI library then.
#![deny(unsafe_code)]

pub mod core;
#[allow(unsafe_code)]
pub mod ffi;
#[allow(unsafe_code)]
mod memory;
#[allow(unsafe_code)]
mod tofucom;
