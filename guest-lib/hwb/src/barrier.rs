//! Barriers of groups, and cores' windows to them.

use std::array;
use std::ffi::c_int;
use std::hint::spin_loop;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{EBUSY, EINVAL};
use tofu_process::lock;

use crate::cores::{self, Core, GROUPS, MOST, Mask};
use crate::errno::Errno;

/// Barriers of a group.
pub(crate) const OF_GROUP: usize = 6;
/// Barriers in all.
pub(crate) const BLADES: usize = GROUPS * OF_GROUP;
/// Windows of a core.
const WINDOWS: usize = 4;
/// The bit of a barrier's word that changes when the bits of all of its cores have its opposite:
/// LBSY of the A64FX, where the cores' are called BST.
const TURN: u32 = 1 << 31;
/// The word of a barrier that is not in use.
const FREE: u32 = 1 << 30;
/// Looks at the word before a thread sleeps.
const SPINS: u32 = 2000;

/// A barrier.
struct Blade {
    word: AtomicU32,
    /// The bits of its cores.
    mask: AtomicU32,
}

impl Blade {
    /// Arrives, and waits for all others. Returns `false` if the barrier is freed before that.
    fn meet(&self, core: Core) -> bool {
        let mask = self.mask.load(Ordering::Acquire);
        let mut word = self.word.load(Ordering::Acquire);
        let turn = loop {
            if word & FREE != 0 {
                return false;
            }
            let turn = !word & TURN;
            let own = if turn == 0 { word & !core.bit() } else { word | core.bit() };
            let all = if turn == 0 { own & mask == 0 } else { own & mask == mask };
            let new = if all { own ^ TURN } else { own };
            let order = (Ordering::AcqRel, Ordering::Acquire);
            match self.word.compare_exchange_weak(word, new, order.0, order.1) {
                Ok(_) if all => {
                    cores::wake(&self.word);
                    return true;
                }
                Ok(_) => break turn,
                Err(now) => word = now,
            }
        };
        // It cannot turn again before this core arrives again.
        let mut spins = 0;
        loop {
            let word = self.word.load(Ordering::Acquire);
            if word & FREE != 0 {
                return false;
            }
            if word & TURN == turn {
                return true;
            }
            spins += 1;
            if spins < SPINS {
                spin_loop();
            } else {
                cores::wait(&self.word, word);
            }
        }
    }
}

/// The barriers and windows of a process.
pub(crate) struct Blades {
    blades: [Blade; BLADES],
    /// For each core and window the number of a barrier and one more, or 0.
    windows: [[AtomicU32; WINDOWS]; MOST],
    /// Held for all changes. Waiting at a barrier does not need it.
    changes: Mutex<()>,
}

impl Blades {
    pub(crate) fn new() -> Self {
        let blade = |_| Blade { word: AtomicU32::new(FREE), mask: AtomicU32::new(0) };
        let windows = array::from_fn(|_| array::from_fn(|_| AtomicU32::new(0)));
        Self { blades: array::from_fn(blade), windows, changes: Mutex::new(()) }
    }

    /// Returns the number of a barrier that is in use.
    pub(crate) fn find(&self, bd: c_int) -> Result<usize, Errno> {
        let in_use = |number: &usize| {
            let blade = self.blades.get(*number);
            blade.is_some_and(|blade| blade.word.load(Ordering::Acquire) & FREE == 0)
        };
        let number = usize::try_from(bd).ok().filter(in_use);
        number.ok_or_else(|| Errno::new(EINVAL, format_args!("there is no barrier {bd}")))
    }

    /// Takes a barrier for some cores. Returns its descriptor.
    pub(crate) fn take(&self, mask: &Mask) -> Result<c_int, Errno> {
        let _alone = lock(&self.changes);
        let first = mask.group * OF_GROUP;
        let mut group = first..first + OF_GROUP;
        let free = group.find(|number| self.find(*number as c_int).is_err());
        let number = free.ok_or_else(|| Errno::new(EBUSY, "all barriers of the CMG are in use"))?;
        self.blades[number].mask.store(mask.bits, Ordering::Release);
        self.blades[number].word.store(0, Ordering::Release);
        Ok(number as c_int)
    }

