//! The parameters with which the program was started: the Linux boot parameters, or those of a PVH
//! loader.

use core::ops::Range;

unsafe extern "C" {
    static boot_params: *const u8;
    static pvh_info: u64;
    static pvh_page_0: [u8; PAGE];
    static mut pvh_zero_page: [u8; 4096];
    static __image_end: u8;
    static loader_heap_size: usize;
}

// Offsets in the Linux boot parameters.
const RSDP: usize = 0x70;
const E820_ENTRIES: usize = 0x1e8;
const CMD_LINE_PTR: usize = 0x228;
const E820_TABLE: usize = 0x2d0;
const E820_ENTRY_SIZE: usize = 20;
const E820_MAX: usize = 128;
const E820_RAM: u32 = 1;
/// The page tables map this much.
const RAM_END: u64 = 0xc000_0000;
const COMMAND_LINE_MAX: usize = 2048;
const PAGE: usize = 4096;

/// The boot parameters that this program was given.
pub(crate) struct BootParams(*const u8);

impl BootParams {
    pub(crate) fn of_this_program() -> Self {
        // SAFETY: written by the boot stub, before anything else, and not changed since.
        Self(unsafe { boot_params })
    }

    /// # Safety
    /// A `T` at this offset is within the boot parameters, and any bits are one.
    unsafe fn get<T>(&self, offset: usize) -> T {
        // SAFETY: the boot stub stored the address of boot parameters, which nothing writes to
        // after they were made; the rest is promised by the caller.
        unsafe { self.0.add(offset).cast::<T>().read_unaligned() }
    }

    pub(crate) fn command_line(&self) -> &'static str {
        // SAFETY: within the boot parameters. The line ends with a NUL and stays where it is,
        // below the heap.
        unsafe {
            let start = self.get::<u32>(CMD_LINE_PTR) as *const u8;
            if start.is_null() {
                return "";
            }
            let len = (0..COMMAND_LINE_MAX).find(|&at| start.add(at).read() == 0).unwrap_or(0);
            str::from_utf8(core::slice::from_raw_parts(start, len)).unwrap_or("")
        }
    }

    pub(crate) fn rsdp(&self) -> u64 {
        // SAFETY: within the boot parameters.
        unsafe { self.get(RSDP) }
    }

    pub(crate) fn memory_map(self) -> impl Iterator<Item = (u64, u64, u32)> {
        // SAFETY: within the boot parameters.
        let entries = unsafe { self.get::<u8>(E820_ENTRIES) };
        (0..usize::from(entries).min(E820_MAX)).map(move |at| {
            let entry = E820_TABLE + at * E820_ENTRY_SIZE;
            // SAFETY: within the boot parameters, as there are not more than E820_MAX.
            unsafe { (self.get(entry), self.get(entry + 8), self.get(entry + 16)) }
        })
    }

    /// End of the RAM that holds `address`, as far as it is mapped.
    fn ram_end_above(self, address: usize) -> usize {
        let end = self.memory_map().find_map(|(start, size, kind)| {
            let end = start.saturating_add(size).min(RAM_END);
            let inside = kind == E820_RAM && (start..end).contains(&(address as u64));
            inside.then_some(end as usize)
        });
        end.unwrap_or(address)
    }
}

/// The range of the heap, which follows the program.
pub(crate) fn heap() -> Range<usize> {
    let image_end = (&raw const __image_end) as usize;
    image_end..BootParams::of_this_program().ram_end_above(image_end)
}

/// The range of a loader's heap, at the end of RAM. `None` if this program is not a loader.
pub(crate) fn loader_heap() -> Option<Range<usize>> {
    // SAFETY: only the linker writes it.
    let size = unsafe { loader_heap_size };
    let Range { start, end } = heap();
    (size > 0).then(|| end.saturating_sub(size).max(start)..end)
}

/// The address at which data can be read that a PVH loader has put at `address`. Page 0 was copied,
/// because it is not mapped.
fn readable(address: u64) -> usize {
    let address = address as usize;
    if address < PAGE { (&raw const pvh_page_0) as usize + address } else { address }
}

/// Converts the information of a PVH loader to boot parameters.
///
/// Source: Xen's public/arch-x86/hvm/start_info.h.
pub(crate) fn convert_start_info() {
    const MAGIC: u32 = 0x336e_c578;
    const ENTRY_SIZE: usize = 24;
    // SAFETY: stored by the boot stub; runs once, before anything reads the boot parameters. A
    // loader that enters there has start information of this form in mapped memory.
    unsafe {
        if pvh_info == 0 {
            return;
        }
        let info = readable(pvh_info) as *const u8;
        if info.cast::<u32>().read_unaligned() != MAGIC {
            return;
        }
        let word = |at: usize| info.add(at).cast::<u64>().read_unaligned();
        let (line, rsdp, map) = (word(24), word(32), word(40));
        let version = info.add(4).cast::<u32>().read_unaligned();
        let entries = if version == 0 { 0 } else { word(48) as u32 as usize };
        let page = &raw mut pvh_zero_page;
        let put = |at: usize, bytes: &[u8]| {
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), page.cast::<u8>().add(at), bytes.len());
        };
        let line = if line == 0 { 0 } else { readable(line) };
        put(CMD_LINE_PTR, &(line as u32).to_le_bytes());
        put(RSDP, &rsdp.to_le_bytes());
        let entries = entries.min(E820_MAX);
        put(E820_ENTRIES, &[entries as u8]);
        for at in 0..entries {
            // Start, size and type follow each other in both.
            let from = readable(map + (at * ENTRY_SIZE) as u64) as *const u8;
            let entry = core::slice::from_raw_parts(from, E820_ENTRY_SIZE);
            put(E820_TABLE + at * E820_ENTRY_SIZE, entry);
        }
    }
}

/// Returns true if a PVH loader has started this program.
pub(crate) fn is_pvh() -> bool {
    // SAFETY: written by the boot stub, before anything else.
    unsafe { pvh_info != 0 }
}
