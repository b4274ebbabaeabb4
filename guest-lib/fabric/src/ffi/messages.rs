//! Sends and receives, with and without tags.

use std::ffi::c_void;

use super::abi::{self, Fid, IoVec, Msg, MsgTagged, OpsMsg, OpsTagged};
use super::info::{MOST_INJECTED, PIECES};
use super::object::{guard, of};
use super::state::{Endpoint, NO_CONTEXT, Shared};
use crate::core::{Address, Claim, Memory as _, Receive, Send};
use crate::memory::ProgramMemory;

type Desc = *mut c_void;

pub(super) static MSG_OPS: OpsMsg = OpsMsg {
    size: size_of::<OpsMsg>(),
    recv: plain::recv,
    recvv: plain::recvv,
    recvmsg,
    send: plain::send,
    sendv: plain::sendv,
    sendmsg,
    inject: plain::inject,
    senddata: plain::senddata,
    injectdata: plain::injectdata,
};
pub(super) static TAGGED_OPS: OpsTagged = OpsTagged {
    size: size_of::<OpsTagged>(),
    recv: tagged::recv,
    recvv: tagged::recvv,
    recvmsg: trecvmsg,
    send: tagged::send,
    sendv: tagged::sendv,
    sendmsg: tsendmsg,
    inject: tagged::inject,
    senddata: tagged::senddata,
    injectdata: tagged::injectdata,
};

/// The tag of a send, or the tag of a receive and the bits of it that may differ.
type Tag = Option<(u64, u64)>;

/// An operation as the program describes it.
struct Operation {
    memory: ProgramMemory,
    address: u64,
    tag: Tag,
    data: u64,
    context: usize,
    flags: u64,
}

/// Memory that is one piece.
///
/// # Safety
///
/// As for [`ProgramMemory::new`].
pub(super) unsafe fn one(at: usize, length: usize) -> ProgramMemory {
    // SAFETY: guaranteed by the caller.
    unsafe { ProgramMemory::new(std::iter::once((at, length))) }
}

/// Memory that is several pieces, or `None` if they are too many.
///
/// # Safety
///
/// As for [`ProgramMemory::new`]; `iov` has `count` pieces.
pub(super) unsafe fn several(iov: *const IoVec, count: usize) -> Option<ProgramMemory> {
    if count > PIECES || (iov.is_null() && count > 0) {
        return None;
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        Some(ProgramMemory::new((0..count).map(|at| {
            let piece = iov.add(at).read();
            (piece.base, piece.length)
        })))
    }
}

/// Runs an operation.
///
/// # Safety
///
/// The pointer is that of an endpoint.
pub(super) unsafe fn run(endpoint: *mut Fid, operation: impl FnOnce(&Shared) -> isize) -> isize {
    guard(abi::OTHER as isize, || {
        // SAFETY: guaranteed by the caller.
        operation(unsafe { &of::<Endpoint>(endpoint).shared })
    })
}

/// Sends.
fn start_send(shared: &Shared, operation: Operation) -> isize {
    let Operation { memory, address, tag, data, context, flags } = operation;
    let Some(to) = shared.address(address) else { return abi::INVALID as isize };
    if memory.is_null() {
        return abi::INVALID as isize;
    }
    let wanted = shared.wants_send(flags);
    // Such a message is copied immediately.
    let copied = flags & abi::INJECT != 0 && memory.len() <= MOST_INJECTED;
    let context = if copied && !wanted { NO_CONTEXT } else { context };
    post(shared, (to, memory, tag), (flags, data), context, wanted)
}

/// Sends a message whose memory the program may reuse immediately, and without a completion.
fn start_inject(shared: &Shared, operation: Operation) -> isize {
    let Operation { memory, address, tag, data, flags, .. } = operation;
    if memory.len() > MOST_INJECTED || memory.is_null() {
        return abi::INVALID as isize;
    }
    let Some(to) = shared.address(address) else { return abi::INVALID as isize };
    post(shared, (to, memory, tag), (flags, data), NO_CONTEXT, false)
}

/// Gives a message to the core.
fn post(
    shared: &Shared,
    (to, memory, tag): (Address, ProgramMemory, Tag),
    (flags, data): (u64, u64),
    context: usize,
    wanted: bool,
) -> isize {
    let data = (flags & abi::REMOTE_CQ_DATA != 0).then_some(data);
    let (tagged, tag) = (tag.is_some(), tag.map_or(0, |tag| tag.0));
    let (context, delivered) = (Some(context), flags & abi::DELIVERY_COMPLETE != 0);
    let send = Send { to, memory, tagged, tag, data, context, wanted, delivered };
    shared.try_with(|core| core.send(send))
}

