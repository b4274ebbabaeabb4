//! The count of a guest's instructions, with which it is stopped without a timer of QEMU.
//!
//! QEMU translates a guest's code in blocks, and counts the instructions of a block when it begins.
//! The plugin has two counts in the translated code. One counts the blocks that have begun, so it
//! is never behind the guest. With it, a block that would end too late calls the plugin first. The
//! other counts the blocks whose last instruction has begun. It is never ahead of the guest, except
//! after an exception in such an instruction; this count is published. Both restart whenever the
//! plugin has the exact time, which is not available in the middle of a block.
//!
//! A block that must not run is left as by an exception in its first instruction. QEMU's own count
//! is put right by that, and a timer stops the guest inside the block next time.

use std::arch::naked_asm;
use std::ffi::{c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::symbols::{end, function, symbol};

/// `QEMU_PLUGIN_CB_R_REGS`: the guest's registers are in memory when the callback is called, so
/// that the block can be left.
const READS_REGISTERS: c_int = 1;
/// `QEMU_PLUGIN_COND_GT`
const GREATER: c_int = 6;
/// `QEMU_PLUGIN_INLINE_ADD_U64`
const ADD: c_int = 0;
/// `QEMU_PLUGIN_DISCON_EXCEPTION` and `QEMU_PLUGIN_DISCON_HOSTCALL`
const EXCEPTIONS: c_int = 2 | 4;

/// The value of [`Counts::over`] at which the guest has got as far as it may.
const LIMIT: u64 = 1 << 63;
/// A value that no count reaches.
const NEVER: u64 = 1 << 62;
/// Nanoseconds by which the published time lags, because of the rare blocks that are left in their
/// last instruction without an exception.
const MARGIN: u64 = 4;

/// The counts in QEMU's memory, which translated code writes. All times are nanoseconds of the
/// guest's clock, which are its instructions.
#[derive(Debug)]
#[repr(C)]
struct Counts {
    /// [`LIMIT`], plus the end of the last block that has begun, minus the time until which the
    /// guest may run.
    over: u64,
    /// The time that the guest has passed.
    passed: u64,
}

/// `qemu_plugin_u64`: a word of a scoreboard.
#[repr(C)]
#[derive(Clone, Copy)]
struct Word {
    scoreboard: *mut c_void,
    offset: usize,
}

type Called = unsafe extern "C" fn(c_uint, *mut c_void);
type NewScoreboard = unsafe extern "C" fn(usize) -> *mut c_void;
type Find = unsafe extern "C" fn(*mut c_void, c_uint) -> *mut c_void;
type OnTranslation =
    unsafe extern "C" fn(u64, unsafe extern "C" fn(*mut c_void, *mut c_void), *mut c_void);
type OnException =
    unsafe extern "C" fn(u64, c_int, unsafe extern "C" fn(c_uint, c_int), *mut c_void);
type Instructions = unsafe extern "C" fn(*const c_void) -> usize;
type Instruction = unsafe extern "C" fn(*const c_void, usize) -> *mut c_void;
type Data = unsafe extern "C" fn(*const c_void, *mut u8, usize) -> usize;
type AddTo = unsafe extern "C" fn(*mut c_void, c_int, Word, u64);
type CallIf = unsafe extern "C" fn(*mut c_void, Called, c_int, c_int, Word, u64, *mut c_void);
type Call = unsafe extern "C" fn(*mut c_void, Called, c_int, *mut c_void);
type Processor = unsafe extern "C" fn(c_int) -> *mut c_void;

/// The plugin's functions that translated code calls.
pub(crate) struct Hooks {
    /// Before a block that would take the guest farther than it may go. True if it must not run
    /// yet.
    pub(crate) before_block: fn() -> bool,
    /// Before an instruction that may halt the processor.
    pub(crate) before_halt: fn(),
    /// After an exception.
    pub(crate) after_exception: fn(),
}

/// QEMU's functions for translated code.
struct Qemu {
    hooks: Hooks,
    scoreboard: usize,
    find: Find,
    instructions: Instructions,
    instruction: Instruction,
    data: Data,
    add_in_block: AddTo,
    add_in_instruction: AddTo,
    call_if: CallIf,
    call: Call,
    processor: Processor,
}

static QEMU: OnceLock<Qemu> = OnceLock::new();
/// `cpu_loop_exit_restore`
static LEAVE: AtomicUsize = AtomicUsize::new(0);

fn qemu() -> &'static Qemu {
    QEMU.get().unwrap_or_else(|| end("translated before it was installed"))
}

impl Qemu {
    const fn word(&self, offset: usize) -> Word {
        Word { scoreboard: self.scoreboard as *mut c_void, offset }
    }
}

