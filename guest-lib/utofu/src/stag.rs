//! The steering tags of a queue, and the memory registered under them.

use alloc::collections::BTreeMap;
use core::ops::Range;

use crate::error::{Code, Error};
use crate::ids::{FIRST_NORMAL_STAG, Stadd};

/// Steering tags of a queue: 4096 reserved ones and as many others.
pub const NUM_STAGS: u32 = 2 * FIRST_NORMAL_STAG;
/// The lower bits of a normal STADD are those of the address, as on real systems, where memory is
/// registered in pages of 64 KiB.
const OFFSET_MASK: usize = 0xffff;
/// A reserved STADD has only the lowest bits of the address.
const RESERVED_OFFSET_MASK: usize = 0xff;

/// Registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Memory {
    pub(crate) addr: usize,
    pub(crate) size: usize,
    pub(crate) read_only: bool,
    /// Extra value of the VCQ.
    pub(crate) owner: u8,
}

#[derive(Debug)]
struct Registered {
    memory: Memory,
    /// The number of times it is registered.
    uses: u32,
}

/// The steering tags of one queue that are in use.
#[derive(Debug)]
pub(crate) struct Stags {
    in_use: BTreeMap<u32, Registered>,
    /// Normal tags by their memory, so that they are reused.
    known: BTreeMap<Memory, u32>,
    /// No normal tag below these is free, for reading and writing and for reading only,
    /// respectively.
    lowest: [u32; 2],
    /// The end of the normal tags.
    end: u32,
}

impl Stags {
    /// The normal tags of a process, which begin with an even one.
    pub(crate) const fn of(normal: Range<u32>) -> Self {
        Self {
            in_use: BTreeMap::new(),
            known: BTreeMap::new(),
            lowest: [normal.start, normal.start + 1],
            end: normal.end,
        }
    }

    /// Returns the STADD of memory under a normal tag, and whether it is new and must be registered
    /// with the device.
    pub(crate) fn add(&mut self, memory: Memory) -> Result<(Stadd, bool), Error> {
        let offset = (memory.addr & OFFSET_MASK) as u64;
        if let Some(&stag) = self.known.get(&memory)
            && let Some(registered) = self.in_use.get_mut(&stag)
        {
            registered.uses = registered.uses.saturating_add(1);
            return Ok((Stadd::new(stag, offset), false));
        }
        // Even tags allow reading and writing, odd ones only reading.
        let lowest = &mut self.lowest[usize::from(memory.read_only)];
        let stag = (*lowest..self.end).step_by(2).find(|stag| !self.in_use.contains_key(stag));
        let Some(stag) = stag else {
            let hint = "a control queue has 2048 steering tags of each kind, of which a process \
                        that shares it has half: deregister some";
            return Err(Error::new(Code::Full, "steering tags", hint));
        };
        *lowest = stag + 2;
        self.in_use.insert(stag, Registered { memory, uses: 1 });
        self.known.insert(memory, stag);
        Ok((Stadd::new(stag, offset), true))
    }

    /// Returns the STADD of memory under a reserved tag.
    pub(crate) fn add_reserved(&mut self, memory: Memory, stag: u32) -> Result<Stadd, Error> {
        if self.in_use.contains_key(&stag) {
            let hint = "memory is registered under this steering tag: deregister it first";
            let value = u64::from(stag & 0xff);
            return Err(Error::with_value(Code::Used, "steering tag", value, hint));
        }
        self.in_use.insert(stag, Registered { memory, uses: 1 });
        Ok(Stadd::new(stag, (memory.addr & RESERVED_OFFSET_MASK) as u64))
    }

    /// Ends one registration. Returns true if it was the last one of its tag; the tag must then be
    /// removed from the device.
    pub(crate) fn remove(&mut self, stadd: Stadd, owner: u8) -> Result<bool, Error> {
        let stag = stadd.stag();
        let registered = self.in_use.get_mut(&stag).filter(|r| r.memory.owner == owner);
        let Some(registered) = registered else {
            let hint = "this VCQ has no memory registered there";
            return Err(Error::with_value(Code::InvalidStadd, "STADD", stadd.0, hint));
        };
        registered.uses -= 1;
        let last = registered.uses == 0;
        if last {
            self.forget(stag);
        }
        Ok(last)
    }

