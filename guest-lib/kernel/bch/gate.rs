// SPDX-License-Identifier: GPL-2.0

//! The gates that ENABLE_BCH sets up.

use kernel::prelude::*;

use tofu_abi::barrier::GpidBseq;
use tofu_abi::generation::Description;
use tofu_abi::irq::BgsIrqs;
use tofu_abi::regs::BgsReg;

use crate::device::Device;
use crate::ids::GateId;
use crate::uapi::{GateLinks, SetBg};
use crate::users::Rights;

/// A gate's settings, checked.
pub(super) struct Gate {
    pub(super) id: GateId,
    links: GateLinks,
    subnet: u64,
    gpid_bseq: GpidBseq,
}

impl Gate {
    /// # Errors
    ///
    /// `EINVAL` if there can be no such gate, `EACCES` if the user may not use it.
    pub(super) fn new(
        set: &SetBg,
        rights: &Rights,
        bseq: u32,
        description: &Description,
    ) -> Result<Self> {
        let (tni, bg) = set.id(description).ok_or(EINVAL)?;
        let id = GateId { tni, bg };
        if !rights.gates.has(id) {
            return Err(EACCES);
        }
        let links = set.links(rights.subnet, description).ok_or(EINVAL)?;
        Ok(Self {
            id,
            links,
            subnet: rights.subnet.0,
            gpid_bseq: GpidBseq(0).with_gpid(rights.group.gpid()).with_bseq(bseq),
        })
    }

    /// Sets the gate up, and waits until it is enabled.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`.
    pub(super) fn enable(&self, device: &Device, told: BgsIrqs) -> Result {
        for (reg, value) in [
            (BgsReg::Imr, u64::MAX),
            (BgsReg::Irc, u64::MAX),
            (BgsReg::Imc, told.raw()),
            (BgsReg::SignalMask, self.links.mask.0),
            (BgsReg::LocalLink, self.links.local.0),
            (BgsReg::RemoteLink, self.links.remote.0),
            (BgsReg::SubnetSize, self.subnet),
            (BgsReg::GpidBseq, self.gpid_bseq.0),
            (BgsReg::Enable, 1),
        ] {
            device.write(self.id, reg, value);
        }
        device.wait(self.id, BgsReg::State, |v| v & 1 != 0)
    }
}
