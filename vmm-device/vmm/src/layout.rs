//! The guest-physical address map and the I/O ports. Ours, in the manner of a
//! PC with Intel's Q35 chipset so that Linux finds nothing surprising.
//!
//! # Guest-physical memory
//!
//! The addresses of the interrupt controllers are public (their reset values).
//!
//! | from | size | contents |
//! |---|---|---|
//! | `0` | up to 3 GiB | RAM |
//! | `0xc000_0000` | 512 MiB | BARs below 4 GiB |
//! | `0xe000_0000` | 256 MiB | ECAM: configuration space of 256 buses, of which bus 0 exists |
//! | `0xfec0_0000` | 4 KiB | I/O APIC, in KVM |
//! | `0xfee0_0000` | 4 KiB | local APICs, in KVM |
//! | `0xfffb_c000` | 16 KiB | used by KVM itself on Intel hosts |
//! | `0x1_0000_0000` | | RAM beyond 3 GiB |
//!
//! From the half of the physical address space, or from 64 GiB if that is less, to its end, or to
//! 64 TiB, there are 64-bit prefetchable BARs.
//!
//! The first MiB holds boot data (ours, within what the protocols allow):
//!
//! | address | contents |
//! |---|---|
//! | `0x500`, `0x520` | GDT, IDT |
//! | `0x6000` | PVH start information, module list, memory map |
//! | `0x7000` | Linux boot parameters ("zero page") |
//! | `0x9000` | page tables: identity mapping of the first 4 GiB |
//! | `0xf000` to `0x1_8000` | initial stack for a 64-bit entry |
//! | `0x2_0000` | command line |
//! | `0x9_fc00` | end of conventional memory |
//! | `0xe_0000` | ACPI tables up to `0x10_0000`, the RSDP first |
//!
//! The memory map given to Linux has all RAM but `0x9_fc00` to `0x10_0000`, and marks the tables'
//! area and ECAM as reserved. `VmConfig::shared_memory` backs RAM with one memory file, regions in
//! order of address, which another process can map.
//!
//! # I/O ports
//!
//! | port | device | guests |
//! |---|---|---|
//! | `0x20`.., `0xa0`.., `0x4d0` | interrupt controllers (8259), in KVM | all |
//! | `0x40`.., `0x61` | timer (8254), in KVM | Linux |
//! | `0x64` | keyboard controller: writing `0xfe` resets; it has no other function | all |
//! | `0x70`, `0x71` | real-time clock and CMOS memory (MC146818) | Linux |
//! | `0xf4`, `0xf8` | exit with a code; print a character (ours) | all |
//! | `0x3f8`.. | 16550 serial port, IRQ 4 | all |
//! | `0x600`.. | ACPI PM1 event and control registers, PM timer at `0x608` | Linux with ACPI |
//! | `0xcf8`, `0xcfc` | PCI configuration type 1 | all |
//! | `0xcf9` | reset control register: bit 2 resets | Linux |
//!
//! The clock shows the host's time in UTC. Guests cannot set it, and it has no alarms. All other
//! ports read as ones and ignore writes.
//!
//! A VM ends with an `Outcome`: `PoweredOff` by sleep type 5, `Reset` by either reset port, a
//! triple fault, an exit code, a KVM error, or a stop from outside.
//!
//! Of input to the serial port 4 KiB wait for a guest that does not read.

/// End of the RAM below 4 GiB, and start of [`MMIO32_START`]'s window.
pub const LOW_RAM_END: u64 = 0xc000_0000;
/// First address of BARs that must live below 4 GiB.
pub const MMIO32_START: u64 = 0xc000_0000;
/// End of the window at [`MMIO32_START`].
pub const MMIO32_END: u64 = 0xe000_0000;
/// PCI Express configuration space: 4 KiB a function, 8 functions a device, 32
/// devices a bus. Only bus 0 has devices.
pub const ECAM_START: u64 = 0xe000_0000;
/// Size of the configuration space window: 256 buses of 1 MiB.
pub const ECAM_SIZE: u64 = 0x1000_0000;
/// RAM that does not fit below [`LOW_RAM_END`] continues here.
pub const HIGH_RAM_START: u64 = 0x1_0000_0000;
/// First address of 64-bit prefetchable BARs on hosts with at least 37 physical
/// address bits; half of the address space on others.
pub const MMIO64_START: u64 = 0x10_0000_0000;

