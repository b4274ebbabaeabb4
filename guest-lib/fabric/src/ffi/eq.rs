//! Event queues. The provider has no events, so that they have those that programs write.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::abi::{self, EqAttr, Fid, Ops, OpsEq, class};
use super::object::{give, guard, lock, of, take};
use super::wait::WaitSet;

/// The most events that wait in a queue of which the program wants less, and the most in any, and
/// the longest event in bytes.
const USUAL: usize = 1 << 10;
const MOST: usize = 1 << 20;
const LONGEST: usize = 1 << 12;

/// Events, each with its kind.
struct Queue {
    items: Mutex<VecDeque<(u32, Vec<u8>)>>,
    most: usize,
    /// For programs that sleep until there is one.
    wait: Option<WaitSet>,
}

impl Queue {
    /// Adds an event. Returns whether there is room for it.
    fn push(&self, kind: u32, event: &[u8]) -> bool {
        let mut items = lock(&self.items);
        if items.len() >= self.most || event.len() > LONGEST {
            return false;
        }
        items.push_back((kind, event.to_vec()));
        if let Some(wait) = &self.wait {
            wait.notify();
        }
        true
    }

    /// Gives the first event to `to`, and removes it unless it is only looked at. Returns the
    /// result of `to`; `None` if there is none.
    fn first<R>(&self, keep: bool, to: impl FnOnce(u32, &[u8]) -> Result<R, R>) -> Option<R> {
        let mut items = lock(&self.items);
        let (kind, event) = items.front()?;
        let result = to(*kind, event);
        if result.is_ok() && !keep {
            items.pop_front();
        }
        if let Some(wait) = self.wait.as_ref().filter(|_| items.is_empty()) {
            wait.clear();
        }
        Some(result.unwrap_or_else(|failed| failed))
    }
}

#[repr(C)]
pub(super) struct EventQueue {
    fid: Fid,
    ops: *const OpsEq,
    queue: Queue,
    writes: bool,
}

impl EventQueue {
    /// Returns whether a program may sleep until the descriptor is readable.
    pub(super) fn is_quiet(&self) -> bool {
        lock(&self.queue.items).is_empty()
    }
}

static EQ: Ops = Ops { control, ..Ops::closing(close) };
static EQ_OPS: OpsEq = OpsEq { size: size_of::<OpsEq>(), read, readerr, write, sread, strerror };

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    guard(abi::OTHER, || {
        // SAFETY: the table is for event queues.
        drop(unsafe { take::<EventQueue>(fid) });
        0
    })
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: guaranteed by the caller.
    guard(abi::OTHER, || unsafe {
        WaitSet::control(of::<EventQueue>(fid).queue.wait.as_ref(), command, argument)
    })
}

pub(super) unsafe extern "C" fn open(
    _fabric: *mut Fid,
    attr: *mut EqAttr,
    eq: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    guard(abi::OTHER, || {
        // SAFETY: guaranteed by the caller.
        let attr = unsafe { attr.as_ref() };
        let [size, flags] = attr.map_or([0, 0], |attr| [attr.size as u64, attr.flags]);
        let wait = match attr.map_or(abi::WAIT_UNSPEC, |attr| attr.wait_obj) {
            abi::WAIT_NONE => None,
            abi::WAIT_UNSPEC | abi::WAIT_FD | abi::WAIT_YIELD => match WaitSet::new() {
                None => return abi::NO_MEMORY,
                new => new,
            },
            _ => return abi::NO_FUNCTION,
        };
        let most = usize::try_from(size).map_or(MOST, |size| size.clamp(USUAL, MOST));
        let queue = Queue { items: Mutex::default(), most, wait };
        let fid = Fid { class: class::EQ, context, ops: &EQ };
        let writes = flags & abi::WRITE != 0;
        // SAFETY: guaranteed by the caller.
        unsafe { give(EventQueue { fid, ops: &EQ_OPS, queue, writes }, eq) }
    })
}

