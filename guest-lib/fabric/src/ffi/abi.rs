//! The structures of libfabric's ABI, versions 1.17 to 2.5, as far as a provider of reliable
//! datagrams needs them. Names and layouts are those of libfabric's public headers.
//!
//! Structures that have grown at their end from version to version have the fields that all have.

use std::ffi::{c_char, c_int, c_void};

pub(super) const AGAIN: isize = -11;
pub(super) const NO_MEMORY: c_int = -12;
pub(super) const BUSY: c_int = -16;
pub(super) const INVALID: c_int = -22;
pub(super) const NO_FUNCTION: c_int = -38;
pub(super) const NO_DATA: c_int = -61;
pub(super) const NOT_SUPPORTED: c_int = -95;

pub(super) const OTHER: c_int = -256;
pub(super) const TOO_SMALL: isize = -257;
pub(super) const BAD_STATE: c_int = -258;
pub(super) const ERROR_THERE: isize = -259;

pub(super) const ENOENT: c_int = 2;
pub(super) const ENOMEM: c_int = 12;
pub(super) const EACCES: c_int = 13;
pub(super) const ENOMSG: c_int = 42;
pub(super) const EHOSTUNREACH: c_int = 113;
pub(super) const ECANCELED: c_int = 125;
pub(super) const ETRUNC: c_int = 265;
pub(super) const ENOKEY: c_int = 266;

pub(super) const MSG: u64 = 1 << 1;
pub(super) const RMA: u64 = 1 << 2;
pub(super) const TAGGED: u64 = 1 << 3;
pub(super) const ATOMIC: u64 = 1 << 4;
/// Also a flag of address vectors with names, which are opened read-only.
pub(super) const READ: u64 = 1 << 8;
pub(super) const WRITE: u64 = 1 << 9;
pub(super) const RECV: u64 = 1 << 10;
pub(super) const SEND: u64 = 1 << 11;
pub(super) const REMOTE_READ: u64 = 1 << 12;
pub(super) const REMOTE_WRITE: u64 = 1 << 13;
pub(super) const MULTI_RECV: u64 = 1 << 16;
pub(super) const REMOTE_CQ_DATA: u64 = 1 << 17;
pub(super) const PEEK: u64 = 1 << 19;
pub(super) const COMPLETION: u64 = 1 << 24;
pub(super) const INJECT: u64 = 1 << 25;
pub(super) const INJECT_COMPLETE: u64 = 1 << 26;
pub(super) const TRANSMIT_COMPLETE: u64 = 1 << 27;
pub(super) const DELIVERY_COMPLETE: u64 = 1 << 28;
pub(super) const LOCAL_COMM: u64 = 1 << 51;
pub(super) const REMOTE_COMM: u64 = 1 << 52;
pub(super) const DISCARD: u64 = 1 << 58;
pub(super) const RMA_EVENT: u64 = 1 << 56;
pub(super) const SOURCE: u64 = 1 << 57;
/// `FI_DIRECTED_RECV` as a capability, `FI_CLAIM` as a flag of a receive.
pub(super) const DIRECTED_RECV: u64 = 1 << 59;
pub(super) const CLAIM: u64 = 1 << 59;
/// As a flag of `fi_bind`.
pub(super) const SELECTIVE_COMPLETION: u64 = 1 << 59;
pub(super) const ORDER_SAS: u64 = 1 << 8;
/// The orders of reads and writes among each other, of RMA and of atomic operations.
pub(super) const ORDER_ACCESSES: u64 = 0b11011 | 0xff << 32;
pub(super) const ADDR_UNSPEC: u64 = u64::MAX;

pub(super) const EP_RDM: c_int = 3;
pub(super) const AV_TABLE: c_int = 2;
pub(super) const THREAD_SAFE: c_int = 1;
pub(super) const PROGRESS_AUTO: c_int = 1;
pub(super) const PROGRESS_MANUAL: c_int = 2;
pub(super) const RM_ENABLED: c_int = 2;
/// Modes of registration of programs that are older than its bits.
pub(super) const MR_BASIC: c_int = 1;
pub(super) const MR_SCALABLE: c_int = 2;
/// Ways to wait.
pub(super) const WAIT_NONE: c_int = 0;
pub(super) const WAIT_UNSPEC: c_int = 1;
pub(super) const WAIT_FD: c_int = 3;
pub(super) const WAIT_YIELD: c_int = 5;
pub(super) const CONTROL_GETWAIT: c_int = 5;
pub(super) const CONTROL_ENABLE: c_int = 6;
pub(super) const OPT_MIN_MULTI_RECV: c_int = 0;
/// The longest message with and without a tag and access to a region, and the longest atomic
/// operation; then the same for operations whose memory the program may reuse immediately.
pub(super) const OPT_MAX: [c_int; 4] = [12, 13, 14, 15];
pub(super) const OPT_INJECT: [c_int; 4] = [16, 17, 18, 19];