/// Has QEMU count the instructions of all code that it translates.
pub(crate) fn register(id: u64, hooks: Hooks) {
    // SAFETY: QEMU's functions by their names, with the signatures of version 11.1. The callbacks
    // live as long as the plugin, which is never unloaded.
    unsafe {
        let new: NewScoreboard = function(c"qemu_plugin_scoreboard_new");
        let qemu = Qemu {
            hooks,
            scoreboard: new(size_of::<Counts>()) as usize,
            find: function(c"qemu_plugin_scoreboard_find"),
            instructions: function(c"qemu_plugin_tb_n_insns"),
            instruction: function(c"qemu_plugin_tb_get_insn"),
            data: function(c"qemu_plugin_insn_data"),
            add_in_block: function(c"qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu"),
            add_in_instruction: function(c"qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu"),
            call_if: function(c"qemu_plugin_register_vcpu_tb_exec_cond_cb"),
            call: function(c"qemu_plugin_register_vcpu_insn_exec_cb"),
            processor: function(c"qemu_get_cpu"),
        };
        LEAVE.store(symbol(c"cpu_loop_exit_restore") as usize, Relaxed);
        if QEMU.set(qemu).is_err() {
            end("it is loaded twice");
        }
        let on_translation: OnTranslation = function(c"qemu_plugin_register_vcpu_tb_trans_cb");
        on_translation(id, translated, null_mut());
        let on_exception: OnException = function(c"qemu_plugin_register_vcpu_discon_cb");
        on_exception(id, EXCEPTIONS, excepted, null_mut());
    }
}

/// Called when QEMU translates a block.
unsafe extern "C" fn translated(block: *mut c_void, _: *mut c_void) {
    let qemu = qemu();
    // SAFETY: QEMU's functions. The block, its instructions and the scoreboard exist.
    unsafe {
        let instructions = (qemu.instructions)(block);
        if instructions == 0 {
            return;
        }
        let over = qemu.word(offset_of!(Counts, over));
        (qemu.add_in_block)(block, ADD, over, instructions as u64);
        (qemu.call_if)(block, would_pass, READS_REGISTERS, GREATER, over, LIMIT, null_mut());
        let last = (qemu.instruction)(block, instructions - 1);
        let passed = qemu.word(offset_of!(Counts, passed));
        (qemu.add_in_instruction)(last, ADD, passed, instructions as u64);
        let mut code = [0; 4];
        let bytes = (qemu.data)(last, code.as_mut_ptr(), code.len()).min(code.len());
        if halts(&code[..bytes]) {
            (qemu.call)(last, halting, READS_REGISTERS, null_mut());
        }
    }
}

/// True if an instruction may halt the processor: hlt and mwait of x86-64, wfe and wfi of arm64.
const fn halts(code: &[u8]) -> bool {
    matches!(
        code,
        [0xf4] | [0x0f, 0x01, 0xc9] | [0x5f, 0x20, 0x03, 0xd5] | [0x7f, 0x20, 0x03, 0xd5]
    )
}

unsafe extern "C" fn halting(_: c_uint, _: *mut c_void) {
    (qemu().hooks.before_halt)();
}

unsafe extern "C" fn excepted(_: c_uint, _: c_int) {
    (qemu().hooks.after_exception)();
}

/// The processor, if its block must not run yet; otherwise null.
extern "C" fn leaves() -> *mut c_void {
    let qemu = qemu();
    if !(qemu.hooks.before_block)() {
        return null_mut();
    }
    // SAFETY: QEMU's function.
    unsafe { (qemu.processor)(0) }
}

