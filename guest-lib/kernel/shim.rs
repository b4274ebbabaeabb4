// SPDX-License-Identifier: GPL-2.0

//! The functions of shim.c and netdev.c, and their arguments.

use kernel::bindings;
use kernel::ffi::{c_char, c_int, c_long, c_ulong, c_void};

use tofu_abi::{BgId, CqId, Rcode, TniId};
use tofu_ipotofu::offload::Fields;

/// An entry of /proc, opaque to Rust.
#[repr(C)]
pub(crate) struct ProcEntry {
    _opaque: [u8; 0],
}

/// A network interface, opaque to Rust.
#[repr(C)]
pub(crate) struct NetDevice {
    _opaque: [u8; 0],
}

/// A pair of queues of an interface, opaque to Rust.
#[repr(C)]
pub(crate) struct NetQueue {
    _opaque: [u8; 0],
}

/// A frame, opaque to Rust.
#[repr(C)]
pub(crate) struct SkBuff {
    _opaque: [u8; 0],
}

/// Memory with frames that is mapped for the device, opaque to Rust.
#[repr(C)]
pub(crate) struct ReadAreas {
    _opaque: [u8; 0],
}

/// `struct tofu_net_setup`: the settings of an interface.
#[repr(C)]
pub(crate) struct NetSetup {
    pub(crate) links: *const *mut c_void,
    pub(crate) vectors: *const u16,
    pub(crate) queues: u32,
    pub(crate) parent: *mut bindings::device,
    pub(crate) name: *const c_char,
    pub(crate) mac: [u8; 6],
    pub(crate) mtu: u16,
    pub(crate) min_mtu: u16,
    pub(crate) max_mtu: u16,
    pub(crate) rx_buffers: u16,
    pub(crate) tx_buffers: u16,
}

/// Bytes of the pages for fetched frames, as netdev.c allocates them.
pub(crate) const CHUNK: usize = 32 << 10;
/// The most contiguous parts of a frame in device addresses.
pub(crate) const MAX_RUNS: usize = 17;

/// `struct tofu_run`: a contiguous run of device addresses.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct DmaRun {
    pub(crate) addr: u64,
    pub(crate) len: u32,
}

