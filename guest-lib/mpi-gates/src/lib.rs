//! `libtofu_mpi_gates`: small collectives of MPI programs on the barrier gates.
//!
//! The library is loaded before the program's MPI library (`LD_PRELOAD`) and replaces four of its
//! functions, through MPI's profiling interface. Collectives that the gates support use them; the
//! others call the MPI library's own functions, whose names begin with `PMPI_`. All ranks must make
//! the same choice, so it depends only on arguments that MPI requires to be the same on all ranks.
//!
//! MPI libraries of the MPICH and Open MPI families have different types of handles, numbers and
//! pointers. A handle is a word here, which is passed unchanged to functions of both.

pub mod functions;
mod gates;
mod mpi;
mod words;
