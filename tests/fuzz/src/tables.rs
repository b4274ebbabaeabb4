//! Any translation tables, checked by an independent translation.
//!
//! The second implementation says which bytes may change, and whether the command succeeds; its
//! data is right. The trace of each input matches the counters, too.

use std::ops::Range;

use arbitrary::{Result, Unstructured};
use tofu_abi::desc::{ArmwOp, Command, DESC_SIZE, Descriptor, Header1, Header2};
use tofu_abi::queue::{MRQ_ENTRY_SIZE, MrqWord0, TCQ_ENTRY_SIZE, TcqEntry};
use tofu_abi::regs::{CqReg, CqsMode, CqsReg};
use tofu_abi::{Rcode, StagOffset};

use crate::traced::Traced;
use crate::world::{
    BLOCKS, CQ, DATA, HIGH, HIGH_SIZE, LOW, LOW_SIZE, MRQ, MRQ_RANGE, Memory, PAGES, STEERING,
    TABLE_ENTRIES, TCQ, TOQ, World, coords, generation,
};

/// Longest message: what fits into one burst, so that all its addresses are translated before
/// any of it changes the tables.
const MAX_LENGTH: u32 = 60_000;
/// Commands of one input at most.
const MAX_COMMANDS: u64 = 16;

/// The registers that say where a node's tables are.
#[derive(Clone, Copy)]
struct Roots {
    steering: u64,
    steering_entries: u64,
    blocks: u64,
    block_entries: u64,
}

const ROOTS: Roots = Roots {
    steering: STEERING,
    steering_entries: TABLE_ENTRIES,
    blocks: BLOCKS,
    block_entries: TABLE_ENTRIES,
};

/// Runs one input.
pub fn run(data: &[u8]) {
    traced(data);
}

/// Runs one input, and returns what a trace recorded of it.
pub fn traced(data: &[u8]) -> Traced {
    let mut world = World::new();
    let trace = world.machine.network().trace().expect("the machine can be traced");
    let mut roots = [ROOTS; 2];
    for node in [0, 1] {
        world.memory[node].fill(node as u8);
        world.memory[node].set_tables();
        world.open(node, CqsMode(0), 0);
    }
    world.bystanders_transfer();
    let mut u = Unstructured::new(data);
    let (mut posted, mut notices) = (0, 0);
    while posted < MAX_COMMANDS && !u.is_empty() {
        let step = change_tables(&world, &mut roots, &mut u)
            .and_then(|()| command(&world, &roots, (posted, notices), &mut u));
        let Ok(noticed) = step else { break };
        posted += 1;
        notices += u64::from(noticed);
    }
    let traced = Traced::read(&world, trace);
    world.end();
    traced
}

/// Changes some words of the tables, and the tables' addresses.
fn change_tables(world: &World, roots: &mut [Roots; 2], u: &mut Unstructured<'_>) -> Result<()> {
    for _ in 0..u.int_in_range(0..=6)? {
        let choice: u8 = u.arbitrary()?;
        let node = usize::from(choice >> 7);
        let memory = &world.memory[node];
        match choice & 7 {
            0 | 1 => memory.set_word(STEERING + word_index(u, 32)?, entry(u)?),
            2 | 3 => memory.set_word(BLOCKS + word_index(u, 32)?, entry(u)?),
            4..=6 => memory.set_word(PAGES + word_index(u, 128)?, entry(u)?),
            _ => {
                let r = &mut roots[node];
                let reg = u.int_in_range(0..=3)?;
                let value = match u.int_in_range(0..=3)? {
                    0 => u.int_in_range(0..=TABLE_ENTRIES + 2)?,
                    1 => LOW + u64::from(u.arbitrary::<u16>()?) * 8,
                    2 => u64::MAX - u64::from(u.arbitrary::<u8>()?),
                    _ => u.arbitrary()?,
                };
                let (place, reg) = match reg {
                    0 => (&mut r.steering, CqsReg::SteeringTableIpa),
                    1 => (&mut r.steering_entries, CqsReg::SteeringTableSize),
                    2 => (&mut r.blocks, CqsReg::MemoryBlockTableIpa),
                    _ => (&mut r.block_entries, CqsReg::MemoryBlockTableSize),
                };
                *place = value;
                world.write_cqs(node, reg, value);
            }
        }
    }
    Ok(())
}

fn word_index(u: &mut Unstructured<'_>, words: u64) -> Result<u64> {
    Ok(u.int_in_range(0..=words - 1)? * 8)
}

