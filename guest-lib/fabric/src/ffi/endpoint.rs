//! Endpoints: opening, binding, and what is not a message.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, SystemTime};

use super::abi::{self, Fid, Info, NoOps, Ops, OpsCm, OpsEp, absent, class};
use super::atomics::ATOMIC_OPS;
use super::av::{Av, write_address};
use super::counter::Counter;
use super::cq::Cq;
use super::info::{ADDRESS, LONGEST, MOST_INJECTED};
use super::messages::{MSG_OPS, TAGGED_OPS};
use super::object::{give, guard, of, take};
use super::remote::RMA_OPS;
use super::state::{Endpoint, Shared};
use super::table::Domain;
use crate::core::{Endpoint as Core, MOST_ATOMIC};
use crate::tofucom::Tofucom;

/// The time that the end of an endpoint waits for what was sent.
const AT_CLOSE: Duration = Duration::from_secs(2);

static ENDPOINT: Ops = Ops { bind, control, ..Ops::closing(close) };
static EP_OPS: OpsEp = OpsEp {
    size: size_of::<OpsEp>(),
    cancel,
    getopt,
    setopt,
    tx_ctx: absent,
    rx_ctx: absent,
    rx_size_left: absent,
    tx_size_left: absent,
};
static CM_OPS: OpsCm =
    OpsCm { size: size_of::<OpsCm>(), setname: absent, getname, others: [absent; 7] };
static NO_COLLECTIVES: NoOps<12> = NoOps::new();

pub(super) unsafe extern "C" fn open(
    domain: *mut Fid,
    info: *mut Info,
    endpoint: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    guard(abi::OTHER, || {
        let Some(device) = Tofucom::open() else { return -libc::ENODEV };
        // SAFETY: guaranteed by the caller.
        let table = unsafe { &of::<Domain>(domain).table };
        let core = Core::new(device, Arc::clone(&table.regions));
        let name = name(&core);
        // SAFETY: guaranteed by the caller.
        let flags = unsafe {
            let info = info.as_ref();
            let tx = info.and_then(|info| info.tx_attr.as_ref());
            let rx = info.and_then(|info| info.rx_attr.as_ref());
            [tx.map_or(0, |tx| tx.op_flags), rx.map_or(0, |rx| rx.op_flags)]
        };
        // SAFETY: guaranteed by the caller.
        let caps = unsafe { info.as_ref() }.map_or(abi::DIRECTED_RECV, |info| info.caps);
        let is_directed = caps & abi::DIRECTED_RECV != 0;
        let new = Endpoint {
            fid: Fid { class: class::EP, context, ops: &ENDPOINT },
            ops: &EP_OPS,
            cm: &CM_OPS,
            msg: &MSG_OPS,
            rma: &RMA_OPS,
            tagged: &TAGGED_OPS,
            atomic: &ATOMIC_OPS,
            collective: &NO_COLLECTIVES,
            shared: Arc::new(Shared::new(core, Arc::clone(table), name, flags, is_directed)),
        };
        table.endpoints.add(&new.shared);
        // SAFETY: guaranteed by the caller.
        unsafe { give(new, endpoint) }
    })
}

/// Returns an endpoint's address: the ID of its queue, and a number that an endpoint which had the
/// queue before it does not have.
fn name(core: &Core<Tofucom>) -> [u8; ADDRESS] {
    let start = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
    let mut name = [0; ADDRESS];
    name[..8].copy_from_slice(&core.address().0.to_le_bytes());
    name[8..].copy_from_slice(&start.to_le_bytes());
    name
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    guard(abi::OTHER, || {
        // SAFETY: the table is for endpoints.
        let endpoint = unsafe { take::<Endpoint>(fid) };
        endpoint.shared.with(|core| core.drain(AT_CLOSE));
        0
    })
}

unsafe extern "C" fn bind(fid: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    guard(abi::OTHER, || {
        // SAFETY: guaranteed by the caller.
        let shared = unsafe { &of::<Endpoint>(fid).shared };
        // SAFETY: all objects begin with a `Fid`, and its class says what they are.
        unsafe {
            match (*other).class {
                class::AV => {
                    let vector = Arc::clone(&of::<Av>(other).vector);
                    if shared.av.set(vector).is_err() {
                        return abi::INVALID;
                    }
                }
                class::CQ => {
                    if !shared.bind_queue(&of::<Cq>(other).queue, flags) {
                        return abi::NO_FUNCTION;
                    }
                }
                class::CNTR => shared.bind_counter(&of::<Counter>(other).count, flags),
                class::EQ => {}
                _ => return abi::INVALID,
            }
        }
        0
    })
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, _: *mut c_void) -> c_int {
    guard(abi::OTHER, || {
        if command != abi::CONTROL_ENABLE {
            return abi::NO_FUNCTION;
        }
        // SAFETY: guaranteed by the caller.
        let shared = unsafe { &of::<Endpoint>(fid).shared };
        if shared.av.get().is_none() { abi::BAD_STATE } else { 0 }
    })
}

unsafe extern "C" fn getname(fid: *mut Fid, to: *mut u8, size: *mut usize) -> c_int {
    guard(abi::OTHER, || {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let small = size.read() < ADDRESS;
            write_address(&of::<Endpoint>(fid).shared.name, to, size);
            if small { abi::TOO_SMALL as c_int } else { 0 }
        }
    })
}

unsafe extern "C" fn cancel(fid: *mut Fid, context: usize) -> isize {
    guard(abi::OTHER as isize, || {
        // SAFETY: guaranteed by the caller.
        let shared = unsafe { &of::<Endpoint>(fid).shared };
        let found = shared.with(|core| core.cancel(context));
        if found { 0 } else { -abi::ENOENT as isize }
    })
}

unsafe extern "C" fn getopt(
    fid: *mut Fid,
    level: c_int,
    option: c_int,
    value: *mut usize,
    size: *mut usize,
) -> c_int {
    guard(abi::OTHER, || {
        let limits = abi::OPT_MAX.iter().zip([LONGEST, LONGEST, LONGEST, MOST_ATOMIC]);
        let injects = [MOST_INJECTED, MOST_INJECTED, MOST_INJECTED, MOST_ATOMIC];
        let mut limits = limits.chain(abi::OPT_INJECT.iter().zip(injects));
        let found = match limits.find(|(limited, _)| **limited == option) {
            Some((_, limit)) => limit,
            // SAFETY: guaranteed by the caller.
            None if option == abi::OPT_MIN_MULTI_RECV => unsafe {
                of::<Endpoint>(fid).shared.least_room()
            },
            None => return abi::NO_FUNCTION,
        };
        if level != 0 {
            return abi::NO_FUNCTION;
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            if size.read() < size_of::<usize>() {
                return abi::INVALID;
            }
            value.write(found);
            size.write(size_of::<usize>());
        }
        0
    })
}

unsafe extern "C" fn setopt(
    fid: *mut Fid,
    level: c_int,
    option: c_int,
    value: *const usize,
    size: usize,
) -> c_int {
    guard(abi::OTHER, || {
        if level != 0 || option != abi::OPT_MIN_MULTI_RECV {
            return abi::NO_FUNCTION;
        }
        if size != size_of::<usize>() {
            return abi::INVALID;
        }
        // SAFETY: guaranteed by the caller.
        unsafe { of::<Endpoint>(fid).shared.least_room.store(value.read(), SeqCst) };
        0
    })
}
