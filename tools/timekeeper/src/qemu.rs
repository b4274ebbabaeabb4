//! QEMU's side: its plugin API, and the functions that its executable exports for modules.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tofu_pace::PORTS;
use tofu_pace::message::Go;
use tofu_pace::pages::Next;

use crate::accesses::{self, RegionRead, RegionWrite};
use crate::blocks::{self, Board, Hooks};
use crate::callbacks::{OnChange, VcpuInit};
use crate::clock::{CLOCK_VIRTUAL, Clock, Timer};
use crate::hpet::{self, Resolve};
use crate::pace::Pace;
use crate::stacks;
use crate::symbols::{end, function};
use crate::template;
use crate::wakeups;

/// Version of the plugin API that this was tried with: that of QEMU 11.1.
#[unsafe(no_mangle)]
pub(crate) static qemu_plugin_version: c_int = 7;

/// Timers of any attributes.
const ALL_TIMERS: c_int = -1;
/// `RUN_STATE_DEBUG` and `RUN_STATE_PAUSED` of QEMU 11.1.
const DEBUG: c_int = 0;
const PAUSED: c_int = 4;
/// The character devices for the input of guests, as `tofu up` names them.
const PORTS_OF_QEMU: [&CStr; PORTS] = [c"console", c"agent"];
/// After what time of the guest more input is tried, in nanoseconds: if it has taken some, and if
/// it took none.
const SOON: u64 = 100_000;
const LATER: u64 = 1_000_000;
/// The longest time between restarts of the count of instructions, in nanoseconds. A timer ensures
/// it.
const RECOUNT: u64 = 100_000;

type ThreadsIdle = unsafe extern "C" fn() -> bool;
type Processor = unsafe extern "C" fn(c_int) -> *mut c_void;
type IsStopped = unsafe extern "C" fn(*mut c_void) -> bool;
type OnPoll = unsafe extern "C" fn(*mut Notifier);
type Deadline = unsafe extern "C" fn(c_int, c_int) -> i64;
type MsixNotify = unsafe extern "C" fn(*mut c_void, u32);
type Stop = unsafe extern "C" fn();
type RequestStop = unsafe extern "C" fn(c_int);
type StopMachine = unsafe extern "C" fn(c_int) -> c_int;
type MainLoop = unsafe extern "C" fn() -> *mut c_void;
type Schedule = unsafe extern "C" fn(
    *mut c_void,
    unsafe extern "C" fn(*mut c_void),
    *mut c_void,
    *const c_char,
);
type FindPort = unsafe extern "C" fn(*const c_char) -> *mut c_void;
type Room = unsafe extern "C" fn(*mut c_void) -> c_int;
type PutIn = unsafe extern "C" fn(*mut c_void, *const u8, c_int);

/// QEMU's `Notifier`.
#[repr(C)]
struct Notifier {
    notify: unsafe extern "C" fn(*mut Self, *mut c_void),
    /// Its place in QEMU's list.
    node: [usize; 2],
}

/// QEMU's functions, and the state of this plugin.
struct Plugin {
    clock: Clock,
    idle: ThreadsIdle,
    deadline: Deadline,
    msix_notify: MsixNotify,
    resolve: Resolve,
    prepare_stop: Stop,
    request_stop: RequestStop,
    in_processor: ThreadsIdle,
    stop_processor: Stop,
    stop: StopMachine,
    runs: ThreadsIdle,
    processor: Processor,
    is_stopped: IsStopped,
    on_poll: OnPoll,
    main_loop: MainLoop,
    schedule: Schedule,
    on_change: OnChange,
    find_port: FindPort,
    room: Room,
    put_in: PutIn,
    /// The table of accesses.
    operations: usize,
    timer: Timer,
    /// For input.
    input_timer: Timer,
    state: Mutex<State>,
}