/// Called at the beginning of a block that would pass the limit. Either returns, or leaves the
/// block through QEMU's function for that. That function identifies the block by the return address
/// of this call, and does not return, so there must be no Rust frame in between.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn would_pass(_: c_uint, _: *mut c_void) {
    naked_asm!(
        "sub rsp, 8",
        "call {leaves}",
        "add rsp, 8",
        "test rax, rax",
        "jnz 2f",
        "ret",
        "2:",
        "mov rdi, rax",
        "mov rsi, [rsp]",
        "jmp [rip + {leave}]",
        leaves = sym leaves,
        leave = sym LEAVE,
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn would_pass(_: c_uint, _: *mut c_void) {
    naked_asm!(
        "stp x29, x30, [sp, #-16]!",
        "bl {leaves}",
        "ldp x29, x30, [sp], #16",
        "cbnz x0, 2f",
        "ret",
        "2:",
        "mov x1, x30",
        "adrp x2, {leave}",
        "ldr x2, [x2, :lo12:{leave}]",
        "br x2",
        leaves = sym leaves,
        leave = sym LEAVE,
    )
}

impl Counts {
    /// Counts of a guest at a time, which may run until another.
    const fn begin(now: u64, until: u64) -> Self {
        Self { over: (LIMIT + now).saturating_sub(until), passed: now }
    }

    /// The end of the last block that has begun, which is later than the time until which the guest
    /// may run.
    const fn end(&self, until: u64) -> u64 {
        until.saturating_add(self.over.saturating_sub(LIMIT))
    }

    /// Lets the guest run until another time than before.
    const fn extend(&mut self, before: u64, until: u64) {
        self.over = (LIMIT + self.end(before)).saturating_sub(until);
    }

    /// Counts without a limit, until the next restart.
    const fn rest(&mut self) {
        self.over = LIMIT - NEVER;
    }
}

/// The counts of the only processor.
pub(crate) struct Board {
    /// The address of [`Counts`].
    counts: usize,
    /// The time until which the guest may run; `None` while a timer stops it.
    until: Option<u64>,
    /// The latest time that the guest is known to have passed.
    told: u64,
}

/// The counts of the processor that has just been made.
pub(crate) fn board() -> Board {
    let qemu = qemu();
    // SAFETY: QEMU's function; there is a processor 0.
    let counts = unsafe { (qemu.find)(qemu.scoreboard as *mut c_void, 0) } as usize;
    Board { counts, until: None, told: 0 }
}

impl Board {
    fn counts(&mut self) -> &mut Counts {
        // SAFETY: the scoreboard has a `Counts` for the only processor, and does not move as long
        // as there is no other. Its words are written by translated code of that processor alone,
        // which does not run now: the plugin is called by it, or where it has stopped.
        unsafe { &mut *(self.counts as *mut Counts) }
    }

    /// Restarts at an exact time. The guest may run until another time.
    pub(crate) fn count(&mut self, now: u64, until: u64) {
        self.until = Some(until);
        self.told = self.told.max(now);
        *self.counts() = Counts::begin(now, until);
    }

    /// Ignores the count until the next restart.
    pub(crate) fn rest(&mut self) {
        self.until = None;
        self.counts().rest();
    }

    /// The end of the block that begins, which the guest must not pass so far.
    pub(crate) fn end(&mut self) -> u64 {
        let until = self.until.unwrap_or(self.told);
        self.counts().end(until)
    }

    /// A time that the guest has passed.
    pub(crate) fn passed(&mut self) -> u64 {
        self.told = self.told.max(self.counts().passed.saturating_sub(MARGIN));
        self.told
    }

    /// The time until which the guest may run, while it is counted.
    pub(crate) const fn until(&self) -> Option<u64> {
        self.until
    }

    /// Lets the guest run until another time.
    pub(crate) fn extend(&mut self, until: u64) {
        let before = self.until.replace(until).unwrap_or(until);
        self.counts().extend(before, until);
    }

    /// An instruction that is counted as passed may not be.
    pub(crate) fn doubt(&mut self) {
        let counts = self.counts();
        counts.passed = counts.passed.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs blocks of so many instructions until one must not run.
    fn run(counts: &mut Counts, block: u64) -> u64 {
        let mut blocks = 0;
        loop {
            counts.over += block;
            if counts.over > LIMIT {
                return blocks;
            }
            counts.passed += block;
            blocks += 1;
        }
    }

    #[test]
    fn block_that_ends_at_the_limit_runs_and_the_next_does_not() {
        let mut counts = Counts::begin(1000, 1280);
        assert_eq!(run(&mut counts, 28), 10);
        assert_eq!((counts.passed, counts.end(1280)), (1280, 1308));
    }

    #[test]
    fn later_limit_counts_from_the_block_that_waited() {
        let mut counts = Counts::begin(0, 100);
        assert_eq!(run(&mut counts, 30), 3);
        assert_eq!(counts.end(100), 120);
        counts.extend(100, 180);
        counts.passed += 30;
        assert_eq!((run(&mut counts, 30), counts.end(180)), (2, 210));
        counts.extend(180, u64::MAX);
        counts.over += 1 << 40;
        assert!(counts.over <= LIMIT);
    }

    #[test]
    fn resting_counts_stop_nobody() {
        let mut counts = Counts::begin(5, 6);
        counts.rest();
        counts.over += 1 << 61;
        assert!(counts.over <= LIMIT);
    }

    #[test]
    fn instructions_that_halt_are_known() {
        let arm = [0xd503_205f_u32, 0xd503_207f].map(u32::to_le_bytes);
        assert!(halts(&[0xf4]) && halts(&[0x0f, 0x01, 0xc9]) && arm.iter().all(|w| halts(w)));
        // nop, and a longer instruction that begins with that byte.
        assert!(!halts(&[0x90]) && !halts(&[0xf4, 0, 0, 0]) && !halts(&[]));
        assert!(!halts(&0xd503_201f_u32.to_le_bytes()));
    }
}