unsafe extern "C" fn read(
    eq: *mut Fid,
    kind: *mut u32,
    to: *mut u8,
    room: usize,
    flags: u64,
) -> isize {
    guard(abi::OTHER as isize, || {
        // SAFETY: guaranteed by the caller.
        let queue = &unsafe { of::<EventQueue>(eq) }.queue;
        let found = queue.first(flags & abi::PEEK != 0, |of_kind, event| {
            if event.len() > room {
                return Err(abi::TOO_SMALL);
            }
            // SAFETY: the caller has room for the kind, and for so many bytes.
            unsafe {
                kind.write(of_kind);
                event.as_ptr().copy_to_nonoverlapping(to, event.len());
            }
            Ok(event.len() as isize)
        });
        found.unwrap_or(abi::AGAIN)
    })
}

/// There are no errors.
unsafe extern "C" fn readerr(_: *mut Fid, _: *mut c_void, _: u64) -> isize {
    abi::AGAIN
}

unsafe extern "C" fn write(
    eq: *mut Fid,
    kind: u32,
    event: *const u8,
    length: usize,
    _flags: u64,
) -> isize {
    guard(abi::OTHER as isize, || {
        // SAFETY: guaranteed by the caller.
        let eq = unsafe { of::<EventQueue>(eq) };
        if !eq.writes || length > LONGEST {
            return abi::INVALID as isize;
        }
        let event = match length {
            0 => &[],
            // SAFETY: the caller has so many bytes there.
            _ => unsafe { std::slice::from_raw_parts(event, length) },
        };
        if eq.queue.push(kind, event) { length as isize } else { abi::AGAIN }
    })
}

unsafe extern "C" fn sread(
    eq: *mut Fid,
    kind: *mut u32,
    to: *mut u8,
    room: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    guard(abi::OTHER as isize, || {
        // SAFETY: guaranteed by the caller.
        let Some(wait) = &unsafe { of::<EventQueue>(eq) }.queue.wait else {
            return abi::NO_FUNCTION as isize;
        };
        let (start, limit) = (Instant::now(), u64::try_from(timeout).ok());
        loop {
            // SAFETY: guaranteed by the caller.
            let found = unsafe { read(eq, kind, to, room, flags) };
            let limit = limit.map(Duration::from_millis);
            let left = limit.map_or(Duration::MAX, |limit| limit.saturating_sub(start.elapsed()));
            if found != abi::AGAIN || left.is_zero() {
                return found;
            }
            wait.sleep(left);
        }
    })
}

unsafe extern "C" fn strerror(
    _: *mut Fid,
    _: c_int,
    _: *const c_void,
    _: *mut c_char,
    _: usize,
) -> *const c_char {
    c"no error".as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_in_their_order() {
        let mut eq = std::ptr::null_mut();
        let mut attr = EqAttr { size: 0, flags: abi::WRITE, wait_obj: abi::WAIT_FD, ..EMPTY };
        // SAFETY: the pointers are good, and the queue is closed once, at the end.
        unsafe {
            assert_eq!(open(std::ptr::null_mut(), &mut attr, &mut eq, std::ptr::null_mut()), 0);
            let (mut kind, mut event) = (0, [0; 4]);
            let mut read = |room, timeout, flags| {
                let code = sread(eq, &mut kind, event.as_mut_ptr(), room, timeout, flags);
                (code, kind, event)
            };
            assert_eq!(read(4, 20, 0).0, abi::AGAIN);
            for number in 0..USUAL as u32 {
                assert_eq!(write(eq, number, [1, 2, 3].as_ptr(), 3, 0), 3);
            }
            assert_eq!(write(eq, 7, [0].as_ptr(), 1, 0), abi::AGAIN, "it is full");
            assert_eq!(write(eq, 7, [0].as_ptr(), LONGEST + 1, 0), abi::INVALID as isize);
            assert_eq!(read(2, -1, 0).0, abi::TOO_SMALL);
            for (flags, number) in [(abi::PEEK, 0), (0, 0), (abi::PEEK, 1)] {
                assert_eq!(read(4, -1, flags), (3, number, [1, 2, 3, 0]));
            }
            assert!(!of::<EventQueue>(eq).is_quiet());
            assert_eq!(close(eq), 0);
        }
    }

    const EMPTY: EqAttr = EqAttr {
        size: 0,
        flags: 0,
        wait_obj: 0,
        signaling_vector: 0,
        wait_set: std::ptr::null_mut(),
    };
}
