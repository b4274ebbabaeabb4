//! Any descriptor, queued or direct, on a queue that is set up correctly.
//!
//! Only memory that tables offer for writing, and the rings, may change. The trace of each input
//! has an end for each command that begins, once, and its sums match the counters.

use std::ops::Range;

use arbitrary::{Result, Unstructured};
use tofu_abi::desc::{Command, DESC_SIZE, Descriptor, Header1, Header2};
use tofu_abi::regs::{CqReg, CqsMode, CqsReg, Register, TniReg};
use tofu_abi::{Coords, Path, StagOffset};

use crate::traced::Traced;
use crate::world::{
    BUFFERS_RANGE, CQ, DATA_RANGE, HIGH, MRQ_RANGE, PRQ_RANGE, TCQ, TCQ_RANGE, TNI, TOQ, World,
    coords, open_packet_queues,
};

/// Descriptors of one input at most. They can move this many times [`crate::world::DATA_SIZE`]
/// bytes, in TLPs of 8 bytes with a notice each.
const MAX_DESCRIPTORS: u64 = 64;

/// Memory of the two nodes that commands may change; the transmit order queue is marked by
/// direct descriptors.
const ALLOWED: [Range<u64>; 6] =
    [DATA_RANGE, TCQ_RANGE, MRQ_RANGE, PRQ_RANGE, BUFFERS_RANGE, HIGH..TCQ];

/// Runs one input.
pub fn run(data: &[u8]) {
    traced(data);
}

/// Runs one input, and returns what a trace recorded of it.
pub fn traced(data: &[u8]) -> Traced {
    let mut world = World::new();
    let trace = world.machine.network().trace().expect("the machine can be traced");
    for node in [0, 1] {
        world.memory[node].fill(node as u8);
        world.memory[node].set_tables();
        let all = CqsMode(0).with_system(true).with_trp1_enable(true).with_trp2_enable(true);
        world.open(node, all, 0);
        open_packet_queues(&world.memory[node], &mut |reg, value| {
            world.write(node, Register::Tni { tni: TNI, reg }, value);
        });
    }
    world.bystanders_transfer();
    let before = [world.memory[0].snapshot(), world.memory[1].snapshot()];
    let mut u = Unstructured::new(data);
    let mut posted = 0;
    while posted < MAX_DESCRIPTORS && !u.is_empty() && act(&world, &mut posted, &mut u).is_ok() {}
    world.run(256);
    world.bystanders_transfer();
    // Commands that still wait for an answer time out.
    world.machine.advance(world.machine.config().timeout_ns);
    world.run(16);
    for node in [0, 1] {
        world.memory[node].assert_unchanged(&before[node], &ALLOWED);
    }
    let traced = Traced::read(&world, trace);
    world.end();
    traced
}

/// The registers of a queue that may be written while it is enabled.
const CQS_REGS: [CqsReg; 10] = [
    CqsReg::TcqDescriptorCoalescingTimer,
    CqsReg::MrqDescriptorCoalescingTimer,
    CqsReg::MrqInterruptCoalescingTimer,
    CqsReg::MrqInterruptCoalescingCount,
    CqsReg::MrqMask,
    CqsReg::MrqInterruptMask,
    CqsReg::FetchStop,
    CqsReg::CacheFlush,
    CqsReg::Imc,
    CqsReg::Irc,
];

/// The registers of an interface that may be written while it is enabled.
const TNI_REGS: [TniReg; 7] = [
    TniReg::PrqFullPointer,
    TniReg::PrqMask,
    TniReg::PrqEntryCoalescingTimer,
    TniReg::PrqInterruptCoalescingTimer,
    TniReg::PrqInterruptCoalescingCount,
    TniReg::Imc,
    TniReg::Irc,
];

