//! Every target over its stored corpus, without the fuzzing engine: the inputs that once reached
//! something new stay without consequences.

use std::fs::File;
use std::io::Read;
use std::path::Path;

fn replay(target: &str, run: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let archive = File::open(corpus.with_extension("tar")).expect("the target has a corpus");
    let mut archive = tar::Archive::new(archive);
    let mut inputs = 0;
    for entry in archive.entries().expect("it is an archive") {
        let mut entry = entry.expect("the archive can be read");
        println!("{}", entry.path().expect("inputs have names").display());
        let mut input = Vec::new();
        entry.read_to_end(&mut input).expect("the archive can be read");
        run(&input);
        inputs += 1;
    }
    assert!(inputs > 0, "the corpus is empty");
}

#[test]
fn registers() {
    replay("registers", tofu_fuzz::registers::run);
}

#[test]
fn descriptors() {
    replay("descriptors", tofu_fuzz::descriptors::run);
}

#[test]
fn tables() {
    replay("tables", tofu_fuzz::tables::run);
}

#[test]
fn arrivals() {
    replay("arrivals", tofu_fuzz::arrivals::run);
}

#[test]
fn barrier() {
    replay("barrier", tofu_fuzz::barrier::run);
}

#[test]
fn cables() {
    replay("cables", tofu_fuzz::cables::run);
}

#[test]
fn ipotofu() {
    replay("ipotofu", tofu_fuzz::ipotofu::run);
}

#[test]
fn links() {
    replay("links", tofu_fuzz::links::run);
}

#[test]
fn netboot() {
    replay("netboot", tofu_fuzz::netboot::run);
}

#[test]
fn news() {
    replay("news", tofu_fuzz::news::run);
}

#[test]
fn pci_config() {
    replay("pci_config", tofu_fuzz::pci_config::run);
}

#[test]
fn tnw() {
    replay("tnw", tofu_fuzz::tnw::run);
}

#[test]
fn tnw_arrivals() {
    replay("tnw_arrivals", tofu_fuzz::tnw::arrivals);
}

#[test]
fn tnw_credits() {
    replay("tnw_credits", tofu_fuzz::tnw::credits);
}

#[test]
fn tnw_registers() {
    replay("tnw_registers", tofu_fuzz::tnw::registers);
}

#[test]
fn tnw_windows() {
    replay("tnw_windows", tofu_fuzz::tnw::windows);
}

#[test]
fn vfio_user() {
    replay("vfio_user", tofu_fuzz::vfio_user::run);
}
