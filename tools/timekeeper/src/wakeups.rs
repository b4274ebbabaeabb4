//! Wake-ups of QEMU's threads.
//!
//! Whenever a processor halts or a timer is due, QEMU wakes all of its event loops, as each may
//! have timers of the guest's clock. Those of its monitor and of a vfio-user device have none, and
//! on a host with few processors they only take turns away from the guests. The plugin puts another
//! function before QEMU's, which leaves out loops without timers.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use crate::clock::CLOCK_VIRTUAL;
use crate::symbols::{function, symbol};

/// The words of a `QEMUTimerList` of QEMU 11.1, in which its callback is looked for.
const WORDS: usize = 13;
/// The most event loops that are looked at: QEMU has five, and one for each thread of devices.
const LOOPS: usize = 64;

/// The callback of a list of timers.
type Notify = unsafe extern "C" fn(*mut c_void, c_int);
type HasTimers = unsafe extern "C" fn(*const c_void) -> bool;
type Idle = unsafe extern "C" fn() -> bool;
type MainLoop = unsafe extern "C" fn() -> *mut c_void;

/// An event loop and its list of timers of the guest's clock.
struct Loop {
    context: usize,
    list: usize,
    is_main: bool,
    notify: Notify,
}

struct Loops {
    all: Vec<Loop>,
    has_timers: HasTimers,
    idle: Idle,
    in_processor: Idle,
}

static LOOPS_OF_QEMU: OnceLock<Loops> = OnceLock::new();

/// Leaves out wake-ups of event loops that exist now and have no timers of the guest's clock. If
/// their lists are not as QEMU 11.1 has them, all wake up as before.
///
/// # Safety
///
/// The caller holds QEMU's big lock, which protects the lists.
pub(crate) unsafe fn leave_out() {
    // SAFETY: QEMU's functions, with the signatures of version 11.1; the one of the main loop only
    // returns a pointer.
    let (loops, own, main) = unsafe {
        let own: Notify = function(c"qemu_timer_notify_cb");
        let main: MainLoop = function(c"qemu_get_aio_context");
        let loops = Loops {
            all: Vec::new(),
            has_timers: function(c"timerlist_has_timers"),
            idle: function(c"all_cpu_threads_idle"),
            in_processor: function(c"qemu_in_vcpu_thread"),
        };
        (loops, own, main() as usize)
    };
    let group = symbol(c"main_loop_tlg").cast::<*mut *mut c_void>();
    // SAFETY: the group has a list for each clock, which has more words than are looked at, up to
    // the callback. The lists of a clock are linked, and the caller promises that no thread
    // changes them.
    let found = unsafe { find(*group.add(CLOCK_VIRTUAL as usize), own as *mut c_void) };
    let Some((callback, lists)) = found else { return };
    let mut all = Vec::new();
    for list in lists {
        // SAFETY: as above: after the callback comes its argument. The callback is a function of
        // this type, and a word that QEMU's threads read at once.
        unsafe {
            let place = list.add(callback);
            let (notify, context) = (*place, *place.add(1) as usize);
            if notify == own as *mut c_void || notify == notify_if_needed as *mut c_void {
                continue;
            }
            let notify = std::mem::transmute::<*mut c_void, Notify>(notify);
            all.push(Loop { context, list: list as usize, is_main: context == main, notify });
        }
    }
    let loops = LOOPS_OF_QEMU.get_or_init(|| Loops { all, ..loops });
    for one in &loops.all {
        let place = (one.list as *mut *mut c_void).wrapping_add(callback);
        // SAFETY: as above.
        unsafe { place.write_volatile(notify_if_needed as *mut c_void) };
    }
}

/// Finds at which word of a list of timers its callback is, and all lists of its clock.
///
/// # Safety
///
/// The list is one of QEMU's, with the callback `own`, and no thread changes its clock's lists.
unsafe fn find(list: *mut *mut c_void, own: *mut c_void) -> Option<(usize, Vec<*mut *mut c_void>)> {
    // SAFETY: promised by the caller. The link to the next list is two words before the callback,
    // and the first word is the clock, whose own first word is the first list.
    unsafe {
        let callback = (2..WORDS).find(|word| *list.add(*word) == own)?;
        let clock = (*list).cast::<*mut *mut c_void>();
        let mut lists = Vec::new();
        let mut next = *clock;
        while !next.is_null() && lists.len() < LOOPS {
            if *next != *list {
                return None;
            }
            lists.push(next);
            next = (*next.add(callback - 2)).cast();
        }
        lists.contains(&list).then_some((callback, lists))
    }
}

/// Wakes an event loop that has timers. The main loop also runs those of a guest whose processor
/// has halted; while that runs, the processor's own thread does.
unsafe extern "C" fn notify_if_needed(context: *mut c_void, clock: c_int) {
    let Some(loops) = LOOPS_OF_QEMU.get() else { return };
    let Some(one) = loops.all.iter().find(|one| one.context == context as usize) else { return };
    // SAFETY: QEMU's functions; the caller is one that may call them, and the list belongs
    // to the context, which exists.
    unsafe {
        let runs = (loops.in_processor)() && !(loops.idle)();
        if (loops.has_timers)(one.list as *const c_void) || (one.is_main && !runs) {
            (one.notify)(context, clock);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::ptr::null_mut;

    use super::find;

    /// Words as of two lists of a clock: the clock, two others, the links, and the callback.
    fn lists(own: *mut c_void) -> (Vec<*mut c_void>, Vec<*mut c_void>, Box<*mut c_void>) {
        let list = |callback| vec![null_mut(), 1 as _, 2 as _, null_mut(), null_mut(), callback];
        let (mut first, mut last) = (list(8 as _), list(own));
        first.resize(16, null_mut());
        last.resize(16, null_mut());
        let mut clock = Box::new(first.as_mut_ptr().cast::<c_void>());
        let place = (&raw mut *clock).cast::<c_void>();
        (first[0], last[0]) = (place, place);
        first[3] = last.as_mut_ptr().cast();
        (first, last, clock)
    }

    #[test]
    fn lists_of_a_clock_are_found_by_a_callback() {
        let own = 64 as *mut c_void;
        let (mut first, mut last, _clock) = lists(own);
        let (first, last) = (first.as_mut_ptr(), last.as_mut_ptr());
        // SAFETY: the words are like those of QEMU's lists.
        unsafe {
            assert_eq!(find(last, own), Some((5, vec![first, last])));
            assert_eq!(find(last, 72 as _), None);
            // Of another clock.
            *first = null_mut();
            assert_eq!(find(last, own), None);
        }
    }
}