struct State {
    pace: Pace,
    /// The count of instructions, once there is a processor.
    board: Option<Board>,
    /// When the timer is due, unless that has passed.
    due: u64,
    /// The device, once it exists.
    device: usize,
    read: Option<RegionRead>,
    write: Option<RegionWrite>,
    /// Input that the guest has not taken, by port.
    input: [VecDeque<u8>; PORTS],
    /// True if the virtual machine is stopped, or is about to be, because time is.
    stands: bool,
    /// True if the virtual machine has been stopped.
    stopped: bool,
    /// True once the virtual machine has run.
    ran: bool,
    /// True if the guest is a clone, whose state QEMU loads before it runs.
    is_clone: bool,
}

impl State {
    fn new(pace: Pace, is_clone: bool) -> Self {
        Self {
            pace,
            board: None,
            due: 0,
            device: 0,
            read: None,
            write: None,
            input: Default::default(),
            stands: false,
            stopped: false,
            ran: false,
            is_clone,
        }
    }
}

static PLUGIN: OnceLock<Plugin> = OnceLock::new();

fn plugin() -> &'static Plugin {
    PLUGIN.get().unwrap_or_else(|| end("called before it was installed"))
}

impl Plugin {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers the interrupts and the input of an answer; returns where the guest must stop.
    fn deliver(&self, state: &mut State, go: io::Result<Go>) -> u64 {
        let go = go.unwrap_or_else(|error| end(&format!("the machine is gone: {error}")));
        for vector in go.vectors {
            if state.device == 0 {
                // SAFETY: QEMU's function; both texts end with a zero, and there are no flags.
                state.device =
                    unsafe { (self.resolve)(c"".as_ptr(), c"vfio-user-pci".as_ptr(), null_mut()) }
                        as usize;
            }
            if state.device != 0 {
                // SAFETY: an object of this type begins with its PCI device. The big lock is held
                // in timers and in accesses to devices, the only callers of this.
                unsafe { (self.msix_notify)(state.device as *mut c_void, vector.into()) };
            }
        }
        let has_input = go.input.iter().any(|input| !input.is_empty());
        for (waits, input) in state.input.iter_mut().zip(go.input) {
            waits.extend(input);
        }
        if has_input {
            self.put_in(state);
        }
        go.until_ns
    }

    /// Passes input to the guest, as far as it takes it. The rest is retried at a time that depends
    /// only on the guest. The big lock is held, as in [`Plugin::deliver`].
    fn put_in(&self, state: &mut State) {
        let mut again = None;
        for (port, name) in PORTS_OF_QEMU.iter().enumerate() {
            let waits = &mut state.input[port];
            if waits.is_empty() {
                continue;
            }
            // SAFETY: QEMU's functions. The name ends with a zero, and the port exists as long as
            // QEMU does. It copies the bytes, of which there are at least that many.
            let taken = unsafe {
                let there = (self.find_port)(name.as_ptr());
                if there.is_null() {
                    end("this QEMU has no such port as the machine has input for");
                }
                let bytes = waits.make_contiguous();
                let mut taken = 0;
                // QEMU takes a page at a time. The guest gets as many as it has room for at once,
                // as each time that it wakes up costs more than a page.
                while let rest @ [_, ..] = &bytes[taken..]
                    && let room @ 1.. = usize::try_from((self.room)(there)).unwrap_or(0)
                {
                    let piece = &rest[..room.min(rest.len())];
                    (self.put_in)(there, piece.as_ptr(), piece.len() as c_int);
                    taken += piece.len();
                }
                taken
            };
            waits.drain(..taken);
            state.pace.take(port, taken);
            if !waits.is_empty() {
                let pause = if taken > 0 { SOON } else { LATER };
                again = Some(again.map_or(pause, |before: u64| before.min(pause)));
            }
        }
        if let Some(pause) = again {
            self.clock.set(&self.input_timer, self.clock.now().saturating_add(pause));
        }
    }

    /// Carries out an answer that a guest got at a time: delivers interrupts, and stops the guest
    /// at the limit. A running guest is stopped by the count of its instructions, because a timer
    /// costs more. The timer is set nevertheless: a processor may halt unnoticed, and the count
    /// must restart.
    fn obey(&self, state: &mut State, go: io::Result<Go>, now: u64) {
        let until = self.deliver(state, go);
        if until <= now {
            return self.stand(state);
        }
        // SAFETY: QEMU's function. The big lock is held, as in `deliver`.
        let idle = unsafe { (self.idle)() };
        match &mut state.board {
            Some(board) if !idle => {
                board.count(now, until);
                // Setting it stops the processor for a while.
                if state.due <= now || state.due < until {
                    self.tick_at(state, until.max(now.saturating_add(RECOUNT)));
                }
            }
            _ => self.stop_at(state, until),
        }
    }

