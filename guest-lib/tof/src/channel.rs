//! A barrier channel that the kernel sets up, with its gates.

use std::os::fd::AsFd;

use tofu_abi::BgId;
use tofu_abi::barrier::{BgAddress, NOTICE_SIZE, Profile};
use tofu_abi::irq::BgsIrqs;
use tofu_abi::tof::{Addr, SetBg};
use tofu_driver::{ChannelConfig, DmaBuffer, Gate, Rounds};

use crate::buffer::Buffer;
use crate::error::OpenError;
use crate::file::PageFile;
use crate::uapi;

/// A barrier channel of this process. The process has its page and the memory of its notices; the
/// kernel has its gates.
///
/// Dropping it closes it, and its gates with it.
#[derive(Debug)]
pub struct BarrierChannel {
    rounds: Rounds<Buffer, PageFile>,
}

impl BarrierChannel {
    /// Opens a channel with its gates, where `profile` is that of the device's barriers. Group,
    /// subnet and interrupts of `config` are the kernel's and have no meaning here.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    #[allow(unsafe_code)]
    pub fn open(
        config: &ChannelConfig,
        profile: Profile,
        gates: &[Gate],
    ) -> Result<Self, OpenError> {
        config.check(profile, gates).map_err(OpenError::Gates)?;
        let &ChannelConfig { tni, bch, bseq, .. } = config;
        let page = PageFile::open(&format!("tni{tni}bch{bch}"))?;
        let notices = Buffer::new(NOTICE_SIZE, NOTICE_SIZE)?;
        let settings: Vec<_> = gates.iter().map(setting).collect();
        // SAFETY: a device address of a buffer is an address of this process. Rounds access it by
        // atomic loads and stores, and keep it until the page is unmapped and the file closed.
        let enabled =
            unsafe { uapi::enable_bch(page.as_fd(), notices.device_addr(), bseq, &settings) };
        enabled.map_err(|error| match OpenError::from(error) {
            OpenError::Busy => OpenError::GateBusy,
            error => error,
        })?;
        Ok(Self { rounds: Rounds::new(notices, page, profile, bseq) })
    }

    /// The rounds to start and poll.
    pub const fn rounds_mut(&mut self) -> &mut Rounds<Buffer, PageFile> {
        &mut self.rounds
    }

    /// Exceptions of the channel's gates, as the kernel reports them, and none if the driver has
    /// gone; `None` if the device has lost the channel, by a reset.
    pub fn exceptions(&self) -> Option<BgsIrqs> {
        match self.rounds.page().word() {
            Ok(word) => Some(BgsIrqs::from_raw(word)),
            Err(error) if error.raw_os_error() == Some(libc::EIO) => None,
            Err(_) => Some(BgsIrqs::NONE),
        }
    }
}

/// A gate as the kernel takes it.
fn setting(gate: &Gate) -> SetBg {
    let local = |bg: Option<BgId>| bg.map_or(-1, |bg| bg.get().into());
    let remote = |at: Option<BgAddress>| match at {
        Some(at) => (address(at), at.tni().into(), at.bg().into()),
        None => (Addr::default(), 0, -1),
    };
    // Links from which a gate receives have no path.
    let source = gate.src_remote.map(|from| from.with_path(from.coords().default_path()));
    let (source_raddr, source_rtni, source_rgate) = remote(source);
    let (dest_raddr, dest_rtni, dest_rgate) = remote(gate.dst_remote);
    SetBg {
        tni: gate.tni.get().into(),
        gate: gate.bg.get().into(),
        source_lgate: local(gate.src_local),
        source_raddr,
        source_rtni,
        source_rgate,
        dest_lgate: local(gate.dst_local),
        dest_raddr,
        dest_rtni,
        dest_rgate,
        ..SetBg::default()
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
    use tofu_abi::{Coords, Path, TniId};

    #[test]
    fn links_are_those_of_the_gate() {
        let address =
            |node, tni: usize, bg: usize| BgAddress::new(node, TniId::ALL[tni], BgId::ALL[bg]);
        let to = address(Coords::new(3, 2, 1, 1, 2, 0), 4, 33).with_path(Path::new(0, 1, 1));
        let from = address(Coords::new(5, 6, 7, 0, 1, 1), 2, 9);
        let gate = Gate {
            src_local: Some(BgId::ALL[17]),
            src_remote: Some(from.place()),
            dst_remote: Some(to),
            ..Gate::new(TniId::ALL[1], BgId::ALL[20])
        };
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
            ..SetBg::default()
        };
        assert_eq!(setting(&gate), expected);
    }

    #[test]
    fn gate_without_links_has_none() {
        let setting = setting(&Gate::new(TniId::ALL[0], BgId::ALL[3]));
        let links =
            [setting.source_lgate, setting.source_rgate, setting.dest_lgate, setting.dest_rgate];
        assert_eq!(links, [-1; 4]);
    }
}
