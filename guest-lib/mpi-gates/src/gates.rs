//! The gates of all ranks, by the C functions of `libtofucom`.

use std::ffi::{c_int, c_uint, c_ulong, c_void};
use std::slice;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tofu_process::Library;

use crate::mpi::Mpi;
use crate::words::Reduction;

const SUCCESS: c_int = 0;
const NOT_COMPLETED: c_int = -2;
/// `UTOFU_REDUCE_OP_*`.
const AND: c_uint = 2;
const OR: c_uint = 3;
const XOR: c_uint = 4;
const MAX: c_uint = 5;
const SUM: c_uint = 7;
const DOUBLES: c_uint = 8;

/// Polls after which the MPI library serves other ranks, and after which others get the processor.
const PROGRESS: u32 = 32;
const REST: u32 = 1024;

/// `struct utofu_barrier_caps`.
#[repr(C)]
struct Caps {
    flags: c_ulong,
    reduce_ops: c_ulong,
    integers: usize,
    doubles: usize,
}

type AllGather = unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut c_void) -> c_int;

/// The functions that are used.
struct Api {
    create: unsafe extern "C" fn(
        u32,
        *const u32,
        c_uint,
        u16,
        Option<AllGather>,
        *mut c_void,
        *mut usize,
    ) -> c_int,
    free: unsafe extern "C" fn(usize) -> c_int,
    query: unsafe extern "C" fn(usize, *mut c_uint, *mut u64, *mut usize) -> c_int,
    caps: unsafe extern "C" fn(u16, *mut *mut Caps) -> c_int,
    barrier: unsafe extern "C" fn(u64, c_ulong) -> c_int,
    reduce: unsafe extern "C" fn(u64, c_uint, *mut u64, usize, c_ulong) -> c_int,
    reduce_doubles: unsafe extern "C" fn(u64, c_uint, *mut f64, usize, c_ulong) -> c_int,
    poll: unsafe extern "C" fn(u64, c_ulong) -> c_int,
    poll_reduce: unsafe extern "C" fn(u64, c_ulong, *mut u64) -> c_int,
    poll_reduce_doubles: unsafe extern "C" fn(u64, c_ulong, *mut f64) -> c_int,
}

impl Api {
    fn open() -> Option<Self> {
        // SAFETY: the library runs no code of others when it is loaded.
        let library = unsafe { Library::open(c"libtofucom.so", libc::RTLD_NOW) }.ok()?;
        // SAFETY: the types are those of `utofu.h` and `tofu_collective.h`.
        unsafe {
            Some(Self {
                create: library.function(c"tofu_coll_create")?,
                free: library.function(c"tofu_coll_free")?,
                query: library.function(c"tofu_coll_query")?,
                caps: library.function(c"utofu_query_barrier_caps")?,
                barrier: library.function(c"utofu_barrier")?,
                reduce: library.function(c"utofu_reduce_uint64")?,
                reduce_doubles: library.function(c"utofu_reduce_double")?,
                poll: library.function(c"utofu_poll_barrier")?,
                poll_reduce: library.function(c"utofu_poll_reduce_uint64")?,
                poll_reduce_doubles: library.function(c"utofu_poll_reduce_double")?,
            })
        }
    }
}

/// The group of all ranks.
pub(crate) struct Gates {
    api: Api,
    mpi: &'static Mpi,
    group: usize,
    /// The start and end gate.
    gate: u64,
    /// The most numbers of a round.
    integers: usize,
    doubles: usize,
    /// Collectives that have been done here.
    pub(crate) done: AtomicU64,
}

static GATES: OnceLock<Option<Gates>> = OnceLock::new();

impl Gates {
    /// Returns the group. The first call makes it, at the same time in all ranks.
    pub(crate) fn get(mpi: &'static Mpi) -> Option<&'static Self> {
        GATES.get_or_init(|| Self::new(mpi)).as_ref()
    }

    /// Returns the group, if it has been made.
    pub(crate) fn made() -> Option<&'static Self> {
        GATES.get()?.as_ref()
    }

    fn new(mpi: &'static Mpi) -> Option<Self> {
        if mpi.size()? < 2 {
            return None;
        }
        // A rank without gates must not keep the others waiting.
        let api = Api::open();
        if !mpi.all(api.is_some()) {
            return None;
        }
        let made = api.and_then(|api| Self::make(mpi, api));
        mpi.all(made.is_some()).then_some(made).flatten()
    }

