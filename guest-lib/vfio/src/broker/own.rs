//! Turns private memory of this process into memory of a file, which another process can map too.
//!
//! A program can register any of its memory: heap, stack, variables. Such pages belong to the
//! process alone, and VFIO maps only the memory of the process that asks. So they are copied into a
//! memory file, which is then mapped in their place. No thread notices, because all are stopped in
//! the meantime. A page stays in the file even when it is no longer registered.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::thread;

use rustix::fs::{FallocateFlags, fallocate, fstat, ftruncate};
use rustix::io::{Errno, pwrite};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use tofu_process::{Resize, lock, memory_file};

use super::stop::{self, StopError};
use crate::page_size;

/// Bytes of the file after which pages are given back that the process has unmapped.
const SWEEP: u64 = 64 << 20;
/// Bytes of a huge page: those of x86-64, and of arm64 with pages of 4 KiB.
const HUGE: u64 = 2 << 20;
/// The least bytes of a piece that begins a huge page of the file, if the system makes such pages:
/// an IOMMU maps contiguous memory at once. The next pieces use the rest of the page.
const LARGE: u64 = 256 << 10;
/// Bytes that the stack must have below the caller that registers memory: pages of a file do not
/// grow.
const BELOW: usize = 64 << 10;
/// Stack of the thread that moves pages, in bytes.
const STACK: usize = 256 << 10;

/// The reason why memory cannot be shared with the device.
#[derive(Debug, thiserror::Error)]
pub enum ShareError {
    /// It is not mapped, not all of it, or may not be read or written.
    #[error("it is not mapped, or read-only")]
    Inaccessible,
    /// It is memory of a file that other processes may have.
    #[error("it is a shared mapping of a file, which tofud cannot map")]
    Foreign,
    /// A thread did not stop.
    #[error("a thread of the process blocks signal {0}, which is needed to stop it briefly")]
    Thread(i32),
    /// The system does not do it.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<StopError> for ShareError {
    fn from(error: StopError) -> Self {
        match error {
            StopError::Thread(signal) => Self::Thread(signal),
            StopError::System(error) => Self::System(error),
        }
    }
}

impl From<Errno> for ShareError {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

/// The file, once there is one.
#[derive(Debug, Default)]
pub(super) struct OwnMemory(Mutex<Option<Pages>>);

#[derive(Debug)]
struct Pages {
    file: OwnedFd,
    /// Device and inode, as /proc/self/maps has them.
    name: (u64, u64),
    extent: Extent,
    /// The end of the pieces when pages were given back last.
    swept: u64,
}

/// The part of the file that is in use, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Extent {
    /// The end of the pieces.
    end: u64,
    /// The size of the file. What is left of it behind the pieces belongs to a huge page.
    size: u64,
}

impl Extent {
    /// Places a piece of this length behind the others, and returns its offset.
    fn place(&mut self, len: u64) -> u64 {
        let is_large = len >= LARGE;
        let begins_a_page = is_large && self.end == self.size;
        let offset = if begins_a_page { self.end.next_multiple_of(HUGE) } else { self.end };
        self.end = offset + len;
        if self.end > self.size {
            // The system makes huge pages only of what the file has as a whole.
            self.size = if is_large { self.end.next_multiple_of(HUGE) } else { self.end };
        }
        offset
    }
}

/// A part of the address space that is mapped in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Area {
    start: u64,
    end: u64,
    read: bool,
    write: bool,
    execute: bool,
    shared: bool,
    offset: u64,
    /// Device and inode.
    name: (u64, u64),
}

impl Area {
    /// A line of /proc/self/maps.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = words.next()?.split_once('-')?;
        let rights = words.next()?.as_bytes();
        let offset = words.next()?;
        let (major, minor) = words.next()?.split_once(':')?;
        let inode = words.next()?.parse().ok()?;
        let has = |at: usize, letter| rights.get(at) == Some(&letter);
        Some(Self {
            start: hex(start)?,
            end: hex(end)?,
            read: has(0, b'r'),
            write: has(1, b'w'),
            execute: has(2, b'x'),
            shared: has(3, b's'),
            offset: hex(offset)?,
            name: (hex(major)? << 32 | hex(minor)?, inode),
        })
    }

    fn protection(&self) -> ProtFlags {
        let all = [
            (self.read, ProtFlags::READ),
            (self.write, ProtFlags::WRITE),
            (self.execute, ProtFlags::EXEC),
        ];
        all.into_iter().filter(|(has, _)| *has).map(|(_, flag)| flag).collect()
    }
}

/// All areas, in the order of their addresses.
fn areas() -> io::Result<Vec<Area>> {
    // Without room it would be read by 32 bytes first, and by twice as many each time.
    let mut text = String::with_capacity(16 << 10);
    File::open("/proc/self/maps")?.read_to_string(&mut text)?;
    Ok(text.lines().filter_map(Area::parse).collect())
}

