//! Types of QEMU's functions that take a callback, as of version 11.1.

use std::ffi::{c_int, c_void};

/// `qemu_add_vm_change_state_handler`
pub(crate) type OnChange = unsafe extern "C" fn(Changed, *mut c_void) -> *mut c_void;
type Changed = unsafe extern "C" fn(*mut c_void, bool, c_int);
/// `qemu_plugin_register_vcpu_init_cb`
pub(crate) type VcpuInit =
    unsafe extern "C" fn(u64, unsafe extern "C" fn(u32, *mut c_void), *mut c_void);