/// A table entry or the word that goes with one.
fn entry(u: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match u.int_in_range(0..=5)? {
        // An enabled page or memory block in low memory, with any low bits.
        0 | 1 => {
            let low: u8 = u.arbitrary()?;
            LOW + u64::from(u.arbitrary::<u16>()? / 32) * 0x100 + u64::from(low | 0x80)
        }
        2 => u.int_in_range(0..=0x2_0000)?,
        3 => u64::from(u.arbitrary::<u8>()?) << 48 | u64::from(u.arbitrary::<u16>()?) | 0x80,
        4 => 0,
        _ => u.arbitrary()?,
    })
}

/// Runs a command; returns its TCQ entry, and where queues may have been written.
fn run_command(world: &World, posted: u64, words: &Descriptor) -> (TcqEntry, Vec<Range<u64>>) {
    let slot = TOQ + posted * DESC_SIZE as u64;
    world.memory[0].write(slot, &words.with_flip(true).to_bytes());
    world.write_cq(0, CqReg::FetchStart, 1);
    world.run(64);
    let answer = TCQ + posted * TCQ_ENTRY_SIZE as u64;
    let done = TcqEntry(world.memory[0].word(answer));
    assert!(done.flip(), "a command has not completed");
    let entry = answer..answer + TCQ_ENTRY_SIZE as u64;
    (done, vec![slot..slot + DESC_SIZE as u64, entry, MRQ_RANGE])
}

/// Posts one command, and checks its effect against the tables. Returns whether it has a notice:
/// all commands have one, except those that the generation does not support.
fn command(
    world: &World,
    roots: &[Roots; 2],
    (posted, notices): (u64, u64),
    u: &mut Unstructured<'_>,
) -> Result<bool> {
    let command = *u.choose(&[Command::Put, Command::Get, Command::AtomicReadModifyWrite])?;
    let length = match (command, u.ratio(1, 4)?) {
        (Command::AtomicReadModifyWrite, true) => 4,
        (Command::AtomicReadModifyWrite, false) => 8,
        (_, true) => u.int_in_range(0..=MAX_LENGTH)?,
        (_, false) => u.int_in_range(0..=4500)?,
    };
    let (remote, local) = (place(u)?, place(u)?);
    for node in [0, 1] {
        world.write_cqs(node, CqsReg::CacheFlush, 1);
    }
    let before = [world.memory[0].snapshot(), world.memory[1].snapshot()];
    let atomic = command == Command::AtomicReadModifyWrite;
    let mut header1 = Header1(0).with_target(coords(1)).with_path(coords(1).default_path());
    if atomic {
        header1 = header1.with_op(ArmwOp::Add as u8);
    }
    let (writes_remote, writes_local) = (command != Command::Get, command == Command::Get);
    let there = translate(&world.memory[1], &roots[1], remote, length, writes_remote);
    // The local address of a Get is not translated before there is data for it.
    let here = if atomic || (writes_local && length == 0) {
        Reach { ranges: Vec::new(), complete: true }
    } else {
        translate(&world.memory[0], &roots[0], local, length, writes_local)
    };
    let data_before = gather(
        &world.memory[if writes_local { 1 } else { 0 }],
        if writes_local { &there.ranges } else { &here.ranges },
    );

    let words = Descriptor::transfer(command, header1, Header2(0), remote, local, length);
    let (done, written) = run_command(world, posted, &words);
    let refused = atomic && !generation().description().atomics;
    let mut allowed = [written, vec![]];
    if refused {
        assert_eq!(done.rcode(), Rcode::UNSUPPORTED_COMMAND);
    } else if writes_remote {
        allowed[1].extend(there.ranges.iter().cloned());
    } else {
        allowed[0].extend(here.ranges.iter().cloned());
    }
    for node in [0, 1] {
        world.memory[node].assert_unchanged(&before[node], &allowed[node]);
    }
    if refused {
        return Ok(false);
    }

    let aligned =
        there.ranges.len() == 1 && there.ranges[0].start.is_multiple_of(length.max(1).into());
    let possible = there.complete && here.complete && (!atomic || aligned);
    // Every command that is sent has one notice: none requests a notice at the target or for each
    // TLP.
    let notice = MrqWord0(world.memory[0].word(MRQ + notices * MRQ_ENTRY_SIZE as u64));
    assert!(notice.flip(), "a command has no notice");
    let (sent, ended) = (done.rcode(), notice.rcode());
    let what = format!("{command:?} of {length} bytes from {local:?} to {remote:?}");
    assert_eq!(ended == Rcode::SUCCESS, possible, "{what} ended with {ended:?}");
    assert!(sent == Rcode::SUCCESS || !here.complete, "{what} was not sent for {sent:?}");
    let target = if writes_local { &here.ranges } else { &there.ranges };
    if possible && !atomic && !overlap(target) {
        let data = gather(&world.memory[if writes_local { 0 } else { 1 }], target);
        assert!(data == data_before, "{command:?} of {length} bytes has moved other bytes");
    }
    Ok(true)
}

