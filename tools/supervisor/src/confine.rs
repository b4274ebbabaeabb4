//! Sandboxing: a machine's threads give up rights on the host that they do not need. See the
//! manual's page on sandboxing.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use tofu_sandbox::{Access, Policy, Role, Sandbox};

use crate::limits::ProgramLimits;

/// The message for a user whose machine was killed for a system call.
const HINT: &str = "This is a mistake of tofu's or an attack from a guest; please report it. \
                    --no-sandbox goes without";

/// The rights that a machine's threads give up; cloning it makes another handle.
#[derive(Clone, Default)]
pub struct Confinement(Option<Arc<Sandbox>>);

impl Confinement {
    /// Confines this process, in which all guests run. It can then open no files except KVM, those
    /// that the run-time library reads, and those in these folders. `switched_off` is true if the
    /// user has turned the sandbox off.
    ///
    /// # Errors
    ///
    /// If the kernel supports sandboxing and refuses it.
    pub(crate) fn of_guests(folders: &[&Path], switched_off: bool) -> anyhow::Result<Self> {
        let mut policy = Policy::new().allow_runtime().allow_if_present("/dev/kvm", Access::Device);
        for folder in folders {
            policy = policy.allow(*folder, Access::Folder);
        }
        Self::enter(policy, switched_off)
    }

    /// Confines this process and the programs that it will start, such as QEMU. Every file can then
    /// be read and run, but only devices and files in these folders can be written.
    ///
    /// # Errors
    ///
    /// As [`Confinement::of_guests`].
    pub(crate) fn of_programs(folders: &[&Path], switched_off: bool) -> anyhow::Result<Self> {
        let mut policy = Policy::new().allow("/", Access::Execute).allow("/dev", Access::Device);
        for folder in folders {
            policy = policy.allow(*folder, Access::Folder);
        }
        Self::enter(policy, switched_off)
    }

    fn enter(policy: Policy, switched_off: bool) -> anyhow::Result<Self> {
        if switched_off {
            log::info!("sandbox: switched off");
            return Ok(Self::default());
        }
        let sandbox = Sandbox::new(policy.with_hint(HINT))?;
        sandbox.enter_process()?;
        Ok(Self(Some(Arc::new(sandbox))))
    }

    /// Returns the limits of a program that will serve a guest; `None` if the user has turned the
    /// sandbox off.
    pub fn of_program(&self) -> Option<ProgramLimits> {
        self.0.as_ref().map(|_| ProgramLimits::new())
    }

    /// Returns a hook that a thread of this role must call first.
    pub fn hook(&self, role: Role) -> Arc<dyn Fn() + Send + Sync> {
        match &self.0 {
            Some(sandbox) => sandbox.thread_start(role),
            None => Arc::new(|| ()),
        }
    }
}

impl fmt::Debug for Confinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Confinement" } else { "Confinement(off)" })
    }
}
