//! Any configuration access, MSI-X tables included, while interrupts arrive.
//!
//! Ids, capability lists and the alignment of BARs stay, and nothing is written to memory.

use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use tofu_abi::irq::vector;
use tofu_abi::pci;
use tofu_machine::Node;
use tofu_pci::testing::{RecordingSink, capability_list_terminates};
use tofu_pci::{PciFunction, regs};

use crate::world::{World, generation};

/// Runs one input.
pub fn run(data: &[u8]) {
    let world = World::new();
    let sink = Arc::new(RecordingSink::default());
    let device = Arc::clone(&world.nodes[0]);
    device.endpoint().msix().expect("the device has MSI-X").connect(Arc::clone(&sink) as _);
    let before = [world.memory[0].snapshot(), world.memory[1].snapshot()];
    let mut u = Unstructured::new(data);
    while !u.is_empty() && act(&device, &mut u).is_ok() {
        check(&device);
        sink.take();
    }
    for node in [0, 1] {
        world.memory[node].assert_unchanged(&before[node], &[]);
    }
    world.end();
}

fn act(device: &Node, u: &mut Unstructured<'_>) -> Result<()> {
    let choice: u8 = u.arbitrary()?;
    let len = [1, 2, 4, 8][usize::from(choice >> 4 & 3)];
    match choice & 7 {
        0..=2 => {
            // The header and the capabilities, most of the time.
            let offset: u16 = u.arbitrary()?;
            let offset = if choice & 0x80 == 0 { offset & 0xff } else { offset };
            device.config_write(offset, u.bytes(len)?);
        }
        3 => {
            let mut data = [0; 16];
            let len = if choice & 0x80 == 0 { len } else { 16 };
            device.config_read(u.arbitrary()?, &mut data[..len]);
        }
        4 | 5 => {
            let offset: u16 = u.arbitrary()?;
            device.bar_write(pci::MSIX_BAR, offset.into(), u.bytes(len)?);
        }
        6 => {
            let mut data = [0; 8];
            device.bar_read(u.arbitrary()?, u.arbitrary()?, &mut data[..len]);
        }
        _ if choice & 0x80 == 0 => device.endpoint().trigger(u.arbitrary::<u16>()?),
        _ => device.endpoint().trigger(u.arbitrary::<u16>()? % vector::COUNT),
    }
    Ok(())
}

/// Invariants of the function that hold after any write.
fn check(device: &Node) {
    let mut id = [0; 4];
    device.config_read(regs::VENDOR_ID, &mut id);
    let device_id = generation().description().device_id;
    let expected = u32::from(device_id) << 16 | u32::from(pci::VENDOR_ID);
    assert_eq!(u32::from_le_bytes(id), expected, "the ids");
    capability_list_terminates(device);
    for range in device.bars().into_iter().flatten() {
        assert!(range.size.is_power_of_two() && range.address % range.size == 0, "{range:?}");
    }
}
