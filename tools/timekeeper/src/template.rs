//! The clock of a guest that clones in modelled time are made of.
//!
//! It boots without a machine that it would have to wait for. QEMU's clock jumps to the next timer
//! whenever the guest sleeps, so that a guest which waits for the host would be hours ahead. The
//! clones' time begins where this clock stands, so it is held back to the host's.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use crate::callbacks::{OnChange, VcpuInit};
use crate::clock::{Clock, Timer};
use crate::hpet::{self, Resolve};
use crate::symbols::{end, function};

/// The interval at which the clocks are compared, in nanoseconds of the guest's.
const PERIOD: u64 = 1_000_000;
/// The longest time that QEMU is kept from its other work.
const LONGEST: Duration = Duration::from_millis(10);

struct Template {
    clock: Clock,
    on_change: OnChange,
    resolve: Resolve,
    timer: Timer,
    begin: Instant,
    /// The picoseconds of an instruction.
    instruction: u64,
}

static TEMPLATE: OnceLock<Template> = OnceLock::new();

fn template() -> &'static Template {
    TEMPLATE.get().unwrap_or_else(|| end("called before it was installed"))
}

/// Holds the clock of a guest back whose instructions take so many picoseconds.
pub(crate) fn register(id: u64, instruction: u64) {
    // SAFETY: QEMU's functions by their names, with the signatures of version 11.1. The callback
    // lives as long as the plugin, which is never unloaded.
    unsafe {
        let template = Template {
            clock: Clock::find(),
            on_change: function(c"qemu_add_vm_change_state_handler"),
            resolve: function(c"object_resolve_path_type"),
            timer: Timer::new(),
            begin: Instant::now(),
            instruction,
        };
        if TEMPLATE.set(template).is_err() {
            end("it is loaded twice");
        }
        let on_init: VcpuInit = function(c"qemu_plugin_register_vcpu_init_cb");
        on_init(id, vcpu_init, null_mut());
    }
}

/// Called when the virtual processor has been made.
unsafe extern "C" fn vcpu_init(_: u32, _: *mut c_void) {
    let template = template();
    template.clock.prepare(&template.timer, tick);
    template.clock.set(&template.timer, PERIOD);
    // SAFETY: QEMU's function; the handler lives as long as the plugin, which is never unloaded.
    unsafe { (template.on_change)(changed, null_mut()) };
}

/// Called when the virtual machine has stopped, or is about to run.
unsafe extern "C" fn changed(_: *mut c_void, _: bool, _: c_int) {
    let template = template();
    // SAFETY: QEMU's function. All devices exist when the machine runs, and the big lock is held.
    unsafe { hpet::set_period(template.resolve, template.instruction) };
}

/// Called at each period of the guest's clock.
unsafe extern "C" fn tick(_: *mut c_void) {
    let template = template();
    let now = template.clock.now();
    template.clock.set(&template.timer, now.saturating_add(PERIOD));
    let ahead = Duration::from_nanos(now).saturating_sub(template.begin.elapsed());
    thread::sleep(ahead.min(LONGEST));
}