    fn make(mpi: &'static Mpi, api: Api) -> Option<Self> {
        let (rank, size) = (u32::try_from(mpi.rank()?).ok()?, u32::try_from(mpi.size()?).ok()?);
        let (axes, mut group) = ([size, 1, 1], 0);
        let context = std::ptr::from_ref(mpi).cast_mut().cast();
        // SAFETY: three axes, a function that knows its context, and a place for a handle.
        let code = unsafe {
            let axes = axes.as_ptr();
            (api.create)(rank, axes, 0, 0, Some(allgather), context, &raw mut group)
        };
        if code != SUCCESS {
            return None;
        }
        let (mut algorithm, mut gate, mut count) = (0, 0, 0);
        let mut caps = std::ptr::null_mut();
        // SAFETY: a group and places for numbers.
        let code = unsafe {
            (api.query)(group, &raw mut algorithm, &raw mut gate, &raw mut count)
                | (api.caps)(0, &raw mut caps)
        };
        // SAFETY: null, or a structure that stays.
        let caps = unsafe { caps.as_ref() }.filter(|_| code == SUCCESS);
        let (integers, doubles) = caps.map_or((1, 1), |caps| (caps.integers, caps.doubles));
        let (integers, doubles) = (integers.max(1), doubles.max(1));
        Some(Self { api, mpi, group, gate, integers, doubles, done: AtomicU64::new(0) })
    }

    /// Polls until a round has ended. Returns whether it has ended well.
    fn over(&self, poll: impl Fn() -> c_int) -> bool {
        for turn in 1u32.. {
            match poll() {
                NOT_COMPLETED => {}
                code => return code == SUCCESS,
            }
            // Another rank may wait for a message of this one before it comes here.
            if turn.is_multiple_of(PROGRESS) {
                self.mpi.progress();
            }
            if turn > REST {
                // SAFETY: it has no conditions.
                unsafe { libc::sched_yield() };
            }
        }
        false
    }

    /// Waits for all ranks.
    pub(crate) fn barrier(&self) -> bool {
        // SAFETY: a gate.
        let code = unsafe { (self.api.barrier)(self.gate, 0) };
        // SAFETY: as above.
        code == SUCCESS && self.over(|| unsafe { (self.api.poll)(self.gate, 0) })
    }

    /// Replaces words by the result over all ranks.
    pub(crate) fn reduce(&self, reduction: Reduction, words: &mut [u64]) -> bool {
        let op = match reduction {
            Reduction::And => AND,
            Reduction::Or => OR,
            Reduction::Xor => XOR,
            Reduction::Max => MAX,
            Reduction::Sum => SUM,
            Reduction::Doubles => return self.sum(words),
        };
        words.chunks_mut(self.integers).all(|part| {
            let (data, count) = (part.as_mut_ptr(), part.len());
            // SAFETY: a gate, and so many words.
            let code = unsafe { (self.api.reduce)(self.gate, op, data, count, 0) };
            // SAFETY: a gate, and places for as many words as the round has.
            code == SUCCESS && self.over(|| unsafe { (self.api.poll_reduce)(self.gate, 0, data) })
        })
    }

    /// Replaces the bits of doubles by those of their sums.
    fn sum(&self, words: &mut [u64]) -> bool {
        words.chunks_mut(self.doubles).all(|part| {
            let (data, count) = (part.as_mut_ptr().cast::<f64>(), part.len());
            // SAFETY: a gate, and so many doubles: they are as large as words, and any bits are
            // some.
            let code = unsafe { (self.api.reduce_doubles)(self.gate, DOUBLES, data, count, 0) };
            // SAFETY: a gate, and places for as many as the round has.
            code == SUCCESS
                && self.over(|| unsafe { (self.api.poll_reduce_doubles)(self.gate, 0, data) })
        })
    }

    /// Frees the gates.
    pub(crate) fn free(&self) -> u64 {
        // SAFETY: a group, which is freed once: MPI ends once.
        unsafe { (self.api.free)(self.group) };
        self.done.load(Ordering::Relaxed)
    }
}

unsafe extern "C" fn allgather(
    mpi: *mut c_void,
    mine: *const c_void,
    size: usize,
    all: *mut c_void,
) -> c_int {
    // SAFETY: the context of `make`.
    let mpi = unsafe { &*mpi.cast::<Mpi>() };
    let Some(ranks) = mpi.size() else { return -1 };
    // SAFETY: the library's places, with so many bytes of each rank.
    let (mine, all) = unsafe {
        let mine = slice::from_raw_parts(mine.cast::<u8>(), size);
        (mine, slice::from_raw_parts_mut(all.cast::<u8>(), size * ranks))
    };
    mpi.allgather(mine, all)
}
