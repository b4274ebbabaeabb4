//! Groups of processes that use barrier gates: `tofu_collective.h`.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::slice;
use std::sync::{Arc, Mutex};

use tofu_abi::reduce::Op;
use tofu_collective::plan::{Algorithm, GroupShape, NoChoice};
use tofu_collective::{Exchange, Group, GroupConfig, GroupError};
use tofu_process::{PerProcess, lock};
use tofu_utofu::error::null;
use tofu_utofu::ids::check_tni;
use tofu_utofu::{Code, Error};

use crate::call::{Out, call};
use crate::process;
use crate::provider::AnyProvider;

type AnyGroup = Group<'static, AnyProvider>;

/// Groups by handle. Handles are not reused.
struct Groups {
    last: usize,
    groups: BTreeMap<usize, Arc<AnyGroup>>,
}

/// Position in a handle of the number of its process among those that have forked each other.
const GENERATION: u32 = 48;

static GROUPS: PerProcess<Mutex<Groups>> = PerProcess::new();

fn groups() -> std::sync::MutexGuard<'static, Groups> {
    let last = (process::own_generation() as usize) << GENERATION;
    let none = || Mutex::new(Groups { last, groups: BTreeMap::new() });
    lock(&GROUPS.get_or_init(none).value)
}

fn find(group: usize) -> Result<Arc<AnyGroup>, Error> {
    groups().groups.get(&group).cloned().ok_or_else(|| no_such_group(group))
}

fn no_such_group(group: usize) -> Error {
    if process::is_of_parent((group >> GENERATION) as u32) {
        return process::parents("group");
    }
    let hint = "there is no such group, or it was freed";
    Error::with_value(Code::NotFound, "group", group as u64, hint)
}

/// The caller's function with which members exchange data.
type AllGather = unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut c_void) -> c_int;

struct Callback {
    function: AllGather,
    context: *mut c_void,
}

impl Exchange for Callback {
    type Error = c_int;

    fn allgather(&mut self, mine: &[u64], all: &mut [u64]) -> Result<(), c_int> {
        let size = size_of_val(mine);
        // SAFETY: the caller provides the function and its context; both buffers have the size that
        // is passed.
        let result = unsafe {
            (self.function)(self.context, mine.as_ptr().cast(), size, all.as_mut_ptr().cast())
        };
        if result == 0 { Ok(()) } else { Err(result) }
    }
}

fn group_error(error: GroupError<c_int>) -> Error {
    const WHAT: &str = "group";
    match error {
        GroupError::Exchange(code) => {
            let hint = "the caller's allgather function has failed with it";
            Error::with_value(Code::NotProcessed, "code", code as u32 as u64, hint)
        }
        GroupError::Plan(NoChoice::Group(bad)) => {
            let hint = "a group has 1 to 2^20 members";
            Error::with_value(Code::InvalidNumber, "members", bad.members.into(), hint)
        }
        GroupError::Plan(NoChoice::Gates { .. }) | GroupError::Full => {
            let hint = "some member has not enough barrier gates left on any TNI";
            Error::new(Code::Full, WHAT, hint)
        }
        GroupError::Rank(rank) => {
            let hint = "not below the number of members";
            Error::with_value(Code::InvalidNumber, "rank", rank.into(), hint)
        }
        GroupError::Utofu(error) => error,
        GroupError::OtherMember(rank) => {
            let hint = "a member could not link its gates; see its error";
            Error::with_value(Code::NotProcessed, "member", rank.into(), hint)
        }
    }
}

/// The algorithms in the order of their numbers, from 1.
const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::RecursiveDoubling,
    Algorithm::Tree,
    Algorithm::DoubleRing,
    Algorithm::RecursiveDoubling3d,
    Algorithm::DoubleRing3d,
];

/// Makes a group. All members must call it at the same time.
///
/// # Safety
///
/// `axes` is null or points to three numbers; `group` is null or may be written to; `allgather` is
/// null or a function that may be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tofu_coll_create(
    rank: u32,
    axes: *const u32,
    algorithm: c_uint,
    tni: u16,
    allgather: Option<AllGather>,
    context: *mut c_void,
    group: *mut usize,
) -> c_int {
    call("tofu_coll_create", || {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(group, "group")? };
        let function = allgather.ok_or(null("allgather"))?;
        if axes.is_null() {
            return Err(null("axes"));
        }
        // SAFETY: guaranteed by the caller.
        let axes = unsafe { axes.cast::<[u32; 3]>().read_unaligned() };
        let hint = "algorithms are 0 to 5 (enum tofu_coll_algorithm)";
        let none = Error::with_value(Code::InvalidArg, "algorithm", algorithm.into(), hint);
        let algorithm = match algorithm {
            0 => None,
            number => Some(*ALGORITHMS.get(number as usize - 1).ok_or(none)?),
        };
        let config =
            GroupConfig { rank, shape: GroupShape { axes }, algorithm, tni: check_tni(tni)? };
        let (process, _) = process::current()?;
        let mut exchange = Callback { function, context };
        let made = Group::new(process, &config, &mut exchange).map_err(group_error)?;
        let mut groups = groups();
        groups.last += 1;
        let handle = groups.last;
        groups.groups.insert(handle, Arc::new(made));
        out.set(handle);
        Ok(())
    })
}