/// A part of the memory to be shared.
struct Piece {
    area: Area,
    /// Its offset in the file.
    offset: u64,
    /// True if it must be moved there.
    moves: bool,
}

/// The parts of `start` to `end`, for a file of this name, in which they are placed.
fn pieces(
    areas: &[Area],
    (start, end): (u64, u64),
    read_only: bool,
    name: (u64, u64),
    extent: &mut Extent,
) -> Result<Vec<Piece>, ShareError> {
    let mut at = start;
    let mut pieces = Vec::new();
    for area in areas.iter().filter(|area| area.end > start && area.start < end) {
        let part = Area { start: area.start.max(start), end: area.end.min(end), ..*area };
        if part.start != at || !part.read || !(part.write || read_only) {
            return Err(ShareError::Inaccessible);
        }
        at = part.end;
        let moves = !part.shared;
        if part.shared && part.name != name {
            return Err(ShareError::Foreign);
        }
        let offset = match moves {
            true => extent.place(part.end - part.start),
            false => area.offset + (part.start - area.start),
        };
        pieces.push(Piece { area: part, offset, moves });
    }
    if at == end { Ok(pieces) } else { Err(ShareError::Inaccessible) }
}

impl Pages {
    fn new() -> io::Result<Self> {
        let file = memory_file("tofu-own", 0, Resize::Grow)?;
        let stat = fstat(&file)?;
        let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        let name = (u64::from(major) << 32 | u64::from(minor), stat.st_ino);
        Ok(Self { file, name, extent: Extent::default(), swept: 0 })
    }

    /// Gives back what the process has unmapped.
    fn sweep(&mut self, areas: &[Area]) {
        let end = self.extent.end;
        if end - self.swept < SWEEP {
            return;
        }
        let own = areas.iter().filter(|area| area.shared && area.name == self.name);
        let mut used: Vec<_> =
            own.map(|own| (own.offset, own.offset + own.end - own.start)).collect();
        used.sort_unstable();
        let mut at = 0;
        for (start, end) in used.into_iter().chain([(end, end)]) {
            if start > at {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                // Pages that cannot be given back stay.
                let _ = fallocate(&self.file, flags, at, start - at);
            }
            at = at.max(end);
        }
        self.swept = end;
    }
}

impl OwnMemory {
    /// Makes the pages that hold memory of the process pages of the file. Returns the file, and
    /// where they are in it: start and length in bytes of one run after the other.
    ///
    /// # Errors
    ///
    /// See [`ShareError`].
    ///
    /// # Safety
    ///
    /// The memory belongs to the caller, or shares pages with other data of the program's heap,
    /// stack or variables. It is treated as memory that others may change.
    pub(super) unsafe fn share(
        &self,
        addr: usize,
        len: usize,
        read_only: bool,
    ) -> Result<(OwnedFd, Vec<(u64, u64)>), ShareError> {
        deepen_stack();
        let (addr, len) = (addr as u64, len as u64);
        let end = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(page_size()));
        let end = end.filter(|_| len > 0).ok_or(ShareError::Inaccessible)?;
        let start = addr & !(page_size() - 1);
        let mut pages = lock(&self.0);
        let pages = match &mut *pages {
            Some(pages) => pages,
            none => none.insert(Pages::new()?),
        };
        let areas = areas()?;
        pages.sweep(&areas);
        let mut extent = pages.extent;
        let pieces = pieces(&areas, (start, end), read_only, pages.name, &mut extent)?;
        if extent != pages.extent {
            ftruncate(&pages.file, extent.size)?;
            pages.extent = extent;
            let with_stack = has_stack(&areas, start, end);
            // SAFETY: as promised to this function.
            unsafe { move_all(&pages.file, &pieces, with_stack)? };
        }
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for Piece { area, offset, .. } in pieces {
            let len = area.end - area.start;
            match runs.last_mut() {
                Some(last) if last.0 + last.1 == offset => last.1 += len,
                _ => runs.push((offset, len)),
            }
        }
        Ok((pages.file.try_clone()?, runs))
    }
}