    /// Gives a barrier back, with all windows to it.
    pub(crate) fn give_back(&self, bd: c_int) -> Result<(), Errno> {
        let _alone = lock(&self.changes);
        let number = self.find(bd)?;
        for window in self.windows.iter().flatten() {
            let _ =
                window.compare_exchange(number as u32 + 1, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
        let word = &self.blades[number].word;
        word.store(FREE, Ordering::Release);
        cores::wake(word);
        Ok(())
    }

    /// Connects a window of a core, or any for -1, to a barrier. Returns the window.
    pub(crate) fn assign(&self, core: Core, bd: c_int, window: c_int) -> Result<c_int, Errno> {
        let _alone = lock(&self.changes);
        let number = self.find(bd)?;
        let mask = self.blades[number].mask.load(Ordering::Acquire);
        if core.group() != number / OF_GROUP || mask & core.bit() == 0 {
            return Err(Errno::new(EINVAL, "the core is not in the barrier's mask"));
        }
        let windows = &self.windows[core.number()];
        let of = |window: &AtomicU32| window.load(Ordering::Acquire);
        let known = number as u32 + 1;
        if windows.iter().any(|window| of(window) == known) {
            return Err(Errno::new(EINVAL, "the core has a window to the barrier"));
        }
        let chosen = match usize::try_from(window) {
            Ok(window) if window < WINDOWS => Some(window).filter(|at| of(&windows[*at]) == 0),
            Err(_) if window == -1 => windows.iter().position(|window| of(window) == 0),
            _ => return Err(Errno::new(EINVAL, format_args!("there is no window {window}"))),
        };
        let chosen = chosen.ok_or_else(|| Errno::new(EBUSY, "the window is in use, or all are"))?;
        windows[chosen].store(known, Ordering::Release);
        Ok(chosen as c_int)
    }

    /// Disconnects the window of a core to a barrier.
    pub(crate) fn unassign(&self, core: Core, bd: c_int) -> Result<(), Errno> {
        let _alone = lock(&self.changes);
        let known = self.find(bd)? as u32 + 1;
        let windows = &self.windows[core.number()];
        let found = windows.iter().find(|window| window.load(Ordering::Acquire) == known);
        let none = || Errno::new(EINVAL, "the core has no window to the barrier");
        found.ok_or_else(none)?.store(0, Ordering::Release);
        Ok(())
    }

    /// Waits for all cores of the barrier behind a window. Returns `None` if there is none, or no
    /// longer.
    pub(crate) fn sync(&self, core: Core, window: c_int) -> Option<()> {
        let window = self.windows[core.number()].get(usize::try_from(window).ok()?)?;
        let number = window.load(Ordering::Acquire).checked_sub(1)?;
        self.blades[number as usize].meet(core).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn core(number: usize) -> Core {
        Core::new(number).unwrap()
    }

    /// Twelve threads with the numbers of twelve cores.
    #[test]
    fn twelve_cores_meet_many_times() {
        const ROUNDS: u32 = 101;
        let blades = Blades::new();
        let bd = blades.take(&Mask { group: 1, bits: 0xfff }).unwrap();
        assert_eq!(bd, 6);
        let counts: [AtomicU32; 12] = array::from_fn(|_| AtomicU32::new(0));
        thread::scope(|scope| {
            for own in 0..12 {
                let (blades, counts) = (&blades, &counts);
                scope.spawn(move || {
                    let core = core(12 + own);
                    // Cores may use different windows.
                    let window = own as c_int % 4;
                    for round in 1..=ROUNDS {
                        // An odd number of meetings: the next window begins in the other state.
                        assert_eq!(blades.assign(core, bd, window), Ok(window));
                        for _ in 0..3 {
                            blades.sync(core, window).unwrap();
                        }
                        counts[own].store(round, Ordering::Relaxed);
                        blades.sync(core, window).unwrap();
                        let seen = counts.iter().map(|count| count.load(Ordering::Relaxed));
                        assert!(seen.into_iter().all(|count| count == round || count == round + 1));
                        blades.sync(core, window).unwrap();
                        blades.unassign(core, bd).unwrap();
                    }
                });
            }
        });
        blades.give_back(bd).unwrap();
        assert_eq!(blades.give_back(bd), Err(Errno(EINVAL)));
    }

    #[test]
    fn barriers_and_windows_are_few() {
        let blades = Blades::new();
        let mask = Mask { group: 0, bits: 0b110 };
        let all: Vec<_> = (0..6).map(|_| blades.take(&mask).unwrap()).collect();
        assert_eq!(all, [0, 1, 2, 3, 4, 5]);
        assert_eq!(blades.take(&mask), Err(Errno(EBUSY)));
        let own = core(1);
        let windows: Vec<_> = all[..4].iter().map(|bd| blades.assign(own, *bd, -1)).collect();
        assert_eq!(windows, [Ok(0), Ok(1), Ok(2), Ok(3)]);
        assert_eq!(blades.assign(own, 4, -1), Err(Errno(EBUSY)));
        assert_eq!(blades.assign(own, 4, 2), Err(Errno(EBUSY)));
        assert_eq!(blades.assign(own, 1, -1), Err(Errno(EINVAL)));
        // Another window, another core, another barrier, another group's core.
        for (number, bd, window) in [(1, 4, 4), (1, 4, -2), (0, 4, 0), (2, 6, 0), (13, 4, 0)] {
            assert_eq!(blades.assign(core(number), bd, window), Err(Errno(EINVAL)));
        }
        blades.unassign(own, 2).unwrap();
        assert_eq!(blades.unassign(own, 2), Err(Errno(EINVAL)));
        assert_eq!(blades.sync(own, 2), None);
        // With the barrier its windows go, and those that wait there.
        thread::scope(|scope| {
            let waits = scope.spawn(|| blades.sync(own, 3));
            thread::sleep(std::time::Duration::from_millis(20));
            blades.give_back(3).unwrap();
            assert_eq!(waits.join().unwrap(), None);
        });
        assert_eq!(blades.assign(own, 4, 3), Ok(3));
        assert_eq!(blades.take(&mask), Ok(3));
    }
}
