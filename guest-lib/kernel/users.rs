// SPDX-License-Identifier: GPL-2.0

//! The rights of users: the group process id, subnet and queues of each.

use kernel::prelude::*;

use tofu_abi::generation::Description;
use tofu_abi::regs::{CqsMode, NUM_TNI};
use tofu_abi::Group;

use crate::ids::{GateSet, QueueId};

/// The most users that can be registered (ours).
const MAX_USERS: usize = 1024;
/// Control queues of a TNI that processes may have: all except the kernel's.
pub(crate) const fn cq_mask(description: &Description) -> u64 {
    (1 << description.user_cqs()) - 1
}

/// The rights of a user.
#[derive(Clone, Copy)]
pub(crate) struct Rights {
    /// Only queues of the same group communicate.
    pub(crate) group: Group,
    /// Subnet fields of CQS MODE; all zero means no limit.
    pub(crate) subnet: CqsMode,
    /// Control queues of each TNI.
    pub(crate) cqs: [u64; NUM_TNI],
    /// Barrier gates.
    pub(crate) gates: GateSet,
}

impl Rights {
    /// Returns true if the user may have the queue.
    pub(crate) fn allow_queue(&self, id: QueueId) -> bool {
        let mask = self.cqs.get(id.tni.index()).copied().unwrap_or(0);
        mask >> id.cq.get() & 1 != 0
    }
}

/// The calling process's user id in the initial user namespace: root of another namespace is not
/// root here.
pub(crate) fn current() -> u32 {
    kernel::task::Kuid::current_euid().into_raw().val
}

/// The users that are registered, and the defaults of all others.
pub(crate) struct Users {
    list: KVec<(u32, Rights)>,
    subnet: CqsMode,
    description: &'static Description,
}

impl Users {
    pub(crate) const fn new(description: &'static Description) -> Self {
        Self {
            description,
            list: KVec::new(),
            subnet: CqsMode(0),
        }
    }

    /// The rights of a user. Ours: a user who is not registered may use every queue, in a group of
    /// the user's own.
    pub(crate) fn rights(&self, uid: u32) -> Rights {
        let known = self.list.iter().find(|(known, _)| *known == uid);
        let mut rights = known.map_or_else(|| self.default_rights(uid), |(_, rights)| *rights);
        if rights.subnet == CqsMode(0) {
            rights.subnet = self.subnet;
        }
        rights
    }

    fn default_rights(&self, uid: u32) -> Rights {
        Rights {
            group: Group::of_user(uid),
            subnet: CqsMode(0),
            cqs: [cq_mask(self.description); NUM_TNI],
            gates: GateSet(self.description.user_gates()),
        }
    }

    /// Unregisters a user.
    pub(crate) fn forget(&mut self, uid: u32) {
        self.list.retain(|(known, _)| *known != uid);
    }

    /// Registers a user, or changes the rights of a registered one.
    ///
    /// # Errors
    ///
    /// `ENOSPC`, `ENOMEM`.
    pub(crate) fn register(&mut self, uid: u32, rights: Rights) -> Result {
        if let Some((_, known)) = self.list.iter_mut().find(|(known, _)| *known == uid) {
            *known = rights;
            return Ok(());
        }
        if self.list.len() >= MAX_USERS {
            return Err(ENOSPC);
        }
        self.list.push((uid, rights), GFP_KERNEL)?;
        Ok(())
    }

    /// Sets the default subnet, for users without one.
    pub(crate) fn set_subnet(&mut self, subnet: CqsMode) {
        self.subnet = subnet;
    }
}
