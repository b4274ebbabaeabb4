//! Cores, by the numbers that Linux gives processors.

use std::ffi::c_int;
use std::fs;
use std::ops::RangeInclusive;

use libc::{EINVAL, EPERM, cpu_set_t};

use crate::errno::Errno;

/// The most processors of a mask.
pub(crate) const MOST: usize = libc::CPU_SETSIZE as usize;
/// Cores of a group. Groups of the A64FX have a thirteenth, which belongs to the system.
const GROUP: usize = 12;
/// Groups with cores that a mask can name.
pub(crate) const GROUPS: usize = MOST.div_ceil(GROUP);
/// The list of processors that run.
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// A core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Core(usize);

impl Core {
    pub(crate) fn new(number: usize) -> Option<Self> {
        (number < MOST).then_some(Self(number))
    }

    pub(crate) fn number(self) -> usize {
        self.0
    }

    pub(crate) fn group(self) -> usize {
        self.0 / GROUP
    }

    pub(crate) fn in_group(self) -> usize {
        self.0 % GROUP
    }

    /// Its bit in the word of a barrier.
    pub(crate) fn bit(self) -> u32 {
        1 << self.in_group()
    }
}

/// Cores of a group that meet at a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mask {
    pub(crate) group: usize,
    /// The bits of the cores.
    pub(crate) bits: u32,
}

impl Mask {
    /// Reads a mask of processors.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Errno> {
        Self::of(bytes, &fs::read_to_string(ONLINE).unwrap_or_default())
    }

    fn of(bytes: &[u8], online: &str) -> Result<Self, Errno> {
        let online: Vec<RangeInclusive<usize>> =
            online.trim().split(',').filter_map(range).collect();
        let in_use = |number: &usize| bytes[number / 8] >> (number % 8) & 1 == 1;
        let numbers = (0..bytes.len().min(MOST / 8) * 8).filter(in_use);
        let mut mask: Option<Self> = None;
        for core in numbers.map(Core) {
            // Without a list, all are taken to run.
            if !online.is_empty() && !online.iter().any(|range| range.contains(&core.0)) {
                return Err(Errno::new(EINVAL, format_args!("processor {} is offline", core.0)));
            }
            let mask = mask.get_or_insert(Self { group: core.group(), bits: 0 });
            if mask.group != core.group() {
                return Err(Errno::new(EINVAL, "the mask has cores of several CMGs"));
            }
            mask.bits |= core.bit();
        }
        let mask = mask.filter(|mask| mask.bits.count_ones() > 1);
        mask.ok_or_else(|| Errno::new(EINVAL, "the mask has fewer than two cores"))
    }
}

/// Reads a part of a list such as `0-3,6`.
fn range(text: &str) -> Option<RangeInclusive<usize>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

/// Returns the core that the caller runs on.
pub(crate) fn current() -> Option<Core> {
    // SAFETY: it has no arguments.
    let number = unsafe { libc::sched_getcpu() };
    Core::new(usize::try_from(number).ok()?)
}

fn affinity() -> Option<cpu_set_t> {
    // SAFETY: all zeros are a set without processors.
    let mut set: cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: a set of that size.
    let got = unsafe { libc::sched_getaffinity(0, size_of::<cpu_set_t>(), &raw mut set) };
    (got == 0).then_some(set)
}

/// Binds the caller. Returns whether that is possible.
fn bind(set: &cpu_set_t) -> bool {
    // SAFETY: a set of that size.
    unsafe { libc::sched_setaffinity(0, size_of::<cpu_set_t>(), set) == 0 }
}

/// Returns the core that the caller is bound to.
pub(crate) fn bound() -> Result<Core, Errno> {
    let not = || Errno::new(EPERM, "the caller is not bound to one core");
    let set = affinity().ok_or_else(not)?;
    // SAFETY: numbers below the size of the set.
    let mut cores = (0..MOST).filter(|number| unsafe { libc::CPU_ISSET(*number, &set) });
    match (cores.next(), cores.next()) {
        (Some(core), None) => Ok(Core(core)),
        _ => Err(not()),
    }
}

/// Returns for each processor of the system whether the caller may run on it. That shows when it
/// tries.
pub(crate) fn usable() -> Vec<bool> {
    // SAFETY: it has no requirements.
    let all = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    let all = usize::try_from(all).unwrap_or(0).min(MOST);
    let Some(before) = affinity() else { return vec![false; all] };
    let may = |number| {
        // SAFETY: all zeros are a set without processors, and the number is below its size.
        let only = unsafe {
            let mut set: cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(number, &mut set);
            set
        };
        bind(&only)
    };
    let usable = (0..all).map(may).collect();
    bind(&before);
    usable
}

/// Waits while a word has this value, until another thread calls [`wake`].
pub(crate) fn wait(word: &std::sync::atomic::AtomicU32, value: u32) {
    // SAFETY: a word that stays, and no time limit.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            value,
            std::ptr::null::<libc::timespec>(),
        );
    }
}

/// Wakes all threads that wait for a word.
pub(crate) fn wake(word: &std::sync::atomic::AtomicU32) {
    // SAFETY: a word that stays.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            c_int::MAX,
        );
    }
}

/// Raises SIGILL as the hardware does, so that it cannot be blocked, and its handler finds an
/// instruction.
pub(crate) fn illegal_instruction() {
    // SAFETY: it changes nothing. The process ends unless it handles the signal.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!("ud2");
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!("udf #0");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_of_one_group() {
        let mask = |numbers: &[usize]| {
            let mut bytes = [0; 16];
            for number in numbers {
                bytes[number / 8] |= 1 << (number % 8);
            }
            Mask::of(&bytes, "0-47,50\n").map_err(|Errno(number)| number)
        };
        assert_eq!(mask(&[12, 13, 23]), Ok(Mask { group: 1, bits: 0x803 }));
        for wrong in [&[][..], &[3], &[11, 12], &[48, 49], &[50, 51]] {
            assert_eq!(mask(wrong), Err(EINVAL), "{wrong:?}");
        }
        assert_eq!(Mask::of(&[3], ""), Ok(Mask { group: 0, bits: 3 }));
        assert_eq!(Mask::of(&[0xff; 4096], "").unwrap_err(), Errno(EINVAL));
    }
}