    /// Stops the guest at a time, exactly, whether it runs or sleeps.
    fn stop_at(&self, state: &mut State, ns: u64) {
        if let Some(board) = &mut state.board {
            board.rest();
        }
        self.tick_at(state, ns);
    }

    /// Sets the timer for the next question.
    fn tick_at(&self, state: &mut State, ns: u64) {
        state.due = ns;
        self.clock.set(&self.timer, ns);
    }

    /// Stops the virtual machine before its next instruction, so that its monitor and debugger work
    /// while time stands still.
    fn stand(&self, state: &mut State) {
        state.stands = true;
        if let Some(board) = &mut state.board {
            board.rest();
        }
        // SAFETY: QEMU's functions, as its own devices call them; the big lock is held. In a timer
        // of the main loop, this stops the machine before it releases the lock. In the processor's
        // own thread, the processor does nothing until the main loop has stopped the machine. The
        // main loop must not advance the clock of an idle processor before that.
        unsafe {
            if (self.in_processor)() {
                let what = c"tofu-stop".as_ptr();
                (self.schedule)((self.main_loop)(), stop, null_mut(), what);
                (self.stop_processor)();
            } else {
                (self.prepare_stop)();
                (self.request_stop)(PAUSED);
            }
        }
    }

    /// Begins the guest's time.
    fn begin(&self, state: &mut State) {
        let now = self.clock.now();
        let go = state.pace.begin(now);
        self.obey(state, go, now);
    }

    /// Tells the machine the time before an access, and waits until it has got there. The device of
    /// a clone is accessed before its time begins, when it is plugged in.
    fn before_access(&self) {
        let mut state = self.state();
        if state.pace.has_begun() {
            let go = state.pace.access(self.clock.now());
            self.deliver(&mut state, go);
        }
    }

    /// Tells the machine the time, and waits until it has got there.
    fn meet(&self) {
        let mut state = self.state();
        if state.pace.has_begun() {
            let now = self.clock.now();
            let go = state.pace.at(now);
            self.obey(&mut state, go, now);
        }
    }
}

/// Called before a block of instructions that would take the guest farther than it may go. Returns
/// true if it must not run yet: the guest is then stopped by the timer.
fn before_block() -> bool {
    let plugin = plugin();
    let mut state = plugin.state();
    let State { pace, board: Some(board), .. } = &mut *state else { return false };
    let (passed, end_ns) = (board.passed(), board.end());
    match pace.pass(passed, end_ns) {
        Ok(Next::Run(until)) if until >= end_ns => {
            board.extend(until);
            false
        }
        Ok(next) => {
            let at = if let Next::Run(until) = next { until } else { passed };
            plugin.stop_at(&mut state, at);
            true
        }
        Err(error) => end(&format!("the machine is gone: {error}")),
    }
}

/// Called before the processor halts, after which QEMU goes to its next timer.
fn before_halt() {
    let plugin = plugin();
    let mut state = plugin.state();
    if let Some(until) = state.board.as_ref().and_then(Board::until) {
        plugin.stop_at(&mut state, until);
    }
}

/// Called when the processor has taken an exception, perhaps in the last instruction of a block.
fn after_exception() {
    if let Some(board) = &mut plugin().state().board {
        board.doubt();
    }
}

/// Called when the guest has got as far as it might. The timer is not among the pending ones then.
unsafe extern "C" fn tick(_: *mut c_void) {
    let plugin = plugin();
    // SAFETY: QEMU's functions; the big lock is held, as in all timers.
    let (idle, next) = unsafe { ((plugin.idle)(), (plugin.deadline)(CLOCK_VIRTUAL, ALL_TIMERS)) };
    let mut state = plugin.state();
    let now = plugin.clock.now();
    state.due = 0;
    if !idle || next == 0 {
        let go = state.pace.step(now);
        return plugin.obey(&mut state, go, now);
    }
    // Without a timer there is no next time, which is negative.
    let until = u64::try_from(next).map_or(u64::MAX, |next| now.saturating_add(next));
    let go = state.pace.asleep(now, until);
    plugin.obey(&mut state, go, now);
}