/// Receives, or looks for a message.
fn start_receive(shared: &Shared, operation: Operation) -> isize {
    let Operation { memory, address, tag, context, flags, .. } = operation;
    if memory.is_null() {
        return abi::INVALID as isize;
    }
    let source = match address {
        abi::ADDR_UNSPEC => None,
        // The number need not even exist.
        _ if !shared.is_directed => None,
        number => match shared.address(number) {
            Some(source) => Some(source),
            None => return abi::INVALID as isize,
        },
    };
    let tagged = tag.is_some();
    let (tag, ignore) = tag.unwrap_or((0, u64::MAX));
    let wanted = shared.wants_receive(flags);
    if flags & abi::PEEK != 0 {
        return look(shared, (tagged, source), [tag, ignore], context, flags);
    }
    let several = (flags & abi::MULTI_RECV != 0 && !tagged).then(|| shared.least_room());
    let receive = Receive { context, memory, source, tagged, tag, ignore, several, wanted };
    if flags & abi::CLAIM == 0 || !tagged {
        shared.with(|core| core.receive(receive));
        return 0;
    }
    let found = shared.with(|core| match flags & abi::DISCARD {
        0 => core.receive_claimed(receive),
        _ => core.discard_claimed(context, wanted),
    });
    if found { 0 } else { abi::INVALID as isize }
}

/// Looks for a message.
fn look(
    shared: &Shared,
    (tagged, source): (bool, Option<Address>),
    tag: [u64; 2],
    context: usize,
    flags: u64,
) -> isize {
    let claim = if flags & abi::DISCARD != 0 {
        Claim::Discard
    } else if flags & abi::CLAIM != 0 {
        Claim::Take
    } else {
        Claim::Leave
    };
    shared.with(|core| {
        // A program may do nothing but look until there is a message.
        core.progress();
        core.look(tagged, source, tag, context, claim);
    });
    0
}

/// Begins a send with the endpoint's flags, if its memory is not too many pieces.
///
/// # Safety
///
/// As for [`run`].
unsafe fn begin_send(
    ep: *mut Fid,
    memory: Option<ProgramMemory>,
    (address, tag): (u64, Tag),
    data: Option<u64>,
    context: usize,
) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe {
        run(ep, |shared| {
            let Some(memory) = memory else { return abi::INVALID as isize };
            let flags = shared.send_flags & !abi::INJECT | data_flag(data);
            let data = data.unwrap_or(0);
            start_send(shared, Operation { memory, address, tag, data, context, flags })
        })
    }
}

const fn data_flag(data: Option<u64>) -> u64 {
    if data.is_some() { abi::REMOTE_CQ_DATA } else { 0 }
}

/// Begins a send whose memory is the program's again at once.
///
/// # Safety
///
/// As for [`run`].
unsafe fn begin_inject(
    ep: *mut Fid,
    memory: ProgramMemory,
    (address, tag): (u64, Tag),
    data: Option<u64>,
) -> isize {
    let (flags, data) = (data_flag(data), data.unwrap_or(0));
    let operation = Operation { memory, address, tag, data, context: 0, flags };
    // SAFETY: guaranteed by the caller.
    unsafe { run(ep, |shared| start_inject(shared, operation)) }
}

/// Begins a receive with the endpoint's flags, if its memory is not too many pieces.
///
/// # Safety
///
/// As for [`run`].
unsafe fn begin_receive(
    ep: *mut Fid,
    memory: Option<ProgramMemory>,
    (address, tag): (u64, Tag),
    context: usize,
) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe {
        run(ep, |shared| {
            let Some(memory) = memory else { return abi::INVALID as isize };
            let flags = shared.receive_flags;
            start_receive(shared, Operation { memory, address, tag, data: 0, context, flags })
        })
    }
}

