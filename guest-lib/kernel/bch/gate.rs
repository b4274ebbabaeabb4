// SPDX-License-Identifier: GPL-2.0

//! The gates that ENABLE_BCH sets up.

use kernel::prelude::*;

use tofu_abi::barrier::{BgAddress, GpidBseq, LocalLink, RemoteLink, SignalMask};
use tofu_abi::regs::{bgs_page, BgsReg, NUM_BG, NUM_TNI};
use tofu_abi::{Coords, Path};

use crate::device::Device;
use crate::uapi::{Addr, SetBg};
use crate::users::Rights;

/// A gate's settings, checked.
pub(super) struct Gate {
    pub(super) tni: u8,
    pub(super) gate: u8,
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
    pub(super) fn new(set: &SetBg, rights: &Rights, bseq: u32) -> Result<Self> {
        let tni = number(set.tni, NUM_TNI)?;
        let gate = number(set.gate, NUM_BG)?;
        if rights.bgs.get(usize::from(tni)).copied().unwrap_or(0) >> gate & 1 == 0 {
            return Err(EACCES);
        }
        // Less than 0 is no gate.
        let local = |gate: i32| {
            if gate < 0 {
                Ok(None)
            } else {
                number(gate, NUM_BG).map(Some)
            }
        };
        let remote = |addr: &Addr, tni, gate| {
            if gate < 0 {
                Ok(None)
            } else {
                address(addr, tni, gate, rights).map(Some)
            }
        };
        let source = local(set.source_lgate)?;
        let dest = local(set.dest_lgate)?;
        let from = remote(&set.source_raddr, set.source_rtni, set.source_rgate)?;
        let to = remote(&set.dest_raddr, set.dest_rtni, set.dest_rgate)?;
        Ok(Self {
            tni,
            gate,
            mask: SignalMask(0)
                .with_sig_recv(source.is_none())
                .with_tlp_recv(from.is_none())
                .with_sig_send(dest.is_none())
                .with_tlp_send(to.is_none()),
            local: LocalLink(0)
                .with_recv(source.unwrap_or(0))
                .with_send(dest.unwrap_or(0)),
            remote: RemoteLink(0)
                .with_recv(from.map_or(0, |from| from.place().0 as u32))
                .with_send(to.map_or(0, |to| to.0 as u32)),
            subnet: rights.subnet.0,
            gpid_bseq: GpidBseq(0).with_gpid(rights.gpid).with_bseq(bseq),
        })
    }

    /// Sets the gate up, and waits until it is enabled.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`.
    pub(super) fn enable(&self, device: &Device, told: u64) -> Result {
        let register = |reg: BgsReg| bgs_page(self.tni, self.gate) + reg.offset();
        for (reg, value) in [
            (BgsReg::Imr, u64::MAX),
            (BgsReg::Irc, u64::MAX),
            (BgsReg::Imc, told),
            (BgsReg::SignalMask, self.mask.0),
            (BgsReg::LocalLink, self.local.0),
            (BgsReg::RemoteLink, self.remote.0),
            (BgsReg::SubnetSize, self.subnet),
            (BgsReg::GpidBseq, self.gpid_bseq.0),
            (BgsReg::Enable, 1),
        ] {
            device.write(register(reg), value);
        }
        device
            .wait(register(BgsReg::State), |v| v & 1 != 0)
            .map(drop)
    }
}

fn number(value: i32, end: usize) -> Result<u8> {
    u8::try_from(value)
        .ok()
        .filter(|n| usize::from(*n) < end)
        .ok_or(EINVAL)
}

fn address(addr: &Addr, tni: i32, gate: i32, rights: &Rights) -> Result<BgAddress> {
    let (tni, gate) = (number(tni, NUM_TNI)?, number(gate, NUM_BG)?);
    let node = Coords::new(addr.x, addr.y, addr.z, addr.a, addr.b, addr.c);
    let path = Path::new(addr.pa, addr.pb, addr.pc);
    let fit = [addr.x, addr.y, addr.z].iter().all(|p| *p < 32)
        && [addr.a, addr.c, path.a, path.c].iter().all(|p| *p < 2)
        && [addr.b, path.b].iter().all(|p| *p < 3)
        && rights.subnet.subnet_allows(addr.x, addr.y, addr.z);
    if !fit {
        return Err(EINVAL);
    }
    Ok(BgAddress::new(node, tni, gate).with_path(path))
}