/// Classes of objects.
pub(super) mod class {
    pub(in crate::ffi) const FABRIC: usize = 1;
    pub(in crate::ffi) const DOMAIN: usize = 2;
    pub(in crate::ffi) const EP: usize = 3;
    pub(in crate::ffi) const AV: usize = 11;
    pub(in crate::ffi) const MR: usize = 12;
    pub(in crate::ffi) const EQ: usize = 13;
    pub(in crate::ffi) const CQ: usize = 14;
    pub(in crate::ffi) const CNTR: usize = 15;
}

/// A function that is not there. It reads no arguments, so it can be called as any.
pub(super) type Absent = unsafe extern "C" fn() -> isize;

/// Returns that a function is not there.
pub(super) unsafe extern "C" fn absent() -> isize {
    NO_FUNCTION as isize
}

#[repr(C)]
pub(super) struct Provider {
    pub(super) version: u32,
    pub(super) fi_version: u32,
    pub(super) context: [usize; 4],
    pub(super) name: *const c_char,
    pub(super) getinfo: unsafe extern "C" fn(
        u32,
        *const c_char,
        *const c_char,
        u64,
        *const Info,
        *mut *mut Info,
    ) -> c_int,
    pub(super) fabric: unsafe extern "C" fn(*mut FabricAttr, *mut *mut Fid, *mut c_void) -> c_int,
    pub(super) cleanup: unsafe extern "C" fn(),
}

#[repr(C)]
pub(super) struct Info {
    pub(super) next: *mut Info,
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) addr_format: u32,
    pub(super) src_addrlen: usize,
    pub(super) dest_addrlen: usize,
    pub(super) src_addr: *mut c_void,
    pub(super) dest_addr: *mut c_void,
    pub(super) handle: *mut Fid,
    pub(super) tx_attr: *mut TxAttr,
    pub(super) rx_attr: *mut RxAttr,
    pub(super) ep_attr: *mut EpAttr,
    pub(super) domain_attr: *mut DomainAttr,
    pub(super) fabric_attr: *mut FabricAttr,
    pub(super) nic: *mut c_void,
}

#[repr(C)]
pub(super) struct TxAttr {
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) op_flags: u64,
    pub(super) msg_order: u64,
    pub(super) comp_order: u64,
    pub(super) inject_size: usize,
    pub(super) size: usize,
    pub(super) iov_limit: usize,
    pub(super) rma_iov_limit: usize,
    pub(super) tclass: u32,
}

#[repr(C)]
pub(super) struct RxAttr {
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) op_flags: u64,
    pub(super) msg_order: u64,
    pub(super) comp_order: u64,
    pub(super) total_buffered_recv: usize,
    pub(super) size: usize,
    pub(super) iov_limit: usize,
}

#[repr(C)]
pub(super) struct EpAttr {
    pub(super) kind: c_int,
    pub(super) protocol: u32,
    pub(super) protocol_version: u32,
    pub(super) max_msg_size: usize,
    pub(super) msg_prefix_size: usize,
    pub(super) max_order_raw_size: usize,
    pub(super) max_order_war_size: usize,
    pub(super) max_order_waw_size: usize,
    pub(super) mem_tag_format: u64,
    pub(super) tx_ctx_cnt: usize,
    pub(super) rx_ctx_cnt: usize,
    pub(super) auth_key_size: usize,
    pub(super) auth_key: *mut u8,
}

#[repr(C)]
pub(super) struct DomainAttr {
    pub(super) domain: *mut Fid,
    pub(super) name: *mut c_char,
    pub(super) threading: c_int,
    pub(super) control_progress: c_int,
    pub(super) data_progress: c_int,
    pub(super) resource_mgmt: c_int,
    pub(super) av_type: c_int,
    pub(super) mr_mode: c_int,
    pub(super) mr_key_size: usize,
    pub(super) cq_data_size: usize,
    pub(super) cq_cnt: usize,
    pub(super) ep_cnt: usize,
    pub(super) tx_ctx_cnt: usize,
    pub(super) rx_ctx_cnt: usize,
    pub(super) max_ep_tx_ctx: usize,
    pub(super) max_ep_rx_ctx: usize,
    pub(super) max_ep_stx_ctx: usize,
    pub(super) max_ep_srx_ctx: usize,
    pub(super) cntr_cnt: usize,
    pub(super) mr_iov_limit: usize,
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) auth_key: *mut u8,
    pub(super) auth_key_size: usize,
    pub(super) max_err_data: usize,
    pub(super) mr_cnt: usize,
    pub(super) tclass: u32,
}