fn place(u: &mut Unstructured<'_>) -> Result<StagOffset> {
    let offset = match u.int_in_range(0..=3)? {
        0 => u.int_in_range(0..=64)?,
        1 => u64::from(u.arbitrary::<u16>()?) & !7,
        2 => u.arbitrary::<u16>()?.into(),
        _ => u64::from(u.arbitrary::<u32>()?) << 8,
    };
    Ok(StagOffset::new(CQ, u.int_in_range(0..=TABLE_ENTRIES as u32)?, offset))
}

/// The translation of an address by a queue's tables: the memory in order, and whether the whole
/// range is reachable.
struct Reach {
    ranges: Vec<Range<u64>>,
    complete: bool,
}

/// The independent translation: the tables read as the driver developer's guide describes them,
/// without any of the device's code or field definitions.
fn translate(memory: &Memory, roots: &Roots, at: StagOffset, len: u32, write: bool) -> Reach {
    let mut reach = Reach { ranges: Vec::new(), complete: false };
    let (stag, offset) = (at.0 >> 40 & 0x3_ffff, at.0 & 0xff_ffff_ffff);
    let Some((steering, length)) = pair(memory, roots.steering, roots.steering_entries, stag)
    else {
        return reach;
    };
    let read_only = steering & 0x40 != 0;
    if steering & 0x80 == 0 || (write && read_only) || offset > length {
        return reach;
    }
    let Some((block, pages)) = pair(memory, roots.blocks, roots.block_entries, steering >> 48)
    else {
        return reach;
    };
    let page_bits = match block & 7 {
        0 => 12,
        4 => 16,
        1 => 21,
        5 => 29,
        2 => 30,
        _ => return reach,
    };
    if block & 0x80 == 0 {
        return reach;
    }
    let mut left = u64::from(len).min(length - offset);
    let mut address = (steering & 0xff_ffff_ff00) + offset;
    while left > 0 {
        let page = address >> page_bits;
        if page >= pages {
            return reach;
        }
        let Some(entry) = word(memory, (block & 0xff_ffff_ff00) + page * 8) else {
            return reach;
        };
        if entry & 0x80 == 0 {
            return reach;
        }
        let within = address & ((1 << page_bits) - 1);
        let start = (entry & 0xff_ffff_f000) >> page_bits << page_bits;
        let n = left.min((1 << page_bits) - within);
        let range = start + within..start + within + n;
        if !is_memory(&range) {
            return reach;
        }
        match reach.ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => reach.ranges.push(range),
        }
        left -= n;
        address += n;
    }
    reach.complete = u64::from(len) <= length - offset;
    reach
}

/// Entry `index` of a table of `entries` pairs of words.
fn pair(memory: &Memory, table: u64, entries: u64, index: u64) -> Option<(u64, u64)> {
    if index >= entries {
        return None;
    }
    let at = table.checked_add(index * 16)?;
    Some((word(memory, at)?, word(memory, at.checked_add(8)?)?))
}

/// A word of a table; tables are aligned.
fn word(memory: &Memory, at: u64) -> Option<u64> {
    let there = at.is_multiple_of(8) && is_memory(&(at..at.checked_add(8)?));
    there.then(|| memory.word(at))
}

fn is_memory(range: &Range<u64>) -> bool {
    let within = |base: u64, size: usize| range.start >= base && range.end <= base + size as u64;
    within(LOW, LOW_SIZE) || within(HIGH, HIGH_SIZE)
}

fn overlap(ranges: &[Range<u64>]) -> bool {
    let mut sorted = ranges.to_vec();
    sorted.sort_by_key(|range| range.start);
    sorted.windows(2).any(|pair| pair[0].end > pair[1].start)
}

fn gather(memory: &Memory, ranges: &[Range<u64>]) -> Vec<u8> {
    let mut data = Vec::new();
    for range in ranges {
        let at = data.len();
        data.resize(at + (range.end - range.start) as usize, 0);
        memory.read(range.start, &mut data[at..]);
    }
    data
}

const _: () = assert!(DATA.is_multiple_of(0x1_0000), "STags 0 and 3 name the same data");
