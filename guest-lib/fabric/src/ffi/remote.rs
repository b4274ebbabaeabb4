//! Reads and writes of peers' regions.

use std::ffi::c_void;

use super::abi::{self, Fid, IoVec, MsgRma, OpsRma};
use super::info::MOST_INJECTED;
use super::messages::{one, run, several};
use super::state::{NO_CONTEXT, Shared};
use crate::core::{Action, Memory as _, Remote};
use crate::memory::ProgramMemory;

type Desc = *mut c_void;

pub(super) static RMA_OPS: OpsRma = OpsRma {
    size: size_of::<OpsRma>(),
    read,
    readv,
    readmsg,
    write,
    writev,
    writemsg,
    inject,
    writedata,
    injectdata,
};

/// The peer's region: its endpoint's number, the place, and the key.
pub(super) type Region = (u64, u64, u64);

/// Begins an operation on a region.
pub(super) fn start(
    shared: &Shared,
    (address, place, key): Region,
    action: Action<ProgramMemory>,
    (flags, context): (u64, usize),
) -> isize {
    let Some(to) = shared.address(address) else { return abi::INVALID as isize };
    let wanted = context != NO_CONTEXT && shared.wants_send(flags);
    let context = Some(context);
    let remote = Remote { to, key, place, action, context, wanted };
    shared.try_with(|core| core.remote(remote))
}

/// Begins an operation with the endpoint's flags, if its memory is not too many pieces.
///
/// # Safety
///
/// As for [`run`].
unsafe fn begin(
    ep: *mut Fid,
    memory: Option<ProgramMemory>,
    region: Region,
    context: usize,
    action: impl FnOnce(ProgramMemory) -> Action<ProgramMemory>,
) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe {
        run(ep, |shared| match memory {
            Some(memory) => start(shared, region, action(memory), (shared.send_flags, context)),
            None => abi::INVALID as isize,
        })
    }
}

fn start_inject(
    shared: &Shared,
    memory: ProgramMemory,
    region: Region,
    data: Option<u64>,
) -> isize {
    if memory.len() > MOST_INJECTED {
        return abi::INVALID as isize;
    }
    start(shared, region, Action::Write(memory, data), (0, NO_CONTEXT))
}

/// Defines functions of an operation: with these parameters, of which its memory and the operation
/// are made, before those that all have.
macro_rules! functions {
    ($($name:ident($($parameter:ident: $type:ty),*) $memory:expr, $action:expr;)*) => { $(
        unsafe extern "C" fn $name(
            ep: *mut Fid,
            $($parameter: $type,)*
            address: u64,
            place: u64,
            key: u64,
            context: usize,
        ) -> isize {
            // SAFETY: guaranteed by the caller.
            unsafe { begin(ep, $memory, (address, place, key), context, $action) }
        }
    )* };
}

functions! {
    read(buf: usize, len: usize, _desc: Desc)
    Some(one(buf, len)), Action::Read;

    readv(iov: *const IoVec, _desc: *mut Desc, count: usize)
    several(iov, count), Action::Read;

    write(buf: usize, len: usize, _desc: Desc)
    Some(one(buf, len)), |memory| Action::Write(memory, None);

    writev(iov: *const IoVec, _desc: *mut Desc, count: usize)
    several(iov, count), |memory| Action::Write(memory, None);

    writedata(buf: usize, len: usize, _desc: Desc, data: u64)
    Some(one(buf, len)), |memory| Action::Write(memory, Some(data));
}

/// The memory and the region of an operation, or `None` if they are too many.
///
/// # Safety
///
/// As for [`several`].
unsafe fn operands(msg: &MsgRma) -> Option<(ProgramMemory, Region)> {
    if msg.rma_count != 1 {
        return None;
    }
    // SAFETY: guaranteed by the caller.
    let (memory, region) = unsafe { (several(msg.iov, msg.count)?, &*msg.rma) };
    (region.length == memory.len()).then_some((memory, (msg.addr, region.addr, region.key)))
}

unsafe extern "C" fn readmsg(ep: *mut Fid, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe {
        run(ep, |shared| match operands(&*msg) {
            Some((memory, region)) => {
                start(shared, region, Action::Read(memory), (flags, (*msg).context))
            }
            None => abi::INVALID as isize,
        })
    }
}

unsafe extern "C" fn writemsg(ep: *mut Fid, msg: *const MsgRma, flags: u64) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe {
        run(ep, |shared| match operands(&*msg) {
            Some((memory, region)) => {
                let data = (flags & abi::REMOTE_CQ_DATA != 0).then_some((*msg).data);
                start(shared, region, Action::Write(memory, data), (flags, (*msg).context))
            }
            None => abi::INVALID as isize,
        })
    }
}

unsafe extern "C" fn inject(
    ep: *mut Fid,
    buf: usize,
    len: usize,
    address: u64,
    place: u64,
    key: u64,
) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe { run(ep, |shared| start_inject(shared, one(buf, len), (address, place, key), None)) }
}

unsafe extern "C" fn injectdata(
    ep: *mut Fid,
    buf: usize,
    len: usize,
    data: u64,
    address: u64,
    place: u64,
    key: u64,
) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe {
        run(ep, |shared| start_inject(shared, one(buf, len), (address, place, key), Some(data)))
    }
}
