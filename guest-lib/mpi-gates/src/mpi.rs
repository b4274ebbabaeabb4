//! The program's MPI library: its functions `PMPI_*`, and its handles, of either family.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use tofu_process::Library;

use crate::words::{Kind, Op};

pub(crate) const SUCCESS: c_int = 0;

type Barrier = unsafe extern "C" fn(usize) -> c_int;
type Bcast = unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, usize) -> c_int;
type Allreduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, c_int, usize, usize, usize) -> c_int;
type Reduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, c_int, usize, usize, c_int, usize) -> c_int;
type Allgather =
    unsafe extern "C" fn(*const c_void, c_int, usize, *mut c_void, c_int, usize, usize) -> c_int;
type Number = unsafe extern "C" fn(usize, *mut c_int) -> c_int;
type Pack = unsafe extern "C" fn(
    *const c_void,
    c_int,
    usize,
    *mut c_void,
    c_int,
    *mut c_int,
    usize,
) -> c_int;
type Unpack = unsafe extern "C" fn(
    *const c_void,
    c_int,
    *mut c_int,
    *mut c_void,
    c_int,
    usize,
    usize,
) -> c_int;
type Iprobe = unsafe extern "C" fn(c_int, c_int, usize, *mut c_int, *mut c_void) -> c_int;
type CallErrhandler = unsafe extern "C" fn(usize, c_int) -> c_int;
type Finalize = unsafe extern "C" fn() -> c_int;

/// The differences of the families.
pub(crate) struct Family {
    /// Handles are numbers of 32 bits, not pointers.
    short: bool,
    pub(crate) world: usize,
    pub(crate) in_place: usize,
    pub(crate) int: usize,
    pub(crate) byte: usize,
    pub(crate) min: usize,
    any_source: c_int,
    status_ignore: usize,
    pub(crate) other: c_int,
    kinds: Vec<(usize, Kind)>,
    ops: Vec<(usize, Op)>,
}

/// `MPI_ANY_TAG` of both.
const ANY_TAG: c_int = -1;

/// Types and operations: their names in Open MPI behind `ompi_mpi_`, and their numbers in MPICH.
const KINDS: [(&CStr, usize, Kind); 11] = [
    (c"ompi_mpi_int", 0x4c00_0405, Kind::I32),
    (c"ompi_mpi_unsigned", 0x4c00_0406, Kind::U32),
    (c"ompi_mpi_long", 0x4c00_0807, Kind::I64),
    (c"ompi_mpi_unsigned_long", 0x4c00_0808, Kind::U64),
    (c"ompi_mpi_long_long_int", 0x4c00_0809, Kind::I64),
    (c"ompi_mpi_unsigned_long_long", 0x4c00_0819, Kind::U64),
    (c"ompi_mpi_int32_t", 0x4c00_0439, Kind::I32),
    (c"ompi_mpi_uint32_t", 0x4c00_043d, Kind::U32),
    (c"ompi_mpi_int64_t", 0x4c00_083a, Kind::I64),
    (c"ompi_mpi_uint64_t", 0x4c00_083e, Kind::U64),
    (c"ompi_mpi_double", 0x4c00_080b, Kind::Double),
];
const OPS: [(&CStr, usize, Op); 6] = [
    (c"ompi_mpi_op_max", 0x5800_0001, Op::Max),
    (c"ompi_mpi_op_min", 0x5800_0002, Op::Min),
    (c"ompi_mpi_op_sum", 0x5800_0003, Op::Sum),
    (c"ompi_mpi_op_band", 0x5800_0006, Op::And),
    (c"ompi_mpi_op_bor", 0x5800_0008, Op::Or),
    (c"ompi_mpi_op_bxor", 0x5800_000a, Op::Xor),
];

impl Family {
    fn mpich() -> Self {
        Self {
            short: true,
            world: 0x4400_0000,
            in_place: usize::MAX,
            int: 0x4c00_0405,
            byte: 0x4c00_010d,
            min: 0x5800_0002,
            any_source: -2,
            status_ignore: 1,
            other: 15,
            kinds: KINDS.map(|(_, number, kind)| (number, kind)).into(),
            ops: OPS.map(|(_, number, op)| (number, op)).into(),
        }
    }