/// Moves pieces into the file while all other threads are stopped. If the caller's stack may be
/// among them, the caller is stopped as well.
///
/// # Safety
///
/// As for [`OwnMemory::share`].
unsafe fn move_all(file: &OwnedFd, pieces: &[Piece], with_stack: bool) -> Result<(), ShareError> {
    // Nothing in it needs memory of the heap, as a stopped thread may hold the heap's lock.
    let mover = || {
        let _others = stop::others()?;
        for piece in pieces.iter().filter(|piece| piece.moves) {
            // SAFETY: as promised to this function; no other thread runs.
            unsafe { move_one(file, piece)? };
        }
        Ok(())
    };
    if !with_stack {
        return mover();
    }
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("tofu pages".into()).stack_size(STACK);
        let thread = thread.spawn_scoped(scope, mover)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Moves a piece into the file as a whole: the kernel copies it and maps all of its pages in one
/// call. Otherwise each page would cost a fault for the copy, and another one at its first use.
///
/// # Safety
///
/// As for [`OwnMemory::share`]. No other thread runs, and the caller's stack is elsewhere.
unsafe fn move_one(file: &OwnedFd, Piece { area, offset, .. }: &Piece) -> Result<(), ShareError> {
    let len = (area.end - area.start) as usize;
    // SAFETY: it is mapped and may be read, and does not change, as no other thread runs.
    let mut rest = unsafe { std::slice::from_raw_parts(area.start as *const u8, len) };
    let mut at = *offset;
    while !rest.is_empty() {
        match pwrite(file, rest, at) {
            Ok(0) => return Err(Errno::NOSPC.into()),
            Ok(written) => {
                at += written as u64;
                rest = rest.get(written..).unwrap_or_default();
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
    // SAFETY: the new pages hold what the old ones hold.
    unsafe { mmap(area.start as *mut _, len, area.protection(), flags, file.as_fd(), *offset)? };
    Ok(())
}

/// Returns true if pages from `start` to `end` may be of this thread's stack.
fn has_stack(areas: &[Area], start: u64, end: u64) -> bool {
    let here = 0u8;
    let here = (&raw const here) as u64;
    // One that is not found is one that has grown since.
    let own = areas.iter().find(|area| (area.start..area.end).contains(&here));
    own.is_none_or(|own| own.start < end && start < own.end)
}

/// Touches the stack some way down, so that there is a part below that still grows.
#[inline(never)]
fn deepen_stack() {
    std::hint::black_box([0u8; BELOW]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null_mut;
    use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

    /// Reads some runs of a file.
    fn in_file(file: &OwnedFd, runs: &[(u64, u64)]) -> Vec<u8> {
        let mut all = Vec::new();
        for &(start, len) in runs {
            let mut bytes = vec![0; len as usize];
            assert_eq!(rustix::io::pread(file, &mut bytes[..], start).unwrap(), len as usize);
            all.extend(bytes);
        }
        all
    }

    #[test]
    fn areas_are_lines() {
        let line = "7f0010000000-7f0010021000 rw-s 0000a000 00:01 1025  /memfd:tofu-own (deleted)";
        let area = Area::parse(line).unwrap();
        assert_eq!((area.start, area.end, area.offset), (0x7f0010000000, 0x7f0010021000, 0xa000));
        assert_eq!((area.name, area.shared, area.write), ((1, 1025), true, true));
        assert!(!area.execute && Area::parse("x").is_none());
    }

    #[test]
    fn memory_of_all_kinds_moves_to_the_file() {
        static VARIABLE: AtomicU64 = AtomicU64::new(0x1234_5678_9abc_def0);
        let memory = OwnMemory::default();
        let heap: Vec<AtomicU64> = (0..5000).map(AtomicU64::new).collect();
        let stack: [AtomicU64; 3] = [1, 2, 3].map(AtomicU64::new);
        let of = |words: &[AtomicU64]| (words.as_ptr() as usize, words.len() * 8);
        for (round, words) in
            [&heap[..], &heap[100..300], &stack, std::slice::from_ref(&VARIABLE)].iter().enumerate()
        {
            let (addr, len) = of(words);
            // SAFETY: memory of this test's, accessed by atomics.
            let (file, runs) = unsafe { memory.share(addr, len, false).unwrap() };
            let at = addr % page_size() as usize;
            let read = || in_file(&file, &runs)[at..][..len].to_vec();
            let expected = |words: &[AtomicU64]| -> Vec<u8> {
                words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
            };
            assert_eq!(read(), expected(words), "{round}");
            words[0].store(77, Ordering::Relaxed);
            assert_eq!(read(), expected(words), "{round}: it is the same memory");
        }
        assert_eq!(stack[1].load(Ordering::Relaxed), 2);
    }

    /// Faults of this thread so far.
    fn faults() -> i64 {
        // SAFETY: a structure of integers, which the call fills.
        unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
            usage.ru_minflt
        }
    }

    /// To move 256 pages, and to write to each afterwards, takes no fault a page. They are no pages
    /// of the heap, which other tests would get later.
    #[test]
    fn pages_move_as_a_range() {
        let memory = OwnMemory::default();
        let region = vm_memory::MmapRegion::<()>::new(257 << 12).unwrap();
        let pages = region.as_ptr() as usize;
        let byte = |page: usize| -> &AtomicU8 {
            // SAFETY: in the region, which only this test uses.
            unsafe { AtomicU8::from_ptr((pages + (page << 12)) as *mut u8) }
        };
        (0..257).for_each(|page| byte(page).store(page as u8, Ordering::Relaxed));
        let share = |page: usize, count: usize| {
            // SAFETY: memory of this test's, accessed by atomics.
            unsafe { memory.share(pages + (page << 12), count << 12, false).unwrap() }
        };
        // Initialisation at the first call.
        share(0, 1);
        let before = faults();
        share(1, 256);
        (1..257).step_by(2).for_each(|page| byte(page).store(7, Ordering::Relaxed));
        let faults = faults() - before;
        assert!(faults < 64, "{faults} faults for 256 pages");
        let all_right = |page: usize| {
            byte(page).load(Ordering::Relaxed) == (if page % 2 == 1 { 7 } else { page as u8 })
        };
        assert!((0..257).all(all_right));
    }

    #[test]
    fn large_pieces_begin_huge_pages() {
        let mut extent = Extent::default();
        let mut place = |len: u64| (extent.place(len), extent.size);
        assert_eq!(place(0x1000), (0, 0x1000));
        assert_eq!(place(LARGE), (HUGE, 2 * HUGE));
        // They use the rest of a huge page.
        assert_eq!(place(0x3000), (HUGE + LARGE, 2 * HUGE));
        assert_eq!(place(3 * HUGE - LARGE - 0x3000), (HUGE + LARGE + 0x3000, 4 * HUGE));
        assert_eq!(place(3 * HUGE), (4 * HUGE, 7 * HUGE));
        assert_eq!(place(0x1000), (7 * HUGE, 7 * HUGE + 0x1000));
    }

    #[test]
    fn many_large_pieces_take_little_more_than_their_bytes() {
        let mut extent = Extent::default();
        for _ in 0..1000 {
            extent.place(LARGE + 0x1000);
        }
        assert!(extent.size < 1000 * (LARGE + 0x1000) + HUGE, "{extent:?}");
    }

    #[test]
    fn memory_of_other_files_is_refused() {
        let memory = OwnMemory::default();
        // SAFETY: refused before anything is accessed.
        let share = |addr, len, ro| unsafe { memory.share(addr, len, ro) };
        assert!(matches!(share(0x1000, 10, false), Err(ShareError::Inaccessible)));
        assert!(matches!(share(usize::MAX, 10, false), Err(ShareError::Inaccessible)));
        assert!(matches!(share(0x1000, 0, false), Err(ShareError::Inaccessible)));
        static TEXT: &str = "this cannot be written";
        let at = TEXT.as_ptr() as usize;
        assert!(matches!(share(at, 5, false), Err(ShareError::Inaccessible)));
        share(at, 5, true).unwrap();
        assert_eq!(TEXT, "this cannot be written");
        let other = memory_file("other", page_size(), Resize::Grow).unwrap();
        let flags = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping.
        let mapped = unsafe { mmap(null_mut(), page_size() as usize, flags.0, flags.1, &other, 0) };
        assert!(matches!(share(mapped.unwrap() as usize, 5, false), Err(ShareError::Foreign)));
    }

    #[test]
    fn threads_lose_no_writes() {
        const WORDS: usize = 64 << 10;
        let words: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        let over = AtomicBool::new(false);
        let memory = OwnMemory::default();
        thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|writer| {
                    let (words, over) = (&words, &over);
                    scope.spawn(move || {
                        let mut count = 0u64;
                        while !over.load(Ordering::Relaxed) {
                            let word = (count as usize * 3 + writer) % WORDS;
                            words[word].fetch_add(1, Ordering::Relaxed);
                            count += 1;
                        }
                        count
                    })
                })
                .collect();
            let shared = words.chunks(WORDS / 16).try_for_each(|part| {
                // SAFETY: memory of this test's, accessed by atomics.
                unsafe { memory.share(part.as_ptr() as usize, part.len() * 8, false) }.map(drop)
            });
            // Writers must end before anything fails, as the scope waits for them.
            over.store(true, Ordering::Relaxed);
            shared.unwrap();
            let counts: u64 = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
            let found: u64 = words.iter().map(|word| word.load(Ordering::Relaxed)).sum();
            assert_eq!(found, counts);
        });
    }

    #[test]
    fn pages_that_were_unmapped_are_given_back() {
        let memory = OwnMemory::default();
        let blocks = || fstat(&lock(&memory.0).as_ref().unwrap().file).unwrap().st_blocks * 512;
        for _ in 0..6 {
            let large = vec![1u8; 32 << 20];
            // SAFETY: memory of this test's, which is not read.
            unsafe { memory.share(large.as_ptr() as usize, large.len(), true).unwrap() };
        }
        assert!(blocks() < 128 << 20, "{}", blocks());
    }
}
