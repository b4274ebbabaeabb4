//! Every target over its stored corpus, without the fuzzing engine: the inputs that once reached
//! something new stay without consequences.

use std::fs;
use std::path::Path;

fn replay(target: &str, run: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let entries = fs::read_dir(&corpus).expect("the target has a corpus");
    let mut inputs = 0;
    for entry in entries {
        let file = entry.expect("the folder can be read").path();
        println!("{}", file.display());
        run(&fs::read(&file).expect("the file can be read"));
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
fn ipotofu() {
    replay("ipotofu", tofu_fuzz::ipotofu::run);
}

#[test]
fn netboot() {
    replay("netboot", tofu_fuzz::netboot::run);
}

#[test]
fn pci_config() {
    replay("pci_config", tofu_fuzz::pci_config::run);
}

#[test]
fn vfio_user() {
    replay("vfio_user", tofu_fuzz::vfio_user::run);
}
