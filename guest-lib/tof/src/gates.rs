//! Gates as the driver sets them up, register by register, and as the kernel takes them.

use tofu_abi::barrier::{BgAddress, GpidBseq, LocalLink, RemoteLink, SignalMask};
use tofu_abi::regs::BgsReg;

use crate::uapi::{Addr, SetBg};

/// What was written to a gate's registers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gate {
    mask: u64,
    local: u64,
    remote: u64,
    gpid_bseq: u64,
    pub(crate) enabled: bool,
}

impl Gate {
    pub(crate) fn write(&mut self, reg: BgsReg, value: u64) {
        match reg {
            BgsReg::Enable => self.enabled = value & 1 != 0,
            BgsReg::SignalMask => self.mask = value,
            BgsReg::LocalLink => self.local = value,
            BgsReg::RemoteLink => self.remote = value,
            BgsReg::GpidBseq => self.gpid_bseq = value,
            // Interrupts and the subnet are the kernel's.
            _ => {}
        }
    }

    /// Sequence number of the gate's next round.
    pub(crate) fn bseq(&self) -> u32 {
        GpidBseq(self.gpid_bseq).bseq()
    }

    /// The gate as the kernel takes it.
    pub(crate) fn setting(&self, tni: u8, bg: u8) -> SetBg {
        let mask = SignalMask(self.mask);
        let (local, remote) = (LocalLink(self.local), RemoteLink(self.remote));
        let number = |absent, gate: u8| if absent { -1 } else { i32::from(gate) };
        let source = BgAddress(remote.recv().into());
        // What a gate receives from has no path.
        let source = source.with_path(source.coords().default_path());
        let dest = BgAddress(remote.send().into());
        SetBg {
            tni: tni.into(),
            gate: bg.into(),
            source_lgate: number(mask.sig_recv(), local.recv()),
            source_raddr: address(source),
            source_rtni: source.tni().into(),
            source_rgate: number(mask.tlp_recv(), source.bg()),
            dest_lgate: number(mask.sig_send(), local.send()),
            dest_raddr: address(dest),
            dest_rtni: dest.tni().into(),
            dest_rgate: number(mask.tlp_send(), dest.bg()),
        }
    }
}

fn address(at: BgAddress) -> Addr {
    let (node, path) = (at.coords(), at.path());
    Addr {
        pa: path.a,
        pb: path.b,
        pc: path.c,
        x: node.x,
        y: node.y,
        z: node.z,
        a: node.a,
        b: node.b,
        c: node.c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tofu_abi::{Coords, Path};

    #[test]
    fn links_are_those_of_the_registers() {
        let to = BgAddress::new(Coords::new(3, 2, 1, 1, 2, 0), 4, 33).with_path(Path::new(0, 1, 1));
        let from = BgAddress::new(Coords::new(5, 6, 7, 0, 1, 1), 2, 9);
        let mut gate = Gate::default();
        gate.write(BgsReg::SignalMask, SignalMask(0).with_sig_send(true).0);
        gate.write(BgsReg::LocalLink, LocalLink(0).with_recv(17).0);
        let link = RemoteLink(0).with_send(to.0 as u32).with_recv(from.place().0 as u32);
        gate.write(BgsReg::RemoteLink, link.0);
        gate.write(BgsReg::GpidBseq, GpidBseq(0).with_gpid(1).with_bseq(77).0);
        assert_eq!(gate.bseq(), 77);
        let expected = SetBg {
            tni: 1,
            gate: 20,
            source_lgate: 17,
            source_raddr: Addr { x: 5, y: 6, z: 7, a: 0, b: 1, c: 1, pa: 0, pb: 1, pc: 1 },
            source_rtni: 2,
            source_rgate: 9,
            dest_lgate: -1,
            dest_raddr: Addr { x: 3, y: 2, z: 1, a: 1, b: 2, c: 0, pa: 0, pb: 1, pc: 1 },
            dest_rtni: 4,
            dest_rgate: 33,
        };
        assert_eq!(gate.setting(1, 20), expected);
    }

    #[test]
    fn a_gate_without_links_has_none() {
        let mut gate = Gate::default();
        let none = SignalMask(0).with_sig_recv(true).with_tlp_recv(true).with_sig_send(true);
        gate.write(BgsReg::SignalMask, none.with_tlp_send(true).0);
        let setting = gate.setting(0, 3);
        let links =
            [setting.source_lgate, setting.source_rgate, setting.dest_lgate, setting.dest_rgate];
        assert_eq!(links, [-1; 4]);
    }
}
