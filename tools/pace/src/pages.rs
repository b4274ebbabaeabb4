//! Pages through which guests keep each other's pace without the machine.
//!
//! A guest that rings a doorbell at some time has no effect on others before its *look-ahead* has
//! passed. So when a guest publishes its time, the others may run until that time plus the
//! look-ahead. Each guest has a page that it writes and all others read, and the machine has one.
//! All words have 8 bytes, except for the bell, and all times are picoseconds of the machine unless
//! noted otherwise.
//!
//! | page of a guest | byte | |
//! |---|---|---|
//! | reached | 0 | its time; before that it does nothing with the machine |
//! | wants | 8 | 0, or when it waits: another guest must not act before this time |
//! | for | 16 | the number of that guest |
//! | bell | 24 | 4 bytes: another number whenever `reached` or `acts` is, for futex(2) |
//! | steps | 32 | the number of its steps without the machine |
//! | waited | 40 | the host's nanoseconds that it waited in them |
//! | taken | 48 + 8 p | the bytes of input that it has taken from port p |
//!
//! | page of the machine | byte | |
//! |---|---|---|
//! | version | 0 | odd while the machine writes |
//! | instruction | 8 | picoseconds of an instruction, and so of a nanosecond of a guest's clock |
//! | quantum | 16 | the least step of a guest |
//! | report | 24 | the machine wants to hear from guests that reach this time |
//! | limit | 64 + 32 n | nothing happens at the node of guest n by itself before this time |
//! | ahead | 72 + 32 n | the look-ahead of its node |
//! | acts | 80 + 32 n | it has no effect on others before this time |
//! | base | 88 + 32 n | when its clock was 0 |
//!
//! A guest may run until the least of its `limit` and, of all others, the later one of `acts`
//! and `reached + ahead`. It reads those of the others first, and all of it again if `version` has
//! changed meanwhile: then no guest has got beyond an access of which the machine has not told.
//! If that is no more than where it is because of `limit`, it asks the machine. Otherwise it waits
//! for the bell of one that is behind. It makes no step of less than half of `ahead` because of
//! others. After an access to the device, it must ask the machine before it writes `reached` again,
//! as the others do not know yet what follows from the access.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use tofu_process::{Resize, memory_file};

use crate::LONGEST_STEP;
use crate::words::{self, Words};

/// The time that a guest waits for another without sleeping, if both can run at the same time. It
/// is longer than the host needs to wake a thread: otherwise a guest that has just woken the other
/// one would sleep before that runs, and from then on each step would be a sleep.
const SPIN: Duration = Duration::from_micros(50);
/// The same if guests take turns on the processors.
const YIELD: Duration = Duration::from_micros(500);

/// The most guests of a machine.
pub const MOST_GUESTS: usize = 64;

const REACHED: usize = 0;
const WANTS: usize = 8;
const FOR: usize = 16;
const BELL: usize = 24;
const STEPS: usize = 32;
const WAITED: usize = 40;

const fn taken(port: usize) -> usize {
    48 + 8 * port
}

const VERSION: usize = 0;
const INSTRUCTION: usize = 8;
const QUANTUM: usize = 16;
const REPORT: usize = 24;

const fn limit(guest: usize) -> usize {
    64 + 32 * guest
}

const fn ahead(guest: usize) -> usize {
    limit(guest) + 8
}

const fn acts(guest: usize) -> usize {
    limit(guest) + 16
}

const fn base(guest: usize) -> usize {
    limit(guest) + 24
}

/// The prospects of a guest, as its machine has them, in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// Nothing happens at its node by itself before this time.
    pub limit: u64,
    /// The least time from its doorbell to an effect at another node.
    pub ahead: u64,
    /// It has no effect on others before this time.
    pub acts: u64,
}

/// A page, and the file of it that others get.
#[derive(Debug)]
struct Shared {
    words: Words,
    writable: OwnedFd,
    read_only: OwnedFd,
}

impl Shared {
    fn new() -> io::Result<Self> {
        let writable = memory_file("tofu-pace", words::SIZE as u64, Resize::Never)?;
        let read_only = words::read_only(&writable)?;
        Ok(Self { words: Words::map(writable.try_clone()?, true)?, writable, read_only })
    }
}

/// The machine's side of all pages. It believes no guest more than that the guest is somewhere.
#[derive(Debug)]
pub struct Pages {
    machine: Shared,
    guests: Vec<Shared>,
}

impl Pages {
    /// Makes the pages of a machine. Times are in picoseconds.
    ///
    /// # Errors
    ///
    /// If there are too many guests, or the host has no memory or descriptors left.
    pub fn new(guests: usize, instruction: u64, quantum: u64) -> io::Result<Self> {
        if guests > MOST_GUESTS {
            return Err(io::Error::other(format!("{guests} guests; {MOST_GUESTS} at most")));
        }
        let machine = Shared::new()?;
        machine.words.set(INSTRUCTION, instruction);
        machine.words.set(QUANTUM, quantum);
        machine.words.set(REPORT, u64::MAX);
        let guests = (0..guests).map(|_| Shared::new()).collect::<io::Result<_>>()?;
        Ok(Self { machine, guests })
    }