/// Called by the main loop to stop the virtual machine.
unsafe extern "C" fn stop(_: *mut c_void) {
    // SAFETY: QEMU's function; the big lock is held, as in all callbacks of the main loop.
    unsafe { (plugin().stop)(PAUSED) };
}

/// Called when the virtual machine has stopped, or is about to run. One that continues asks before
/// its next instruction how far it may run, and its instructions are counted from there.
unsafe extern "C" fn changed(_: *mut c_void, runs: bool, _: c_int) {
    let plugin = plugin();
    let mut state = plugin.state();
    state.stands &= !runs;
    if runs && !std::mem::replace(&mut state.ran, true) {
        if state.is_clone {
            plugin.begin(&mut state);
        }
        // SAFETY: QEMU's function. All devices exist when the machine runs, and none is in use yet.
        // The big lock is held.
        unsafe {
            hpet::set_period(plugin.resolve, state.pace.instruction_ps());
            wakeups::leave_out();
        }
    }
    if std::mem::replace(&mut state.stopped, !runs) && runs {
        plugin.tick_at(&mut state, plugin.clock.now());
    }
}

/// Called by the main loop before and after it waits. A processor that has met a breakpoint counts
/// as idle until the main loop has stopped the virtual machine. Before that, QEMU would advance the
/// clock to the next timer, which may be later than the guest may run. So it is stopped now.
unsafe extern "C" fn polled(_: *mut Notifier, _: *mut c_void) {
    let plugin = plugin();
    // SAFETY: QEMU's functions, as its main loop calls them: the big lock is held, and there is a
    // processor, as this is called only after that has been made.
    unsafe {
        if (plugin.runs)() && (plugin.is_stopped)((plugin.processor)(0)) {
            let why = if plugin.state().stands { PAUSED } else { DEBUG };
            (plugin.stop)(why);
        }
    }
}

/// Called when the guest may take more input.
unsafe extern "C" fn more_input(_: *mut c_void) {
    let plugin = plugin();
    plugin.put_in(&mut plugin.state());
}

unsafe extern "C" fn region_read(
    device: *mut c_void,
    region: u8,
    offset: i64,
    size: u32,
    data: *mut c_void,
) -> c_int {
    let plugin = plugin();
    plugin.before_access();
    let Some(read) = plugin.state().read else { end("a read before there is a device") };
    // SAFETY: the function that this wraps, with its arguments.
    let result = unsafe { read(device, region, offset, size, data) };
    plugin.meet();
    result
}

unsafe extern "C" fn region_write(
    device: *mut c_void,
    region: u8,
    offset: i64,
    size: u32,
    data: *mut c_void,
    _: bool,
) -> c_int {
    let plugin = plugin();
    plugin.before_access();
    let Some(write) = plugin.state().write else { end("a write before there is a device") };
    // SAFETY: as above. It is not posted: the device must have seen it at this time.
    let result = unsafe { write(device, region, offset, size, data, false) };
    plugin.meet();
    result
}

/// Called when a virtual processor has been made.
unsafe extern "C" fn vcpu_init(index: u32, _: *mut c_void) {
    if index > 0 {
        end("a guest in modelled time has one processor: -smp 1");
    }
    let plugin = plugin();
    plugin.clock.prepare(&plugin.timer, tick);
    plugin.clock.prepare(&plugin.input_timer, more_input);
    // SAFETY: QEMU's function; the handler lives as long as the plugin, which is never unloaded.
    unsafe { (plugin.on_change)(changed, null_mut()) };
    let notifier = Box::leak(Box::new(Notifier { notify: polled, node: [0; 2] }));
    // SAFETY: QEMU's function, and a notifier that is never freed. The main loop does not look at
    // its list now: it holds the big lock when it does, as this thread does.
    unsafe { (plugin.on_poll)(notifier) };
    let mut state = plugin.state();
    // SAFETY: the table is read by threads that hold the big lock, as this one does.
    let (read, write) = unsafe { accesses::replace(plugin.operations, region_read, region_write) };
    (state.read, state.write) = (Some(read), Some(write));
    state.board = Some(blocks::board());
    if !state.is_clone {
        plugin.begin(&mut state);
    }
}

