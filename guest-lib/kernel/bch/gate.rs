// SPDX-License-Identifier: GPL-2.0

//! The gates that ENABLE_BCH sets up.

use kernel::prelude::*;

use tofu_abi::barrier::{BgAddress, GpidBseq, LocalLink, RemoteLink, SignalMask};
use tofu_abi::generation::Description;
use tofu_abi::irq::BgsIrqs;
use tofu_abi::regs::BgsReg;
use tofu_abi::topology::Shape;
use tofu_abi::{BgId, Coords, Path, TniId};

use crate::device::Device;
use crate::ids::GateId;
use crate::uapi::{Addr, SetBg};
use crate::users::Rights;

/// A gate's settings, checked.
pub(super) struct Gate {
    pub(super) id: GateId,
    mask: SignalMask,
    local: LocalLink,
    remote: RemoteLink,
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
        let tni = |number| tni(number, description);
        let gate = |number| gate(number, description);
        let id = GateId {
            tni: tni(set.tni)?,
            bg: gate(set.gate)?,
        };
        if !rights.gates.has(id) {
            return Err(EACCES);
        }
        // Less than 0 is no gate.
        let local = |number: i32| {
            if number < 0 {
                Ok(None)
            } else {
                gate(number).map(Some)
            }
        };
        let remote = |addr: &Addr, tni_number, number| {
            if number < 0 {
                Ok(None)
            } else {
                address(addr, tni(tni_number)?, gate(number)?, rights).map(Some)
            }
        };
        let source = local(set.source_lgate)?;
        let dest = local(set.dest_lgate)?;
        let from = remote(&set.source_raddr, set.source_rtni, set.source_rgate)?;
        let to = remote(&set.dest_raddr, set.dest_rtni, set.dest_rgate)?;
        Ok(Self {
            id,
            mask: SignalMask(0)
                .with_sig_recv(source.is_none())
                .with_tlp_recv(from.is_none())
                .with_sig_send(dest.is_none())
                .with_tlp_send(to.is_none()),
            local: LocalLink(0)
                .with_recv(source.map_or(0, BgId::get))
                .with_send(dest.map_or(0, BgId::get)),
            remote: RemoteLink(0)
                .with_recv(from.map_or(0, |from| from.place().0 as u32))
                .with_send(to.map_or(0, |to| to.0 as u32)),
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
            (BgsReg::SignalMask, self.mask.0),
            (BgsReg::LocalLink, self.local.0),
            (BgsReg::RemoteLink, self.remote.0),
            (BgsReg::SubnetSize, self.subnet),
            (BgsReg::GpidBseq, self.gpid_bseq.0),
            (BgsReg::Enable, 1),
        ] {
            device.write(self.id, reg, value);
        }
        device.wait(self.id, BgsReg::State, |v| v & 1 != 0)
    }
}

fn tni(number: i32, description: &Description) -> Result<TniId> {
    let id = u8::try_from(number).ok().and_then(TniId::new);
    id.filter(|id| id.get() < description.barrier.tnis)
        .ok_or(EINVAL)
}

fn gate(number: i32, description: &Description) -> Result<BgId> {
    let id = u8::try_from(number).ok().and_then(BgId::new);
    id.filter(|id| id.get() < description.barrier.gates)
        .ok_or(EINVAL)
}

fn address(addr: &Addr, tni: TniId, gate: BgId, rights: &Rights) -> Result<BgAddress> {
    let node = Coords::new(addr.x, addr.y, addr.z, addr.a, addr.b, addr.c);
    let path = Path::new(addr.pa, addr.pb, addr.pc);
    let fit = Shape::LARGEST.contains(node)
        && Shape::LARGEST.contains_path(path)
        && rights.subnet.subnet_allows(addr.x, addr.y, addr.z);
    if !fit {
        return Err(EINVAL);
    }
    Ok(BgAddress::new(node, tni, gate).with_path(path))
}