#[repr(C)]
pub(super) struct FabricAttr {
    pub(super) fabric: *mut Fid,
    pub(super) name: *mut c_char,
    pub(super) prov_name: *mut c_char,
    pub(super) prov_version: u32,
    pub(super) api_version: u32,
}

/// The beginning of each object.
#[repr(C)]
pub(super) struct Fid {
    pub(super) class: usize,
    pub(super) context: *mut c_void,
    pub(super) ops: *const Ops,
}

#[repr(C)]
pub(super) struct Ops {
    pub(super) size: usize,
    pub(super) close: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub(super) bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    pub(super) control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
    pub(super) ops_open: Absent,
    pub(super) tostr: Absent,
    pub(super) ops_set: Absent,
}

impl Ops {
    /// A table for objects that can be closed only.
    pub(super) const fn closing(close: unsafe extern "C" fn(*mut Fid) -> c_int) -> Self {
        Self {
            size: size_of::<Self>(),
            close,
            bind: no_bind,
            control: no_control,
            ops_open: absent,
            tostr: absent,
            ops_set: absent,
        }
    }
}

unsafe extern "C" fn no_bind(_: *mut Fid, _: *mut Fid, _: u64) -> c_int {
    NO_FUNCTION
}

unsafe extern "C" fn no_control(_: *mut Fid, _: c_int, _: *mut c_void) -> c_int {
    NO_FUNCTION
}

pub(super) type OpenWith<A> =
    unsafe extern "C" fn(*mut Fid, *mut A, *mut *mut Fid, *mut c_void) -> c_int;

#[repr(C)]
pub(super) struct OpsFabric {
    pub(super) size: usize,
    pub(super) domain: OpenWith<Info>,
    pub(super) passive_ep: Absent,
    pub(super) eq_open: OpenWith<EqAttr>,
    pub(super) wait_open: Absent,
    pub(super) trywait: unsafe extern "C" fn(*mut Fid, *mut *mut Fid, c_int) -> c_int,
    pub(super) domain2:
        unsafe extern "C" fn(*mut Fid, *mut Info, *mut *mut Fid, u64, *mut c_void) -> c_int,
}

#[repr(C)]
pub(super) struct OpsDomain {
    pub(super) size: usize,
    pub(super) av_open: OpenWith<AvAttr>,
    pub(super) cq_open: OpenWith<CqAttr>,
    pub(super) endpoint: OpenWith<Info>,
    pub(super) scalable_ep: Absent,
    pub(super) cntr_open: OpenWith<c_void>,
    pub(super) poll_open: Absent,
    pub(super) stx_ctx: Absent,
    pub(super) srx_ctx: Absent,
    pub(super) query_atomic:
        unsafe extern "C" fn(*mut Fid, u32, u32, *mut AtomicAttr, u64) -> c_int,
    pub(super) query_collective: Absent,
    pub(super) endpoint2:
        unsafe extern "C" fn(*mut Fid, *mut Info, *mut *mut Fid, u64, *mut c_void) -> c_int,
}

/// A table of functions that are not there.
#[repr(C)]
pub(super) struct NoOps<const N: usize> {
    size: usize,
    functions: [Absent; N],
}

impl<const N: usize> NoOps<N> {
    pub(super) const fn new() -> Self {
        Self { size: size_of::<Self>(), functions: [absent; N] }
    }
}

#[repr(C)]
pub(super) struct AvAttr {
    pub(super) kind: c_int,
    pub(super) rx_ctx_bits: c_int,
    pub(super) count: usize,
    pub(super) ep_per_node: usize,
    pub(super) name: *const c_char,
    pub(super) map_addr: *mut c_void,
    pub(super) flags: u64,
}

