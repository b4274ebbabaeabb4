// SPDX-License-Identifier: GPL-2.0

//! The functions of shim.c.

use kernel::bindings;
use kernel::ffi::{c_char, c_int, c_long, c_ulong, c_void};

/// An entry of /proc, which only C looks into.
#[repr(C)]
pub(crate) struct ProcEntry {
    _opaque: [u8; 0],
}

// The structs that C alone looks into have fields without size in some configurations.
#[allow(improper_ctypes)]
extern "C" {
    pub(crate) fn tofu_shim_proc_folder(
        name: *const c_char,
        parent: *mut ProcEntry,
    ) -> *mut ProcEntry;
    pub(crate) fn tofu_shim_proc_file(
        name: *const c_char,
        mode: bindings::umode_t,
        parent: *mut ProcEntry,
        node: *mut c_void,
    ) -> *mut ProcEntry;
    pub(crate) fn tofu_shim_proc_remove(entry: *mut ProcEntry);

    pub(crate) fn tofu_shim_map_registers(
        vma: *mut bindings::vm_area_struct,
        addr: bindings::phys_addr_t,
        len: c_ulong,
    ) -> c_int;
    pub(crate) fn tofu_shim_map_table(
        vma: *mut bindings::vm_area_struct,
        table: *mut c_void,
    ) -> c_int;
    pub(crate) fn tofu_shim_table_alloc(len: c_ulong) -> *mut c_void;
    pub(crate) fn tofu_shim_table_free(table: *mut c_void);

    pub(crate) fn tofu_shim_page_phys(page: *mut bindings::page) -> bindings::phys_addr_t;
    pub(crate) fn tofu_shim_page_address(page: *mut bindings::page) -> *mut c_void;
    pub(crate) fn tofu_shim_total_pages() -> c_ulong;
    pub(crate) fn tofu_shim_pinned_account(mm: *mut bindings::mm_struct, pages: c_long);

    pub(crate) fn tofu_shim_current_pid() -> *mut bindings::pid;
    pub(crate) fn tofu_shim_signal(
        pid: *mut bindings::pid,
        signo: c_int,
        code: c_int,
        value: c_int,
    );
}
