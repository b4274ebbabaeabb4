//! Stopping all other threads of the process for a moment.
//!
//! Each thread gets a signal, and waits in its handler without writing to memory, not even to its
//! stack, because the stack may be moved during that time.
#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, RawDir, SeekFrom, open, seek};

/// The time limit for a thread to stop.
const PATIENCE: Duration = Duration::from_secs(20);

/// Threads that have stopped.
static STOPPED: AtomicU32 = AtomicU32::new(0);
/// Threads stop while this is odd, and continue when it has changed since they stopped.
static ROUND: AtomicU32 = AtomicU32::new(0);
/// One at a time.
static STOPPING: Mutex<()> = Mutex::new(());

/// The reason why threads cannot be stopped.
pub(super) enum StopError {
    /// A thread does not stop, because it blocks this signal.
    Thread(i32),
    /// The system does not do it.
    System(io::Error),
}

impl From<io::Error> for StopError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// Other threads stand still as long as this is there.
pub(super) struct Stopped {
    _guard: MutexGuard<'static, ()>,
    /// The threads. Freed when they run again: one may have been stopped with the allocator's lock.
    told: Vec<i32>,
}

impl Drop for Stopped {
    fn drop(&mut self) {
        ROUND.fetch_add(1, Ordering::SeqCst);
    }
}

/// Counts the thread as stopped and waits for the round to end.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn handler(_: libc::c_int) {
    naked_asm!(
        "mov r8d, dword ptr [rip + {round}]",
        "test r8d, 1", // a signal that comes late
        "jz 3f",
        "lock inc dword ptr [rip + {stopped}]",
        "2:",
        "cmp r8d, dword ptr [rip + {round}]",
        "jne 3f",
        "mov eax, 24", // sched_yield
        "syscall",
        "jmp 2b",
        "3:",
        "ret",
        round = sym ROUND,
        stopped = sym STOPPED,
    )
}

/// Counts the thread as stopped and waits for the round to end.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
extern "C" fn handler(_: libc::c_int) {
    naked_asm!(
        "adrp x9, {round}",
        "add x9, x9, :lo12:{round}",
        "adrp x10, {stopped}",
        "add x10, x10, :lo12:{stopped}",
        "ldar w11, [x9]",
        "tbz w11, #0, 3f", // a signal that comes late
        "4:",
        "ldaxr w12, [x10]",
        "add w12, w12, #1",
        "stlxr w13, w12, [x10]",
        "cbnz w13, 4b",
        "2:",
        "ldar w12, [x9]",
        "cmp w11, w12",
        "b.ne 3f",
        "mov x8, #124", // sched_yield
        "svc #0",
        "b 2b",
        "3:",
        "ret",
        round = sym ROUND,
        stopped = sym STOPPED,
    )
}

/// The highest real-time signal that the program has not given a meaning, with the handler.
fn signal() -> Option<i32> {
    static CHOSEN: OnceLock<Option<i32>> = OnceLock::new();
    *CHOSEN.get_or_init(|| (libc::SIGRTMIN()..=libc::SIGRTMAX()).rev().find(|n| handle(*n)))
}

/// Handles a signal, unless the program does something with it.
fn handle(number: i32) -> bool {
    // SAFETY: a structure of integers and a mask, for which zeroes are values.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes the structure.
    let known = unsafe { libc::sigaction(number, std::ptr::null(), &raw mut action) } == 0;
    if !known || action.sa_sigaction != libc::SIG_DFL {
        return false;
    }
    let handler: extern "C" fn(libc::c_int) = handler;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the calls fill the mask and read the structure. The handler keeps to what a signal
    // handler may do.
    unsafe {
        libc::sigfillset(&raw mut action.sa_mask);
        libc::sigaction(number, &raw const action, std::ptr::null_mut()) == 0
    }
}

/// Threads that are stopped at a time at most.
const MAX_THREADS: usize = 4096;

/// The process's threads, read without allocating: a stopped thread may hold the allocator's lock.
struct Threads(OwnedFd);

impl Threads {
    fn open() -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(open(c"/proc/self/task", flags, Mode::empty())?))
    }

    /// Calls `each` with each.
    fn each(&self, mut each: impl FnMut(i32)) -> io::Result<()> {
        seek(&self.0, SeekFrom::Start(0))?;
        let mut room = [MaybeUninit::uninit(); 4096];
        let mut entries = RawDir::new(&self.0, &mut room);
        while let Some(entry) = entries.next() {
            let name = entry?.file_name().to_str().ok().and_then(|name| name.parse().ok());
            name.into_iter().for_each(&mut each);
        }
        Ok(())
    }
}

/// Stops all threads except the caller's.
///
/// Until the result is dropped the caller must not wait for any of them, so it must not allocate.
///
/// # Errors
///
/// If one does not stop.
pub(super) fn others() -> Result<Stopped, StopError> {
    let guard = STOPPING.lock().unwrap_or_else(PoisonError::into_inner);
    let number = signal().ok_or_else(|| io::Error::other("no real-time signal is unused"))?;
    let threads = Threads::open()?;
    let told = Vec::with_capacity(MAX_THREADS);
    // SAFETY: no requirements.
    let process = unsafe { libc::getpid() };
    // Not that of the C library, which has it only since glibc 2.30.
    let own = rustix::thread::gettid().as_raw_nonzero().get();
    STOPPED.store(0, Ordering::SeqCst);
    ROUND.fetch_add(1, Ordering::SeqCst);
    let mut stopped = Stopped { _guard: guard, told };
    let told = &mut stopped.told;
    let start = Instant::now();
    loop {
        // A thread that runs can make others: when all have stopped there are no more new ones.
        let (mut is_new, mut alive) = (false, 0);
        threads.each(|id| {
            if id == own {
                return;
            }
            alive += 1;
            if !told.contains(&id) && told.len() < MAX_THREADS {
                is_new = true;
                told.push(id);
                // SAFETY: no requirements. A thread that has ended needs no signal.
                unsafe { libc::syscall(libc::SYS_tgkill, process, id, number) };
            }
        })?;
        // Threads that have ended since are not there any more.
        if !is_new && STOPPED.load(Ordering::SeqCst) >= alive {
            return Ok(stopped);
        }
        if start.elapsed() > PATIENCE {
            return Err(StopError::Thread(number));
        }
        thread::yield_now();
    }
}
