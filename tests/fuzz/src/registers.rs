//! Any access to any register of two nodes, with time passing in between.
//!
//! Transfers of the bystanders stay correct, and their other memory does not change.

use arbitrary::{Result, Unstructured};
use tofu_abi::pci;
use tofu_abi::regs::{BAR0_SIZE, CqReg, CqsReg, NUM_CQ, NUM_TNI, Register, TniReg, XbReg};
use tofu_abi::{CqId, TniId};
use tofu_pci::PciFunction;

use crate::world::{DATA, HIGH, LOW, LOW_SIZE, MRQ, TCQ, TOQ, World, coords};

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut world = World::new();
    for node in [0, 1] {
        world.memory[node].fill(node as u8);
        world.memory[node].set_tables();
    }
    world.bystanders_transfer();
    let mut u = Unstructured::new(data);
    // An input that ends in the middle of an action is complete.
    while !u.is_empty() && act(&world, &mut u).is_ok() {}
    world.run(16);
    world.bystanders_transfer();
    // After any of this, a reset brings a node back.
    for node in [0, 1] {
        world.nodes[node].reset();
        world.allow_dma(node);
        let mut bytes = [0; 8];
        let register = Register::Cqs { tni: TniId::ALL[0], cq: CqId::ALL[0], reg: CqsReg::Status };
        world.nodes[node].bar_read(pci::REGISTER_BAR, register.offset(), &mut bytes);
        assert_eq!(u64::from_le_bytes(bytes), 0, "STATUS of a queue after a reset");
    }
    world.run(16);
    world.end();
}

fn act(world: &World, u: &mut Unstructured<'_>) -> Result<()> {
    let choice: u8 = u.arbitrary()?;
    let node = usize::from(choice >> 7);
    let device = &world.nodes[node];
    match choice & 0xf {
        0..=7 => {
            let offset = register(u)?.offset();
            let value = value(u)?.to_le_bytes();
            let len = [8, 8, 8, 8, 4, 16, 32, 64][usize::from(choice >> 4 & 7)];
            let mut data = [0; 64];
            data[..8].copy_from_slice(&value);
            device.bar_write(pci::REGISTER_BAR, offset, &data[..len]);
        }
        8 => {
            let offset = u.arbitrary::<u64>()?;
            let offset = if choice & 0x40 == 0 { offset % (BAR0_SIZE + 64) } else { offset };
            let len = u.int_in_range(0..=64)?;
            let data = u.bytes(len)?;
            device.bar_write(u.int_in_range(0..=7)?, offset, data);
        }
        9 => {
            let offset = u.arbitrary::<u64>()?;
            let offset = if choice & 0x40 == 0 { offset % (BAR0_SIZE + 64) } else { offset };
            let mut data = vec![0; u.int_in_range(0..=64)?];
            device.bar_read(u.int_in_range(0..=7)?, offset, &mut data);
        }
        10 => {
            let mut data = [0; 8];
            device.bar_read(pci::REGISTER_BAR, register(u)?.offset(), &mut data);
        }
        11 => {
            let value: u32 = u.arbitrary()?;
            device.config_write(u.int_in_range(0..=0x1ff)?, &value.to_le_bytes());
        }
        12 => world.allow_dma(node),
        13 => world.machine.advance(u.arbitrary::<u32>()?.into()),
        // Writes of the guest to its own memory.
        14 => {
            let at = LOW + u64::from(u.arbitrary::<u32>()?) % (LOW_SIZE as u64 - 32);
            let at = if choice & 0x40 == 0 { TOQ + (at & 0x3ff) } else { at };
            let len = u.int_in_range(1..=32)?;
            world.memory[node].write(at, u.bytes(len)?);
        }
        _ => world.run(4),
    }
    Ok(())
}

/// A register, more often one that does something.
fn register(u: &mut Unstructured<'_>) -> Result<Register> {
    let tni = u.int_in_range(0..=NUM_TNI - 1)?;
    let cq = u.int_in_range(0..=NUM_CQ - 1)?;
    // Most actions that need several registers need those of one queue.
    let (tni, cq) = if u.ratio(3, 4)? { (tni & 1, cq & 1) } else { (tni, cq) };
    let (tni, cq) = (TniId::ALL[tni], CqId::ALL[cq]);
    Ok(match u.int_in_range(0..=7)? {
        0..=2 => Register::Cqs { tni, cq, reg: *u.choose(CqsReg::ALL)? },
        3 | 4 => Register::Cq { tni, cq, reg: *u.choose(CqReg::ALL)? },
        5 => Register::Tni { tni, reg: *u.choose(TniReg::ALL)? },
        6 => Register::Xb(*u.choose(XbReg::ALL)?),
        _ => {
            let offset = (u64::from(u.arbitrary::<u32>()?) % BAR0_SIZE) & !7;
            Register::decode(offset).unwrap_or(Register::Tni { tni, reg: TniReg::Enable })
        }
    })
}

/// A value, more often one that makes sense somewhere.
fn value(u: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match u.int_in_range(0..=9)? {
        0 => 0,
        1 => 1,
        2 => u.int_in_range(0..=16)?,
        3 => *u.choose(&[TOQ, TCQ, MRQ, DATA, LOW, LOW + 0x1000, HIGH, u64::MAX])?,
        4 => LOW + u64::from(u.arbitrary::<u16>()?) * 8,
        5 => u.arbitrary::<u16>()?.into(),
        6 => 1 << u.int_in_range(0..=63)?,
        // A descriptor's first qword, to one of the two nodes.
        7 => {
            let command: u8 = u.int_in_range(0..=0x14)?;
            let header = tofu_abi::desc::Header1(u.arbitrary::<u16>()?.into());
            header.with_command(command).with_target(coords(command as usize & 1)).0
        }
        _ => u.arbitrary()?,
    })
}
