//! The memory through which a machine and the plugin of a QEMU find out which code of the guest has
//! broken a rule of the device.
//!
//! While the device carries out an access, the machine counts the rules that the access breaks. The
//! plugin, which has QEMU wait for the end of each access, sees that the count is another one than
//! before and writes a record: the access, and the addresses on the guest's stack that may be
//! returned to. All words have 8 bytes.
//!
//! | byte | |
//! |---|---|
//! | 0 | rules that were broken during accesses; written by the machine |
//! | 8 | records; written by the plugin after the record |
//! | 64 + 1088 r | record number n, where r is n modulo 32 |
//!
//! | word of a record | |
//! |---|---|
//! | 0, 1 | the first and the last broken rule, counted from 1 |
//! | 2 | the access: the offset, the region from bit 48 on, and bit 63 for a write |
//! | 3 | the instruction that has made it, or 0 |
//! | 4 | number of addresses |
//! | 8 + 2 i, 9 + 2 i | an address, and the 8 bytes of code before it |
//!
//! The machine counts no more broken rules than there are records until it has taken the records,
//! so no record is overwritten before.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use tofu_process::{Resize, memory_file};

use crate::words::Words;

/// The most records that are kept, and the most broken rules in them.
const RECORDS: usize = 32;
/// The most records in which the same rule is looked for.
const OF_A_RULE: usize = 2;
/// The most addresses of a record.
pub const ADDRESSES: usize = 64;

const BROKEN: usize = 0;
const COUNT: usize = 8;
const FIRST_RECORD: usize = 64;
const RECORD: usize = 8 * (8 + 2 * ADDRESSES);
const SIZE: usize = FIRST_RECORD + RECORD * RECORDS;

const IS_WRITE: u64 = 1 << 63;
const REGION: u32 = 48;
const OFFSET: u64 = (1 << REGION) - 1;

const fn word(record: u64, index: usize) -> usize {
    FIRST_RECORD + (record % RECORDS as u64) as usize * RECORD + 8 * index
}

/// An access to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The region: a BAR, or configuration space.
    pub region: u8,
    /// The offset there.
    pub offset: u64,
    /// True if it is a write.
    pub is_write: bool,
}

impl Access {
    const fn to_word(self) -> u64 {
        let is_write = if self.is_write { IS_WRITE } else { 0 };
        is_write | (self.region as u64) << REGION | self.offset & OFFSET
    }

    const fn from_word(word: u64) -> Self {
        let region = (word >> REGION) as u8;
        Self { region, offset: word & OFFSET, is_write: word & IS_WRITE != 0 }
    }
}

/// An address on a guest's stack at which code may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub at: u64,
    /// The code before it, the byte next to it last.
    pub code: [u8; 8],
}

/// The instruction before an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// It calls the function at this address.
    To(u64),
    /// It calls a function whose address is in a register or in memory.
    Indirect,
}

impl Address {
    /// The call before the address, if there may be one: only then can it have been put on the
    /// stack by a call. The code is that of an x86-64 processor.
    pub fn call(&self) -> Option<Call> {
        /// Bytes of `call` with its address in a register or in memory, from the opcode on.
        const LENGTHS: [usize; 5] = [2, 3, 4, 6, 7];
        let code = &self.code;
        if let [_, _, _, 0xe8, distance @ ..] = code {
            let distance = i64::from(i32::from_le_bytes(*distance));
            return Some(Call::To(self.at.wrapping_add_signed(distance)));
        }
        let is_call = |length: &usize| {
            let at = code.len() - length;
            let (mode, has_sib) = (code[at + 1] >> 6, code[at + 1] & 7 == 4);
            let rest = match (mode, has_sib) {
                (3, _) => 0,
                (0, _) if code[at + 1] & 7 == 5 => 4,
                (mode, sib) => [0, 1, 4][usize::from(mode)] + usize::from(sib),
            };
            code[at] == 0xff && code[at + 1] >> 3 & 7 == 2 && *length == 2 + rest
        };
        LENGTHS.iter().any(is_call).then_some(Call::Indirect)
    }
}

