//! The work of the fuzz targets, apart from the engine that feeds them.
//!
//! Each target turns bytes into actions of a guest or a peer on a device, and panics when the
//! device breaks a promise: it answers and keeps working, it changes no memory except as commanded,
//! and other nodes are not affected. Any bytes are a valid input.
#![forbid(unsafe_code)]

pub mod agent;
pub mod archives;
pub mod arrivals;
pub mod barrier;
pub mod cables;
pub mod descriptors;
pub mod ipotofu;
pub mod lines;
pub mod link_state;
pub mod links;
pub mod netboot;
pub mod pci_config;
pub mod registers;
pub mod relay;
pub mod shared_rings;
pub mod tables;
pub mod tnw;
pub mod tof;
pub mod tofud_wire;
pub mod traced;
pub mod vfio_user;
mod world;

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The stored inputs of a target, with their names.
///
/// # Panics
///
/// If there are none.
pub fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let archive = File::open(corpus.with_extension("tar")).expect("the target has a corpus");
    let mut archive = tar::Archive::new(archive);
    let entries = archive.entries().expect("it is an archive");
    let inputs: Vec<_> = entries
        .map(|entry| {
            let mut entry = entry.expect("the archive can be read");
            let name = entry.path().expect("inputs have names").display().to_string();
            let mut input = Vec::new();
            entry.read_to_end(&mut input).expect("the archive can be read");
            (name, input)
        })
        .collect();
    assert!(!inputs.is_empty(), "the corpus is empty");
    inputs
}