fn act(world: &World, posted: &mut u64, u: &mut Unstructured<'_>) -> Result<()> {
    let choice: u8 = u.arbitrary()?;
    match choice & 0xf {
        0..=4 => {
            let descriptor = descriptor(u)?.with_flip(choice & 0x80 == 0);
            world.memory[0].write(TOQ + *posted * DESC_SIZE as u64, &descriptor.to_bytes());
            *posted += 1;
            if choice & 0x40 != 0 {
                world.write_cq(0, CqReg::FetchStart, 1);
            }
        }
        5 => {
            let bytes = u.bytes(DESC_SIZE)?;
            world.memory[0].write(TOQ + *posted * DESC_SIZE as u64, bytes);
            *posted += 1;
        }
        6 | 7 => {
            let words = descriptor(u)?.0;
            for (word, value) in words.into_iter().enumerate() {
                let at = word + usize::from(choice >> 4 & 4);
                let reg = CqReg::from_offset(8 * at as u64).unwrap_or(CqReg::DirectDescriptor0);
                let source = if word == 0 { 1 << 5 } else { 0 };
                world.write_cq(0, reg, value | source);
            }
            *posted += 1;
        }
        8 => {
            let reg = CqReg::ALL[u.choose_index(CqReg::ALL.len())?];
            world.write_cq(0, reg, u.arbitrary()?);
        }
        9 => {
            let reg = *u.choose(&CQS_REGS)?;
            let value: u16 = u.arbitrary()?;
            world.write_cqs(usize::from(choice >> 7), reg, value.into());
        }
        10 => world.write_cq(1, CqReg::MrqFullPointer, u.arbitrary::<u16>()?.into()),
        11 => world.machine.advance(u.arbitrary::<u32>()?.into()),
        12 => world.write_cq(0, CqReg::FetchStart, 1),
        13 => {
            let reg = *u.choose(&TNI_REGS)?;
            let value: u16 = u.arbitrary()?;
            let node = usize::from(choice >> 7);
            world.write(node, Register::Tni { tni: TNI, reg }, value.into());
        }
        _ => world.run(4),
    }
    Ok(())
}

/// A descriptor, more often one that makes sense.
fn descriptor(u: &mut Unstructured<'_>) -> Result<Descriptor> {
    let header1 = Header1(u.arbitrary::<u32>()?.into());
    let command = match u.int_in_range(0..=15)? {
        n @ 0..=10 => Command::ALL[n] as u8,
        11 | 12 => Command::Put as u8,
        13 | 14 => Command::Get as u8,
        _ => header1.command(),
    };
    let target = match u.int_in_range(0..=7)? {
        n @ 0..=3 => coords(n),
        4..=6 => coords(1),
        _ => Coords::from_array(u.arbitrary()?),
    };
    let path = if u.ratio(7, 8)? { Path::new(0, 0, 0) } else { header1.path() };
    let header1 = header1.with_command(command).with_target(target).with_path(path);
    let header1 = if u.ratio(7, 8)? { header1.with_source_type(0).with_ri(0) } else { header1 };
    let flags: u16 = u.arbitrary()?;
    let length = match u.int_in_range(0..=3)? {
        0 => u.int_in_range(0..=40)?,
        1 => u.arbitrary::<u16>()?.into(),
        2 => *u.choose(&[4, 8, 1920, 65_280, 0x1_0000, 0xff_ffff])?,
        _ => u.arbitrary::<u32>()? & 0xff_ffff,
    };
    let header2 = Header2(flags.into()).with_edata(u.arbitrary()?).with_length(length);
    if (0x10..=0x13).contains(&command) && u.ratio(7, 8)? {
        // A frame from the data, of a valid length, to a nearby node.
        let units = u.int_in_range(0..=63)?;
        let length = if command < 0x12 { 8 + 32 * units } else { 16 + 31 * units };
        let at = DATA_RANGE.start + u64::from(u.arbitrary::<u16>()? & 0xff00);
        let near = |byte: u8| i8::try_from(byte % 3).unwrap_or_default() - 1;
        let distances = [near(u.arbitrary()?), 0, 0];
        let header1 = if command < 0x12 { header1 } else { header1.with_distances(distances) };
        let command = Command::from_code(command).unwrap_or(Command::Nop);
        return Ok(Descriptor::packet(command, header1, length, at));
    }
    let words = [header1.0, header2.0, place(u)?, place(u)?];
    Ok(Descriptor(words))
}

/// An address, more often one of an existing STag.
fn place(u: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match u.int_in_range(0..=7)? {
        0..=5 => {
            let stag = u.int_in_range(0..=8)?;
            StagOffset::new(CQ, stag, u.arbitrary::<u16>()?.into()).0
        }
        6 => StagOffset::new(CQ, 0, 0).0,
        _ => u.arbitrary()?,
    })
}