/// The code that has broken a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Break {
    /// The rule, by its number.
    pub rule: usize,
    /// The access that has broken it.
    pub access: Access,
    /// The address of the instruction that has made the access, if the plugin knows it.
    pub instruction: Option<u64>,
    /// The addresses on the stack, from the top.
    pub stack: Vec<Address>,
}

/// The machine's side. It believes nothing that is written there, but for what a report says.
#[derive(Debug)]
pub struct Breaks {
    words: Words,
    file: OwnedFd,
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    /// Rules with their numbers in the count.
    rules: Vec<(u64, usize)>,
    /// Records that were taken.
    taken: u64,
}

impl Breaks {
    /// Makes the memory.
    ///
    /// # Errors
    ///
    /// If the host has no memory or descriptors left.
    pub fn new() -> io::Result<Self> {
        let file = memory_file("tofu-breaks", SIZE as u64, Resize::Never)?;
        let words = Words::map_some(file.try_clone()?, SIZE, true)?;
        Ok(Self { words, file, noted: Mutex::default() })
    }

    /// The file for the plugin.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Counts a rule that the present access has broken, unless enough is known of it.
    pub fn note(&self, rule: usize) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let of_rule = noted.rules.iter().filter(|(_, noted)| *noted == rule).count();
        if of_rule < OF_A_RULE && noted.rules.len() < RECORDS {
            let number = self.words.get(BROKEN).wrapping_add(1);
            noted.rules.push((number, rule));
            self.words.set(BROKEN, number);
        }
    }

    /// Takes all records since the last call.
    pub fn take(&self) -> Vec<Break> {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.words.get(COUNT);
        let new = count.wrapping_sub(noted.taken).min(RECORDS as u64);
        let records = (0..new).map(|n| count.wrapping_sub(new).wrapping_add(n));
        let breaks = records.flat_map(|record| self.read(record, &noted.rules)).collect();
        *noted = Noted { rules: Vec::new(), taken: count };
        breaks
    }

    /// The breaks of a record.
    fn read(&self, record: u64, rules: &[(u64, usize)]) -> Vec<Break> {
        let get = |index| self.words.get(word(record, index));
        let (numbers, access) = (get(0)..=get(1), Access::from_word(get(2)));
        let instruction = Some(get(3)).filter(|address| *address != 0);
        let count = usize::try_from(get(4)).map_or(ADDRESSES, |count| count.min(ADDRESSES));
        let address = |i| Address { at: get(8 + 2 * i), code: get(9 + 2 * i).to_le_bytes() };
        let stack: Vec<_> = (0..count).map(address).collect();
        let broken = rules.iter().filter(|(number, _)| numbers.contains(number));
        broken.map(|&(_, rule)| Break { rule, access, instruction, stack: stack.clone() }).collect()
    }
}

/// The plugin's side. QEMU makes one access at a time.
#[derive(Debug)]
pub struct Witness(Words);

impl Witness {
    /// Maps the memory.
    ///
    /// # Errors
    ///
    /// If the file is another one.
    pub fn map(file: OwnedFd) -> io::Result<Self> {
        Words::map_some(file, SIZE, true).map(Self)
    }

    /// The number of broken rules.
    pub fn broken(&self) -> u64 {
        self.0.get(BROKEN)
    }

    /// Writes a record of an access that has broken all rules after the number `before`, and
    /// returns its number.
    pub fn record(&self, before: u64, access: Access, stack: &[Address]) -> u64 {
        let record = self.0.get(COUNT);
        let set = |index, value| self.0.set(word(record, index), value);
        set(0, before.wrapping_add(1));
        set(1, self.broken());
        set(2, access.to_word());
        set(3, 0);
        let stack = &stack[..stack.len().min(ADDRESSES)];
        set(4, stack.len() as u64);
        for (i, address) in stack.iter().enumerate() {
            set(8 + 2 * i, address.at);
            set(9 + 2 * i, u64::from_le_bytes(address.code));
        }
        self.0.set(COUNT, record.wrapping_add(1));
        record
    }

