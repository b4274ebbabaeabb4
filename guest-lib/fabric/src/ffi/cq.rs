//! Completion queues.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::abi::{self, CqAttr, CqEntry, CqErrEntry, Fid, Ops, OpsCq, class};
use super::object::{give, guard, lock, of, take};
use super::progress::Bound;
use super::wait::WaitSet;

/// A completion.
#[derive(Clone, Copy)]
pub(super) struct Item {
    pub(super) entry: CqEntry,
    pub(super) source: u64,
    /// The error number, if it failed, and the bytes that did not fit.
    pub(super) error: Option<(c_int, usize)>,
}

/// Completions, and the endpoints that they are of.
#[derive(Default)]
pub(super) struct Queue {
    items: Mutex<VecDeque<Item>>,
    pub(super) endpoints: Bound,
    signaled: AtomicBool,
    /// For programs that do not poll.
    pub(super) wait: OnceLock<WaitSet>,
}

impl Queue {
    pub(super) fn push(&self, item: Item) {
        lock(&self.items).push_back(item);
        if let Some(wait) = self.wait.get() {
            wait.notify();
        }
    }

    /// Returns whether a program may sleep until the descriptor is readable.
    pub(super) fn is_quiet(&self) -> bool {
        if let Some(wait) = self.wait.get() {
            wait.clear();
        }
        self.progress();
        lock(&self.items).is_empty() && self.endpoints.is_quiet()
    }

    /// Sleeps until there may be something, if it is not there already.
    fn sleep(&self, timeout: Duration) {
        match self.wait.get() {
            Some(wait) if self.is_quiet() => wait.sleep(timeout.min(LONGEST_SLEEP)),
            // Polls that find nothing for long rest by themselves.
            _ => {}
        }
    }

    /// Makes progress if nothing is there.
    fn progress(&self) {
        if lock(&self.items).is_empty() {
            self.endpoints.progress();
        }
    }

    /// Takes completions up to the first error or receive, and gives each to `to`.
    ///
    /// The batch ends at a receive because of the order in which mpich works. It handles all
    /// completions of one call before it polls its own shared memory, through which a process's
    /// operations on its own window pass. mpi4py's locks set a word of their window in this way,
    /// and then announce themselves to a peer, without a flush in between. The peer's answer and
    /// its change of the same word may arrive together, and would be applied before the process's
    /// own change.
    fn take(&self, count: usize, mut to: impl FnMut(usize, &Item)) -> isize {
        self.progress();
        let mut items = lock(&self.items);
        let mut taken = 0;
        while taken < count
            && let Some(item) = items.pop_front_if(|item| item.error.is_none())
        {
            to(taken, &item);
            taken += 1;
            if item.entry.flags & abi::RECV != 0 {
                break;
            }
        }
        match taken {
            0 if !items.is_empty() => abi::ERROR_THERE,
            0 => abi::AGAIN,
            taken => taken as isize,
        }
    }
}

#[repr(C)]
pub(super) struct Cq {
    fid: Fid,
    ops: *const OpsCq,
    pub(super) queue: Arc<Queue>,
    /// Bytes of an entry of the format.
    size: usize,
}

/// A signal may come between the check for it and the sleep, so no sleep is longer.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

static CQ: Ops = Ops { control, ..Ops::closing(close) };
static CQ_OPS: OpsCq =
    OpsCq { size: size_of::<OpsCq>(), read, readfrom, readerr, sread, sreadfrom, signal, strerror };

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    guard(abi::OTHER, || {
        // SAFETY: the table is for completion queues.
        drop(unsafe { take::<Cq>(fid) });
        0
    })
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: guaranteed by the caller.
    guard(abi::OTHER, || unsafe {
        WaitSet::control(of::<Cq>(fid).queue.wait.get(), command, argument)
    })
}

pub(super) unsafe extern "C" fn open(
    _domain: *mut Fid,
    attr: *mut CqAttr,
    cq: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    guard(abi::OTHER, || {
        // SAFETY: guaranteed by the caller.
        let attr = unsafe { attr.as_ref() };
        let queue = Queue::default();
        match attr.map_or(abi::WAIT_NONE, |attr| attr.wait_obj) {
            abi::WAIT_NONE | abi::WAIT_UNSPEC | abi::WAIT_YIELD => {}
            abi::WAIT_FD => match WaitSet::new() {
                Some(wait) => drop(queue.wait.set(wait)),
                None => return abi::NO_MEMORY,
            },
            _ => return abi::NO_FUNCTION,
        }
        let words = match attr.map_or(0, |attr| attr.format) {
            0 | 1 => 1,
            2 => 3,
            3 => 5,
            4 => 6,
            _ => return abi::INVALID,
        };
        let fid = Fid { class: class::CQ, context, ops: &CQ };
        let size = words * size_of::<usize>();
        // SAFETY: guaranteed by the caller.
        unsafe { give(Cq { fid, ops: &CQ_OPS, queue: Arc::new(queue), size }, cq) }
    })
}