    /// The files for a guest's plugin: the machine's, and those of all guests. Only the guest's own
    /// is writable.
    pub fn files(&self, guest: usize) -> Vec<BorrowedFd<'_>> {
        let all = (0..).zip(&self.guests);
        let guests = all.map(|(number, shared)| match number == guest {
            true => shared.writable.as_fd(),
            false => shared.read_only.as_fd(),
        });
        [self.machine.read_only.as_fd()].into_iter().chain(guests).collect()
    }

    /// Begins a guest whose plugin has come, at a time in picoseconds. Its clock was 0 at `zero`.
    pub fn begin(&self, guest: usize, zero: u64, at: u64) {
        self.machine.words.set(base(guest), zero);
        let own = &self.guests[guest].words;
        own.set(WANTS, 0);
        own.set(REACHED, at);
    }

    /// The time that a guest says that it has reached, in picoseconds.
    pub fn reached(&self, guest: usize) -> u64 {
        self.guests[guest].words.get(REACHED)
    }

    /// The steps that a guest says that it has made by itself, and the nanoseconds of the host that
    /// it waited in them.
    pub fn steps(&self, guest: usize) -> (u64, u64) {
        let own = &self.guests[guest].words;
        (own.get(STEPS), own.get(WAITED))
    }

    /// The bytes of input that a guest says that it has taken from a port.
    pub fn taken(&self, guest: usize, port: usize) -> u64 {
        self.guests[guest].words.get(taken(port))
    }

    /// Asks guests to say when they reach a time, in picoseconds. Those that have do not.
    pub fn report_at(&self, at: u64) {
        self.machine.words.set(REPORT, at);
    }

    /// Publishes the outlook of all guests. It must not be called by two threads at the same time.
    pub fn tell(&self, outlooks: impl Iterator<Item = Outlook>) {
        let machine = &self.machine.words;
        machine.add(VERSION, 1);
        let mut raised = [false; MOST_GUESTS];
        for ((guest, outlook), raised) in (0..self.guests.len()).zip(outlooks).zip(&mut raised) {
            *raised = outlook.acts > machine.get(acts(guest));
            machine.set(limit(guest), outlook.limit);
            machine.set(ahead(guest), outlook.ahead);
            machine.set(acts(guest), outlook.acts);
        }
        machine.add(VERSION, 1);
        for (guest, shared) in self.guests.iter().enumerate().filter(|(guest, _)| raised[*guest]) {
            shared.words.ring(BELL);
            let until = machine.get(acts(guest));
            let waits = self.guests.iter().any(|other| waits(&other.words, guest, until));
            if waits {
                shared.words.wake(BELL);
            }
        }
    }
}

/// True if a guest waits for one that does not act before a time, and need not any more.
fn waits(page: &Words, guest: usize, acts: u64) -> bool {
    let wants = page.get(WANTS);
    wants != 0 && wants <= acts && page.get(FOR) == guest as u64
}

/// The next thing that a guest does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It runs until a time, in nanoseconds of its clock.
    Run(u64),
    /// The guest must ask the machine.
    Ask,
}

/// A guest's side of the pages.
#[derive(Debug)]
pub struct Page {
    machine: Words,
    guests: Vec<Words>,
    own: usize,
    /// The time that it has reported last.
    reported: u64,
    /// True if all guests can run at the same time.
    side_by_side: bool,
}

impl Page {
    /// Maps the pages that came with the first answer.
    ///
    /// # Errors
    ///
    /// If they are not pages.
    pub fn map(own: usize, files: Vec<OwnedFd>) -> io::Result<Self> {
        let mut files = files.into_iter();
        let machine = files.next().ok_or(io::ErrorKind::UnexpectedEof)?;
        let machine = Words::map(machine, false)?;
        let guests = files.enumerate().map(|(guest, file)| Words::map(file, guest == own));
        let guests = guests.collect::<io::Result<Vec<_>>>()?;
        if own >= guests.len() || guests.len() > MOST_GUESTS {
            return Err(io::Error::other(format!("guest {own} of {}", guests.len())));
        }
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let side_by_side = guests.len() <= processors;
        Ok(Self { machine, guests, own, reported: 0, side_by_side })
    }

    /// Picoseconds of an instruction, and so of a nanosecond of the guest's clock.
    pub fn instruction_ps(&self) -> u64 {
        self.machine.get(INSTRUCTION)
    }

    /// Converts a time of the guest's clock to the machine's.
    fn to_ps(&self, ns: u64) -> u64 {
        self.machine.get(base(self.own)).saturating_add(ns.saturating_mul(self.instruction_ps()))
    }