    /// Adds the address of the instruction to a record.
    pub fn at(&self, record: u64, instruction: u64) {
        self.0.set(word(record, 3), instruction);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCESS: Access = Access { region: 0, offset: 0x1_0048, is_write: true };

    fn pair() -> (Breaks, Witness) {
        let breaks = Breaks::new().unwrap();
        let witness = Witness::map(breaks.file().try_clone_to_owned().unwrap()).unwrap();
        (breaks, witness)
    }

    fn rules(breaks: &Breaks) -> Vec<usize> {
        breaks.take().iter().map(|found| found.rule).collect()
    }

    #[test]
    fn calls_are_known_by_their_code() {
        let call = |code: &[u8]| {
            let mut bytes = [0x90; 8];
            bytes[8 - code.len()..].copy_from_slice(code);
            Address { at: 0xffff_ffff_8100_0010, code: bytes }.call()
        };
        // call to 16 bytes before the instruction's end
        assert_eq!(call(&[0xe8, 0xf0, 0xff, 0xff, 0xff]), Some(Call::To(0xffff_ffff_8100_0000)));
        // call *%rax, *%r11, *8(%rbx), *(%rax,%rcx,8), *0x100(%rip), *0x100(%rsp)
        for code in [
            &[0xff, 0xd0][..],
            &[0x41, 0xff, 0xd3],
            &[0xff, 0x53, 8],
            &[0xff, 0x14, 0xc8],
            &[0xff, 0x15, 0, 1, 0, 0],
            &[0xff, 0x94, 0x24, 0, 1, 0, 0],
        ] {
            assert_eq!(call(code), Some(Call::Indirect), "{code:x?}");
        }
        // nop, jmp *%rax, ret
        for code in [&[0x90][..], &[0xff, 0xe0], &[0xc3]] {
            assert_eq!(call(code), None, "{code:x?}");
        }
    }

    #[test]
    fn record_has_all_rules_of_its_access() {
        let (breaks, witness) = pair();
        let before = witness.broken();
        breaks.note(3);
        breaks.note(5);
        let stack: Vec<_> = (0..70).map(|at| Address { at, code: [at as u8; 8] }).collect();
        let record = witness.record(before, ACCESS, &stack);
        witness.at(record, 77);
        let stack = stack[..ADDRESSES].to_vec();
        let found =
            |rule| Break { rule, access: ACCESS, instruction: Some(77), stack: stack.clone() };
        assert_eq!(breaks.take(), [found(3), found(5)]);
        assert_eq!(breaks.take(), []);
    }

    #[test]
    fn accesses_are_told_apart() {
        let (breaks, witness) = pair();
        for (rule, region) in [(1, 0), (2, 7)] {
            let before = witness.broken();
            breaks.note(rule);
            witness.record(before, Access { region, offset: 4, is_write: false }, &[]);
        }
        let regions: Vec<_> = breaks.take().iter().map(|b| (b.rule, b.access.region)).collect();
        assert_eq!(regions, [(1, 0), (2, 7)]);
    }

    #[test]
    fn enough_breaks_of_a_rule_are_kept_until_they_are_taken() {
        let (breaks, witness) = pair();
        let broken = |rule| {
            let before = witness.broken();
            breaks.note(rule);
            if witness.broken() != before {
                witness.record(before, ACCESS, &[]);
            }
        };
        (0..100).for_each(|_| broken(9));
        assert_eq!(rules(&breaks), [9, 9]);
        (0..100).for_each(broken);
        assert_eq!(rules(&breaks), (0..RECORDS).collect::<Vec<_>>());
    }

    #[test]
    fn nonsense_of_a_guest_is_no_break() {
        let (breaks, witness) = pair();
        breaks.note(1);
        for (at, value) in [(COUNT, u64::MAX), (word(u64::MAX - 1, 4), u64::MAX)] {
            witness.0.set(at, value);
        }
        assert_eq!(breaks.take(), []);
        // All numbers, and more addresses than a record has.
        witness.0.set(word(u64::MAX, 1), u64::MAX);
        witness.0.set(word(u64::MAX, 4), u64::MAX);
        breaks.note(2);
        witness.0.set(COUNT, 0);
        let found = breaks.take();
        assert_eq!((found[0].rule, found[0].stack.len()), (2, ADDRESSES));
    }
}