/// Boot GDT (4 entries).
pub const BOOT_GDT: u64 = 0x500;
/// Empty boot IDT.
pub const BOOT_IDT: u64 = 0x520;
/// PVH start information, its list of modules and its memory map (Linux by the
/// PVH entry only).
pub const PVH_START_INFO: u64 = 0x6000;
/// Linux boot parameters ("zero page"), 4 KiB; its address is in RSI at entry.
pub const ZERO_PAGE: u64 = 0x7000;
/// Boot page tables: PML4, PDPT and four page directories, 4 KiB each. After them comes the boot
/// stack.
pub const BOOT_PAGE_TABLES: u64 = 0x9000;
/// RSP at entry, from which the boot stack grows down.
pub const BOOT_STACK_TOP: u64 = 0x1_8000;
/// Command line, NUL-terminated.
pub const COMMAND_LINE: u64 = 0x2_0000;
/// Longest command line in bytes without its NUL: Linux on x86 takes 2048
/// bytes with it.
pub const COMMAND_LINE_MAX: usize = 2047;
/// Conventional memory ends here: BIOS data and the VGA window follow, which
/// the memory map leaves out.
pub const LOW_MEMORY_END: u64 = 0x9_fc00;
/// ACPI tables (for Linux guests that request them), beginning with the RSDP. They are in the area
/// where a PC's firmware keeps it, which the memory map reserves.
pub const ACPI_START: u64 = 0xe_0000;
/// End of the room for ACPI tables.
pub const ACPI_END: u64 = 0x10_0000;
/// Images are loaded from here on; the addresses of a program must not be lower.
pub const IMAGE_START: u64 = 0x10_0000;

/// I/O APIC, in KVM.
pub const IOAPIC_START: u32 = 0xfec0_0000;
/// Local APIC, in KVM.
pub const LAPIC_START: u32 = 0xfee0_0000;
/// Most vCPUs of a VM.
pub const VCPUS_MAX: u8 = 16;

/// First port of the 16550 serial port ("COM1"), 8 ports.
pub const PORT_SERIAL: u16 = 0x3f8;
/// Interrupt line of the serial port.
pub const SERIAL_IRQ: u32 = 4;
/// i8042 keyboard controller command port: writing `0xfe` resets the machine.
pub const PORT_I8042: u16 = 0x64;
/// PCI configuration address, 32 bits.
pub const PORT_PCI_ADDRESS: u16 = 0xcf8;
/// PCI configuration data, 4 ports.
pub const PORT_PCI_DATA: u16 = 0xcfc;
/// Reset control register, 8 bits: a write with bit 2 set resets the machine.
/// Linux guests only.
pub const PORT_RESET: u16 = 0xcf9;
/// Real-time clock and its CMOS memory: index here, data in the next port. Linux
/// guests only.
pub const PORT_CMOS: u16 = 0x70;
/// ACPI PM1 status and enable registers, 16 bits each. These and the next two are
/// there for Linux guests with ACPI only.
pub const PORT_PM1_EVENT: u16 = 0x600;
/// ACPI PM1 control register, 16 bits: sleep type 5 with the sleep bit powers
/// off.
pub const PORT_PM1_CONTROL: u16 = 0x604;
/// ACPI power management timer: 24 bits, 3.579545 MHz.
pub const PORT_PM_TIMER: u16 = 0x608;
/// Interrupt line for ACPI events. This machine has none.
pub const SCI_IRQ: u32 = 9;
/// A 32-bit write here ends the VM with the written value as its exit code
/// (ours; QEMU's isa-debug-exit sits on the same port).
pub const PORT_EXIT: u16 = 0xf4;
/// A 32-bit write here prints (ours): the value is the guest-physical address of a 32-bit length in
/// bytes, at most [`PRINT_MAX`], and that much text, which is handled as the serial port's output.
/// This takes one exit per line; the serial port takes one per byte.
pub const PORT_PRINT: u16 = 0xf8;
/// Most bytes that one write to [`PORT_PRINT`] prints; the rest is cut off.
pub const PRINT_MAX: u32 = 1024;