// The opaque structs have zero-sized fields in some configurations.
#[allow(improper_ctypes)]
// The signatures are those of shim.c and netdev.c. The safe functions take only plain values.
unsafe extern "C" {
    pub(crate) fn tofu_shim_proc_folder(
        name: *const c_char,
        parent: *mut ProcEntry,
    ) -> *mut ProcEntry;
    pub(crate) fn tofu_shim_proc_file(
        name: *const c_char,
        mode: bindings::umode_t,
        parent: *mut ProcEntry,
        entry: *mut c_void,
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
    pub(crate) safe fn tofu_shim_table_alloc(len: c_ulong) -> *mut c_void;
    pub(crate) fn tofu_shim_table_free(table: *mut c_void);

    pub(crate) fn tofu_shim_page_phys(page: *mut bindings::page) -> bindings::phys_addr_t;
    pub(crate) fn tofu_shim_page_address(page: *mut bindings::page) -> *mut c_void;
    pub(crate) safe fn tofu_shim_total_pages() -> c_ulong;
    pub(crate) fn tofu_shim_charge(
        cred: *const bindings::cred,
        pages: c_ulong,
        most: c_ulong,
    ) -> c_int;
    pub(crate) fn tofu_shim_uncharge(cred: *const bindings::cred, pages: c_ulong);
    pub(crate) fn tofu_shim_pinned_account(mm: *mut bindings::mm_struct, pages: c_long);

    pub(crate) safe fn tofu_shim_current_pid() -> *mut bindings::pid;
    pub(crate) safe fn tofu_shim_current_cred() -> *const bindings::cred;
    pub(crate) fn tofu_shim_is_current_cred(cred: *const bindings::cred) -> bool;
    pub(crate) fn tofu_shim_watch_resets(pdev: *mut bindings::pci_dev, data: *mut c_void);
    pub(crate) fn tofu_shim_unwatch_resets();
    pub(crate) fn tofu_shim_report(what: *const c_char);
    pub(crate) safe fn tofu_shim_report_healthy();
    pub(crate) fn tofu_shim_is_awake(pdev: *mut bindings::pci_dev) -> bool;
    pub(crate) fn tofu_shim_is_pulled_out(pdev: *mut bindings::pci_dev) -> bool;
    pub(crate) fn tofu_shim_recover(pdev: *mut bindings::pci_dev);
    pub(crate) safe fn tofu_shim_trace_gate_fault(
        tni: TniId,
        bg: BgId,
        channel: u32,
        requests: u64,
    );
    pub(crate) fn tofu_shim_signal(
        pid: *mut bindings::pid,
        mm: *const bindings::mm_struct,
        cred: *const bindings::cred,
        signo: c_int,
        code: c_int,
        value: c_int,
        if_handled: bool,
    );

    // netdev.c
    pub(crate) fn tofu_shim_net_add(setup: *const NetSetup, error: *mut c_int) -> *mut NetDevice;
    pub(crate) fn tofu_shim_net_remove(dev: *mut NetDevice);
    pub(crate) fn tofu_shim_net_detach(dev: *mut NetDevice);
    pub(crate) fn tofu_shim_net_attach(dev: *mut NetDevice) -> c_int;
    pub(crate) fn tofu_shim_schedule_napi(queue: *mut NetQueue);
    pub(crate) fn tofu_shim_start_timer(queue: *mut NetQueue);
    pub(crate) fn tofu_shim_start_hrtimer(queue: *mut NetQueue, nanoseconds: u64);
    pub(crate) fn tofu_shim_stop_queue(queue: *mut NetQueue);
    pub(crate) fn tofu_shim_wake_queue(queue: *mut NetQueue);
    pub(crate) fn tofu_shim_queue_stopped(queue: *mut NetQueue) -> bool;
    pub(crate) fn tofu_shim_set_carrier(queue: *mut NetQueue, on: bool);
    pub(crate) fn tofu_shim_count_tx(queue: *mut NetQueue, len: u32, sent: bool);
    pub(crate) fn tofu_shim_account(
        queue: *mut NetQueue,
        posted: u32,
        packets: u32,
        bytes: u32,
    ) -> i32;
    pub(crate) fn tofu_shim_local_bh(off: bool);
    pub(crate) safe fn tofu_shim_param_shape() -> *const c_char;
    pub(crate) safe fn tofu_shim_param_torus() -> *const c_char;
    pub(crate) safe fn tofu_shim_param_machine() -> u32;
    pub(crate) safe fn tofu_shim_param_mtu() -> u32;
    pub(crate) safe fn tofu_shim_param_interfaces() -> u32;
    pub(crate) safe fn tofu_shim_param_queues() -> u32;
    pub(crate) fn tofu_shim_skb_len(skb: *const SkBuff) -> u32;
    pub(crate) fn tofu_shim_skb_read(
        skb: *const SkBuff,
        at: u32,
        to: *mut c_void,
        len: u32,
    ) -> c_int;
    pub(crate) fn tofu_shim_skb_offload(skb: *const SkBuff, offload: *mut Fields) -> bool;
    pub(crate) fn tofu_shim_skb_complete(skb: *mut SkBuff) -> *mut SkBuff;
    pub(crate) fn tofu_shim_skb_gso_segment(skb: *mut SkBuff) -> *mut SkBuff;
    pub(crate) fn tofu_shim_skb_next(skb: *mut SkBuff) -> *mut SkBuff;
    pub(crate) fn tofu_shim_skb_append(list: *mut SkBuff, rest: *mut SkBuff);
    pub(crate) fn tofu_shim_consume_skb(skb: *mut SkBuff);
    pub(crate) fn tofu_shim_skb_orphan(skb: *mut SkBuff);
    pub(crate) fn tofu_shim_is_direct(dev: *mut bindings::device) -> bool;
    pub(crate) fn tofu_shim_skb_head(skb: *const SkBuff) -> u32;
    pub(crate) fn tofu_shim_areas_new(dev: *mut bindings::device) -> *mut ReadAreas;
    pub(crate) fn tofu_shim_areas_free(areas: *mut ReadAreas);
    pub(crate) fn tofu_shim_areas_find(
        areas: *mut ReadAreas,
        skb: *const SkBuff,
        from: u32,
        runs: *mut DmaRun,
    ) -> u32;
    pub(crate) fn tofu_shim_chunk_new(
        dev: *mut bindings::device,
        addr: *mut u64,
    ) -> *mut bindings::page;
    pub(crate) fn tofu_shim_chunk_free(
        dev: *mut bindings::device,
        page: *mut bindings::page,
        addr: u64,
    );
    pub(crate) fn tofu_shim_chunk_is_free(page: *mut bindings::page) -> bool;
    pub(crate) fn tofu_shim_chunk_sync(
        dev: *mut bindings::device,
        addr: u64,
        len: u32,
        to_device: bool,
    );
    pub(crate) fn tofu_shim_skb_add(
        skb: *mut SkBuff,
        page: *mut bindings::page,
        at: u32,
        len: u32,
        copy: bool,
    ) -> bool;
    pub(crate) fn tofu_shim_skb_new(queue: *mut NetQueue, len: u32) -> *mut SkBuff;
    pub(crate) fn tofu_shim_skb_write(
        skb: *mut SkBuff,
        at: u32,
        from: *const c_void,
        len: u32,
    ) -> c_int;
    pub(crate) fn tofu_shim_skb_part(skb: *const SkBuff, at: u32, len: *mut u32) -> *mut c_void;
    pub(crate) fn tofu_shim_skb_free(skb: *mut SkBuff);
    pub(crate) fn tofu_shim_skb_receive(
        queue: *mut NetQueue,
        skb: *mut SkBuff,
        offload: *const Fields,
    ) -> bool;
    pub(crate) fn tofu_shim_skb_answer(queue: *mut NetQueue, frame: *const c_void, len: u32);
    pub(crate) safe fn tofu_shim_trace_doorbell(tni: TniId, cq: CqId, orders: u32);
    pub(crate) safe fn tofu_shim_trace_completion(tni: TniId, cq: CqId, slot: u32, rcode: Rcode);
    pub(crate) safe fn tofu_shim_trace_packet(
        tni: TniId,
        origin: u32,
        id: u32,
        offset: u16,
        length: u16,
        kind: u8,
    );
    pub(crate) safe fn tofu_shim_trace_fault(tni: TniId, cq: CqId, requests: u64);
}