#[repr(C)]
pub(super) struct OpsAv {
    pub(super) size: usize,
    pub(super) insert:
        unsafe extern "C" fn(*mut Fid, *const u8, usize, *mut u64, u64, *mut c_void) -> c_int,
    pub(super) insertsvc: Absent,
    pub(super) insertsym: Absent,
    pub(super) remove: unsafe extern "C" fn(*mut Fid, *mut u64, usize, u64) -> c_int,
    pub(super) lookup: unsafe extern "C" fn(*mut Fid, u64, *mut u8, *mut usize) -> c_int,
    pub(super) straddr:
        unsafe extern "C" fn(*mut Fid, *const u8, *mut c_char, *mut usize) -> *const c_char,
    pub(super) av_set: Absent,
}

#[repr(C)]
pub(super) struct CqAttr {
    pub(super) size: usize,
    pub(super) flags: u64,
    pub(super) format: c_int,
    pub(super) wait_obj: c_int,
    pub(super) signaling_vector: c_int,
    pub(super) wait_cond: c_int,
    pub(super) wait_set: *mut c_void,
}

/// `fi_eq_attr`.
#[repr(C)]
pub(super) struct EqAttr {
    pub(super) size: usize,
    pub(super) flags: u64,
    pub(super) wait_obj: c_int,
    pub(super) signaling_vector: c_int,
    pub(super) wait_set: *mut c_void,
}

/// An entry of the longest format; the others are its beginning.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct CqEntry {
    pub(super) context: usize,
    pub(super) flags: u64,
    pub(super) length: usize,
    pub(super) buffer: usize,
    pub(super) data: u64,
    pub(super) tag: u64,
}

/// The fields that all versions have.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CqErrEntry {
    pub(super) entry: CqEntry,
    pub(super) olen: usize,
    pub(super) err: c_int,
    pub(super) prov_errno: c_int,
    pub(super) err_data: *mut c_void,
    pub(super) err_data_size: usize,
}

