//! Atomic operations on peers' regions.

use std::ffi::{c_int, c_void};

use super::abi::{self, AtomicAttr, Fid, Ioc, MsgAtomic, OpsAtomic};
use super::info::PIECES;
use super::messages::run;
use super::object::guard;
use super::remote::{Region, start};
use super::state::{NO_CONTEXT, Shared};
use crate::core::{Action, Atomic, MOST_ATOMIC, Memory as _, Number, Operator};
use crate::memory::ProgramMemory;

type Desc = *mut c_void;

pub(super) static ATOMIC_OPS: OpsAtomic = OpsAtomic {
    size: size_of::<OpsAtomic>(),
    write,
    writev,
    writemsg,
    inject,
    readwrite,
    readwritev,
    readwritemsg,
    compwrite,
    compwritev,
    compwritemsg,
    writevalid,
    readwritevalid,
    compwritevalid,
};

/// The three kinds of operations: the flags of `fi_query_atomic`.
const BASE: u64 = 0;
const FETCH: u64 = 1 << 58;
const COMPARE: u64 = 1 << 59;

/// Returns an operation and the bytes of a number, if a kind of operations has it.
fn operation(kind: u64, datatype: u32, op: u32) -> Option<(Atomic, usize)> {
    let (operator, number) = (Operator::of(op)?, Number::of(datatype)?);
    let only_reads = operator == Operator::Read;
    let exists = match kind {
        BASE => !operator.compares() && !only_reads,
        FETCH => !operator.compares(),
        COMPARE => operator.compares(),
        _ => false,
    };
    let atomic = exists.then(|| Atomic::new(operator, number, kind != BASE)).flatten()?;
    Some((atomic, number.size()))
}

/// `fi_query_atomic`.
pub(super) unsafe extern "C" fn query(
    _domain: *mut Fid,
    datatype: u32,
    op: u32,
    attr: *mut AtomicAttr,
    flags: u64,
) -> c_int {
    guard(abi::OTHER, || {
        let Some((_, size)) = operation(flags, datatype, op) else { return abi::NOT_SUPPORTED };
        // SAFETY: guaranteed by the caller.
        unsafe { attr.write(AtomicAttr { count: MOST_ATOMIC / size, size }) };
        0
    })
}

unsafe fn is_valid(kind: u64, datatype: u32, op: u32, count: *mut usize) -> c_int {
    guard(abi::OTHER, || {
        let Some((_, size)) = operation(kind, datatype, op) else { return abi::NOT_SUPPORTED };
        if !count.is_null() {
            // SAFETY: guaranteed by the caller.
            unsafe { count.write(MOST_ATOMIC / size) };
        }
        0
    })
}

unsafe extern "C" fn writevalid(_: *mut Fid, datatype: u32, op: u32, count: *mut usize) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { is_valid(BASE, datatype, op, count) }
}

unsafe extern "C" fn readwritevalid(
    _: *mut Fid,
    datatype: u32,
    op: u32,
    count: *mut usize,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { is_valid(FETCH, datatype, op, count) }
}

unsafe extern "C" fn compwritevalid(
    _: *mut Fid,
    datatype: u32,
    op: u32,
    count: *mut usize,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { is_valid(COMPARE, datatype, op, count) }
}

/// Numbers in the program's memory: pieces, and how many.
type Numbers = (*const Ioc, usize);

/// Returns the memory of numbers.
///
/// # Safety
///
/// As for [`ProgramMemory::new`]; there are so many pieces.
unsafe fn memory((pieces, count): Numbers, size: usize) -> Option<ProgramMemory> {
    if count > PIECES || (pieces.is_null() && count > 0) {
        return None;
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        Some(ProgramMemory::new((0..count).map(|at| {
            let Ioc { addr, count } = pieces.add(at).read();
            (addr, count.saturating_mul(size))
        })))
    }
}

/// An operation as the program describes it.
struct Operation {
    kind: u64,
    datatype: u32,
    op: u32,
    operands: Numbers,
    compared: Numbers,
    result: Numbers,
}

const NONE: Numbers = (std::ptr::null(), 0);

/// Begins an operation.
///
/// # Safety
///
/// As for [`memory`].
unsafe fn begin(
    shared: &Shared,
    operation: &Operation,
    region: Region,
    (flags, context): (u64, usize),
) -> isize {
    let &Operation { kind, datatype, op, operands, compared, result } = operation;
    let Some((atomic, size)) = self::operation(kind, datatype, op) else {
        return abi::NOT_SUPPORTED as isize;
    };
    let only_reads = op == Operator::Read as u32;
    // SAFETY: guaranteed by the caller.
    let found = unsafe { (memory(operands, size), memory(compared, size), memory(result, size)) };
    let (Some(operands), Some(compared), Some(result)) = found else {
        return abi::INVALID as isize;
    };
    let length = if only_reads { result.len() } else { operands.len() };
    let lengths_fit = (kind != COMPARE || compared.len() == length)
        && (kind == BASE || result.len() == length)
        && length <= MOST_ATOMIC;
    if !lengths_fit {
        return abi::INVALID as isize;
    }
    let mut bytes = vec![0; length];
    if !only_reads {
        operands.read(0, &mut bytes);
    }
    if kind == COMPARE {
        bytes.resize(2 * length, 0);
        compared.read(0, &mut bytes[length..]);
    }
    let result = (kind != BASE).then_some(result);
    start(shared, region, Action::Atomic(atomic, bytes, result), (flags, context))
}