    /// Removes a tag from use.
    pub(crate) fn forget(&mut self, stag: u32) {
        let Some(registered) = self.in_use.remove(&stag) else {
            return;
        };
        if stag >= FIRST_NORMAL_STAG {
            self.known.remove(&registered.memory);
            let lowest = &mut self.lowest[(stag & 1) as usize];
            *lowest = stag.min(*lowest);
        }
    }

    /// Returns a tag of a VCQ, if it has any.
    pub(crate) fn any_of(&self, owner: u8) -> Option<u32> {
        self.in_use.iter().find(|(_, r)| r.memory.owner == owner).map(|(&stag, _)| stag)
    }

    /// Returns the owner of a tag.
    pub(crate) fn owner(&self, stag: u32) -> Option<u8> {
        if stag < FIRST_NORMAL_STAG {
            // The owner follows from the tag, registered or not.
            return Some((stag >> 8) as u8);
        }
        self.in_use.get(&stag).map(|r| r.memory.owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Stags {
        Stags::of(FIRST_NORMAL_STAG..NUM_STAGS)
    }

    fn memory(addr: usize, read_only: bool) -> Memory {
        Memory { addr, size: 100, read_only, owner: 3 }
    }

    #[test]
    fn tags_are_those_of_real_systems() {
        let mut stags = all();
        let mut add = |addr, read_only| stags.add(memory(addr, read_only)).unwrap().0.0;
        assert_eq!(add(0x100_0000, false), 0x0010_0000_0000_0000);
        assert_eq!(add(0x44_7950, false), 0x0010_0200_0000_7950);
        assert_eq!(add(0xffff_ffff_d930, true), 0x0010_0100_0000_d930);
        let reserved = stags.add_reserved(memory(0x1234, false), 0xf0b).unwrap();
        assert_eq!(reserved.0, 0x000f_0b00_0000_0034);
    }

    #[test]
    fn same_memory_has_the_same_tag() {
        let mut stags = all();
        let (stadd, new) = stags.add(memory(0x1000, false)).unwrap();
        assert!(new);
        assert_eq!(stags.add(memory(0x1000, false)).unwrap(), (stadd, false));
        assert_ne!(stags.add(memory(0x1000, true)).unwrap().0, stadd);
        assert_eq!(stags.remove(stadd, 4).unwrap_err().code(), Code::InvalidStadd, "not its");
        assert!(!stags.remove(stadd, 3).unwrap());
        assert_eq!(stags.owner(stadd.stag()), Some(3));
        assert!(stags.remove(stadd, 3).unwrap());
        assert_eq!(stags.owner(stadd.stag()), None);
        assert_eq!(stags.remove(stadd, 3).unwrap_err().code(), Code::InvalidStadd);
        assert_eq!(stags.add(memory(0x2000, false)).unwrap(), (Stadd::new(4096, 0x2000), true));
    }

    #[test]
    fn tags_run_out_and_come_back() {
        let mut stags = all();
        for i in 0..2048 {
            stags.add(memory(i << 16, false)).unwrap();
        }
        assert_eq!(stags.add(memory(1, false)).unwrap_err().code(), Code::Full);
        assert!(stags.add(memory(1, true)).is_ok(), "the other kind has its own");
        assert!(stags.remove(Stadd::new(5000, 0), 3).unwrap());
        assert_eq!(stags.add(memory(1, false)).unwrap().0.stag(), 5000);
        assert_eq!(stags.add_reserved(memory(0, false), 7).unwrap().stag(), 7);
        assert_eq!(stags.add_reserved(memory(0, false), 7).unwrap_err().code(), Code::Used);
    }
}
