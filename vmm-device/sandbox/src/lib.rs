//! Sandboxes for the threads of a monitor.
//!
//! Code that a guest can reach is written so that it cannot be taken over. This crate limits the
//! damage if that happens anyway, with two features of the kernel:
//!
//! - *seccomp* filters ([`Sandbox::enter_thread`]): each thread gives up the system calls that its
//!   [`Role`] does not need. If it makes one of them anyway, the whole process ends, after one line
//!   on standard error that names role and call, with exit status [`EXIT_VIOLATION`]. (If all
//!   signals are blocked at that time, as when the C library creates a thread, SIGSYS itself ends
//!   the process, without the line.)
//! - *Landlock* ([`Sandbox::enter_process`]): once everything is open, only the files that the
//!   [`Policy`] lists can be opened, and no TCP port can be bound or connected to.
//!
//! Another program that this process starts is confined before it starts ([`confine_program`]).
//!
//! Neither needs root, and neither can be undone. Restrictions that a kernel does not support are
//! left out, with a line in the log and in [`Entered`]; [`Support`] reports them beforehand.
//!
//! # Order
//!
//! A thread inherits the restrictions of its creator. So a process (`confine.rs` of
//! `tofu-supervisor`)
//!
//! 1. opens and reads everything: images, `/dev/kvm`, sockets;
//! 2. calls [`Sandbox::enter_process`] on the main thread, before there are others: before Linux
//!    7.0 Landlock does not reach threads that exist already, whose number is in
//!    `Entered::missing`;
//! 3. creates threads, each of which enters its role first: `Machine::start_with` for engines,
//!    `Vm::on_thread_start` for vCPUs, `virtio::Options::thread_start` for virtio devices;
//! 4. enters [`Role::Main`] last, if it has no programs to run.
//!
//! # New calls
//!
//! A new call of a thread goes to the list of its role in `filter.rs`, with the narrowest condition
//! that works, and to the tests (`tests/confined.rs`), if no other thread can do the work earlier.
//! `strace -f` shows the calls of threads; those of the C library differ between versions. A thread
//! with a role cannot replace the handler of SIGSYS. EPERM instead of SIGSYS would hide attacks and
//! mistakes. Opening a file for reading only, and querying files, is answered with EACCES: the C
//! library does this in any thread that allocates memory (`/sys/devices/system/cpu/online`,
//! `/proc/sys/vm/overcommit_memory`; the program's file at a panic with `RUST_BACKTRACE`), and
//! copes.

#![deny(unsafe_code)]

mod descriptors;
mod files;
mod filter;
mod policy;
mod program;
mod signals;
mod support;
mod violation;

use std::sync::Arc;

use landlock::Scope;
use seccompiler::BpfProgram;

pub use crate::descriptors::keep_from_children;
pub use crate::policy::{Access, EXIT_VIOLATION, Error, Policy, Role};
pub use crate::program::{User, answer_connect, confine_program, hold_connects};
pub use crate::support::Support;

/// The parts of a sandbox that are in effect for the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entered {
    /// Files are restricted.
    pub files: bool,
    /// Missing features of the kernel, in one line each.
    pub missing: Vec<String>,
}

/// A sandbox, ready to be entered.
pub struct Sandbox {
    policy: Policy,
    support: Support,
    /// By role, in the order of [`Role::ALL`]; empty where the kernel has no filters. Each has what
    /// a thread may do, and what fails without ending the process.
    filters: Vec<(BpfProgram, BpfProgram)>,
}

impl Sandbox {
    /// Prepares a sandbox; nothing is restricted yet.
    ///
    /// # Errors
    /// [`Error::Path`] if a path of the policy cannot be opened, [`Error::Filter`] if a filter
    /// cannot be compiled.
    pub fn new(policy: Policy) -> Result<Self, Error> {
        let support = Support::probe();
        files::check(&policy.paths)?;
        let filters = match support.seccomp {
            Ok(()) => Role::ALL.into_iter().map(filter::compile).collect::<Result<_, _>>()?,
            Err(_) => Vec::new(),
        };
        Ok(Self { policy, support, filters })
    }

    /// Restricts this thread, and those that it creates later: they cannot open files other than
    /// those of the policy, bind or connect to TCP ports, or gain rights by running a program.
    ///
    /// Threads that exist already are left alone on kernels before 7.0, with a line in
    /// [`Entered::missing`].
    ///
    /// # Errors
    /// [`Error::Path`], [`Error::Files`]. A missing feature of the kernel is no error.
    pub fn enter_process(&self) -> Result<Entered, Error> {
        let mut entered = Entered { files: false, missing: Vec::new() };
        let mut before = None;
        match &self.support.landlock {
            Ok(abi) => {
                files::restrict(&self.policy, Scope::AbstractUnixSocket)?;
                entered.files = true;
                entered.missing.extend(self.support.landlock_gaps());
                let others = support::threads().saturating_sub(1);
                if others > 0 && *abi < support::ABI_ALL_THREADS {
                    before =
                        Some(format!("{others} threads that were there before may open any file"));
                }
            }
            Err(reason) => entered.missing.push(format!("files can be opened: {reason}")),
        }
        if let Err(reason) = &self.support.seccomp {
            entered.missing.push(format!("system calls are not filtered: {reason}"));
        }
        for missing in &entered.missing {
            log::warn!("sandbox: {missing}");
        }
        if let Some(before) = before {
            // The caller is responsible for this, not the host.
            log::info!("sandbox: {before}");
            entered.missing.push(before);
        }
        Ok(entered)
    }

    /// Gives up the system calls that `role` does not need, for the calling thread. Returns false
    /// if the kernel has no filters. Except for [`Role::Main`], signals that are sent to the
    /// process are then blocked on this thread.
    ///
    /// # Errors
    /// [`Error::Filter`] if the kernel refuses, for instance for lack of memory.
    pub fn enter_thread(&self, role: Role) -> Result<bool, Error> {
        let at = Role::ALL.iter().position(|known| *known == role);
        let Some((allowed, refused)) = at.and_then(|at| self.filters.get(at)) else {
            return Ok(false);
        };
        violation::report_as(role, &self.policy.hint).map_err(|error| Error::Filter {
            role: role.name(),
            reason: format!("installing the handler of SIGSYS: {error}"),
        })?;
        if role != Role::Main {
            signals::leave_to_others().map_err(|error| Error::Filter {
                role: role.name(),
                reason: format!("blocking signals: {error}"),
            })?;
        }
        for filter in [refused, allowed] {
            seccompiler::apply_filter(filter)
                .map_err(|error| Error::Filter { role: role.name(), reason: error.to_string() })?;
        }
        Ok(true)
    }

    /// A hook for code that creates threads. It enters `role` on the thread that calls it. If that
    /// fails it ends the process with one line, because such a thread must not run.
    pub fn thread_start(self: &Arc<Self>, role: Role) -> Arc<dyn Fn() + Send + Sync> {
        let this = Arc::clone(self);
        Arc::new(move || {
            if let Err(error) = this.enter_thread(role) {
                log::error!("{error}");
                std::process::exit(EXIT_VIOLATION);
            }
        })
    }
}
