//! Runs every target over its stored corpus, without the fuzzing engine: the inputs that once
//! reached new code must still do no harm.

fn replay(target: &str, run: fn(&[u8])) {
    for (name, input) in tofu_fuzz::corpus(target) {
        println!("{name}");
        run(&input);
    }
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
fn link_state() {
    replay("link_state", tofu_fuzz::link_state::run);
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
fn tnw_cables() {
    replay("tnw_cables", tofu_fuzz::cables::tnw);
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
fn tof() {
    replay("tof", tofu_fuzz::tof::run);
}

#[test]
fn vfio_user() {
    replay("vfio_user", tofu_fuzz::vfio_user::run);
}

#[test]
fn agent() {
    replay("agent", tofu_fuzz::agent::run);
}

#[test]
fn archives() {
    replay("archives", tofu_fuzz::archives::run);
}

#[test]
fn lines() {
    replay("lines", tofu_fuzz::lines::run);
}

#[test]
fn relay() {
    replay("relay", tofu_fuzz::relay::run);
}

#[test]
fn shared_rings() {
    replay("shared_rings", tofu_fuzz::shared_rings::run);
}

#[test]
fn tofud_wire() {
    replay("tofud_wire", tofu_fuzz::tofud_wire::run);
}