    /// Publishes that the guest has reached a time of its clock, in nanoseconds. The machine must
    /// already know everything that the guest has done before. Returns true if the machine has
    /// requested a report of this time.
    pub fn reach(&mut self, ns: u64) -> bool {
        let (own, at) = (&self.guests[self.own], self.to_ps(ns));
        own.set(REACHED, at);
        own.ring(BELL);
        let until = at.saturating_add(self.machine.get(ahead(self.own)));
        if self.guests.iter().any(|other| waits(other, self.own, until)) {
            own.wake(BELL);
        }
        let report = self.machine.get(REPORT);
        let wanted = report <= at && report != self.reported;
        if wanted {
            self.reported = report;
        }
        wanted
    }

    /// Says that the guest has taken bytes of input from a port.
    pub fn take(&self, port: usize, bytes: usize) {
        self.guests[self.own].add(taken(port), bytes as u64);
    }

    /// Returns the time until which a guest that has [reached](Page::reach) `ns` may run. Waits for
    /// other guests, unless it must ask the machine. A guest that would run to `end` without a
    /// pause waits until that is allowed, or until another guest waits for it.
    ///
    /// # Errors
    ///
    /// As `is_there` says, which is called occasionally: if the machine has gone.
    pub fn next(
        &self,
        ns: u64,
        end: u64,
        mut is_there: impl FnMut() -> io::Result<()>,
    ) -> io::Result<Next> {
        let (at, end) = (self.to_ps(ns), self.to_ps(end));
        let own = &self.guests[self.own];
        let instruction = self.instruction_ps().max(1);
        let mut began = None;
        let next = loop {
            match self.bound(at, end) {
                Bound::Torn => {
                    thread::yield_now();
                    is_there()?;
                }
                Bound::Until(bound) => {
                    let base = self.machine.get(base(self.own));
                    let until = bound.saturating_sub(base) / instruction;
                    break match until > ns {
                        true => Next::Run(until.min(ns.saturating_add(LONGEST_STEP))),
                        false => Next::Ask,
                    };
                }
                Bound::Behind { guest, acts, bell } => {
                    let began = *began.get_or_insert_with(Instant::now);
                    if self.spins(guest, bell, began) {
                        continue;
                    }
                    if own.get(WANTS) == 0 {
                        own.set(FOR, guest as u64);
                        own.set(WANTS, acts);
                        // Check again, because the other guest may have continued before it could
                        // see that.
                        continue;
                    }
                    if (own.get(FOR), own.get(WANTS)) != (guest as u64, acts) {
                        own.set(WANTS, 0);
                        continue;
                    }
                    self.guests[guest].wait(BELL, bell);
                    is_there()?;
                }
            }
        };
        own.set(WANTS, 0);
        own.add(STEPS, 1);
        if let Some(began) = began {
            own.add(WAITED, u64::try_from(began.elapsed().as_nanos()).unwrap_or(0));
        }
        Ok(next)
    }

    /// Waits for the bell of a guest without sleeping, until some time after it began. Returns true
    /// if it has another number. A guest needs less time for its step than the host needs to wake a
    /// thread, also where others have to run first.
    fn spins(&self, guest: usize, bell: u32, began: Instant) -> bool {
        let (looks, longest) = if self.side_by_side { (16, SPIN) } else { (1, YIELD) };
        while began.elapsed() < longest {
            for _ in 0..looks {
                if self.guests[guest].bell(BELL) != bell {
                    return true;
                }
                std::hint::spin_loop();
            }
            if !self.side_by_side {
                thread::yield_now();
            }
        }
        false
    }

    /// Until when a guest at a time may run, from one state of the machine.
    fn bound(&self, at: u64, end: u64) -> Bound {
        let least = at.saturating_add(self.machine.get(QUANTUM));
        let version = self.machine.get(VERSION);
        let mut others = u64::MAX;
        let mut behind = None;
        // From the previous one backwards: guests often run one after the other, so the previous
        // one is the last to reach the present step.
        let count = self.guests.len();
        for guest in (1..count).map(|n| (self.own + count - n) % count) {
            let bell = self.guests[guest].bell(BELL);
            let ahead = self.machine.get(ahead(guest));
            let reached = self.guests[guest].get(REACHED);
            let until = reached.saturating_add(ahead).max(self.machine.get(acts(guest)));
            // Less than half of a step is not worth it. More than a step might never come.
            let wanted = end.clamp(at.saturating_add(ahead / 2), at.saturating_add(ahead));
            if until < wanted {
                behind = behind.or(Some(Bound::Behind { guest, acts: wanted, bell }));
            }
            others = others.min(until);
        }
        let limit = self.machine.get(limit(self.own));
        if version % 2 == 1 || self.machine.get(VERSION) != version {
            return Bound::Torn;
        }
        let free = others.max(least);
        match behind {
            Some(behind) if free < limit && free == others => behind,
            _ => Bound::Until(limit.min(free)),
        }
    }
}

/// A bound of a guest's step.
enum Bound {
    /// It may run until this time.
    Until(u64),
    /// It waits until a guest, whose bell has this number, does not act before a time.
    Behind { guest: usize, acts: u64, bell: u32 },
    /// The machine is writing.
    Torn,
}