/// The text of an argument of the plugin.
///
/// # Safety
///
/// `argument` is a text that ends with a zero.
unsafe fn text(argument: *const c_char) -> String {
    // SAFETY: promised by the caller.
    unsafe { CStr::from_ptr(argument) }.to_string_lossy().into_owned()
}

/// Called by QEMU when it has loaded the plugin.
///
/// # Safety
///
/// As QEMU calls it: `argv` has `argc` texts.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn qemu_plugin_install(
    id: u64,
    _: *const c_void,
    argc: c_int,
    argv: *mut *mut c_char,
) -> c_int {
    // SAFETY: promised by QEMU.
    let arguments = (0..usize::try_from(argc).unwrap_or(0)).map(|i| unsafe { text(*argv.add(i)) });
    let arguments: Vec<_> = arguments.collect();
    let value = |name: &str| arguments.iter().find_map(|text| text.strip_prefix(name));
    if let Some(file) = value("stacks=").and_then(|number| number.parse().ok()) {
        // SAFETY: the process that starts QEMU passes the descriptor only for this.
        stacks::register(id, unsafe { OwnedFd::from_raw_fd(file) });
        return 0;
    }
    if let Some(instruction) = value("template=").and_then(|ps| ps.parse().ok()) {
        template::register(id, instruction);
        return 0;
    }
    let is_clone = value("clone=") == Some("on");
    let pace = match (value("pace="), value("fd=").map(str::parse)) {
        (Some(path), _) => Pace::connect(path).map_err(|error| format!("{path}: {error}")),
        // SAFETY: the process that starts QEMU passes the descriptor only for this.
        (_, Some(Ok(number))) => Ok(Pace::on(unsafe { UnixStream::from_raw_fd(number) })),
        _ => Err("expected pace=SOCKET, as tofu serve prints it".to_owned()),
    };
    let pace = pace.unwrap_or_else(|error| end(&error));
    // SAFETY: QEMU's functions by their names, with the signatures of version 11.1.
    let (plugin, register) = unsafe {
        let plugin = Plugin {
            clock: Clock::find(),
            idle: function(c"all_cpu_threads_idle"),
            deadline: function(c"qemu_clock_deadline_ns_all"),
            msix_notify: function(c"msix_notify"),
            resolve: function(c"object_resolve_path_type"),
            operations: accesses::table(),
            prepare_stop: function(c"qemu_system_vmstop_request_prepare"),
            request_stop: function(c"qemu_system_vmstop_request"),
            in_processor: function(c"qemu_in_vcpu_thread"),
            stop_processor: function(c"cpu_stop_current"),
            stop: function(c"vm_stop"),
            runs: function(c"runstate_is_running"),
            processor: function(c"qemu_get_cpu"),
            is_stopped: function(c"cpu_is_stopped"),
            on_poll: function(c"main_loop_poll_add_notifier"),
            main_loop: function(c"qemu_get_aio_context"),
            schedule: function(c"aio_bh_schedule_oneshot_full"),
            on_change: function(c"qemu_add_vm_change_state_handler"),
            find_port: function(c"qemu_chr_find"),
            room: function(c"qemu_chr_be_can_write"),
            put_in: function(c"qemu_chr_be_write"),
            timer: Timer::new(),
            input_timer: Timer::new(),
            state: Mutex::new(State::new(pace, is_clone)),
        };
        let register: VcpuInit = function(c"qemu_plugin_register_vcpu_init_cb");
        (plugin, register)
    };
    if PLUGIN.set(plugin).is_err() {
        end("it is loaded twice");
    }
    // SAFETY: QEMU's function; the callback lives as long as the plugin, which is never unloaded.
    unsafe { register(id, vcpu_init, null_mut()) };
    blocks::register(id, Hooks { before_block, before_halt, after_exception });
    0
}
