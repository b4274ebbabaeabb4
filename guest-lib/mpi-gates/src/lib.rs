//! `libtofu_mpi_gates`: small collectives of MPI programs on the barrier gates.
//!
//! The library is loaded before the program's MPI library (`LD_PRELOAD`) and has four of its
//! functions, by MPI's profiling interface: what gates can do goes to them, and the rest to the MPI
//! library's own functions, whose names begin with `PMPI_`. All ranks must decide the same, so the
//! decision depends only on what MPI wants to be the same on all ranks.
//!
//! MPI libraries of the MPICH and Open MPI families have different types of handles, numbers and
//! pointers. A handle is a word here, which goes to functions of both as it came.

pub mod functions;
mod gates;
mod mpi;
mod words;