/// Reads completions.
///
/// # Safety
///
/// `to` has room for `count` entries of the queue's format, and `sources`, unless null, for as many
/// addresses.
unsafe fn read_into(cq: &Cq, to: *mut u8, count: usize, sources: *mut u64) -> isize {
    cq.queue.take(count, |at, item| {
        let entry = (&raw const item.entry).cast::<u8>();
        // SAFETY: guaranteed by the caller; each format is the beginning of the longest.
        unsafe {
            entry.copy_to_nonoverlapping(to.add(at * cq.size), cq.size);
            if !sources.is_null() {
                sources.add(at).write(item.source);
            }
        }
    })
}

unsafe extern "C" fn read(cq: *mut Fid, to: *mut u8, count: usize) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe { readfrom(cq, to, count, ptr::null_mut()) }
}

unsafe extern "C" fn readfrom(cq: *mut Fid, to: *mut u8, count: usize, sources: *mut u64) -> isize {
    // SAFETY: guaranteed by the caller.
    guard(abi::OTHER as isize, || unsafe { read_into(of::<Cq>(cq), to, count, sources) })
}

unsafe extern "C" fn readerr(cq: *mut Fid, to: *mut CqErrEntry, _flags: u64) -> isize {
    guard(abi::OTHER as isize, || {
        // SAFETY: guaranteed by the caller.
        let queue = &unsafe { of::<Cq>(cq) }.queue;
        queue.progress();
        let Some(item) = lock(&queue.items).pop_front_if(|item| item.error.is_some()) else {
            return abi::AGAIN;
        };
        let (err, olen) = item.error.unwrap_or((0, 0));
        // SAFETY: the caller has room for an entry. Its buffer for data stays as it is.
        unsafe {
            (&raw mut (*to).entry).write(item.entry);
            (&raw mut (*to).olen).write(olen);
            (&raw mut (*to).err).write(err);
            (&raw mut (*to).prov_errno).write(err);
            (&raw mut (*to).err_data_size).write(0);
        }
        1
    })
}

unsafe extern "C" fn sread(
    cq: *mut Fid,
    to: *mut u8,
    count: usize,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe { sreadfrom(cq, to, count, ptr::null_mut(), cond, timeout) }
}

unsafe extern "C" fn sreadfrom(
    cq: *mut Fid,
    to: *mut u8,
    count: usize,
    sources: *mut u64,
    _cond: *const c_void,
    timeout: c_int,
) -> isize {
    guard(abi::OTHER as isize, || {
        let start = Instant::now();
        let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
        // SAFETY: guaranteed by the caller.
        let cq = unsafe { of::<Cq>(cq) };
        loop {
            // SAFETY: guaranteed by the caller.
            let read = unsafe { read_into(cq, to, count, sources) };
            let is_late = timeout.is_some_and(|timeout| start.elapsed() >= timeout);
            if read != abi::AGAIN || is_late || cq.queue.signaled.swap(false, SeqCst) {
                return read;
            }
            let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            cq.queue.sleep(left.unwrap_or(LONGEST_SLEEP));
        }
    })
}

unsafe extern "C" fn signal(cq: *mut Fid) -> c_int {
    // SAFETY: guaranteed by the caller.
    let queue = &unsafe { of::<Cq>(cq) }.queue;
    queue.signaled.store(true, SeqCst);
    if let Some(wait) = queue.wait.get() {
        wait.notify();
    }
    0
}

unsafe extern "C" fn strerror(
    _cq: *mut Fid,
    error: c_int,
    _data: *const c_void,
    to: *mut c_char,
    size: usize,
) -> *const c_char {
    let text = match error {
        abi::ETRUNC => c"the message is longer than the memory for it",
        abi::EHOSTUNREACH => c"the peer has ended or cannot be reached",
        abi::ECANCELED => c"it was canceled",
        abi::ENOMSG => c"there is no such message",
        abi::EACCES => c"the peer has no such region, or does not permit this",
        abi::ENOMEM => c"no room for another peer, or no memory can be registered",
        _ => c"unknown error",
    };
    if !to.is_null() && size > 0 {
        // SAFETY: the caller's buffer has this size.
        unsafe { libc::snprintf(to, size, c"%s".as_ptr(), text.as_ptr()) };
    }
    text.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_ends_with_first_receive() {
        let queue = Queue::default();
        let item = |flags, context| {
            let entry = CqEntry { context, flags, ..CqEntry::default() };
            Item { entry, source: 0, error: None }
        };
        let all = [(abi::SEND, 1), (abi::RECV, 2), (abi::RECV, 3), (abi::SEND, 4), (abi::SEND, 5)];
        all.iter().for_each(|&(flags, context)| queue.push(item(flags, context)));
        let read = |count| {
            let mut contexts = Vec::new();
            queue.take(count, |_, item| contexts.push(item.entry.context));
            contexts
        };
        assert_eq!([read(8), read(8), read(8)], [vec![1, 2], vec![3], vec![4, 5]]);
    }
}