/// Frees a group and its gates.
#[unsafe(no_mangle)]
pub extern "C" fn tofu_coll_free(group: usize) -> c_int {
    call("tofu_coll_free", || {
        let freed = groups().groups.remove(&group);
        freed.map(drop).ok_or_else(|| no_such_group(group))
    })
}

/// Reports the algorithm of a group, this member's start and end gate, and its number of gates.
///
/// # Safety
///
/// Pointers are null or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tofu_coll_query(
    group: usize,
    algorithm: *mut c_uint,
    vbg_id: *mut u64,
    num_vbgs: *mut usize,
) -> c_int {
    call("tofu_coll_query", || {
        // SAFETY: guaranteed by the caller.
        let (algorithm, start, count) = unsafe {
            (
                Out::new(algorithm, "algorithm")?,
                Out::new(vbg_id, "vbg_id")?,
                Out::new(num_vbgs, "num_vbgs")?,
            )
        };
        let group = find(group)?;
        let number = ALGORITHMS.iter().position(|known| *known == group.algorithm());
        algorithm.set(number.map_or(0, |number| number as c_uint + 1));
        start.set(group.gates().first().map_or(u64::MAX, |gate| gate.0));
        count.set(group.gates().len());
        Ok(())
    })
}

/// Waits until all members have called it.
#[unsafe(no_mangle)]
pub extern "C" fn tofu_coll_barrier(group: usize) -> c_int {
    call("tofu_coll_barrier", || find(group)?.barrier())
}

/// Returns a caller's data that will be changed.
///
/// # Safety
///
/// `data` is null or points to `count` aligned values that are not used elsewhere.
unsafe fn values<'a, T>(data: *mut T, count: usize) -> Result<&'a mut [T], Error> {
    if data.is_null() {
        return Err(null("data"));
    }
    let fits = count.checked_mul(size_of::<T>()).is_some_and(|size| size <= isize::MAX as usize);
    if !fits || !data.is_aligned() {
        let hint = "more than there can be, or not aligned";
        return Err(Error::with_value(Code::InvalidNumber, "elements", count as u64, hint));
    }
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { slice::from_raw_parts_mut(data, count) })
}

fn operation(op: c_uint) -> Result<Op, Error> {
    let hint = "integers have BAND, BOR, BXOR, MAX, MAXLOC and SUM";
    let none = Error::with_value(Code::InvalidOp, "operation", op.into(), hint);
    match u8::try_from(op).ok().and_then(Op::from_code) {
        None | Some(Op::Barrier | Op::FpSum) => Err(none),
        Some(op) => Ok(op),
    }
}

/// Replaces the integers with the results over all members.
///
/// # Safety
///
/// `data` is null or points to `count` integers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tofu_coll_allreduce_uint64(
    group: usize,
    op: c_uint,
    data: *mut u64,
    count: usize,
) -> c_int {
    call("tofu_coll_allreduce_uint64", || {
        // SAFETY: guaranteed by the caller.
        let data = unsafe { values(data, count)? };
        find(group)?.allreduce(operation(op)?, data)
    })
}

/// Replaces the numbers with their sums over all members.
///
/// # Safety
///
/// `data` is null or points to `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tofu_coll_allreduce_double(
    group: usize,
    data: *mut f64,
    count: usize,
) -> c_int {
    call("tofu_coll_allreduce_double", || {
        // SAFETY: guaranteed by the caller.
        let data = unsafe { values(data, count)? };
        find(group)?.allreduce_sum(data)
    })
}

/// Reduces like [`tofu_coll_allreduce_uint64`], with the results for member `root` only.
///
/// # Safety
///
/// `data` is null or points to `count` integers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tofu_coll_reduce_uint64(
    group: usize,
    root: u32,
    op: c_uint,
    data: *mut u64,
    count: usize,
) -> c_int {
    call("tofu_coll_reduce_uint64", || {
        // SAFETY: guaranteed by the caller.
        let data = unsafe { values(data, count)? };
        find(group)?.reduce(root, operation(op)?, data)
    })
}

/// Gives the values of member `root` to all members.
///
/// # Safety
///
/// `data` is null or points to `count` integers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tofu_coll_broadcast(
    group: usize,
    root: u32,
    data: *mut u64,
    count: usize,
) -> c_int {
    call("tofu_coll_broadcast", || {
        // SAFETY: guaranteed by the caller.
        let data = unsafe { values(data, count)? };
        find(group)?.broadcast(root, data)
    })
}
