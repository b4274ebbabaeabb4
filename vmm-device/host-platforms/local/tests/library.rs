//! The shared library as other libraries load it.

use std::collections::BTreeSet;

use tofu_abi::irq::vector;
use tofu_abi::topology::{NodeId, Shape};
use tofu_abi::{Coords, Generation};
use tofu_driver::{Device, DmaBuffer, Platform};
use tofu_hosted::table::Kind;
use tofu_hosted::{Interconnect, Library};
use tofu_tnw::{Channel, Link, Nwp, Status};

/// The longest time for anything, in nanoseconds.
const PATIENCE: u64 = 60_000_000_000;
const TOFU: Interconnect = Interconnect::Tofu(Generation::Fugaku);

fn library() -> Library {
    // Cargo leaves it beside the tests.
    Library::load().unwrap()
}

#[test]
fn library_exports_only_its_table() {
    let Some(exported) = tofu_c_tests::symbols("libtofulocal.so") else { return };
    assert_eq!(exported, BTreeSet::from(["tofu_local_table".to_owned()]));
}

#[test]
fn devices_have_registers_memory_and_clock() {
    let machine = library().start("2x1x1".parse().unwrap(), TOFU).unwrap();
    let at = Coords::from_array([1, 0, 0, 0, 0, 0]);
    let platform = machine.attach(at).unwrap();
    let again = machine.attach(at).unwrap_err();
    assert_eq!(again.kind, Kind::Unavailable, "{again}");
    assert!(again.text.contains("exists already"), "{again}");
    let nowhere = machine.attach(Coords::from_array([2, 0, 0, 0, 0, 0])).unwrap_err();
    assert!(nowhere.text.contains("not in the machine"), "{nowhere}");
    // It keeps what it needs of the machine.
    drop(machine);

    let before = platform.now_ns();
    let device = Device::probe(platform).unwrap();
    assert_eq!((device.coords(), device.generation()), (at, Generation::Fugaku));
    let platform = device.platform();
    assert!(platform.now_ns() >= before);
    // Interrupts have descriptors.
    assert!(platform.irq_fd(1).is_none() && !platform.irq_wait(1, 0));
    platform.irq_enable(1).unwrap();
    assert!(platform.irq_fd(1).is_some() && !platform.irq_wait(1, 0));
    assert!(platform.irq_enable(vector::COUNT).is_err() && platform.irq_fd(u16::MAX).is_none());

    let buffer = platform.alloc_dma(5000, 4096).unwrap();
    assert_eq!((buffer.device_addr() % 4096, buffer.len()), (0, 5000));
    let mut bytes = [1; 5000];
    buffer.read(0, &mut bytes);
    assert_eq!(bytes, [0; 5000]);
    assert!(platform.alloc_dma(usize::MAX / 2, 8).is_err());
    // So does memory.
    drop(device);
    buffer.write(0, &bytes);
}

#[test]
fn process_memory_is_mapped_if_present() {
    let machine = library().start("1x1x1".parse().unwrap(), TOFU).unwrap();
    let platform = machine.attach(Coords::default()).unwrap();
    let bytes = vec![0u8; 100_000].leak();
    let addr = bytes.as_ptr() as usize;
    // SAFETY: no device uses it, and it stays.
    let mapped = unsafe { platform.map(addr, bytes.len()) }.unwrap();
    assert_eq!(mapped.device_addr() % 0x1_0000, addr as u64 % 0x1_0000);
    // SAFETY: it is refused.
    let refused = unsafe { platform.map(8, 8) }.unwrap_err();
    assert_eq!(refused.kind, Kind::Address, "{refused}");
    assert!(refused.text.contains("not mapped"), "{refused}");
}

#[test]
fn network_processors_have_windows() {
    let shape: Shape = "2x1x1".parse().unwrap();
    let machine = library().start(shape, Interconnect::Tnw).unwrap();
    let nodes = [0, 1].map(|node| {
        let platform = machine.attach(shape.coords(NodeId(node)).unwrap()).unwrap();
        Nwp::probe(platform).unwrap()
    });
    let ([near, far], link, channel) = (&nodes, Link::ALL[1], Channel::ALL[3]);
    let mut stream = near.open(link, channel).unwrap();
    let mut sink = far.open(link.opposite(), channel).unwrap();
    sink.use_interrupts().unwrap();
    let into = far.platform().alloc_dma(1000, 128).unwrap();
    let ticket = sink.credit(&into, 0, 1000).unwrap();
    let message = [7; 1000];
    stream.send(&message, PATIENCE).unwrap();
    let outcome = sink.wait(ticket, PATIENCE).unwrap();
    assert_eq!((outcome.status, outcome.length), (Status::Ok, 1000));
    let mut got = [0; 1000];
    into.read(0, &mut got);
    assert_eq!(got, message);
    // SAFETY: it is refused.
    let refused = unsafe { far.platform().map(0, 8) }.unwrap_err();
    assert_eq!(refused.kind, Kind::Unavailable, "{refused}");
}

#[test]
fn absent_things_are_refused_with_reasons() {
    let library = library();
    let refused = library.start(Shape::UNIT, Interconnect::Tnw).unwrap_err();
    assert_eq!(refused.kind, Kind::Unavailable, "{refused}");
    assert!(refused.text.contains("TNW has the axes X, Y and Z only"), "{refused}");
    let refused = library.connect("/nonexistent/socket", 0, 1).unwrap_err();
    assert_eq!(refused.kind, Kind::Unavailable, "{refused}");
    assert!(refused.text.contains("/nonexistent/socket"), "{refused}");
}
