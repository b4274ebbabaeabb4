//! Memory: the heap, page tables, and the functions that the compiler calls.

use core::alloc::Layout;
use core::arch::asm;
use core::ptr::NonNull;

use alloc::alloc::alloc_zeroed;
use linked_list_allocator::LockedHeap;

#[global_allocator]
static HEAP: LockedHeap = LockedHeap::empty();

const PRESENT: u64 = 1;
const USER_TABLE: u64 = 0x27;
const RAM_PAGE: u64 = 0xe7;
const SMALL_RAM_PAGE: u64 = 0x67;
const DEVICE_PAGE: u64 = RAM_PAGE | 0x18;
const LARGE_PAGE: u64 = 2 << 20;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

unsafe extern "C" {
    static mut pml4: [u64; 512];
    static mut directories: [u64; 4 * 512];
    static mut first_pages: [u64; 512];
}

/// Gives the heap its memory.
///
/// # Safety
/// `[start, end)` is RAM that nothing else uses. Called once.
pub(crate) unsafe fn init(start: usize, end: usize) {
    // SAFETY: promised by the caller.
    unsafe { HEAP.lock().init(start as *mut u8, end - start) };
}

/// Bytes of heap that are free, in ranges of any size.
pub fn heap_free() -> usize {
    HEAP.lock().free()
}

/// Zeroed memory for DMA, never given back: `size` bytes, `align` a power of two.
/// Its address is its DMA address. `None` if there is not enough.
pub fn dma_alloc(size: usize, align: usize) -> Option<NonNull<u8>> {
    let layout = Layout::from_size_align(size.max(1), align).ok()?;
    // SAFETY: the layout is not of size zero.
    NonNull::new(unsafe { alloc_zeroed(layout) })
}

/// Maps `size` bytes of device memory at physical `address` to the same virtual
/// address, in whole 2 MiB pages. False if out of memory.
pub(crate) fn map_device(address: u64, size: u64) -> bool {
    let first = address & !(LARGE_PAGE - 1);
    let mut page = first;
    while page < address + size {
        let root = (&raw mut pml4).cast::<u64>();
        // SAFETY: tables and indices come from a proper walk of page tables that
        // only this function changes after boot.
        let done = unsafe {
            next(root, page >> 39).and_then(|pdpt| next(pdpt, page >> 30)).map(|directory| {
                let entry = directory.add((page >> 21 & 511) as usize);
                // No stale translation can exist for what was not present.
                if entry.read_volatile() & PRESENT == 0 {
                    entry.write_volatile(page | DEVICE_PAGE);
                }
            })
        };
        if done.is_none() {
            return false;
        }
        page += LARGE_PAGE;
    }
    true
}

/// Maps the page from 2 MiB on, which is left out below images at 4 MiB to catch an overflow of
/// their stack.
pub(crate) fn map_page_below_images() {
    // SAFETY: the table is this program's, and the page was not mapped, so nothing refers to it.
    unsafe { (&raw mut directories[1]).write_volatile(LARGE_PAGE | RAM_PAGE) };
}

/// Maps page 0, which is left out to catch null pointers, but is where a loader leaves tables.
pub(crate) fn map_page_0() {
    // SAFETY: the table is this program's, and the page was not mapped, so nothing refers to it.
    unsafe { (&raw mut first_pages[0]).write_volatile(SMALL_RAM_PAGE) };
}

/// The table that entry `index` (modulo 512) of `table` refers to, made if it is
/// missing.
///
/// # Safety
/// `table` is a page table of this program.
unsafe fn next(table: *mut u64, index: u64) -> Option<*mut u64> {
    // SAFETY: promised by the caller; the index stays inside.
    let entry = unsafe { table.add((index & 511) as usize) };
    // SAFETY: the entry lies in the table, see above.
    let value = unsafe { entry.read_volatile() };
    if value & PRESENT != 0 {
        return Some((value & ADDRESS) as *mut u64);
    }
    let made = dma_alloc(4096, 4096)?.as_ptr();
    // SAFETY: the entry lies in the table, see above.
    unsafe { entry.write_volatile(made as u64 | USER_TABLE) };
    Some(made.cast())
}

// The host's target expects these in the C library. String instructions are fast on all current
// CPUs, without CPU-specific code.

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    // SAFETY: the contract of memcpy.
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= len {
        // SAFETY: the contract of memmove; forwards is right here.
        return unsafe { memcpy(to, from, len) };
    }
    // SAFETY: the contract of memmove. Backwards, since the target begins inside
    // the source; `len` is not 0 here.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rcx") len => _,
            inout("rdi") to.add(len - 1) => _, inout("rsi") from.add(len - 1) => _,
            options(nostack));
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, len: usize) -> *mut u8 {
    // SAFETY: the contract of memset.
    unsafe {
        asm!("rep stosb", inout("rcx") len => _, inout("rdi") to => _, in("al") byte as u8,
            options(nostack, preserves_flags));
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
    let mut at = 0;
    // SAFETY: the contract of memcmp.
    unsafe {
        while at + 8 <= len {
            let (x, y) = (
                a.add(at).cast::<u64>().read_unaligned(),
                b.add(at).cast::<u64>().read_unaligned(),
            );
            if x != y {
                return if x.swap_bytes() < y.swap_bytes() { -1 } else { 1 };
            }
            at += 8;
        }
        while at < len {
            let (x, y) = (a.add(at).read(), b.add(at).read());
            if x != y {
                return i32::from(x) - i32::from(y);
            }
            at += 1;
        }
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
    // SAFETY: the same contract.
    unsafe { memcmp(a, b, len) }
}