    /// Returns Open MPI, whose handles are the addresses of objects, if it is there.
    fn open_mpi(libraries: &Libraries) -> Option<Self> {
        let address = |name| libraries.symbol(name).map(|found| found.addr().get());
        let kinds = KINDS.iter().filter_map(|(name, _, kind)| Some((address(name)?, *kind)));
        let ops = OPS.iter().filter_map(|(name, _, op)| Some((address(name)?, *op)));
        Some(Self {
            short: false,
            world: address(c"ompi_mpi_comm_world")?,
            in_place: 1,
            int: address(c"ompi_mpi_int")?,
            byte: address(c"ompi_mpi_byte")?,
            min: address(c"ompi_mpi_op_min")?,
            any_source: -1,
            status_ignore: 0,
            other: 16,
            kinds: kinds.collect(),
            ops: ops.collect(),
        })
    }

    /// The upper half of a word with a short handle is not defined.
    fn handle(&self, word: usize) -> usize {
        if self.short { word as u32 as usize } else { word }
    }

    pub(crate) fn is_world(&self, comm: usize) -> bool {
        self.handle(comm) == self.world
    }

    pub(crate) fn kind(&self, datatype: usize) -> Option<Kind> {
        let datatype = self.handle(datatype);
        self.kinds.iter().find(|(known, _)| *known == datatype).map(|(_, kind)| *kind)
    }

    pub(crate) fn op(&self, op: usize) -> Option<Op> {
        let op = self.handle(op);
        self.ops.iter().find(|(known, _)| *known == op).map(|(_, op)| *op)
    }
}

/// The places where symbols of the MPI library are looked for.
struct Libraries(Vec<Library>);

impl Libraries {
    fn find() -> Self {
        let names = [c"libmpi.so.40", c"libmpi.so.12", c"libmpich.so.12"];
        // A library that Python has loaded is not among those that all see.
        let loaded = names.into_iter().filter_map(|name| {
            // SAFETY: nothing is loaded that is not loaded already.
            unsafe { Library::open(name, libc::RTLD_NOW | libc::RTLD_NOLOAD) }.ok()
        });
        Self(std::iter::once(Library::PROCESS).chain(loaded).collect())
    }

    fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        self.0.iter().find_map(|library| library.symbol(name))
    }

    /// Finds a function.
    ///
    /// # Safety
    ///
    /// The function has the type `F`, a pointer to a function.
    unsafe fn function<F: Copy>(&self, name: &CStr) -> Option<F> {
        // SAFETY: guaranteed by the caller.
        self.0.iter().find_map(|library| unsafe { library.function(name) })
    }
}

/// The MPI library.
pub(crate) struct Mpi {
    pub(crate) family: Family,
    pub(crate) barrier: Barrier,
    pub(crate) bcast: Bcast,
    pub(crate) allreduce: Allreduce,
    pub(crate) reduce: Reduce,
    pub(crate) finalize: Finalize,
    allgather: Allgather,
    comm_rank: Number,
    comm_size: Number,
    type_size: Number,
    pack: Pack,
    unpack: Unpack,
    iprobe: Iprobe,
    call_errhandler: CallErrhandler,
}

