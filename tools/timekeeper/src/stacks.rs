//! The code of a guest that breaks rules of its device: the instruction that has made the access,
//! and the addresses on the stack, in memory that is shared with the machine.
//!
//! The machine counts broken rules while it carries out an access. QEMU waits for that: writes are
//! not posted. So the plugin knows after each access whether it has broken one, and the processor
//! is still where it was. QEMU knows the stack then, but not the instruction. If that belongs to a
//! kernel module, it is instrumented, and calls the plugin when it has accessed memory.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::os::fd::OwnedFd;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tofu_pace::breaks::{ADDRESSES, Access, Address, Witness};

use crate::accesses::{self, RegionRead, RegionWrite};
use crate::symbols::{end, function, symbol};

/// The number of the stack pointer of x86-64 processors, for debuggers.
const STACK_POINTER: c_int = 7;
/// Linux has its own code and that of modules from here to the end, on x86-64.
const KERNEL: u64 = 0xffff_ffff_8000_0000;
const MODULES: u64 = 0xffff_ffff_c000_0000;
const END: u64 = 0xffff_ffff_ff00_0000;
/// The size of a stack of the kernel, which lies at a multiple of it.
const STACK: u64 = 16 << 10;
/// The part of the stack that is looked at, in words.
const LONGEST: usize = 512;
/// The largest region whose accesses have an instruction: BAR 0 to 5.
const LAST_BAR: u8 = 5;
/// Bits of an address that it has in common with the offset in its region.
const IN_PAGE: u64 = 0xfff;
/// `QEMU_PLUGIN_CB_NO_REGS`
const NO_REGISTERS: c_int = 0;
/// `QEMU_PLUGIN_MEM_RW`
const READS_AND_WRITES: c_int = 3;

/// The processor that a thread of QEMU runs.
const PROCESSOR: &CStr = c"current_cpu";

/// `GByteArray`
#[repr(C)]
struct Bytes {
    data: *const u8,
    length: c_uint,
}

type NewBytes = unsafe extern "C" fn() -> *mut Bytes;
type FreeBytes = unsafe extern "C" fn(*mut Bytes, c_int) -> *mut u8;
type ReadRegister = unsafe extern "C" fn(*mut c_void, *mut Bytes, c_int) -> c_int;
type Memory = unsafe extern "C" fn(*mut c_void, u64, *mut c_void, usize, bool) -> c_int;
type OnTranslation =
    unsafe extern "C" fn(u64, unsafe extern "C" fn(*mut c_void, *mut c_void), *mut c_void);
type Start = unsafe extern "C" fn(*const c_void) -> u64;
type Instructions = unsafe extern "C" fn(*const c_void) -> usize;
type Instruction = unsafe extern "C" fn(*const c_void, usize) -> *mut c_void;
type Accessed = unsafe extern "C" fn(c_uint, u32, u64, *mut c_void);
type OnAccess = unsafe extern "C" fn(*mut c_void, Accessed, c_int, c_int, *mut c_void);

/// QEMU's functions, and the memory.
struct Plugin {
    witness: Witness,
    read: RegionRead,
    write: RegionWrite,
    new_bytes: NewBytes,
    free_bytes: FreeBytes,
    register: ReadRegister,
    memory: Memory,
    start: Start,
    instructions: Instructions,
    instruction: Instruction,
    address: Start,
    on_access: OnAccess,
}

static PLUGIN: OnceLock<Plugin> = OnceLock::new();
/// True if some processor has a record without an instruction.
static SOME_WAIT: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The record of this processor that has no instruction yet, and the offset of its access.
    static WAITS: Cell<Option<(u64, u64)>> = const { Cell::new(None) };
}

fn plugin() -> &'static Plugin {
    PLUGIN.get().unwrap_or_else(|| end("called before it was installed"))
}

/// Watches the accesses of the guest, which has just been made, and has no device yet.
pub(crate) fn register(id: u64, memory: OwnedFd) {
    let witness = Witness::map(memory).unwrap_or_else(|error| end(&format!("stacks: {error}")));
    // SAFETY: QEMU's functions by their names, with the signatures of version 11.1. There is no
    // device when plugins are loaded. The callbacks live as long as the plugin, which is never
    // unloaded.
    unsafe {
        let (read, write) = accesses::replace(accesses::table(), region_read, region_write);
        // If it is missing, that is said now.
        symbol(PROCESSOR);
        let plugin = Plugin {
            witness,
            read,
            write,
            new_bytes: function(c"g_byte_array_new"),
            free_bytes: function(c"g_byte_array_free"),
            register: function(c"gdb_read_register"),
            memory: function(c"cpu_memory_rw_debug"),
            start: function(c"qemu_plugin_tb_vaddr"),
            instructions: function(c"qemu_plugin_tb_n_insns"),
            instruction: function(c"qemu_plugin_tb_get_insn"),
            address: function(c"qemu_plugin_insn_vaddr"),
            on_access: function(c"qemu_plugin_register_vcpu_mem_cb"),
        };
        if PLUGIN.set(plugin).is_err() {
            end("it is loaded twice");
        }
        let on_translation: OnTranslation = function(c"qemu_plugin_register_vcpu_tb_trans_cb");
        on_translation(id, translated, null_mut());
    }
}