/// Defines the functions of a table that take their operands one by one: with these parameters
/// behind the address, of which this is the tag.
macro_rules! functions {
    (receive($($receive:ident),*) $wanted:expr, send($($send:ident),*) $tag:expr) => {
        use super::{Desc, Fid, IoVec, begin_inject, begin_receive, begin_send, one, several};

        pub(super) unsafe extern "C" fn recv(
            ep: *mut Fid,
            buf: usize,
            len: usize,
            _: Desc,
            address: u64,
            $($receive: u64,)*
            context: usize,
        ) -> isize {
            // SAFETY: guaranteed by the caller.
            unsafe { begin_receive(ep, Some(one(buf, len)), (address, $wanted), context) }
        }

        pub(super) unsafe extern "C" fn recvv(
            ep: *mut Fid,
            iov: *const IoVec,
            _: *mut Desc,
            count: usize,
            address: u64,
            $($receive: u64,)*
            context: usize,
        ) -> isize {
            // SAFETY: guaranteed by the caller.
            unsafe { begin_receive(ep, several(iov, count), (address, $wanted), context) }
        }

        pub(super) unsafe extern "C" fn send(
            ep: *mut Fid,
            buf: usize,
            len: usize,
            _: Desc,
            address: u64,
            $($send: u64,)*
            context: usize,
        ) -> isize {
            // SAFETY: guaranteed by the caller.
            unsafe { begin_send(ep, Some(one(buf, len)), (address, $tag), None, context) }
        }

        pub(super) unsafe extern "C" fn sendv(
            ep: *mut Fid,
            iov: *const IoVec,
            _: *mut Desc,
            count: usize,
            address: u64,
            $($send: u64,)*
            context: usize,
        ) -> isize {
            // SAFETY: guaranteed by the caller.
            unsafe { begin_send(ep, several(iov, count), (address, $tag), None, context) }
        }

        pub(super) unsafe extern "C" fn inject(
            ep: *mut Fid,
            buf: usize,
            len: usize,
            address: u64,
            $($send: u64,)*
        ) -> isize {
            // SAFETY: guaranteed by the caller.
            unsafe { begin_inject(ep, one(buf, len), (address, $tag), None) }
        }

        pub(super) unsafe extern "C" fn senddata(
            ep: *mut Fid,
            buf: usize,
            len: usize,
            _: Desc,
            data: u64,
            address: u64,
            $($send: u64,)*
            context: usize,
        ) -> isize {
            // SAFETY: guaranteed by the caller.
            unsafe { begin_send(ep, Some(one(buf, len)), (address, $tag), Some(data), context) }
        }

        pub(super) unsafe extern "C" fn injectdata(
            ep: *mut Fid,
            buf: usize,
            len: usize,
            data: u64,
            address: u64,
            $($send: u64,)*
        ) -> isize {
            // SAFETY: guaranteed by the caller.
            unsafe { begin_inject(ep, one(buf, len), (address, $tag), Some(data)) }
        }
    };
}

mod plain {
    functions!(receive() None, send() None);
}

mod tagged {
    functions!(receive(tag, ignore) Some((tag, ignore)), send(tag) Some((tag, 0)));
}

unsafe extern "C" fn recvmsg(ep: *mut Fid, msg: *const Msg, flags: u64) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe {
        run(ep, |shared| {
            let &Msg { iov, count, addr: address, context, .. } = &*msg;
            let Some(memory) = several(iov, count) else { return abi::INVALID as isize };
            start_receive(shared, Operation { memory, address, tag: None, data: 0, context, flags })
        })
    }
}

unsafe extern "C" fn sendmsg(ep: *mut Fid, msg: *const Msg, flags: u64) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe {
        run(ep, |shared| {
            let &Msg { iov, count, addr: address, context, data, .. } = &*msg;
            let Some(memory) = several(iov, count) else { return abi::INVALID as isize };
            start_send(shared, Operation { memory, address, tag: None, data, context, flags })
        })
    }
}

unsafe extern "C" fn trecvmsg(ep: *mut Fid, msg: *const MsgTagged, flags: u64) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe {
        run(ep, |shared| {
            let &MsgTagged { iov, count, addr: address, tag, ignore, context, .. } = &*msg;
            // A look has no memory.
            let count = if flags & abi::PEEK != 0 { 0 } else { count };
            let Some(memory) = several(iov, count) else { return abi::INVALID as isize };
            let (tag, data) = (Some((tag, ignore)), 0);
            start_receive(shared, Operation { memory, address, tag, data, context, flags })
        })
    }
}

unsafe extern "C" fn tsendmsg(ep: *mut Fid, msg: *const MsgTagged, flags: u64) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe {
        run(ep, |shared| {
            let &MsgTagged { iov, count, addr: address, tag, context, data, .. } = &*msg;
            let Some(memory) = several(iov, count) else { return abi::INVALID as isize };
            let tag = Some((tag, 0));
            start_send(shared, Operation { memory, address, tag, data, context, flags })
        })
    }
}