impl Mpi {
    /// Returns the MPI library of this process.
    pub(crate) fn get() -> Option<&'static Self> {
        static MPI: OnceLock<Option<Mpi>> = OnceLock::new();
        MPI.get_or_init(Self::find).as_ref()
    }

    fn find() -> Option<Self> {
        let libraries = Libraries::find();
        // SAFETY: the types are those of the MPI standard, but for handles, which are words here:
        // both families have them in registers.
        unsafe {
            Some(Self {
                barrier: libraries.function(c"PMPI_Barrier")?,
                bcast: libraries.function(c"PMPI_Bcast")?,
                allreduce: libraries.function(c"PMPI_Allreduce")?,
                reduce: libraries.function(c"PMPI_Reduce")?,
                finalize: libraries.function(c"PMPI_Finalize")?,
                allgather: libraries.function(c"PMPI_Allgather")?,
                comm_rank: libraries.function(c"PMPI_Comm_rank")?,
                comm_size: libraries.function(c"PMPI_Comm_size")?,
                type_size: libraries.function(c"PMPI_Type_size")?,
                pack: libraries.function(c"PMPI_Pack")?,
                unpack: libraries.function(c"PMPI_Unpack")?,
                iprobe: libraries.function(c"PMPI_Iprobe")?,
                call_errhandler: libraries.function(c"PMPI_Comm_call_errhandler")?,
                family: Family::open_mpi(&libraries).unwrap_or_else(Family::mpich),
            })
        }
    }

    fn number(&self, function: Number, of: usize) -> Option<usize> {
        let mut number = -1;
        // SAFETY: a handle, and a place for a number.
        let code = unsafe { function(of, &raw mut number) };
        usize::try_from(number).ok().filter(|_| code == SUCCESS)
    }

    pub(crate) fn rank(&self) -> Option<usize> {
        self.number(self.comm_rank, self.family.world)
    }

    pub(crate) fn size(&self) -> Option<usize> {
        self.number(self.comm_size, self.family.world)
    }

    /// Returns the bytes of an element of a type.
    pub(crate) fn type_size(&self, datatype: usize) -> Option<usize> {
        self.number(self.type_size, datatype)
    }

    /// Gathers the bytes of `mine` of all ranks in `all`.
    pub(crate) fn allgather(&self, mine: &[u8], all: &mut [u8]) -> c_int {
        let Ok(size) = c_int::try_from(mine.len()) else { return self.family.other };
        let (byte, world) = (self.family.byte, self.family.world);
        // SAFETY: places of these sizes.
        unsafe {
            let (mine, all) = (mine.as_ptr().cast(), all.as_mut_ptr().cast());
            (self.allgather)(mine, size, byte, all, size, byte, world)
        }
    }

    /// Returns whether all ranks say yes.
    pub(crate) fn all(&self, yes: bool) -> bool {
        let (mine, mut all) = (c_int::from(yes), 0);
        let Family { int, min, world, .. } = self.family;
        // SAFETY: places for a number.
        let code = unsafe {
            let (mine, all) = ((&raw const mine).cast(), (&raw mut all).cast());
            (self.allreduce)(mine, all, 1, int, min, world)
        };
        code == SUCCESS && all == 1
    }

    /// Packs elements into bytes, which are as many as they have. Returns whether it has.
    ///
    /// # Safety
    ///
    /// `from` points to so many elements of the type.
    pub(crate) unsafe fn pack(
        &self,
        from: *const c_void,
        count: c_int,
        datatype: usize,
        to: &mut [u8],
    ) -> bool {
        let (size, mut at) = (to.len() as c_int, 0);
        // SAFETY: guaranteed by the caller; a place of that size.
        let code = unsafe {
            let to = to.as_mut_ptr().cast();
            (self.pack)(from, count, datatype, to, size, &raw mut at, self.family.world)
        };
        code == SUCCESS && at == size
    }

    /// The same in the other direction.
    ///
    /// # Safety
    ///
    /// `to` points to places for so many elements of the type.
    pub(crate) unsafe fn unpack(
        &self,
        from: &[u8],
        to: *mut c_void,
        count: c_int,
        datatype: usize,
    ) -> bool {
        let (size, mut at) = (from.len() as c_int, 0);
        // SAFETY: as above.
        let code = unsafe {
            let from = from.as_ptr().cast();
            (self.unpack)(from, size, &raw mut at, to, count, datatype, self.family.world)
        };
        code == SUCCESS && at == size
    }

    /// Lets the MPI library serve other ranks.
    pub(crate) fn progress(&self) {
        let mut flag = 0;
        let Family { any_source, status_ignore, world, .. } = self.family;
        // SAFETY: a place for a number, and no status. The program finds out what it returns.
        unsafe {
            let status = ptr::without_provenance_mut(status_ignore);
            (self.iprobe)(any_source, ANY_TAG, world, &raw mut flag, status)
        };
    }

    /// Calls the program's error handler. Returns the error's code, if the handler returns.
    pub(crate) fn error(&self) -> c_int {
        // SAFETY: a handle and a code of this family.
        unsafe { (self.call_errhandler)(self.family.world, self.family.other) };
        self.family.other
    }
}
