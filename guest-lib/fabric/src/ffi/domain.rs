//! Fabrics and domains.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::abi::{self, FabricAttr, Fid, Info, Ops, OpsDomain, OpsFabric, absent, class};
use super::object::{give, guard, of, take};
use super::regions::MR_OPS;
use super::table::{Domain, Table};
use super::{atomics, av, counter, cq, endpoint, eq};

#[repr(C)]
struct Fabric {
    fid: Fid,
    ops: *const OpsFabric,
    api_version: u32,
}

static FABRIC: Ops = Ops::closing(close::<Fabric>);
static DOMAIN: Ops = Ops { bind: accept_bind, ..Ops::closing(close::<Domain>) };
static FABRIC_OPS: OpsFabric = OpsFabric {
    size: size_of::<OpsFabric>(),
    domain,
    passive_ep: absent,
    eq_open: eq::open,
    wait_open: absent,
    trywait,
    domain2,
};
static DOMAIN_OPS: OpsDomain = OpsDomain {
    size: size_of::<OpsDomain>(),
    av_open: av::open,
    cq_open: cq::open,
    endpoint: endpoint::open,
    scalable_ep: absent,
    cntr_open: counter::open,
    poll_open: absent,
    stx_ctx: absent,
    srx_ctx: absent,
    query_atomic: atomics::query,
    query_collective: absent,
    endpoint2,
};

unsafe extern "C" fn close<T>(fid: *mut Fid) -> c_int {
    guard(abi::OTHER, || {
        // SAFETY: each table is for one type of object.
        drop(unsafe { take::<T>(fid) });
        0
    })
}

/// A domain may be bound to an event queue, which stays empty.
unsafe extern "C" fn accept_bind(_: *mut Fid, _: *mut Fid, _: u64) -> c_int {
    0
}

/// `fi_fabric`.
pub(super) unsafe extern "C" fn fabric(
    attr: *mut FabricAttr,
    fabric: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    guard(abi::OTHER, || {
        // SAFETY: guaranteed by the caller.
        let api_version = unsafe { attr.as_ref() }.map_or(0, |attr| attr.api_version);
        let fid = Fid { class: class::FABRIC, context, ops: &FABRIC };
        // SAFETY: guaranteed by the caller.
        unsafe { give(Fabric { fid, ops: &FABRIC_OPS, api_version }, fabric) }
    })
}

unsafe extern "C" fn domain(
    _fabric: *mut Fid,
    info: *mut Info,
    domain: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    guard(abi::OTHER, || {
        // SAFETY: guaranteed by the caller.
        let attr = unsafe { info.as_ref().and_then(|info| info.domain_attr.as_ref()) };
        let is_basic = attr.is_some_and(|attr| attr.mr_mode == abi::MR_BASIC);
        let table = Arc::new(Table::new(is_basic));
        let fid = Fid { class: class::DOMAIN, context, ops: &DOMAIN };
        // SAFETY: guaranteed by the caller.
        unsafe { give(Domain { fid, ops: &DOMAIN_OPS, memory: &MR_OPS, table }, domain) }
    })
}

unsafe extern "C" fn domain2(
    fabric: *mut Fid,
    info: *mut Info,
    domain: *mut *mut Fid,
    _flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { self::domain(fabric, info, domain, context) }
}

unsafe extern "C" fn endpoint2(
    domain: *mut Fid,
    info: *mut Info,
    endpoint: *mut *mut Fid,
    _flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { endpoint::open(domain, info, endpoint, context) }
}

/// Returns whether the program may wait by the descriptors of these queues.
unsafe extern "C" fn trywait(_: *mut Fid, fids: *mut *mut Fid, count: c_int) -> c_int {
    guard(abi::OTHER, || {
        for at in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: there are so many objects; all begin with a `Fid`, and its class says what
            // they are.
            let is_quiet = unsafe {
                let fid = fids.add(at).read();
                match (*fid).class {
                    class::CQ => of::<cq::Cq>(fid).queue.is_quiet(),
                    class::EQ => of::<eq::EventQueue>(fid).is_quiet(),
                    _ => true,
                }
            };
            if !is_quiet {
                return abi::AGAIN as c_int;
            }
        }
        0
    })
}