#[repr(C)]
pub(super) struct OpsCq {
    pub(super) size: usize,
    pub(super) read: unsafe extern "C" fn(*mut Fid, *mut u8, usize) -> isize,
    pub(super) readfrom: unsafe extern "C" fn(*mut Fid, *mut u8, usize, *mut u64) -> isize,
    pub(super) readerr: unsafe extern "C" fn(*mut Fid, *mut CqErrEntry, u64) -> isize,
    pub(super) sread: unsafe extern "C" fn(*mut Fid, *mut u8, usize, *const c_void, c_int) -> isize,
    pub(super) sreadfrom:
        unsafe extern "C" fn(*mut Fid, *mut u8, usize, *mut u64, *const c_void, c_int) -> isize,
    pub(super) signal: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub(super) strerror:
        unsafe extern "C" fn(*mut Fid, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
}

#[repr(C)]
pub(super) struct OpsEq {
    pub(super) size: usize,
    pub(super) read: unsafe extern "C" fn(*mut Fid, *mut u32, *mut u8, usize, u64) -> isize,
    pub(super) readerr: unsafe extern "C" fn(*mut Fid, *mut c_void, u64) -> isize,
    pub(super) write: unsafe extern "C" fn(*mut Fid, u32, *const u8, usize, u64) -> isize,
    pub(super) sread: unsafe extern "C" fn(*mut Fid, *mut u32, *mut u8, usize, c_int, u64) -> isize,
    pub(super) strerror:
        unsafe extern "C" fn(*mut Fid, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
}

#[repr(C)]
pub(super) struct OpsCntr {
    pub(super) size: usize,
    pub(super) read: unsafe extern "C" fn(*mut Fid) -> u64,
    pub(super) readerr: unsafe extern "C" fn(*mut Fid) -> u64,
    pub(super) add: unsafe extern "C" fn(*mut Fid, u64) -> c_int,
    pub(super) set: unsafe extern "C" fn(*mut Fid, u64) -> c_int,
    pub(super) wait: unsafe extern "C" fn(*mut Fid, u64, c_int) -> c_int,
    pub(super) adderr: unsafe extern "C" fn(*mut Fid, u64) -> c_int,
    pub(super) seterr: unsafe extern "C" fn(*mut Fid, u64) -> c_int,
}

#[repr(C)]
pub(super) struct OpsEp {
    pub(super) size: usize,
    pub(super) cancel: unsafe extern "C" fn(*mut Fid, usize) -> isize,
    pub(super) getopt:
        unsafe extern "C" fn(*mut Fid, c_int, c_int, *mut usize, *mut usize) -> c_int,
    pub(super) setopt: unsafe extern "C" fn(*mut Fid, c_int, c_int, *const usize, usize) -> c_int,
    pub(super) tx_ctx: Absent,
    pub(super) rx_ctx: Absent,
    pub(super) rx_size_left: Absent,
    pub(super) tx_size_left: Absent,
}

#[repr(C)]
pub(super) struct OpsCm {
    pub(super) size: usize,
    pub(super) setname: Absent,
    pub(super) getname: unsafe extern "C" fn(*mut Fid, *mut u8, *mut usize) -> c_int,
    pub(super) others: [Absent; 7],
}

#[repr(C)]
pub(super) struct IoVec {
    pub(super) base: usize,
    pub(super) length: usize,
}

#[repr(C)]
pub(super) struct MsgTagged {
    pub(super) iov: *const IoVec,
    pub(super) desc: *mut *mut c_void,
    pub(super) count: usize,
    pub(super) addr: u64,
    pub(super) tag: u64,
    pub(super) ignore: u64,
    pub(super) context: usize,
    pub(super) data: u64,
}

#[repr(C)]
pub(super) struct Msg {
    pub(super) iov: *const IoVec,
    pub(super) desc: *mut *mut c_void,
    pub(super) count: usize,
    pub(super) addr: u64,
    pub(super) context: usize,
    pub(super) data: u64,
}

type Desc = *mut c_void;

#[repr(C)]
pub(super) struct OpsMsg {
    pub(super) size: usize,
    pub(super) recv: unsafe extern "C" fn(*mut Fid, usize, usize, Desc, u64, usize) -> isize,
    pub(super) recvv:
        unsafe extern "C" fn(*mut Fid, *const IoVec, *mut Desc, usize, u64, usize) -> isize,
    pub(super) recvmsg: unsafe extern "C" fn(*mut Fid, *const Msg, u64) -> isize,
    pub(super) send: unsafe extern "C" fn(*mut Fid, usize, usize, Desc, u64, usize) -> isize,
    pub(super) sendv:
        unsafe extern "C" fn(*mut Fid, *const IoVec, *mut Desc, usize, u64, usize) -> isize,
    pub(super) sendmsg: unsafe extern "C" fn(*mut Fid, *const Msg, u64) -> isize,
    pub(super) inject: unsafe extern "C" fn(*mut Fid, usize, usize, u64) -> isize,
    pub(super) senddata:
        unsafe extern "C" fn(*mut Fid, usize, usize, Desc, u64, u64, usize) -> isize,
    pub(super) injectdata: unsafe extern "C" fn(*mut Fid, usize, usize, u64, u64) -> isize,
}

#[repr(C)]
pub(super) struct OpsTagged {
    pub(super) size: usize,
    pub(super) recv:
        unsafe extern "C" fn(*mut Fid, usize, usize, Desc, u64, u64, u64, usize) -> isize,
    pub(super) recvv: unsafe extern "C" fn(
        *mut Fid,
        *const IoVec,
        *mut Desc,
        usize,
        u64,
        u64,
        u64,
        usize,
    ) -> isize,
    pub(super) recvmsg: unsafe extern "C" fn(*mut Fid, *const MsgTagged, u64) -> isize,
    pub(super) send: unsafe extern "C" fn(*mut Fid, usize, usize, Desc, u64, u64, usize) -> isize,
    pub(super) sendv:
        unsafe extern "C" fn(*mut Fid, *const IoVec, *mut Desc, usize, u64, u64, usize) -> isize,
    pub(super) sendmsg: unsafe extern "C" fn(*mut Fid, *const MsgTagged, u64) -> isize,
    pub(super) inject: unsafe extern "C" fn(*mut Fid, usize, usize, u64, u64) -> isize,
    pub(super) senddata:
        unsafe extern "C" fn(*mut Fid, usize, usize, Desc, u64, u64, u64, usize) -> isize,
    pub(super) injectdata: unsafe extern "C" fn(*mut Fid, usize, usize, u64, u64, u64) -> isize,
}

#[repr(C)]
pub(super) struct MrAttr {
    pub(super) iov: *const IoVec,
    pub(super) count: usize,
    pub(super) access: u64,
    pub(super) offset: u64,
    pub(super) key: u64,
    pub(super) context: *mut c_void,
}

type Register<A, B> =
    unsafe extern "C" fn(*mut Fid, A, B, u64, u64, u64, u64, *mut *mut Fid, *mut c_void) -> c_int;

#[repr(C)]
pub(super) struct OpsMr {
    pub(super) size: usize,
    pub(super) reg: Register<usize, usize>,
    pub(super) regv: Register<*const IoVec, usize>,
    pub(super) regattr: unsafe extern "C" fn(*mut Fid, *const MrAttr, u64, *mut *mut Fid) -> c_int,
}

/// A part of a region.
#[repr(C)]
pub(super) struct RmaIov {
    pub(super) addr: u64,
    /// Bytes, or numbers of an atomic operation.
    pub(super) length: usize,
    pub(super) key: u64,
}

#[repr(C)]
pub(super) struct MsgRma {
    pub(super) iov: *const IoVec,
    pub(super) desc: *mut *mut c_void,
    pub(super) count: usize,
    pub(super) addr: u64,
    pub(super) rma: *const RmaIov,
    pub(super) rma_count: usize,
    pub(super) context: usize,
    pub(super) data: u64,
}

type Rma = unsafe extern "C" fn(*mut Fid, usize, usize, Desc, u64, u64, u64, usize) -> isize;
type RmaV =
    unsafe extern "C" fn(*mut Fid, *const IoVec, *mut Desc, usize, u64, u64, u64, usize) -> isize;
type RmaMsg = unsafe extern "C" fn(*mut Fid, *const MsgRma, u64) -> isize;

#[repr(C)]
pub(super) struct OpsRma {
    pub(super) size: usize,
    pub(super) read: Rma,
    pub(super) readv: RmaV,
    pub(super) readmsg: RmaMsg,
    pub(super) write: Rma,
    pub(super) writev: RmaV,
    pub(super) writemsg: RmaMsg,
    pub(super) inject: unsafe extern "C" fn(*mut Fid, usize, usize, u64, u64, u64) -> isize,
    pub(super) writedata:
        unsafe extern "C" fn(*mut Fid, usize, usize, Desc, u64, u64, u64, u64, usize) -> isize,
    pub(super) injectdata:
        unsafe extern "C" fn(*mut Fid, usize, usize, u64, u64, u64, u64) -> isize,
}

#[repr(C)]
pub(super) struct AtomicAttr {
    pub(super) count: usize,
    pub(super) size: usize,
}

/// Numbers in the program's memory.
#[repr(C)]
pub(super) struct Ioc {
    pub(super) addr: usize,
    pub(super) count: usize,
}

#[repr(C)]
pub(super) struct MsgAtomic {
    pub(super) iov: *const Ioc,
    pub(super) desc: *mut *mut c_void,
    pub(super) count: usize,
    pub(super) addr: u64,
    pub(super) rma: *const RmaIov,
    pub(super) rma_count: usize,
    pub(super) datatype: u32,
    pub(super) op: u32,
    pub(super) context: usize,
    pub(super) data: u64,
}

type Valid = unsafe extern "C" fn(*mut Fid, u32, u32, *mut usize) -> c_int;

/// A function of an atomic operation, with these parameters besides those that all have.
macro_rules! atomic {
    ($($parameter:ty),*) => {
        unsafe extern "C" fn(*mut Fid, $($parameter,)* u64, u64, u64, u32, u32, usize) -> isize
    };
}

#[repr(C)]
pub(super) struct OpsAtomic {
    pub(super) size: usize,
    pub(super) write: atomic!(usize, usize, Desc),
    pub(super) writev: atomic!(*const Ioc, *mut Desc, usize),
    pub(super) writemsg: unsafe extern "C" fn(*mut Fid, *const MsgAtomic, u64) -> isize,
    pub(super) inject:
        unsafe extern "C" fn(*mut Fid, usize, usize, u64, u64, u64, u32, u32) -> isize,
    pub(super) readwrite: atomic!(usize, usize, Desc, usize, Desc),
    pub(super) readwritev: atomic!(*const Ioc, *mut Desc, usize, *const Ioc, *mut Desc, usize),
    pub(super) readwritemsg: unsafe extern "C" fn(
        *mut Fid,
        *const MsgAtomic,
        *const Ioc,
        *mut Desc,
        usize,
        u64,
    ) -> isize,
    pub(super) compwrite: atomic!(usize, usize, Desc, usize, Desc, usize, Desc),
    #[rustfmt::skip]
    pub(super) compwritev: atomic!(
        *const Ioc, *mut Desc, usize, *const Ioc, *mut Desc, usize, *const Ioc, *mut Desc, usize
    ),
    pub(super) compwritemsg: unsafe extern "C" fn(
        *mut Fid,
        *const MsgAtomic,
        *const Ioc,
        *mut Desc,
        usize,
        *const Ioc,
        *mut Desc,
        usize,
        u64,
    ) -> isize,
    pub(super) writevalid: Valid,
    pub(super) readwritevalid: Valid,
    pub(super) compwritevalid: Valid,
}