/// Begins an operation of a message.
///
/// # Safety
///
/// As for [`memory`].
unsafe fn begin_msg(
    ep: *mut Fid,
    msg: *const MsgAtomic,
    (kind, compared, result): (u64, Numbers, Numbers),
    flags: u64,
) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe {
        run(ep, |shared| {
            let &MsgAtomic { iov, count, addr, rma, rma_count, datatype, op, context, .. } = &*msg;
            if rma_count != 1 {
                return abi::INVALID as isize;
            }
            let region = (addr, (*rma).addr, (*rma).key);
            let operands = (iov, count);
            let operation = Operation { kind, datatype, op, operands, compared, result };
            begin(shared, &operation, region, (flags, context))
        })
    }
}

/// Defines functions of an operation of some kind: with these parameters, which are its operands,
/// what they are compared with, and its result, before those that all have.
macro_rules! functions {
    ($(
        $name:ident($($parameter:ident: $type:ty),*)
        $kind:ident, $operands:expr, $compared:expr, $result:expr;
    )*) => { $(
        unsafe extern "C" fn $name(
            ep: *mut Fid,
            $($parameter: $type,)*
            address: u64,
            place: u64,
            key: u64,
            datatype: u32,
            op: u32,
            context: usize,
        ) -> isize {
            // SAFETY: guaranteed by the caller.
            unsafe {
                run(ep, |shared| {
                    let region = (address, place, key);
                    let how = (shared.send_flags, context);
                    // The pieces are there until it returns.
                    begin(shared, &Operation {
                        kind: $kind,
                        datatype,
                        op,
                        operands: $operands,
                        compared: $compared,
                        result: $result,
                    }, region, how)
                })
            }
        }
    )* };
}

const fn one(piece: &Ioc) -> Numbers {
    (piece, 1)
}

functions! {
    write(buf: usize, count: usize, _desc: Desc)
    BASE, one(&Ioc { addr: buf, count }), NONE, NONE;

    writev(iov: *const Ioc, _desc: *mut Desc, count: usize)
    BASE, (iov, count), NONE, NONE;

    readwrite(buf: usize, count: usize, _desc: Desc, result: usize, _result_desc: Desc)
    FETCH, one(&Ioc { addr: buf, count }), NONE, one(&Ioc { addr: result, count });

    readwritev(
        iov: *const Ioc, _desc: *mut Desc, count: usize,
        result: *const Ioc, _result_desc: *mut Desc, results: usize
    )
    FETCH, (iov, count), NONE, (result, results);

    compwrite(
        buf: usize, count: usize, _desc: Desc,
        compare: usize, _compare_desc: Desc,
        result: usize, _result_desc: Desc
    )
    COMPARE,
    one(&Ioc { addr: buf, count }),
    one(&Ioc { addr: compare, count }),
    one(&Ioc { addr: result, count });

    compwritev(
        iov: *const Ioc, _desc: *mut Desc, count: usize,
        compare: *const Ioc, _compare_desc: *mut Desc, compares: usize,
        result: *const Ioc, _result_desc: *mut Desc, results: usize
    )
    COMPARE, (iov, count), (compare, compares), (result, results);
}

unsafe extern "C" fn writemsg(ep: *mut Fid, msg: *const MsgAtomic, flags: u64) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe { begin_msg(ep, msg, (BASE, NONE, NONE), flags) }
}

unsafe extern "C" fn inject(
    ep: *mut Fid,
    buf: usize,
    count: usize,
    address: u64,
    place: u64,
    key: u64,
    datatype: u32,
    op: u32,
) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe {
        run(ep, |shared| {
            let piece = Ioc { addr: buf, count };
            let (operands, compared, result) = (one(&piece), NONE, NONE);
            let operation = Operation { kind: BASE, datatype, op, operands, compared, result };
            begin(shared, &operation, (address, place, key), (0, NO_CONTEXT))
        })
    }
}

unsafe extern "C" fn readwritemsg(
    ep: *mut Fid,
    msg: *const MsgAtomic,
    result: *const Ioc,
    _: *mut Desc,
    results: usize,
    flags: u64,
) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe { begin_msg(ep, msg, (FETCH, NONE, (result, results)), flags) }
}

unsafe extern "C" fn compwritemsg(
    ep: *mut Fid,
    msg: *const MsgAtomic,
    compare: *const Ioc,
    _: *mut Desc,
    compares: usize,
    result: *const Ioc,
    _: *mut Desc,
    results: usize,
    flags: u64,
) -> isize {
    // SAFETY: guaranteed by the caller.
    unsafe { begin_msg(ep, msg, (COMPARE, (compare, compares), (result, results)), flags) }
}
