//! The MPI functions that use the gates, in place of the MPI library's.

use std::ffi::{c_int, c_void};
use std::slice;
use std::sync::atomic::Ordering;

use crate::gates::Gates;
use crate::mpi::{Mpi, SUCCESS};
use crate::words::{Kind, Op, Reduction};

/// The most words of a collective: what a round of TofuD's gates takes.
const INTEGERS: usize = 6;
const DOUBLES: usize = 3;
/// Returned where there is no MPI library, so no class of errors is known.
const NO_MPI: c_int = 1;
/// The variable that makes rank 0 print the number of collectives over gates at the end.
const SAY: &str = "TOFU_MPI_GATES";

/// The end of a collective on gates.
fn end(mpi: &Mpi, gates: &Gates, good: bool) -> c_int {
    gates.done.fetch_add(1, Ordering::Relaxed);
    if good { SUCCESS } else { mpi.error() }
}

/// `MPI_Barrier`.
///
/// # Safety
///
/// As MPI says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Barrier(comm: usize) -> c_int {
    let Some(mpi) = Mpi::get() else { return NO_MPI };
    if mpi.family.is_world(comm)
        && let Some(gates) = Gates::get(mpi)
    {
        return end(mpi, gates, gates.barrier());
    }
    // SAFETY: the caller's arguments.
    unsafe { (mpi.barrier)(comm) }
}

/// `MPI_Bcast`.
///
/// # Safety
///
/// As MPI says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Bcast(
    buffer: *mut c_void,
    count: c_int,
    datatype: usize,
    root: c_int,
    comm: usize,
) -> c_int {
    let Some(mpi) = Mpi::get() else { return NO_MPI };
    // Ranks may describe the same data by different types, but not other amounts of it.
    let bytes = || {
        let bytes = mpi.type_size(datatype)?.checked_mul(usize::try_from(count).ok()?)?;
        (1..=INTEGERS * 8).contains(&bytes).then_some(bytes)
    };
    if mpi.family.is_world(comm)
        && let Some(bytes) = bytes()
        && let Some(root) = usize::try_from(root).ok().filter(|root| Some(*root) < mpi.size())
        && let Some(gates) = Gates::get(mpi)
    {
        let mut data = [0; INTEGERS * 8];
        let part = &mut data[..bytes];
        let mine = mpi.rank() == Some(root);
        // SAFETY: the caller's elements.
        let mut good = !mine || unsafe { mpi.pack(buffer, count, datatype, part) };
        let mut words = [0; INTEGERS];
        let used = bytes.div_ceil(8);
        for (word, bytes) in words.iter_mut().zip(data.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        good &= gates.reduce(Reduction::Or, &mut words[..used]);
        for (bytes, word) in data.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        // SAFETY: the caller's places.
        good &= mine || unsafe { mpi.unpack(&data[..bytes], buffer, count, datatype) };
        return end(mpi, gates, good);
    }
    // SAFETY: the caller's arguments.
    unsafe { (mpi.bcast)(buffer, count, datatype, root, comm) }
}

/// A reduction that gates can do.
struct Small {
    gates: &'static Gates,
    kind: Kind,
    op: Op,
    reduction: Reduction,
    count: usize,
}

impl Small {
    fn of(
        mpi: &'static Mpi,
        count: c_int,
        datatype: usize,
        op: usize,
        comm: usize,
    ) -> Option<Self> {
        let family = &mpi.family;
        let count = usize::try_from(count).ok().filter(|_| family.is_world(comm))?;
        let (kind, op) = (family.kind(datatype)?, family.op(op)?);
        let reduction = kind.reduction(op)?;
        let most = if reduction == Reduction::Doubles { DOUBLES } else { INTEGERS };
        let fits = (1..=most).contains(&count);
        Some(Self { gates: fits.then(|| Gates::get(mpi))??, kind, op, reduction, count })
    }

    /// Reduces elements, and puts the result where `to` points, unless it is null. Returns whether
    /// it has.
    ///
    /// # Safety
    ///
    /// `from` points to the elements, `to` is null or points to places for them.
    unsafe fn run(&self, from: *const c_void, to: *mut c_void) -> bool {
        let (size, bytes) = (self.kind.size(), self.kind.size() * self.count);
        let mut words = [0; INTEGERS];
        // SAFETY: guaranteed by the caller.
        let elements = unsafe { slice::from_raw_parts(from.cast::<u8>(), bytes) };
        for (word, element) in words.iter_mut().zip(elements.chunks(size)) {
            *word = self.kind.word(self.op, element);
        }
        let words = &mut words[..self.count];
        let good = self.gates.reduce(self.reduction, words);
        if good && !to.is_null() {
            // SAFETY: guaranteed by the caller. The elements are not used any more.
            let places = unsafe { slice::from_raw_parts_mut(to.cast::<u8>(), bytes) };
            for (word, element) in words.iter().zip(places.chunks_mut(size)) {
                self.kind.element(self.op, *word, element);
            }
        }
        good
    }
}

/// `MPI_Allreduce`.
///
/// # Safety
///
/// As MPI says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Allreduce(
    from: *const c_void,
    to: *mut c_void,
    count: c_int,
    datatype: usize,
    op: usize,
    comm: usize,
) -> c_int {
    let Some(mpi) = Mpi::get() else { return NO_MPI };
    if let Some(small) = Small::of(mpi, count, datatype, op, comm) {
        let from = if from.addr() == mpi.family.in_place { to.cast_const() } else { from };
        // SAFETY: the caller's elements and places.
        let good = unsafe { small.run(from, to) };
        return end(mpi, small.gates, good);
    }
    // SAFETY: the caller's arguments.
    unsafe { (mpi.allreduce)(from, to, count, datatype, op, comm) }
}

/// `MPI_Reduce`.
///
/// # Safety
///
/// As MPI says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Reduce(
    from: *const c_void,
    to: *mut c_void,
    count: c_int,
    datatype: usize,
    op: usize,
    root: c_int,
    comm: usize,
) -> c_int {
    let Some(mpi) = Mpi::get() else { return NO_MPI };
    let root_rank = usize::try_from(root).ok().filter(|root| Some(*root) < mpi.size());
    if root_rank.is_some()
        && let Some(small) = Small::of(mpi, count, datatype, op, comm)
    {
        let in_place = from.addr() == mpi.family.in_place;
        let from = if in_place { to.cast_const() } else { from };
        // Only the root's place is a place.
        let to = if root_rank == mpi.rank() { to } else { std::ptr::null_mut() };
        // SAFETY: the caller's elements and places.
        let good = unsafe { small.run(from, to) };
        return end(mpi, small.gates, good);
    }
    // SAFETY: the caller's arguments.
    unsafe { (mpi.reduce)(from, to, count, datatype, op, root, comm) }
}

/// `MPI_Finalize`.
///
/// # Safety
///
/// As MPI says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Finalize() -> c_int {
    let Some(mpi) = Mpi::get() else { return NO_MPI };
    let say = mpi.rank() == Some(0) && std::env::var_os(SAY).is_some();
    let done = Gates::made().map(Gates::free);
    if say {
        match done {
            Some(done) => eprintln!("libtofu_mpi_gates: {done} collectives over barrier gates"),
            None => eprintln!("libtofu_mpi_gates: no barrier gates, or no use for them"),
        }
    }
    // SAFETY: it has no arguments.
    unsafe { (mpi.finalize)() }
}
