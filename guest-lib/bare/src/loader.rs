//! For a program that loads another one and starts it in its place, as boot firmware does.
//!
//! Such a program is linked below the others, at 1 MiB, and has its heap at the end of RAM:
//!
//! ```ignore
//! println!("cargo::rustc-link-arg-bin=NAME=-Wl,--defsym=__image_base=0x100000");
//! println!("cargo::rustc-link-arg-bin=NAME=-Wl,--defsym=__loader_heap=0x300000");
//! ```
//!
//! [`take_ram`] returns the memory in between, in which images are fetched and placed. [`start`]
//! then brings the machine into the state in which the machine monitor (`tofu-vmm`) starts an
//! image.

use core::sync::atomic::{AtomicBool, Ordering};

use crate::boot_params::{self, BootParams};
use crate::{console, irq, mem, service};

/// Address of the boot parameters that an image is given.
pub const ZERO_PAGE: u64 = 0x7000;
/// Address of the command line that an image is given.
pub const COMMAND_LINE: u64 = 0x2_0000;
/// Bytes of the longest command line, without its NUL.
pub const COMMAND_LINE_MAX: usize = 2047;

/// The lowest address of an image. The loader itself is below.
pub const IMAGE_START: u64 = 0x20_0000;

const BOOT_GDT: usize = 0x500;
const BOOT_IDT: usize = 0x520;
const BOOT_PAGE_TABLES: usize = 0x9000;
const GDT: [u64; 4] = [0, 0x00cf_9b00_0000_ffff, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];
const TABLE: u64 = 0b11;
const LARGE: u64 = 0b1000_0011;

unsafe extern "C" {
    static service_start: u8;
}

/// Start, size and type (of the E820 BIOS call) of all memory.
pub fn memory_map() -> impl Iterator<Item = (u64, u64, u32)> {
    BootParams::of_this_program().memory_map()
}

/// Address of the ACPI root pointer; 0 if it is not known.
pub fn rsdp() -> u64 {
    BootParams::of_this_program().rsdp()
}

/// RAM that begins at [`IMAGE_START`].
#[derive(Debug)]
pub struct Ram {
    bytes: &'static mut [u8],
}

impl Ram {
    /// All of it.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// Its addresses.
    pub fn range(&self) -> core::ops::Range<u64> {
        IMAGE_START..IMAGE_START + self.bytes.len() as u64
    }
}

/// The RAM from [`IMAGE_START`] to the loader's heap, once; `None` the second time, and if this
/// program is not linked as a loader or there is none.
pub fn take_ram() -> Option<Ram> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let end = boot_params::loader_heap()?.start;
    let len = end.checked_sub(IMAGE_START as usize)?;
    if TAKEN.swap(true, Ordering::Relaxed) {
        return None;
    }
    mem::map_page_below_images();
    // SAFETY: RAM by the memory map, mapped, behind this program and before its heap, and handed
    // out once.
    let bytes = unsafe { core::slice::from_raw_parts_mut(IMAGE_START as *mut u8, len) };
    Some(Ram { bytes })
}

/// Ends this program and enters an image, in 64-bit mode with the first 4 GiB mapped one to one.
/// The image finds the boot parameters and the command line at [`ZERO_PAGE`] and [`COMMAND_LINE`],
/// which the former should say. A command line that is too long is cut.
///
/// # Safety
/// `entry` leads to code that can run in ring 0 and expects this state. It is within the first 4
/// GiB and not where this program is. No device writes to memory any more.
pub unsafe fn start(entry: u64, zero_page: &[u8; 4096], command_line: &str) -> ! {
    let line = &command_line.as_bytes()[..command_line.len().min(COMMAND_LINE_MAX)];
    mem::map_page_0();
    // SAFETY: this is RAM in every PC, below the BIOS's, and no longer in use: this program's boot
    // parameters and command line are there, and are not read again.
    unsafe {
        let put = |at: usize, bytes: &[u8]| {
            core::ptr::copy(bytes.as_ptr(), at as *mut u8, bytes.len());
        };
        let put64 = |at: usize, value: u64| put(at, &value.to_le_bytes());
        // The line may come from where it goes to.
        put(COMMAND_LINE as usize, line);
        put(COMMAND_LINE as usize + line.len(), &[0]);
        put(ZERO_PAGE as usize, zero_page);
        for (at, entry) in GDT.into_iter().enumerate() {
            put64(BOOT_GDT + 8 * at, entry);
        }
        put64(BOOT_IDT, 0);
        let (pdpt, directories) = (BOOT_PAGE_TABLES + 0x1000, BOOT_PAGE_TABLES + 0x2000);
        for table in [BOOT_PAGE_TABLES, pdpt] {
            put(table, &[0; 4096]);
        }
        put64(BOOT_PAGE_TABLES, pdpt as u64 | TABLE);
        for gib in 0..4 {
            put64(pdpt + 8 * gib, (directories + 0x1000 * gib) as u64 | TABLE);
        }
        for page in 0..4 * 512 {
            put64(directories + 8 * page, (page as u64) << 21 | LARGE);
        }
    }
    irq::reset();
    console::flush();
    // SAFETY: promised by the caller; the tables that the service switches to were written above.
    unsafe { service::start(&raw const service_start, entry, ZERO_PAGE) }
}
