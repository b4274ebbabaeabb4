//! Getting a vCPU thread out of `KVM_RUN`.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock};

use kvm_ioctls::VcpuFd;
use tofu_sync::lock;
use vmm_sys_util::signal::{SIGRTMIN, register_signal_handler, unblock_signal};

use crate::Error;

/// Wakes one vCPU thread, from any thread and at any time.
///
/// Two parts avoid a race: `immediate_exit` in the shared `kvm_run` page makes the next `KVM_RUN`
/// return immediately, and a signal ends the one in progress.
#[derive(Default)]
pub(crate) struct Kicker {
    target: Mutex<Option<Target>>,
}

struct Target {
    thread: libc::pthread_t,
    immediate_exit: NonNull<AtomicU8>,
}

// SAFETY: `immediate_exit` points into memory shared with the kernel, is used as
// an atomic only, and `Target` exists only while that memory does (`Attached`).
unsafe impl Send for Target {}

/// Proof that the calling thread is the kicker's target. Dropping it ends that;
/// it holds the vCPU so that the `kvm_run` page outlives the registration.
pub(crate) struct Attached<'a> {
    kicker: &'a Kicker,
    vcpu: VcpuFd,
}

impl Kicker {
    /// Makes the calling thread, which is about to run `vcpu`, the target.
    pub(crate) fn attach(&self, mut vcpu: VcpuFd) -> Result<Attached<'_>, Error> {
        install_handler()?;
        unblock_signal(kick_signal()).map_err(|_| Error::Host {
            what: "unblocking the vCPU kick signal",
            source: std::io::Error::last_os_error(),
        })?;
        let immediate_exit = NonNull::from(&mut vcpu.get_kvm_run().immediate_exit).cast();
        // SAFETY: always safe to call.
        let thread = unsafe { libc::pthread_self() };
        *lock(&self.target) = Some(Target { thread, immediate_exit });
        Ok(Attached { kicker: self, vcpu })
    }

    /// Makes the target leave `KVM_RUN` now, or immediately after it next enters it. Does nothing
    /// if there is no target.
    pub(crate) fn kick(&self) {
        if let Some(target) = &*lock(&self.target) {
            // SAFETY: the pointer is valid and only used atomically while the
            // target is registered, which the lock guarantees here.
            unsafe { target.immediate_exit.as_ref() }.store(1, Ordering::SeqCst);
            // SAFETY: the thread unregisters under this lock before it ends.
            unsafe { libc::pthread_kill(target.thread, kick_signal()) };
        }
    }
}

impl Attached<'_> {
    /// The vCPU.
    pub(crate) fn vcpu(&mut self) -> &mut VcpuFd {
        &mut self.vcpu
    }

    /// Takes note of a kick. The kicking thread has stored its request before, so requests must be
    /// checked after this call.
    pub(crate) fn acknowledge(&self) {
        if let Some(target) = &*lock(&self.kicker.target) {
            // SAFETY: as in `kick`.
            unsafe { target.immediate_exit.as_ref() }.store(0, Ordering::SeqCst);
        }
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        *lock(&self.kicker.target) = None;
    }
}

fn kick_signal() -> libc::c_int {
    SIGRTMIN()
}

fn install_handler() -> Result<(), Error> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    extern "C" fn ignore(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}
    // The handler does nothing: interrupting KVM_RUN is the signal's whole work.
    INSTALLED
        .get_or_init(|| register_signal_handler(kick_signal(), ignore).map_err(|e| e.errno()))
        .map_err(|errno| Error::Host {
            what: "installing the vCPU kick signal handler",
            source: std::io::Error::from_raw_os_error(errno),
        })
}