/// Called when QEMU translates a block. Only that of modules is instrumented.
unsafe extern "C" fn translated(block: *mut c_void, _: *mut c_void) {
    let plugin = plugin();
    // SAFETY: QEMU's functions; the block and its instructions exist. The last argument of the
    // callback is no pointer, but the address of the instruction.
    unsafe {
        if !(MODULES..END).contains(&(plugin.start)(block)) {
            return;
        }
        for index in 0..(plugin.instructions)(block) {
            let instruction = (plugin.instruction)(block, index);
            let at = (plugin.address)(instruction) as *mut c_void;
            (plugin.on_access)(instruction, accessed, NO_REGISTERS, READS_AND_WRITES, at);
        }
    }
}

/// Called when an instruction of a module has accessed memory, be it that of a device.
unsafe extern "C" fn accessed(_: c_uint, _: u32, address: u64, instruction: *mut c_void) {
    if !SOME_WAIT.load(Relaxed) {
        return;
    }
    if let Some((record, offset)) = WAITS.take() {
        SOME_WAIT.store(false, Relaxed);
        // Else the access was made by a function of the kernel, which has returned.
        if address & IN_PAGE == offset & IN_PAGE {
            plugin().witness.at(record, instruction as u64);
        }
    }
}

impl Plugin {
    /// Makes an access, and a record if it has broken a rule. The big lock is held.
    fn watch(&self, access: Access, make: impl FnOnce() -> c_int) -> c_int {
        WAITS.set(None);
        let before = self.witness.broken();
        let result = make();
        if self.witness.broken() != before
            && let Some(stack) = self.stack()
        {
            let record = self.witness.record(before, access, &stack);
            if access.region <= LAST_BAR {
                WAITS.set(Some((record, access.offset)));
                SOME_WAIT.store(true, Relaxed);
            }
        }
        result
    }

    /// The addresses on the stack of the processor that makes the present access; none if that is
    /// not in the kernel. Returns `None` if QEMU itself makes the access.
    fn stack(&self) -> Option<Vec<Address>> {
        let processor = symbol(PROCESSOR) as *const *mut c_void;
        // SAFETY: QEMU's variable, of which each thread has one; this is that of this thread.
        let processor = unsafe { *processor };
        if processor.is_null() {
            return None;
        }
        let top = self.stack_pointer(processor);
        let mut words = [0; 8 * LONGEST];
        let room = usize::try_from(STACK - top % STACK).unwrap_or(0).min(words.len());
        let words = &mut words[..room & !7];
        // Negative addresses are the kernel's.
        if top.cast_signed() >= 0 || !self.copy(processor, top, words) {
            return Some(Vec::new());
        }
        let words = words.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let code = words.filter(|word| (KERNEL..END).contains(word)).filter_map(|at| {
            let mut code = [0; 8];
            let is_there = self.copy(processor, at - code.len() as u64, &mut code);
            let address = Address { at, code };
            (is_there && address.call().is_some()).then_some(address)
        });
        Some(code.take(ADDRESSES).collect())
    }

    /// The stack pointer, or 0.
    fn stack_pointer(&self, processor: *mut c_void) -> u64 {
        let mut value = [0; 8];
        // SAFETY: QEMU's and GLib's functions. The processor exists, and this is its thread. The
        // array has `length` bytes at `data`, and is freed with them.
        unsafe {
            let bytes = (self.new_bytes)();
            (self.register)(processor, bytes, STACK_POINTER);
            let Bytes { data, length } = *bytes;
            if length as usize == value.len() {
                data.copy_to_nonoverlapping(value.as_mut_ptr(), value.len());
            }
            (self.free_bytes)(bytes, 1);
        }
        u64::from_le_bytes(value)
    }

    /// Copies memory of the guest; returns false if it is not there.
    fn copy(&self, processor: *mut c_void, from: u64, to: &mut [u8]) -> bool {
        // SAFETY: QEMU's function. The processor exists, and there is room for so many bytes.
        unsafe { (self.memory)(processor, from, to.as_mut_ptr().cast(), to.len(), false) == 0 }
    }
}

unsafe extern "C" fn region_read(
    device: *mut c_void,
    region: u8,
    offset: i64,
    size: u32,
    data: *mut c_void,
) -> c_int {
    let plugin = plugin();
    let access = Access { region, offset: offset.cast_unsigned(), is_write: false };
    // SAFETY: the function that this wraps, with its arguments.
    plugin.watch(access, || unsafe { (plugin.read)(device, region, offset, size, data) })
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
    let access = Access { region, offset: offset.cast_unsigned(), is_write: true };
    // SAFETY: as above. It is not posted: whether it breaks a rule must be known when it ends.
    plugin.watch(access, || unsafe { (plugin.write)(device, region, offset, size, data, false) })
}
