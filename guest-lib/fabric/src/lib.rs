//! `libtofu-fi`: a libfabric provider, through which MPI libraries communicate over Tofu.
//!
//! libfabric loads it, calls `fi_prov_ini`, and gets tables of functions ([`ffi`]). Messages,
//! credits and matching are in [`core`], which knows nothing of libfabric. The device is that of
//! `libtofucom`, which is loaded at run time (`tofucom`): a program that calls uTofu as well shares
//! its device with its MPI library then.
//!
//! # What was tried
//!
//! The interface is that of libfabric's public headers, 1.17 to 2.5. What MPI libraries ask for was
//! found by logging their calls. The following ran on a host of two processors with `tofu run
//! --local`. Alltoall among 6 ranks of a unit with 8 bytes to 5 MiB for each, and ping-pongs of the
//! same sizes, went over several interfaces, with mpich 5.0.2; the other runs date from before.
//! Once 140 ranks had not ended after 90 s on a busy host; they ended in 16 and 20 s in two others.
//!
//! Tests of mpi4py 4.1.2 on two ranks, without those of dynamic processes, that failed:
//!
//! - mpich 5.0.2: 8 of 2079, all of `testGetFortranInfo`, which sends nothing. They fail over TCP,
//!   too.
//! - mpich 4.2.3, without `test_comm_topo`: none of 2047; not compared with TCP.
//! - openmpi 5.0.11, without `test_session` and `testCreateFromGroup`, of 2063: three `testRevoke`
//!   of `test_ulfm`, which Open MPI must be asked for, and two of `TestIntercommCreateFromGroups`,
//!   which need groups of PMIx. Over TCP they stopped in `testAccumulate` of `test_rma`.
//!
//! `testDistgraphcomm` of `test_comm_topo` fails or stops with mpich 4.2.3, as it does over TCP:
//! mpich probes for any sender there, and then receives from any. With 5.0.2 it passed in one of
//! three runs and did not end in two, one of which stood there. With Debian's Open MPI 4.1.4 the
//! tests do not end: `testAlltoallwBottom` has it send from a null pointer, which the provider
//! refuses, and it continues to wait for the message. Over its own TCP they stopped as well, in
//! `testNeighborAlltoallw`.
//!
//! fabtests 2.1.0, with libfabric 2.5.1 and `tofu run --local -n 2`; addresses are exchanged by
//! `-E`. Of variants that differ only in `-v`, `-U` or threading, not all were run, nor
//! `fi_ubertest`:
//!
//! - functional, RDM: all passed. Not applicable: `fi_cm_data`, `fi_rdm_rma_trigger`,
//!   `fi_scalable_ep`, `fi_rdm_shared_av`, `-e msg`, `-e dgram`.
//! - short, RDM: `fi_rdm_pingpong` also with `-c fd` and `-c sread`. Not applicable: `-e msg`, `-e
//!   dgram`.
//! - unit: `fi_dom_test`, `fi_cq_test`, `fi_eq_test`, `fi_mr_test`, `fi_cntr_test`,
//!   `fi_setopt_test` and `fi_getinfo_test` passed; the last one without its two cases that name a
//!   peer, which are refused. `fi_av_test` (names and services) is not applicable.
#![deny(unsafe_code)]

pub mod core;
#[allow(unsafe_code)]
pub mod ffi;
#[allow(unsafe_code)]
mod memory;
#[allow(unsafe_code)]
mod tofucom;
