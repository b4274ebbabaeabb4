//! The handling of a system call that is not allowed: one line, and the end.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::sync::OnceLock;

use crate::filter::call_name;
use crate::policy::{EXIT_VIOLATION, Role};

/// `SYS_SECCOMP` of asm-generic/siginfo.h: SIGSYS comes from a filter.
const SYS_SECCOMP: i32 = 1;
/// The member `si_syscall` of `siginfo_t` in units of `int`: behind three ints, padding and the
/// address of the call (asm-generic/siginfo.h, x86-64).
const SI_SYSCALL: usize = 6;

/// Longest line; longer hints are cut.
const LINE: usize = 400;

thread_local! {
    static ROLE: Cell<&'static str> = const { Cell::new("none") };
}

static HINT: OnceLock<String> = OnceLock::new();
static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();

/// Makes violations of the calling thread be reported under this role.
pub(crate) fn report_as(role: Role, hint: &str) -> io::Result<()> {
    HINT.get_or_init(|| hint.chars().filter(|c| !c.is_control()).take(200).collect());
    ROLE.set(role.name());
    INSTALLED
        .get_or_init(|| install().map_err(|error| error.raw_os_error().unwrap_or(0)))
        .map_err(io::Error::from_raw_os_error)
}

fn install() -> io::Result<()> {
    let handler: extern "C" fn(libc::c_int, *const libc::siginfo_t, *mut libc::c_void) = violated;
    // SAFETY: all zeroes is a valid sigaction: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the signature that SA_SIGINFO asks for and does only what a
    // signal handler may do.
    let result = unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Runs in the middle of anything: no allocation, no locks, nothing but write and exit.
extern "C" fn violated(_: libc::c_int, info: *const libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo_t of 128 bytes.
    let code = unsafe { (*info).si_code };
    // SAFETY: as above; the place is inside, and aligned.
    let call = unsafe { *info.cast::<i32>().add(SI_SYSCALL) };
    let mut line = Line { bytes: [0; LINE], len: 0 };
    line.text("tofu: sandbox: a thread of role ");
    line.text(ROLE.get());
    if code == SYS_SECCOMP {
        line.text(" made system call ");
        line.number(call.unsigned_abs());
        line.text(" (");
        line.text(call_name(i64::from(call)).unwrap_or("unnamed"));
        line.text("), which that role may not; the process ends");
    } else {
        line.text(" was sent SIGSYS; the process ends");
    }
    if let Some(hint) = HINT.get().filter(|hint| !hint.is_empty()) {
        line.text(". ");
        line.text(hint);
    }
    line.text("\n");
    // SAFETY: the buffer has this length. The reader of standard error may be gone.
    unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.len) };
    // SAFETY: ends the process, without running anything.
    unsafe { libc::_exit(EXIT_VIOLATION) };
}

/// A line of bounded length.
struct Line {
    bytes: [u8; LINE],
    len: usize,
}

impl Line {
    fn text(&mut self, text: &str) {
        for &byte in text.as_bytes() {
            // The last place is the line end's.
            let room = LINE - usize::from(byte != b'\n');
            if self.len < room {
                self.bytes[self.len] = byte;
                self.len += 1;
            }
        }
    }

    fn number(&mut self, mut number: u32) {
        let mut digits = [0; 10];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.text(std::str::from_utf8(&digits[at..]).unwrap_or_default());
    }
}
